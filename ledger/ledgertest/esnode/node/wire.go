package node

import (
	"encoding/binary"
	"fmt"
	"net"
	"strconv"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func structured(id uuid.UUID) *shared.UUID {
	return &shared.UUID{Value: &shared.UUID_Structured_{Structured: &shared.UUID_Structured{
		MostSignificantBits:  int64(binary.BigEndian.Uint64(id[:8])),
		LeastSignificantBits: int64(binary.BigEndian.Uint64(id[8:])),
	}}}
}

func uuidFrom(id *shared.UUID) (uuid.UUID, error) {
	if s := id.GetStructured(); s != nil {
		var out uuid.UUID
		binary.BigEndian.PutUint64(out[:8], uint64(s.MostSignificantBits))
		binary.BigEndian.PutUint64(out[8:], uint64(s.LeastSignificantBits))
		return out, nil
	}
	return uuid.Parse(id.GetString_())
}

// eventMessage is e as a read sends it.
func eventMessage(e *event, stringIDs bool) *streams.ReadResp {
	wire := e.wire
	if stringIDs {
		wire = proto.CloneOf(wire)
		wire.Id = &shared.UUID{Value: &shared.UUID_String_{String_: e.id.String()}}
	}
	return &streams.ReadResp{Content: &streams.ReadResp_Event{Event: &streams.ReadResp_ReadEvent{
		Event:    wire,
		Position: &streams.ReadResp_ReadEvent_CommitPosition{CommitPosition: e.position()},
	}}}
}

// proposed is an event as it comes in an append.
func proposed(m *streams.AppendReq_ProposedMessage) (*event, error) {
	id, err := uuidFrom(m.GetId())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the event ID is no UUID")
	}
	typ, hasType := m.GetMetadata()["type"]
	contentType, hasContentType := m.GetMetadata()["content-type"]
	switch {
	case !hasType:
		return nil, status.Error(codes.InvalidArgument, "Required Metadata Property 'type' is missing.")
	case !hasContentType:
		return nil, status.Error(codes.InvalidArgument, "Required Metadata Property 'content-type' is missing.")
	case id == uuid.Nil || typ == "":
		return nil, status.Error(codes.Unknown, "Exception was thrown by handler.")
	}
	return newEvent(id, typ, contentType, m.GetData(), m.GetCustomMetadata()), nil
}

func appended(out outcome) *streams.AppendResp {
	success := &streams.AppendResp_Success{
		CurrentRevisionOption: &streams.AppendResp_Success_CurrentRevision{CurrentRevision: uint64(out.current)},
		PositionOption:        &streams.AppendResp_Success_NoPosition{NoPosition: &shared.Empty{}},
	}
	if out.current == noStream {
		success.CurrentRevisionOption = &streams.AppendResp_Success_NoStream{NoStream: &shared.Empty{}}
	}
	if out.last != nil && !out.hidden {
		success.PositionOption = &streams.AppendResp_Success_Position{Position: &streams.AppendResp_Position{
			CommitPosition: out.last.position(), PreparePosition: out.last.position(),
		}}
	}
	return &streams.AppendResp{Result: &streams.AppendResp_Success_{Success: success}}
}

func wrongExpectedVersion(expected, current int64) *streams.AppendResp {
	wrong := &streams.AppendResp_WrongExpectedVersion{}
	if current == noStream {
		wrong.CurrentRevisionOption = &streams.AppendResp_WrongExpectedVersion_CurrentNoStream{CurrentNoStream: &shared.Empty{}}
		wrong.CurrentRevisionOption_20_6_0 = &streams.AppendResp_WrongExpectedVersion_NoStream_20_6_0{NoStream_20_6_0: &shared.Empty{}}
	} else {
		wrong.CurrentRevisionOption = &streams.AppendResp_WrongExpectedVersion_CurrentRevision{CurrentRevision: uint64(current)}
		wrong.CurrentRevisionOption_20_6_0 = &streams.AppendResp_WrongExpectedVersion_CurrentRevision_20_6_0{CurrentRevision_20_6_0: uint64(current)}
	}
	switch expected {
	case anyRevision:
		wrong.ExpectedRevisionOption = &streams.AppendResp_WrongExpectedVersion_ExpectedAny{ExpectedAny: &shared.Empty{}}
	case streamExists:
		wrong.ExpectedRevisionOption = &streams.AppendResp_WrongExpectedVersion_ExpectedStreamExists{ExpectedStreamExists: &shared.Empty{}}
	case noStream:
		wrong.ExpectedRevisionOption = &streams.AppendResp_WrongExpectedVersion_ExpectedNoStream{ExpectedNoStream: &shared.Empty{}}
	default:
		wrong.ExpectedRevisionOption = &streams.AppendResp_WrongExpectedVersion_ExpectedRevision{ExpectedRevision: uint64(expected)}
	}
	return &streams.AppendResp{Result: &streams.AppendResp_WrongExpectedVersion_{WrongExpectedVersion: wrong}}
}

// callError is a gRPC status with the trailers that tell the client what it means.
type callError struct {
	*status.Status
	trailer metadata.MD
}

func (e *callError) Error() string              { return e.Err().Error() }
func (e *callError) GRPCStatus() *status.Status { return e.Status }

func trouble(code codes.Code, text string, trailers ...string) error {
	return &callError{status.New(code, text), metadata.Pairs(trailers...)}
}

// TimedOut is what a write ends in that was not committed, or not acknowledged, in time.
func TimedOut() error { return trouble(codes.Aborted, "Operation timed out") }

// NotLeader sends the client to the leader at addr (host:port).
func NotLeader(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		host, port = addr, "2113"
	}
	return trouble(codes.NotFound, "Leader info available",
		"exception", "not-leader", "leader-endpoint-host", host, "leader-endpoint-port", port)
}

// Unavailable is a server that is starting, stopping or too busy.
func Unavailable() error { return trouble(codes.Unavailable, "Server Is Not Ready") }

// TooSlow drops a subscription whose consumer does not keep up.
func TooSlow() error {
	return trouble(codes.Aborted, "Operation timed out: Consumer too slow to handle event while live. Client resubscription required.")
}

// StreamDeleted is the answer about a stream that has a tombstone.
func StreamDeleted(name string) error {
	return trouble(codes.FailedPrecondition, fmt.Sprintf("Event stream '%s' is deleted.", name),
		"exception", "stream-deleted", "stream-name", name)
}

// AccessDenied is the answer to a caller who is known and may not, or who is not known at all.
func AccessDenied() error {
	return trouble(codes.PermissionDenied, "Access Denied", "exception", "access-denied")
}

// Unauthenticated is the answer to a wrong password.
func Unauthenticated() error { return trouble(codes.Unauthenticated, "Bad credentials") }

func tooLarge(limit int) error {
	return trouble(codes.InvalidArgument, fmt.Sprintf("Maximum Append Size of %d Exceeded.", limit),
		"exception", "maximum-append-size-exceeded", "maximum-append-size", strconv.Itoa(limit))
}

func wrongDelete(name string, expected, current int64) error {
	return trouble(codes.FailedPrecondition,
		fmt.Sprintf("Append failed due to WrongExpectedVersion. Stream: %s, Expected version: %d, Actual version: %d", name, expected, current),
		"exception", "wrong-expected-version", "stream-name", name,
		"expected-version", strconv.FormatInt(expected, 10), "actual-version", strconv.FormatInt(current, 10))
}
