package node

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/gossip"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/serverfeatures"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Calls counts the calls of each kind.
type Calls struct{ Appends, Deletes, Reads, Subscriptions, Connects int }

// service answers the calls of all three gRPC services.
type service struct {
	streams.UnimplementedStreamsServer
	serverfeatures.UnimplementedServerFeaturesServer

	Config
	Faults  *Faults
	log     *log
	version version
	limits  limits
	id      uuid.UUID

	mu       sync.Mutex // guards what follows
	calls    Calls
	listener *listener
	dropped  chan struct{} // closed and replaced when all subscriptions are dropped, with dropErr
	dropErr  error
}

func newService(config Config, faults *Faults, log *log) *service {
	v := parseVersion(config.Version)
	return &service{Config: config, Faults: faults, log: log, version: v, limits: limitsOf(v), id: uuid.New(), dropped: make(chan struct{})}
}

func newServer(s *service, config *tls.Config) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.WaitForHandlers(true),
		grpc.MaxRecvMsgSize(17 << 20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
	}
	if config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	server := grpc.NewServer(options...)
	streams.RegisterStreamsServer(server, s)
	gossip.RegisterGossipServer(server, &member{service: s})
	serverfeatures.RegisterServerFeaturesServer(server, s)
	return server
}

func (s *service) unary(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	err := s.admit(ctx, info.FullMethod)
	var answer any
	if err == nil {
		answer, err = handle(ctx, r)
	}
	return answer, withTrailer(err, func(m metadata.MD) { _ = grpc.SetTrailer(ctx, m) }) // fails only outside a call
}

func (s *service) stream(srv any, call grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	err := s.admit(call.Context(), info.FullMethod)
	if err == nil {
		err = handle(srv, call)
	}
	return withTrailer(err, call.SetTrailer)
}

func withTrailer(err error, set func(metadata.MD)) error {
	var e *callError
	if errors.As(err, &e) {
		set(e.trailer)
	}
	return err
}

// admit lets a call in, after the delay, if it may.
func (s *service) admit(ctx context.Context, method string) error {
	if err := s.Faults.delayed(ctx); err != nil {
		return status.FromContextError(err).Err()
	}
	if s.User == "" || !strings.HasPrefix(method, "/event_store.client.streams.") {
		return nil
	}
	given := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(given) == 0 {
		return AccessDenied()
	}
	if given[0] != "Basic "+base64.StdEncoding.EncodeToString([]byte(s.User+":"+s.Password)) {
		return Unauthenticated()
	}
	return nil
}

// fail is how a fault ends a call; nil if it only had to wait.
func (s *service) fail(ctx context.Context, d time.Duration, silent, cut bool, err error) error {
	if waited := wait(ctx, d); waited != nil {
		return status.FromContextError(waited).Err()
	}
	switch {
	case silent:
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	case cut:
		s.cut(ctx)
		return Unavailable() // nobody hears it
	}
	return err
}

// cut breaks the connection of a call.
func (s *service) cut(ctx context.Context) {
	s.mu.Lock()
	l := s.listener
	s.mu.Unlock()
	if p, ok := peer.FromContext(ctx); ok && l != nil {
		l.cut(p.Addr.String())
	}
}

func (s *service) setListener(l *listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener = l
}

func (s *service) count(kind *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*kind++
}

func (s *service) counted() Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *service) drop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropErr = err
	close(s.dropped)
	s.dropped = make(chan struct{})
}

func (s *service) drops() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

func (s *service) dropError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropErr
}

// GetSupportedMethods is what a client asks first: the version, and the calls there are.
func (s *service) GetSupportedMethods(context.Context, *shared.Empty) (*serverfeatures.SupportedMethods, error) {
	s.count(&s.calls.Connects)
	out := &serverfeatures.SupportedMethods{EventStoreServerVersion: s.Version}
	for _, method := range []string{"append", "read", "delete", "tombstone"} {
		out.Methods = append(out.Methods, &serverfeatures.SupportedMethod{
			MethodName: method, ServiceName: "event_store.client.streams.streams",
		})
	}
	return out, nil
}

// member answers gossip: the node is a cluster of one, and its leader.
type member struct {
	gossip.UnimplementedGossipServer
	*service
}

// Read is asked by clients that look for a leader.
func (s *member) Read(context.Context, *shared.Empty) (*gossip.ClusterInfo, error) {
	s.mu.Lock()
	l := s.listener
	s.mu.Unlock()
	host, text, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &gossip.ClusterInfo{Members: []*gossip.MemberInfo{{
		InstanceId: structured(s.id), TimeStamp: time.Now().UnixNano() / 100, IsAlive: true,
		State:        gossip.MemberInfo_Leader,
		HttpEndPoint: &gossip.EndPoint{Address: host, Port: uint32(port)},
	}}}, nil
}

// version is what the first three numbers of a version text say.
type version [3]int

// parseVersion takes text that is no version for the newest.
func parseVersion(text string) version {
	var v version
	for i, part := range strings.SplitN(text, ".", 4) {
		if i == len(v) {
			break
		}
		n, err := strconv.Atoi(part)
		if err != nil {
			return version{99}
		}
		v[i] = n
	}
	return v
}

func (v version) before(major, minor, patch int) bool {
	other := version{major, minor, patch}
	for i := range v {
		if v[i] != other[i] {
			return v[i] < other[i]
		}
	}
	return false
}

// limits are the sizes an append may have, in bytes, and what of an event counts.
type limits struct {
	append, event int
	dataOnly      bool
}

func limitsOf(v version) limits {
	l := limits{append: 1 << 20, event: 1 << 20, dataOnly: v.before(24, 10, 0)}
	if !v.before(25, 1, 0) {
		l.append, l.event = 256<<20, 16<<20
	}
	return l
}

func (l limits) sizeOf(e *event) int {
	if l.dataOnly {
		return len(e.wire.Data)
	}
	return len(e.wire.Data) + len(e.wire.CustomMetadata) + 2*len(e.typ)
}
