package eventstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// target is where the server is and how to speak to it.
type target struct {
	hosts    []string // host:port
	discover bool     // ask the first of hosts which nodes there are

	user, password    string
	tls, verify       bool
	roots             *x509.CertPool // nil: the system's
	certFile, keyFile string

	discoveryInterval, gossipTimeout    time.Duration
	keepAliveInterval, keepAliveTimeout time.Duration // negative: off
}

// schemes are the ones of a connection string; kurrentdb is the newer name of esdb.
var schemes = []string{"esdb", "esdb+discover", "kurrentdb", "kurrentdb+discover"}

// IsURL reports whether s has a scheme of a connection string of this package.
func IsURL(s string) bool {
	scheme, _, ok := strings.Cut(s, "://")
	return ok && slices.Contains(schemes, strings.ToLower(scheme))
}

// Nodes names the nodes of a connection string, and no secret. An error says what is wrong with it.
func Nodes(s string) (string, error) {
	t, err := parseTarget(s)
	if err != nil {
		return "", err
	}
	return t.String(), nil
}

// parseTarget reads a connection string such as
//
//	esdb://user:password@node1:2113,node2:2113,node3:2113?tlsCAFile=/etc/ssl/ca.crt
//
// Option names are not case-sensitive. Whatever is unknown or cannot be read is an error that names
// it, and never quotes the user or the password.
func parseTarget(s string) (*target, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || !slices.Contains(schemes, strings.ToLower(scheme)) {
		return nil, fmt.Errorf("the server's address must begin with one of %s, and ://", strings.Join(schemes, ", "))
	}
	t := &target{
		discover: strings.HasSuffix(strings.ToLower(scheme), "+discover"), tls: true, verify: true,
		discoveryInterval: 200 * time.Millisecond, gossipTimeout: 2 * time.Second, keepAliveInterval: 10 * time.Second, keepAliveTimeout: 10 * time.Second,
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts := strings.TrimSuffix(rest, "/")
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		if err := t.login(hosts[:at]); err != nil {
			return nil, err
		}
		hosts = hosts[at+1:]
	}
	for _, h := range strings.Split(hosts, ",") {
		host, err := hostPort(h)
		if err != nil {
			return nil, err
		}
		t.hosts = append(t.hosts, host)
	}
	if err := t.options(query); err != nil {
		return nil, err
	}
	return t, t.check()
}

func (t *target) login(s string) (err error) {
	user, password, _ := strings.Cut(s, ":")
	if t.user, err = url.PathUnescape(user); err == nil {
		t.password, err = url.PathUnescape(password)
	}
	if err != nil || t.user == "" || t.password == "" {
		return errors.New("user and password must both be there, percent-encoded, as in user:password@host")
	}
	return nil
}

// hostPort completes a node's address with the port that servers have by default.
func hostPort(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.Trim(s, "[]"), "2113"
	}
	if n, bad := strconv.Atoi(port); bad != nil || n < 1 || n > 65535 {
		return "", errors.New("a node's port must be from 1 to 65535")
	}
	if host == "" || strings.ContainsAny(host, "/@?# :") {
		return "", errors.New("each node must be a name or an IPv4 address, with a port if it is not 2113, and no path")
	}
	return net.JoinHostPort(host, port), nil
}

func (t *target) options(query string) error {
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		value, err := url.QueryUnescape(value)
		if err != nil {
			return fmt.Errorf("option %s is not percent-encoded", shown(name))
		}
		if err := t.option(name, value); err != nil {
			return err
		}
	}
	return nil
}

// shown keeps long or odd text out of a message: what stands there may be part of a password.
func shown(name string) string {
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return "of an odd name"
		}
	}
	if name == "" || len(name) > 32 {
		return "of an odd name"
	}
	return name
}

func (t *target) option(name, value string) (err error) {
	const hour = int64(time.Hour / time.Millisecond)
	switch strings.ToLower(name) {
	case "tls":
		t.tls, err = truth(value)
	case "tlsverifycert":
		t.verify, err = truth(value)
	case "tlscafile":
		t.roots, err = loadRoots(value)
	case "usercertfile":
		t.certFile = value
	case "userkeyfile":
		t.keyFile = value
	case "nodepreference":
		if !strings.EqualFold(value, "leader") {
			err = errors.New("must be leader: others may answer with what is no longer so")
		}
	case "discoveryinterval":
		t.discoveryInterval, err = milliseconds(value, 10, hour)
	case "keepaliveinterval":
		t.keepAliveInterval, err = milliseconds(value, -1, hour)
	case "keepalivetimeout":
		t.keepAliveTimeout, err = milliseconds(value, -1, hour)
	case "gossiptimeout":
		t.gossipTimeout, err = milliseconds(value, 1, 60)
		t.gossipTimeout *= 1000
	case "maxdiscoverattempts", "defaultdeadline":
		err = errors.New("cannot be set: a node is looked for until one is found, and each request has its own time limit")
	default:
		err = errors.New("is not known; there are tls, tlsVerifyCert, tlsCAFile, userCertFile, userKeyFile, nodePreference, discoveryInterval, gossipTimeout, keepAliveInterval and keepAliveTimeout")
	}
	if err != nil {
		return fmt.Errorf("option %s %w", shown(name), err)
	}
	return nil
}

func truth(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, errors.New("must be true or false")
}

func milliseconds(s string, least, most int64) (time.Duration, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("must be a whole number from %d to %d", least, most)
	}
	return time.Duration(n) * time.Millisecond, nil
}

func loadRoots(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("must name a readable file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("names %s, which holds no certificate in PEM form", file)
	}
	return roots, nil
}

// check refuses what contradicts itself.
func (t *target) check() error {
	switch {
	case !t.tls && t.user != "":
		return errors.New("a user and tls=false do not go together: the password would never be sent; take out one of them")
	case !t.tls && (t.roots != nil || t.certFile != "" || t.keyFile != ""):
		return errors.New("certificates and tls=false do not go together")
	case (t.certFile == "") != (t.keyFile == ""):
		return errors.New("options userCertFile and userKeyFile belong together, and only one is set")
	case t.discover && len(t.hosts) > 1:
		return errors.New("+discover takes one name; several nodes are asked without it")
	}
	if t.certFile != "" {
		if _, err := tls.LoadX509KeyPair(t.certFile, t.keyFile); err != nil {
			return fmt.Errorf("options userCertFile and userKeyFile: %w", err)
		}
	}
	return nil
}

// String names the nodes, and no secret.
func (t *target) String() string { return strings.Join(t.hosts, ", ") }

// diagnose says why a node cannot be spoken to, in words that say what to look at. It is nil when
// all that can be tried without the protocol works. lasting says that waiting does not help.
func (t *target) diagnose(host string, limit time.Duration) (lasting bool, err error) {
	conn, err := net.DialTimeout("tcp", host, limit)
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return false, fmt.Errorf("%s: the name is not found", host)
	case errors.As(err, &op) && op.Timeout():
		return false, fmt.Errorf("%s: no answer at all within %s: is it the right address, and does a firewall let us through?", host, limit)
	case err != nil:
		return false, fmt.Errorf("%s: nothing listens there: %w", host, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return false, err
	}
	name, _, _ := net.SplitHostPort(host)
	c := &tls.Config{ServerName: name, RootCAs: t.roots, InsecureSkipVerify: !t.tls || !t.verify, NextProtos: []string{"h2"}} // without tls it is only asked whether the server has it
	err = tls.Client(conn, c).Handshake()
	var record tls.RecordHeaderError
	var verify *tls.CertificateVerificationError
	switch {
	case !t.tls && err == nil:
		return true, fmt.Errorf("%s: the server speaks TLS and the address says tls=false", host)
	case !t.tls:
		return false, nil
	case errors.As(err, &record):
		return true, fmt.Errorf("%s: the server does not speak TLS; if that is meant, add tls=false", host)
	case errors.As(err, &verify):
		return true, fmt.Errorf("%s: the server's certificate is not trusted: %w", host, err)
	case err != nil:
		return false, fmt.Errorf("%s: TLS: %w", host, err)
	}
	return false, nil
}
