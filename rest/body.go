package rest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	firstBody  = 16 << 10 // the buffer that a body starts with
	keptBody   = 1 << 20  // the largest buffer that is kept for another request
	zstdWindow = 8 << 20  // what RFC 8878 section 3.1.1.1.2 asks of every decoder, and no more
)

// body is what has come of a request's body. It grows with what comes, never with what is announced,
// and what it holds beyond a kept buffer is taken from the memory that all bodies share.
type body struct {
	s    *server
	b    []byte
	held int64
}

func (s *server) newBody() *body { return &body{s: s, b: (*s.bodies.Get().(*[]byte))[:0]} }

// fill reads to the end of r. It stops where there is more than max bytes.
func (y *body) fill(r io.Reader, max int64) error {
	for {
		if len(y.b) == cap(y.b) {
			if err := y.grow(); err != nil {
				return err
			}
		}
		n, err := r.Read(y.b[len(y.b):cap(y.b)])
		y.b = y.b[:len(y.b)+n]
		switch {
		case int64(len(y.b)) > max:
			return y.s.tooLarge()
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

func (y *body) grow() error {
	size := 2 * cap(y.b)
	if size > keptBody {
		more := int64(size) - y.held
		if !y.s.memory.TryAcquire(more) {
			return retry("busy", "too much is being received; send the request again", nil)
		}
		y.held += more
	}
	y.b = append(make([]byte, 0, size), y.b...)
	return nil
}

// release gives back what the body held, and keeps the buffer for another one unless it has grown
// out of the usual.
func (y *body) release() {
	y.s.memory.Release(y.held)
	if cap(y.b) <= keptBody {
		y.s.bodies.Put(&y.b)
	}
}

// readBody reads the request's JSON body into buf: decompressed, not longer than MaxBody in either
// form, and in time (timeBody).
func (s *server) readBody(c *call, buf *body) error {
	if err := checkContentType(c.Header); err != nil {
		return err
	}
	if c.ContentLength > s.MaxBody {
		return s.tooLarge()
	}
	received := http.MaxBytesReader(c.w, c.Body, s.MaxBody)
	plain, done, err := s.decoder(c.Header.Get("Content-Encoding"), received)
	if err != nil {
		return s.bodyProblem(err)
	}
	defer done()
	if err := buf.fill(plain, s.MaxBody); err != nil {
		return s.bodyProblem(err)
	}
	return nil
}

// readSigned reads the body as it was sent into sent, finds out who signed it, and leaves it to be
// read again. The signature is over these bytes: a compressed body is signed compressed.
func (s *server) readSigned(c *call, sent *body) error {
	if c.ContentLength > s.MaxBody {
		return s.tooLarge()
	}
	if err := sent.fill(http.MaxBytesReader(c.w, c.Body, s.MaxBody), s.MaxBody); err != nil {
		return s.bodyProblem(err)
	}
	who, err := s.Auth.verify(c.Header, sent.b)
	if err != nil {
		s.whyRefused(c, err)
		return err
	}
	c.Body = io.NopCloser(bytes.NewReader(sent.b))
	return s.admit(c.exchange, who, RoleCollector)
}

// timeBody gives a request's body its time, and none to what comes after it: a connection on which
// nothing more is to be read is only watched for its end, however long an answer takes. The deadline
// stays where the body was not read, for the server reads on before it answers.
func (s *server) timeBody(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// Where a deadline cannot be set, as in a test without a connection, there is nothing to wait for.
	if r.ContentLength == 0 {
		control.SetReadDeadline(time.Time{})
		return
	}
	control.SetReadDeadline(time.Now().Add(s.BodyTimeout))
	r.Body = &timedBody{r.Body, control}
}

type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (n int, err error) {
	if n, err = b.ReadCloser.Read(p); err == io.EOF {
		b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (s *server) tooLarge() *Problem {
	return problem("body_too_large", fmt.Sprintf("the body has more than %d bytes, as sent or decompressed", s.MaxBody))
}

// bodyProblem says why a body could not be read.
func (s *server) bodyProblem(err error) error {
	var tooLarge *http.MaxBytesError
	var known *Problem
	switch {
	case errors.As(err, &known):
		return err
	case errors.As(err, &tooLarge), errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return s.tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return problem("request_timeout", fmt.Sprintf("the body did not arrive within %s", s.BodyTimeout))
	}
	return problem("invalid_request", "the body cannot be read to its end or decompressed")
}

// checkContentType wants JSON in UTF-8, the only one there is (RFC 8259 section 8.1).
func checkContentType(h http.Header) error {
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	charset := params["charset"]
	if err != nil || kind != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return problem("unsupported_media_type", "the content type must be application/json")
	}
	return nil
}

// decoder undoes a Content-Encoding. done gives the decoder back.
func (s *server) decoder(encoding string, r io.Reader) (plain io.Reader, done func(), err error) {
	switch strings.ToLower(encoding) {
	case "", "identity":
		return r, func() {}, nil
	case "gzip", "x-gzip":
		z := s.gzips.Get().(*gzip.Reader)
		return z, func() { s.gzips.Put(z) }, z.Reset(r)
	case "zstd":
		z := s.zstds.Get().(*zstd.Decoder)
		return z, func() { z.Reset(nil); s.zstds.Put(z) }, z.Reset(r)
	}
	return nil, nil, problem("unsupported_media_type", "the content encoding must be gzip, zstd or none")
}

// decoders are what bodies are read with, used again and again.
type decoders struct {
	bodies sync.Pool // of *[]byte
	gzips  sync.Pool // of *gzip.Reader
	zstds  sync.Pool // of *zstd.Decoder
}

func newDecoders() *decoders {
	d := new(decoders)
	d.bodies.New = func() any { b := make([]byte, 0, firstBody); return &b }
	d.gzips.New = func() any { return new(gzip.Reader) }
	d.zstds.New = func() any {
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			panic(err) // the options are constants
		}
		return z
	}
	return d
}
