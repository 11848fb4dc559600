package outbox

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestMonitor(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	o := open(t, func(c *Config) { c.Now = func() time.Time { return now } })
	var seen []string
	alerts := NewAlerts(slog.New(slog.DiscardHandler), func(a Alert) {
		seen = append(seen, a.Kind+map[bool]string{true: " on", false: " off"}[a.Raised])
	})
	m, err := NewMonitor(o, MonitorConfig{Backlog: 2, Age: time.Minute, Free: 1, Alerts: alerts, Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	look := func(want string) {
		t.Helper()
		if _, err := m.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(seen, ", "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		seen = nil
	}
	bad := func(n int) Event {
		e := event("c", "bad", n, `{}`)
		e.Refused = "for the test"
		return e
	}
	look("")
	enqueue(t, o, event("c", "e", 1, `{}`), event("c", "e", 2, `{}`), bad(1))
	look("dead_letters on")
	look("") // not each time it looks
	enqueue(t, o, event("c", "e", 3, `{}`), bad(2))
	look("dead_letters on, backlog on") // another one is a change
	now = now.Add(2 * time.Minute)
	look("age on")
	now = now.Add(-24 * time.Hour) // the clock steps back: no negative age
	look("age off")
	for _, p := range pending(t, o) {
		if err := o.Settle(t.Context(), []Settlement{{Pending: p, Fate: Sent}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range letters(t, o, Selection{}) {
		if _, err := o.Remove(t.Context(), d.ID); err != nil {
			t.Fatal(err)
		}
	}
	look("dead_letters off, backlog off")

	m.cfg.Free = 1 << 62
	look("disk on")
}
