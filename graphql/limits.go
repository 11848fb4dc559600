package graphql

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/graphql-go/graphql"
	"github.com/graphql-go/graphql/gqlerrors"
	"github.com/graphql-go/graphql/language/ast"
	"github.com/graphql-go/graphql/language/kinds"
	"github.com/graphql-go/graphql/language/lexer"
	"github.com/graphql-go/graphql/language/source"
	"github.com/graphql-go/graphql/language/visitor"

	"github.com/talenttrust/auditledger/projections"
)

// Limits bound what one request may cost. Zero fields have the defaults named.
type Limits struct {
	Body    int // bytes of a request's body; 128 KiB
	Query   int // bytes of the query; 16 KiB
	Line    int // bytes of one line of the query: the library's errors cost its square; 4 KiB
	Tokens  int // of the query; 1000
	Nesting int // of braces, brackets and parentheses, and of fields once fragments are spread; 15
	Aliases int // 30
	Repeats int // of one response name in a selection; 20
	Cost    int // fields that could be answered; 50,000
	Answer  int // bytes; 8 MiB
}

func (l *Limits) defaults() {
	for field, def := range map[*int]int{
		&l.Body: 128 << 10, &l.Query: 16 << 10, &l.Line: 4 << 10, &l.Tokens: 1000, &l.Nesting: 15, &l.Aliases: 30, &l.Repeats: 20, &l.Cost: 50_000, &l.Answer: 8 << 20,
	} {
		if *field == 0 {
			*field = def
		}
	}
}

// scan walks over the tokens of a query, without parsing it, and refuses what would be expensive to
// parse or to validate.
func (l *Limits) scan(query string, introspection bool) error {
	if len(query) > l.Query {
		return refused("QUERY_TOO_LARGE", "the query has %d bytes, the limit is %d", len(query), l.Query)
	}
	for line := range strings.Lines(query) {
		if len(line) > l.Line {
			return refused("LINE_TOO_LONG", "a line of the query has %d bytes, the limit is %d: put it on several lines", len(line), l.Line)
		}
	}
	next := lexer.Lex(source.NewSource(&source.Source{Body: []byte(query), Name: "query"}))
	s := scanner{limits: l, introspection: introspection}
	for {
		tok, err := next(0)
		if err != nil {
			return syntaxFailure(err)
		}
		if tok.Kind == lexer.EOF {
			return nil
		}
		if err := s.token(tok); err != nil {
			return err
		}
	}
}

// scanner counts while tokens pass by.
type scanner struct {
	limits        *Limits
	introspection bool
	tokens        int
	aliases       int
	open          []opened
	before        lexer.Token
}

// opened is a bracket that is not closed yet.
type opened struct {
	kind  lexer.TokenKind
	names map[string]int // of a selection: how often each name stands in it
}

func (s *scanner) token(tok lexer.Token) error {
	if s.tokens++; s.tokens > s.limits.Tokens {
		return refused("TOO_MANY_TOKENS", "the query has more than %d tokens", s.limits.Tokens)
	}
	switch tok.Kind {
	case lexer.BRACE_L, lexer.PAREN_L, lexer.BRACKET_L:
		if s.open = append(s.open, opened{kind: tok.Kind}); len(s.open) > s.limits.Nesting {
			return refused("TOO_DEEP", "the query nests deeper than %d levels", s.limits.Nesting)
		}
	case lexer.BRACE_R, lexer.PAREN_R, lexer.BRACKET_R:
		if len(s.open) > 0 {
			s.open = s.open[:len(s.open)-1]
		}
	case lexer.COLON:
		if s.inSelection() {
			if s.aliases++; s.aliases > s.limits.Aliases {
				return refused("TOO_MANY_ALIASES", "the query has more than %d aliases", s.limits.Aliases)
			}
		}
	case lexer.NAME:
		if err := s.name(tok); err != nil {
			return err
		}
	}
	s.before = tok
	return nil
}

func (s *scanner) name(tok lexer.Token) error {
	if !s.introspection && (tok.Value == "__schema" || tok.Value == "__type") {
		return refused("INTROSPECTION_OFF", "introspection is switched off")
	}
	if !s.inSelection() || s.before.Kind == lexer.SPREAD || s.before.Kind == lexer.AT || s.before.Kind == lexer.COLON {
		return nil
	}
	in := &s.open[len(s.open)-1]
	if in.names == nil {
		in.names = map[string]int{}
	}
	if in.names[tok.Value]++; in.names[tok.Value] > s.limits.Repeats {
		return refused("TOO_MANY_REPEATS", "a field stands more than %d times in one selection", s.limits.Repeats)
	}
	return nil
}

// inSelection reports whether the innermost bracket is a selection's, and no argument's, brace.
func (s *scanner) inSelection() bool {
	for _, o := range s.open {
		if o.kind != lexer.BRACE_L {
			return false
		}
	}
	return len(s.open) > 0
}

// wholeTypes refuses variables whose type is not all there, which the library parses and then stumbles over.
func wholeTypes(doc *ast.Document) error {
	for _, d := range doc.Definitions {
		if op, ok := d.(*ast.OperationDefinition); ok {
			for _, v := range op.VariableDefinitions {
				if !wholeType(v.Type) {
					return refused("SYNTAX", "the variable %s has no type", clip(v.Variable.Name.Value))
				}
			}
		}
	}
	return nil
}

func wholeType(t ast.Type) bool {
	switch t := t.(type) {
	case *ast.List:
		return wholeType(t.Type)
	case *ast.NonNull:
		return wholeType(t.Type)
	case *ast.Named:
		return t != nil && t.Name != nil
	}
	return false
}

// measure refuses queries whose fragments form a cycle, that are too deep once fragments are spread,
// or whose answer could hold too many fields.
func (l *Limits) measure(doc *ast.Document, variables map[string]any) error {
	m := meter{limits: l, variables: variables, defaults: map[string][]ast.Value{}, fragments: map[string]*ast.FragmentDefinition{}, known: map[string]size{}, inside: map[string]bool{}}
	for _, d := range doc.Definitions {
		switch d := d.(type) {
		case *ast.FragmentDefinition:
			m.fragments[d.Name.Value] = d
		case *ast.OperationDefinition:
			m.operations++
			for _, v := range d.VariableDefinitions {
				if v.DefaultValue != nil {
					m.defaults[v.Variable.Name.Value] = append(m.defaults[v.Variable.Name.Value], v.DefaultValue)
				}
			}
		}
	}
	for _, d := range doc.Definitions {
		var set *ast.SelectionSet
		switch d := d.(type) {
		case *ast.OperationDefinition:
			set = d.SelectionSet
		case *ast.FragmentDefinition:
			set = d.SelectionSet
		default:
			return refused("BAD_REQUEST", "the query may hold operations and fragments only")
		}
		if _, err := m.selection(set); err != nil {
			return err
		}
	}
	return nil
}

// size is what a selection can come to.
type size struct{ cost, depth int }

type meter struct {
	limits     *Limits
	variables  map[string]any
	operations int
	defaults   map[string][]ast.Value // of variables, one for each operation that has one
	fragments  map[string]*ast.FragmentDefinition
	known      map[string]size // of fragments
	inside     map[string]bool // fragments that are being measured
}

func (m *meter) selection(set *ast.SelectionSet) (total size, err error) {
	if set == nil {
		return total, nil
	}
	for _, sel := range set.Selections {
		one, err := m.one(sel)
		if err != nil {
			return total, err
		}
		total.cost += one.cost
		total.depth = max(total.depth, one.depth)
		if total.cost > m.limits.Cost {
			return total, refused("TOO_EXPENSIVE", "the answer could hold more than %d fields: ask for smaller pages or fewer fields", m.limits.Cost)
		}
		if total.depth > m.limits.Nesting {
			return total, refused("TOO_DEEP", "the query nests deeper than %d levels", m.limits.Nesting)
		}
	}
	return total, nil
}

func (m *meter) one(sel ast.Selection) (size, error) {
	switch sel := sel.(type) {
	case *ast.Field:
		in, err := m.selection(sel.SelectionSet)
		return size{1 + in.cost*m.times(sel), 1 + in.depth}, err
	case *ast.InlineFragment:
		return m.selection(sel.SelectionSet)
	case *ast.FragmentSpread:
		return m.fragment(sel.Name.Value)
	}
	return size{}, nil
}

func (m *meter) fragment(name string) (size, error) {
	if s, ok := m.known[name]; ok {
		return s, nil
	}
	f, ok := m.fragments[name]
	if !ok {
		return size{}, nil // validation says so
	}
	if m.inside[name] {
		return size{}, refused("FRAGMENT_CYCLE", "a fragment spreads itself")
	}
	m.inside[name] = true
	s, err := m.selection(f.SelectionSet)
	delete(m.inside, name)
	m.known[name] = s
	return s, err
}

// lists says how many elements the lists of the schema have at most; pages have as many as asked for.
var lists = map[string]int{
	"history": projections.DefaultPage, "activity": projections.DefaultPage, "contracts": projections.DefaultPage,
	"findings": projections.DefaultPage, "findingsConnection": projections.DefaultPage, "entries": 2, "event": 10, "series": 100, "byContractType": 101, "byCode": 10, "projections": 4,
}

// times is how often the selection of a field may be answered.
func (m *meter) times(f *ast.Field) int {
	n, list := lists[f.Name.Value]
	if !list {
		return 1
	}
	for _, a := range f.Arguments {
		if a.Name.Value == "first" || a.Name.Value == "last" {
			n = m.number(a.Value, n)
		}
	}
	return max(n, 1)
}

// number reads a page size; one that cannot be one counts as the largest and is refused later.
func (m *meter) number(v ast.Value, absent int) int {
	var text string
	switch v.GetKind() {
	case kinds.IntValue:
		text = v.(*ast.IntValue).Value
	case kinds.Variable:
		name := v.(*ast.Variable).Name.Value
		value, ok := m.variables[name]
		if !ok || value == nil {
			for _, d := range m.defaults[name] {
				if n := m.number(d, absent); m.operations == 1 || n > absent { // of several, any may be the one that is meant
					absent = n
				}
			}
			return absent
		}
		text = fmt.Sprint(value)
	}
	if n, err := strconv.Atoi(text); err == nil && n >= 0 && n <= projections.MaxPage {
		return n
	}
	return projections.MaxPage
}

// validate holds a query against the schema. It stops after a few errors: each costs the library
// time that grows with the query.
func validate(schema *graphql.Schema, doc *ast.Document) (errs []gqlerrors.FormattedError) {
	var context *graphql.ValidationContext
	stop := func(c *graphql.ValidationContext) *graphql.ValidationRuleInstance {
		context = c
		return &graphql.ValidationRuleInstance{VisitorOpts: &visitor.VisitorOptions{Enter: func(visitor.VisitFuncParams) (string, any) {
			if len(c.Errors()) >= maxFaults {
				panic(errFaults)
			}
			return visitor.ActionNoChange, nil
		}}}
	}
	defer func() {
		if p := recover(); p == errFaults {
			errs = context.Errors()
		} else if p != nil {
			panic(p) // see Handler.check
		}
	}()
	return graphql.ValidateDocument(schema, doc, append([]graphql.ValidationRuleFn{stop}, graphql.SpecifiedRules...)).Errors
}

var errFaults = errors.New("enough errors")

const (
	maxMessage = 200
	maxFaults  = 5
)

func clip(s string) string {
	if len(s) > maxMessage {
		return string([]rune(s[:maxMessage])) + "…"
	}
	return s
}

// syntaxFailure says where a query cannot be read; the library's text repeats the query.
func syntaxFailure(err error) *failure {
	f := refused("SYNTAX", "the query cannot be parsed")
	var e *gqlerrors.Error
	if errors.As(err, &e) && len(e.Locations) > 0 {
		f.at = [2]int{e.Locations[0].Line, e.Locations[0].Column}
		f.message = fmt.Sprintf("the query cannot be parsed at line %d, column %d", f.at[0], f.at[1])
	}
	return f
}

func validationFailure(errs []gqlerrors.FormattedError) *failure {
	f := refused("VALIDATION", "%s", clip(errs[0].Message))
	if len(errs) > 1 {
		f.message += fmt.Sprintf(" (and %d more)", len(errs)-1)
	}
	if l := errs[0].Locations; len(l) > 0 {
		f.at = [2]int{l[0].Line, l[0].Column}
	}
	return f
}

// formatErrors makes the errors of an execution short, and those that are not the client's opaque.
func formatErrors(errs []gqlerrors.FormattedError) []map[string]any {
	var out []map[string]any
	for i, e := range errs {
		if i == maxFaults {
			break
		}
		m := map[string]any{"message": clip(e.Message)}
		if len(e.Locations) > 0 {
			m["locations"] = e.Locations
		}
		if len(e.Path) > 0 {
			m["path"] = e.Path
		}
		if len(e.Extensions) > 0 {
			m["extensions"] = e.Extensions
		}
		out = append(out, m)
	}
	return out
}

func opaque(requestID string) gqlerrors.FormattedError {
	return gqlerrors.FormattedError{Message: "internal error, request " + requestID, Extensions: map[string]any{"code": "INTERNAL", "requestId": requestID}}
}
