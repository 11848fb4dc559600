// Command collector stands beside a source of events and brings them to the ledger without losing
// one: it keeps each in a durable outbox until the ledger says that it is on disk. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "collector:", err)
		os.Exit(1)
	}
}

// program is what every command needs of the world around it.
type program struct {
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer
}

// run is the whole program: it returns nil for exit status 0 and an error for 1.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var cmd commands
	exited := false
	parser, err := kong.New(&cmd, kong.Name("collector"), kong.Writers(stdout, stderr),
		kong.Description("Keeps events in a durable outbox and delivers them until the ledger has them on disk."),
		kong.DefaultEnvars("COLLECTOR"), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Exit(func(int) { exited = true }))
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if exited {
		return nil // help was asked for and given
	}
	var wrong *kong.ParseError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%w (collector --help says more)", err)
	}
	if err != nil {
		return err
	}
	return parsed.Run(&cmd.Shared, &program{ctx, stdin, stdout, stderr})
}
