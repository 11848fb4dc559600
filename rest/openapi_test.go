package rest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// specification is openapi.yaml, against which every answer of every test is held. It is read more
// strictly here than by others: an answer may have no member that is not described.
type specification struct {
	doc map[string]any

	mu       sync.Mutex // guards all below
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema
}

var spec = sync.OnceValues(func() (*specification, error) {
	text, err := os.ReadFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		return nil, err
	}
	closeObjects(doc)
	s := &specification{doc: doc.(map[string]any), compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}}
	s.compiler.DefaultDraft(jsonschema.Draft2020)
	return s, s.compiler.AddResource("file:///openapi.json", doc)
})

// closeObjects forbids members that are not described.
func closeObjects(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["properties"]; ok && v["required"] != nil && v["additionalProperties"] == nil {
			v["additionalProperties"] = false
		}
		for _, member := range v {
			closeObjects(member)
		}
	case []any:
		for _, item := range v {
			closeObjects(item)
		}
	}
}

// check says how an answer differs from what is described for its route.
func (s *specification) check(method, path string, r reply) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	template, ok := s.template(path)
	if !ok {
		return nil // a path that the service does not have, or one of a test
	}
	operation := at(s.doc, "paths", template, strings.ToLower(method))
	if operation == nil {
		if r.status != 405 {
			return fmt.Errorf("%s %s is not described, and the answer is %d", method, template, r.status)
		}
		return nil
	}
	response := at(operation, "responses", fmt.Sprint(r.status))
	if response == nil {
		return fmt.Errorf("%s %s: status %d is not described", method, template, r.status)
	}
	pointer := "#/paths/" + escape(template) + "/" + strings.ToLower(method) + "/responses/" + fmt.Sprint(r.status)
	if ref, ok := response["$ref"].(string); ok {
		name := strings.TrimPrefix(ref, "#/components/responses/")
		response, pointer = at(s.doc, "components", "responses", name), ref
	}
	for name := range at(response, "headers") {
		if at(response, "headers", name)["required"] == true && r.header.Get(name) == "" {
			return fmt.Errorf("%s %s: %d has no %s", method, template, r.status, name)
		}
	}
	kind, _, _ := strings.Cut(r.header.Get("Content-Type"), ";")
	content := at(response, "content", kind)
	if content == nil {
		return fmt.Errorf("%s %s: %d as %q is not described", method, template, r.status, kind)
	}
	if content["schema"] == nil {
		return nil
	}
	return s.validate(pointer+"/content/"+escape(kind)+"/schema", r.body)
}

// at is the object under a few names, nil when there is none.
func at(v any, names ...string) map[string]any {
	m, _ := v.(map[string]any)
	for _, name := range names {
		m, _ = m[name].(map[string]any)
	}
	return m
}

func (s *specification) validate(pointer string, body []byte) error {
	schema := s.schemas[pointer]
	if schema == nil {
		var err error
		if schema, err = s.compiler.Compile("file:///openapi.json" + pointer); err != nil {
			return err
		}
		s.schemas[pointer] = schema
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return schema.Validate(v)
}

func escape(part string) string {
	part = strings.NewReplacer("~", "~0", "/", "~1").Replace(part)
	return strings.NewReplacer("{", "%7B", "}", "%7D").Replace(part)
}

// template is the path as it is described.
func (s *specification) template(path string) (string, bool) {
	path, _, _ = strings.Cut(path, "?")
	got := strings.Split(path, "/")
	for template := range at(s.doc, "paths") {
		want := strings.Split(template, "/")
		fits := len(got) == len(want)
		for i := 0; fits && i < len(want); i++ {
			fits = got[i] == want[i] || strings.HasPrefix(want[i], "{")
		}
		if fits {
			return template, true
		}
	}
	return "", false
}

func TestSpecificationIsServed(t *testing.T) {
	s := newService(t, options{})
	want, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if r := s.do("GET", "/api/v1/openapi.yaml", ""); !bytes.Equal(r.body, want) {
		t.Errorf("got %d bytes, want openapi.yaml", len(r.body))
	}
}

// The check must be able to fail: an answer without a member, with one too many, or with an unknown
// status or type is found.
func TestSpecificationCheckFails(t *testing.T) {
	s := newService(t, options{})
	spec, err := spec()
	if err != nil {
		t.Fatal(err)
	}
	good := s.do("GET", "/api/v1/stats", "")
	var members map[string]any
	if err := json.Unmarshal(good.body, &members); err != nil {
		t.Fatal(err)
	}
	change := func(f func(map[string]any)) []byte {
		m := map[string]any{}
		for k, v := range members {
			m[k] = v
		}
		f(m)
		b, _ := json.Marshal(m)
		return b
	}
	for name, bad := range map[string]reply{
		"a member less":  {200, good.header, change(func(m map[string]any) { delete(m, "total") })},
		"a member more":  {200, good.header, change(func(m map[string]any) { m["more"] = 1 })},
		"another type":   {200, good.header, change(func(m map[string]any) { m["total"] = "1" })},
		"another status": {204, good.header, good.body},
		"another kind":   {200, map[string][]string{"Content-Type": {"text/html"}}, good.body},
		"no Retry-After": {503, map[string][]string{"Content-Type": {"application/problem+json"}}, good.body},
	} {
		if spec.check("GET", "/api/v1/stats", bad) == nil {
			t.Errorf("%s: not found", name)
		}
	}
}
