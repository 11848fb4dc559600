package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"google.golang.org/protobuf/encoding/protodelim"
)

// logFile keeps the log in a folder so that it outlives the process: one append-only file of frames,
// each a batch: length (uint32, big endian), CRC-32 of the rest, then length-delimited RecordedEvent
// messages. A frame that is not whole is what a kill left behind, and is cut off at the next start.
type logFile struct {
	f    *os.File
	path string
}

// openFile opens the log in dir and returns the events it holds. With dir empty there is no file.
func openFile(dir string) (*logFile, []*event, error) {
	if dir == "" {
		return nil, nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, "log")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	events, whole := decodeFrames(data)
	err = f.Truncate(int64(whole))
	if err == nil {
		_, err = f.Seek(int64(whole), io.SeekStart)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return &logFile{f: f, path: path}, events, nil
}

// write returns when the batches are on disk.
func (f *logFile) write(batches [][]*event) error {
	if f == nil {
		return nil
	}
	var out []byte
	for _, batch := range batches {
		frame, err := encodeFrame(batch)
		if err != nil {
			return err
		}
		out = append(out, frame...)
	}
	if _, err := f.f.Write(out); err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	return f.f.Sync()
}

// replace makes the file hold exactly these events.
func (f *logFile) replace(events []*event) error {
	if f == nil {
		return nil
	}
	if err := f.f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return f.write([][]*event{events})
}

// close may be called again.
func (f *logFile) close() error {
	if f == nil {
		return nil
	}
	if err := f.f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

func encodeFrame(batch []*event) ([]byte, error) {
	var body bytes.Buffer
	for _, e := range batch {
		if _, err := protodelim.MarshalTo(&body, e.wire); err != nil {
			return nil, fmt.Errorf("encode an event of stream %s: %w", e.stream, err)
		}
	}
	out := binary.BigEndian.AppendUint32(nil, uint32(body.Len()))
	out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(body.Bytes()))
	return append(out, body.Bytes()...), nil
}

// decodeFrames returns the events of the whole frames at the start of data, and their length in bytes.
func decodeFrames(data []byte) (events []*event, whole int) {
	for {
		rest := data[whole:]
		if len(rest) < 8 {
			return events, whole
		}
		n := int(binary.BigEndian.Uint32(rest))
		if n > len(rest)-8 || crc32.ChecksumIEEE(rest[8:8+n]) != binary.BigEndian.Uint32(rest[4:]) {
			return events, whole
		}
		batch, err := decodeBatch(rest[8 : 8+n])
		if err != nil {
			return events, whole
		}
		events = append(events, batch...)
		whole += 8 + n
	}
}

func decodeBatch(body []byte) ([]*event, error) {
	var batch []*event
	for r := bytes.NewReader(body); r.Len() > 0; {
		wire := &streams.ReadResp_ReadEvent_RecordedEvent{}
		if err := (protodelim.UnmarshalOptions{MaxSize: -1}).UnmarshalFrom(r, wire); err != nil {
			return nil, err
		}
		id, err := uuidFrom(wire.GetId())
		if err != nil {
			return nil, err
		}
		ticks, err := strconv.ParseInt(wire.GetMetadata()["created"], 10, 64)
		if err != nil {
			return nil, err
		}
		batch = append(batch, &event{
			wire: wire, id: id, stream: string(wire.GetStreamIdentifier().GetStreamName()),
			typ: wire.Metadata["type"], created: time.Unix(0, ticks*100),
		})
	}
	return batch, nil
}
