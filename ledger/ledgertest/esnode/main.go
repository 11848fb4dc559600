// Command esnode is a test double of an EventStoreDB server, for tests that need one in a process of
// its own. It is not a database: do not keep anything in it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "esnode:", err)
		os.Exit(1)
	}
}

// run serves until ctx is done. The first line it prints is the connection string.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("esnode", flag.ContinueOnError)
	flags.SetOutput(stdout)
	flags.Usage = func() {
		fmt.Fprintln(stdout, "esnode speaks the wire protocol of EventStoreDB, for tests. It is a test double, not a database.")
		flags.PrintDefaults()
	}
	var config node.Config
	flags.StringVar(&config.Listen, "listen", "127.0.0.1:2113", "`address` to listen on; port 0 takes a free one")
	flags.StringVar(&config.Dir, "dir", "", "`folder` that keeps the events over restarts; without it they are in memory")
	flags.StringVar(&config.Version, "version", "24.10.0", "version `text` to give and to behave like")
	flags.StringVar(&config.CertFile, "tls-cert", "", "PEM `file` of the certificate; switches TLS on")
	flags.StringVar(&config.KeyFile, "tls-key", "", "PEM `file` of the certificate's key")
	flags.StringVar(&config.User, "user", "", "`name` that callers must give; without it anybody may call")
	flags.StringVar(&config.Password, "password", "", "the `password` of user")
	if err := flags.Parse(args); err == flag.ErrHelp {
		return nil
	} else if err != nil {
		return err
	}
	n, err := node.Open(config)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, n.URL())
	<-ctx.Done()
	return n.Close()
}
