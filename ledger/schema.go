package ledger

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

//go:embed schemas/*.json
var builtinSchemas embed.FS

const (
	// exponentMargin is how many powers of ten are kept apart by a schema. It lies beyond the
	// range of a double (1e±324), so that no bound anybody writes is on the wrong side of it.
	exponentMargin = 400

	// schemaScheme is the scheme under which the schema files know one another.
	schemaScheme = "schema"
)

// FieldError says what is wrong with one member of an event.
type FieldError struct {
	// Path is a JSON Pointer (RFC 6901) from the event, such as "/payload/talentId". One of more
	// than 512 bytes is cut and ends in "…".
	Path string `json:"path"`
	// Message is the rule in plain words, such as "is required". It never holds a payload value.
	Message string `json:"message"`
}

// Schemas validates payloads by contract type, with JSON Schema (draft 2020-12, or the draft that
// a file's "$schema" names). Formats are checked, not only noted. It is safe for concurrent use.
type Schemas struct {
	byType   map[string]*jsonschema.Schema
	quick    map[string]*quickSchema // of the plain ones
	decoders sync.Pool               // of *payloadDecoder
}

// LoadSchemas compiles the built-in schemas and every *.json file of dir ("" = none). The contract
// type is the file's name without .json, 1–100 of A-Za-z0-9_-.@; a file of dir replaces a built-in
// of the same name. A schema may refer to other files of dir (or to built-in ones), by relative
// references only: nothing outside dir is read and nothing is fetched. Errors name the file and the rule.
func LoadSchemas(dir string) (*Schemas, error) {
	builtin, err := fs.Sub(builtinSchemas, "schemas")
	if err != nil {
		return nil, fmt.Errorf("open built-in schemas: %w", err)
	}
	files := schemaFiles{builtin}
	if dir != "" {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, fmt.Errorf("open schema folder: %w", err)
		}
		defer root.Close()
		files = schemaFiles{root.FS(), builtin}
	}
	names, err := files.names()
	if err != nil {
		return nil, err
	}
	return compileSchemas(files, names)
}

func compileSchemas(files schemaFiles, names []string) (*Schemas, error) {
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.UseLoader(files)

	s := &Schemas{byType: make(map[string]*jsonschema.Schema), quick: make(map[string]*quickSchema)}
	s.decoders.New = func() any { return new(payloadDecoder) }
	for _, name := range names {
		contractType := strings.TrimSuffix(name, ".json")
		if !isSchemaName(contractType) {
			return nil, fmt.Errorf("schema file %q: the name before .json is the contract type and must be 1 to 100 of A-Z a-z 0-9 _ - . @", name)
		}
		schema, err := compiler.Compile(schemaScheme + ":///" + name)
		if err != nil {
			return nil, fmt.Errorf("schema file %q: %w", name, err)
		}
		if refersToItself(schema) {
			return nil, fmt.Errorf("schema file %q: a $ref leads back to itself without going into the payload", name)
		}
		s.byType[contractType], s.quick[contractType] = schema, newQuickSchema(schema)
	}
	return s, nil
}

// Types returns the contract types that have a schema, in order.
func (s *Schemas) Types() []string {
	return slices.Sorted(maps.Keys(s.byType))
}

// Validate returns all that is wrong with the payload (a canonical JSON object) under contractType's
// schema, in order of path; nil when the schema is met or the type is unknown. Beyond 100 errors the
// last one says how many more there are. Messages never hold payload values.
//
// Numbers are compared exactly, except that powers of ten beyond 1e±400 are all alike.
func (s *Schemas) Validate(contractType string, payload []byte) []FieldError {
	schema, ok := s.byType[contractType]
	if !ok {
		return nil
	}
	if quick := s.quick[contractType]; quick != nil && quick.meets(payload) {
		return nil
	}
	dec := s.decoders.Get().(*payloadDecoder)
	defer s.decoders.Put(dec)
	value, err := decodeAny(dec.reset(payload))
	if err != nil {
		return []FieldError{{Path: "/payload", Message: "must be one JSON value"}}
	}
	err = schema.Validate(value)
	if err == nil {
		return nil
	}
	report := schemaReport{root: value}
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return []FieldError{{Path: "/payload", Message: "does not meet the schema"}}
	}
	report.walk(invalid)
	return report.sorted()
}

// isSchemaName reports whether s is 1–100 of the id alphabet.
func isSchemaName(s string) bool {
	outside := func(r rune) bool {
		return !('A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("_-.@", r))
	}
	return s != "" && len(s) <= 100 && !strings.ContainsFunc(s, outside)
}

// refersToItself reports whether no payload at all can be judged because of a reference cycle.
func refersToItself(schema *jsonschema.Schema) bool {
	var invalid *jsonschema.ValidationError
	return errors.As(schema.Validate(map[string]any{}), &invalid) && hasRefCycle(invalid)
}

func hasRefCycle(e *jsonschema.ValidationError) bool {
	_, cycle := e.ErrorKind.(*kind.RefCycle)
	return cycle || slices.ContainsFunc(e.Causes, hasRefCycle)
}

// schemaFiles are the folders in which schema files are looked for, the first that has a file wins.
type schemaFiles []fs.FS

// names returns the names of all *.json files, each once, in order.
func (files schemaFiles) names() ([]string, error) {
	var names []string
	for _, dir := range files {
		entries, err := fs.ReadDir(dir, ".")
		if err != nil {
			return nil, fmt.Errorf("list schema files: %w", err)
		}
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), ".json") {
				names = append(names, entry.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Load returns the schema at a schema:/// URL, and is the only way by which the compiler gets at
// a file: every other scheme is refused, and the file systems keep to their own folder.
func (files schemaFiles) Load(location string) (any, error) {
	u, err := url.Parse(location)
	if err != nil {
		return nil, err
	}
	if u.Scheme != schemaScheme || u.Host != "" {
		return nil, errors.New("only files of the schema folder may be referred to, by a relative reference")
	}
	name := strings.TrimPrefix(u.Path, "/")
	for _, dir := range files {
		text, err := fs.ReadFile(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return decodeAny(jsontext.NewDecoder(bytes.NewBuffer(text)))
	}
	return nil, fmt.Errorf("no file %s in the schema folder", name)
}

// A payloadDecoder reads one payload after the other.
type payloadDecoder struct {
	text bytes.Reader
	json jsontext.Decoder
}

// reset starts at the beginning of payload, which is trusted to be canonical: names are unique.
func (d *payloadDecoder) reset(payload []byte) *jsontext.Decoder {
	d.text.Reset(payload)
	d.json.Reset(&d.text, jsontext.AllowDuplicateNames(true))
	return &d.json
}

// decodeAny reads the one value of d, and fails when there is more. Values are what the validator
// takes: map[string]any, []any, string, json.Number, bool and nil.
func decodeAny(d *jsontext.Decoder) (any, error) {
	value, err := readAny(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, errors.New("more than one JSON value")
	}
	return value, nil
}

func readAny(d *jsontext.Decoder) (any, error) {
	token, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{':
		return readAnyObject(d)
	case '[':
		return readAnyArray(d)
	case '"':
		return token.String(), nil
	case '0':
		return schemaNumber(token.String()), nil
	case 't', 'f':
		return token.Bool(), nil
	}
	return nil, nil
}

func readAnyObject(d *jsontext.Decoder) (any, error) {
	object := make(map[string]any, 8)
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		key := name.String()
		if object[key], err = readAny(d); err != nil {
			return nil, err
		}
	}
	_, err := d.ReadToken()
	return object, err
}

func readAnyArray(d *jsontext.Decoder) (any, error) {
	array := []any{}
	for d.PeekKind() != ']' {
		value, err := readAny(d)
		if err != nil {
			return nil, err
		}
		array = append(array, value)
	}
	_, err := d.ReadToken()
	return array, err
}

// schemaNumber returns a number that every schema judges as it would judge the literal, and that
// costs little to judge. The validator computes with math/big, which would write out every zero of
// 1e999999999. So an exponent is cut to the number of digits plus exponentMargin: the sign stays, a
// whole number stays whole and a fraction a fraction, and bounds inside 1e±400 stay on their side.
func schemaNumber(literal string) json.Number {
	i := strings.IndexAny(literal, "eE")
	if i < 0 {
		return json.Number(literal)
	}
	mantissa, exponent := literal[:i], literal[i+1:]
	limit := len(mantissa) + exponentMargin
	if n, err := strconv.Atoi(exponent); err == nil && -limit <= n && n <= limit {
		return json.Number(literal)
	}
	if strings.HasPrefix(exponent, "-") {
		limit = -limit
	}
	return json.Number(mantissa + "e" + strconv.Itoa(limit))
}
