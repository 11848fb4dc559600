package node

import (
	"cmp"
	"context"
	"io"
	"math"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Append takes the options, then the events, and answers once: success or wrong expected version.
func (s *service) Append(call streams.Streams_AppendServer) error {
	s.count(&s.calls.Appends)
	ctx := call.Context()
	first, err := call.Recv()
	if err != nil {
		return err
	}
	options := first.GetOptions()
	name, err := streamName(options.GetStreamIdentifier())
	if err != nil {
		return err
	}
	expected, err := expectation(options)
	if err != nil {
		return err
	}
	fault := s.Faults.nextAppend(name)
	events, err := s.receive(call, fault)
	if err != nil {
		return err
	}
	if !fault.commits() {
		return s.strike(ctx, fault)
	}
	out, err := s.commit(ctx, write{stream: name, expected: expected, events: events, lag: fault.Lag})
	if err != nil {
		return err
	}
	if !fault.none() {
		if err := s.strike(ctx, fault); err != nil {
			return err
		}
	}
	switch out.verdict {
	case wrongRevision:
		return call.SendAndClose(wrongExpectedVersion(expected, out.current))
	case deleted:
		return StreamDeleted(name)
	}
	return call.SendAndClose(appended(out))
}

// receive takes the events of an append until it is complete, too large, or meets its early fault.
func (s *service) receive(call streams.Streams_AppendServer, fault AppendFault) ([]*event, error) {
	var events []*event
	size := 0
	for {
		if fault.Early > 0 && len(events)+1 >= fault.Early {
			return nil, cmp.Or(s.strike(call.Context(), fault), Unavailable())
		}
		m, err := call.Recv()
		if err == io.EOF {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
		e, err := proposed(m.GetProposedMessage())
		if err != nil {
			return nil, err
		}
		n := s.limits.sizeOf(e)
		size += n
		if n > s.limits.event || size > s.limits.append {
			return nil, tooLarge(min(s.limits.append, s.limits.event))
		}
		events = append(events, e)
	}
}

// commit carries a write out and returns when it is acknowledged. A write whose caller has gone is
// forgotten if nothing has been stored yet.
func (s *service) commit(ctx context.Context, w write) (outcome, error) {
	if ctx.Err() != nil {
		return outcome{}, ctx.Err()
	}
	out, err := s.log.append(w)
	if err != nil {
		return out, status.Error(codes.Internal, err.Error())
	}
	switch out.verdict {
	case store:
		return out, s.acknowledge(ctx, out.last)
	case notReady:
		if err := wait(ctx, s.CommitTimeout); err != nil {
			return out, err
		}
		return out, TimedOut()
	case confused:
		return out, status.Error(codes.Unknown, "Exception was thrown by handler.")
	}
	return out, nil
}

// acknowledge waits until e is replicated and indexed, and no longer than the server does.
func (s *service) acknowledge(ctx context.Context, e *event) error {
	if e == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.CommitTimeout, TimedOut())
	defer cancel()
	for {
		visible, changed := s.log.isVisible(e)
		if visible {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// strike is the end of a call that goes wrong; nil if it only had to wait.
func (s *service) strike(ctx context.Context, fault AppendFault) error {
	return s.fail(ctx, fault.Wait, fault.Silent, fault.Cut, fault.Err)
}

// Delete hides all events of a stream by its metadata; the next write recreates it.
func (s *service) Delete(ctx context.Context, r *streams.DeleteReq) (*streams.DeleteResp, error) {
	position, err := s.remove(ctx, r.GetOptions(), false)
	if err != nil {
		return nil, err
	}
	return &streams.DeleteResp{PositionOption: &streams.DeleteResp_Position_{
		Position: &streams.DeleteResp_Position{CommitPosition: position, PreparePosition: position},
	}}, nil
}

// Tombstone ends a stream for ever.
func (s *service) Tombstone(ctx context.Context, r *streams.TombstoneReq) (*streams.TombstoneResp, error) {
	position, err := s.remove(ctx, r.GetOptions(), true)
	if err != nil {
		return nil, err
	}
	return &streams.TombstoneResp{PositionOption: &streams.TombstoneResp_Position_{
		Position: &streams.TombstoneResp_Position{CommitPosition: position, PreparePosition: position},
	}}, nil
}

func (s *service) remove(ctx context.Context, options expecting, hard bool) (uint64, error) {
	s.count(&s.calls.Deletes)
	name, err := streamName(options.GetStreamIdentifier())
	if err != nil {
		return 0, err
	}
	expected, err := expectation(options)
	if err != nil {
		return 0, err
	}
	out, err := s.log.delete(name, expected, hard)
	switch {
	case err != nil:
		return 0, status.Error(codes.Internal, err.Error())
	case out.verdict == wrongRevision:
		return 0, wrongDelete(name, expected, out.current)
	case out.verdict == deleted:
		return 0, StreamDeleted(name)
	}
	return out.last.position(), s.acknowledge(ctx, out.last)
}

// expecting is the form that the options of all writes have.
type expecting interface {
	GetStreamIdentifier() *shared.StreamIdentifier
	GetRevision() uint64
	GetNoStream() *shared.Empty
	GetAny() *shared.Empty
	GetStreamExists() *shared.Empty
}

func expectation(options expecting) (int64, error) {
	switch {
	case options.GetNoStream() != nil:
		return noStream, nil
	case options.GetAny() != nil:
		return anyRevision, nil
	case options.GetStreamExists() != nil:
		return streamExists, nil
	case options.GetRevision() == math.MaxUint64:
		return noStream, nil // the server reads the number as signed
	case options.GetRevision() > math.MaxInt64:
		return 0, status.Error(codes.Unknown, "Exception was thrown by handler.")
	}
	return int64(options.GetRevision()), nil
}

func streamName(id *shared.StreamIdentifier) (string, error) {
	if len(id.GetStreamName()) == 0 {
		return "", status.Error(codes.InvalidArgument, "the stream name is empty")
	}
	return string(id.GetStreamName()), nil
}
