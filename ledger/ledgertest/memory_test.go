package ledgertest

import (
	"testing"

	"github.com/talenttrust/auditledger/ledger"
)

func TestMemory(t *testing.T) { TestStore(t, memory(Faults{})) }

// The proof that no decision depends on how a store serializes: the same suite, while calls and
// answers get lost, and races, while other writers come in between with events of their own or the same.
func TestMemoryWithLosses(t *testing.T) {
	TestStore(t, memory(Faults{LostAnswer: 0.3, LostCall: 0.3}))
}

func TestMemoryWithRivals(t *testing.T) {
	TestRaces(t, memory(Faults{LostAnswer: 0.2, LostCall: 0.2, LostRace: 0.2, Twin: 0.2}))
}

func memory(f Faults) func(t *testing.T) Opener {
	return func(t *testing.T) Opener {
		b := NewBackend()
		seed := uint64(0)
		return func(*testing.T) ledger.Store {
			seed++
			return OpenMemory(b, f, seed)
		}
	}
}

func TestMemoryRows(t *testing.T) { TestRows(t, memory(Faults{LostAnswer: 0.2, LostCall: 0.2})) }
