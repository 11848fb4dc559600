package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// MonitorConfig says what of an outbox is watched and when it is time to call a person.
type MonitorConfig struct {
	// Every is how often the outbox is looked at; 0 is 1 s. Heartbeat is how often its state goes
	// to the log all the same; 0 is 1 minute.
	Every     time.Duration
	Heartbeat time.Duration
	// Backlog and Age are the thresholds of pending events and of the age of the oldest one;
	// 0 is 100,000 events and 1 hour.
	Backlog int
	Age     time.Duration
	// Free is the free space on the disk below which to alert; 0 is twice the outbox's reserve.
	Free int64
	// Alerts is needed; Log and Metrics may be nil.
	Alerts  *Alerts
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Monitor watches an outbox: it sets the gauges, writes the heartbeat and raises the alerts that
// are about the state of the outbox.
type Monitor struct {
	box    *Outbox
	cfg    MonitorConfig
	gauges map[string]prometheus.Gauge
	alert  *prometheus.GaugeVec
}

// NewMonitor returns a monitor of the outbox.
func NewMonitor(box *Outbox, cfg MonitorConfig) (*Monitor, error) {
	cfg.Every = or(cfg.Every, time.Second)
	cfg.Heartbeat = or(cfg.Heartbeat, time.Minute)
	cfg.Backlog = or(cfg.Backlog, 100_000)
	cfg.Age = or(cfg.Age, time.Hour)
	if cfg.Free == 0 {
		cfg.Free = 2 * max(box.cfg.Reserve, 0)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Monitor{box: box, cfg: cfg, gauges: map[string]prometheus.Gauge{}}
	m.alert = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "collector_alert",
		Help: "How often in a row, or for how many events, an alert holds; 0 when it does not."}, []string{"alert"})
	collectors := []prometheus.Collector{m.alert}
	for name, help := range map[string]string{
		"collector_pending":           "Events that wait for delivery, parked ones included.",
		"collector_pending_bytes":     "Bytes of their bodies.",
		"collector_parked":            "Events that the ledger does not take from us now.",
		"collector_dead":              "Dead letters, which wait for a person.",
		"collector_oldest_seconds":    "Age of the oldest pending event.",
		"collector_outbox_bytes":      "Size of the outbox file.",
		"collector_free_bytes":        "Free space on its disk.",
		"collector_heartbeat_seconds": "Time of the last look at the outbox, since 1970.",
	} {
		m.gauges[name] = prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		collectors = append(collectors, m.gauges[name])
	}
	if cfg.Metrics != nil {
		for _, c := range collectors {
			if err := cfg.Metrics.Register(c); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

// Run watches until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	tick := time.NewTicker(m.cfg.Every)
	defer tick.Stop()
	beat := time.NewTicker(m.cfg.Heartbeat)
	defer beat.Stop()
	for blind := false; ; {
		stats, err := m.look(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			blind = true
			m.cfg.Alerts.Raise(AlertOutbox, 1, err.Error())
		case err == nil && blind:
			blind = false
			m.cfg.Alerts.Clear(AlertOutbox)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-beat.C:
			m.cfg.Log.Info("heartbeat", "pending", stats.Pending, "parked", stats.Parked, "dead", stats.Dead,
				"oldest", m.age(stats).Round(time.Second), "free_bytes", stats.FreeBytes)
		}
	}
}

// age is 0 when nothing is pending and when the clock went back.
func (m *Monitor) age(s Stats) time.Duration {
	if s.Oldest.IsZero() {
		return 0
	}
	return max(m.box.cfg.Now().Sub(s.Oldest), 0)
}

func (m *Monitor) look(ctx context.Context) (Stats, error) {
	s, err := m.box.Stats(ctx)
	if err != nil {
		return s, err
	}
	age := m.age(s)
	m.gauges["collector_pending"].Set(float64(s.Pending))
	m.gauges["collector_pending_bytes"].Set(float64(s.Bytes))
	m.gauges["collector_parked"].Set(float64(s.Parked))
	m.gauges["collector_dead"].Set(float64(s.Dead))
	m.gauges["collector_oldest_seconds"].Set(age.Seconds())
	m.gauges["collector_outbox_bytes"].Set(float64(s.FileBytes))
	m.gauges["collector_free_bytes"].Set(float64(s.FreeBytes))
	m.gauges["collector_heartbeat_seconds"].Set(float64(m.box.cfg.Now().UnixMilli()) / 1000)

	a := m.cfg.Alerts
	a.Level(AlertDead, s.Dead, true, fmt.Sprintf("%d dead letters wait for a person", s.Dead))
	a.Level(AlertParked, s.Parked, false, fmt.Sprintf("%d events are parked: the ledger does not take them from us", s.Parked))
	a.Level(AlertBacklog, over(s.Pending > m.cfg.Backlog, s.Pending), false, fmt.Sprintf("%d events are pending, the threshold is %d", s.Pending, m.cfg.Backlog))
	a.Level(AlertAge, over(age > m.cfg.Age, s.Pending), false, fmt.Sprintf("the oldest pending event waits for %v, the threshold is %v", age.Round(time.Second), m.cfg.Age))
	a.Level(AlertDisk, over(s.FreeBytes < m.cfg.Free, 1), false, fmt.Sprintf("%d bytes are free on the disk, the threshold is %d", s.FreeBytes, m.cfg.Free))
	for _, kind := range AlertKinds {
		count := 0
		if state := a.State(kind); state.Raised {
			count = max(state.Count, 1)
		}
		m.alert.WithLabelValues(kind).Set(float64(count))
	}
	return s, nil
}

func over(is bool, count int) int {
	if is {
		return max(count, 1)
	}
	return 0
}
