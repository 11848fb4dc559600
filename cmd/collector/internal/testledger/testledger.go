// Package testledger is a small ledger for the collector's tests. It answers as the public contract
// says (batches, envelopes, item by item), keeps what it accepted, in a file if it is given one,
// and misbehaves on demand. It is not fast, and it is no substitute for the real service.
package testledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

// Fault is how one request goes wrong. The zero value is none.
type Fault struct {
	Status int               // answer this
	Header map[string]string // with these
	Body   string
	Store  bool // do the work first, then go wrong: the answer is lost
	Hang   bool // never answer
	Reset  bool // cut the connection
	Half   bool // answer half of the right answer, then cut
}

// Record is one event as the ledger keeps it.
type Record struct {
	Key      string `json:"key"`
	Hash     string `json:"hash"`
	Position int    `json:"position"`
}

// Ledger is the handler. Set its fields before the first request.
type Ledger struct {
	MaxBody   int                                        // 413 above it; 0 is 8 MiB
	MaxEvents int                                        // 400 above it; 0 is 1000
	Auth      func(h http.Header, body []byte) error     // nil lets everybody in
	Fault     func(request int, r *http.Request) Fault   // nil is no fault; request counts from 1
	Judge     func(contractType string, e Event) *Result // says no to an event; nil result accepts

	mu       sync.Mutex
	requests int
	file     *os.File
	order    []Record
	records  map[string]int // key to index in order
	rejected map[string]int
	stop     chan struct{}
}

// Event is what the ledger looks at.
type Event struct {
	ContractID any             `json:"contractId"`
	EventID    any             `json:"eventId"`
	Sequence   json.RawMessage `json:"sequence"`
	Payload    json.RawMessage `json:"payload"`
}

// Result is one outcome.
type Result struct {
	Key         *string `json:"deduplicationKey"`
	Status      string  `json:"status"`
	Code        string  `json:"code,omitempty"`
	HTTPStatus  int     `json:"httpStatus,omitempty"`
	Reason      string  `json:"reason,omitempty"`
	ProcessedAt string  `json:"processedAt"`
	Position    string  `json:"position,omitempty"`
	PayloadHash string  `json:"payloadHash,omitempty"`
}

// New returns an empty ledger that keeps nothing beyond the process.
func New() *Ledger {
	return &Ledger{records: map[string]int{}, rejected: map[string]int{}, stop: make(chan struct{})}
}

// Open returns a ledger whose records are in a file, written and synced before the answer.
func Open(path string) (*Ledger, error) {
	l := New()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	l.file = f
	end := int64(0)
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			break // a line that was cut was never answered
		}
		if err != nil {
			return nil, err
		}
		var rec Record
		if err := json.Unmarshal(line, &rec); err != nil {
			return nil, err
		}
		l.add(rec)
		end += int64(len(line))
	}
	if err := f.Truncate(end); err != nil {
		return nil, err
	}
	_, err = f.Seek(end, io.SeekStart)
	return l, err
}

// Close lets hanging requests go.
func (l *Ledger) Close() { close(l.stop) }

func (l *Ledger) add(rec Record) {
	l.records[rec.Key] = len(l.order)
	l.order = append(l.order, rec)
}

// Records returns what was accepted, in order.
func (l *Ledger) Records() []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Record(nil), l.order...)
}

// Rejected returns how often each key was rejected.
func (l *Ledger) Rejected() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	copied := map[string]int{}
	for k, n := range l.rejected {
		copied[k] = n
	}
	return copied
}

// Requests returns how many requests came in.
func (l *Ledger) Requests() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

func (l *Ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	l.requests++
	n := l.requests
	l.mu.Unlock()
	var fault Fault
	if l.Fault != nil {
		fault = l.Fault(n, r)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, int64(or(l.MaxBody, 8<<20))+1))
	if err != nil {
		return
	}
	status, answer := 0, []byte(nil)
	if fault.none() || fault.Store || fault.Half {
		status, answer = l.handle(r, body)
	}
	switch {
	case fault.Hang:
		select {
		case <-r.Context().Done():
		case <-l.stop:
		}
	case fault.Reset:
		cut(w, nil)
	case fault.Half:
		cut(w, fmt.Appendf(nil, "HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(answer), answer[:len(answer)/2]))
	case fault.Status != 0:
		for name, value := range fault.Header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(fault.Status)
		io.WriteString(w, fault.Body)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(answer)
	}
}

func or(v, otherwise int) int {
	if v == 0 {
		return otherwise
	}
	return v
}

// cut writes raw bytes and resets the connection.
func cut(w http.ResponseWriter, raw []byte) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	conn.Write(raw)
	if tcp, ok := conn.(*net.TCPConn); ok && raw == nil {
		tcp.SetLinger(0)
	}
	conn.Close()
}

func (l *Ledger) handle(r *http.Request, body []byte) (int, []byte) {
	switch {
	case len(body) > or(l.MaxBody, 8<<20):
		return problem(413, "body_too_large")
	case l.Auth != nil && l.Auth(r.Header, body) != nil:
		return problem(401, "unauthenticated")
	case r.Method != http.MethodPost:
		return problem(405, "method_not_allowed")
	case r.Header.Get("Content-Type") != "application/json":
		return problem(415, "unsupported_media_type")
	case r.URL.Path == "/api/v1/events":
		return l.batch(body)
	case r.URL.Path == "/api/v1/envelopes":
		return l.envelope(r.Header.Get("X-Event-Id"), body)
	}
	return problem(404, "not_found")
}

func problem(status int, code string) (int, []byte) {
	text, _ := json.Marshal(map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "code": code})
	return status, text
}

func (l *Ledger) batch(body []byte) (int, []byte) {
	var in struct {
		ContractType string            `json:"contractType"`
		Events       []json.RawMessage `json:"events"`
	}
	if json.Unmarshal(body, &in) != nil {
		return problem(400, "invalid_json")
	}
	if in.ContractType == "" || len(in.Events) == 0 || len(in.Events) > or(l.MaxEvents, 1000) {
		return problem(400, "invalid_request")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	results := make([]Result, len(in.Events))
	var added bytes.Buffer
	for i, raw := range in.Events {
		results[i] = l.ingest(in.ContractType, raw, &added)
	}
	if err := l.persist(added.Bytes()); err != nil {
		return problem(503, "ledger_unavailable")
	}
	text, _ := json.Marshal(map[string]any{"processed": len(results), "results": results})
	return 200, text
}

func (l *Ledger) persist(lines []byte) error {
	if l.file == nil || len(lines) == 0 {
		return nil
	}
	if _, err := l.file.Write(lines); err != nil {
		return err
	}
	return l.file.Sync()
}

func (l *Ledger) ingest(contractType string, raw []byte, added *bytes.Buffer) Result {
	var e Event
	reject := func(status int, code string) Result {
		key := fmt.Sprintf("%v:%v:%s", e.ContractID, e.EventID, e.Sequence)
		l.rejected[key]++
		return Result{Key: &key, Status: "rejected", Code: code, HTTPStatus: status, Reason: "for the test"}
	}
	clean, _ := canonical.Clean(raw)
	if json.Unmarshal(clean, &e) != nil {
		return reject(422, "invalid_event")
	}
	contract, ok1 := e.ContractID.(string)
	id, ok2 := e.EventID.(string)
	sequence, err := strconv.ParseInt(string(e.Sequence), 10, 64)
	if !ok1 || !ok2 || err != nil || len(e.Payload) == 0 || e.Payload[0] != '{' {
		return reject(422, "invalid_event")
	}
	if l.Judge != nil {
		if no := l.Judge(contractType, e); no != nil {
			return reject(no.HTTPStatus, no.Code)
		}
	}
	hash, err := canonical.Append(nil, e.Payload)
	if err != nil {
		return reject(422, "duplicate_member")
	}
	return l.store(fmt.Sprintf("%s:%s:%d", contract, id, sequence), canonical.Sum(hash).String(), added, reject)
}

func (l *Ledger) store(key, hash string, added *bytes.Buffer, reject func(int, string) Result) Result {
	if i, ok := l.records[key]; ok {
		if l.order[i].Hash != hash {
			return reject(409, "IDEMPOTENCY_PAYLOAD_CONFLICT")
		}
		return Result{Key: &key, Status: "duplicate", Position: strconv.Itoa(i), ProcessedAt: "2026-01-01T00:00:00.000Z", PayloadHash: hash}
	}
	rec := Record{key, hash, len(l.order)}
	l.add(rec)
	line, _ := json.Marshal(rec)
	added.Write(append(line, '\n'))
	return Result{Key: &key, Status: "accepted", Position: strconv.Itoa(rec.Position), ProcessedAt: time.Now().UTC().Format(time.RFC3339Nano), PayloadHash: hash}
}

func (l *Ledger) envelope(id string, body []byte) (int, []byte) {
	var in struct {
		Type    string          `json:"type"`
		Chat    *string         `json:"chat_jid"`
		Payload json.RawMessage `json:"payload"`
	}
	if json.Unmarshal(body, &in) != nil || len(id) != 36 {
		return problem(400, "invalid_request")
	}
	if in.Type == "" || len(in.Payload) == 0 || !strings.ContainsRune("[{", rune(in.Payload[0])) {
		return problem(422, "invalid_event")
	}
	chat := "-"
	if in.Chat != nil {
		chat = *in.Chat
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key := chat + ":" + id + ":0"
	if l.Judge != nil {
		if no := l.Judge(in.Type, Event{ContractID: chat, EventID: id, Payload: in.Payload}); no != nil {
			l.rejected[key]++
			return problem(no.HTTPStatus, no.Code)
		}
	}
	form, err := canonical.Append(nil, in.Payload)
	if err != nil {
		return problem(422, "duplicate_member")
	}
	var added bytes.Buffer
	result := l.store(key, canonical.Sum(form).String(), &added, func(status int, code string) Result {
		l.rejected[key]++
		return Result{Key: &key, Status: "rejected", HTTPStatus: status, Code: code}
	})
	if err := l.persist(added.Bytes()); err != nil {
		return problem(503, "ledger_unavailable")
	}
	status := map[string]int{"accepted": 201, "duplicate": 200, "rejected": 409}[result.Status]
	text, _ := json.Marshal(result)
	return status, text
}

func (f Fault) none() bool { return f.Status == 0 && !f.Store && !f.Hang && !f.Reset && !f.Half }
