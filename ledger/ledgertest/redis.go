package ledgertest

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Redis is a real redis-server of the test's own, on a free port of the loopback interface.
type Redis struct {
	Addr string // host:port
	args []string
	cmd  *exec.Cmd
}

// StartRedis starts a redis-server, which ends with the test. args are further options as on its command line, such as
// "--requirepass", "secret". The program must be installed: Debian's package is redis-server.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	r := &Redis{Addr: listener.Addr().String()}
	listener.Close()
	r.args = append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--appendonly", "no", "--daemonize", "no"}, args...)
	r.Start(t)
	t.Cleanup(r.Stop)
	return r
}

// URL is the server's address for a client.
func (r *Redis) URL() string { return "redis://" + r.Addr }

// Start starts the server again, empty, where it was, and waits until it takes connections.
func (r *Redis) Start(t testing.TB) {
	t.Helper()
	r.cmd = exec.Command("redis-server", r.args...)
	if err := r.cmd.Start(); err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("tcp", r.Addr); err == nil {
			c.Close()
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("redis-server does not listen on %s", r.Addr)
		case <-tick.C:
		}
	}
}

// Stop ends the server at once.
func (r *Redis) Stop() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		r.cmd = nil
	}
}

// Do sends one command over a connection of its own and returns the first line of the answer, such as +OK, or the short text
// that is the answer.
func (r *Redis) Do(t testing.TB, args ...string) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", r.Addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text := []byte("*" + strconv.Itoa(len(args)) + "\r\n")
	for _, a := range args {
		text = fmt.Appendf(text, "$%d\r\n%s\r\n", len(a), a)
	}
	answer := make([]byte, 512)
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(text); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	line, rest, _ := strings.Cut(string(answer[:n]), "\r\n")
	if strings.HasPrefix(line, "$") {
		line, _, _ = strings.Cut(rest, "\r\n")
	}
	return line
}
