// Command auditctl is the tool of operators and auditors of the audit ledger.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(exitCode(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr), os.Stderr))
}

// commands are what auditctl can do. A command is a struct of flags with a method
// Run(context.Context, *streams) error; kong calls the one that was asked for.
type commands struct {
	Ready   readyCmd   `cmd:"" help:"Say whether a running service is ready, part by part; fail when it is not."`
	Sample  sampleCmd  `cmd:"" help:"Write or post realistic events, and say what a fresh ledger will report of them."`
	Verify  verifyCmd  `cmd:"" help:"Replay the ledger of a stopped service and check every hash, chain, key and projection."`
	Export  exportCmd  `cmd:"" help:"Write a whole ledger to a file, a line for each record."`
	Import  importCmd  `cmd:"" help:"Fill an empty store with the ledger in such a file; go on where an import was stopped."`
	Rebuild rebuildCmd `cmd:"" help:"Have a projection of a running service built anew, while the old one answers."`
	Tail    tailCmd    `cmd:"" help:"Print accepted and rejected events of a running service as they come."`
	Source  sourceCmd  `cmd:"" help:"Add, rotate, revoke and list the sources in a sources file."`
	Query   queryCmd   `cmd:"" help:"Send a stored GraphQL query and print its answer as tables or JSON."`
}

// streams are what a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run runs the command that args name. Results go to stdout, all talk to stderr.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	helped := false
	parser, err := kong.New(new(commands), kong.Name("auditctl"),
		kong.Description("The tool of operators and auditors of the audit ledger."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { helped = true }))
	if err != nil {
		return err
	}
	command, err := parser.Parse(args)
	if helped {
		return nil
	}
	if err != nil {
		return err
	}
	command.BindTo(ctx, (*context.Context)(nil))
	return command.Run(&streams{in: stdin, out: stdout, err: stderr})
}

// exitCode reports err to w and returns the exit status for it.
func exitCode(err error, w io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(w, "auditctl:", err)
	return 1
}
