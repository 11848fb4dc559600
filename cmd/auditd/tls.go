package main

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"
)

// certificate is the one that the service shows. It may change while connections are open: they keep
// theirs.
type certificate struct {
	certFile, keyFile string
	current           atomic.Pointer[tls.Certificate]
}

// loadCertificate reads the files; nil when the service has none.
func (c *config) loadCertificate() (*certificate, error) {
	if c.TLSCertFile == "" {
		return nil, nil
	}
	cert := &certificate{certFile: c.TLSCertFile, keyFile: c.TLSKeyFile}
	return cert, cert.Reload()
}

// Reload reads the files again. With an error the certificate stays as it was.
func (c *certificate) Reload() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("TLS certificate: %w", err)
	}
	c.current.Store(&pair)
	return nil
}

// config is for a server. It offers HTTP/2, and TLS from 1.2 on.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}
