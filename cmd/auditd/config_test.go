package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What does not make sense is refused, with the name of the setting.
func TestBadSettings(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, test := range []struct{ env, value, says string }{
		{"MAX_EVENT_AGE_MS", "0", "MAX_EVENT_AGE_MS"},
		{"MAX_EVENT_AGE_MS", "-1", "MAX_EVENT_AGE_MS"},
		{"MAX_EVENT_AGE_MS", "9223372036854775807", "MAX_EVENT_AGE_MS"},
		{"MAX_EVENT_AGE_MS", "1d", "MAX_EVENT_AGE_MS"},
		{"MAX_EVENT_SKEW_MS", "0", "MAX_EVENT_SKEW_MS"},
		{"EVENT_BATCH_SIZE", "0", "EVENT_BATCH_SIZE"},
		{"EVENT_BATCH_SIZE", "1.5", "EVENT_BATCH_SIZE"},
		{"EVENT_BATCH_SIZE", "", "EVENT_BATCH_SIZE"},
		{"MAX_EVENTS_PER_REQUEST", "-5", "MAX_EVENTS_PER_REQUEST"},
		{"MAX_BODY_BYTES", "8MB", "MAX_BODY_BYTES"},
		{"MAX_PAYLOAD_BYTES", "0", "MAX_PAYLOAD_BYTES"},
		{"DISK_RESERVE_BYTES", "0", "DISK_RESERVE_BYTES"},
		{"DISK_RESERVE_BYTES", "-1", "DISK_RESERVE_BYTES"},
		{"IDEMPOTENCY_TTL", "-1h", "IDEMPOTENCY_TTL"},
		{"IDEMPOTENCY_TTL", "24", "IDEMPOTENCY_TTL"},
		{"IDEMPOTENCY_TTL", "1us", "IDEMPOTENCY_TTL"},
		{"ENABLE_STRICT_VALIDATION", "maybe", "ENABLE_STRICT_VALIDATION"},
		{"ENABLE_PAYLOAD_INTEGRITY_CHECK", "2", "ENABLE_PAYLOAD_INTEGRITY_CHECK"},
		{"INSTANCE_ID", "a b", "INSTANCE_ID"},
		{"DATA_DIR", "", "DATA_DIR"},
		{"LEDGER_STORE", "mysql://user:hunter2@host", `the store "mysql", there are disk`},
		{"LEDGER_STORE", "esdb://user:hunter2@host?tls=false", "tls=false do not go together"},
		{"LEDGER_STORE", "esdb://user:hunter2@host?keepAliveInterval=abc", "option keepAliveInterval must be a whole number"},
		{"LEDGER_STORE", "", "LEDGER_STORE"},
		{"REDIS_URL", "http://:hunter2@host", "REDIS_URL"},
		{"LISTEN", "nonsense", "LISTEN"},
		{"LISTEN", ":8080", "SOURCES_FILE"},
		{"LISTEN", "0.0.0.0:8080", "SOURCES_FILE"},
		{"LISTEN", "[::]:8080", "SOURCES_FILE"},
		{"LISTEN", "192.0.2.1:8080", "SOURCES_FILE"},
		{"TLS_CERT_FILE", "cert.pem", "TLS_CERT_FILE and TLS_KEY_FILE"},
		{"TLS_KEY_FILE", "key.pem", "TLS_CERT_FILE and TLS_KEY_FILE"},
		{"TRUSTED_PROXIES", "10.0.0.1", "TRUSTED_PROXIES"},
		{"TRUSTED_PROXIES", "10.0.0.0/8,proxy", "TRUSTED_PROXIES"},
		{"LOG_LEVEL", "loud", "log-level"},
		{"LOG_FORMAT", "xml", "log-format"},
		{"SOURCES_FILE", "nowhere.yaml", "sources file"},
		{"SCHEMA_DIR", "nowhere", "schema folder"},
	} {
		t.Run(test.env+"="+test.value, func(t *testing.T) {
			t.Setenv(test.env, test.value)
			err := run(t.Context(), nil, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want an error with %s", err, test.says)
			}
		})
	}
	if err := run(t.Context(), []string{"--no-such-flag"}, io.Discard, io.Discard); err == nil {
		t.Error("an unknown flag: got no error")
	}
	if _, err := os.Stat("data"); err == nil {
		t.Error("a data folder was made by a program that did not start")
	}
}

func TestSettings(t *testing.T) {
	t.Chdir(t.TempDir())
	c := settings(t)
	if c.Listen != "127.0.0.1:8080" || c.DataDir != "./data" || c.LedgerStore != "disk" || c.IdempotencyTTL != 24*time.Hour ||
		!c.EnableStrictValidation || !c.EnablePayloadIntegrityCheck || c.MaxEventAgeMs != 86400000 || c.MaxEventSkewMs != 300000 ||
		c.EventBatchSize != 100 || c.MaxEventsPerRequest != 1000 || c.MaxBodyBytes != 8388608 || c.MaxPayloadBytes != 262144 || c.DiskReserveBytes != 536870912 {
		t.Errorf("defaults: got %+v", c)
	}
	file := "# settings\nMAX_EVENT_AGE_MS=1000\nEVENT_BATCH_SIZE=7\nMAX_BODY_BYTES=\"500\"\nIDEMPOTENCY_TTL=0\nENABLE_STRICT_VALIDATION=false\nUNRELATED=x\n"
	if err := os.WriteFile(".env", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("EVENT_BATCH_SIZE", "8")
	t.Setenv("MAX_PAYLOAD_BYTES", "9")
	c = settings(t, "--max-payload-bytes=10", "--no-enable-payload-integrity-check")
	if c.MaxEventAgeMs != 1000 || c.EventBatchSize != 8 || c.MaxBodyBytes != 500 || c.MaxPayloadBytes != 10 || c.IdempotencyTTL != 0 || c.EnableStrictValidation || c.EnablePayloadIntegrityCheck {
		t.Errorf("flag over environment over file: got %+v", c)
	}
	if _, set := os.LookupEnv("MAX_EVENT_AGE_MS"); set {
		t.Error("the file has changed the environment")
	}
	for name, text := range map[string]string{"a bad value": "MAX_EVENT_AGE_MS=soon\n", "a bad line": "SECRET hunter2 \"\n"} {
		if err := os.WriteFile(".env", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := parseConfig(nil, io.Discard)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s in the file: got %v", name, err)
		}
	}
}

func settings(t *testing.T, args ...string) *config {
	t.Helper()
	c, err := parseConfig(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestHelp(t *testing.T) {
	t.Chdir(t.TempDir())
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, env := range []string{
		"ENABLE_STRICT_VALIDATION", "ENABLE_PAYLOAD_INTEGRITY_CHECK", "MAX_EVENT_AGE_MS", "MAX_EVENT_SKEW_MS", "EVENT_BATCH_SIZE", "MAX_EVENTS_PER_REQUEST",
		"MAX_BODY_BYTES", "MAX_PAYLOAD_BYTES", "IDEMPOTENCY_TTL", "LEDGER_STORE", "DATA_DIR", "INSTANCE_ID", "DISK_RESERVE_BYTES", "REDIS_URL", "SCHEMA_DIR",
		"SOURCES_FILE", "LISTEN", "LOG_LEVEL", "LOG_FORMAT",
	} {
		if !strings.Contains(out.String(), "$"+env) {
			t.Errorf("help does not name %s", env)
		}
	}
}

func TestInstance(t *testing.T) {
	dir := t.TempDir()
	c := &config{DataDir: dir}
	first, err := c.instance()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.instance(); err != nil || again != first {
		t.Errorf("got %s, %v, want %s again", again, err, first)
	}
	c.InstanceID = "named"
	if got, err := c.instance(); err != nil || got != "named" {
		t.Errorf("got %s, %v, want named", got, err)
	}
	c.InstanceID = ""
	if err := os.WriteFile(filepath.Join(dir, "instance"), []byte("a b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.instance(); err == nil {
		t.Error("a bad name: got no error")
	}
}
