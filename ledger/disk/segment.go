package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/talenttrust/auditledger/ledger"
)

const (
	logDir      = "log"
	indexDir    = "index"
	segmentName = "%020d.seg"
)

// segment is one file of the log. Only the last one is open for writing; it knows its offsets from
// memory, the others read them from their end.
type segment struct {
	path    string
	f       *os.File
	first   ledger.Position
	sealed  bool
	records int
	end     int64    // of the frames
	offsets []uint32 // of the last segment's records
}

// segments is the whole log. The writer appends; everyone reads.
type segments struct {
	c   Config
	dir string

	mu   sync.RWMutex // guards list and the last segment's members
	list []*segment

	torn   *tail // found when it was opened; nil: nothing
	newest part  // of the last segment when it was opened: its last group, or its seal
}

// part is a part of a segment's file.
type part struct {
	at    int64
	bytes []byte
}

// tail is what stands behind the last commit, and why it is none.
type tail struct {
	bytes []byte
	err   error
}

// openSegments opens every segment, checks that they follow one another and hold all records that were seen before, and
// only then cuts what is behind the last commit.
func openSegments(c Config, seen ledger.Position) (*segments, error) {
	l := &segments{c: c, dir: filepath.Join(c.Dir, logDir)}
	names, err := filepath.Glob(filepath.Join(l.dir, "*.seg"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for i, name := range names {
		if err := l.openSegment(name, i == len(names)-1); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	if l.last() < seen {
		return nil, errors.Join(l.lost(seen), l.close())
	}
	if err := l.end(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// lost says that records that were seen once are not there.
func (l *segments) lost(seen ledger.Position) error {
	at := l.dir
	if l.torn != nil {
		at = fmt.Sprintf("segment %s, offset %d: %v: %s", l.active().path, l.active().end, l.torn.err, l.dir)
	}
	return fmt.Errorf("%s ends at position %d, but the key index has seen %d: records that were stored are gone, and nothing was changed; restore the log, or delete %s and %s to accept the loss: %w",
		at, l.last(), seen, filepath.Join(l.c.Dir, indexDir), filepath.Join(l.c.Dir, "projections"), ledger.ErrDamaged)
}

// end cuts off a torn end and makes sure that there is a segment to write to. Who only reads leaves all as it is.
func (l *segments) end() error {
	if l.c.Existing {
		if l.torn != nil {
			l.c.Logger.Warn("behind the last commit of the log there is more: it is no part of the ledger, and is left as it is", "file", l.active().path,
				"offset", l.active().end, "bytes", len(l.torn.bytes), "because", l.torn.err)
		}
		return nil
	}
	if l.torn != nil {
		if err := l.cut(l.active()); err != nil {
			return err
		}
	}
	if len(l.list) > 0 {
		if err := l.settle(l.active()); err != nil {
			return err
		}
	}
	if len(l.list) == 0 || l.active().sealed {
		return l.create(l.last() + 1)
	}
	return nil
}

func (l *segments) openSegment(path string, last bool) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	g := &segment{path: path, f: f}
	l.list = append(l.list, g)
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	head := make([]byte, headSize)
	if _, err := f.ReadAt(head, 0); err != nil && err != io.EOF {
		return fmt.Errorf("log: %w", err)
	}
	if last && info.Size() <= headSize && l.neverUsed(head, info.Size()) {
		l.list = l.list[:len(l.list)-1]
		if err := f.Close(); err != nil || l.c.Existing {
			return err
		}
		return os.Remove(path)
	}
	if g.first, err = decodeHead(head); err != nil {
		return damaged(path, 0, err)
	}
	if want := l.before(g) + 1; g.first != want || filepath.Base(path) != fmt.Sprintf(segmentName, want) {
		return damaged(path, 0, fmt.Errorf("it starts at position %d, position %d is missing", g.first, want))
	}
	switch sealed := g.readSeal(info.Size(), last); {
	case !last && !sealed:
		return damaged(path, info.Size(), errors.New("the seal is not where it should be, and a later segment exists"))
	case !last:
		return nil
	case !sealed:
		return l.recover(g)
	}
	l.newest = part{at: g.end}
	l.newest.bytes, err = g.bytes(g.end, info.Size()-g.end)
	return err
}

// settle makes sure of what was written last, a group or a seal: the process before may have ended before it was synced,
// or because that failed. It is written again, because of what a kernel could not write it may tell only once, and then
// takes it for written.
func (l *segments) settle(g *segment) error {
	_, err := l.c.Write(g.f, l.newest.bytes, l.newest.at)
	if err = errors.Join(err, l.c.Sync(g.f), syncDir(l.dir)); err != nil {
		return fmt.Errorf("log: make sure of the end of %s: %w", g.path, err)
	}
	l.newest = part{}
	return nil
}

// neverUsed tells a last segment whose creation was cut short: its head was not yet written.
func (l *segments) neverUsed(head []byte, size int64) bool {
	return size < headSize || bytes.Equal(head, make([]byte, headSize))
}

// before is the position of the last record before g.
func (l *segments) before(g *segment) ledger.Position {
	i := slices.Index(l.list, g)
	if i == 0 {
		return 0
	}
	return l.list[i-1].lastPosition()
}

func (g *segment) lastPosition() ledger.Position {
	return g.first + ledger.Position(g.records) - 1
}

func (l *segments) last() ledger.Position {
	if len(l.list) == 0 {
		return 0
	}
	return l.list[len(l.list)-1].lastPosition()
}

// readSeal takes over what the seal at the end of the file says, if there is one. The last segment's may not have
// been synced, so that not all before its end need be there.
func (g *segment) readSeal(size int64, last bool) bool {
	b := make([]byte, sealSize)
	if _, err := g.f.ReadAt(b, size-sealSize); err != nil {
		return false
	}
	s, err := decodeSeal(b, size)
	if err != nil || s.last != g.first+ledger.Position(s.records)-1 {
		return false
	}
	if last {
		offsets, err := g.bytes(int64(s.end), 4*int64(s.records))
		if err != nil || sum(offsets) != s.offsets {
			return false
		}
	}
	g.sealed, g.records, g.end = true, int(s.records), int64(s.end)
	return true
}

// recover reads the last segment, and finds what no commit covers.
func (l *segments) recover(g *segment) error {
	b, err := os.ReadFile(g.path)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	group, end, offsets, broken := scan(b, g.first)
	g.end, g.offsets, g.records = int64(end), offsets, len(offsets)
	l.newest = part{int64(group), bytes.Clone(b[group:end])}
	if end == len(b) {
		return nil
	}
	if at, ok := laterCommit(b, end, g.first+ledger.Position(g.records)); ok {
		return damaged(g.path, int64(broken.at), fmt.Errorf("%w, and the commit at offset %d was written after it", broken.err, at))
	}
	l.torn = &tail{b[end:], broken.err}
	return nil
}

// fault is what ended a scan.
type fault struct {
	at  int
	err error
}

// scan reads the frames of a segment. It returns where the last committed group begins, which is the segment's head
// when there is none, where its commit ends, and the offsets of the records up to there.
func scan(b []byte, first ledger.Position) (group, end int, offsets []uint32, broken fault) {
	end = headSize
	var open []uint32
	for at := headSize; at < len(b); {
		f, err := decodeFrame(b[at:])
		if err == nil && f.kind == commitKind && (int(f.commit.start) != end || int(f.commit.records) != len(open) ||
			f.commit.last != first+ledger.Position(len(offsets)+len(open))-1) {
			err = errors.New("the commit does not fit the records before it")
		}
		if err != nil {
			return group, end, offsets, fault{at, err}
		}
		if f.kind == recordKind {
			open = append(open, uint32(at))
		}
		at += f.size
		if f.kind == commitKind {
			offsets, open, group, end = append(offsets, open...), nil, end, at
		}
	}
	return group, end, offsets, fault{len(b), errShort}
}

// laterCommit looks behind a broken group for a commit of a later one. There can be none after a
// crash, because a group is written only when the one before is on disk: it is damage then.
func laterCommit(b []byte, end int, next ledger.Position) (int, bool) {
	for at := end; at+commitSize <= len(b); at++ {
		if b[at] != commitKind {
			continue
		}
		f, err := decodeFrame(b[at:])
		if err == nil && f.kind == commitKind && int(f.commit.start) > end && int(f.commit.start) < at && f.commit.last >= next {
			return at, true
		}
	}
	return 0, false
}

// cut keeps what is behind the last commit in a file of its own, reports it, and takes it off.
func (l *segments) cut(g *segment) error {
	if allZero(l.torn.bytes) {
		return l.truncate(g)
	}
	kept := fmt.Sprintf("%s.%d.torn", strings.TrimSuffix(g.path, ".seg"), g.end)
	if err := l.writeFile(kept, l.torn.bytes); err != nil {
		return fmt.Errorf("keep the torn end of the log: %w", err)
	}
	l.c.Logger.Warn("cut a torn end off the log: no commit follows it", "file", g.path, "offset", g.end, "bytes", len(l.torn.bytes), "kept", kept, "because", l.torn.err)
	return l.truncate(g)
}

func allZero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

func (l *segments) truncate(g *segment) error {
	if err := g.f.Truncate(g.end); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return l.c.Sync(g.f)
}

func (l *segments) writeFile(path string, b []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close(), syncDir(l.dir))
}

// create starts the next segment: its head and its name are on disk before it is used.
func (l *segments) create(first ledger.Position) error {
	path := filepath.Join(l.dir, fmt.Sprintf(segmentName, first))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o640)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	_, err = l.c.Write(f, appendHead(nil, first), 0)
	if err = errors.Join(err, l.c.Sync(f), syncDir(l.dir)); err != nil {
		return errors.Join(fmt.Errorf("log: create %s: %w", path, err), f.Close())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, &segment{path: path, f: f, first: first, end: headSize})
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// active is the segment that is written to. Only the writer asks.
func (l *segments) active() *segment { return l.list[len(l.list)-1] }

// roll seals the active segment and starts the next one. After an error only a restart knows what is
// on disk: it cuts half a seal, and starts the segment that is missing.
func (l *segments) roll() error {
	g := l.active()
	b := appendSeal(nil, seal{records: uint32(g.records), last: g.lastPosition(), end: uint32(g.end)}, g.offsets)
	_, err := l.c.Write(g.f, b, g.end)
	if err == nil {
		err = l.c.Sync(g.f)
	}
	if err != nil {
		return fmt.Errorf("log: seal %s: %w", g.path, err)
	}
	if err := l.create(g.lastPosition() + 1); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	g.sealed, g.offsets = true, nil
	return nil
}

// extend makes a group that is on disk part of the log.
func (l *segments) extend(size int, offsets []uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.active()
	g.end += int64(size)
	g.offsets = append(g.offsets, offsets...)
	g.records = len(g.offsets)
}

func (l *segments) close() error {
	var errs []error
	for _, g := range l.list {
		errs = append(errs, g.f.Close())
	}
	return errors.Join(errs...)
}

// read returns consecutive records from a position on: at least one, at most limit of them and about
// size bytes, none beyond to, all from one segment.
func (l *segments) read(from, to ledger.Position, limit int, size int64) ([]ledger.Record, error) {
	g, at, end, err := l.locate(from)
	if err != nil {
		return nil, err
	}
	b, err := g.bytes(at, min(size, end-at))
	if err != nil {
		return nil, err
	}
	recs := make([]ledger.Record, 0, min(limit, int(to-from)+1, len(b)/recordSize+1))
	for off := 0; len(recs) < limit && from <= to && int64(off)+at < end; {
		f, err := decodeFrame(b[off:])
		if errors.Is(err, errShort) && len(recs) > 0 {
			break
		}
		if errors.Is(err, errShort) && int64(len(b)) < end-at {
			if b, err = g.bytes(at, min(end-at, max(2*int64(len(b)), int64(f.size+off)))); err != nil {
				return nil, err
			}
			continue
		}
		if err == nil && f.kind == recordKind {
			recs = append(recs, ledger.Record{Position: from})
			err = decodeRecord(f, &recs[len(recs)-1])
			from++
		}
		if err != nil {
			return nil, damaged(g.path, at+int64(off), err)
		}
		off += f.size
	}
	if len(recs) == 0 {
		return nil, damaged(g.path, at, fmt.Errorf("position %d is not where it should be", from))
	}
	return recs, nil
}

// locate finds the segment of a position, where its frame starts, and where the segment's frames end.
func (l *segments) locate(p ledger.Position) (g *segment, at, end int64, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i := sort.Search(len(l.list), func(i int) bool { return l.list[i].first > p }) - 1
	if i < 0 || p > l.list[i].lastPosition() {
		return nil, 0, 0, fmt.Errorf("position %d: %w", p, ledger.ErrNotFound)
	}
	g = l.list[i]
	n := int(p - g.first)
	if !g.sealed {
		return g, int64(g.offsets[n]), g.end, nil
	}
	var b [4]byte
	if _, err := g.f.ReadAt(b[:], g.end+4*int64(n)); err != nil {
		return nil, 0, 0, fmt.Errorf("log: %w", err)
	}
	if at = int64(le.Uint32(b[:])); at < headSize || at >= g.end {
		return nil, 0, 0, damaged(g.path, g.end+4*int64(n), errors.New("the offset is outside of the frames"))
	}
	return g, at, g.end, nil
}

func (g *segment) bytes(at, n int64) ([]byte, error) {
	b := make([]byte, n)
	if _, err := g.f.ReadAt(b, at); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return b, nil
}

// damaged names the place that is not as it was written.
func damaged(path string, at int64, err error) error {
	return fmt.Errorf("segment %s, offset %d: %w: %w", path, at, err, ledger.ErrDamaged)
}
