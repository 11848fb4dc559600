package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"

	"github.com/talenttrust/auditledger/cmd/collector/outbox"
	"github.com/talenttrust/auditledger/ledger/canonical"
)

const (
	maxLine  = 64 << 20 // a longer line is kept only in part, unless a splitter says otherwise
	keptLine = 64 << 10 // that much of it
	binary   = 512      // that many bytes of a source tell whether it is text
)

// errBinary says that a source is not JSON lines at all.
var errBinary = errors.New("this is binary data, not JSON lines")

// line is one line of a source.
type line struct {
	text       []byte // without its end; the reader's own
	start, end int64  // offsets in the source; end is behind the line feed
	length     int64  // of the whole line when only a part is kept, else 0
	sum        canonical.Hash
}

// splitter cuts a stream into lines across reads. Lines without text are left out.
type splitter struct {
	max     int64     // bytes of a line that is kept whole; 0 is maxLine
	partial []byte    // what was read of the line under way
	start   int64     // where that line begins
	long    hash.Hash // set while the line under way is too long to keep
	length  int64     // bytes of that line so far
}

func (s *splitter) limit() int64 {
	if s.max > 0 {
		return s.max
	}
	return maxLine
}

// read returns the offset up to which bytes were read.
func (s *splitter) read() int64 { return s.start + s.length }

// split takes the next bytes and returns the lines that are complete now.
func (s *splitter) split(chunk []byte) ([]line, error) {
	if s.start == 0 && s.length < binary {
		head := append(bytes.Clone(s.partial), chunk[:min(len(chunk), binary)]...)
		if first := bytes.TrimLeft(head, "\ufeff \t\r\n"); bytes.IndexByte(head[:min(len(head), binary)], 0) >= 0 && (len(first) == 0 || first[0] != '{') {
			return nil, errBinary
		}
	}
	var lines []line
	for {
		i := bytes.IndexByte(chunk, '\n')
		if i < 0 {
			s.take(chunk)
			return lines, nil
		}
		s.take(chunk[:i])
		lines = s.finish(lines, 1)
		chunk = chunk[i+1:]
	}
}

// rest ends the stream: what stands without a line feed is a line too.
func (s *splitter) rest() []line {
	if s.length == 0 {
		return nil
	}
	return s.finish(nil, 0)
}

func (s *splitter) take(part []byte) {
	s.length += int64(len(part))
	if s.long == nil && s.length > s.limit() {
		s.long = sha256.New()
		s.long.Write(s.partial)
	}
	if s.long != nil {
		s.long.Write(part)
		if room := keptLine - len(s.partial); room >= 0 {
			s.partial = append(s.partial, part[:min(len(part), room)]...)
		} else {
			s.partial = bytes.Clone(s.partial[:keptLine]) // lets the memory go
		}
		return
	}
	s.partial = append(s.partial, part...)
}

// finish appends the line under way and begins the next one behind its line feed.
func (s *splitter) finish(lines []line, feed int64) []line {
	l := line{text: s.partial, start: s.start, end: s.start + s.length + feed}
	if s.long != nil {
		l.length = s.length
		s.long.Sum(l.sum[:0])
	}
	*s = splitter{max: s.max, start: l.end}
	if l.start == 0 {
		l.text = bytes.TrimPrefix(l.text, []byte("\ufeff"))
	}
	l.text = bytes.TrimSpace(l.text)
	if len(l.text) == 0 && l.length == 0 {
		return lines
	}
	return append(lines, l)
}

// event is the dead letter of a line that is too long to keep.
func (l line) event(origin string) outbox.Event {
	return outbox.Event{Form: outbox.FormLine, Body: l.text, PayloadHash: l.sum, Origin: origin,
		Refused: fmt.Sprintf("the line has %d bytes, which is too much to keep; only its beginning is, and the SHA-256 of the whole is the payload hash", l.length)}
}
