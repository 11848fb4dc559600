package rest

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// Check says why a part of the service is not as it must be; nil when it is.
type Check func(ctx context.Context) error

// checkTimeout bounds what /readyz waits for.
const checkTimeout = 2 * time.Second

func (s *server) healthz(w http.ResponseWriter, r *http.Request) {
	s.write(w, r, http.StatusOK, map[string]string{"status": "ok"})
}

// readyz says which part is not ready. Why it is not is logged, for everybody may ask.
func (s *server) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	answer := struct {
		Status string            `json:"status"`
		Checks map[string]string `json:"checks"`
	}{"ready", map[string]string{}}
	status := http.StatusOK
	for name, check := range s.Checks {
		answer.Checks[name] = "ok"
		if err := check(ctx); err != nil {
			s.Logger.LogAttrs(ctx, slog.LevelWarn, "not ready", slog.String("check", name), slog.Any("error", err))
			answer.Checks[name], answer.Status, status = "failing", "not_ready", http.StatusServiceUnavailable
		}
	}
	s.write(w, r, status, answer)
}

func (s *server) openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	w.Write(openAPI)
}
