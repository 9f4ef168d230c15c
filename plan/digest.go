package plan

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Encode returns the change as canonical JSON: fields in fixed order, the keys of arguments sorted, no spaces. It is
// what a database keeps, and equal changes have equal encodings. A database that stores JSON in a form of its own may:
// what [DecodeChange] reads back encodes to the same bytes.
func (c *Change) Encode() []byte {
	canonical := *c
	canonical.Version = cmp.Or(c.Version, changeVersion)
	canonical.OnFailure = cmp.Or(c.OnFailure, StopOnFailure)
	canonical.Checkpoint = cmp.Or(c.Checkpoint, CheckpointAuto)
	canonical.Steps = make([]Step, len(c.Steps))
	for i, s := range c.Steps {
		if s.Action != nil {
			s.Action = &ActionRef{Name: s.Action.Name, Args: canonicalArgs(s.Action.Args)}
		}
		canonical.Steps[i] = s
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // SQL is full of < and >
	if err := enc.Encode(&canonical); err != nil {
		panic("plan: a change of plain values did not encode: " + err.Error())
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// Digest names the content of the change: every field and the text of every file and variant it refers to.
func (c *Change) Digest() Digest {
	sum := sha256.Sum256(c.Encode())
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// DecodeChange reads what [Change.Encode] wrote. A change with fields, kinds or a version that this binary does not
// know is [ErrUnsupported]: carrying out the part that is understood would be wrong.
func DecodeChange(data []byte) (*Change, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var c Change
	if err := dec.Decode(&c); err != nil {
		var head struct {
			Version int `json:"version"`
		}
		if json.Unmarshal(data, &head) == nil && head.Version >= changeVersion {
			return nil, fmt.Errorf("decode change: %w: %w", ErrUnsupported, err)
		}
		return nil, fmt.Errorf("decode change: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("decode change: more than one JSON value")
	}
	if c.Version != changeVersion {
		return nil, fmt.Errorf("decode change %s: %w: version %d", c.ID, ErrUnsupported, c.Version)
	}
	for i := range c.Steps {
		s := &c.Steps[i]
		if err := s.supported(); err != nil {
			return nil, fmt.Errorf("decode change %s: step %s: %w", c.ID, s.ID, err)
		}
		if s.Action != nil {
			s.Action.Args = canonicalArgs(s.Action.Args)
		}
	}
	return &c, nil
}

// DecodeStored reads a change that a database keeps under its digest, and checks that it still is that one. Errors are
// those of [DecodeChange], or say that the change is damaged.
func DecodeStored(digest Digest, body []byte) (*Change, error) {
	c, err := DecodeChange(body)
	if errors.Is(err, ErrUnsupported) {
		return nil, err // a newer binary wrote it so
	}
	if err == nil {
		if is := c.Digest(); is != digest {
			err = fmt.Errorf("its content has the digest %s", is.Short())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("change %s is damaged: %w", digest.Short(), err)
	}
	return c, nil
}

func (s *Step) supported() error {
	switch s.Kind {
	case SQL:
		if s.Up == nil {
			return errors.New("a sql step without a script")
		}
	case Action:
		if s.Action == nil {
			return errors.New("an action step without an action")
		}
		if args := bytes.TrimSpace(s.Action.Args); len(args) > 0 && args[0] != '{' {
			return errors.New("arguments that are not a JSON object")
		}
	default:
		return fmt.Errorf("%w: kind %q", ErrUnsupported, s.Kind)
	}
	return nil
}

// canonicalArgs returns arguments in one form, whatever order of keys and spelling of numbers a database gave them
// back in. What is not JSON becomes a JSON string, so that encoding cannot fail; nothing decodes it as arguments.
func canonicalArgs(args json.RawMessage) json.RawMessage {
	if len(args) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil || dec.More() {
		v = string(args)
	}
	out, err := marshalArgs(canonicalNumbers(v))
	if err != nil {
		out, _ = marshalArgs(string(args))
	}
	return out
}

func marshalArgs(v any) (json.RawMessage, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // sorts the keys of maps
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

func canonicalNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			v[key] = canonicalNumbers(item)
		}
	case []any:
		for i, item := range v {
			v[i] = canonicalNumbers(item)
		}
	case json.Number:
		return canonicalNumber(v)
	}
	return v
}

// canonicalNumber keeps a whole number of 64 bits as it is and gives any other the spelling of its float64.
func canonicalNumber(n json.Number) any {
	if i, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
		return i
	}
	if u, err := strconv.ParseUint(n.String(), 10, 64); err == nil {
		return u
	}
	f, err := n.Float64()
	if err != nil {
		return n
	}
	if f == 0 {
		return 0 // no database keeps -0
	}
	return f
}
