package plan

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// list returns the items of a sequence; none where n is not given or is no sequence.
func (w *walk) list(n *yaml.Node, what string) []*yaml.Node {
	if n == nil || n.Kind == yaml.AliasNode {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		w.refuse(n, "%s must be a list, not %s", what, describe(n))
		return nil
	}
	return n.Content
}

// text returns a string, empty where n is not given or is no string.
func (w *walk) text(n *yaml.Node, what string) string {
	switch {
	case n == nil || n.Kind == yaml.AliasNode:
		return ""
	case n.Kind != yaml.ScalarNode:
		w.refuse(n, "%s must be a string, not %s", what, describe(n))
		return ""
	case n.Tag != "!!str" && n.Tag != "!!timestamp":
		hint := ""
		if n.Tag != "!!null" && n.Style&yaml.TaggedStyle == 0 {
			hint = fmt.Sprintf("; write %q", n.Value)
		}
		w.refuse(n, "%s must be a string, not %s%s", what, describe(n), hint)
		return ""
	}
	return n.Value
}

// phrase returns a string of one line.
func (w *walk) phrase(n *yaml.Node, what string) string {
	s := w.text(n, what)
	if strings.ContainsFunc(strings.TrimRight(s, "\n"), unicode.IsControl) {
		w.refuse(n, "%s must be one line without control characters", what)
	}
	return strings.TrimSpace(s)
}

// reason returns a phrase that is not empty if it is given.
func (w *walk) reason(n *yaml.Node, what string) string {
	if n == nil {
		return ""
	}
	if n.Kind == yaml.ScalarNode && (n.Tag == "!!null" || strings.TrimSpace(n.Value) == "") {
		w.refuse(n, "%s must say why", what)
		return ""
	}
	return w.phrase(n, what)
}

// id returns an identifier, empty where it is not one.
func (w *walk) id(n *yaml.Node, what string) string {
	s := w.text(n, what)
	if n.Kind != yaml.ScalarNode || s == "" && n.Tag != "!!str" {
		return ""
	}
	why := badID(s)
	switch {
	case why == "":
		return s
	case s == "" || len(s) > maxIDLength:
		w.refuse(n, "%s %s", what, why)
	default:
		w.refuse(n, "%s %q %s", what, s, why)
	}
	return ""
}

// timeout returns a duration; zero where it is not given.
func (w *walk) timeout(n *yaml.Node) time.Duration {
	if n == nil || n.Kind == yaml.AliasNode {
		return 0
	}
	d, err := time.ParseDuration(n.Value)
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag != "!!str" || err != nil:
		w.refuse(n, "timeout must be a duration such as 30s or 5m, not %s", describe(n))
		return 0
	case d <= 0:
		w.refuse(n, "timeout must be more than zero")
		return 0
	}
	return d
}

// choice returns one of two words, the first where n is not given.
func choice[T ~string](w *walk, n *yaml.Node, what string, first, second T) T {
	switch {
	case n == nil || n.Kind == yaml.AliasNode:
		return first
	case n.Kind == yaml.ScalarNode && (n.Value == string(first) || n.Value == string(second)):
		return T(n.Value)
	case n.Kind == yaml.ScalarNode && n.Tag == "!!str":
		w.refuse(n, "%s must be %s or %s, not %q%s", what, first, second, n.Value,
			nearest(n.Value, []string{string(first), string(second)}))
	default:
		w.refuse(n, "%s must be %s or %s, not %s", what, first, second, describe(n))
	}
	return first
}

// value returns a node of an action's arguments as JSON sees it. What strict refuses comes out as null.
func (w *walk) value(n *yaml.Node, depth int) any {
	switch {
	case depth > maxArgsDepth:
		return nil
	case n.Kind == yaml.MappingNode:
		out := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			out[n.Content[i].Value] = w.value(n.Content[i+1], depth+1)
		}
		return out
	case n.Kind == yaml.SequenceNode:
		out := []any{}
		for _, item := range n.Content {
			out = append(out, w.value(item, depth+1))
		}
		return out
	case n.Kind == yaml.ScalarNode:
		return w.scalar(n)
	}
	return nil
}

func (w *walk) scalar(n *yaml.Node) any {
	switch n.Tag {
	case "!!str", "!!timestamp":
		return n.Value
	case "!!bool", "!!int", "!!float":
		var v any
		if err := n.Decode(&v); err != nil {
			w.refuse(n, "%s is not a value: %v", n.Value, err)
			return nil
		}
		if f, ok := v.(float64); ok {
			return w.float(n, f)
		}
		return v
	}
	return nil
}

func (w *walk) float(n *yaml.Node, f float64) any {
	switch {
	case math.IsInf(f, 0) || math.IsNaN(f):
		w.refuse(n, "%s is not a number that JSON can hold", n.Value)
		return nil
	case !strings.ContainsAny(n.Value, ".eE"):
		w.refuse(n, "%s does not fit in 64 bits; write %q", n.Value, n.Value)
		return nil
	}
	return f
}

// describe names what a node is, for a message that wanted something else.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		return "null"
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return "the boolean " + n.Value
	}
	return fmt.Sprintf("%.40q", n.Value)
}

// join writes words as a list in a sentence.
func join(conjunction string, words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}
