package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/joho/godotenv"

	"github.com/talenttrust/auditledger/ledger"
	"github.com/talenttrust/auditledger/ledger/eventstore"
	"github.com/talenttrust/auditledger/ledger/redis"
)

// config is every setting. A flag wins over the environment, the environment over a .env file in the
// working folder, and that over the default.
type config struct {
	Listen  string `env:"LISTEN" default:"127.0.0.1:8080" help:"Address and port; port 0 takes a free one. Anything but loopback needs a sources file."`
	DataDir string `env:"DATA_DIR" default:"./data" help:"Folder of everything that is stored here."`

	LedgerStore      string `env:"LEDGER_STORE" default:"disk" help:"Where the ledger is kept: disk, which is the data folder, or the esdb:// or kurrentdb:// connection string of a server."`
	DiskReserveBytes uint64 `env:"DISK_RESERVE_BYTES" default:"536870912" help:"Free space to leave; below it events are refused until there is room."`
	InstanceID       string `env:"INSTANCE_ID" help:"Names this instance's streams. When empty, one is made and kept in the data folder."`
	RedisURL         string `env:"REDIS_URL" help:"Redis with the shared idempotency window, redis:// or rediss://, for a cluster redis+cluster:// or rediss+cluster://; empty for none."`

	SourcesFile    string        `env:"SOURCES_FILE" help:"YAML file of the sources, their keys and rights. Without it everybody on this machine may do all."`
	IdempotencyTTL time.Duration `env:"IDEMPOTENCY_TTL" name:"idempotency-ttl" default:"24h" help:"How long a key is bound to its payload, for sources that do not say; 0 is for ever."`

	TLSCertFile    string   `env:"TLS_CERT_FILE" name:"tls-cert-file" help:"PEM file of the certificate chain, read again at SIGHUP; with TLS_KEY_FILE. Without both, HTTP."`
	TLSKeyFile     string   `env:"TLS_KEY_FILE" name:"tls-key-file" help:"PEM file of the certificate's key."`
	TrustedProxies []string `env:"TRUSTED_PROXIES" help:"Prefixes such as 10.0.0.0/8 of proxies whose X-Forwarded-For is believed; none when empty."`

	EnableStrictValidation      bool   `env:"ENABLE_STRICT_VALIDATION" default:"true" negatable:"" help:"Check payload schemas and refuse unknown members."`
	EnablePayloadIntegrityCheck bool   `env:"ENABLE_PAYLOAD_INTEGRITY_CHECK" default:"true" negatable:"" help:"Give conflicts the code IDEMPOTENCY_PAYLOAD_CONFLICT; otherwise conflict."`
	SchemaDir                   string `env:"SCHEMA_DIR" help:"Folder of further payload schemas, one JSON Schema file per contract type."`
	MaxEventAgeMs               int64  `env:"MAX_EVENT_AGE_MS" default:"86400000" help:"Oldest event that is accepted, in milliseconds."`
	MaxEventSkewMs              int64  `env:"MAX_EVENT_SKEW_MS" default:"300000" help:"How far ahead of our clock an event may be, in milliseconds."`
	MaxPayloadBytes             int    `env:"MAX_PAYLOAD_BYTES" default:"262144" help:"Largest payload, as received and in canonical form."`
	MaxBodyBytes                int64  `env:"MAX_BODY_BYTES" default:"8388608" help:"Largest body of a request, as sent and decompressed."`
	MaxEventsPerRequest         int    `env:"MAX_EVENTS_PER_REQUEST" default:"1000" help:"Most events in one request."`
	EventBatchSize              int    `env:"EVENT_BATCH_SIZE" default:"100" help:"Events that are appended at once."`

	GraphQLIntrospection bool   `env:"GRAPHQL_INTROSPECTION" name:"graphql-introspection" default:"true" negatable:"" help:"Answer queries about the GraphQL schema."`
	GraphQLQueries       string `env:"GRAPHQL_QUERIES" name:"graphql-queries" help:"Folder of *.graphql files that clients may name by their SHA-256."`
	GraphQLQueriesOnly   bool   `env:"GRAPHQL_QUERIES_ONLY" name:"graphql-queries-only" help:"Allow no other queries than those."`

	LogLevel  string `env:"LOG_LEVEL" default:"info" enum:"debug,info,warn,error" help:"debug, info, warn or error."`
	LogFormat string `env:"LOG_FORMAT" default:"text" enum:"text,json" help:"text or json."`
}

// parseConfig reads the settings. It returns nil when only help was asked for.
func parseConfig(args []string, stdout io.Writer) (*config, error) {
	c, helped := new(config), false
	file, used, err := dotEnv(".env")
	if err != nil {
		return nil, err
	}
	parser, err := kong.New(c, kong.Name("auditd"), kong.Description("The audit ledger as a service."),
		kong.Writers(stdout, io.Discard), kong.Exit(func(int) { helped = true }), kong.Resolvers(file))
	if err != nil {
		return nil, err
	}
	if _, err = parser.Parse(args); helped {
		return nil, nil
	}
	if err != nil && len(*used) > 0 {
		err = fmt.Errorf("%w (.env sets %s)", err, strings.Join(*used, ", "))
	}
	return c, err
}

// dotEnv reads settings from a file of KEY=value lines, if there is one. The environment itself is
// not changed, and wins. used are the names of the settings that are taken from the file.
func dotEnv(name string) (resolver kong.Resolver, used *[]string, err error) {
	values, err := godotenv.Read(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s: is not a file of KEY=value lines", name) // the cause would quote it, secrets and all
	}
	used = new([]string)
	return kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		for _, env := range flag.Envs {
			if _, set := os.LookupEnv(env); set {
				return nil, nil
			}
			if v, ok := values[env]; ok {
				if !slices.Contains(*used, env) {
					*used = append(*used, env)
				}
				return v, nil
			}
		}
		return nil, nil
	}), used, nil
}

// Validate is called by the parser. It names the setting and the rule.
func (c *config) Validate() error {
	const most = 1_000_000_000_000 // a terabyte, or 31 years
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"MAX_EVENT_AGE_MS", c.MaxEventAgeMs}, {"MAX_EVENT_SKEW_MS", c.MaxEventSkewMs}, {"MAX_PAYLOAD_BYTES", int64(c.MaxPayloadBytes)},
		{"MAX_BODY_BYTES", c.MaxBodyBytes}, {"MAX_EVENTS_PER_REQUEST", int64(c.MaxEventsPerRequest)}, {"EVENT_BATCH_SIZE", int64(c.EventBatchSize)},
	} {
		if n.value < 1 || n.value > most {
			return fmt.Errorf("%s must be from 1 to %d, is %d", n.name, int64(most), n.value)
		}
	}
	if c.DiskReserveBytes == 0 {
		return errors.New("DISK_RESERVE_BYTES must be at least 1")
	}
	if c.IdempotencyTTL < 0 || c.IdempotencyTTL != c.IdempotencyTTL.Truncate(time.Millisecond) {
		return fmt.Errorf("IDEMPOTENCY_TTL must be a duration in whole milliseconds such as 24h, not negative, or 0 for ever, is %s", c.IdempotencyTTL)
	}
	if c.InstanceID != "" && !ledger.ValidID(c.InstanceID, 64) {
		return errors.New("INSTANCE_ID must be 1 to 64 characters of A-Z a-z 0-9 _ - . @")
	}
	if c.DataDir == "" {
		return errors.New("DATA_DIR must name a folder")
	}
	if int64(c.MaxPayloadBytes) > c.MaxBodyBytes {
		return fmt.Errorf("MAX_PAYLOAD_BYTES is %d, more than a whole body may have: MAX_BODY_BYTES is %d", c.MaxPayloadBytes, c.MaxBodyBytes)
	}
	if c.DiskReserveBytes > most {
		return fmt.Errorf("DISK_RESERVE_BYTES must be at most %d", int64(most))
	}
	if c.GraphQLQueriesOnly && c.GraphQLQueries == "" {
		return errors.New("GRAPHQL_QUERIES_ONLY allows nothing without GRAPHQL_QUERIES")
	}
	return c.validateParts()
}

// validateParts refuses what this build does not have, and to be open to others without authentication.
func (c *config) validateParts() error {
	if err := c.validateStore(); err != nil {
		return err
	}
	if c.RedisURL != "" {
		if err := redis.CheckURL(c.RedisURL); err != nil {
			return fmt.Errorf("REDIS_URL %w", err)
		}
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		return errors.New("TLS_CERT_FILE and TLS_KEY_FILE belong together, and only one is set")
	}
	for _, prefix := range c.TrustedProxies {
		if _, err := netip.ParsePrefix(prefix); err != nil {
			return fmt.Errorf("TRUSTED_PROXIES must be prefixes such as 10.0.0.0/8, is %q", prefix)
		}
	}
	addr, err := net.ResolveTCPAddr("tcp", c.Listen)
	if c.Listen == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return fmt.Errorf("LISTEN must be an address and a port such as 127.0.0.1:8080: %w", err)
	}
	if c.SourcesFile == "" && !addr.IP.IsLoopback() {
		return fmt.Errorf("LISTEN is %s, which others can reach: that needs SOURCES_FILE, so that they must authenticate", c.Listen)
	}
	return nil
}

// validateStore says what is wrong with LEDGER_STORE. It is never quoted, for it may hold a password.
func (c *config) validateStore() error {
	switch {
	case c.LedgerStore == "disk":
		return nil
	case !eventstore.IsURL(c.LedgerStore):
		scheme, _, _ := strings.Cut(c.LedgerStore, ":")
		if len(scheme) > 20 {
			scheme = scheme[:20] + "…"
		}
		return fmt.Errorf("LEDGER_STORE names the store %q, there are disk, esdb://… and kurrentdb://…", scheme)
	case c.MaxPayloadBytes > eventstore.MaxPayload:
		return fmt.Errorf("MAX_PAYLOAD_BYTES is %d, the server that LEDGER_STORE names takes at most %d", c.MaxPayloadBytes, eventstore.MaxPayload)
	}
	if _, err := eventstore.Nodes(c.LedgerStore); err != nil {
		return fmt.Errorf("LEDGER_STORE: %w", err)
	}
	return nil
}

func (c *config) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // it is one of those that the parser takes
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: ledger.Redact}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
