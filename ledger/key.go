package ledger

import (
	"strconv"

	"github.com/google/uuid"
)

// Limits of the event's base fields.
const (
	MaxIDLen   = 255       // characters of contractId and eventId
	MaxTypeLen = 100       // characters of contractType
	MaxInteger = 1<<53 - 1 // largest sequence and timestamp: every JSON reader can hold it
)

// namespace of event IDs: UUIDv5(URL, "https://github.com/talenttrust/auditledger/event-id/v1").
var namespace = uuid.MustParse("ae4dbeee-9724-54de-9a97-4cf607754a29")

// Key is the deduplication key. It is kept as three fields and never parsed from its text.
type Key struct {
	ContractID string
	EventID    string
	Sequence   int64
}

// String is the key as collectors see it: contractId:eventId:sequence. Ids hold no colon.
func (k Key) String() string {
	return k.ContractID + ":" + k.EventID + ":" + strconv.FormatInt(k.Sequence, 10)
}

// ID is the event's UUIDv5: of the key, and from the second generation on of key#generation.
func (k Key) ID(generation int64) uuid.UUID {
	name := k.String()
	if generation > 1 {
		name += "#" + strconv.FormatInt(generation, 10)
	}
	return uuid.NewSHA1(namespace, []byte(name))
}

// Stream names the contract's stream of accepted events.
func (k Key) Stream() string { return ContractStream(k.ContractID) }

// ContractStream names the stream that holds a contract's accepted events.
func ContractStream(contractID string) string { return contractPrefix + contractID }

// Streams that are not a contract's.
const (
	contractPrefix    = "contract-"
	rejectionsPrefix  = "rejections-"
	duplicatesPrefix  = "duplicates-"
	accessPrefix      = "access-"
	LedgerStream      = "ledger"
	instanceMaxLength = 64
)

// ValidID reports whether s may be a contractId, an eventId (max MaxIDLen) or a contractType
// (max MaxTypeLen): 1 to max characters of A-Z a-z 0-9 _ - . @
func ValidID(s string, max int) bool {
	if len(s) == 0 || len(s) > max {
		return false
	}
	for i := range len(s) {
		if !idChar[s[i]] {
			return false
		}
	}
	return true
}

var idChar = func() (t [256]bool) {
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.@" {
		t[c] = true
	}
	return t
}()
