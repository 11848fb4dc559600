// Package cmd_test holds the table of which package may import which, and what only one may.
package cmd_test

import (
	"bufio"
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/talenttrust/auditledger/"

// layers are the packages in the order in which data moves. A package may import what stands in a
// layer before its own.
var layers = [][]string{
	{"ledger/canonical"},
	{"ledger"},
	{"ledger/keyindex"},
	{"ledger/disk", "ledger/eventstore", "ledger/redis", "ledger/merkle"},
	{"projections"},
	{"rest", "graphql"},
	{"cmd/collector/outbox"},
	{"cmd/auditd", "cmd/auditctl", "cmd/collector"},
}

// only says which packages alone may import a library.
var only = map[string]string{
	"github.com/EventStore/":        "ledger/eventstore " + wire,
	"google.golang.org/grpc":        "ledger/eventstore " + wire,
	"github.com/redis/":             "ledger/redis",
	"github.com/graphql-go/":        "graphql",
	"modernc.org/sqlite":            "cmd/collector/outbox",
	"github.com/santhosh-tekuri/":   "ledger",
	"google.golang.org/protobuf/en": "ledger/disk projections ledger/ledgertest/esnode/node",
	"github.com/cockroachdb/":       "ledger/keyindex projections",
}

// wire is the test double of an EventStoreDB server and the tests that speak to it.
const wire = "ledger/ledgertest/esnode ledger/ledgertest/esnode/node"

func layer(pkg string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, pkg) })
}

func TestArrows(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		pkg := strings.TrimPrefix(words[0], module)
		if strings.Contains(pkg, "/internal/") || pkg == "cmd" {
			continue
		}
		at := layer(pkg)
		forTests := strings.HasPrefix(pkg, "ledger/ledgertest") // it may know what it tests
		if at < 0 && !forTests {
			t.Errorf("package %s has no place in the table", pkg)
			continue
		}
		seen++
		for _, imported := range words[1:] {
			if own, ok := strings.CutPrefix(imported, module); ok && layer(own) >= at && !forTests {
				t.Errorf("%s imports %s, which does not stand before it", pkg, own)
			}
			for library, owners := range only {
				if strings.HasPrefix(imported, library) && !slices.Contains(strings.Fields(owners), pkg) {
					t.Errorf("%s imports %s, which is for %s only", pkg, imported, owners)
				}
			}
		}
	}
	if seen < 8 {
		t.Errorf("only %d packages were looked at", seen)
	}
}
