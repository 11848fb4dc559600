package outbox

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// The kinds of alert.
const (
	AlertRefused = "ledger_refuses" // the ledger does not let us in, or is not where the URL says
	AlertAnswer  = "ledger_answer"  // what answers does not speak the ledger's protocol
	AlertDead    = "dead_letters"
	AlertParked  = "parked"
	AlertBacklog = "backlog"     // more is pending than the threshold says
	AlertAge     = "age"         // the oldest pending event is older than the threshold says
	AlertDisk    = "disk"        // free space is short
	AlertFull    = "outbox_full" // new events are refused
	AlertOutbox  = "outbox"      // the outbox file cannot be read or written
	AlertSource  = "source"      // a source cannot be read, or changed under us
)

// AlertKinds lists every kind.
var AlertKinds = []string{AlertRefused, AlertAnswer, AlertDead, AlertParked, AlertBacklog, AlertAge, AlertDisk, AlertFull, AlertOutbox, AlertSource}

// Alert is one change of state.
type Alert struct {
	Kind   string    `json:"alert"`
	Raised bool      `json:"raised"` // false: it is over
	Count  int       `json:"count"`  // how often in a row it was seen, or how many events it is about
	Detail string    `json:"detail"` // for a person; never holds payload values
	At     time.Time `json:"at"`

	announced int // Count at the last announcement
}

// Alerts tells a person about changes of state: once when something begins, once when it is over,
// not each time it is seen. Its methods are safe for concurrent use.
type Alerts struct {
	log   *slog.Logger
	send  func(Alert)
	now   func() time.Time
	mu    sync.Mutex // guards state
	state map[string]Alert
}

// NewAlerts returns alerts that go to log and to send, which must not block and may be nil.
func NewAlerts(log *slog.Logger, send func(Alert)) *Alerts {
	if send == nil {
		send = func(Alert) {}
	}
	return &Alerts{log: log, send: send, now: time.Now, state: map[string]Alert{}}
}

// Raise says that a fault was seen n times more. It is announced when it was not there before.
func (a *Alerts) Raise(kind string, n int, detail string) {
	a.change(kind, func(was Alert) (Alert, bool) {
		return Alert{Raised: true, Count: was.Count + n, Detail: detail}, !was.Raised
	})
}

// Level says how many events a state is about; 0 clears it. It is announced when it begins, when
// it is over, and when growing is set and there are more than at the last announcement.
func (a *Alerts) Level(kind string, count int, growing bool, detail string) {
	if count == 0 {
		a.Clear(kind)
		return
	}
	a.change(kind, func(was Alert) (Alert, bool) {
		return Alert{Raised: true, Count: count, Detail: detail}, !was.Raised || growing && count > was.announced
	})
}

// Clear says that a fault is gone. It is announced when it was there.
func (a *Alerts) Clear(kind string) {
	a.change(kind, func(was Alert) (Alert, bool) {
		return Alert{Detail: "it is over"}, was.Raised
	})
}

func (a *Alerts) change(kind string, next func(was Alert) (now Alert, announce bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.state[kind]
	now, announce := next(was)
	now.Kind, now.At, now.announced = kind, a.now(), was.announced
	if announce {
		now.announced = now.Count
	}
	a.state[kind] = now
	if !announce {
		return
	}
	level := slog.LevelInfo
	if now.Raised {
		level = slog.LevelWarn
	}
	a.log.Log(context.Background(), level, "alert", "alert", kind, "raised", now.Raised, "count", now.Count, "detail", now.Detail)
	a.send(now)
}

// State returns the present state of a kind.
func (a *Alerts) State(kind string) Alert {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state[kind]
}
