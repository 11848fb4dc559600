// Package redis keeps the shared idempotency window in Redis: for each key that is bound to a payload, where its record is
// and the payload's hash, until the key is free again.
//
// Nothing is decided by it. A hit says where to look and the record there decides; a miss says nothing. So Redis may lose
// its data, hold false data, be slow or be away: the answers stay right, and only cost a look into the store.
//
// # Keys and values
//
//	auditledger:<ledger>:{<contractId>}:<eventId>:<sequence>  →  1 <revision> <payload hash, 64 hex digits> <contractId>:<eventId>:<sequence>
//
// ledger is the beginning of the ledger's id, so that several ledgers can share a Redis. The braces keep the keys of a
// contract on one node of a cluster. The value repeats the key: an answer that belongs to another question is a miss.
// Values have Redis's own expiry.
package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/sony/gobreaker/v2"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/canonical"
)

// Config is where the window is.
type Config struct {
	URL     string        // see ParseURL
	Ledger  string        // the ledger's id, see ledger.ID
	Forever time.Duration // how long a key that is bound for ever is remembered; 7 days when 0
	Now     func() time.Time
	Logger  *slog.Logger // told when the breaker opens and closes
}

// Limits of one call. They are short: what Redis does not say in time, the store says.
const (
	dialTimeout  = 500 * time.Millisecond
	callTimeout  = 200 * time.Millisecond // of a read, a write, and the wait for a connection
	poolSize     = 16
	failuresOpen = 3 // calls that fail in a row until none is tried any more
	breakerOpen  = 2 * time.Second
)

// Window is a ledger.Window. It is safe for concurrent use.
type Window struct {
	c       Config
	prefix  string
	client  redis.UniversalClient
	breaker *gobreaker.CircuitBreaker[[]redis.Cmder]
	last    atomic.Pointer[error] // of a pipeline
	losing  atomic.Bool           // the last Bind was answered with a no
}

var _ ledger.Window = (*Window)(nil)

// Open returns the window at c.URL. It does not wait for Redis: an address where there is none costs misses.
func Open(c Config) (*Window, error) {
	client, err := newClient(c.URL)
	if err != nil {
		return nil, err
	}
	if c.Forever == 0 {
		c.Forever = 7 * 24 * time.Hour
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	redis.SetLogger(libraryLog{c.Logger}) // it has one for the whole program
	w := &Window{c: c, prefix: "auditledger:" + c.Ledger[:min(16, len(c.Ledger))] + ":{", client: client}
	w.breaker = gobreaker.NewCircuitBreaker[[]redis.Cmder](gobreaker.Settings{
		Timeout:       breakerOpen,
		IsSuccessful:  func(err error) bool { return err == nil || errors.Is(err, context.Canceled) }, // by a caller who went away
		ReadyToTrip:   func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= failuresOpen },
		OnStateChange: func(_ string, _, to gobreaker.State) { w.stateChanged(to) },
	})
	return w, nil
}

func (w *Window) stateChanged(to gobreaker.State) {
	switch to {
	case gobreaker.StateOpen:
		w.c.Logger.Warn("the idempotency window does not answer; the ledger alone is asked", "error", *w.last.Load(), "tried again after", breakerOpen)
	case gobreaker.StateClosed:
		w.c.Logger.Info("the idempotency window answers again")
	}
}

// CheckURL says what is wrong with a URL, without its password. One node is redis://[user:password@]host:port[/database],
// or rediss:// with TLS. A cluster is redis+cluster:// or rediss+cluster:// with one of its nodes; further nodes follow as
// ?addr=host:port&addr=host:port.
func CheckURL(text string) error {
	client, err := newClient(text)
	if err != nil {
		return err
	}
	return client.Close()
}

func newClient(text string) (redis.UniversalClient, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("is not a URL") // the cause would quote it, password and all
	}
	for name := range u.Query() {
		if name != "addr" || !strings.HasSuffix(u.Scheme, "+cluster") {
			return nil, fmt.Errorf("has the option %q; there is only addr, for the further nodes of a cluster", name)
		}
	}
	if u.Hostname() == "" {
		return nil, errors.New("must name a host")
	}
	switch u.Scheme {
	case "redis", "rediss":
		return singleNode(u)
	case "redis+cluster", "rediss+cluster":
		u.Scheme = strings.TrimSuffix(u.Scheme, "+cluster")
		return cluster(u)
	}
	return nil, fmt.Errorf("has the scheme %q; it must be redis, rediss, redis+cluster or rediss+cluster", u.Scheme)
}

func singleNode(u *url.URL) (redis.UniversalClient, error) {
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, errors.New("must be redis://[user:password@]host:port[/database number]")
	}
	if o.DB < 0 {
		return nil, errors.New("must have a database number from 0, or none")
	}
	if err := checkNodes(o.Addr); err != nil {
		return nil, err
	}
	o.DialTimeout, o.DialerRetries = dialTimeout, 1
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout, o.ContextTimeoutEnabled = callTimeout, callTimeout, callTimeout, true
	o.MaxRetries, o.PoolSize, o.DisableIdentity = -1, poolSize, true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(o), nil
}

func cluster(u *url.URL) (redis.UniversalClient, error) {
	o, err := redis.ParseClusterURL(u.String())
	if err != nil {
		return nil, errors.New("must be redis+cluster://[user:password@]host:port[?addr=host:port&…]")
	}
	if strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("names a database; a cluster has none")
	}
	if err := checkNodes(o.Addrs...); err != nil {
		return nil, err
	}
	o.DialTimeout, o.DialerRetries = dialTimeout, 1
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout, o.ContextTimeoutEnabled = callTimeout, callTimeout, callTimeout, true
	o.MaxRetries, o.MaxRedirects, o.PoolSize, o.DisableIdentity = -1, 3, poolSize, true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClusterClient(o), nil
}

// checkNodes refuses addresses at which nothing can ever be: they would be a window that is away for ever.
func checkNodes(addrs ...string) error {
	for _, a := range addrs {
		host, port, err := net.SplitHostPort(a)
		if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 1 || n > 65535 {
			return errors.New("must have ports from 1 to 65535")
		}
		if strings.ContainsAny(host, ",/ ") || strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return errors.New("must name one host; further nodes of a cluster follow as ?addr=host:port&addr=host:port")
		}
	}
	return nil
}

// Look implements ledger.Window: one pipeline for all keys. Its error means that Redis did not answer, or answers nobody; a
// key whose value cannot be read is a miss.
func (w *Window) Look(ctx context.Context, keys []ledger.Key) ([]ledger.Hint, error) {
	answers, err := w.pipeline(ctx, unreadable, func(ctx context.Context, p redis.Pipeliner) {
		for _, k := range keys {
			p.Get(ctx, w.name(k))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("look into the window: %w", err)
	}
	hints := make([]ledger.Hint, len(keys))
	for i, a := range answers {
		if text, err := a.(*redis.StringCmd).Result(); err == nil {
			hints[i] = parseHint(text, keys[i])
		}
	}
	return hints, nil
}

// unreadable are the answers to one key that say nothing of the others: there is none, or somebody put something else there.
func unreadable(err error) bool {
	return errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE")
}

// Bind implements ledger.Window: one pipeline for all. A binding that has run out already is left out.
func (w *Window) Bind(ctx context.Context, bound []ledger.Binding) error {
	now := w.c.Now().UnixMilli()
	answers, err := w.pipeline(ctx, storesNothing, func(ctx context.Context, p redis.Pipeliner) {
		for i := range bound {
			b, ttl := &bound[i], w.c.Forever
			if b.BoundUntil > 0 {
				ttl = min(ttl, time.Duration(b.BoundUntil-now)*time.Millisecond)
			}
			if ttl > 0 {
				p.Set(ctx, w.name(b.Key), formatHint(b), ttl)
			}
		}
	})
	for i := 0; i < len(answers) && err == nil; i++ {
		err = answers[i].Err()
	}
	w.noteBind(err)
	if err != nil {
		return fmt.Errorf("bind in the window: %w", err)
	}
	return nil
}

// storesNothing are the answers of a Redis that can be read all the same.
func storesNothing(err error) bool {
	return redis.HasErrorPrefix(err, "OOM") || redis.HasErrorPrefix(err, "READONLY")
}

// noteBind logs when bindings begin to be lost, and when they are kept again.
func (w *Window) noteBind(err error) {
	if lost := err != nil && storesNothing(err); w.losing.Swap(lost) != lost {
		if lost {
			w.c.Logger.Warn("the idempotency window keeps nothing new; the ledger alone is asked for it", "error", err)
		} else {
			w.c.Logger.Info("the idempotency window keeps what is new again")
		}
	}
}

// pipeline sends commands at once. What Redis answers to a command is in the command; all that is not tolerable there is the
// whole pipeline's error. After several errors in a row nothing is sent for a while.
func (w *Window) pipeline(ctx context.Context, tolerable func(error) bool, add func(context.Context, redis.Pipeliner)) ([]redis.Cmder, error) {
	return w.breaker.Execute(func() ([]redis.Cmder, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout+callTimeout)
		defer cancel()
		p := w.client.Pipeline()
		add(ctx, p)
		answers, err := p.Exec(ctx) // the first command's error, or what kept all of them from being sent
		for i := 0; i < len(answers) && (err == nil || tolerable(err)); i++ {
			err = answers[i].Err()
		}
		if err != nil && !tolerable(err) {
			w.last.Store(&err)
			return nil, err
		}
		return answers, nil
	})
}

// Healthy asks Redis for a sign of life.
func (w *Window) Healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout+callTimeout)
	defer cancel()
	if err := w.client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("the idempotency window: %w", err)
	}
	return nil
}

// Close closes the connections.
func (w *Window) Close() error { return w.client.Close() }

// name is the key under which Redis has k. Ids hold neither braces nor colons.
func (w *Window) name(k ledger.Key) string {
	return w.prefix + k.ContractID + "}:" + k.EventID + ":" + strconv.FormatInt(k.Sequence, 10)
}

func formatHint(b *ledger.Binding) string {
	return "1 " + strconv.FormatInt(b.Revision, 10) + " " + b.PayloadHash.String() + " " + b.Key.String()
}

// parseHint is a miss for everything that formatHint did not write for this key.
func parseHint(text string, k ledger.Key) ledger.Hint {
	part := strings.Split(text, " ")
	if len(part) != 4 {
		return ledger.Hint{}
	}
	revision, err1 := strconv.ParseInt(part[1], 10, 63)
	hash, err2 := canonical.ParseHash(part[2])
	if err1 != nil || err2 != nil || revision < 0 || text != formatHint(&ledger.Binding{Key: k, Revision: revision, PayloadHash: hash}) {
		return ledger.Hint{}
	}
	return ledger.Hint{Hit: true, Revision: revision, PayloadHash: hash}
}

// libraryLog passes on what the library says. Its lines hold addresses, never keys or values.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, args...))
}
