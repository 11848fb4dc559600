package node_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/serverfeatures"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

// world is one server and two streams on it that nobody else uses, S and T.
type world struct {
	testing.TB
	node    *node.Node // nil: a real server
	conn    *grpc.ClientConn
	streams streams.StreamsClient
	ctx     context.Context
	S, T    string
	prefix  string // of S and T, and of no other stream
	origin  uint64 // the last position of $all before the row
}

// newWorld opens a node for the test, or connects to the server that ESDB_URL names.
func newWorld(t *testing.T, config node.Config) *world {
	t.Helper()
	w := &world{TB: t, prefix: "contract-"}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	w.ctx = ctx
	address := os.Getenv("ESDB_URL")
	if address == "" {
		n, err := node.Open(config)
		w.must(err)
		t.Cleanup(func() { w.must(n.Close()) })
		w.node, address = n, n.URL()
	} else {
		w.prefix += uuid.NewString() + "-"
	}
	w.S, w.T = w.prefix+"lamp-7", w.prefix+"lamp-8"
	w.connect(address)
	if last := w.messages(w.readAll(atEnd, true, 1)); len(last) > 0 {
		w.origin = last[0].CommitPosition
	}
	return w
}

func (w *world) connect(address string) {
	w.Helper()
	w.conn = dial(w.TB, address)
	w.streams = streams.NewStreamsClient(w.conn)
}

// dial connects to one server by its connection string.
func dial(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	options := []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(17<<20))}
	if u.Query().Get("tls") == "false" {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	} else {
		config := &tls.Config{InsecureSkipVerify: u.Query().Get("tlsVerifyCert") == "false"}
		if file := u.Query().Get("tlsCAFile"); file != "" {
			pem, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			config.RootCAs = x509.NewCertPool()
			config.RootCAs.AppendCertsFromPEM(pem)
		}
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	}
	if u.User != nil {
		password, _ := u.User.Password()
		options = append(options, grpc.WithPerRPCCredentials(basic(u.User.Username()+":"+password)))
	}
	conn, err := grpc.NewClient("passthrough:///"+u.Host, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// basic is a user and password that go with every call.
type basic string

func (b basic) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte(b))}, nil
}

func (basic) RequireTransportSecurity() bool { return false }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// version is what the server says its version is.
func (w *world) version() (major, minor int) {
	w.Helper()
	methods, err := serverfeatures.NewServerFeaturesClient(w.conn).GetSupportedMethods(w.ctx, &shared.Empty{})
	w.must(err)
	if _, err := fmt.Sscanf(methods.EventStoreServerVersion, "%d.%d", &major, &minor); err != nil {
		w.Fatalf("version %q: %v", methods.EventStoreServerVersion, err)
	}
	return major, minor
}

// letters are the events of the table.
var letters = map[string]uuid.UUID{
	"a": uuid.MustParse("1aabb6b8-6890-5134-8c5e-094a945e285e"),
	"b": uuid.MustParse("44484448-6beb-5099-aac4-29139e28ee0c"),
	"c": uuid.MustParse("448d1edb-5345-583e-b53c-cfa5b4890f93"),
	"d": uuid.MustParse("eaf77f41-f9be-5d55-93b6-2714442f272b"),
	"e": uuid.MustParse("9736a668-fbfb-51d3-a66d-ed78cf8cf2fe"),
	"x": uuid.MustParse("faab49a4-5b88-5829-aaca-c141a6af6b45"),
	"y": uuid.MustParse("bd16fa79-0106-5f70-b252-db333c70a5b6"),
	"z": uuid.MustParse("1cc69a52-67d2-5891-a331-241954b6ceaa"),
}

// lettered are the events of a text such as "abc".
func lettered(text string) []*streams.AppendReq_ProposedMessage {
	var out []*streams.AppendReq_ProposedMessage
	for _, letter := range strings.Split(text, "") {
		out = append(out, proposal(letters[letter], fmt.Sprintf(`{"k":%q}`, letter)))
	}
	return out
}

// unnamed are n events that are no letters.
func unnamed(n int, data string) []*streams.AppendReq_ProposedMessage {
	var out []*streams.AppendReq_ProposedMessage
	for range n {
		out = append(out, proposal(uuid.New(), data))
	}
	return out
}

func proposal(id uuid.UUID, data string) *streams.AppendReq_ProposedMessage {
	return &streams.AppendReq_ProposedMessage{
		Id: &shared.UUID{Value: &shared.UUID_Structured_{Structured: &shared.UUID_Structured{
			MostSignificantBits:  int64(binary.BigEndian.Uint64(id[:8])),
			LeastSignificantBits: int64(binary.BigEndian.Uint64(id[8:])),
		}}},
		Metadata: map[string]string{"type": "EventAccepted", "content-type": "application/json"},
		Data:     []byte(data),
	}
}

// rev is an expected revision, or one of those below.
type rev int64

const (
	none   rev = -1
	anyRev rev = -2
	exists rev = -4
)

func (r rev) String() string {
	switch r {
	case none:
		return "NoStream"
	case anyRev:
		return "Any"
	case exists:
		return "StreamExists"
	}
	return fmt.Sprintf("Rev %d", int64(r))
}

// reply is how an append ended.
type reply struct {
	text     string // "success 2", "wrong 2" or "wrong none", "deleted", or a gRPC code
	position uint64 // 0: the answer holds none
	err      error
}

// append sends lettered events.
func (w *world) append(stream string, expected rev, text string) reply {
	w.Helper()
	return w.send(stream, expected, lettered(text)...)
}

func (w *world) send(stream string, expected rev, events ...*streams.AppendReq_ProposedMessage) reply {
	w.Helper()
	call, err := w.streams.Append(w.ctx)
	if err != nil {
		return reply{text: status.Code(err).String(), err: err}
	}
	options := &streams.AppendReq_Options{StreamIdentifier: name(stream)}
	switch expected {
	case none:
		options.ExpectedStreamRevision = &streams.AppendReq_Options_NoStream{NoStream: &shared.Empty{}}
	case anyRev:
		options.ExpectedStreamRevision = &streams.AppendReq_Options_Any{Any: &shared.Empty{}}
	case exists:
		options.ExpectedStreamRevision = &streams.AppendReq_Options_StreamExists{StreamExists: &shared.Empty{}}
	default:
		options.ExpectedStreamRevision = &streams.AppendReq_Options_Revision{Revision: uint64(expected)}
	}
	err = call.Send(&streams.AppendReq{Content: &streams.AppendReq_Options_{Options: options}})
	for i := 0; i < len(events) && err == nil; i++ {
		err = call.Send(&streams.AppendReq{Content: &streams.AppendReq_ProposedMessage_{ProposedMessage: events[i]}})
	}
	answer, err := call.CloseAndRecv() // tells the cause of an early end, too
	return replied(answer, err, call.Trailer())
}

func replied(answer *streams.AppendResp, err error, trailer metadata.MD) reply {
	if err != nil {
		return reply{text: refusal(err, trailer), err: err}
	}
	if wrong := answer.GetWrongExpectedVersion(); wrong != nil {
		if wrong.GetCurrentNoStream() != nil {
			return reply{text: "wrong none"}
		}
		return reply{text: fmt.Sprintf("wrong %d", wrong.GetCurrentRevision())}
	}
	success := answer.GetSuccess()
	return reply{
		text:     fmt.Sprintf("success %d", success.GetCurrentRevision()),
		position: success.GetPosition().GetCommitPosition(),
	}
}

// refusal is the short form of a call's error.
func refusal(err error, trailer metadata.MD) string {
	switch exception := trailer.Get("exception"); {
	case err == nil:
		return "ok"
	case slices.Contains(exception, "stream-deleted"):
		return "deleted"
	case slices.Contains(exception, "wrong-expected-version"):
		return "wrong " + strings.Replace(strings.Join(trailer.Get("actual-version"), ""), "-1", "none", 1)
	}
	return status.Code(err).String()
}

// delete is a soft deletion: "ok", "wrong 1", "deleted" or a gRPC code.
func (w *world) delete(stream string, expected rev) string {
	options := &streams.DeleteReq_Options{StreamIdentifier: name(stream)}
	switch expected {
	case none:
		options.ExpectedStreamRevision = &streams.DeleteReq_Options_NoStream{NoStream: &shared.Empty{}}
	case anyRev:
		options.ExpectedStreamRevision = &streams.DeleteReq_Options_Any{Any: &shared.Empty{}}
	case exists:
		options.ExpectedStreamRevision = &streams.DeleteReq_Options_StreamExists{StreamExists: &shared.Empty{}}
	default:
		options.ExpectedStreamRevision = &streams.DeleteReq_Options_Revision{Revision: uint64(expected)}
	}
	var trailer metadata.MD
	answer, err := w.streams.Delete(w.ctx, &streams.DeleteReq{Options: options}, grpc.Trailer(&trailer))
	if err == nil && answer.GetPosition() == nil {
		return "no position"
	}
	return refusal(err, trailer)
}

// tombstone ends a stream for ever; it answers as delete does.
func (w *world) tombstone(stream string, expected rev) string {
	options := &streams.TombstoneReq_Options{StreamIdentifier: name(stream)}
	switch expected {
	case none:
		options.ExpectedStreamRevision = &streams.TombstoneReq_Options_NoStream{NoStream: &shared.Empty{}}
	case anyRev:
		options.ExpectedStreamRevision = &streams.TombstoneReq_Options_Any{Any: &shared.Empty{}}
	case exists:
		options.ExpectedStreamRevision = &streams.TombstoneReq_Options_StreamExists{StreamExists: &shared.Empty{}}
	default:
		options.ExpectedStreamRevision = &streams.TombstoneReq_Options_Revision{Revision: uint64(expected)}
	}
	var trailer metadata.MD
	answer, err := w.streams.Tombstone(w.ctx, &streams.TombstoneReq{Options: options}, grpc.Trailer(&trailer))
	if err == nil && answer.GetPosition() == nil {
		return "no position"
	}
	return refusal(err, trailer)
}

// setMetadata writes a stream's metadata.
func (w *world) setMetadata(stream string, expected rev, json string) reply {
	w.Helper()
	event := proposal(uuid.New(), json)
	event.Metadata["type"] = "$metadata"
	return w.send("$$"+stream, expected, event)
}

// metadata is a stream's metadata as clients read it: the first event of its metadata stream.
func (w *world) metadata(stream string) string {
	w.Helper()
	found, err := w.read("$$"+stream, 0, false, 1)
	if err != nil {
		return err.Error()
	}
	if len(found) != 1 {
		return fmt.Sprintf("%d events", len(found))
	}
	return string(found[0].Data)
}

func name(stream string) *shared.StreamIdentifier {
	return &shared.StreamIdentifier{StreamName: []byte(stream)}
}

// recorded is an event as it comes from the server.
type recorded = streams.ReadResp_ReadEvent_RecordedEvent

var errNotFound, errDeleted = errors.New("not found"), errors.New("deleted")

// atEnd is the position after the last.
const atEnd = math.MaxUint64

// read reads a stream from a revision (atEnd: the end).
func (w *world) read(stream string, from uint64, backwards bool, count uint64) ([]*recorded, error) {
	w.Helper()
	options := &streams.ReadReq_Options_StreamOptions{
		StreamIdentifier: name(stream),
		RevisionOption:   &streams.ReadReq_Options_StreamOptions_Revision{Revision: from},
	}
	switch from {
	case 0:
		options.RevisionOption = &streams.ReadReq_Options_StreamOptions_Start{Start: &shared.Empty{}}
	case atEnd:
		options.RevisionOption = &streams.ReadReq_Options_StreamOptions_End{End: &shared.Empty{}}
	}
	return w.page(&streams.ReadReq_Options{StreamOption: &streams.ReadReq_Options_Stream{Stream: options}}, backwards, count)
}

// readAll reads $all from a position (0: the start, atEnd: the end).
func (w *world) readAll(from uint64, backwards bool, count uint64) ([]*recorded, error) {
	w.Helper()
	return w.page(&streams.ReadReq_Options{StreamOption: &streams.ReadReq_Options_All{All: allFrom(from)}}, backwards, count)
}

func allFrom(position uint64) *streams.ReadReq_Options_AllOptions {
	switch position {
	case 0:
		return &streams.ReadReq_Options_AllOptions{AllOption: &streams.ReadReq_Options_AllOptions_Start{Start: &shared.Empty{}}}
	case atEnd:
		return &streams.ReadReq_Options_AllOptions{AllOption: &streams.ReadReq_Options_AllOptions_End{End: &shared.Empty{}}}
	}
	return &streams.ReadReq_Options_AllOptions{AllOption: &streams.ReadReq_Options_AllOptions_Position{
		Position: &streams.ReadReq_Options_Position{CommitPosition: position, PreparePosition: position},
	}}
}

func complete(options *streams.ReadReq_Options) *streams.ReadReq {
	if options.FilterOption == nil {
		options.FilterOption = &streams.ReadReq_Options_NoFilter{NoFilter: &shared.Empty{}}
	}
	options.UuidOption = &streams.ReadReq_Options_UUIDOption{Content: &streams.ReadReq_Options_UUIDOption_Structured{Structured: &shared.Empty{}}}
	return &streams.ReadReq{Options: options}
}

func (w *world) page(options *streams.ReadReq_Options, backwards bool, count uint64) ([]*recorded, error) {
	w.Helper()
	options.CountOption = &streams.ReadReq_Options_Count{Count: count}
	if backwards {
		options.ReadDirection = streams.ReadReq_Options_Backwards
	}
	call, err := w.streams.Read(w.ctx, complete(options))
	w.must(err)
	var out []*recorded
	for {
		m, err := call.Recv()
		switch {
		case err == io.EOF:
			return out, nil
		case err != nil && refusal(err, call.Trailer()) == "deleted":
			return out, errDeleted
		case err != nil:
			return out, err
		case m.GetStreamNotFound() != nil:
			return out, errNotFound
		case m.GetEvent() == nil:
			w.Fatalf("a read got %v", m)
		}
		out = append(out, m.GetEvent().GetEvent())
	}
}

func (w *world) messages(events []*recorded, err error) []*recorded {
	w.Helper()
	w.must(err)
	return events
}

// own leaves out the events of streams that are not this test's.
func (w *world) own(events []*recorded) []*recorded {
	return slices.DeleteFunc(events, func(e *recorded) bool {
		return !strings.HasPrefix(strings.TrimPrefix(string(e.StreamIdentifier.StreamName), "$$"), w.prefix)
	})
}

// all is what the test has stored, in the order of $all.
func (w *world) all() []*recorded {
	w.Helper()
	found := w.own(w.messages(w.readAll(w.origin, false, math.MaxInt64)))
	return slices.DeleteFunc(found, func(e *recorded) bool { return e.CommitPosition <= w.origin })
}

// show is the short form of events, "a0 b1" (letter or type, and revision), or of an error.
func show(events []*recorded, err error) string {
	if err != nil {
		if _, ok := status.FromError(err); ok {
			return status.Code(err).String()
		}
		return err.Error()
	}
	var out []string
	for _, e := range events {
		out = append(out, short(e))
	}
	return strings.Join(out, " ")
}

func short(e *recorded) string {
	id := proposalID(e)
	for letter, known := range letters {
		if known == id {
			return fmt.Sprintf("%s%d", letter, e.StreamRevision)
		}
	}
	return fmt.Sprintf("%s%d", e.Metadata["type"], e.StreamRevision)
}

func proposalID(e *recorded) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:8], uint64(e.GetId().GetStructured().GetMostSignificantBits()))
	binary.BigEndian.PutUint64(id[8:], uint64(e.GetId().GetStructured().GetLeastSignificantBits()))
	return id
}

// sub is a live subscription.
type sub struct {
	w      *world
	call   streams.Streams_ReadClient
	cancel context.CancelFunc
}

// follow subscribes to $all after a position, with the given filter of stream names unless it is empty.
func (w *world) follow(after uint64, prefix string, window uint32) *sub {
	w.Helper()
	options := &streams.ReadReq_Options{StreamOption: &streams.ReadReq_Options_All{All: allFrom(after)}}
	if prefix != "" {
		options.FilterOption = &streams.ReadReq_Options_Filter{Filter: &streams.ReadReq_Options_FilterOptions{
			Filter: &streams.ReadReq_Options_FilterOptions_StreamIdentifier{
				StreamIdentifier: &streams.ReadReq_Options_FilterOptions_Expression{Prefix: []string{prefix}},
			},
			Window:                       &streams.ReadReq_Options_FilterOptions_Max{Max: window},
			CheckpointIntervalMultiplier: 1,
		}}
	}
	return w.subscribe(options)
}

// followStream subscribes to a stream after a revision; below 0 is from the start.
func (w *world) followStream(stream string, after int64) *sub {
	w.Helper()
	options := &streams.ReadReq_Options_StreamOptions{
		StreamIdentifier: name(stream),
		RevisionOption:   &streams.ReadReq_Options_StreamOptions_Start{Start: &shared.Empty{}},
	}
	if after >= 0 {
		options.RevisionOption = &streams.ReadReq_Options_StreamOptions_Revision{Revision: uint64(after)}
	}
	return w.subscribe(&streams.ReadReq_Options{StreamOption: &streams.ReadReq_Options_Stream{Stream: options}})
}

func (w *world) subscribe(options *streams.ReadReq_Options) *sub {
	w.Helper()
	options.CountOption = &streams.ReadReq_Options_Subscription{Subscription: &streams.ReadReq_Options_SubscriptionOptions{}}
	ctx, cancel := context.WithCancel(w.ctx)
	w.Cleanup(cancel)
	call, err := w.streams.Read(ctx, complete(options))
	w.must(err)
	first, err := call.Recv()
	w.must(err)
	if first.GetConfirmation().GetSubscriptionId() == "" {
		w.Fatalf("a subscription began with %v, want its confirmation", first)
	}
	return &sub{w: w, call: call, cancel: cancel}
}

// next is the next event of the test's own streams, or what ended the subscription. Checkpoints and
// caught-up messages are passed over.
func (s *sub) next() (*recorded, error) {
	for {
		m, err := s.call.Recv()
		if err != nil {
			return nil, err
		}
		if e := m.GetEvent().GetEvent(); e != nil && len(s.w.own([]*recorded{e})) == 1 {
			return e, nil
		}
	}
}

// take is the next n events.
func (s *sub) take(n int) []*recorded {
	s.w.Helper()
	var out []*recorded
	for range n {
		e, err := s.next()
		s.w.must(err)
		out = append(out, e)
	}
	return out
}

// caughtUp is everything until the server says that the subscription is live: events and checkpoints.
func (s *sub) caughtUp() (events []*recorded, checkpoints []*streams.ReadResp_Checkpoint) {
	s.w.Helper()
	for {
		m, err := s.call.Recv()
		s.w.must(err)
		switch {
		case m.GetCaughtUp() != nil:
			return s.w.own(events), checkpoints
		case m.GetCheckpoint() != nil:
			checkpoints = append(checkpoints, m.GetCheckpoint())
		default:
			events = append(events, m.GetEvent().GetEvent())
		}
	}
}
