package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/talenttrust/auditledger/ledger"
)

const (
	formatVersion = 1
	magic         = "ALEDGER1"

	headSize   = 24
	recordSize = 24 // without header and body
	commitSize = 24
	sealSize   = 28

	recordKind = 1
	commitKind = 2
	sealKind   = 3
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian

	errShort = errors.New("the file ends inside a frame")
	errFrame = errors.New("this is no frame")
	errSum   = errors.New("the checksum does not hold")
)

func sum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func appendSum(b []byte, from int) []byte { return le.AppendUint32(b, sum(b[from:])) }

func appendHead(b []byte, first ledger.Position) []byte {
	from := len(b)
	b = append(b, magic...)
	b = le.AppendUint16(b, formatVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, uint64(first))
	return appendSum(b, from)
}

func decodeHead(b []byte) (ledger.Position, error) {
	switch {
	case len(b) < headSize:
		return 0, errShort
	case string(b[:len(magic)]) != magic:
		return 0, errors.New("this is no segment of a ledger")
	case le.Uint16(b[8:]) != formatVersion:
		return 0, fmt.Errorf("format version %d is not known, only %d; a newer program may have written it", le.Uint16(b[8:]), formatVersion)
	case sum(b[:headSize-4]) != le.Uint32(b[headSize-4:]):
		return 0, errSum
	}
	return ledger.Position(le.Uint64(b[12:])), nil
}

func appendRecord(b, header, body []byte) []byte {
	from := len(b)
	b = append(b, recordKind, 0, 0, 0)
	b = le.AppendUint32(b, uint32(len(header)))
	b = le.AppendUint32(b, uint32(len(body)))
	b = le.AppendUint32(b, sum(header))
	b = le.AppendUint32(b, sum(body))
	b = appendSum(b, from)
	b = append(b, header...)
	return append(b, body...)
}

// commit ends a group of records that are in the ledger together.
type commit struct {
	records uint32
	last    ledger.Position
	start   uint32 // of the group's first frame in the file
}

func appendCommit(b []byte, c commit) []byte {
	from := len(b)
	b = append(b, commitKind, 0, 0, 0)
	b = le.AppendUint32(b, c.records)
	b = le.AppendUint64(b, uint64(c.last))
	b = le.AppendUint32(b, c.start)
	return appendSum(b, from)
}

// seal is the end of a segment that is never written again. Before it stand the offsets of the
// segment's records, 4 bytes each.
type seal struct {
	records uint32
	last    ledger.Position
	end     uint32 // of the frames: where the offsets start
	offsets uint32 // CRC32C of them
}

func appendSeal(b []byte, s seal, offsets []uint32) []byte {
	from := len(b)
	for _, o := range offsets {
		b = le.AppendUint32(b, o)
	}
	offsetsSum := sum(b[from:])
	from = len(b)
	b = append(b, sealKind, 0, 0, 0)
	b = le.AppendUint32(b, s.records)
	b = le.AppendUint64(b, uint64(s.last))
	b = le.AppendUint32(b, s.end)
	b = le.AppendUint32(b, offsetsSum)
	return appendSum(b, from)
}

// decodeSeal reads the seal in the last sealSize bytes of a file of the given size.
func decodeSeal(b []byte, size int64) (s seal, err error) {
	if len(b) != sealSize || b[0] != sealKind || sum(b[:sealSize-4]) != le.Uint32(b[sealSize-4:]) {
		return s, errFrame
	}
	s = seal{records: le.Uint32(b[4:]), last: ledger.Position(le.Uint64(b[8:])), end: le.Uint32(b[16:]), offsets: le.Uint32(b[20:])}
	if int64(s.end)+4*int64(s.records)+sealSize != size {
		return s, errFrame
	}
	return s, nil
}

// frame is one decoded frame.
type frame struct {
	kind         byte
	size         int
	header, body []byte // of a record, slices of the input
	commit       commit
}

// decodeFrame reads the frame at the start of b. errShort: b ends inside it.
func decodeFrame(b []byte) (f frame, err error) {
	if len(b) < recordSize {
		return f, errShort
	}
	f.kind = b[0]
	if f.kind != recordKind && f.kind != commitKind {
		return f, errFrame
	}
	if sum(b[:recordSize-4]) != le.Uint32(b[recordSize-4:]) {
		return f, errSum
	}
	if f.kind == commitKind {
		f.size = commitSize
		f.commit = commit{records: le.Uint32(b[4:]), last: ledger.Position(le.Uint64(b[8:])), start: le.Uint32(b[16:])}
		return f, nil
	}
	hlen, blen := int64(le.Uint32(b[4:])), int64(le.Uint32(b[8:]))
	if int64(len(b)) < recordSize+hlen+blen {
		f.size = int(recordSize + hlen + blen)
		return f, errShort
	}
	f.header = b[recordSize : recordSize+hlen]
	f.body = b[recordSize+hlen : recordSize+hlen+blen]
	f.size = int(recordSize + hlen + blen)
	if sum(f.header) != le.Uint32(b[12:]) || sum(f.body) != le.Uint32(b[16:]) {
		return f, errSum
	}
	return f, nil
}

// decodeRecord reads the record in a frame; its position is the caller's to know.
func decodeRecord(f frame, r *ledger.Record) error {
	if err := decodeHeader(f.header, &r.Header, &r.Leaf); err != nil {
		return err
	}
	return decodeBody(f.body, &r.Body)
}
