package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// writeCertificate makes a certificate of 127.0.0.1 with a serial number, and a pool that trusts it.
func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "ledger"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}

// The service speaks HTTP/2 over TLS, and shows a new certificate after a SIGHUP.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool := writeCertificate(t, certFile, keyFile, 1)
	p := start(t, filepath.Join(dir, "data"), "--tls-cert-file="+certFile, "--tls-key-file="+keyFile)
	if !strings.HasPrefix(p.url, "https://") {
		t.Fatalf("got %s, want https", p.url)
	}
	ask := func(pool *x509.CertPool) (*http.Response, error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
		defer client.CloseIdleConnections()
		resp, err := client.Post(p.url+"/api/v1/events", "application/json", bytes.NewReader([]byte(batchOf(1))))
		if err == nil {
			resp.Body.Close()
		}
		return resp, err
	}
	resp, err := ask(pool)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.ProtoMajor != 2 {
		t.Errorf("got %d over %s, want 200 over HTTP/2", resp.StatusCode, resp.Proto)
	}
	if err := os.WriteFile(certFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	hangup := func(until func() bool) {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for late := time.Now().Add(10 * time.Second); !until(); <-tick.C {
			if time.Now().After(late) {
				t.Fatalf("nothing became of the signal: %s", p.log)
			}
		}
	}
	hangup(func() bool { return strings.Contains(p.log.String(), "a part stays as it was") })
	if _, err := ask(pool); err != nil {
		t.Errorf("with a faulty file: %v", err)
	}
	pool = writeCertificate(t, certFile, keyFile, 2)
	hangup(func() bool {
		resp, err := ask(pool)
		return err == nil && resp.TLS.PeerCertificates[0].SerialNumber.Int64() == 2
	})
	if err := p.end(t); err != nil {
		t.Errorf("stop: %v", err)
	}
}
