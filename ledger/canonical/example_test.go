package canonical_test

import (
	"errors"
	"fmt"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

func ExampleAppend() {
	form, err := canonical.Append(nil, []byte(`{ "total": 12.50, "orderRef": "ord-77", "lines": [ {"sku": "\u0062", "qty": 2.0} ] }`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", form)
	fmt.Println(canonical.Sum(form))
	// Output:
	// {"lines":[{"qty":2,"sku":"b"}],"orderRef":"ord-77","total":12.5}
	// 859332972ce1e154846bfa0ed231827db3aaed669b9fd55c27a1e0ccca1fa5c7
}

// Numbers that a double carries look as everywhere, all others keep their digits.
func ExampleAppend_numbers() {
	form, _ := canonical.Append(nil, []byte(`[1.0, -0, 1e2, 12.50, 1e21, 9007199254740992, 9007199254740993, 1152921504606846976, 1e400, 1e-999999999]`))
	fmt.Printf("%s\n", form)
	// Output:
	// [1,0,100,12.5,1e+21,9007199254740992,9.007199254740993e+15,1.152921504606846976e+18,1e+400,1e-999999999]
}

// Members are ordered by UTF-16 code units, in which U+1F600 comes before U+E000.
func ExampleAppend_order() {
	form, _ := canonical.Append(nil, []byte(`{"\ue000":5,"😀":4,"é":3,"a":2,"B":1}`))
	fmt.Printf("%+q\n", form)
	// Output:
	// "{\"B\":1,\"a\":2,\"\u00e9\":3,\"\U0001f600\":4,\"\ue000\":5}"
}

func ExampleAppend_errors() {
	for _, text := range []string{`{"payload":{"amount":1,"amount":2}}`, `{"amount":01}`, `{"amount":1}}`} {
		_, err := canonical.Append(nil, []byte(text))
		fmt.Println(err)
	}
	_, err := canonical.Append(nil, []byte(`{"payload":{"amount":1,"amount":2}}`))
	var duplicate *canonical.DuplicateNameError
	fmt.Println(errors.As(err, &duplicate), duplicate.Pointer)
	// Output:
	// duplicate member "/payload/amount"
	// invalid JSON at byte 11: number with a leading zero
	// invalid JSON at byte 12: expected the end of the text
	// true /payload/amount
}

func ExampleClean() {
	clean, changed := canonical.Clean([]byte("{\"note\":\"a\xff b\\ud800 c\\u0000\"}"))
	fmt.Println(string(clean), changed)
	// Output:
	// {"note":"a� b� c"} true
}
