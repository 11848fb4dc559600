package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/EventStore/EventStore-Client-Go/v4/protos/shared"
	"github.com/EventStore/EventStore-Client-Go/v4/protos/streams"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestMain is the program itself when the test starts it as a process.
func TestMain(m *testing.M) {
	if os.Getenv("ESNODE_DIR") == "" {
		os.Exit(m.Run())
	}
	if err := run(context.Background(), []string{"-listen", "127.0.0.1:0", "-dir", os.Getenv("ESNODE_DIR")}, os.Stdout); err != nil {
		panic(err)
	}
}

// TestKill: what was acknowledged before the process was killed is there when it is started again.
func TestKill(t *testing.T) {
	dir, acknowledged := t.TempDir(), 0
	for range 3 {
		process, client := start(t, dir)
		if got := length(t, client); got < acknowledged {
			t.Fatalf("%d events after a kill, want the %d acknowledged", got, acknowledged)
		}
		for i := 0; ; i++ {
			err := appendOne(t, client)
			if err != nil && i < 20 {
				t.Fatal(err)
			}
			if err != nil {
				break
			}
			acknowledged++
			if i == 20 { // while others are on their way
				go process.Process.Kill()
			}
		}
		process.Wait() // killed: its error says nothing
	}
}

func start(t *testing.T, dir string) (*exec.Cmd, streams.StreamsClient) {
	t.Helper()
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), "ESNODE_DIR="+dir)
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := strings.Cut(strings.TrimPrefix(line, "esdb://"), "?")
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return process, streams.NewStreamsClient(conn)
}

func appendOne(t *testing.T, client streams.StreamsClient) error {
	call, err := client.Append(t.Context())
	if err != nil {
		return err
	}
	// What Send fails for, CloseAndRecv says.
	_ = call.Send(&streams.AppendReq{Content: &streams.AppendReq_Options_{Options: &streams.AppendReq_Options{
		StreamIdentifier:       &shared.StreamIdentifier{StreamName: []byte("s")},
		ExpectedStreamRevision: &streams.AppendReq_Options_Any{Any: &shared.Empty{}},
	}}})
	_ = call.Send(&streams.AppendReq{Content: &streams.AppendReq_ProposedMessage_{ProposedMessage: &streams.AppendReq_ProposedMessage{
		Id:       &shared.UUID{Value: &shared.UUID_String_{String_: uuid.NewString()}},
		Metadata: map[string]string{"type": "T", "content-type": "application/json"},
		Data:     []byte("{}"),
	}}})
	_, err = call.CloseAndRecv()
	return err
}

// length is how many events the log holds; their revisions must be complete.
func length(t *testing.T, client streams.StreamsClient) int {
	t.Helper()
	call, err := client.Read(t.Context(), &streams.ReadReq{Options: &streams.ReadReq_Options{
		StreamOption: &streams.ReadReq_Options_All{All: &streams.ReadReq_Options_AllOptions{
			AllOption: &streams.ReadReq_Options_AllOptions_Start{Start: &shared.Empty{}},
		}},
		CountOption: &streams.ReadReq_Options_Count{Count: 1 << 20},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		m, err := call.Recv()
		if err == io.EOF {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := m.GetEvent().GetEvent().GetStreamRevision(); got != uint64(n) {
			t.Fatalf("event %d is revision %d", n, got)
		}
	}
}

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
