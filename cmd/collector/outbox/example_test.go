package outbox_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/talenttrust/auditledger/cmd/collector/internal/testledger"
	"github.com/talenttrust/auditledger/cmd/collector/outbox"
)

// A program that has events of its own keeps an outbox beside its data and delivers from it.
func Example() {
	ledger := httptest.NewServer(testledger.New()) // stands for the real one
	defer ledger.Close()
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	box, err := outbox.Open(ctx, outbox.Config{Path: filepath.Join(dir, "outbox.db")})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	rules, err := outbox.ChatRules() // or ParseRules; ledger events need none
	if err != nil {
		log.Fatal(err)
	}

	// When Enqueue returns, the events survive a power cut. The second one is the same as the first.
	for range 2 {
		events, _ := rules.Read([]byte(`{"contractType":"payment_contract","contractId":"contract_123","eventId":"event_456","sequence":1,
			"timestamp":1767225600000,"payload":{"paymentId":"p-1","amount":12.5,"currency":"EUR","status":"completed","timestamp":1767225600000}}`), "example")
		if _, err := box.Enqueue(ctx, events...); err != nil {
			log.Fatal(err)
		}
	}

	sender, err := outbox.NewSender(box, outbox.SenderConfig{
		URL:  ledger.URL,
		Auth: outbox.Bearer("the source's token"),
		Settled: func(list []outbox.Settlement) {
			for _, s := range list {
				fmt.Println(s.Pending.Key(), s.Reason.Code)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	// A service calls Run, which ends with its context; Drain ends when everything is delivered.
	if err := sender.Drain(ctx); err != nil {
		log.Fatal(err)
	}
	stats, err := box.Stats(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("pending:", stats.Pending)
	// Output:
	// contract_123:event_456:1 accepted
	// pending: 0
}
