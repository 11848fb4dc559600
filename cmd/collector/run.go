package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/talenttrust/auditledger/cmd/collector/outbox"
	"golang.org/x/sync/errgroup"
)

// runCommand takes events until it is stopped.
type runCommand struct {
	Delivery
	Limits

	Stdin  bool     `help:"Read JSON lines from standard input. When it is the only source and ends, everything is delivered and the program exits."`
	Follow []string `help:"File to follow, or a pattern such as 'logs/*.ndjson'. May be given several times." type:"path" placeholder:"FILE" sep:"none"`
	Listen string   `help:"Local endpoint that takes POST /events: 127.0.0.1:PORT or unix:PATH." placeholder:"ADDR"`

	Metrics      string        `help:"Address for GET /metrics and /healthz." placeholder:"ADDR"`
	AlertWebhook string        `help:"Where alerts are posted as JSON, besides the log and the metrics." placeholder:"URL"`
	AlertBacklog int           `help:"Pending events above which to alert." default:"100000"`
	AlertAge     time.Duration `help:"Age of the oldest pending event above which to alert." default:"1h"`
	AlertFree    int64         `help:"Free bytes on the disk below which to alert." default:"536870912"`
	Heartbeat    time.Duration `help:"How often the state goes to the log." default:"1m"`
	StopTimeout  time.Duration `help:"Time after a signal in which everything must have stopped; else exit status 1." default:"30s"`
}

func (c *runCommand) Run(shared *Shared, p *program) error {
	ctx, stop := signal.NotifyContext(p.ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	svc, err := c.assemble(ctx, shared, p)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- errors.Join(svc.run(ctx), svc.box.Close()) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	svc.log.Info("stopping")
	select {
	case err := <-done:
		return err
	case <-time.After(c.StopTimeout):
		return fmt.Errorf("it did not stop within %v; what is not delivered is safe in %s", c.StopTimeout, shared.DB)
	}
}

func (c *runCommand) check() error {
	if c.AlertBacklog < 1 || c.AlertAge <= 0 || c.AlertFree < 0 || c.Heartbeat <= 0 || c.StopTimeout <= 0 {
		return errors.New("--alert-backlog, --alert-age, --heartbeat and --stop-timeout must be more than 0")
	}
	return errors.Join(c.Delivery.check(), c.Limits.check())
}

// service is a collector that is ready to run.
type service struct {
	box     *outbox.Outbox
	sender  *outbox.Sender
	log     *slog.Logger
	loops   []func(context.Context) error // run until ctx ends
	sources []func(context.Context) error // may end by themselves
	finite  bool                          // they all do
}

// assemble checks every setting and opens everything, so that what is wrong shows before the
// first event is taken.
func (c *runCommand) assemble(ctx context.Context, shared *Shared, p *program) (_ *service, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	log := shared.logger(p.stderr)
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	notify, err := newNotifier(c.AlertWebhook, log)
	if err != nil {
		return nil, err
	}
	rules, err := c.rules()
	if err != nil {
		return nil, err
	}
	if _, err := c.auth(); err != nil {
		return nil, err
	}
	box, err := outbox.Open(ctx, c.Limits.config(shared.DB))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, box.Close())
		}
	}()
	alerts := outbox.NewAlerts(log, notify.send)
	svc := &service{box: box, log: log, finite: c.Stdin && len(c.Follow) == 0 && c.Listen == ""}
	if svc.sender, err = c.sender(box, alerts, log, reg, nil); err != nil {
		return nil, err
	}
	monitor, err := outbox.NewMonitor(box, outbox.MonitorConfig{Heartbeat: c.Heartbeat, Backlog: c.AlertBacklog, Age: c.AlertAge, Free: c.AlertFree,
		Alerts: alerts, Log: log, Metrics: reg})
	if err != nil {
		return nil, err
	}
	in, err := newIntake(box, rules, alerts, log, reg)
	if err != nil {
		return nil, err
	}
	svc.loops = append(svc.loops, svc.sender.Run, monitor.Run, notify.Run)
	return svc, c.open(svc, in, reg, p)
}

// open opens the sources and the metrics endpoint.
func (c *runCommand) open(svc *service, in *intake, reg *prometheus.Registry, p *program) error {
	if c.Stdin {
		svc.sources = append(svc.sources, func(ctx context.Context) error { return in.stream(ctx, p.stdin, "stdin") })
	}
	if len(c.Follow) > 0 {
		for _, pattern := range c.Follow {
			if _, err := filepath.Match(pattern, ""); err != nil {
				return fmt.Errorf("--follow: %q is not a pattern", pattern)
			}
		}
		f := &follower{patterns: c.Follow, in: in, poll: followPoll, retire: retire}
		svc.sources = append(svc.sources, f.Run)
	}
	if c.Listen != "" {
		l, err := listenLocal(c.Listen)
		if err != nil {
			return err
		}
		svc.log.Info("taking events", "address", l.Addr().String(), "path", "/events")
		svc.sources = append(svc.sources, func(ctx context.Context) error { return serveHTTP(ctx, l, newEndpoint(in), svc.log) })
	}
	if c.Metrics != "" {
		l, err := net.Listen("tcp", c.Metrics)
		if err != nil {
			return fmt.Errorf("--metrics: %w", err)
		}
		svc.log.Info("serving metrics", "address", l.Addr().String())
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
		mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
		svc.loops = append(svc.loops, func(ctx context.Context) error { return serveHTTP(ctx, l, mux, svc.log) })
	}
	if len(svc.sources) == 0 {
		svc.log.Warn("no source is given (--stdin, --follow, --listen): only what is pending is delivered")
	}
	return nil
}

// run runs everything until ctx ends, something fails, or, when all sources are finite, everything
// is delivered.
func (s *service) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for _, loop := range s.loops {
		g.Go(func() error { return loop(ctx) })
	}
	g.Go(func() error {
		sources, sctx := errgroup.WithContext(ctx)
		for _, source := range s.sources {
			sources.Go(func() error { return source(sctx) })
		}
		if err := sources.Wait(); err != nil {
			return err
		}
		if s.finite {
			waitDelivered(ctx, s.box)
			cancel()
		}
		return nil
	})
	return g.Wait()
}

// waitDelivered returns when nothing is pending but what is parked, or when ctx ends.
func waitDelivered(ctx context.Context, box *outbox.Outbox) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if s, err := box.Stats(ctx); err == nil && s.Pending == s.Parked {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
