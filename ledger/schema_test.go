package ledger

import (
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/talenttrust/auditledger/ledger/canonical"
)

func loadSchemas(t testing.TB, dir string) *Schemas {
	t.Helper()
	s, err := LoadSchemas(dir)
	if err != nil {
		t.Fatalf("LoadSchemas(%q): %v", dir, err)
	}
	return s
}

// schemaFolder returns a folder that holds the files, given as name, text, name, text …
func schemaFolder(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// errorLines writes errors as "path message" lines, short to compare.
func errorLines(errs []FieldError) []string {
	var lines []string
	for _, e := range errs {
		lines = append(lines, strings.TrimPrefix(e.Path, "/payload")+" "+e.Message)
	}
	return lines
}

func TestValidateBuiltin(t *testing.T) {
	const (
		talent  = "talent_contract"
		payment = "payment_contract"
		review  = "review_contract"
		status  = "must be one of pending, completed, failed"
		action  = "must be one of created, updated, verified, terminated"
	)
	schemas := loadSchemas(t, "")
	if got, want := schemas.Types(), []string{payment, review, talent}; !slices.Equal(got, want) {
		t.Fatalf("types: got %v, want %v", got, want)
	}
	for _, tc := range []struct {
		contractType, payload string
		want                  []string
	}{
		{talent, `{"action":"created","talentId":"t-1"}`, nil},
		{talent, `{"action":"verified","metadata":{"a":[1,{"b":null}]},"talentId":"t-1"}`, nil},
		{talent, `{"action":"updated","more":{"deep":[[[]]]},"talentId":"t-1"}`, nil},
		{talent, `{"action":"created"}`, []string{"/talentId is required"}},
		{talent, `{"action":"","talentId":"t-1"}`, []string{"/action " + action}},
		{talent, `{"action":"promoted","talentId":"t-1"}`, []string{"/action " + action}},
		{talent, `{"action":"Created","talentId":"t-1"}`, []string{"/action " + action}},
		{talent, `{"action":1,"talentId":2}`, []string{"/action must be a string", "/talentId must be a string"}},
		{talent, `{"action":"created","talentId":""}`, []string{"/talentId must not be empty"}},
		{talent, `{"action":"created","metadata":null,"talentId":"t-1"}`, []string{"/metadata must be an object"}},
		{talent, `{"action":"created","metadata":[],"talentId":"t-1"}`, []string{"/metadata must be an object"}},
		{talent, `{}`, []string{"/action is required", "/talentId is required"}},
		{talent, `{"Action":"created","TalentId":"t-1"}`, []string{"/action is required", "/talentId is required"}},

		{payment, `{"amount":12.5,"currency":"USDC","paymentId":"p-1","status":"pending","timestamp":1767225600000}`, nil},
		{payment, `{"amount":-0.001,"currency":"EUR","paymentId":"p-1","status":"failed","timestamp":-1}`, nil},
		{payment, `{"amount":1e+400,"currency":"EUR","paymentId":"p-1","status":"failed","timestamp":9.007199254740993e+15}`, nil},
		{payment, `{"amount":1,"currency":"EUR","paymentId":"p-1","status":"failed","timestamp":1.0}`, nil},
		{payment, `{"amount":1,"currency":"EUR","paymentId":"p-1","status":"failed","timestamp":1e3}`, nil},
		{payment, `{"amount":1,"currency":"EUR","paymentId":"p-1","status":"failed","timestamp":1.5}`, []string{"/timestamp must be an integer"}},
		{payment, `{"amount":1,"currency":"EUR","paymentId":"p-1","status":"failed","timestamp":1e-3}`, []string{"/timestamp must be an integer"}},
		{payment, `{"amount":1,"currency":"EUR","paymentId":"p-1","status":"failed","timestamp":"1767225600000"}`, []string{"/timestamp must be an integer"}},
		{payment, `{"amount":12.5,"paymentId":"p-1","status":"pending","timestamp":1}`, []string{"/currency is required"}},
		{payment, `{"amount":"12.5","currency":"EUR","paymentId":"p-1","status":"pending","timestamp":1}`, []string{"/amount must be a number"}},
		{payment, `{"amount":1,"currency":"EUR","paymentId":"p-1","status":"refunded","timestamp":1}`, []string{"/status " + status}},
		{payment, `{"amount":1,"currency":"EUR","paymentId":"p-1","status":"pending"}`, []string{"/timestamp is required"}},
		{payment, `{"amount":1,"currency":"eur","paymentId":"p-1","status":"pending","timestamp":1}`, []string{"/currency must match the pattern ^[A-Z0-9]{3,12}$"}},
		{payment, `{"amount":1,"currency":"EUR\n","paymentId":"p-1","status":"pending","timestamp":1}`, []string{"/currency must match the pattern ^[A-Z0-9]{3,12}$"}},
		{payment, `{"amount":1,"currency":"ABCDEFGHIJKLM","paymentId":"p-1","status":"pending","timestamp":1}`, []string{"/currency must match the pattern ^[A-Z0-9]{3,12}$"}},
		{payment, `{}`, []string{"/amount is required", "/currency is required", "/paymentId is required", "/status is required", "/timestamp is required"}},

		{review, `{"createdAt":1,"rating":4,"reviewId":"r","reviewerId":"w"}`, nil},
		{review, `{"comment":"","createdAt":1,"rating":4.5,"reviewId":"r","reviewerId":"w"}`, nil},
		{review, `{"createdAt":1,"rating":1,"reviewId":"\"","reviewerId":"\n"}`, nil},
		{review, `{"createdAt":1,"rating":5.0000000000000000000,"reviewId":"r","reviewerId":"w"}`, nil},
		{review, `{"createdAt":1,"rating":"4","reviewId":"r","reviewerId":"w"}`, []string{"/rating must be a number"}},
		{review, `{"createdAt":1,"rating":0,"reviewId":"r","reviewerId":"w"}`, []string{"/rating must be at least 1"}},
		{review, `{"createdAt":1,"rating":6,"reviewId":"r","reviewerId":"w"}`, []string{"/rating must be at most 5"}},
		{review, `{"createdAt":1,"rating":5.0000000000000001,"reviewId":"r","reviewerId":"w"}`, []string{"/rating must be at most 5"}},
		{review, `{"createdAt":1,"rating":4,"reviewId":"r"}`, []string{"/reviewerId is required"}},
		{review, `{"comment":null,"createdAt":true,"rating":4,"reviewId":"r","reviewerId":"w"}`, []string{"/comment must be a string", "/createdAt must be an integer"}},

		{"lease_contract", `{"anything":[1,2]}`, nil},
		{"", `{}`, nil},
	} {
		if diff := cmp.Diff(tc.want, errorLines(schemas.Validate(tc.contractType, []byte(tc.payload)))); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tc.contractType, tc.payload, diff)
		}
	}
}

func TestValidateTextThatIsNotJSON(t *testing.T) {
	schemas := loadSchemas(t, "")
	for _, payload := range []string{``, `{`, `{"a"}`, `nope`, `{"a":secret}`} {
		errs := schemas.Validate("talent_contract", []byte(payload))
		if got, want := errorLines(errs), []string{" must be one JSON value"}; !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", payload, got, want)
		}
	}
}

// TestValidateRules runs schemas of the kinds that a folder may bring.
func TestValidateRules(t *testing.T) {
	for _, tc := range []struct {
		name, schema, payload string
		want                  []string
	}{
		{"anything", `true`, `{"a":1}`, nil},
		{"nothing", `false`, `{"a":1}`, []string{" is not allowed"}},
		{"no schema but annotationKeywords", `{"title":"t","description":"d"}`, `{"a":1}`, nil},
		{"two types", `{"properties":{"a":{"type":["string","null"]}}}`, `{"a":7}`, []string{"/a must be null or a string"}},
		{"const", `{"properties":{"a":{"const":"x"},"b":{"const":{"k":1}}}}`, `{"a":1,"b":2}`, []string{"/a must be x", `/b must be {"k":1}`}},
		{"mixed enum", `{"properties":{"a":{"enum":["", 1, null]}}}`, `{"a":2}`, []string{`/a must be one of "", 1, null`}},
		{"enum of other types than the type", `{"type":"object","properties":{"a":{"type":"string","enum":[1]}}}`, `{"a":""}`, []string{`/a must be one of 1`}},
		{"lengths", `{"properties":{"a":{"minLength":2},"b":{"maxLength":1}}}`, `{"a":"x","b":"xy"}`, []string{"/a must have at least 2 characters", "/b must have at most 1 character"}},
		{"items", `{"properties":{"a":{"minItems":1},"b":{"maxItems":2,"items":{"type":"string"}},"c":{"uniqueItems":true}}}`, `{"a":[],"b":["x",1,2],"c":[1,1.0]}`,
			[]string{"/a must not be empty", "/b must have at most 2 items", "/b/1 must be a string", "/b/2 must be a string", "/c must not hold two equal items"}},
		{"ranges", `{"properties":{"a":{"exclusiveMinimum":0},"b":{"exclusiveMaximum":0.5},"c":{"multipleOf":0.01},"d":{"minimum":-1e300}}}`, `{"a":0,"b":0.5,"c":0.001,"d":-1e301}`,
			[]string{"/a must be greater than 0", "/b must be less than 0.5", "/c must be a multiple of 0.01", "/d must be at least -1e+300"}},
		{"members", `{"minProperties":2,"additionalProperties":false,"properties":{"a":true}}`, `{"b/c~d":1}`, []string{" must have at least 2 members", "/b~1c~0d is not allowed"}},
		{"unevaluated", `{"allOf":[{"properties":{"a":true}}],"unevaluatedProperties":false}`, `{"a":1,"b":2}`, []string{"/b is not allowed"}},
		{"names", `{"properties":{"a":{"propertyNames":{"maxLength":1}}}}`, `{"a":{"xx":1,"y":2}}`, []string{"/a/xx has a name that is not allowed"}},
		{"dependent", `{"dependentRequired":{"a":["b"]}}`, `{"a":1}`, []string{"/b is required beside a"}},
		{"the same rule twice", `{"allOf":[{"required":["a"]},{"required":["a"]}]}`, `{}`, []string{"/a is required"}},
		{"forms", `{"properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]},"b":{"oneOf":[true,true]},"c":{"not":{}}}}`, `{"a":1,"b":1,"c":1}`,
			[]string{"/a must have one of the allowed forms", "/b must have exactly one of the allowed forms", "/c must not have the excluded form"}},
		{"format", `{"properties":{"a":{"format":"date-time"}}}`, `{"a":"yesterday"}`, []string{"/a must be a valid date-time"}},
		{"definitions", `{"$defs":{"id":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/id"}}}`, `{"a":1}`, []string{"/a must be a string"}},
		{"recursion into the payload", `{"properties":{"child":{"$ref":"#"},"n":{"type":"integer"}}}`, `{"child":{"child":{"n":"x"}}}`, []string{"/child/child/n must be an integer"}},
		{"contains", `{"properties":{"a":{"contains":{"const":1}}}}`, `{"a":[2]}`, []string{"/a must meet the schema's contains"}},
		{"older draft", `{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"type":"string"}}}`, `{"a":1}`, []string{"/a must be a string"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			schemas := loadSchemas(t, schemaFolder(t, "x.json", tc.schema))
			if diff := cmp.Diff(tc.want, errorLines(schemas.Validate("x", []byte(tc.payload)))); diff != "" {
				t.Errorf("%s under %s (-want +got):\n%s", tc.payload, tc.schema, diff)
			}
		})
	}
}

// TestValidateNeverSaysValues puts a marker into every place of a payload where a value can stand.
func TestValidateNeverSaysValues(t *testing.T) {
	const schema = `{"properties":{"a":{"const":1},"b":{"enum":[1]},"c":{"pattern":"^x$","maxLength":1},"d":{"format":"email"},
		"e":{"type":"integer"},"f":{"items":{"type":"null"}},"g":{"anyOf":[{"const":1},{"pattern":"y"}]},"h":{"contentEncoding":"base64"}},
		"additionalProperties":{"maximum":1}}`
	const payload = `{"a":"4711!","b":"4711!","c":"4711!","d":"4711!","e":"4711!","f":["4711!",4711],"g":"4711!","h":"4711!","i":4711}`
	schemas := loadSchemas(t, schemaFolder(t, "x.json", schema))
	errs := schemas.Validate("x", []byte(payload))
	if len(errs) != 10 {
		t.Errorf("got %d errors, want 10: %v", len(errs), errs)
	}
	for _, e := range errs {
		if strings.Contains(e.Path+e.Message, "4711") {
			t.Errorf("holds a payload value: %+v", e)
		}
	}
}

func TestValidateIsBounded(t *testing.T) {
	schemas := loadSchemas(t, schemaFolder(t, "x.json", `{"additionalProperties":{"items":{"type":"null"}}}`))
	payload := `{"` + strings.Repeat("ä", 5000) + `":[` + strings.Repeat("1,", 499) + `1]}`
	errs := schemas.Validate("x", []byte(payload))
	// All 500 paths are cut to the same text, so that they are one.
	if len(errs) != 1 || len(errs[0].Path) > maxPathLen+len("…") || !strings.HasSuffix(errs[0].Path, "ä…") {
		t.Errorf("long name: got %v, want one cut path", errs)
	}

	errs = schemas.Validate("x", []byte(`{"a":[`+strings.Repeat("1,", 499)+`1]}`))
	last := FieldError{Path: "/payload", Message: "has 400 more errors"}
	if len(errs) != maxFieldErrors+1 || errs[maxFieldErrors] != last {
		t.Errorf("got %d errors ending in %v, want %d ending in %v", len(errs), errs[len(errs)-1], maxFieldErrors+1, last)
	}
}

// TestHugeExponentsCostNothing would need hundreds of megabytes if one of the numbers were written out.
func TestHugeExponentsCostNothing(t *testing.T) {
	schemas := loadSchemas(t, schemaFolder(t, "x.json", `{"properties":{
		"a":{"type":"integer"},"b":{"type":"integer"},"c":{"maximum":1e999999999},"d":{"uniqueItems":true},
		"e":{"minimum":0},"f":{"maximum":5},"g":{"enum":[1,2]},"h":{"multipleOf":2},"i":{"type":"integer"}}}`))
	payload := []byte(`{"a":1e+999999999,"b":1e-999999999,"c":7,"d":[1e999999999,1e-999999999,1],
		"e":-1e999999999999999999999,"f":1e999999999999999999999,"g":-1.5e999999999,"h":1e999999999,"i":1.5E-999999999999999999999}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	errs := schemas.Validate("x", payload)
	runtime.ReadMemStats(&after)

	want := []string{"/b must be an integer", "/e must be at least 0", "/f must be at most 5", "/g must be one of 1, 2", "/i must be an integer"}
	if diff := cmp.Diff(want, errorLines(errs)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("took %d bytes, want less than a megabyte", got)
	}
}

func TestLoadSchemasFromFolder(t *testing.T) {
	dir := schemaFolder(t,
		"lease_contract.json", `{"type":"object","required":["leaseId"],"properties":{"leaseId":{"$ref":"common.json#/$defs/id"}}}`,
		"common.json", `{"$defs":{"id":{"type":"string","minLength":1}}}`,
		"talent_contract.json", `{"type":"object"}`,
		"strict_payment.json", `{"allOf":[{"$ref":"payment_contract.json"}],"required":["invoice"]}`,
		"notes.txt", `not a schema`,
	)
	schemas := loadSchemas(t, dir)
	want := []string{"common", "lease_contract", "payment_contract", "review_contract", "strict_payment", "talent_contract"}
	if got := schemas.Types(); !slices.Equal(got, want) {
		t.Errorf("types: got %v, want %v", got, want)
	}
	for _, tc := range []struct {
		contractType, payload string
		want                  []string
	}{
		{"lease_contract", `{}`, []string{"/leaseId is required"}},
		{"lease_contract", `{"leaseId":""}`, []string{"/leaseId must not be empty"}},
		{"talent_contract", `{}`, nil}, // replaced
		{"strict_payment", `{"amount":1,"currency":"EUR","paymentId":"p","status":"failed","timestamp":1}`, []string{"/invoice is required"}},
		{"strict_payment", `{"amount":1,"currency":"EUR","invoice":1,"paymentId":"p","status":"failed"}`, []string{"/timestamp is required"}},
	} {
		if got := errorLines(schemas.Validate(tc.contractType, []byte(tc.payload))); !slices.Equal(got, tc.want) {
			t.Errorf("%s %s: got %q, want %q", tc.contractType, tc.payload, got, tc.want)
		}
	}
}

func TestLoadSchemasRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, file, schema string
		want               string // part of the error
	}{
		{"broken JSON", "x.json", `{"type":`, "unexpected EOF"},
		{"trailing text", "x.json", `{} {}`, "more than one"},
		{"a member twice", "x.json", `{"type":"object","type":"string"}`, "duplicate"},
		{"an array", "x.json", `[]`, "want boolean or object"},
		{"a type there is not", "x.json", `{"type":"decimal"}`, "/type"},
		{"a bound that is no number", "x.json", `{"properties":{"a":{"maximum":"5"}}}`, "/properties/a/maximum"},
		{"a pattern that does not compile", "x.json", `{"pattern":"("}`, "/pattern"},
		{"an unknown draft", "x.json", `{"$schema":"https://json-schema.org/draft/2099-01/schema"}`, "2099-01"},
		{"a meta-schema of somebody", "x.json", `{"$schema":"http://127.0.0.1:1/meta"}`, "may be referred to"},
		{"a reference to a server", "x.json", `{"$ref":"http://127.0.0.1:1/a.json"}`, "may be referred to"},
		{"a reference to a file by its path", "x.json", `{"$ref":"file:///etc/hostname"}`, "may be referred to"},
		{"a reference out of the folder", "x.json", `{"$ref":"../../../../etc/hostname"}`, "no file"},
		{"a reference to another host", "x.json", `{"$ref":"//host/a.json"}`, "may be referred to"},
		{"a reference to nothing", "x.json", `{"$ref":"#/$defs/none"}`, "none"},
		{"a circle", "x.json", `{"allOf":[{"$ref":"#"}]}`, "leads back to itself"},
		{"a name with a space", "my type.json", `{}`, "1 to 100"},
		{"no name", ".json", `{}`, "1 to 100"},
		{"a long name", strings.Repeat("x", 101) + ".json", `{}`, "1 to 100"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := LoadSchemas(schemaFolder(t, tc.file, tc.schema))
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), fmt.Sprintf("%q", tc.file)) {
				t.Errorf("got error %v, want one that names %q and holds %q", err, tc.file, tc.want)
			}
		})
	}
	if _, err := LoadSchemas(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a folder that does not exist: got no error")
	}
	dir := schemaFolder(t)
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "x.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSchemas(dir); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("a link out of the folder: got %v, want an error", err)
	}
}

// FuzzValidate holds that the quick check says yes only where the validator does, and that every
// error has a path into the payload.
func FuzzValidate(f *testing.F) {
	f.Add(`{"amount":1,"currency":"EUR","paymentId":"p","status":"failed","timestamp":1e3}`)
	f.Add(`{"createdAt":1,"rating":4.99999999999999999999,"reviewId":"\u0000","reviewerId":"w","comment":"c"}`)
	f.Add(`{"action":"created","metadata":{"a":[{}]},"talentId":"t"}`)
	schemas := loadSchemas(f, "")
	f.Fuzz(func(t *testing.T, payload string) {
		value, err := canonical.Append(nil, []byte(payload))
		if err != nil || value[0] != '{' {
			return
		}
		for contractType, quick := range schemas.quick {
			errs := schemas.Validate(contractType, value)
			for _, e := range errs {
				if !strings.HasPrefix(e.Path, "/payload") || e.Message == "" {
					t.Errorf("%s %s: got %+v", contractType, payload, e)
				}
			}
			dec := new(payloadDecoder)
			whole, err := decodeAny(dec.reset(value))
			if err != nil {
				t.Fatalf("%s: %v", payload, err)
			}
			met := schemas.byType[contractType].Validate(whole) == nil
			if quick.meets(value) && !met {
				t.Errorf("%s %s: the quick check says yes, the validator no", contractType, payload)
			}
			if met != (errs == nil) {
				t.Errorf("%s %s: met is %v, errors are %v", contractType, payload, met, errs)
			}
		}
	})
}

// FuzzLoadSchemas holds that no schema file makes loading or validating panic.
func FuzzLoadSchemas(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"pattern":"^a"}}}`, `{"a":"b"}`)
	f.Add(`{"$id":"http://x/y","$dynamicAnchor":"n","anyOf":[{"$dynamicRef":"#n"}],"propertyNames":{"maxLength":1}}`, `{"ab":[1]}`)
	f.Add(`{"unevaluatedProperties":{"unevaluatedItems":false},"if":true,"then":{"dependentSchemas":{"a":false}}}`, `{"a":[1]}`)
	f.Fuzz(func(t *testing.T, schema, payload string) {
		files := schemaFiles{fstest.MapFS{"x.json": {Data: []byte(schema)}}}
		schemas, err := compileSchemas(files, []string{"x.json"})
		if err == nil && jsontext.Value(payload).IsValid() {
			schemas.Validate("x", []byte(payload))
		}
	})
}

// FuzzSchemaNumber compares what a schema can ask of a number with what it can ask of its stand-in.
func FuzzSchemaNumber(f *testing.F) {
	for _, literal := range []string{"0", "-0e9", "1e+401", "1e-401", "123.456e-1000", "-123.456e+1000", "0.00001e2000", "1000000e-2000", "1E402", "1.5e0403"} {
		f.Add(literal)
	}
	var bounds []*big.Rat
	for _, b := range []string{"0", "1", "1e-399", "1e399", "5e-324", "1.7976931348623157e308"} {
		r, _ := new(big.Rat).SetString(b)
		bounds = append(bounds, r, new(big.Rat).Neg(r))
	}
	f.Fuzz(func(t *testing.T, literal string) {
		if v := jsontext.Value(literal); v.Kind() != '0' || !v.IsValid() || len(literal) > 300 {
			return
		}
		got, ok := new(big.Rat).SetString(string(schemaNumber(strings.TrimSpace(literal))))
		if !ok {
			t.Fatalf("%s became %s", literal, schemaNumber(literal))
		}
		if len(got.String()) > 4000 {
			t.Errorf("%s became %d digits", literal, len(got.String()))
		}
		if i := strings.IndexAny(literal, "eE"); i >= 0 && len(strings.TrimLeft(literal[i+1:], "+-0")) > 4 {
			return // too costly to write out, which is the point
		}
		want, ok := new(big.Rat).SetString(strings.TrimSpace(literal))
		if !ok {
			return
		}
		if got.IsInt() != want.IsInt() {
			t.Errorf("%s: whole is %v, want %v", literal, got.IsInt(), want.IsInt())
		}
		for _, b := range bounds {
			if got.Cmp(b) != want.Cmp(b) {
				t.Errorf("%s against %s: got %d, want %d", literal, b.FloatString(3), got.Cmp(b), want.Cmp(b))
			}
		}
	})
}

const benchPayment = `{"amount":1249.5,"currency":"EUR","description":"Milestone 3 of 5: design of the onboarding flow, second revision",` +
	`"fees":{"network":0.35,"platform":12.5},"invoice":"INV-2026-000184","milestone":3,"payee":"talent-000184","payer":"client-000021",` +
	`"paymentId":"pay-000184-0003","reference":"PO-4411/2026","status":"completed","timestamp":1767225600000}`

func BenchmarkValidate(b *testing.B) {
	schemas := loadSchemas(b, "")
	for name, payload := range map[string]string{
		"met":         benchPayment,
		"not at once": strings.Replace(benchPayment, "1767225600000", "9.007199254740993e+15", 1),
		"not met":     strings.Replace(benchPayment, "completed", "refunded", 1),
	} {
		b.Run(name, func(b *testing.B) {
			text := []byte(payload)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if errs := schemas.Validate("payment_contract", text); (errs != nil) != (name == "not met") {
					b.Fatal(errs)
				}
			}
		})
	}
}

// TestMatcher: what a matcher remembers answers for itself only.
func TestMatcher(t *testing.T) {
	matches := matcher(regexp.MustCompile(`^[A-Z]{3}$`))
	for _, text := range []string{"EUR", "EUR", "eur", "EURO", "EU", "USD", "", "EUR", "eur"} {
		if got, want := matches([]byte(text)), text == "EUR" || text == "USD"; got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}
