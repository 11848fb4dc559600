package node

import (
	"errors"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Read answers reads and subscriptions, of one stream or of $all.
func (s *service) Read(r *streams.ReadReq, call streams.Streams_ReadServer) error {
	options := r.GetOptions()
	filter, err := newFilter(options.GetFilter())
	if err != nil {
		return err
	}
	name := "$all"
	if options.GetAll() == nil {
		if name, err = streamName(options.GetStream().GetStreamIdentifier()); err != nil {
			return err
		}
	}
	if options.GetSubscription() != nil {
		s.count(&s.calls.Subscriptions)
		return s.subscribe(options, name, filter, call)
	}
	s.count(&s.calls.Reads)
	return s.page(options, name, filter, call)
}

// page answers a counted read.
func (s *service) page(options *streams.ReadReq_Options, name string, filter filter, call streams.Streams_ReadServer) error {
	ctx, fault := call.Context(), s.Faults.nextRead(name)
	if err := wait(ctx, fault.Wait); err != nil {
		return err
	}
	events, err := s.find(options, name, filter)
	switch {
	case fault.fatal() && len(events) <= fault.After:
		fault.After = len(events)
	case errors.Is(err, errNotFound):
		return call.Send(&streams.ReadResp{Content: &streams.ReadResp_StreamNotFound_{
			StreamNotFound: &streams.ReadResp_StreamNotFound{StreamIdentifier: options.GetStream().GetStreamIdentifier()},
		}})
	case errors.Is(err, errDeleted):
		return StreamDeleted(name)
	case err != nil:
		return err
	case !fault.fatal():
		fault.After = len(events)
	}
	for _, e := range events[:fault.After] {
		if err := call.Send(eventMessage(e, stringIDs(options))); err != nil {
			return err
		}
	}
	return s.fail(ctx, 0, fault.Silent, fault.Cut, fault.Err)
}

func (s *service) find(options *streams.ReadReq_Options, name string, filter filter) ([]*event, error) {
	if options.GetAll() != nil {
		return s.pageOfAll(options, filter)
	}
	return s.pageOfStream(options, name)
}

func (f ReadFault) fatal() bool { return f.Err != nil || f.Cut || f.Silent }

func stringIDs(options *streams.ReadReq_Options) bool {
	return options.GetUuidOption().GetString_() != nil
}

func backwards(options *streams.ReadReq_Options) bool {
	return options.GetReadDirection() == streams.ReadReq_Options_Backwards
}

func (s *service) pageOfStream(options *streams.ReadReq_Options, name string) ([]*event, error) {
	from, err := revisionOf(options.GetStream())
	if err != nil {
		return nil, err
	}
	if options.GetCount() == 0 || from == deletedRevision && !backwards(options) {
		return nil, status.Error(codes.Unknown, "Exception was thrown by handler.")
	}
	return s.log.read(name, from, backwards(options), options.GetCount())
}

// revisionOf is where a read of a stream starts: deletedRevision stands for the end.
func revisionOf(options *streams.ReadReq_Options_StreamOptions) (int64, error) {
	switch {
	case options.GetStart() != nil:
		return 0, nil
	case options.GetEnd() != nil, options.GetRevision() == math.MaxUint64:
		return deletedRevision, nil
	case options.GetRevision() > math.MaxInt64:
		return 0, status.Error(codes.Unknown, "Exception was thrown by handler.")
	}
	return int64(options.GetRevision()), nil
}

// pageOfAll reads $all: forwards from a position on, backwards from before it.
func (s *service) pageOfAll(options *streams.ReadReq_Options, filter filter) ([]*event, error) {
	position, err := s.positionOf(options.GetAll())
	if err != nil {
		return nil, err
	}
	if options.GetCount() == 0 {
		return nil, status.Error(codes.Unknown, "Exception was thrown by handler.")
	}
	all, _ := s.log.seen()
	at, step := search(all, position), 1
	if backwards(options) {
		at, step = at-1, -1
	}
	var out []*event
	for ; at >= 0 && at < len(all) && uint64(len(out)) < options.GetCount(); at += step {
		if filter.matches(all[at]) {
			out = append(out, all[at])
		}
	}
	return out, nil
}

// positionOf is where a read of $all starts: the largest number stands for the end.
func (s *service) positionOf(options *streams.ReadReq_Options_AllOptions) (uint64, error) {
	switch p := options.GetPosition(); {
	case options.GetStart() != nil:
		return 0, nil
	case options.GetEnd() != nil, p.GetCommitPosition() == math.MaxUint64 && p.GetPreparePosition() == math.MaxUint64:
		return math.MaxUint64, nil
	case p.GetPreparePosition() > p.GetCommitPosition(), !s.log.valid(p.GetCommitPosition()):
		return 0, s.invalidPosition()
	default:
		return p.GetCommitPosition(), nil
	}
}

func (s *service) invalidPosition() error {
	if s.version.before(25, 0, 0) {
		return status.Error(codes.Unknown, "Invalid position")
	}
	return status.Error(codes.InvalidArgument, "Invalid position")
}

// subscription is one live call: the events after a start, and when it has sent them those that come.
type subscription struct {
	*service
	call     streams.Streams_ReadServer
	strings  bool // the caller wants IDs as text
	fault    SubscriptionFault
	drops    <-chan struct{} // closed when the node drops all subscriptions
	filter   filter
	name     string // "$all" or a stream
	after    int64  // with a stream, the revision it starts after
	position uint64 // with $all, the position it starts after
	sent     int
	examined int
	live     bool
}

func (s *service) subscribe(options *streams.ReadReq_Options, name string, filter filter, call streams.Streams_ReadServer) error {
	sub := &subscription{
		service: s, call: call, strings: stringIDs(options), filter: filter, name: name, after: -1,
		fault: s.Faults.nextSubscription(name), drops: s.drops(),
	}
	cursor, err := sub.start(options)
	if err != nil {
		return err
	}
	confirmation := &streams.ReadResp_SubscriptionConfirmation{SubscriptionId: uuid.NewString()}
	if err := call.Send(&streams.ReadResp{Content: &streams.ReadResp_Confirmation{Confirmation: confirmation}}); err != nil {
		return err
	}
	if name != "$all" && s.log.gone(name) {
		return StreamDeleted(name)
	}
	return sub.run(cursor)
}

// start is the place in the log where the subscription begins to look.
func (sub *subscription) start(options *streams.ReadReq_Options) (int, error) {
	all, _ := sub.log.seen()
	cursor := 0
	if options.GetAll() == nil {
		if options.GetStream().GetEnd() != nil {
			cursor = len(all)
		} else if options.GetStream().GetStart() == nil {
			after, err := revisionOf(options.GetStream())
			if err != nil {
				return 0, err
			}
			sub.after = after
		}
		return sub.rewind(all, cursor), nil
	}
	position, err := sub.positionOf(options.GetAll())
	switch {
	case err != nil:
		return 0, err
	case options.GetAll().GetStart() != nil:
	case position == math.MaxUint64:
		cursor = len(all)
	default:
		sub.position = position
		cursor = search(all, position+1)
	}
	return sub.rewind(all, cursor), nil
}

// rewind goes back by the events that the fault sends again.
func (sub *subscription) rewind(all []*event, cursor int) int {
	if sub.fault.Rewind == 0 {
		return cursor
	}
	after := sub.after
	sub.after, sub.position = -1, 0
	if sub.name != "$all" {
		sub.after = max(-1, after-int64(sub.fault.Rewind))
		return 0
	}
	for back := 0; cursor > 0 && back < sub.fault.Rewind; {
		cursor--
		if sub.wants(all[cursor]) {
			back++
		}
	}
	return cursor
}

func (sub *subscription) wants(e *event) bool {
	if sub.name == "$all" {
		return e.position() > sub.position && sub.filter.matches(e)
	}
	return e.stream == sub.name && e.revision() > sub.after
}

func (sub *subscription) run(cursor int) error {
	for {
		all, changed := sub.log.seen()
		for ; cursor < len(all); cursor++ {
			select {
			case <-sub.drops:
				return sub.dropError()
			default:
			}
			began := time.Now()
			if err := sub.examine(all[cursor]); err != nil {
				return err
			}
			now, _ := sub.log.seen()
			if err := sub.pace(len(now)-cursor-1, time.Since(began)); err != nil {
				return err
			}
		}
		if now, _ := sub.log.seen(); len(now) > cursor {
			continue
		}
		if err := sub.caughtUp(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-sub.drops:
			return sub.dropError()
		case <-sub.call.Context().Done():
			return sub.call.Context().Err()
		}
	}
}

// examine sends e if the subscription wants it, and a checkpoint when it is time for one.
func (sub *subscription) examine(e *event) error {
	if err := sub.strike(); err != nil {
		return err
	}
	if sub.wants(e) {
		if err := sub.send(e); err != nil {
			return err
		}
	}
	sub.examined++
	if sub.filter.window > 0 && sub.examined%sub.filter.window == 0 {
		return sub.checkpoint(Checkpoint{e.position(), e.position()})
	}
	return nil
}

func (sub *subscription) send(e *event) error {
	if sub.name != "$all" {
		if e.tombstone() {
			return StreamDeleted(sub.name)
		}
		if !sub.log.shows(e) {
			return nil
		}
	}
	if err := sub.call.Send(eventMessage(e, sub.strings)); err != nil {
		return err
	}
	sub.sent++
	return sub.strike()
}

// strike lets the fault happen when its time has come, once.
func (sub *subscription) strike() error {
	fault := sub.fault
	if sub.sent < fault.After {
		return nil
	}
	sub.fault.Checkpoints, sub.fault.Wait, sub.fault.Err, sub.fault.Cut, sub.fault.Silent = nil, 0, nil, false, false
	for _, c := range fault.Checkpoints {
		if err := sub.checkpoint(c); err != nil {
			return err
		}
	}
	return sub.fail(sub.call.Context(), fault.Wait, fault.Silent, fault.Cut, fault.Err)
}

func (sub *subscription) checkpoint(c Checkpoint) error {
	if sub.fault.PrepareZero {
		c.Prepare = 0
	}
	return sub.call.Send(&streams.ReadResp{Content: &streams.ReadResp_Checkpoint_{
		Checkpoint: &streams.ReadResp_Checkpoint{CommitPosition: c.Commit, PreparePosition: c.Prepare},
	}})
}

// A live consumer is too slow when it keeps a message waiting this long and is this many events behind.
const (
	slowSend   = 100 * time.Millisecond
	liveBuffer = 32
)

// pace notices a live consumer that falls behind: it is dropped, or from 24.2 on catches up again.
func (sub *subscription) pace(behind int, took time.Duration) error {
	if !sub.live || behind <= liveBuffer || took < slowSend {
		return nil
	}
	sub.live = false
	if !sub.version.before(21, 10, 7) && sub.version.before(24, 2, 0) {
		return TooSlow()
	}
	return nil
}

// caughtUp tells the caller that it is live; older servers do not say so, or not of a missing stream.
func (sub *subscription) caughtUp() error {
	if err := sub.strike(); err != nil {
		return err
	}
	if sub.live || sub.name != "$all" && sub.version.before(24, 2, 0) && !sub.log.has(sub.name) {
		return nil
	}
	sub.live = true
	if sub.fault.NeverCaughtUp || sub.version.before(23, 10, 0) {
		return nil
	}
	return sub.call.Send(&streams.ReadResp{Content: &streams.ReadResp_CaughtUp_{CaughtUp: &streams.ReadResp_CaughtUp{}}})
}

// filter chooses events of $all. The zero filter takes every event and asks for no checkpoints.
type filter struct {
	field    func(*event) string
	prefixes []string
	regex    *regexp.Regexp
	window   int // events examined between two checkpoints; 0 without a filter
}

func newFilter(options *streams.ReadReq_Options_FilterOptions) (filter, error) {
	if options == nil {
		return filter{}, nil
	}
	f := filter{field: func(e *event) string { return e.stream }}
	expression := options.GetStreamIdentifier()
	if expression == nil {
		f.field, expression = func(e *event) string { return e.typ }, options.GetEventType()
	}
	f.prefixes = expression.GetPrefix()
	if expression.GetRegex() != "" {
		regex, err := regexp.Compile(expression.GetRegex())
		if err != nil {
			return filter{}, status.Error(codes.InvalidArgument, "the filter's regular expression does not compile")
		}
		f.regex = regex
	}
	window, interval := int(options.GetMax()), int(options.GetCheckpointIntervalMultiplier())
	if options.GetCount() != nil {
		window = 32
	}
	if window <= 0 || interval <= 0 {
		return filter{}, status.Error(codes.InvalidArgument, "the filter's window and checkpoint interval must be positive")
	}
	f.window = window * interval
	return f, nil
}

func (f filter) matches(e *event) bool {
	switch {
	case f.field == nil:
		return true
	case f.regex != nil:
		return f.regex.MatchString(f.field(e))
	}
	for _, prefix := range f.prefixes {
		if strings.HasPrefix(f.field(e), prefix) {
			return true
		}
	}
	return false
}
