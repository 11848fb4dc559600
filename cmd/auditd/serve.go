package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/renameio/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/talenttrust/auditledger/graphql"
	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/eventstore"
	"github.com/talenttrust/auditledger/ledger/redis"
	"github.com/talenttrust/auditledger/projections"
	"github.com/talenttrust/auditledger/rest"
)

// drainLimit is how long requests may take to be answered at a stop; it leaves time to store and close.
const drainLimit = 12 * time.Second

// serve opens everything, serves until ctx ends, and closes in the reverse order. fail ends ctx with
// the reason why the service cannot go on.
func serve(ctx context.Context, fail context.CancelCauseFunc, c *config, stdout io.Writer, log *slog.Logger) (err error) {
	undo := func(f func() error) { err = errors.Join(err, f()) }
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	auth, err := c.auth()
	if err != nil {
		return fmt.Errorf("SOURCES_FILE: %w", err)
	}
	cert, err := c.loadCertificate()
	if err != nil {
		return err
	}
	schemas, err := ledger.LoadSchemas(c.SchemaDir)
	if err != nil {
		return fmt.Errorf("SCHEMA_DIR: %w", err)
	}
	store, where, err := c.openStore(ctx, fail, registry, log)
	if err != nil {
		return err
	}
	defer undo(store.Close)
	instance, err := c.instance()
	if err != nil {
		return err
	}
	id, err := ledger.ID(ctx, store)
	if err != nil {
		return err
	}
	var window ledger.Window
	spare := map[string]rest.Check{}
	if c.RedisURL != "" {
		shared, err := redis.Open(redis.Config{URL: c.RedisURL, Ledger: id, Logger: log})
		if err != nil {
			return fmt.Errorf("REDIS_URL %w", err)
		}
		defer undo(shared.Close)
		window, spare["window"] = shared, shared.Healthy
	}
	var known func(ledger.Key) bool
	if remote, ok := store.(interface{ Known(ledger.Key) bool }); ok {
		known = remote.Known
	}
	l, err := ledger.New(ledger.Config{
		Store: meterStore(store, registry), Known: known, Window: meterWindow(window, registry), Instance: instance, Schemas: schemas,
		Lax: !c.EnableStrictValidation, PlainConflict: !c.EnablePayloadIntegrityCheck,
		MaxAge: time.Duration(c.MaxEventAgeMs) * time.Millisecond, MaxSkew: time.Duration(c.MaxEventSkewMs) * time.Millisecond,
		MaxPayload: c.MaxPayloadBytes, Chunk: c.EventBatchSize, Logger: log,
	})
	if err != nil {
		return err
	}
	views, err := projections.Open(ctx, projections.Config{
		Dir: filepath.Join(c.DataDir, "projections"), Reader: store, Pending: l.Pending, Logger: log, Fatal: fail,
	})
	if err != nil {
		return err
	}
	defer undo(views.Close)
	defer undo(loop(views.Run, fail))
	defer undo(loop(l.Run, fail))

	queries, err := c.graphql(graphql.Config{Query: views.Query(), Epoch: id[:16], Logger: log, Show: rest.ShowPayload(l)})
	if err != nil {
		return err
	}
	handler := rest.New(rest.Config{
		Ledger: l, Projections: views, Auth: auth, MaxEvents: c.MaxEventsPerRequest, MaxBody: c.MaxBodyBytes,
		Checks: map[string]rest.Check{"store": store.Healthy}, Spare: spare, Registry: registry, Logger: log,
		TrustedProxies: c.TrustedProxies,
		Extra:          func(r chi.Router) { r.Handle("/graphql", endStreams(ctx, queries)) },
	})
	if parts := c.reloadable(auth, cert); len(parts) > 0 {
		hangup := make(chan os.Signal, 1)
		signal.Notify(hangup, syscall.SIGHUP)
		defer signal.Stop(hangup)
		defer undo(loop(func(ctx context.Context) error { return reload(ctx, hangup, parts, log) }, fail))
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("LISTEN: %w; stop what uses %s, or set another address (port 0: a free one)", err, c.Listen)
	}
	scheme := "http"
	if cert != nil {
		scheme, listener = "https", tls.NewListener(listener, cert.config())
	}
	log.Info("started", "listen", listener.Addr().String(), "store", where, "data", c.DataDir, "instance", instance, "sources", c.who())
	fmt.Fprintf(stdout, "auditd listening on %s://%s (data in %s, %s)\n", scheme, listener.Addr(), c.DataDir, c.who())
	return serveHTTP(ctx, listener, handler, log)
}

// store is a ledger.Store that says how it is.
type store interface {
	ledger.Store
	Healthy(ctx context.Context) error
}

// openStore opens the ledger, and says in a few words, without any secret, where it is.
func (c *config) openStore(ctx context.Context, fail func(error), registry prometheus.Registerer, log *slog.Logger) (store, string, error) {
	if c.LedgerStore == "disk" {
		s, err := disk.Open(disk.Config{Dir: c.DataDir, Reserve: c.DiskReserveBytes, Logger: log, Fatal: fail})
		if err != nil {
			return nil, "", fmt.Errorf("DATA_DIR: %w", err)
		}
		return s, "disk", nil
	}
	nodes, err := eventstore.Nodes(c.LedgerStore)
	if err != nil {
		return nil, "", fmt.Errorf("LEDGER_STORE: %w", err)
	}
	foreign := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ledger_foreign_events_total", Help: "Events in the ledger's streams on the server that are no records of it and were passed over.",
	})
	registry.MustRegister(foreign)
	s, err := eventstore.Open(ctx, eventstore.Config{URL: c.LedgerStore, Dir: c.DataDir, Logger: log, Fatal: fail, Foreign: foreign.Inc})
	if err != nil {
		return nil, "", fmt.Errorf("LEDGER_STORE: %w", err)
	}
	return s, "server " + nodes, nil
}

// reloadable are the parts that have files to be read again, by name.
func (c *config) reloadable(auth *rest.Auth, cert *certificate) map[string]func() error {
	parts := map[string]func() error{}
	if c.SourcesFile != "" {
		parts["sources"] = auth.Reload
	}
	if cert != nil {
		parts["certificate"] = cert.Reload
	}
	return parts
}

// reload has each part read its files again whenever it is told to, until ctx ends. Requests go on
// meanwhile; where a file is faulty, by what was in it before.
func reload(ctx context.Context, told <-chan os.Signal, parts map[string]func() error, log *slog.Logger) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-told:
		}
		for name, again := range parts {
			if err := again(); err != nil {
				log.Error("a part stays as it was", "part", name, "error", err)
				continue
			}
			log.Info("read again", "part", name)
		}
	}
}

// endStreams ends the event streams of h when ctx ends; other requests are answered. Clients of a stream
// resume where they were.
func endStreams(ctx context.Context, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
			until, end := context.WithCancel(r.Context())
			defer end()
			defer context.AfterFunc(ctx, end)()
			r = r.WithContext(until)
		}
		h.ServeHTTP(w, r)
	})
}

// serveHTTP answers requests until ctx ends, then those that have begun. The error is what ended ctx,
// if that is not the wish to stop.
func serveHTTP(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	log.Info("stopping")
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainLimit)
	defer cancel()
	err := server.Shutdown(drain)
	if err != nil {
		err = errors.Join(fmt.Errorf("requests were not answered within %s: %w", drainLimit, err), server.Close())
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

func (c *config) graphql(g graphql.Config) (h *graphql.Handler, err error) {
	g.NoIntrospection, g.PersistedOnly = !c.GraphQLIntrospection, c.GraphQLQueriesOnly
	if c.GraphQLQueries != "" {
		if g.Persisted, err = graphql.LoadPersisted(c.GraphQLQueries); err != nil {
			return nil, fmt.Errorf("GRAPHQL_QUERIES: %w", err)
		}
	}
	return graphql.New(g)
}

func (c *config) auth() (*rest.Auth, error) {
	if c.SourcesFile == "" {
		return rest.LocalAuth(c.IdempotencyTTL), nil
	}
	return rest.LoadAuth(c.SourcesFile, c.IdempotencyTTL, time.Now)
}

// who says in a few words who may use the service.
func (c *config) who() string {
	if c.SourcesFile == "" {
		return "no sources file: loopback only"
	}
	return "sources from " + c.SourcesFile
}

// instance is the name under which this data folder writes its own streams. It is called while the
// folder is locked.
func (c *config) instance() (string, error) {
	if c.InstanceID != "" {
		return c.InstanceID, nil
	}
	file := filepath.Join(c.DataDir, "instance")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		name := strings.ToLower(rand.Text()[:12])
		return name, renameio.WriteFile(file, []byte(name+"\n"), 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("instance name: %w", err)
	}
	name := strings.TrimSpace(string(text))
	if !ledger.ValidID(name, 64) {
		return "", fmt.Errorf("%s: must hold a name of 1 to 64 characters of A-Z a-z 0-9 _ - . @", file)
	}
	return name, nil
}
