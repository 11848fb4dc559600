package canonical

import (
	"encoding/json"
	"strings"
	"testing"
)

const emptyObject = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"

func TestHash(t *testing.T) {
	h := Sum([]byte("{}"))
	if h.String() != emptyObject {
		t.Errorf("Sum({}) = %s, want %s", h, emptyObject)
	}
	parsed, err := ParseHash(emptyObject)
	if err != nil || parsed != h || !parsed.Equal(h) {
		t.Errorf("ParseHash(%s) = %s, %v", emptyObject, parsed, err)
	}
	if other := Sum([]byte("[]")); h.Equal(other) || h.Equal(Hash{}) {
		t.Errorf("%s equals another hash", h)
	}
	if h.IsZero() || !(Hash{}).IsZero() {
		t.Errorf("IsZero: got %v, %v, want false, true", h.IsZero(), Hash{}.IsZero())
	}
	if text, err := h.AppendText([]byte("x")); err != nil || string(text) != "x"+emptyObject {
		t.Errorf("AppendText = %s, %v", text, err)
	}
}

func TestHashInJSON(t *testing.T) {
	type record struct{ H Hash }
	text, err := json.Marshal(record{Sum([]byte("{}"))})
	if err != nil || string(text) != `{"H":"`+emptyObject+`"}` {
		t.Errorf("got %s, %v", text, err)
	}
	var got record
	if err := json.Unmarshal(text, &got); err != nil || got.H.String() != emptyObject {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestParseHashRefuses(t *testing.T) {
	for _, s := range []string{"", "44", emptyObject[1:], emptyObject + "0", strings.ToUpper(emptyObject), "g" + emptyObject[1:], " " + emptyObject[1:]} {
		if h, err := ParseHash(s); err == nil || !h.IsZero() {
			t.Errorf("ParseHash(%q) = %s, %v, want an error", s, h, err)
		}
	}
}
