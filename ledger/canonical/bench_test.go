package canonical

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

const payment = `{"contractId":"contract_123","eventId":"event_456","sequence":1,"timestamp":1767225600000,"payload":` +
	`{"paymentId":"p-1","amount":12.50,"currency":"EUR","status":"completed","timestamp":1767225600000,` +
	`"note":"Rückzahlung für März, zweite Rate","metadata":{"orderRef":"ord-77","lines":[{"sku":"b","qty":2},` +
	`{"sku":"a","qty":1}]}},"signature":"c2lnbmF0dXJl"}`

func BenchmarkCleanAppend(b *testing.B) {
	src, dst := []byte(payment), []byte(nil)
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		clean, _ := Clean(src)
		var err error
		if dst, err = Append(dst[:0], clean); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkClean(b *testing.B) {
	src := []byte(payment)
	b.ReportAllocs()
	for b.Loop() {
		Clean(src)
	}
}

// BenchmarkLibrary is the same without cleaning and exact numbers, by jsontext.
func BenchmarkLibrary(b *testing.B) {
	src, dst, order := []byte(payment), []byte(nil), jsontext.ReorderRawObjects(true)
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = jsontext.AppendFormat(dst[:0], src, order); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendNumber(b *testing.B) {
	for _, literal := range []string{"1767225600000", "12.50", "0.1000000000000000055", "3.141592653589793", "1e-999999999", "1e999999999999999999999"} {
		b.Run(literal, func(b *testing.B) {
			src, dst := []byte(literal), []byte(nil)
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if dst, err = AppendNumber(dst[:0], src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSum(b *testing.B) {
	src := []byte(payment)
	for b.Loop() {
		Sum(src)
	}
}
