// Command auditd is the audit ledger as a service: it takes events in over HTTP, keeps them in a
// ledger, and answers what became of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

// stopLimit is how long a stop may take before the program gives up on an orderly one.
const stopLimit = 20 * time.Second

// gcPercent lets the heap grow to five times what is alive before it is collected. What is alive is
// bounded and small, what requests leave behind is much: a collection less often saves a fifth of the CPU.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(exitCode(run(ctx, os.Args[1:], os.Stdout, os.Stderr), os.Stderr))
}

// run serves until ctx ends and everything is stored and closed. It says on stdout where it listens,
// and logs to stderr. An error means that the service could not start, had to stop, or did not stop
// in time.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parseConfig(args, stdout)
	if err != nil || c == nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, stop, c, stdout, c.logger(stderr)) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(stopLimit):
		return fmt.Errorf("did not stop within %s", stopLimit)
	}
}

// exitCode reports err to w and returns the exit status for it.
func exitCode(err error, w io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(w, "auditd:", err)
	return 1
}

// loop runs f in the background. stop ends it and waits for it. When f ends before that, failed is
// called, and the service stops.
func loop(f func(context.Context) error, failed func(error)) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		err := f(ctx)
		if ctx.Err() == nil {
			failed(errors.Join(errors.New("a part of the service ended by itself"), err))
		}
		ended <- err
	}()
	return func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}
