package rest_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/talenttrust/auditledger/rest"
)

func gzipped(t *testing.T, text []byte) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func zstandard(t *testing.T, text []byte, opts ...zstd.EOption) string {
	z, err := zstd.NewWriter(nil, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return string(z.EncodeAll(text, nil))
}

func TestContentEncodings(t *testing.T) {
	s := newService(t, options{})
	text := batch("lease_contract", event("c-1", "e-1", 1, `{"a":1}`))
	other := batch("lease_contract", event("c-1", "e-2", 2, `{"a":1}`))
	for _, test := range []struct {
		name, encoding, body string
		status               int
		says                 string
	}{
		{"identity", "identity", text, 200, `"accepted":1`},
		{"gzip", "gzip", gzipped(t, []byte(text)), 200, `"duplicates":1`},
		{"GZIP", "GZIP", gzipped(t, []byte(other)), 200, `"accepted":1`},
		{"zstd", "zstd", zstandard(t, []byte(text)), 200, `"duplicates":1`},
		{"zstd again", "zstd", zstandard(t, []byte(other)), 200, `"duplicates":1`},
		{"gzip cut short", "gzip", gzipped(t, []byte(text))[:40], 400, `"invalid_request"`},
		{"not gzip", "gzip", text, 400, `"invalid_request"`},
		{"not zstd", "zstd", text, 400, `"invalid_request"`},
		{"gzip after a bad one", "gzip", gzipped(t, []byte(text)), 200, `"duplicates":1`},
		{"zstd after a bad one", "zstd", zstandard(t, []byte(text)), 200, `"duplicates":1`},
		{"br", "br", text, 415, `"unsupported_media_type"`},
		{"two", "gzip, gzip", gzipped(t, []byte(gzipped(t, []byte(text)))), 415, `"unsupported_media_type"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := s.do("POST", "/api/v1/events", test.body, header("Content-Encoding", test.encoding))
			if r.status != test.status || !strings.Contains(string(r.body), test.says) {
				t.Errorf("got %d %s, want %d with %s", r.status, r.body, test.status, test.says)
			}
			if got := r.header.Get("Accept-Encoding"); (r.status == 415) != (got != "") {
				t.Errorf("status %d with Accept-Encoding %q", r.status, got)
			}
		})
	}
}

func TestContentTypes(t *testing.T) {
	s := newService(t, options{})
	for kind, want := range map[string]int{
		"application/json": 200, "application/json;charset=UTF-8": 200, "Application/JSON; x=y": 200,
		"text/plain": 415, "": 415, "application/json; charset=latin1": 415, "application/x-www-form-urlencoded": 415, "application/json;": 200, "json": 415,
	} {
		r := s.do("POST", "/api/v1/events", batch("lease_contract", event("c-1", "e-1", 1, `{}`)), header("Content-Type", kind))
		if r.status != want {
			t.Errorf("%q: got %d, want %d: %s", kind, r.status, want, r.body)
		}
	}
}

// What is too large is refused with memory that depends on the limit only.
func TestLargeBodies(t *testing.T) {
	s := newService(t, options{})
	zeros := make([]byte, 8<<20)
	for name, test := range map[string]struct {
		encoding string
		body     func() io.Reader
	}{
		"gzip bomb of 1.6 GB": {"gzip", func() io.Reader { return strings.NewReader(strings.Repeat(gzipped(t, zeros), 200)) }},
		"zstd bomb of 1.6 GB": {"zstd", func() io.Reader { return strings.NewReader(strings.Repeat(zstandard(t, zeros), 200)) }},
		"zstd window of 64 MB": {"zstd", func() io.Reader {
			var b bytes.Buffer
			z, _ := zstd.NewWriter(&b, zstd.WithWindowSize(64<<20), zstd.WithEncoderConcurrency(1))
			for range 10 {
				z.Write(zeros)
			}
			z.Close()
			return &b
		}},
		"100 MB of unknown length": {"", func() io.Reader { return io.LimitReader(repeated(' '), 100<<20) }},
		"100 MB announced":         {"", func() io.Reader { return bytes.NewReader(make([]byte, 100<<20)) }},
		"a byte over the limit":    {"", func() io.Reader { return bytes.NewReader(make([]byte, 8<<20+1)) }},
	} {
		t.Run(name, func(t *testing.T) {
			body := test.body()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			req, err := http.NewRequest("POST", s.URL+"/api/v1/events", body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if test.encoding != "" {
				req.Header.Set("Content-Encoding", test.encoding)
			}
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			runtime.ReadMemStats(&after)
			if resp.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(b), `"body_too_large"`) {
				t.Errorf("got %d %s, want 413", resp.StatusCode, b)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 100<<20 {
				t.Errorf("allocated %d MiB", got>>20)
			}
		})
	}
}

type repeated byte

func (r repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

func TestBodyAtTheLimit(t *testing.T) {
	s := newService(t, options{rest: rest.Config{MaxBody: 1000}})
	text := batch("lease_contract", event("c-1", "e-1", 1, `{}`))
	exact := text + strings.Repeat(" ", 1000-len(text))
	for _, body := range []struct{ name, encoding, text string }{{"plain", "identity", exact}, {"gzip", "gzip", gzipped(t, []byte(exact))}} {
		if r := s.do("POST", "/api/v1/events", body.text, header("Content-Encoding", body.encoding)); r.status != 200 {
			t.Errorf("%s of 1000 bytes: got %d %s, want 200", body.name, r.status, r.body)
		}
	}
	if r := s.do("POST", "/api/v1/events", gzipped(t, []byte(exact+" ")), header("Content-Encoding", "gzip")); r.status != 413 {
		t.Errorf("1001 bytes: got %d, want 413", r.status)
	}
}

func TestSlowBody(t *testing.T) {
	s := newService(t, options{rest: rest.Config{BodyTimeout: 50 * time.Millisecond}})
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /api/v1/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"contractType\":")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(b), `"request_timeout"`) {
		t.Errorf("got %d %s, want 408", resp.StatusCode, b)
	}
}
