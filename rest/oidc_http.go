package rest

import (
	"bufio"
	"bytes"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"
)

// issuerPause is how long an answer of the issuer serves for the same question. A key that it starts to sign with is known
// after this time at the latest.
const issuerPause = 10 * time.Second

// onceInAWhile asks the issuer each question at most once in issuerPause and gives the last answer, or failure, in between:
// anyone can send tokens that name a key nobody knows, and each would be a reason to ask for the keys again.
type onceInAWhile struct {
	now func() time.Time

	mu      sync.Mutex // guards answers, and is held while the issuer is asked
	answers map[string]issuerAnswer
}

type issuerAnswer struct {
	at   time.Time
	dump []byte // the response, when there was one
	err  error
	good bool
}

// RoundTrip implements [http.RoundTripper] for requests without a body.
func (o *onceInAWhile) RoundTrip(r *http.Request) (*http.Response, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	question := r.URL.String()
	a, asked := o.answers[question]
	if !asked || o.now().Sub(a.at).Abs() >= issuerPause {
		a = ask(r)
		a.at = o.now()
		o.answers[question] = a
	}
	if a.err != nil {
		return nil, a.err
	}
	return http.ReadResponse(bufio.NewReader(bytes.NewReader(a.dump)), r)
}

func ask(r *http.Request) (a issuerAnswer) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		a.err = err
		return a
	}
	defer resp.Body.Close()
	a.dump, a.err = httputil.DumpResponse(resp, true)
	a.good = a.err == nil && resp.StatusCode == http.StatusOK
	return a
}

// away reports whether one of the last answers was none, or none of use.
func (o *onceInAWhile) away() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range o.answers {
		if !a.good {
			return true
		}
	}
	return false
}
