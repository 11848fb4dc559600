package outbox

import "github.com/prometheus/client_golang/prometheus"

// metrics are the collector's Prometheus metrics. No label holds an id or an error text.
type metrics struct {
	settled  *prometheus.CounterVec
	requests *prometheus.CounterVec
	seconds  prometheus.Histogram
}

// newMetrics registers with reg, which may be nil.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "collector_settled_total",
			Help: "Events that left the queue: accepted, duplicate, dead or parked."}, []string{"outcome"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "collector_requests_total",
			Help: "Requests to the ledger by what became of them: done, retry, refused or rejected."}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "collector_request_seconds",
			Help: "Time from sending a request to having read the answer.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.settled, m.requests, m.seconds} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
