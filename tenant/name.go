package tenant

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of names and labels, in bytes and entries.
const (
	MaxNameBytes  = 63
	MaxLabelBytes = 63 // of a key, and of a value
	MaxLabels     = 64 // of one tenant
)

// ValidateName checks a tenant's name: 1 to 63 bytes, lower-case ASCII letters, digits, "-", "_" and ".", beginning with
// a letter or a digit. So no two names look alike or differ by case only, and a name is safe in paths and on terminals.
// The error shows the name quoted and cut, unless it looks like a URL, which may hold a password.
func ValidateName(s string) error {
	if s == "" {
		return errors.New("tenant name is empty")
	}
	if len(s) > MaxNameBytes {
		return fmt.Errorf("tenant name %s has %d bytes, at most %d are allowed", quote(s), len(s), MaxNameBytes)
	}
	for i, r := range s {
		switch {
		case isLower(r) || isDigit(r):
		case i == 0 && isNamePunct(r):
			return fmt.Errorf("tenant name %s must begin with a letter or a digit", quote(s))
		case isNamePunct(r):
		case isUpper(r):
			return fmt.Errorf("tenant name %s has an upper-case letter at position %d: names are lower-case", quote(s), i+1)
		default:
			return fmt.Errorf("tenant name %s has %s at position %d: only a-z, 0-9, \"-\", \"_\" and \".\" are allowed",
				quote(s), describeRune(s[i:]), position(s, i))
		}
	}
	return nil
}

// ValidateLabels checks a tenant's labels. Keys have 1 to 63 bytes, values 0 to 63; both consist of ASCII letters,
// digits, "-", "_", "." and "/" and begin and end with a letter or a digit. Case matters.
func ValidateLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return fmt.Errorf("%d labels, at most %d are allowed", len(labels), MaxLabels)
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if err := validateLabel(key, labels[key]); err != nil {
			return err
		}
	}
	return nil
}

// ParseLabels reads key=value pairs separated by sep (";" in import files, "," in flags), with spaces around them
// ignored. It returns nil for an empty text.
func ParseLabels(s, sep string) (map[string]string, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	labels := map[string]string{}
	for pair := range strings.SplitSeq(s, sep) {
		key, value, err := parseLabel(strings.TrimSpace(pair))
		if err != nil {
			return nil, err
		}
		if _, twice := labels[key]; twice {
			return nil, fmt.Errorf("label %q is given twice", key)
		}
		labels[key] = value
	}
	return labels, ValidateLabels(labels)
}

// ParseLabelChanges reads changes of labels, key=value to set and key- to remove, several in one argument separated by
// commas. A key may appear once only.
func ParseLabelChanges(args []string) (set map[string]string, remove []string, err error) {
	set = map[string]string{}
	for _, arg := range args {
		for change := range strings.SplitSeq(arg, ",") {
			change = strings.TrimSpace(change)
			key, isRemoval := strings.CutSuffix(change, "-")
			isRemoval = isRemoval && !strings.Contains(change, "=")
			var value string
			if isRemoval {
				err = validateLabel(key, "")
			} else {
				key, value, err = parseLabel(change)
			}
			if err != nil {
				return nil, nil, err
			}
			if _, twice := set[key]; twice || slices.Contains(remove, key) {
				return nil, nil, fmt.Errorf("label %q is given twice", key)
			}
			if isRemoval {
				remove = append(remove, key)
			} else {
				set[key] = value
			}
		}
	}
	return set, remove, ValidateLabels(set)
}

func parseLabel(pair string) (key, value string, err error) {
	key, value, ok := strings.Cut(pair, "=")
	if !ok {
		return "", "", fmt.Errorf("label %s: want key=value", quote(pair))
	}
	return key, value, validateLabel(key, value)
}

// validateLabel never shows a value; people mistake labels for a place to keep secrets.
func validateLabel(key, value string) error {
	if key == "" {
		return errors.New("label key is empty")
	}
	if err := validateLabelText(key); err != nil {
		return fmt.Errorf("label key %s %w", quote(key), err)
	}
	if err := validateLabelText(value); err != nil {
		return fmt.Errorf("label %q: the value %w", key, err)
	}
	return nil
}

// validateLabelText returns an error that continues a sentence.
func validateLabelText(s string) error {
	if s == "" {
		return nil
	}
	if len(s) > MaxLabelBytes {
		return fmt.Errorf("has %d bytes, at most %d are allowed", len(s), MaxLabelBytes)
	}
	for i, r := range s {
		if !isLabelRune(r) {
			return fmt.Errorf("has %s at position %d: only letters, digits, \"-\", \"_\", \".\" and \"/\" are allowed",
				describeRune(s[i:]), position(s, i))
		}
	}
	if !isAlnum(rune(s[0])) || !isAlnum(rune(s[len(s)-1])) {
		return errors.New("must begin and end with a letter or a digit")
	}
	return nil
}

// quote shows foreign text in an error: escaped, cut, and not at all if it may hold a password.
func quote(s string) string {
	const maxShown = 40
	_, afterColon, _ := strings.Cut(s, ":")
	if strings.Contains(s, "://") || strings.Contains(afterColon, "@") || strings.Contains(strings.ToLower(s), "password") {
		return "(not shown: it may hold a password)"
	}
	if len(s) <= maxShown {
		return strconv.Quote(s)
	}
	end := maxShown
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return strconv.Quote(s[:end]) + "…"
}

// describeRune names the first character of s so that look-alikes and invisible ones can be told apart.
func describeRune(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	switch {
	case r == utf8.RuneError && size == 1:
		return fmt.Sprintf("byte 0x%02X, which is not UTF-8,", s[0])
	case r > ' ' && r < utf8.RuneSelf && r != 0x7f:
		return strconv.Quote(string(r))
	}
	return fmt.Sprintf("%q (%U)", r, r)
}

// position counts characters from 1.
func position(s string, offset int) int { return utf8.RuneCountInString(s[:offset]) + 1 }

func isLower(r rune) bool     { return 'a' <= r && r <= 'z' }
func isUpper(r rune) bool     { return 'A' <= r && r <= 'Z' }
func isDigit(r rune) bool     { return '0' <= r && r <= '9' }
func isAlnum(r rune) bool     { return isLower(r) || isUpper(r) || isDigit(r) }
func isWord(r rune) bool      { return isAlnum(r) || r == '_' }
func isNamePunct(r rune) bool { return r == '-' || r == '_' || r == '.' }
func isLabelRune(r rune) bool { return isAlnum(r) || isNamePunct(r) || r == '/' }
