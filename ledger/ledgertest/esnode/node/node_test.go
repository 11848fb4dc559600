package node_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/gossip"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"

	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

func readOptions(stream string) *streams.ReadReq_Options {
	return &streams.ReadReq_Options{
		StreamOption: &streams.ReadReq_Options_Stream{Stream: &streams.ReadReq_Options_StreamOptions{
			StreamIdentifier: name(stream),
			RevisionOption:   &streams.ReadReq_Options_StreamOptions_Start{Start: &shared.Empty{}},
		}},
		CountOption: &streams.ReadReq_Options_Count{Count: 10},
	}
}

// TestFolder: a node that is opened again has what it had, and goes on where it was.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	w := onNode(t, node.Config{Dir: dir})
	w.given(w.S, "abc")
	w.setMetadata(w.S, none, `{"$maxCount":2}`)
	w.same("tombstone", w.tombstone(w.T, none), "ok")
	before := places(w.all())
	w.must(w.node.Close())

	again := onNode(t, node.Config{Dir: dir})
	again.origin = 0
	again.same("$all", places(again.all()), before)
	again.same("S", show(again.read(w.S, 0, false, 10)), "b1 c2")
	again.same("T", show(again.read(w.T, 0, false, 10)), "deleted")
	again.expect(w.S, 2, "d", stored(3))
	again.expect(w.S, none, "abc", repeated(2))
}

// TestTornFolder: of a batch that was cut off while it was written nothing is left, and all before it is.
func TestTornFolder(t *testing.T) {
	dir := t.TempDir()
	w := onNode(t, node.Config{Dir: dir})
	w.given(w.S, "a")
	path := filepath.Join(dir, "log")
	whole, err := os.ReadFile(path)
	w.must(err)
	w.same("append", w.append(w.S, 0, "bcd").text, "success 3")
	w.must(w.node.Close())
	full, err := os.ReadFile(path)
	w.must(err)
	wrong := bytes.Clone(full)
	wrong[len(wrong)-1] ^= 1
	for _, left := range [][]byte{full[:len(whole)+3], full[:len(whole)+20], full[:len(full)-1], wrong} {
		w.must(os.WriteFile(path, left, 0o644))
		for _, want := range []string{"a0", "a0 x1"} {
			torn := onNode(t, node.Config{Dir: dir})
			torn.origin = 0
			torn.same("after the tear", show(torn.all(), nil), want)
			torn.same("append", torn.append(w.S, 0, "x").text, "success 1")
			torn.must(torn.node.Close())
		}
	}
}

func TestMaxAge(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := make(chan time.Time, 1)
	clock <- now
	w := onNode(t, node.Config{Now: func() time.Time {
		at := <-clock
		clock <- at
		return at
	}})
	w.given(w.S, "a")
	w.setMetadata(w.S, none, `{"$maxAge":60}`)
	w.same("young", show(w.read(w.S, 0, false, 10)), "a0")
	<-clock
	clock <- now.Add(61 * time.Second)
	w.same("old", show(w.read(w.S, 0, false, 10)), "")
}

// TestMetadataOfADeletedStream: it recreates the stream and keeps what it says.
func TestMetadataOfADeletedStream(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "ab")
	w.same("delete", w.delete(w.S, 1), "ok")
	w.same("set metadata", w.setMetadata(w.S, 0, `{"$maxCount":5}`).text, "success 1")
	w.same("metadata", w.metadata(w.S), `{"$maxCount":5,"$tb":2}`)
	w.same("read", show(w.read(w.S, 0, false, 10)), "")
	w.same("again", w.setMetadata(w.S, 2, `{}`).text, "success 3")
}

func TestBadRequests(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "abc")
	untyped, nameless := proposal(letters["d"], ""), proposal(letters["d"], "")
	delete(untyped.Metadata, "type")
	nameless.Metadata["type"] = ""
	for what, got := range map[string]string{
		"no type":             w.send(w.S, 2, untyped).text + " InvalidArgument",
		"an empty type":       w.send(w.S, 2, nameless).text + " Unknown",
		"no ID":               w.send(w.S, 2, proposal([16]byte{}, "")).text + " Unknown",
		"no stream":           w.append("", none, "d").text + " InvalidArgument",
		"count 0":             show(w.read(w.S, 0, false, 0)) + " Unknown",
		"forwards from End":   show(w.read(w.S, atEnd, false, 1)) + " Unknown",
		"a position it never": show(w.readAll(w.all()[1].CommitPosition+1, false, 1)) + " Unknown",
	} {
		if words := strings.Fields(got); words[0] != words[1] {
			t.Errorf("%s: got %s, want %s", what, words[0], words[1])
		}
	}
	w.same("$all", show(w.all(), nil), "a0 b1 c2")
}

func TestFilters(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "ab")
	w.given(w.T, "c")
	w.setMetadata(w.S, none, `{}`)
	expression := func(prefix, regex string) *streams.ReadReq_Options_FilterOptions_Expression {
		if prefix != "" {
			return &streams.ReadReq_Options_FilterOptions_Expression{Prefix: strings.Split(prefix, ",")}
		}
		return &streams.ReadReq_Options_FilterOptions_Expression{Regex: regex}
	}
	for _, test := range []struct{ streamPrefix, streamRegex, typePrefix, typeRegex, want string }{
		{streamPrefix: w.S, want: "a0 b1"},
		{streamPrefix: w.T + ",$$", want: "c0 $metadata0"},
		{streamRegex: `-8$`, want: "c0"},
		{typePrefix: "Event", want: "a0 b1 c0"},
		{typeRegex: `^\$meta`, want: "$metadata0"},
		{typeRegex: `(`, want: "InvalidArgument"},
	} {
		filter := &streams.ReadReq_Options_FilterOptions{
			Window: &streams.ReadReq_Options_FilterOptions_Count{Count: &shared.Empty{}}, CheckpointIntervalMultiplier: 1,
		}
		if test.streamPrefix+test.streamRegex != "" {
			filter.Filter = &streams.ReadReq_Options_FilterOptions_StreamIdentifier{StreamIdentifier: expression(test.streamPrefix, test.streamRegex)}
		} else {
			filter.Filter = &streams.ReadReq_Options_FilterOptions_EventType{EventType: expression(test.typePrefix, test.typeRegex)}
		}
		w.same(fmt.Sprint(test), show(w.page(&streams.ReadReq_Options{
			StreamOption: &streams.ReadReq_Options_All{All: allFrom(0)},
			FilterOption: &streams.ReadReq_Options_Filter{Filter: filter},
		}, false, 10)), test.want)
	}
}

func TestStringIDs(t *testing.T) {
	w := onNode(t, node.Config{})
	w.given(w.S, "a")
	r := complete(readOptions(w.S))
	r.Options.UuidOption.Content = &streams.ReadReq_Options_UUIDOption_String_{String_: &shared.Empty{}}
	call, err := w.streams.Read(w.ctx, r)
	w.must(err)
	m, err := call.Recv()
	w.must(err)
	w.same("ID", m.GetEvent().GetEvent().GetId().GetString_(), letters["a"].String())
}

func TestGossip(t *testing.T) {
	w := onNode(t, node.Config{})
	cluster, err := gossip.NewGossipClient(w.conn).Read(w.ctx, &shared.Empty{})
	w.must(err)
	m := cluster.Members[0]
	w.same("member", fmt.Sprintf("%v %v %s:%d", m.State, m.IsAlive, m.HttpEndPoint.Address, m.HttpEndPoint.Port), "Leader true "+w.node.Addr())
}

// TestAuthentication over TLS: who connects needs no password, who calls does.
func TestAuthentication(t *testing.T) {
	certFile, keyFile := certificate(t)
	n, err := node.Open(node.Config{CertFile: certFile, KeyFile: keyFile, User: "admin", Password: "changeit"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	for user, want := range map[string]string{"": "PermissionDenied", "admin:wrong@": "Unauthenticated", "admin:changeit@": "not found"} {
		w := &world{TB: t, ctx: t.Context()}
		w.connect("esdb://" + user + n.Addr() + "?tlsCAFile=" + certFile)
		w.same(user, show(w.read("s", 0, false, 1)), want)
		if major, _ := w.version(); major != 24 {
			t.Errorf("version %d, want 24", major)
		}
	}
}

// certificate makes one for 127.0.0.1 that vouches for itself.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", cert), write("key.pem", "PRIVATE KEY", private)
}

func TestOpenErrors(t *testing.T) {
	w := onNode(t, node.Config{})
	for what, config := range map[string]node.Config{
		"the port is taken":       {Listen: w.node.Addr()},
		"there is no certificate": {CertFile: "none.pem", KeyFile: "none.pem"},
		"the folder is a file":    {Dir: "/dev/null"},
	} {
		if n, err := node.Open(config); err == nil {
			t.Errorf("%s: it opened", what)
			n.Close()
		}
	}
	if w.node.Start() == nil {
		t.Error("a running node started again")
	}
	if _, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", w.node.Addr()); err != nil {
		t.Error(err)
	}
}
