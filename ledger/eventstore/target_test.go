package eventstore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTarget(t *testing.T) {
	for s, want := range map[string]string{
		"esdb://localhost":                                     "localhost:2113 discover=false tls=true user=",
		"ESDB://localhost:1?tls=false":                         "localhost:1 discover=false tls=false user=",
		"kurrentdb://10.0.0.1:2114/?TLS=False&":                "10.0.0.1:2114 discover=false tls=false user=",
		"esdb+discover://cluster.example:2113":                 "cluster.example:2113 discover=true tls=true user=",
		"kurrentdb+discover://cluster.example":                 "cluster.example:2113 discover=true tls=true user=",
		"esdb://a,b:2,c?nodePreference=Leader":                 "a:2113,b:2,c:2113 discover=false tls=true user=",
		"esdb://admin:ch%40nge%2Fit@a,b?tlsVerifyCert=false":   "a:2113,b:2113 discover=false tls=true user=admin:ch@nge/it",
		"esdb://u:p:q@a?discoveryInterval=500&gossipTimeout=5": "a:2113 discover=false tls=true user=u:p:q",
		"esdb://a?keepAliveInterval=-1&keepAliveTimeout=20000": "a:2113 discover=false tls=true user=",
	} {
		c, err := parseTarget(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		user := c.user
		if c.password != "" {
			user += ":" + c.password
		}
		if got := fmt.Sprintf("%s discover=%v tls=%v user=%s", strings.Join(c.hosts, ","), c.discover, c.tls, user); got != want {
			t.Errorf("%s: got %s, want %s", s, got, want)
		}
		if !IsURL(s) {
			t.Errorf("%s is not taken for a connection string", s)
		}
		if _, err := newClient(c, time.Second, nil); err != nil {
			t.Errorf("%s: the client does not take it: %v", s, err)
		}
	}
	c, err := parseTarget("esdb://a?discoveryInterval=500&gossipTimeout=5&keepAliveInterval=-1")
	if err != nil || c.discoveryInterval != 500*time.Millisecond || c.gossipTimeout != 5*time.Second || c.keepAliveInterval >= 0 || c.keepAliveTimeout != 10*time.Second {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestBadTarget: each error names what is wrong, and none says a word of the secret.
func TestBadTarget(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]string{
		"": "must begin with", "disk": "must begin with", "http://a": "must begin with", "esdb:a": "must begin with", "esdb://": "each node must be", "esdb://a,,b": "each node must be",
		"esdb://a:0": "port must be", "esdb://a:65536": "port must be", "esdb://a:x": "port must be", "esdb://a b": "each node must be", "esdb://a/hunter2": "each node must be", "esdb://[::1]:2113": "each node must be",
		"esdb://hunter2@a": "both be there", "esdb://:hunter2@a": "both be there", "esdb://u:%zzhunter2@a": "both be there", "esdb://u:hunter2@a?tls=false": "tls=false",
		"esdb://u:hunter2@a?tls=maybe": "option tls must be true or false", "esdb://a?tlsVerifyCert=1": "option tlsVerifyCert must be true or false", "esdb://a?nodePreference=follower": "must be leader",
		"esdb://a?keepAliveInterval=abc": "option keepAliveInterval must be a whole number", "esdb://a?discoveryInterval=0": "option discoveryInterval must be", "esdb://a?gossipTimeout=61": "option gossipTimeout must be", "esdb://a?keepAliveTimeout=9999999999999999999": "must be a whole",
		"esdb://a?defaultDeadline=abc": "cannot be set", "esdb://a?maxDiscoverAttempts=3": "cannot be set", "esdb://a?hunter2=x": "of an odd name is not known", "esdb://a?connectionName=x": "option connectionName is not known", "esdb://a?tls=%zz": "not percent-encoded",
		"esdb://a?tlsCAFile=/none/such.pem": "readable file", "esdb://a?tlsCAFile=" + empty: "no certificate", "esdb://a?userCertFile=x": "belong together", "esdb://a?userCertFile=/none&userKeyFile=/none": "userCertFile and userKeyFile",
		"esdb+discover://a,b": "takes one name", "esdb://a?tls=false&userCertFile=x&userKeyFile=y": "do not go together",
	} {
		_, err := parseTarget(s)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want an error with %q", s, err, want)
		}
	}
}

func FuzzTarget(f *testing.F) {
	f.Add("esdb://user:password@a:1,b?tls=false&gossipTimeout=3")
	f.Add("kurrentdb+discover://a?tlsVerifyCert=true")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseTarget(s)
		if err != nil {
			return
		}
		if len(c.hosts) == 0 || !c.tls && c.user != "" || !IsURL(s) {
			t.Errorf("%q gives %+v", s, c)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{}`), []byte(`{"appendToken":"x"}`), int64(3))
	f.Fuzz(func(t *testing.T, data, meta []byte, number int64) {
		ev := &recorded{typ: "EventAccepted", stream: "contract-c", number: number, data: data, meta: meta}
		if r, token, err := decode(ev); err == nil && (token == "" || r.Header.Stream != ev.stream) {
			t.Errorf("%s is taken for %+v", data, r)
		}
	})
}
