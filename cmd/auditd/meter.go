package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/talenttrust/auditledger/ledger"
)

// meteredStore measures the appends to a store.
type meteredStore struct {
	ledger.Store
	seconds, entries prometheus.Histogram
}

func meterStore(s ledger.Store, r prometheus.Registerer) ledger.Store {
	m := &meteredStore{
		Store: s,
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ledger_append_seconds", Help: "Time from an append to its being durable.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		entries: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ledger_append_batch_events", Help: "Entries that were appended at once.", Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}),
	}
	r.MustRegister(m.seconds, m.entries)
	return m
}

// Append implements ledger.Store.
func (m *meteredStore) Append(ctx context.Context, entries []*ledger.Entry) ([]ledger.Outcome, error) {
	started := time.Now()
	defer func() {
		m.seconds.Observe(time.Since(started).Seconds())
		m.entries.Observe(float64(len(entries)))
	}()
	return m.Store.Append(ctx, entries)
}

// meteredWindow counts what a window says of the keys it is asked for.
type meteredWindow struct {
	ledger.Window
	hits, misses, errors prometheus.Counter
}

// meterWindow returns w with its counters, which are there without a window too.
func meterWindow(w ledger.Window, r prometheus.Registerer) ledger.Window {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "window_requests_total", Help: "Keys that the shared idempotency window was asked for, by what it said.",
	}, []string{"result"})
	r.MustRegister(requests)
	m := &meteredWindow{w, requests.WithLabelValues("hit"), requests.WithLabelValues("miss"), requests.WithLabelValues("error")}
	if w == nil {
		return nil
	}
	return m
}

// Look implements ledger.Window.
func (m *meteredWindow) Look(ctx context.Context, keys []ledger.Key) ([]ledger.Hint, error) {
	hints, err := m.Window.Look(ctx, keys)
	if err != nil {
		m.errors.Add(float64(len(keys)))
		return nil, err
	}
	hits := 0
	for _, h := range hints {
		if h.Hit {
			hits++
		}
	}
	m.hits.Add(float64(hits))
	m.misses.Add(float64(len(hints) - hits))
	return hints, nil
}
