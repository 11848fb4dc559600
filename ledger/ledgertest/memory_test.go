package ledgertest

import (
	"testing"

	"github.com/talenttrust/auditledger/ledger"
)

func TestMemory(t *testing.T) { testMemory(t, Faults{}) }

// TestMemoryWithFaults is the proof that no decision depends on how a store serializes: the same
// suite, while answers get lost and other writers come in between.
func TestMemoryWithFaults(t *testing.T) {
	testMemory(t, Faults{LostRace: 0.2, LostAnswer: 0.2, LostCall: 0.2})
}

func testMemory(t *testing.T, f Faults) {
	TestStore(t, func(t *testing.T) Opener {
		b := NewBackend()
		seed := uint64(0)
		return func(*testing.T) ledger.Store {
			seed++
			return OpenMemory(b, f, seed)
		}
	})
}
