package rest

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/talenttrust/auditledger/ledger"
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
	s.Registry.MustRegister(m.requests, m.events)
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
