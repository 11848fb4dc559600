package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/talenttrust/auditledger/cmd/collector/outbox"
)

const (
	maxPost  = 8 << 20 // bytes of one request to the local endpoint
	maxPosts = 16      // that are read at once
)

// listenLocal opens the local endpoint: host:port on a loopback address, or unix:PATH. Whoever can
// reach it can write to the ledger, so no other address is taken.
func listenLocal(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return listenUnix(path)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("--listen: %s is not a loopback address; the endpoint has no authentication", address)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return l, nil
}

// listenUnix takes over the socket file of a collector that died, not that of one that lives.
func listenUnix(path string) (net.Listener, error) {
	if info, err := os.Stat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("--listen: %s is not a socket", path)
		}
		if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
			conn.Close()
			return nil, fmt.Errorf("--listen: another program listens on %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("--listen: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("--listen: %w", err), l.Close())
	}
	return l, nil
}

// serveHTTP serves until ctx ends, and then lets requests finish.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		srv.Shutdown(grace)
	})
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// endpoint is the local POST /events. It answers once the events are on disk in the outbox.
type endpoint struct {
	in    *intake
	slots chan struct{} // one per request that is being read
}

func newEndpoint(in *intake) http.Handler {
	e := &endpoint{in, make(chan struct{}, maxPosts)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /events", e.post)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	return mux
}

// posted is the answer: what became of the events, and the reason of each that will never do.
type posted struct {
	tally
	Refused []refusedLine `json:"refused,omitempty"`
	Error   string        `json:"error,omitempty"`
}

type refusedLine struct {
	Offset string `json:"at"`
	Reason string `json:"reason"`
}

func (e *endpoint) post(w http.ResponseWriter, r *http.Request) {
	select {
	case e.slots <- struct{}{}:
		defer func() { <-e.slots }()
	default:
		reply(w, http.StatusServiceUnavailable, posted{Error: "too many requests at once"})
		return
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	// A web page cannot send these types to us without asking first, which is not answered.
	if kind != "application/json" && kind != "application/x-ndjson" {
		reply(w, http.StatusUnsupportedMediaType, posted{Error: "the content type must be application/json (one event, envelope or batch) or application/x-ndjson (one a line)"})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPost))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		reply(w, http.StatusRequestEntityTooLarge, posted{Error: fmt.Sprintf("the body has more than %d bytes", maxPost)})
		return
	case err != nil:
		return // the source is gone
	}
	l, err := e.lot(kind, body)
	if err != nil {
		reply(w, http.StatusBadRequest, posted{Error: err.Error()})
		return
	}
	e.commit(w, r, l)
}

func (e *endpoint) lot(kind string, body []byte) (*lot, error) {
	if kind == "application/json" {
		if len(body) == 0 {
			return nil, errors.New("the body is empty")
		}
		l := &lot{}
		e.in.add(l, "http", line{text: body, end: int64(len(body))})
		return l, nil
	}
	var s splitter
	lines, err := s.split(body)
	if err != nil {
		return nil, err
	}
	l := &lot{}
	for _, ln := range append(lines, s.rest()...) {
		e.in.add(l, "http", ln)
	}
	return l, nil
}

func (e *endpoint) commit(w http.ResponseWriter, r *http.Request, l *lot) {
	count, err := e.in.commit(r.Context(), l, nil)
	switch {
	case errors.Is(err, outbox.ErrFull):
		e.in.refused(err)
		reply(w, http.StatusInsufficientStorage, posted{Error: "the outbox is full: nothing was stored, send it again later"})
		return
	case err != nil:
		e.in.refused(err)
		reply(w, http.StatusServiceUnavailable, posted{Error: "the outbox cannot be written: nothing was stored, send it again later"})
		return
	}
	e.in.alerts.Clear(outbox.AlertFull)
	answer := posted{tally: count}
	for _, ev := range l.events {
		if ev.Refused != "" {
			answer.Refused = append(answer.Refused, refusedLine{ev.Origin, ev.Refused})
		}
	}
	status := http.StatusOK
	if len(answer.Refused) > 0 {
		status = http.StatusUnprocessableEntity // the others are stored; sending it again changes nothing
	}
	reply(w, status, answer)
}

func reply(w http.ResponseWriter, status int, answer posted) {
	w.Header().Set("Content-Type", "application/json")
	if status == http.StatusServiceUnavailable || status == http.StatusInsufficientStorage {
		w.Header().Set("Retry-After", "5")
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer) // fails only when the source is gone
}
