package graphql_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/talenttrust/auditledger/graphql"
	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/disk"
	"github.com/talenttrust/auditledger/projections"
)

// house is a ledger with its projections behind a GraphQL server.
type house struct {
	ledger *ledger.Ledger
	url    string
	last   ledger.Position
	query  *projections.Query
	epoch  string
}

func open(t *testing.T, c graphql.Config) *house {
	t.Helper()
	dir := t.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	store, err := disk.Open(disk.Config{Dir: dir, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.New(ledger.Config{Store: store, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	p, err := projections.Open(t.Context(), projections.Config{Dir: filepath.Join(dir, "projections"), Reader: store, Pending: l.Pending, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- l.Run(ctx) }()
	go func() { done <- p.Run(ctx) }()
	id, err := ledger.ID(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	c.Query, c.Logger, c.Epoch = p.Query(), quiet, id[:16]
	h, err := graphql.New(c)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		cancel()
		<-done
		<-done
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return &house{ledger: l, url: srv.URL, query: c.Query, epoch: c.Epoch}
}

// send stores events, each given as eventId, sequence and payload, for a contract.
func (h *house) send(t *testing.T, contract string, events ...[3]string) []ledger.Result {
	t.Helper()
	var raw [][]byte
	for _, e := range events {
		raw = append(raw, fmt.Appendf(nil, `{"contractId":%q,"eventId":%q,"sequence":%s,"timestamp":%d,"payload":%s}`, contract, e[0], e[1], time.Now().UnixMilli(), e[2]))
	}
	results, err := h.ledger.Ingest(t.Context(), ledger.Request{Source: &ledger.Source{Name: "gql", Window: time.Hour}, CorrelationID: "c-1"}, "lamp_contract", raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		h.last = max(h.last, r.Position)
	}
	return results
}

func (h *house) settled(t *testing.T) {
	t.Helper()
	if err := h.query.Wait(t.Context(), h.last); err != nil {
		t.Fatal(err)
	}
}

// ask posts a query and returns status and body.
func (h *house) ask(t *testing.T, query string, variables map[string]any, accept ...string) (int, string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"query": query, "variables": variables})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", h.url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for _, a := range accept {
		req.Header.Add("Accept", a)
	}
	return do(t, req)
}

func do(t *testing.T, req *http.Request) (int, string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// want asks and compares the data.
func (h *house) want(t *testing.T, query string, variables map[string]any, want string) {
	t.Helper()
	_, body := h.ask(t, query, variables)
	var got struct{ Data, Errors any }
	if err := json.Unmarshal([]byte(body), &got); err != nil || got.Errors != nil {
		t.Fatalf("%s\n%s", query, body)
	}
	var expected any
	if err := json.Unmarshal([]byte(want), &expected); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(expected, got.Data); d != "" {
		t.Errorf("%s (-want +got):\n%s", query, d)
	}
}

func TestBrowse(t *testing.T) {
	h := open(t, graphql.Config{})
	h.send(t, "lamp@7.a-b", [3]string{"e1", "1", `{"n":9007199254740993,"b":[1.50],"a":"é"}`}, [3]string{"e2", "2", `{}`}, [3]string{"e2", "2", `{}`},
		[3]string{"e2", "2", `{"x":1}`}, [3]string{"e5", "5", `{}`}, [3]string{"e4", "4", `{}`}, [3]string{"e5b", "5", `{}`}, [3]string{"e6", "-6", `{}`})
	h.send(t, "other", [3]string{"e1", "1", `{}`})
	h.settled(t)
	h.want(t, `{contract(id:"lamp@7.a-b"){contractId type accepted rejected conflicts lastSequence findings{kind fromSequence toSequence entries{eventId}} findingsTotal}}`, nil,
		`{"contract":{"contractId":"lamp@7.a-b","type":"lamp_contract","accepted":5,"rejected":2,"conflicts":1,"lastSequence":5,"findingsTotal":4,"findings":[
		 {"kind":"SEQUENCE_GAP","fromSequence":3,"toSequence":3,"entries":[{"eventId":"e2"},{"eventId":"e4"}]},
		 {"kind":"SEQUENCE_REUSED","fromSequence":5,"toSequence":5,"entries":[{"eventId":"e5b"}]},
		 {"kind":"SEQUENCE_REGRESSION","fromSequence":4,"toSequence":4,"entries":[{"eventId":"e4"}]},
		 {"kind":"CONFLICT","fromSequence":2,"toSequence":2,"entries":[{"eventId":"e2"}]}]}}`)
	h.want(t, `query($c:ID!){contract(id:$c){history(order:ASC,first:2){totalCount edges{node{eventId sequence status payload previous{eventId} next{eventId}}} pageInfo{hasNextPage hasPreviousPage}}}}`,
		map[string]any{"c": "lamp@7.a-b"}, `{"contract":{"history":{"totalCount":7,"pageInfo":{"hasNextPage":true,"hasPreviousPage":false},"edges":[
		 {"node":{"eventId":"e1","sequence":1,"status":"ACCEPTED","payload":{"a":"é","b":[1.5],"n":9007199254740993},"previous":null,"next":{"eventId":"e2"}}},
		 {"node":{"eventId":"e2","sequence":2,"status":"ACCEPTED","payload":{},"previous":{"eventId":"e1"},"next":{"eventId":"e5"}}}]}}}`)
	if _, body := h.ask(t, `{event(contractId:"lamp@7.a-b",eventId:"e1",sequence:1){payload}}`, nil); !strings.Contains(body, `"n":9.007199254740993e+15`) {
		t.Errorf("the payload's digits are not as stored: %s", body)
	}
	h.want(t, `{activity(filter:{status:REJECTED,code:"invalid_event"}){totalCount edges{node{code deduplicationKey payload contractId}}}}`, nil,
		`{"activity":{"totalCount":1,"edges":[{"node":{"code":"invalid_event","deduplicationKey":null,"payload":null,"contractId":"lamp@7.a-b"}}]}}`)
	h.want(t, `{contracts(search:"LAMP"){totalCount edges{node{contractId}}} nobody:contract(id:"nobody"){id}}`, nil,
		`{"contracts":{"totalCount":1,"edges":[{"node":{"contractId":"lamp@7.a-b"}}]},"nobody":null}`)
	h.want(t, `{stats{total accepted rejected conflicts contracts byContractType{name count} byCode{name count} findings{name count}} projections{name state lag}}`, nil,
		`{"stats":{"total":8,"accepted":6,"rejected":2,"conflicts":1,"contracts":2,"byContractType":[{"name":"lamp_contract","count":6}],"byCode":[{"name":"IDEMPOTENCY_PAYLOAD_CONFLICT","count":1},{"name":"invalid_event","count":1}],
		 "findings":[{"name":"SEQUENCE_GAP","count":1},{"name":"SEQUENCE_REUSED","count":1},{"name":"SEQUENCE_REGRESSION","count":1},{"name":"CONFLICT","count":1}]},
		 "projections":[{"name":"history","state":"live","lag":0},{"name":"stats","state":"live","lag":0},{"name":"contracts","state":"live","lag":0},{"name":"findings","state":"live","lag":0}]}`)
}

// TestPages walks over a history from page to page while more is written.
func TestPages(t *testing.T) {
	h := open(t, graphql.Config{})
	var events [][3]string
	for i := range 100 {
		events = append(events, [3]string{fmt.Sprint("e", i), fmt.Sprint(i), "{}"})
	}
	h.send(t, "c", events...)
	h.settled(t)
	seen := map[string]bool{}
	after := ""
	for page := 0; ; page++ {
		_, body := h.ask(t, `query($after:String){contract(id:"c"){history(first:7,after:$after){edges{cursor node{eventId}} pageInfo{hasNextPage endCursor}}}}`, map[string]any{"after": after})
		var got struct {
			Data struct {
				Contract struct {
					History struct {
						Edges []struct {
							Cursor string
							Node   struct{ EventID string }
						}
						PageInfo struct {
							HasNextPage bool
							EndCursor   string
						}
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		history := got.Data.Contract.History
		for _, e := range history.Edges {
			if seen[e.Node.EventID] {
				t.Fatalf("%s stands on two pages", e.Node.EventID)
			}
			seen[e.Node.EventID] = true
		}
		h.send(t, "c", [3]string{fmt.Sprint("new", page), fmt.Sprint(1000 + page), "{}"})
		h.settled(t)
		if !history.PageInfo.HasNextPage {
			break
		}
		if after = history.PageInfo.EndCursor; after != history.Edges[len(history.Edges)-1].Cursor {
			t.Fatal("endCursor is not the last edge's")
		}
	}
	if len(seen) != 100 {
		t.Errorf("%d entries on all pages, want 100", len(seen))
	}
	edited := after[:10] + "x" + after[11:]
	if edited == after {
		edited = after[:10] + "y" + after[11:]
	}
	if _, body := h.ask(t, fmt.Sprintf(`{contract(id:"c"){history(after:%q){edges{cursor}}}}`, edited), nil); !strings.Contains(body, "BAD_ARGUMENT") || !strings.Contains(body, "after") {
		t.Errorf("an edited cursor: %s", body)
	}
}

func TestNodes(t *testing.T) {
	h := open(t, graphql.Config{})
	h.send(t, "c", [3]string{"e", "1", "{}"}, [3]string{"e", "-1", "{}"})
	h.settled(t)
	_, body := h.ask(t, `{contract(id:"c"){id history{edges{node{id revision status}}}}}`, nil)
	var got struct {
		Data struct {
			Contract struct {
				ID      string
				History struct {
					Edges []struct{ Node struct{ ID string } }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Data.Contract.History.Edges) != 2 {
		t.Fatalf("%s, %v", body, err)
	}
	h.want(t, `query($a:ID!,$b:ID!,$c:ID!){a:node(id:$a){... on HistoryEntry{status}} b:node(id:$b){... on HistoryEntry{status} id} c:node(id:$c){... on Contract{contractId}} d:node(id:"x"){id}}`,
		map[string]any{"a": got.Data.Contract.History.Edges[0].Node.ID, "b": got.Data.Contract.History.Edges[1].Node.ID, "c": got.Data.Contract.ID},
		fmt.Sprintf(`{"a":{"status":"REJECTED"},"b":{"status":"ACCEPTED","id":%q},"c":{"contractId":"c"},"d":null}`, got.Data.Contract.History.Edges[1].Node.ID))
}

// TestFindingsPages pages through the findings of a contract with more than a page can hold, both ways.
func TestFindingsPages(t *testing.T) {
	const gaps = 1500
	h := open(t, graphql.Config{})
	var events [][3]string
	for i := range gaps + 1 {
		events = append(events, [3]string{fmt.Sprint("e", i), fmt.Sprint(2 * i), "{}"})
	}
	h.send(t, "c", events...)
	h.settled(t)
	for _, c := range []struct{ args, next string }{{"first:400,after:$at", "endCursor"}, {"last:400,before:$at", "startCursor"}} {
		seen, at := map[int64]bool{}, ""
		for more := true; more; {
			_, body := h.ask(t, `query($at:String){contract(id:"c"){findingsConnection(`+c.args+`){totalCount edges{node{kind fromSequence}} pageInfo{hasNextPage hasPreviousPage cursor:`+c.next+`}}}}`, map[string]any{"at": at})
			var got struct {
				Data struct {
					Contract struct {
						FindingsConnection struct {
							TotalCount int
							Edges      []struct {
								Node struct {
									Kind         string
									FromSequence int64
								}
							}
							PageInfo struct {
								HasNextPage, HasPreviousPage bool
								Cursor                       string
							}
						}
					}
				}
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatal(err)
			}
			page := got.Data.Contract.FindingsConnection
			for _, e := range page.Edges {
				if e.Node.Kind != "SEQUENCE_GAP" || seen[e.Node.FromSequence] {
					t.Fatalf("%+v is no gap, or stands on two pages", e.Node)
				}
				seen[e.Node.FromSequence] = true
			}
			if page.TotalCount != gaps {
				t.Fatalf("totalCount %d, want %d: %.300s", page.TotalCount, gaps, body)
			}
			if at, more = page.PageInfo.Cursor, page.PageInfo.HasNextPage; c.next == "startCursor" {
				more = page.PageInfo.HasPreviousPage
			}
		}
		if len(seen) != gaps {
			t.Errorf("%s: %d findings on all pages, want %d", c.args, len(seen), gaps)
		}
	}
	h.want(t, `{contract(id:"c"){findings(first:1){message entries{eventId}} findingsConnection(first:1){edges{node{entries{eventId}}}}}}`, nil,
		`{"contract":{"findings":[{"message":"No event with sequence 1 was accepted, though there are some before and behind it.","entries":[{"eventId":"e0"},{"eventId":"e1"}]}],
		 "findingsConnection":{"edges":[{"node":{"entries":[{"eventId":"e0"},{"eventId":"e1"}]}}]}}}`)
	if _, body := h.ask(t, `{contract(id:"c"){findingsConnection(first:1001){totalCount}}}`, nil); !strings.Contains(body, "BAD_ARGUMENT") {
		t.Errorf("a page that is too large: %.300s", body)
	}
}

// bombs are queries that cost a server much more than they cost the sender.
func bombs() map[string]string {
	spread := "query{...f0}"
	for i := range 25 {
		spread += fmt.Sprintf(" fragment f%d on Query{...f%d ...f%d}", i, i+1, i+1)
	}
	spread += " fragment f25 on Query{stats{total}}"
	deep := strings.Repeat("{a", 50) + strings.Repeat("}", 50)
	var aliases strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&aliases, "a%d:stats{total} ", i)
	}
	return map[string]string{
		"aliases":           "{" + aliases.String() + "}",
		"31 aliases":        "{" + strings.Repeat("a:stats{total} ", 31) + "}",
		"directives":        "{stats" + strings.Repeat("@a", 30_000) + "{total}}",
		"fragment cycle":    "query{...a} fragment a on Query{...b} fragment b on Query{...a}",
		"self":              "query{...a} fragment a on Query{stats{total} ...a}",
		"spread twice":      spread,
		"depth 50":          deep,
		"braces":            strings.Repeat("{", 10_000),
		"brackets":          "{a(b:" + strings.Repeat("[", 8000),
		"first 100000":      "{activity(first:100000){edges{node{eventId}}}}",
		"first by 1000":     "{contracts(first:1000){edges{node{history(first:1000){edges{node{eventId}}}}}}}",
		"same field":        "{" + strings.Repeat("stats{total}", 200) + "}",
		"one megabyte":      strings.Repeat(" ", 100_000) + "{stats{total}}",
		"syntax":            "{stats{total}" + strings.Repeat("!", 900),
		"unknown field":     "{" + strings.Repeat("x", 15_000) + "}",
		"unterminated":      `{contract(id:"` + strings.Repeat("x", 15_000),
		"unknown fields":    "{" + manyNames("x%d ", 400) + "\n" + manyNames("y%d ", 500) + "}",
		"unknown arguments": "{stats(" + manyNames("a%d:1 ", 300) + "){total}}",
		"unknown deep":      "{contract(id:\"a\"){" + manyNames("x%d ", 400) + "\n" + manyNames("y%d ", 400) + "}}",
		"type definitions":  "type Query{a:Int}",
		"empty":             " ",
		"not text":          "\x00\xff",
	}
}

func manyNames(form string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, form, i)
	}
	return b.String()
}

func TestBombs(t *testing.T) {
	h := open(t, graphql.Config{})
	for name, query := range bombs() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		status, body := h.ask(t, query, nil, "application/graphql-response+json")
		took := time.Since(start).Round(time.Microsecond)
		runtime.ReadMemStats(&after)
		used := (after.TotalAlloc - before.TotalAlloc) >> 10
		t.Logf("%-16s %s %d KiB %d %s", name, took, used, status, body)
		if used > 16<<10 { // client and all that runs beside included
			t.Errorf("%s: %d KiB of memory were taken", name, used)
		}
		if status/100 != 4 && !(name == "first 100000" && status == 200) || len(body) > 1000 || !strings.Contains(body, `"errors"`) {
			t.Errorf("%s: status %d, %d bytes: %.200s", name, status, len(body), body)
		}
	}
}

// TestCostOfVariables: what a page size costs does not depend on how it comes.
func TestCostOfVariables(t *testing.T) {
	h := open(t, graphql.Config{})
	const page = `contracts(first:$n){edges{node{history(first:$n){edges{node{id}}}}}}`
	for query, code := range map[string]string{
		`query($n:Int=1000){` + page + `}`:                                   "TOO_EXPENSIVE",
		`query a($n:Int=1){` + page + `} query b($n:Int=1000){` + page + `}`: "TOO_EXPENSIVE",
		`query($n:Int=10){` + page + `}`:                                     `"data"`,
	} {
		for _, variables := range []map[string]any{nil, {}, {"n": nil}} {
			if _, body := h.ask(t, query, variables); !strings.Contains(body, code) {
				t.Errorf("%s with %v: %.200s, want %s", query, variables, body, code)
			}
		}
	}
}

// TestHalfTypes: what the library parses, and then stumbles over, is the client's mistake.
func TestHalfTypes(t *testing.T) {
	h := open(t, graphql.Config{})
	for _, query := range []string{`query($c:){__typename}`, `query($c:!){__typename}`, `query($c:]){__typename}`, `query($c:[]){__typename}`, `query($c:$d:Int){__typename}`, `subscription($c:){activity{id}}`} {
		if status, body := h.ask(t, query, nil, "application/graphql-response+json"); status != 400 || !strings.Contains(body, `"errors"`) || len(body) > 1000 {
			t.Errorf("%s: %d %.300s", query, status, body)
		}
	}
}

func TestVariablesOfWrongType(t *testing.T) {
	h := open(t, graphql.Config{})
	for _, v := range []any{1, true, []int{1}, map[string]int{"a": 1}, nil, strings.Repeat("9", 50_000)} {
		status, body := h.ask(t, `query($s:Long!){event(contractId:"c",eventId:"e",sequence:$s){eventId}}`, map[string]any{"s": v})
		ok := v == 1
		if status != 200 || strings.Contains(body, `"errors"`) == ok || len(body) > 1000 {
			t.Errorf("$s = %.20v: %d %.300s", v, status, body)
		}
	}
	list := make([]int, 40_000)
	for name, variables := range map[string]map[string]any{
		"a list for a string": {"s": list}, "a list for an object": {"f": list}, "a list in an object": {"f": map[string]any{"status": list}},
		"unknown members": {"f": map[string]any{strings.Repeat("x", 50_000): 1}}, "a list nobody asked for": {"other": list, "s": 1},
	} {
		status, body := h.ask(t, `query($s:String,$f:HistoryFilter){activity(filter:$f,after:$s){asOf}}`, variables, "application/graphql-response+json")
		if len(body) > 1000 || !strings.Contains(body, `"errors"`) {
			t.Errorf("%s: %d, %d bytes: %.300s", name, status, len(body), body)
		}
	}
	h.want(t, `query($n:Int!,$f:HistoryFilter){activity(first:$n,filter:$f){totalCount}}`, map[string]any{"n": 3, "f": map[string]any{"fromSequence": 9007199254740991, "status": "ACCEPTED"}}, `{"activity":{"totalCount":0}}`)
	for query, code := range map[string]string{
		`{history}`: "VALIDATION", `{stats(from:"yesterday"){total}}`: "VALIDATION", `query a{stats{total}} query b{stats{total}}`: "BAD_REQUEST",
		`{stats(from:"2026-01-01T00:30:00Z"){total}}`: "BAD_ARGUMENT", `{activity(first:0){asOf}}`: "BAD_ARGUMENT", `{activity(first:1,last:1){asOf}}`: "BAD_ARGUMENT",
		`query a{stats{total}} query ` + strings.Repeat("b", 4000) + `{stats{total}}`: "BAD_REQUEST",
		`{activity(asOf:"x"){asOf}}`: "BAD_ARGUMENT", `mutation{a}`: "not configured for mutations", `subscription{a}`: "VALIDATION",
	} {
		if _, body := h.ask(t, query, nil); !strings.Contains(body, code) {
			t.Errorf("%s: %s, want %s", query, body, code)
		}
	}
}

func TestIntrospection(t *testing.T) {
	on, off := open(t, graphql.Config{}), open(t, graphql.Config{NoIntrospection: true})
	const query = `{__schema{queryType{name} types{name fields{name type{name kind ofType{name}}}}}}`
	if _, body := on.ask(t, query, nil); !strings.Contains(body, `"HistoryEntry"`) {
		t.Errorf("%.300s", body)
	}
	if _, body := off.ask(t, query, nil); !strings.Contains(body, "INTROSPECTION_OFF") {
		t.Errorf("%.300s", body)
	}
	if _, body := off.ask(t, `{stats{__typename}}`, nil); !strings.Contains(body, `"Stats"`) {
		t.Errorf("%.300s", body)
	}
}

func TestPersisted(t *testing.T) {
	dir := t.TempDir()
	const query = "{stats{total}}"
	if _, err := graphql.LoadPersisted(dir); err == nil {
		t.Error("an empty folder is taken")
	}
	if _, err := graphql.New(graphql.Config{PersistedOnly: true}); err == nil {
		t.Error("a service that allows nothing starts")
	}
	if err := os.WriteFile(filepath.Join(dir, "total.graphql"), []byte(query), 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := graphql.LoadPersisted(dir)
	if err != nil {
		t.Fatal(err)
	}
	open, closed := open(t, graphql.Config{Persisted: list}), open(t, graphql.Config{Persisted: list, PersistedOnly: true})
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(query)))
	for name, c := range map[string]struct{ body, open, closed string }{
		"by hash":       {`{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"` + hash + `"}}}`, `"total":0`, `"total":0`},
		"by text":       {`{"query":"{stats{total}}"}`, `"total":0`, `"total":0`},
		"both":          {`{"query":"{stats{total}}","extensions":{"persistedQuery":{"version":1,"sha256Hash":"` + hash + `"}}}`, `"total":0`, `"total":0`},
		"another":       {`{"query":"{stats{accepted}}"}`, `"accepted":0`, "QUERY_NOT_ALLOWED"},
		"a lie":         {`{"query":"{stats{accepted}}","extensions":{"persistedQuery":{"version":1,"sha256Hash":"` + hash + `"}}}`, "BAD_REQUEST", "BAD_REQUEST"},
		"unknown hash":  {`{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"ab"}}}`, "PersistedQueryNotFound", "PersistedQueryNotFound"},
		"nothing":       {`{}`, "query is missing", "query is missing"},
		"a wrong shape": {`{"query":"{stats{total}}","extensions":{"persistedQuery":7}}`, `"total":0`, `"total":0`},
	} {
		for h, want := range map[*house]string{open: c.open, closed: c.closed} {
			req, err := http.NewRequestWithContext(t.Context(), "POST", h.url, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if _, body := do(t, req); !strings.Contains(body, want) {
				t.Errorf("%s: %s, want %s", name, body, want)
			}
		}
	}
}

func TestHTTP(t *testing.T) {
	h := open(t, graphql.Config{})
	const query = "{stats{total}}"
	get := h.url + "?query=" + url.QueryEscape(query)
	for name, c := range map[string]struct {
		method, url, typ, body, accept string
		status                         int
		media                          string
	}{
		"get":                       {"GET", get, "", "", "", 200, "application/json"},
		"get with variables":        {"GET", get + "&variables={}", "", "", "application/graphql-response+json", 200, "application/graphql-response+json"},
		"get, bad variables":        {"GET", get + "&variables=7", "", "", "", 400, "application/json"},
		"get without query":         {"GET", h.url, "", "", "", 400, "application/json"},
		"post":                      {"POST", h.url, "application/json", `{"query":"{stats{total}}"}`, "*/*", 200, "application/json"},
		"post, charset":             {"POST", h.url, "application/json; charset=UTF-8", `{"query":"{stats{total}}","variables":null,"operationName":null,"extensions":{}}`, "application/graphql-response+json, application/json;q=0.9", 200, "application/graphql-response+json"},
		"post, text":                {"POST", h.url, "text/plain", `{"query":"{stats{total}}"}`, "", 415, "application/json"},
		"post, no type":             {"POST", h.url, "", `{"query":"{stats{total}}"}`, "", 415, "application/json"},
		"post, not JSON":            {"POST", h.url, "application/json", `{`, "", 400, "application/json"},
		"post, a list":              {"POST", h.url, "application/json", `[{"query":"{stats{total}}"}]`, "", 400, "application/json"},
		"post, query a number":      {"POST", h.url, "application/json", `{"query":7}`, "", 400, "application/json"},
		"post, variables a string":  {"POST", h.url, "application/json", `{"query":"{stats{total}}","variables":"x"}`, "", 400, "application/json"},
		"post, too large":           {"POST", h.url, "application/json", `{"query":"` + strings.Repeat(" ", 200_000) + `"}`, "", 413, "application/json"},
		"invalid query, JSON":       {"POST", h.url, "application/json", `{"query":"{nothing}"}`, "application/json", 200, "application/json"},
		"invalid query, new medium": {"POST", h.url, "application/json", `{"query":"{nothing}"}`, "application/graphql-response+json", 400, "application/graphql-response+json"},
		"syntax error, JSON":        {"POST", h.url, "application/json", `{"query":"{"}`, "application/json", 200, "application/json"},
		"put":                       {"PUT", h.url, "application/json", `{"query":"{stats{total}}"}`, "", 405, "application/json"},
		"accept html":               {"GET", get, "", "", "text/html", 406, "application/json"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, c.url, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if c.typ != "" {
			req.Header.Set("Content-Type", c.typ)
		}
		if c.accept != "" {
			req.Header.Set("Accept", c.accept)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != c.status || got != c.media+"; charset=utf-8" {
			t.Errorf("%s: %d %s, want %d %s", name, resp.StatusCode, got, c.status, c.media)
		}
	}
}

func TestAnswerIsBounded(t *testing.T) {
	h := open(t, graphql.Config{Limits: graphql.Limits{Answer: 20_000}})
	for i := range 30 {
		h.send(t, "c", [3]string{fmt.Sprint("e", i), fmt.Sprint(i), `{"x":"` + strings.Repeat("x", 1000) + `"}`})
	}
	h.settled(t)
	for query, ok := range map[string]bool{
		`{contract(id:"c"){history(first:10){edges{node{payload}}}}}`: true,
		`{contract(id:"c"){history(first:30){edges{node{payload}}}}}`: false,
		`{contract(id:"c"){history(first:30){edges{node{payloadHash leafHash a:payloadHash b:payloadHash c:payloadHash d:payloadHash e:payloadHash f:payloadHash g:payloadHash h:payloadHash}}}}}`: false,
	} {
		_, body := h.ask(t, query, nil)
		if strings.Contains(body, "ANSWER_TOO_LARGE") == ok || len(body) > 20_000 {
			t.Errorf("%s: %d bytes: %.200s", query, len(body), body)
		}
	}
}

// FuzzQuery: whatever is asked, there is an answer of the form, and no panic.
func FuzzQuery(f *testing.F) {
	for _, q := range bombs() {
		if len(q) < 2000 {
			f.Add(q)
		}
	}
	f.Add(`query q($a:Int=1){contracts(first:$a){edges{node{history(filter:{status:ACCEPTED}){edges{node{payload}}}}}}}`)
	h, err := graphql.New(graphql.Config{Query: &projections.Query{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, query string) {
		body, _ := json.Marshal(map[string]any{"query": query})
		req := httptest.NewRequest("POST", "/graphql", bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		var answer map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Body.Len() > 200_000 {
			t.Errorf("query %q: %d bytes, %v", query, w.Body.Len(), err)
		}
	})
}

// A payload is shown as Config.Show says, also one that is asked for twice.
func TestWithheldPayloads(t *testing.T) {
	h := open(t, graphql.Config{Show: func(_ context.Context, e *projections.Entry, payload []byte) ([]byte, []string, error) {
		if e.EventID == "e-2" {
			return nil, []string{""}, nil
		}
		return []byte(`{"shown":true}`), []string{"/token"}, nil
	}})
	h.send(t, "w-1", [3]string{"e-1", "1", `{"token":1}`}, [3]string{"e-2", "2", `{"all":1}`})
	h.settled(t)
	h.want(t, `{contract(id:"w-1"){history(order:ASC){edges{node{withheld payload again:payload}}}}}`, nil,
		`{"contract":{"history":{"edges":[{"node":{"withheld":["/token"],"payload":{"shown":true},"again":{"shown":true}}},{"node":{"withheld":[""],"payload":null,"again":null}}]}}}`)
}
