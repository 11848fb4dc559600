package node

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestVersions(t *testing.T) {
	for text, want := range map[string]version{
		"23.10.6": {23, 10, 6}, "24.10.0.1234-alpha": {24, 10, 0}, "26": {26}, "26.1.0-rc.1": {99}, "oss": {99}, "": {99},
	} {
		if got := parseVersion(text); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

func TestLimits(t *testing.T) {
	for text, want := range map[string]limits{
		"23.10.0": {1 << 20, 1 << 20, true}, "24.10.0": {1 << 20, 1 << 20, false},
		"25.0.1": {1 << 20, 1 << 20, false}, "25.1.0": {256 << 20, 16 << 20, false},
	} {
		if got := limitsOf(parseVersion(text)); got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

// TestIDCache: it forgets the oldest, and the first to use an ID keeps its place.
func TestIDCache(t *testing.T) {
	var c idCache
	first, second := &event{id: uuid.New(), stream: "s"}, &event{stream: "t"}
	second.id = first.id
	c.add(first)
	c.add(second)
	if got := c.known[first.id]; got != first {
		t.Errorf("got the event of stream %s, want that of s", got.stream)
	}
	for range cachedIDs {
		c.add(&event{id: uuid.New()})
	}
	if len(c.known) != cachedIDs || c.known[first.id] != nil {
		t.Errorf("%d IDs, the oldest known: %v", len(c.known), c.known[first.id] != nil)
	}
}

// FuzzFrames: whatever a file holds, what is read from it can be written and read again.
func FuzzFrames(f *testing.F) {
	l := newLog(time.Now)
	e := newEvent(uuid.New(), "Type", jsonType, []byte("{}"), nil)
	frame, err := encodeFrame(l.stamp("s", 0, []*event{e}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frame)
	f.Add(append(frame, frame[:len(frame)-1]...))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		events, whole := decodeFrames(data)
		if whole > len(data) {
			t.Fatalf("%d bytes of %d", whole, len(data))
		}
		frame, err := encodeFrame(events)
		if err != nil {
			t.Fatal(err)
		}
		again, n := decodeFrames(frame)
		if len(again) != len(events) || n != len(frame) {
			t.Errorf("%d events in %d bytes, want %d in %d", len(again), n, len(events), len(frame))
		}
	})
}
