package main

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/talenttrust/auditledger/ledger"
)

// remembering is a window that knows the keys of one contract, and fails without keys.
type remembering string

func (w remembering) Look(_ context.Context, keys []ledger.Key) ([]ledger.Hint, error) {
	hints := make([]ledger.Hint, len(keys))
	for i, k := range keys {
		if k.ContractID == "" {
			return nil, errors.New("not reachable")
		}
		hints[i].Hit = k.ContractID == string(w)
	}
	return hints, nil
}

func (remembering) Bind(context.Context, []ledger.Binding) error { return nil }

func TestWindowRequestsAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	w := meterWindow(remembering("c-1"), registry)
	for _, contracts := range [][]string{{"c-1", "c-2", "c-3"}, {"c-1"}, {"c-1", ""}} {
		var keys []ledger.Key
		for _, c := range contracts {
			keys = append(keys, ledger.Key{ContractID: c})
		}
		hints, err := w.Look(t.Context(), keys)
		if err == nil && len(hints) != len(keys) {
			t.Errorf("got %d hints, want %d", len(hints), len(keys))
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	if got["hit"] != 2 || got["miss"] != 2 || got["error"] != 2 {
		t.Errorf("got %v, want two of each", got)
	}
	if meterWindow(nil, prometheus.NewRegistry()) != nil {
		t.Error("no window became one")
	}
}
