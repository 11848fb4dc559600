package ledger

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
)

// What stands in a log in the place of a payload and of a secret.
const (
	redactedPayload = "[REDACTED_PAYLOAD]"
	redactedSecret  = "[REDACTED]"
)

// secretWords make a name look like a secret's when one of its words is among them.
var secretWords = map[string]bool{
	"secret": true, "secrets": true, "password": true, "passwd": true, "passphrase": true, "pwd": true, "token": true, "tokens": true,
	"apikey": true, "authorization": true, "auth": true, "cookie": true, "credential": true, "credentials": true, "bearer": true,
	"privatekey": true, "signingkey": true, "jwt": true, "pin": true, "otp": true, "cvv": true, "iban": true,
}

// secretPairs do so as two words in a row: apiKey, private_key.
var secretPairs = map[string]bool{
	"api key": true, "private key": true, "signing key": true, "access key": true, "session id": true, "secret key": true, "encryption key": true,
}

// SecretName reports whether a member or attribute of this name looks like it holds a secret. Names
// are split into words at case changes, '_', '-', '.' and spaces.
func SecretName(name string) bool {
	words := words(name)
	for i, w := range words {
		if secretWords[w] || i > 0 && secretPairs[words[i-1]+" "+w] {
			return true
		}
	}
	return false
}

func words(name string) []string {
	var b strings.Builder
	var before rune
	for _, r := range name {
		if unicode.IsUpper(r) && unicode.IsLower(before) {
			b.WriteByte(' ')
		}
		before = r
		if r == '_' || r == '-' || r == '.' {
			r = ' '
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return strings.Fields(b.String())
}

// Redact is for slog.HandlerOptions.ReplaceAttr: payloads and whatever looks like a secret become a
// marker, at every level of a group.
func Redact(_ []string, a slog.Attr) slog.Attr {
	switch {
	case a.Value.Kind() == slog.KindGroup:
		return a
	case strings.EqualFold(a.Key, "payload"):
		a.Value = slog.StringValue(redactedPayload)
	case SecretName(a.Key):
		a.Value = slog.StringValue(redactedSecret)
	}
	return a
}

// RedactPayload returns a canonical payload in which the value of every member whose name looks like a
// secret's is a marker, whatever the value is and however deep it stands, and the JSON pointers of these
// members. All else is as it was, and the payload itself is not changed.
func RedactPayload(payload []byte) (shown []byte, withheld []string, err error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(payload))
	var out bytes.Buffer
	enc := jsontext.NewEncoder(&out)
	for {
		kind, n := dec.StackIndex(dec.StackDepth())
		isName := kind == '{' && n%2 == 0
		tok, err := dec.ReadToken()
		if err == io.EOF {
			return bytes.TrimSuffix(out.Bytes(), []byte("\n")), withheld, nil
		}
		if err != nil {
			return nil, nil, err
		}
		secret := isName && tok.Kind() == '"' && SecretName(tok.String())
		if err := enc.WriteToken(tok); err != nil {
			return nil, nil, err
		}
		if !secret {
			continue
		}
		withheld = append(withheld, string(dec.StackPointer()))
		if err := dec.SkipValue(); err != nil {
			return nil, nil, err
		}
		if err := enc.WriteToken(jsontext.String(redactedSecret)); err != nil {
			return nil, nil, err
		}
	}
}
