package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/talenttrust/auditledger/ledger"
)

// remote is a running service.
type remote struct {
	URL   string `env:"AUDITCTL_URL" default:"http://127.0.0.1:8080" help:"Address of the service."`
	Token string `env:"AUDITCTL_TOKEN" help:"Bearer token of an auditor or admin; rebuild needs an admin's."`
}

// Validate is called by the parser.
func (r *remote) Validate() error {
	if !isAddress(r.URL) {
		return errors.New("--url must be the http or https address of a service, such as http://127.0.0.1:8080")
	}
	return nil
}

func isAddress(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func (r *remote) do(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(r.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if r.Token != "" {
		req.Header.Set("Authorization", "Bearer "+r.Token)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return http.DefaultClient.Do(req)
}

// call sends a request and decodes the JSON answer into to, if that is not nil.
func (r *remote) call(ctx context.Context, method, path string, body []byte, to any) error {
	resp, err := r.do(ctx, method, path, body, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return answered(resp.StatusCode, b)
	}
	if to == nil {
		return nil
	}
	return json.Unmarshal(b, to)
}

// answered is the error in an answer that is not 2xx: its problem's detail, or its beginning.
func answered(status int, body []byte) error {
	var p struct {
		Title, Detail string
		Errors        []struct{ Message string }
	}
	if json.Unmarshal(body, &p) == nil {
		if len(p.Errors) > 0 {
			return fmt.Errorf("status %d: %s", status, p.Errors[0].Message)
		}
		if p.Title != "" {
			return fmt.Errorf("status %d: %s: %s", status, p.Title, p.Detail)
		}
	}
	return fmt.Errorf("status %d: %.200s", status, body)
}

type readyCmd struct{ remote }

// Run asks /readyz, as a container's health check does.
func (c *readyCmd) Run(ctx context.Context, s *streams) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, err := c.do(ctx, "GET", "/readyz", nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct{ Checks map[string]string }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	for _, name := range slices.Sorted(maps.Keys(answer.Checks)) {
		fmt.Fprintf(s.out, "%s: %s\n", name, answer.Checks[name])
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New("the service is not ready")
	}
	return nil
}

type rebuildCmd struct {
	remote
	Name string `arg:"" help:"history, stats, contracts or findings."`
}

// Run asks for a projection to be built anew and watches until it answers.
func (c *rebuildCmd) Run(ctx context.Context, s *streams) error {
	if err := c.call(ctx, "POST", "/api/v1/projections/"+c.Name+"/rebuild", nil, nil); err != nil {
		return err
	}
	m := newMeter(s.err, false, 0, 0)
	m.unit = "positions"
	defer m.end()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s goes on being rebuilt by the service: %w", c.Name, ctx.Err())
		case <-tick.C:
		}
		st, err := c.state(ctx)
		if err != nil {
			return err
		}
		switch st.State {
		case "failed":
			return fmt.Errorf("%s stopped at position %s: %s", c.Name, st.Failure.Position, st.Failure.Reason)
		case "live":
			m.end()
			fmt.Fprintf(s.out, "%s is live at position %s (%s)\n", c.Name, st.Position, time.Since(m.start).Round(time.Millisecond))
			return nil
		}
		head, err := ledger.ParsePosition(st.Head)
		if err != nil {
			return fmt.Errorf("the head of the ledger: %w", err)
		}
		m.show(int64(st.Progress*float64(head)), st.Progress)
	}
}

type projectionState struct {
	Name, Position, Head, State string
	Progress                    float64
	Failure                     *struct{ Position, Reason string }
}

func (c *rebuildCmd) state(ctx context.Context) (st projectionState, err error) {
	var answer struct{ Projections []projectionState }
	if err := c.call(ctx, "GET", "/api/v1/projections", nil, &answer); err != nil {
		return st, err
	}
	for _, p := range answer.Projections {
		if p.Name == c.Name {
			return p, nil
		}
	}
	return st, fmt.Errorf("there is no projection %s", c.Name)
}

type tailCmd struct {
	remote
	Contract string `help:"Only this contract's events."`
	Status   string `enum:",accepted,rejected" default:"" help:"Only accepted or only rejected ones."`
	JSON     bool   `help:"One JSON object a line."`
	After    string `help:"Start after the event with this id, as printed with --json, instead of now." placeholder:"ID"`
}

const tailFields = `position processedAt status code contractId contractType eventId sequence generation payloadHash`

// Run prints events as they come, and goes on where it was when the connection breaks.
func (c *tailCmd) Run(ctx context.Context, s *streams) error {
	var args []string
	if c.Contract != "" {
		args = append(args, fmt.Sprintf("contractId:%q", c.Contract))
	}
	if c.Status != "" {
		args = append(args, "status:"+strings.ToUpper(c.Status))
	}
	field := "activity"
	if len(args) > 0 {
		field += "(" + strings.Join(args, ",") + ")"
	}
	body, err := json.Marshal(map[string]string{"query": "subscription{" + field + "{" + tailFields + "}}"})
	if err != nil {
		return err
	}
	said := ""
	for delay := time.Second; ; delay = min(2*delay, 30*time.Second) {
		before := c.After
		got, err := c.stream(ctx, s, body)
		if ctx.Err() != nil {
			return nil
		}
		if c.After != before {
			said, delay = "", time.Second
		}
		if err != nil && !got {
			return err
		}
		if reason := cmp.Or(err, io.EOF).Error(); reason != said { // once for each cause
			said = reason
			fmt.Fprintf(s.err, "auditctl: the connection to %s broke, trying again: %s\n", c.URL, reason)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

// stream reads one connection. got says that it was opened: what ends it then is worth another try.
func (c *tailCmd) stream(ctx context.Context, s *streams, body []byte) (got bool, err error) {
	header := http.Header{"Accept": {"text/event-stream"}}
	if c.After != "" {
		header.Set("Last-Event-Id", c.After)
	}
	resp, err := c.do(ctx, "POST", "/graphql", body, header)
	if err != nil {
		return c.After != "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode == http.StatusServiceUnavailable, answered(resp.StatusCode, b)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			c.After = value
		case "data":
			if err := c.print(s, value); err != nil {
				return true, err
			}
		}
	}
	return true, lines.Err()
}

func (c *tailCmd) print(s *streams, data string) error {
	var e struct {
		Data struct{ Activity map[string]any }
	}
	if err := json.Unmarshal([]byte(data), &e); err != nil || e.Data.Activity == nil {
		return nil
	}
	a := e.Data.Activity
	if c.JSON {
		a["id"] = c.After
		return json.NewEncoder(s.out).Encode(a)
	}
	code := ""
	if a["code"] != nil {
		code = fmt.Sprint(" ", a["code"])
	}
	_, err := fmt.Fprintf(s.out, "%8v  %v  %-8v  %v  %v #%v%s\n", a["position"], a["processedAt"], strings.ToLower(fmt.Sprint(a["status"])), cell(a["contractId"]), cell(a["eventId"]), plain(a["sequence"]), code)
	return err
}

func cell(v any) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(v)
}

func plain(v any) string {
	if n, ok := v.(float64); ok {
		return fmt.Sprintf("%.0f", n)
	}
	return cell(v)
}

type queryCmd struct {
	remote
	File string            `arg:"" help:"File with a GraphQL query; - is standard input." type:"existingfile"`
	Var  map[string]string `help:"Variables of the query: NAME=VALUE; a value that is JSON is taken as such." placeholder:"NAME=VALUE"`
	JSON bool              `help:"The answer as it is, instead of tables."`
}

// Run sends a stored query and prints its answer.
func (c *queryCmd) Run(ctx context.Context, s *streams) error {
	query, err := c.read(s)
	if err != nil {
		return err
	}
	variables := map[string]any{}
	for name, value := range c.Var {
		variables[name] = value
		var v any
		if json.Unmarshal([]byte(value), &v) == nil {
			variables[name] = json.RawMessage(value)
		}
	}
	body, err := json.Marshal(map[string]any{"query": string(query), "variables": variables})
	if err != nil {
		return err
	}
	var answer struct {
		Data   map[string]any
		Errors []struct{ Message string }
	}
	if err := c.call(ctx, "POST", "/graphql", body, &answer); err != nil {
		return err
	}
	if c.JSON {
		enc := json.NewEncoder(s.out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(answer.Data); err != nil {
			return err
		}
	} else {
		printTables(s.out, "", answer.Data)
	}
	if len(answer.Errors) > 0 {
		return fmt.Errorf("the service says: %s", answer.Errors[0].Message)
	}
	return nil
}

func (c *queryCmd) read(s *streams) ([]byte, error) {
	if c.File == "-" {
		return io.ReadAll(s.in)
	}
	return os.ReadFile(c.File)
}

// printTables prints an answer: single values as lines, lists of objects as tables under their path.
func printTables(w io.Writer, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range sortedNames(v) {
			printTables(w, strings.TrimPrefix(path+"."+name, "."), v[name])
		}
	case []any:
		printTable(w, path, v)
	default:
		fmt.Fprintf(w, "%s\t%s\n", path, plain(v))
	}
}

func printTable(w io.Writer, path string, rows []any) {
	fmt.Fprintf(w, "%s\n", path)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	var head []string
	for i, row := range rows {
		flat := map[string]string{}
		flatten(flat, "", row)
		if i == 0 {
			for name := range flat {
				head = append(head, name)
			}
			sort.Strings(head)
			fmt.Fprintln(tw, "  "+strings.Join(head, "\t"))
		}
		var cells []string
		for _, name := range head {
			cells = append(cells, flat[name])
		}
		fmt.Fprintln(tw, "  "+strings.Join(cells, "\t"))
	}
	tw.Flush()
}

// flatten puts the values of an object under the last parts of their names; deeper lists as JSON.
func flatten(to map[string]string, name string, v any) {
	m, ok := v.(map[string]any)
	if ok && name != "payload" {
		for k, inner := range m {
			flatten(to, k, inner)
		}
		return
	}
	switch v.(type) {
	case []any, map[string]any:
		b, _ := json.Marshal(v)
		to[name] = string(b)
	default:
		to[name] = plain(v)
	}
}

func sortedNames(m map[string]any) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}
