package rest

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/projections"
)

// metrics are what the service counts of itself. No label holds an id, a key or an error.
type metrics struct {
	handler  http.Handler
	requests *prometheus.HistogramVec
	events   *prometheus.CounterVec
}

func (s *server) newMetrics() metrics {
	m := metrics{
		handler: promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(s.Logger.Handler(), slog.LevelError)}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "http_request_duration_seconds", Help: "Time from a request's header to the end of its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12),
		}, []string{"route", "status"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ledger_events_total", Help: "Events that were answered, by what was said of them.",
		}, []string{"status", "code"}),
	}
	s.Registry.MustRegister(m.requests, m.events, newReadModels(s))
	return m
}

// count counts what was said of a batch's events.
func (m *metrics) count(results []ledger.Result) {
	type said struct {
		status ledger.Status
		code   string
	}
	sums := map[said]int{}
	for i := range results {
		key := said{status: results[i].Status}
		if r := results[i].Rejection; r != nil {
			key.code = r.Code
		}
		sums[key]++
	}
	for key, n := range sums {
		m.events.WithLabelValues(string(key.status), key.code).Add(float64(n))
	}
}

// readModels tells what the projections know, at the time of asking. What they cannot tell is left out.
type readModels struct {
	*server
	activeKeys, evictions, lagRecords, lagSeconds *prometheus.Desc
}

func newReadModels(s *server) readModels {
	return readModels{
		s,
		prometheus.NewDesc("event_idempotency_active_keys", "Keys whose window has not passed.", nil, nil),
		prometheus.NewDesc("event_idempotency_evictions_total", "Keys that came back after their window had passed and were ingested anew.", nil, nil),
		prometheus.NewDesc("projection_lag_records", "Records that are in the ledger and not yet in the projection.", []string{"projection"}, nil),
		prometheus.NewDesc("projection_lag_seconds", "How far the answers of the projections are behind the ledger.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (m readModels) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.activeKeys, m.evictions, m.lagRecords, m.lagSeconds} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m readModels) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, err error, labels ...string) {
		if err != nil {
			m.Logger.LogAttrs(ctx, slog.LevelWarn, "a metric is left out", slog.String("metric", d.String()), slog.Any("error", err))
			return
		}
		to <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	active, err := m.query.ActiveKeys(m.Now())
	send(m.activeKeys, prometheus.GaugeValue, float64(active), err)
	evicted, err := m.query.Evictions()
	send(m.evictions, prometheus.CounterValue, float64(evicted), err)
	st, err := m.query.Stats(ctx, projections.StatsRequest{})
	send(m.lagSeconds, prometheus.GaugeValue, float64(st.Lag.Milliseconds)/1000, err)
	states, err := m.query.States(ctx)
	for _, state := range states {
		send(m.lagRecords, prometheus.GaugeValue, float64(state.Lag), err, state.Name)
	}
}
