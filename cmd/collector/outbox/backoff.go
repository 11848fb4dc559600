package outbox

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// backoff returns how long to wait after failure number n (from 0): full jitter under base
// doubled n times, never over limit.
func backoff(base, limit time.Duration, n int) time.Duration {
	ceiling := limit
	if n < 62 && base<<n>>n == base && base<<n < limit {
		ceiling = base << n
	}
	return rand.N(ceiling + 1)
}

// maxRetryAfter bounds what a server can ask for: an hour.
const maxRetryAfter = time.Hour

// retryAfter reads Retry-After (RFC 9110, section 10.2.3): seconds or a date. It is 0 when there
// is none that makes sense.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	var wait time.Duration
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		wait = at.Sub(now)
	}
	return min(max(wait, 0), maxRetryAfter)
}
