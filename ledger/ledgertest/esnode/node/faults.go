package node

import (
	"context"
	"slices"
	"sync"
	"time"
)

// AppendFault is what goes wrong with one append; the zero value is none. The steps happen in the
// order of the fields.
type AppendFault struct {
	// Early, when positive, ends the call after so many messages (the first is the options, then one
	// for each event) as the last four fields say, or else by Unavailable; the rest stays unread.
	Early int
	// Commit carries the append out before the rest goes wrong. Without it nothing is stored.
	Commit bool
	// Lag keeps what is stored unreplicated for this long: reads and subscriptions do not show it, it
	// is not acknowledged, and the same append by another is dropped (IdempotentNotReady). It may
	// stand alone; it implies Commit.
	Lag time.Duration
	// Wait passes before the answer.
	Wait time.Duration
	// Err is the answer: see TimedOut, NotLeader, Unavailable.
	Err error
	// Cut breaks the connection instead of answering.
	Cut bool
	// Silent answers nothing until the caller gives up.
	Silent bool
}

// AnswerLost commits the append and breaks the connection before the answer.
func AnswerLost() AppendFault { return AppendFault{Commit: true, Cut: true} }

// RequestLost breaks the connection before anything is stored.
func RequestLost() AppendFault { return AppendFault{Cut: true} }

// NotReady is what the second of two equal appends meets while the first is not replicated: it is
// dropped, and aborted after d (2 s on a real server).
func NotReady(d time.Duration) AppendFault { return AppendFault{Wait: d, Err: TimedOut()} }

func (f AppendFault) none() bool { return f == AppendFault{} }

// commits says whether the append is carried out.
func (f AppendFault) commits() bool {
	return f.none() || f.Commit || f.Lag > 0 || f.Wait > 0 && f.Err == nil && !f.Cut && !f.Silent
}

// ReadFault is what goes wrong with one read that is no subscription.
type ReadFault struct {
	// Wait passes before anything is looked up.
	Wait time.Duration
	// After so many events have been sent, or all of them when there are fewer, the rest goes wrong.
	After int
	// Err ends the call.
	Err error
	// Cut breaks the connection; what was sent last may be lost with it.
	Cut bool
	// Silent sends nothing more until the caller gives up.
	Silent bool
}

// SubscriptionFault is what goes wrong with one subscription.
type SubscriptionFault struct {
	// Rewind sends again so many of the subscription's events from before its start.
	Rewind int
	// NeverCaughtUp keeps the subscription from being told that it is live.
	NeverCaughtUp bool
	// PrepareZero leaves the prepare position out of every checkpoint.
	PrepareZero bool
	// After so many events have been sent the rest happens, once.
	After int
	// Checkpoints are sent then, whatever they say: see MaxCheckpoint.
	Checkpoints []Checkpoint
	// Wait passes then.
	Wait time.Duration
	// Err drops the subscription: see TooSlow and StreamDeleted.
	Err error
	// Cut breaks the connection; what was sent last may be lost with it.
	Cut bool
	// Silent sends nothing more until the caller gives up.
	Silent bool
}

// Checkpoint is a position of $all.
type Checkpoint struct{ Commit, Prepare uint64 }

// MaxCheckpoint is a checkpoint beyond all positions, which servers are known to have sent.
func MaxCheckpoint() Checkpoint { return Checkpoint{^uint64(0), ^uint64(0)} }

// Faults decides what goes wrong. Queued faults strike one call each, in order; when the queue of a
// kind of call is empty its hook is asked, and without a hook nothing goes wrong. Safe for concurrent use.
type Faults struct {
	mu            sync.Mutex
	appends       []AppendFault
	reads         []ReadFault
	subscriptions []SubscriptionFault
	onAppend      func(stream string) AppendFault
	onRead        func(stream string) ReadFault
	onSubscribe   func(stream string) SubscriptionFault
	delay         time.Duration
}

// Appends queues faults for the appends to come. A zero fault lets one append pass.
func (f *Faults) Appends(faults ...AppendFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.appends = append(f.appends, faults...)
}

// Reads queues faults for the reads to come.
func (f *Faults) Reads(faults ...ReadFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads = append(f.reads, faults...)
}

// Subscriptions queues faults for the subscriptions to come.
func (f *Faults) Subscriptions(faults ...SubscriptionFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscriptions = append(f.subscriptions, faults...)
}

// OnAppend sets the hook for appends; nil removes it. It is called with the stream's name and may be
// called by many calls at once.
func (f *Faults) OnAppend(hook func(stream string) AppendFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onAppend = hook
}

// OnRead sets the hook for reads; the stream of a read of all is $all.
func (f *Faults) OnRead(hook func(stream string) ReadFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onRead = hook
}

// OnSubscribe sets the hook for subscriptions; the stream of a subscription to all is $all.
func (f *Faults) OnSubscribe(hook func(stream string) SubscriptionFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onSubscribe = hook
}

// Delay makes every call wait first.
func (f *Faults) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// Pending is how many queued faults have not struck yet.
func (f *Faults) Pending() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.appends) + len(f.reads) + len(f.subscriptions)
}

// Clear removes every fault, hook and delay.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.appends, f.reads, f.subscriptions, f.delay = nil, nil, nil, 0
	f.onAppend, f.onRead, f.onSubscribe = nil, nil, nil
}

func (f *Faults) nextAppend(stream string) AppendFault {
	return next(f, &f.appends, &f.onAppend, stream)
}
func (f *Faults) nextRead(stream string) ReadFault { return next(f, &f.reads, &f.onRead, stream) }
func (f *Faults) nextSubscription(stream string) SubscriptionFault {
	return next(f, &f.subscriptions, &f.onSubscribe, stream)
}

func next[T any](f *Faults, queue *[]T, hook *func(string) T, stream string) (fault T) {
	f.mu.Lock()
	if len(*queue) > 0 {
		fault = (*queue)[0]
		*queue = slices.Delete(*queue, 0, 1)
		f.mu.Unlock()
		return fault
	}
	ask := *hook
	f.mu.Unlock()
	if ask != nil {
		fault = ask(stream)
	}
	return fault
}

func (f *Faults) delayed(ctx context.Context) error {
	f.mu.Lock()
	d := f.delay
	f.mu.Unlock()
	return wait(ctx, d)
}

// wait returns after d, or with the error of a caller who gave up.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
