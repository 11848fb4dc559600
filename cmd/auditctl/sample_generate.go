package main

import (
	"context"
	"math/rand/v2"
)

const (
	recentEvents = 4096 // from which repeats, conflicts and reused sequences are drawn
	maxHeld      = 256  // events that wait to arrive late

	// maxBatchBytes keeps a batch of many large events well below the service's MAX_BODY_BYTES.
	maxBatchBytes = 4 << 20
)

// sampleEvent is all that an event's bytes follow from, together with the generator's settings. So
// an event can be made again at any time, and remembering one costs 40 bytes.
type sampleEvent struct {
	number    uint64 // unique; makes the event id and the payload
	sequence  uint64
	timestamp int64 // milliseconds
	contract  int
	variant   uint8 // of the payload; conflicts have one above 0
	poison    uint8 // which bytes need cleaning, 0 for none
	malformed uint8 // index into the malformations, plus 1; 0 for none
}

// heldEvent is to be sent when due events have been sent.
type heldEvent struct {
	event sampleEvent
	due   int
}

// generator makes events and at the same time keeps the books on what a fresh ledger makes of them.
// That takes no set of keys: whether an event is new, known, in conflict or refused was decided when
// it was made, only sent events are drawn again, and a gap is counted with the event that opens it,
// which is always sent.
type generator struct {
	cfg     sampleCmd
	rng     *rand.Rand
	render  *renderer
	summary *sampleSummary

	next    []uint64 // next sequence of each contract that has begun
	number  uint64   // of the last event made
	sent    int
	recent  []sampleEvent // the last events sent, a ring
	held    []heldEvent   // in order of due
	batches map[string]*sampleBatch
}

// sampleBatch is a batch that is being filled. All its events have one contract type, so that the
// order of events of one contract is the order in which they were made.
type sampleBatch struct {
	body   []byte
	events int
}

func newGenerator(cfg sampleCmd) *generator {
	if cfg.Contracts == 0 {
		cfg.Contracts = max(1, cfg.Events/50)
	}
	g := &generator{
		cfg:     cfg,
		rng:     rand.New(rand.NewPCG(cfg.Seed, 0)),
		render:  newRenderer(cfg),
		summary: &sampleSummary{ByContractType: make(map[string]*typeCounts), ByCode: make(map[string]int)},
		batches: make(map[string]*sampleBatch),
	}
	return g
}

// run makes all events and hands over each batch as soon as it is full. The batch is only valid
// during the call.
func (g *generator) run(ctx context.Context, sink func(batch []byte, events int) error) error {
	for g.sent < g.cfg.Events {
		event, ready := g.choose()
		if !ready {
			continue
		}
		batch := g.add(event)
		if batch.events < g.cfg.Batch && len(batch.body) < maxBatchBytes {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := g.flush(batch, sink); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(g.batches) {
		if err := g.flush(g.batches[name], sink); err != nil {
			return err
		}
	}
	return nil
}

// choose returns the next event to send, or false when the event it made was put aside to arrive late.
func (g *generator) choose() (sampleEvent, bool) {
	if left := g.cfg.Events - g.sent; len(g.held) > 0 && (g.held[0].due <= g.sent || left <= len(g.held)) {
		event := g.held[0].event
		g.held = g.held[1:]
		g.count(event, false)
		return event, true
	}
	share := g.rng.Float64()
	pick := func(part float64) bool { share -= part; return share < 0 && len(g.recent) > 0 }
	switch {
	case pick(g.cfg.Repeats):
		return g.repeat()
	case pick(g.cfg.Conflicts):
		return g.conflict()
	case pick(g.cfg.Reused):
		return g.reuse()
	case pick(g.cfg.Malformed):
		return g.malform()
	}
	return g.fresh()
}

// fresh makes the next event of a contract.
func (g *generator) fresh() (sampleEvent, bool) {
	contract, begins := g.chooseContract()
	if begins {
		g.next = append(g.next, []uint64{0, 1, 1, 1, 1, 1, 1, 1000}[g.rng.IntN(8)])
	} else if g.chance(g.cfg.Gaps) {
		missing := 1 + g.rng.Uint64N(4)
		g.next[contract] += missing
		g.summary.Gaps++
		g.summary.MissingSequences += int(missing)
	}
	event := g.newEvent(contract, g.next[contract])
	g.next[contract]++
	if g.chance(g.cfg.Poison) {
		event.poison = uint8(1 + g.rng.IntN(poisons))
	}
	if room := len(g.held) < maxHeld && len(g.held) < g.cfg.Events-g.sent; room && !begins && g.chance(g.cfg.Late) {
		g.held = append(g.held, heldEvent{event, g.sent + 1 + g.rng.IntN(200)})
		return sampleEvent{}, false
	}
	g.count(event, begins)
	return event, true
}

// repeat sends an event again, sometimes in another spelling.
func (g *generator) repeat() (sampleEvent, bool) {
	event := g.recent[g.rng.IntN(len(g.recent))]
	g.render.respell = event.malformed == 0 && g.chance(0.3)
	if event.malformed == 0 && event.variant == 0 {
		g.counts(event).Duplicates++
		g.summary.Duplicates++
	} else {
		g.reject(event)
	}
	return event, true
}

// conflict sends a known key with another payload.
func (g *generator) conflict() (sampleEvent, bool) {
	event, ok := g.accepted()
	if !ok {
		return g.fresh()
	}
	event.variant = uint8(1 + g.rng.IntN(3))
	g.reject(event)
	g.remember(event)
	return event, true
}

// reuse sends a new event under a sequence that an earlier one has.
func (g *generator) reuse() (sampleEvent, bool) {
	earlier, ok := g.accepted()
	if !ok {
		return g.fresh()
	}
	event := g.newEvent(earlier.contract, earlier.sequence)
	g.count(event, false)
	return event, true
}

// malform sends an event that is refused. It does not use up a sequence: the sender repairs it and
// sends it as a new event, which is the contract's next.
func (g *generator) malform() (sampleEvent, bool) {
	contract := g.rng.IntN(len(g.next))
	event := g.newEvent(contract, g.next[contract])
	way := g.rng.IntN(len(g.render.malformations))
	if g.render.malformations[way].rare && !g.chance(0.1) {
		way = 0
	}
	event.malformed = uint8(1 + way)
	g.reject(event)
	g.remember(event)
	return event, true
}

// accepted draws an accepted event from the recent ones.
func (g *generator) accepted() (sampleEvent, bool) {
	for range 16 {
		if event := g.recent[g.rng.IntN(len(g.recent))]; event.malformed == 0 && event.variant == 0 {
			return event, true
		}
	}
	return sampleEvent{}, false
}

// chooseContract returns a contract, and whether it begins with this event. New ones begin all the
// time until nine tenths of the events are sent; older ones have more events.
func (g *generator) chooseContract() (contract int, begins bool) {
	begun := len(g.next)
	target := min(g.cfg.Contracts, 1+g.cfg.Contracts*g.sent*10/(g.cfg.Events*9))
	if begun > 0 && g.chance(g.cfg.Biggest) {
		return 0, false
	}
	if begun < target {
		return begun, true
	}
	x := g.rng.Float64()
	if g.cfg.Biggest > 0 && begun > 1 {
		return 1 + int(x*x*float64(begun-1)), false
	}
	return int(x * x * float64(begun)), false
}

// newEvent makes an event of now, where now goes through the span as events are sent.
func (g *generator) newEvent(contract int, sequence uint64) sampleEvent {
	g.number++
	span := g.cfg.Span.Milliseconds()
	age := span - int64(float64(span)*float64(g.sent)/float64(g.cfg.Events))
	age -= g.rng.Int64N(max(1, age/100)) // later than due, never older than the span
	return sampleEvent{number: g.number, sequence: sequence, contract: contract, timestamp: g.cfg.Now.UnixMilli() - age}
}

func (g *generator) chance(share float64) bool { return share > 0 && g.rng.Float64() < share }

// remember keeps an event that is being sent, so that it can be drawn again.
func (g *generator) remember(event sampleEvent) {
	if len(g.recent) < recentEvents {
		g.recent = append(g.recent, event)
		return
	}
	g.recent[g.rng.IntN(recentEvents)] = event
}

func (g *generator) counts(event sampleEvent) *typeCounts {
	contractType := g.render.contractType(event.contract)
	counts := g.summary.ByContractType[contractType]
	if counts == nil {
		counts = new(typeCounts)
		g.summary.ByContractType[contractType] = counts
	}
	return counts
}

// count books an accepted event.
func (g *generator) count(event sampleEvent, begins bool) {
	counts := g.counts(event)
	counts.Accepted++
	g.summary.Accepted++
	if begins {
		counts.Contracts++
		g.summary.Contracts++
	}
	g.remember(event)
}

// reject books a rejected one.
func (g *generator) reject(event sampleEvent) {
	code := "IDEMPOTENCY_PAYLOAD_CONFLICT"
	if event.malformed > 0 {
		code = g.render.malformations[event.malformed-1].code
	} else {
		g.summary.Conflicts++
	}
	g.summary.ByCode[code]++
	g.counts(event).Rejected++
	g.summary.Rejected++
}

// add appends the event to the batch of its contract type.
func (g *generator) add(event sampleEvent) *sampleBatch {
	contractType := g.render.contractType(event.contract)
	batch := g.batches[contractType]
	if batch == nil {
		batch = new(sampleBatch)
		g.batches[contractType] = batch
	}
	if batch.events == 0 {
		batch.body = append(append(append(batch.body, `{"contractType":"`...), contractType...), `","events":[`...)
	} else {
		batch.body = append(batch.body, ',')
	}
	batch.body = g.render.appendEvent(batch.body, event)
	g.render.respell = false
	batch.events++
	g.sent++
	g.summary.Events++
	return batch
}

// flush hands the batch over and empties it.
func (g *generator) flush(batch *sampleBatch, sink func([]byte, int) error) error {
	if batch.events == 0 {
		return nil
	}
	g.summary.Batches++
	err := sink(append(batch.body, "]}"...), batch.events)
	*batch = sampleBatch{body: batch.body[:0]}
	return err
}
