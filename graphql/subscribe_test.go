package graphql_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/talenttrust/auditledger/graphql"
)

// listen opens a subscription and returns how to read its next event, as "id data".
func (h *house) listen(t *testing.T, query, lastID string) (next func() (id, data string), stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", h.url+"?query="+url.QueryEscape(query), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if typ := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || typ != "text/event-stream; charset=utf-8" {
		t.Fatalf("status %d, %s", resp.StatusCode, typ)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Scan() // the comment that says the stream is open
	return func() (id, data string) {
			for lines.Scan() {
				name, value, _ := strings.Cut(lines.Text(), ": ")
				switch name {
				case "id":
					id = value
				case "data":
					return id, value
				}
			}
			t.Fatalf("the stream ended: %v", lines.Err())
			return
		}, func() {
			cancel()
			resp.Body.Close()
		}
}

func TestSubscription(t *testing.T) {
	h := open(t, graphql.Config{})
	h.send(t, "c", [3]string{"before", "0", "{}"})
	h.settled(t)
	next, stop := h.listen(t, `subscription{activity(contractId:"c",status:ACCEPTED){eventId payload}}`, "")
	h.send(t, "c", [3]string{"e1", "1", `{"a":1}`}, [3]string{"bad", "-1", "{}"})
	h.send(t, "other", [3]string{"e", "1", "{}"})
	h.send(t, "c", [3]string{"e2", "2", "{}"})
	id, data := next()
	if data != `{"data":{"activity":{"eventId":"e1","payload":{"a":1}}}}` {
		t.Errorf("first event %s", data)
	}
	if _, data := next(); data != `{"data":{"activity":{"eventId":"e2","payload":{}}}}` {
		t.Errorf("second event %s", data)
	}
	stop()
	for i := range 200 {
		h.send(t, "c", [3]string{fmt.Sprint("n", i), fmt.Sprint(10 + i), "{}"})
	}
	next, stop = h.listen(t, `subscription{activity(contractId:"c",status:ACCEPTED){eventId}}`, id)
	defer stop()
	for i := range 201 {
		want := "e2"
		if i > 0 {
			want = fmt.Sprint("n", i-1)
		}
		if _, data := next(); !strings.Contains(data, fmt.Sprintf("%q", want)) {
			t.Fatalf("event %d after resuming: %s, want %s", i, data, want)
		}
	}
}

// TestSubscriptionArguments: it does not matter how an argument comes.
func TestSubscriptionArguments(t *testing.T) {
	h := open(t, graphql.Config{})
	h.settled(t)
	for _, query := range []string{
		`subscription($c:ID="555"){activity(contractId:$c,status:REJECTED){contractId status}}`,
		`subscription($s:Status=REJECTED){activity(contractId:555,status:$s){contractId status}}`,
		`subscription{...f} fragment f on Subscription{activity(contractId:"555",status:REJECTED){contractId status}}`,
	} {
		next, stop := h.listen(t, query, "")
		h.send(t, "other", [3]string{"e", "-1", "{}"})
		h.send(t, "555", [3]string{"good" + fmt.Sprint(len(query)), fmt.Sprint(len(query)), "{}"})
		h.send(t, "555", [3]string{"bad" + fmt.Sprint(len(query)), "-1", "{}"})
		if _, data := next(); data != `{"data":{"activity":{"contractId":"555","status":"REJECTED"}}}` {
			t.Errorf("%s: first %s", query, data)
		}
		stop()
	}
}

func TestSubscriptionRefused(t *testing.T) {
	h := open(t, graphql.Config{Streams: 1})
	const good = `subscription{activity{eventId}}`
	for name, c := range map[string]struct{ query, id, code string }{ // query may be followed by & and more of the URL
		"a query":           {`{stats{total}}`, "", "NOT_A_SUBSCRIPTION"},
		"two fields":        {`subscription{a:activity{eventId} b:activity{eventId}}`, "", "exactly one field"},
		"two in a fragment": {`subscription{...f} fragment f on Subscription{a:activity{eventId} ...g} fragment g on Subscription{activity{eventId}}`, "", "exactly one field"},
		"skipped":           {`subscription{activity @skip(if:true){eventId}}`, "", "exactly one field"},
		"no contract":       {`subscription{activity(contractId:""){eventId}}`, "", "contractId"},
		"bad enum":          {`subscription($s:Status){activity(status:$s){eventId}}&variables={"s":"FOO"}`, "", "BAD_REQUEST"},
		"missing variable":  {`subscription($c:ID!){activity(contractId:$c){eventId}}`, "", "BAD_REQUEST"},
		"malformed id":      {good, "x", "BAD_EVENT_ID"},
		"another ledger":    {good, "0123456789abcdef-1", "OTHER_LEDGER"},
		"beyond the head":   {good, h.epoch + "-999", "BEYOND_HEAD"},
		"negative position": {good, h.epoch + "--1", "BAD_EVENT_ID"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a stream that opens after all would never end
		defer cancel()
		query, variables, _ := strings.Cut(c.query, "&variables=")
		req, err := http.NewRequestWithContext(ctx, "GET", h.url+"?query="+url.QueryEscape(query)+"&variables="+url.QueryEscape(variables), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		if c.id != "" {
			req.Header.Set("Last-Event-ID", c.id)
		}
		if status, body := do(t, req); status != 400 || !strings.Contains(body, c.code) {
			t.Errorf("%s: %d %s, want %s", name, status, body, c.code)
		}
	}
	if _, body := h.ask(t, good, nil); !strings.Contains(body, "NOT_A_STREAM") {
		t.Errorf("a subscription as a query: %s", body)
	}
	_, stop := h.listen(t, good, "")
	defer stop()
	req, err := http.NewRequestWithContext(t.Context(), "GET", h.url+"?query="+url.QueryEscape(good), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if status, body := do(t, req); status != 503 {
		t.Errorf("one subscription too many: %d %s", status, body)
	}
}
