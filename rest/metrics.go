package rest

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"

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
	uses     *prometheus.CounterVec
	refusals *prometheus.CounterVec
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
		uses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "auth_uses_total", Help: "Requests by who sent them and with which key: its place in the source's list, never its id.",
		}, []string{"source", "scheme", "key"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "auth_refusals_total", Help: "Requests that were refused for who sent them.",
		}, []string{"reason"}),
	}
	s.Registry.MustRegister(m.requests, m.events, m.uses, m.refusals, newReadModels(s))
	s.Registry.MustRegister(s.Auth.collectors()...)
	return m
}

// collectors tell how the readings of the sources file went.
func (a *Auth) collectors() []prometheus.Collector {
	reloads := func(result string, n *atomic.Int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sources_reloads_total", Help: "Readings of the sources file, the first one too.", ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(n.Load()) })
	}
	stale := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sources_stale", Help: "1 while the sources file is not what holds, because it could not be read or has an error.",
	}, func() float64 {
		if a.stale.Load() {
			return 1
		}
		return 0
	})
	return []prometheus.Collector{reloads("ok", &a.reloaded), reloads("failed", &a.stays), stale}
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
