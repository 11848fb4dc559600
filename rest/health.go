package rest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/talenttrust/auditledger/projections"
)

// Check says why a part of the service is not as it must be; nil when it is.
type Check func(ctx context.Context) error

// checkTimeout bounds what /readyz waits for.
const checkTimeout = 2 * time.Second

func (s *server) healthz(w http.ResponseWriter, r *http.Request) {
	s.write(w, r, http.StatusOK, map[string]string{"status": "ok"})
}

// progress says how a projection is doing.
type progress struct {
	State    projections.Condition `json:"state"`
	Progress float64               `json:"progress"`
}

// readyz says which part is not ready, and how far the projections are. Why a part is not ready is
// logged, for everybody may ask.
func (s *server) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	answer := struct {
		Status      string              `json:"status"`
		Checks      map[string]string   `json:"checks"`
		Projections map[string]progress `json:"projections"`
	}{"ready", map[string]string{"sources": s.Auth.state()}, map[string]progress{}} // sources that stay as they were do their work
	status := http.StatusOK
	checks := map[string]Check{"projections": func(ctx context.Context) error {
		states, err := s.query.States(ctx)
		for _, st := range states {
			answer.Projections[st.Name] = progress{st.State, st.Progress}
		}
		return errors.Join(err, projectionsReady(states, s.MaxLag))
	}}
	maps.Copy(checks, s.Checks)
	for name, check := range checks {
		answer.Checks[name] = "ok"
		if err := check(ctx); err != nil {
			s.Logger.LogAttrs(ctx, slog.LevelWarn, "not ready", slog.String("check", name), slog.Any("error", err))
			answer.Checks[name], answer.Status, status = "failing", "not_ready", http.StatusServiceUnavailable
		}
	}
	for name, check := range s.Spare {
		answer.Checks[name] = "ok"
		if err := check(ctx); err != nil {
			s.Logger.LogAttrs(ctx, slog.LevelWarn, "done without", slog.String("check", name), slog.Any("error", err))
			answer.Checks[name] = "away"
		}
	}
	s.write(w, r, status, answer)
}

// projectionsReady says which projection has failed or is too far behind.
func projectionsReady(states []projections.State, maxLag int64) error {
	for _, st := range states {
		if st.State == projections.Failed || st.Lag > maxLag {
			return fmt.Errorf("projection %s is %s, %d records behind", st.Name, st.State, st.Lag)
		}
	}
	return nil
}

func (s *server) openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	w.Write(openAPI)
}
