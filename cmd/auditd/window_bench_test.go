package main

import (
	"testing"

	"github.com/talenttrust/auditledger/ledger/ledgertest"
	"github.com/talenttrust/auditledger/ledger/ledgertest/esnode/node"
)

// BenchmarkWindow is what Redis costs and saves: batches of 100 events through HTTP, new ones and repeats, without
// Redis, with it, and with one that does not answer, on the folder and on a server.
func BenchmarkWindow(b *testing.B) {
	const repeated = 20 // batches that are sent again and again
	for _, store := range []string{"disk", "node"} {
		for _, window := range []string{"none", "up", "down"} {
			for _, events := range []string{"new", "repeats"} {
				b.Run(store+"/redis "+window+"/"+events, func(b *testing.B) {
					var args []string
					if store == "node" {
						n, err := node.Open(node.Config{})
						if err != nil {
							b.Fatal(err)
						}
						b.Cleanup(func() { n.Close() })
						args = append(args, "--ledger-store="+n.URL())
					}
					if window != "none" {
						r := ledgertest.StartRedis(b)
						args = append(args, "--redis-url="+r.URL())
						if window == "down" {
							r.Stop()
						}
					}
					url := startService(b, args...)
					if events == "new" {
						ingest(b, url)
						return
					}
					var bodies [repeated][]byte // the payloads hold a time
					for n := range bodies {
						bodies[n] = appendBatch(nil, int64(n))
						if err := send(url, bodies[n]); err != nil {
							b.Fatal(err)
						}
					}
					sendBatches(b, url, func(_ []byte, n int64) []byte { return bodies[n%repeated] })
				})
			}
		}
	}
}
