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

func meter(s ledger.Store, r prometheus.Registerer) ledger.Store {
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
