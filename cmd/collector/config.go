package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/talenttrust/auditledger/cmd/collector/outbox"
	"github.com/talenttrust/auditledger/rest"
)

// commands is the command line. Every flag can be set in the environment as COLLECTOR_<FLAG>.
type commands struct {
	Shared

	Run    runCommand    `cmd:"" help:"Take events from the sources and deliver them until stopped."`
	Send   sendCommand   `cmd:"" help:"Deliver the events of files and exit."`
	Status statusCommand `cmd:"" help:"Show what the outbox holds."`
	Dead   struct {
		List    deadListCommand    `cmd:"" help:"List dead letters."`
		Show    deadShowCommand    `cmd:"" help:"Show one dead letter with its payload."`
		Requeue deadRequeueCommand `cmd:"" help:"Make dead letters pending again."`
		Export  deadExportCommand  `cmd:"" help:"Write dead letters as JSON lines."`
	} `cmd:"" help:"Look after what the ledger will not take."`
	Outbox struct {
		Export outboxExportCommand `cmd:"" help:"Write the pending events as JSON lines that send takes."`
	} `cmd:"" help:"Look into the outbox."`
}

// Shared are the flags of every command.
type Shared struct {
	DB        string `name:"db" help:"The outbox file; outbox.db in the working folder when left out." default:"outbox.db" type:"path" placeholder:"FILE"`
	LogLevel  string `help:"Least level that is logged." enum:"debug,info,warn,error" default:"info"`
	LogFormat string `help:"Form of the log." enum:"text,json" default:"text"`
}

func (s *Shared) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	level.UnmarshalText([]byte(s.LogLevel)) // the enum allows only what it knows
	options := &slog.HandlerOptions{Level: level}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// Limits bound the outbox.
type Limits struct {
	Reserve       int64 `help:"Free bytes on the disk below which new events are refused." default:"268435456"`
	MaxDBBytes    int64 `help:"Bytes the outbox may hold; 0 is no limit." name:"max-db-bytes" default:"0"`
	MaxEventBytes int   `help:"A larger event becomes a dead letter." default:"8388608"`
}

func (l Limits) check() error {
	for name, v := range map[string]int64{"reserve": l.Reserve, "max-db-bytes": l.MaxDBBytes, "max-event-bytes": int64(l.MaxEventBytes)} {
		if v < 0 || v == 0 && name == "max-event-bytes" {
			return fmt.Errorf("--%s: %d makes no sense", name, v)
		}
	}
	return nil
}

func (l Limits) config(path string) outbox.Config {
	if l.Reserve == 0 {
		l.Reserve = -1 // none; for the outbox 0 is its default
	}
	return outbox.Config{Path: path, Reserve: l.Reserve, MaxBytes: l.MaxDBBytes, MaxEventBytes: l.MaxEventBytes}
}

// Delivery says where events go and what they are made of.
type Delivery struct {
	URL        string `name:"url" help:"The ledger, such as https://ledger.example:8080." placeholder:"URL"`
	Auth       string `help:"How to authenticate: bearer, webhook (Standard Webhooks), legacy (HMAC in X-Signature) or none. Left out, it follows from the secret." enum:",bearer,webhook,legacy,none" default:""`
	Secret     string `help:"Token or secret. Better in the environment or a file than on the command line." placeholder:"SECRET"`
	SecretFile string `help:"File that holds the token or secret." type:"existingfile" placeholder:"FILE"`
	KeyID      string `name:"key-id" help:"Which key of the source signs; goes into X-Key-Id." placeholder:"ID"`

	Rules        string `help:"Rules for event ids and filters; the built-in ones are for chat messages." type:"existingfile" placeholder:"FILE"`
	ContractType string `help:"Contract type of events that name none." placeholder:"TYPE"`

	Connections int           `help:"Requests under way at once; a contract always uses the same one." default:"4"`
	BatchEvents int           `help:"Events in one request at most." default:"500"`
	BatchBytes  int           `help:"Bytes of one request at most." default:"4194304"`
	Linger      time.Duration `help:"How long a batch that is not full waits for more." default:"20ms"`
	Timeout     time.Duration `help:"Time for one request and its answer." default:"30s"`
	BackoffBase time.Duration `help:"Longest first wait after a failure; doubles with each." default:"1s"`
	BackoffMax  time.Duration `help:"Longest wait of all." default:"5m"`
	ParkedRetry time.Duration `help:"How often events that the ledger does not allow are tried." default:"5m"`
	StopGrace   time.Duration `help:"How long a request under way may finish after a signal." default:"5s"`
}

func (d *Delivery) check() error {
	for name, v := range map[string]int64{"connections": int64(d.Connections), "batch-events": int64(d.BatchEvents), "batch-bytes": int64(d.BatchBytes),
		"linger": int64(d.Linger), "timeout": int64(d.Timeout), "backoff-base": int64(d.BackoffBase), "backoff-max": int64(d.BackoffMax),
		"parked-retry": int64(d.ParkedRetry), "stop-grace": int64(d.StopGrace)} {
		if v <= 0 {
			return fmt.Errorf("--%s: must be more than 0", name)
		}
	}
	if d.URL == "" {
		return errors.New("--url (COLLECTOR_URL) is missing: where is the ledger?")
	}
	return nil
}

// auth reads the secret. There is no default without one: sending unauthenticated must be asked for.
func (d *Delivery) auth() (outbox.Auth, error) {
	secret := d.Secret
	if d.SecretFile != "" {
		if secret != "" {
			return nil, errors.New("--secret and --secret-file: give one of them")
		}
		text, err := os.ReadFile(d.SecretFile)
		if err != nil {
			return nil, fmt.Errorf("--secret-file: %w", err)
		}
		secret = strings.TrimSpace(string(text))
	}
	scheme := d.Auth
	if scheme == "none" {
		if secret != "" {
			return nil, errors.New("--auth none: there is a secret all the same")
		}
		return outbox.NoAuth, nil
	}
	if secret == "" {
		return nil, errors.New("--secret (COLLECTOR_SECRET) or --secret-file is missing; --auth none sends without")
	}
	if scheme == "" {
		scheme = "bearer"
		if strings.HasPrefix(secret, "whsec_") {
			scheme = "webhook"
		}
	}
	return d.authAs(scheme, secret)
}

func (d *Delivery) authAs(scheme, secret string) (outbox.Auth, error) {
	switch scheme {
	case "webhook":
		key, err := rest.ParseSecret(secret)
		if err != nil {
			return nil, err
		}
		return outbox.Webhook(d.KeyID, key), nil
	case "legacy":
		key, err := rest.RawSecret(secret)
		if err != nil {
			return nil, err
		}
		return outbox.Legacy(d.KeyID, key), nil
	}
	if strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("secret: a bearer token is printable ASCII without spaces")
	}
	return outbox.Bearer(secret), nil
}

func (d *Delivery) rules() (*outbox.Rules, error) {
	rules, err := outbox.ChatRules()
	if d.Rules != "" {
		text, readErr := os.ReadFile(d.Rules)
		if readErr != nil {
			return nil, fmt.Errorf("--rules: %w", readErr)
		}
		rules, err = outbox.ParseRules(text)
	}
	if err != nil {
		return nil, fmt.Errorf("--rules %s: %w", d.Rules, err)
	}
	rules.ContractType = d.ContractType
	return rules, nil
}

// sender checks everything about delivery, so that a wrong setting stops the program before it
// takes an event.
func (d *Delivery) sender(box *outbox.Outbox, alerts *outbox.Alerts, log *slog.Logger, metrics prometheus.Registerer, settled func([]outbox.Settlement)) (*outbox.Sender, error) {
	auth, err := d.auth()
	if err != nil {
		return nil, err
	}
	return outbox.NewSender(box, outbox.SenderConfig{
		URL: d.URL, Auth: auth, Connections: d.Connections, BatchEvents: d.BatchEvents, BatchBytes: d.BatchBytes, Linger: d.Linger,
		AttemptTimeout: d.Timeout, BackoffBase: d.BackoffBase, BackoffMax: d.BackoffMax, ParkedRetry: d.ParkedRetry, StopGrace: d.StopGrace,
		Alerts: alerts, Log: log, Metrics: metrics, Settled: settled,
	})
}
