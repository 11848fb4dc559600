package eventstore_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/ledger/eventstore"
	"github.com/talenttrust/auditledger/ledger/ledgertest"
	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

// refused opens a store that cannot be opened, and looks at why.
func refused(t *testing.T, c eventstore.Config, want string) {
	t.Helper()
	var log ledgertest.Log
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if c.Start == 0 {
		c.Start = 20 * time.Second
	}
	s, err := eventstore.Open(t.Context(), c)
	if err == nil {
		t.Errorf("it was opened, want an error with %q", want)
		_ = s.Close()
		return
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
	if strings.Contains(err.Error()+log.String(), "hunter2") {
		t.Errorf("the password is told: %v\n%s", err, log.String())
	}
}

// TestOpenRefused: what keeps a store from being opened is named.
func TestOpenRefused(t *testing.T) {
	certFile, keyFile := certificate(t)
	secure, err := node.Open(node.Config{CertFile: certFile, KeyFile: keyFile, User: "admin", Password: "correct"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = secure.Close() })
	plain, old := startNode(t), func() *node.Node {
		n, err := node.Open(node.Config{Version: "23.6.0"})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}()
	t.Cleanup(func() { _ = old.Close() })
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := dead.Addr().String()
	dead.Close()
	ca := "?tlsCAFile=" + certFile
	for name, c := range map[string]struct{ url, want string }{
		"old":           {old.URL(), "version 23.6 is too old, it must be 23.10 or later"},
		"no password":   {"esdb://" + secure.Addr() + ca, "denies access"},
		"password":      {"esdb://admin:hunter2@" + secure.Addr() + ca, "denies access"},
		"untrusted":     {"esdb://admin:hunter2@" + secure.Addr(), "certificate is not trusted"},
		"TLS is not":    {"esdb://" + plain.Addr(), "does not speak TLS"},
		"TLS is":        {"esdb://" + secure.Addr() + "?tls=false", "speaks TLS and the address says tls=false"},
		"nobody":        {"esdb://" + nobody + "?tls=false", "nothing listens there"},
		"no such name":  {"esdb://no-such-host.invalid?tls=false", "cannot be reached"},
		"bad addresses": {"esdb://admin:hunter2@a?b=c", "option b is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, eventstore.Config{URL: c.url, Dir: t.TempDir(), Start: 1500 * time.Millisecond}, c.want)
		})
	}
	t.Run("no answer", func(t *testing.T) {
		t.Parallel()
		n := startNode(t)
		n.Pause()
		defer n.Resume()
		refused(t, eventstore.Config{URL: n.URL(), Dir: t.TempDir(), Start: 500 * time.Millisecond, Try: 300 * time.Millisecond}, "cannot be reached")
	})
	t.Run("works", func(t *testing.T) {
		t.Parallel()
		s := open(t, eventstore.Config{URL: "esdb://admin:correct@" + secure.Addr() + ca, Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
		o, err := appendOne(t.Context(), s, lamp(1))
		wantVerdict(t, "over TLS", o, err, ledger.Accepted)
	})
	for name, url := range map[string]string{"a node is asked for the others": "esdb+discover://" + plain.Addr() + "?tls=false", "one of two nodes": "kurrentdb://" + nobody + "," + plain.Addr() + "?tls=false"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, eventstore.Config{URL: url, Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
			if _, err := s.Head(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("no folder", func(t *testing.T) { refused(t, eventstore.Config{URL: plain.URL()}, "no folder") })
}

// TestFolder: row 96 and its kin. What is derived from one ledger does not meet another.
func TestFolder(t *testing.T) {
	n := startNode(t)
	c := config(t, n)
	c.Lag = 200 * time.Millisecond
	s := mustOpen(t, c)
	refused(t, c, "in use")
	for i := range int64(5) {
		o, err := appendOne(t.Context(), s, lamp(i))
		wantVerdict(t, "append", o, err, ledger.Accepted)
	}
	wantRecords(t, s, 5)
	ledgertest.Until(t, "the follower has read all", func() bool {
		found, err := s.Find(t.Context(), []ledger.Key{lamp(4).Key()})
		return err == nil && found[0].Known()
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	other := startNode(t)
	elsewhere := c
	elsewhere.URL = other.URL()
	refused(t, elsewhere, "the server holds no ledger")
	open(t, config(t, other))
	refused(t, elsewhere, "is it the right server")
	if err := os.Remove(filepath.Join(c.Dir, "ledger-id")); err != nil {
		t.Fatal(err)
	}
	refused(t, c, "the index of another ledger")
	if err := os.RemoveAll(filepath.Join(c.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, c) // an empty folder is filled again
	o, err := appendOne(t.Context(), s, lamp(3))
	wantVerdict(t, "after the folder was lost", o, err, ledger.Duplicate)
	for batch, err := range s.Follow(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if batch.Behind == 0 {
			break
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.Stop(), n.Truncate(3), n.Start()); err != nil {
		t.Fatal(err)
	}
	refused(t, c, "older copy of the server")

	if d, err := disk.Open(disk.Config{Dir: c.Dir, Reserve: 1}); err == nil || !strings.Contains(err.Error(), "ledger on a server") {
		t.Errorf("the embedded store in the same folder: got %v, %v", d, err)
	}
	embedded := t.TempDir()
	d, err := disk.Open(disk.Config{Dir: embedded, Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	c.Dir = embedded
	refused(t, c, "holds a ledger of its own")
}

// TestCreation: of many instances that start at once, one creates the ledger.
func TestCreation(t *testing.T) {
	n := startNode(t)
	n.Faults.Appends(node.AnswerLost(), node.RequestLost())
	ids := make([]string, 6)
	var wg sync.WaitGroup
	for i := range ids {
		c := config(t, n)
		wg.Go(func() {
			s, err := eventstore.Open(t.Context(), c)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			if ids[i], err = ledger.ID(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || id == "" {
			t.Errorf("instances that started at once are of the ledgers %v", ids)
		}
	}
	wantRecords(t, open(t, config(t, n)), 0)
}

// TestGoroutines: opening, working and closing leave nothing behind.
func TestGoroutines(t *testing.T) {
	n := startNode(t)
	work := func() {
		s := mustOpen(t, config(t, n))
		for i := range int64(20) {
			o, err := appendOne(t.Context(), s, lamp(i))
			if err != nil || o.Verdict != ledger.Accepted && o.Verdict != ledger.Duplicate {
				t.Fatal(o, err)
			}
		}
		ledgertest.ReadAll(t, s)
		for range s.Stream(t.Context(), "contract-lamp-7", 0, false) {
			break
		}
		if _, err := s.Head(t.Context()); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	work()
	before := runtime.NumGoroutine()
	for range 5 {
		work()
	}
	ledgertest.Until(t, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+5 })
}

// TestVerify runs the auditor's check over a ledger on a server.
func TestVerify(t *testing.T) {
	s := open(t, config(t, startNode(t)))
	for i := range int64(50) {
		e := ledgertest.Event(ledger.Key{ContractID: []string{"a", "b", "c"}[i%3], EventID: "e", Sequence: i}, `{}`, i)
		o, err := appendOne(t.Context(), s, e)
		wantVerdict(t, "append", o, err, ledger.Accepted)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	v, err := ledger.Verify(ctx, s, 0, nil)
	if err != nil || v.Records != 51 || v.Keys != 50 || v.Streams != 4 {
		t.Errorf("got %+v, %v", v, err)
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
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}
