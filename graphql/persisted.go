package graphql

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// Persisted are queries that clients name by their SHA-256 instead of sending them, in the form that
// clients use widely: extensions.persistedQuery {version: 1, sha256Hash}.
type Persisted map[string]string

// LoadPersisted reads the *.graphql files of a folder. A query's name is the SHA-256 of the file.
func LoadPersisted(dir string) (Persisted, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.graphql"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("persisted queries: %s holds no *.graphql file", dir)
	}
	p := Persisted{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("persisted queries: %w", err)
		}
		p[hashOf(string(b))] = string(b)
	}
	return p, nil
}

func hashOf(query string) string {
	sum := sha256.Sum256([]byte(query))
	return hex.EncodeToString(sum[:])
}

// persisted puts the query that the request names into it, and refuses others where only those in
// the list are allowed.
func (h *Handler) persisted(r *request) error {
	if named, ok := r.Extensions["persistedQuery"].(map[string]any); ok {
		hash, _ := named["sha256Hash"].(string)
		query, known := h.c.Persisted[hash]
		switch {
		case r.Query != "" && hashOf(r.Query) != hash:
			return bad("BAD_REQUEST", "the query does not have the sha256Hash that comes with it")
		case r.Query == "" && !known:
			return refused("PERSISTED_QUERY_NOT_FOUND", "PersistedQueryNotFound")
		case known:
			r.Query = query
		}
	}
	if r.Query == "" {
		return bad("BAD_REQUEST", "query is missing")
	}
	if _, known := h.c.Persisted[hashOf(r.Query)]; h.c.PersistedOnly && !known {
		return refused("QUERY_NOT_ALLOWED", "only the queries in the service's list are allowed")
	}
	return nil
}
