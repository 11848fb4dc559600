package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"-listen", "127.0.0.1:0", "-version", "23.10.0", "-dir", t.TempDir()}, in)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "esdb://")
	if !ok {
		t.Fatalf("the first line is %q, want a connection string", line)
	}
	conn, err := net.Dial("tcp", strings.TrimSuffix(address, "?tls=false"))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-help"}, &out); err != nil || !strings.Contains(out.String(), "test double") {
		t.Errorf("got %q and %v, want help that says what it is", out.String(), err)
	}
	if run(t.Context(), []string{"-tls-cert", "none.pem"}, &out) == nil {
		t.Error("it ran without its certificate")
	}
}
