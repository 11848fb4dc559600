package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/rest"
)

// source runs a source command on a file and returns what it printed.
func source(t *testing.T, file string, args ...string) (string, error) {
	t.Helper()
	var out, talk bytes.Buffer
	err := run(t.Context(), append(append([]string{"source"}, args...), "--file="+file), strings.NewReader(""), &out, &talk)
	return out.String(), err
}

func mustSource(t *testing.T, file string, args ...string) string {
	t.Helper()
	out, err := source(t, file, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var printed = regexp.MustCompile(`^key: (\S+)\nsecret: (whsec_\S+|[0-9a-f]{64})\n$`)

func TestSourceLife(t *testing.T) {
	for scheme, kept := range map[string]bool{"bearer": false, "standard-webhooks": true, "legacy-hmac": true} {
		file := filepath.Join(t.TempDir(), "sources.yaml")
		first := printed.FindStringSubmatch(mustSource(t, file, "add", "leases", "--role=collector", "--scheme="+scheme, "--contracts=led-*", "--contract-types=lease_contract"))
		second := printed.FindStringSubmatch(mustSource(t, file, "rotate", "leases", "--keep=1h"))
		if first == nil || second == nil || first[1] == second[1] || first[2] == second[2] {
			t.Fatalf("%s: got %q and %q, want two keys", scheme, first, second)
		}
		text := read(t, file)
		if got := strings.Contains(text, first[2]); got != kept {
			t.Errorf("%s: the secret is in the file: %v, want %v", scheme, got, kept)
		}
		if _, err := rest.LoadAuth(file, time.Hour, time.Now); err != nil {
			t.Errorf("%s: the service refuses the file: %v", scheme, err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got mode %v, %v, want 0600", scheme, info.Mode(), err)
		}
		list := mustSource(t, file, "list")
		for _, want := range []string{first[1], second[1], "live until", scheme} {
			if !strings.Contains(list, want) {
				t.Errorf("%s: the list lacks %s: %s", scheme, want, list)
			}
		}
		if strings.Contains(list, first[2]) || strings.Contains(list, second[2]) {
			t.Errorf("%s: the list has a secret", scheme)
		}
		mustSource(t, file, "revoke", "leases", "--key="+second[1])
		mustSource(t, file, "revoke", "leases", "--all")
		if list := mustSource(t, file, "list"); strings.Count(list, "expired") != 2 {
			t.Errorf("%s: after both were revoked: %s", scheme, list)
		}
		if left, _ := filepath.Glob(file + ".*"); len(left) > 0 {
			t.Errorf("%s: left behind: %v", scheme, left)
		}
	}
}

// What people wrote in the file stays; nothing of it changes but the keys.
func TestSourceKeepsTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sources.yaml")
	const text = `# who may write
sources:
  # the lease office
  - name: leases
    role: collector
    window: 0
    late: accept
    sequence: free
    rate: {events: 100, burst: 200} # enough
    sign: {required: true, keys: [{id: e, hmac: "env:SIGN"}]}
    keys:
      - id: k1 # of the old machine
        webhookSecret: "env:NOT_SET_HERE"
  - {name: eyes, role: auditor, payload: false, keys: [{id: a, sha256: abababababababababababababababababababababababababababababababab}]}
`
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	mustSource(t, file, "rotate", "eyes")
	mustSource(t, file, "rotate", "leases", "--keep=1h")
	got := read(t, file)
	for _, want := range []string{"# who may write", "# the lease office", "# enough", "# of the old machine", "env:NOT_SET_HERE", "whsec_", "env:SIGN", `payload: "false"`, "sequence: free", "burst: 200"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is gone: %s", want, got)
		}
	}
	before, _ := rest.DecodeSources([]byte(text))
	after, err := rest.DecodeSources([]byte(got))
	if err != nil || len(after.Sources) != 2 || *after.Sources[0].Window != "0" || len(after.Sources[0].Keys) != 2 || after.Sources[1].Keys[0].SHA256 != before.Sources[1].Keys[0].SHA256 {
		t.Errorf("got %+v, %v", after, err)
	}
	if info, _ := os.Stat(file); info.Mode().Perm() != 0o640 {
		t.Errorf("got mode %v, want 0640", info.Mode())
	}
}

func TestSourceRefusals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sources.yaml")
	mustSource(t, file, "add", "boss", "--role=admin")
	before := read(t, file)
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"add", "boss", "--role=admin"}, "is there already"},
		{[]string{"add", "a b", "--role=admin"}, "sources[1].name"},
		{[]string{"add", "new", "--role=root"}, "--role"},
		{[]string{"add", "new", "--role=admin", "--scheme=basic"}, "--scheme"},
		{[]string{"add", "new", "--role=auditor", "--scheme=standard-webhooks"}, "--scheme must be bearer"},
		{[]string{"add", "new", "--role=collector", "--window=1d"}, "window"},
		{[]string{"add", "new", "--role=collector", "--payload=false"}, "payload"},
		{[]string{"add", "new", "--role=collector", "--contracts=a?"}, "contracts[0]"},
		{[]string{"rotate", "nobody"}, "is not in"},
		{[]string{"rotate", "boss", "--keep=-1h"}, "--keep"},
		{[]string{"revoke", "boss", "--key=none"}, "has no key none"},
		{[]string{"revoke", "boss"}, "--key"},
	} {
		if _, err := source(t, file, test.args...); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v: got %v, want an error with %s", test.args, err, test.says)
		}
	}
	if got := read(t, file); got != before {
		t.Errorf("a refused command has changed the file: %s", got)
	}
	if err := os.WriteFile(file, []byte("sources: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"list"}, {"add", "new", "--role=admin"}} {
		if _, err := source(t, file, args...); err == nil || !strings.Contains(err.Error(), "sources file") {
			t.Errorf("%v on a faulty file: got %v, want an error", args, err)
		}
	}
	if _, err := source(t, filepath.Join(t.TempDir(), "none"), "list"); err == nil {
		t.Error("a file that is not there: got no error")
	}
}
