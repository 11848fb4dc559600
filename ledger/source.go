package ledger

import "time"

// Source is a named, authenticated sender with its own policy. The zero value but for Name may send
// everything, binds keys for ever, refuses late events and gets findings of its sequences.
type Source struct {
	Name         string
	Window       time.Duration // how long a key stays bound to its payload; 0 is for ever
	AcceptLate   bool          // events older than the age limit are stored and marked late
	SequenceFree bool          // gaps, repeats and regressions of its sequences are no findings

	// Signing has the keys for signatures of single events; nil: they are stored unchecked.
	Signing *Signing

	// Allows reports whether the source may send events of the type for the contract; nil allows all.
	// An empty contractID is one that could not be read: then the type alone decides.
	Allows func(contractType, contractID string) bool
}

func (s *Source) allows(contractType, contractID string) bool {
	return s.Allows == nil || s.Allows(contractType, contractID)
}
