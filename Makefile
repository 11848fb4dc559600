# All set-up is done by these targets: a machine with Go and git is enough, and make itself.
.PHONY: run build test check bench fuzz soak

run: ## start the service on the embedded store, data in ./data, on http://127.0.0.1:8080
	CGO_ENABLED=0 go build -o bin/auditd ./cmd/auditd
	@exec bin/auditd

build: ## the programs, in ./bin
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/auditd ./cmd/auditctl ./cmd/collector

test: tools ## every test, with the race detector
	go test -race -timeout 20m ./...

check: ## what must hold of the code as it is written
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	go vet ./...
	GOOS=darwin go vet ./...
	go tool staticcheck ./...
	go mod tidy -diff

bench: ## µs per event of each stage, the whole service beside the bare path, rebuild and reads (REPLAY_RECORDS=2000000)
	go test -run '^$$' -bench . -benchtime 1s ./ledger/... ./projections
	go test -run '^$$' -bench Ingest -benchtime 5000x ./cmd/auditd
	go test -run '^$$' -bench Replay -benchtime 1x ./cmd/auditd
	go test -run '^$$' -bench . -benchtime 1s ./cmd/collector/outbox

soak: ## ten minutes of load, or SOAK=1h: goroutines, files and memory must not grow
	go test -tags soak -run Soak -timeout 0 -v ./cmd/auditd ./ledger/eventstore

fuzz: ## half a minute for each parser
	@for p in $$(grep -rl '^func Fuzz' --include=*_test.go . | xargs -n1 dirname | sort -u); do \
		for f in $$(grep -ho '^func Fuzz[A-Za-z]*' $$p/*_test.go | cut -c6-); do \
			go test -run '^$$' -fuzz "^$$f\$$" -fuzztime 30s -fuzzminimizetime 20x $$p || exit 1; done; done

.PHONY: tools
tools: # the race detector needs a C compiler, the tests of the window a Redis; they start their own
	@for p in gcc redis-server; do command -v $$p >/dev/null || missing="$$missing $$p"; done; \
	[ -z "$$missing" ] || { apt-get update -q && apt-get install -q -y --no-install-recommends $$missing libc6-dev; }
