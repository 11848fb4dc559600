package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sony/gobreaker/v2"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/canonical"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
)

var ledgerID = canonical.Sum([]byte("ledger")).String()

func open(t *testing.T, url string) *Window {
	t.Helper()
	w, err := Open(Config{URL: url, Ledger: ledgerID, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func key(n int) ledger.Key {
	return ledger.Key{ContractID: fmt.Sprintf("c@%d", n%3), EventID: "e", Sequence: int64(n)}
}

func keys(n int) (keys []ledger.Key) {
	for i := range n {
		keys = append(keys, key(i))
	}
	return keys
}

func binding(n int, until time.Duration) ledger.Binding {
	b := ledger.Binding{Key: key(n), Revision: int64(n * 7), PayloadHash: canonical.Sum([]byte{byte(n)})}
	if until != 0 {
		b.BoundUntil = time.Now().Add(until).UnixMilli()
	}
	return b
}

func hit(n int) ledger.Hint {
	return ledger.Hint{Hit: true, Revision: int64(n * 7), PayloadHash: canonical.Sum([]byte{byte(n)})}
}

func bind(t *testing.T, w *Window, b ...ledger.Binding) {
	t.Helper()
	if err := w.Bind(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func wantHints(t *testing.T, w *Window, n int, want map[int]ledger.Hint) {
	t.Helper()
	got, err := w.Look(t.Context(), keys(n))
	if err != nil {
		t.Fatal(err)
	}
	all := make([]ledger.Hint, n)
	for i, h := range want {
		all[i] = h
	}
	if diff := cmp.Diff(all, got); diff != "" {
		t.Errorf("hints: -want +got\n%s", diff)
	}
}

func TestWindow(t *testing.T) {
	server := ledgertest.StartRedis(t)
	w := open(t, server.URL()+"/3")
	wantHints(t, w, 3, nil)
	bind(t, w, binding(0, time.Hour), binding(2, 0), binding(4, -time.Second), binding(5, 30*24*time.Hour))
	wantHints(t, w, 6, map[int]ledger.Hint{0: hit(0), 2: hit(2), 5: hit(5)})
	newer := binding(0, time.Hour)
	newer.Revision = 99
	bind(t, w, newer)
	wantHints(t, w, 1, map[int]ledger.Hint{0: {Hit: true, Revision: 99, PayloadHash: newer.PayloadHash}})
	for n, want := range map[int]time.Duration{0: time.Hour, 2: 7 * 24 * time.Hour, 5: 7 * 24 * time.Hour} {
		if ttl := w.client.PTTL(t.Context(), w.name(key(n))).Val(); ttl > want || ttl < want-time.Minute {
			t.Errorf("key %d is kept for %v, want %v", n, ttl, want)
		}
	}
	if n := len(w.client.Keys(t.Context(), "*").Val()); n != 3 {
		t.Errorf("%d keys are kept, want 3", n)
	}
	other, err := Open(Config{URL: server.URL() + "/3", Ledger: strings.Repeat("0", 64)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	wantHints(t, other, 6, nil)
}

func TestExpiry(t *testing.T) {
	w := open(t, ledgertest.StartRedis(t).URL())
	bind(t, w, binding(1, 50*time.Millisecond))
	ledgertest.Until(t, "the key is free", func() bool {
		hints, err := w.Look(t.Context(), keys(2))
		return err == nil && !hints[1].Hit
	})
}

// What others put under our keys is a miss, and the other keys are not hurt by it.
func TestFalseData(t *testing.T) {
	server := ledgertest.StartRedis(t)
	w := open(t, server.URL())
	bind(t, w, binding(0, time.Hour), binding(1, time.Hour))
	swapped := w.client.Get(t.Context(), w.name(key(1))).Val()
	server.Do(t, "LPUSH", w.name(key(2)), "x")
	for i, text := range []string{"", "1", swapped, "2" + formatHint(ptr(binding(6, 0)))[1:], strings.Replace(formatHint(ptr(binding(7, 0))), " 49 ", " -49 ", 1),
		strings.ToUpper(formatHint(ptr(binding(8, 0)))), formatHint(ptr(binding(9, 0))) + " "} {
		server.Do(t, "SET", w.name(key(3+i)), text)
	}
	wantHints(t, w, 10, map[int]ledger.Hint{0: hit(0), 1: hit(1)})
	bind(t, w, binding(2, time.Hour)) // and is written over
	wantHints(t, w, 3, map[int]ledger.Hint{0: hit(0), 1: hit(1), 2: hit(2)})
}

func ptr[T any](v T) *T { return &v }

// A Redis that goes away costs errors, soon without a try, and is used again when it is back.
func TestAway(t *testing.T) {
	server := ledgertest.StartRedis(t)
	log := new(ledgertest.Log)
	w, err := Open(Config{URL: server.URL(), Ledger: ledgerID, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	bind(t, w, binding(0, time.Hour))
	server.Stop()
	ledgertest.Until(t, "the breaker is open", func() bool {
		hints, err := w.Look(t.Context(), keys(1))
		if err == nil {
			t.Fatalf("got %v without a server", hints)
		}
		return errors.Is(err, gobreaker.ErrOpenState)
	})
	if err := w.Bind(t.Context(), []ledger.Binding{binding(0, time.Hour)}); !errors.Is(err, gobreaker.ErrOpenState) {
		t.Errorf("Bind: got %v, want %v", err, gobreaker.ErrOpenState)
	}
	if err := w.Healthy(t.Context()); err == nil {
		t.Error("healthy without a server")
	}
	server.Start(t)
	ledgertest.Until(t, "the window is used again", func() bool { return w.Bind(t.Context(), []ledger.Binding{binding(0, time.Hour)}) == nil })
	wantHints(t, w, 1, map[int]ledger.Hint{0: hit(0)})
	if err := w.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
	if text := log.String(); !strings.Contains(text, "does not answer") || !strings.Contains(text, "answers again") {
		t.Errorf("the log does not say that it was away and came back:\n%s", text)
	}
}

// A server that takes connections and says nothing is given up on, whatever the caller's patience.
func TestSilent(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	w := open(t, "redis://"+listener.Addr().String())
	if hints, err := w.Look(context.Background(), keys(1)); err == nil {
		t.Errorf("got %v from a silent server", hints)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 * failuresOpen {
		if _, err := w.Look(ctx, keys(1)); errors.Is(err, gobreaker.ErrOpenState) {
			t.Fatal("callers that go away open the breaker")
		}
	}
}

// A Redis that is full, or read-only, is still read.
func TestKeepsNothing(t *testing.T) {
	for name, spoil := range map[string][]string{"OOM": {"CONFIG", "SET", "maxmemory", "1"}, "READONLY": {"REPLICAOF", "127.0.0.1", "1"}} {
		t.Run(name, func(t *testing.T) {
			server := ledgertest.StartRedis(t, "--replica-serve-stale-data", "yes")
			w := open(t, server.URL())
			bind(t, w, binding(0, time.Hour))
			if got := server.Do(t, spoil...); got != "+OK" {
				t.Fatalf("%v: got %s", spoil, got)
			}
			for range 2 * failuresOpen {
				if err := w.Bind(t.Context(), []ledger.Binding{binding(1, time.Hour)}); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("got %v, want %s", err, name)
				}
			}
			wantHints(t, w, 2, map[int]ledger.Hint{0: hit(0)})
		})
	}
}

func TestWrongPassword(t *testing.T) {
	server := ledgertest.StartRedis(t, "--requirepass", "right")
	for _, user := range []string{"", ":planted@"} {
		w := open(t, "redis://"+user+server.Addr)
		if hints, err := w.Look(t.Context(), keys(1)); err == nil || strings.Contains(err.Error(), "planted") {
			t.Errorf("%q: got %v, %v, want an error without the password", user, hints, err)
		}
	}
	w := open(t, "redis://:right@"+server.Addr)
	bind(t, w, binding(0, time.Hour))
	wantHints(t, w, 1, map[int]ledger.Hint{0: hit(0)})
}

// Two nodes share the slots; a batch's keys lie on both.
func TestCluster(t *testing.T) {
	one, two := ledgertest.StartRedis(t, "--cluster-enabled", "yes"), ledgertest.StartRedis(t, "--cluster-enabled", "yes")
	for _, part := range []struct {
		server *ledgertest.Redis
		slots  [2]string
	}{{one, [2]string{"0", "8191"}}, {two, [2]string{"8192", "16383"}}} {
		if got := part.server.Do(t, "CLUSTER", "ADDSLOTSRANGE", part.slots[0], part.slots[1]); got != "+OK" {
			t.Fatal(got)
		}
	}
	host, port, _ := net.SplitHostPort(two.Addr)
	n, _ := strconv.Atoi(port)
	bus := strconv.Itoa(n + 10000)
	if got := one.Do(t, "CLUSTER", "MEET", host, port, bus); got != "+OK" {
		t.Fatal(got)
	}
	w := open(t, "redis+cluster://"+one.Addr+"?addr="+two.Addr)
	all := []ledger.Binding{binding(0, time.Hour), binding(1, time.Hour), binding(2, time.Hour), binding(3, time.Hour)}
	ledgertest.Until(t, "the cluster takes writes", func() bool { return w.Bind(t.Context(), all) == nil })
	wantHints(t, w, 5, map[int]ledger.Hint{0: hit(0), 1: hit(1), 2: hit(2), 3: hit(3)})
	for _, server := range []*ledgertest.Redis{one, two} {
		if got := server.Do(t, "DBSIZE"); got == ":0" {
			t.Errorf("%s holds no key", server.Addr)
		}
	}
}

func TestTLS(t *testing.T) {
	server := ledgertest.StartRedis(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	free.Close()
	if got := server.Do(t, "CONFIG", "SET", "tls-cert-file", certFile, "tls-key-file", keyFile, "tls-ca-cert-file", certFile, "tls-auth-clients", "no", "tls-port", port); got != "+OK" {
		t.Fatal(got)
	}
	w := open(t, "rediss://"+addr)
	bind(t, w, binding(0, time.Hour))
	wantHints(t, w, 1, map[int]ledger.Hint{0: hit(0)})
	for _, url := range []string{"rediss://" + server.Addr, "redis://" + addr} {
		if hints, err := open(t, url).Look(t.Context(), keys(1)); err == nil {
			t.Errorf("%s: got %v, want an error", url, hints)
		}
	}
}

// certFile and keyFile are a certificate for 127.0.0.1 that signs itself, trusted by this process, and its key.
var certFile, keyFile string

// TestMain makes them, because the trusted certificates are read once for a whole process.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "redis")
	if err == nil {
		certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		err = errors.Join(os.Setenv("SSL_CERT_FILE", certFile), writeCertificate())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func writeCertificate() error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err1 := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	key, err2 := x509.MarshalPKCS8PrivateKey(private)
	return errors.Join(err1, err2,
		os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
}

func TestCheckURL(t *testing.T) {
	for _, url := range []string{"redis://h", "redis://u:p@h:1/2", "rediss://h:1", "redis+cluster://h:1?addr=i:2", "rediss+cluster://u:p@h:1", "redis://[::1]", "redis+cluster://h/"} {
		if err := CheckURL(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for url, want := range map[string]string{
		"":                             "must name a host",
		"localhost:6379":               "must name a host",
		"http://planted:planted@h":     `scheme "http"`,
		"redis://u:planted@":           "must name a host",
		"redis://:planted@h:1/x":       "must be redis://",
		"redis://h?planted=1":          "option",
		"redis://:planted@h?addr=h:2":  `option "addr"`,
		"redis://:planted@h:port":      "is not a URL",
		"redis+cluster://h?max_idle=1": `option "max_idle"`,
		"redis://:planted\x00@h":       "is not a URL",
		"redis://:planted@h:0":         "ports from 1",
		"redis://:planted@h:65536":     "ports from 1",
		"redis+cluster://h?addr=i:0":   "ports from 1",
		"redis://:planted@h:1/-1":      "database number from 0",
		"redis+cluster://h:1/3":        "a cluster has none",
		"redis+cluster://h:1,i:2":      "must name one host",
		"redis://:planted@h,i":         "must name one host",
	} {
		err := CheckURL(url)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), ":planted") {
			t.Errorf("%q: got %v, want it to say %q and no password", url, err, want)
		}
	}
}

// FuzzParseHint holds that only what formatHint writes for the key is a hit.
func FuzzParseHint(f *testing.F) {
	f.Add(formatHint(ptr(binding(1, 0))))
	f.Add("1 07 " + strings.Repeat("0", 64) + " c@1:e:1")
	f.Fuzz(func(t *testing.T, text string) {
		h := parseHint(text, key(1))
		if want := formatHint(&ledger.Binding{Key: key(1), Revision: h.Revision, PayloadHash: h.PayloadHash}); h.Hit && text != want {
			t.Errorf("%q: got %+v, which is written %q", text, h, want)
		}
	})
}

// BenchmarkLook is what a batch of 100 keys costs: half of them are there, or Redis is away and the breaker open.
func BenchmarkLook(b *testing.B) {
	server := ledgertest.StartRedis(b)
	w, err := Open(Config{URL: server.URL(), Ledger: ledgerID, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	var bound []ledger.Binding
	for i := range 50 {
		bound = append(bound, binding(i, time.Hour))
	}
	b.Run("up", func(b *testing.B) {
		if err := w.Bind(b.Context(), bound); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := w.Look(b.Context(), keys(100)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("down", func(b *testing.B) {
		server.Stop()
		for b.Loop() {
			if _, err := w.Look(b.Context(), keys(100)); err == nil {
				b.Fatal("no error without a server")
			}
		}
	})
}
