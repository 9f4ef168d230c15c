package tenant

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxRecordBytes bounds one line of an import file, and with it the memory of an unclosed quote.
const maxRecordBytes = 1 << 20

var (
	errEmptyFile     = errors.New("file is empty: want a CSV header (name,target,labels) or JSON lines")
	errRecordTooLong = fmt.Errorf("record is longer than %d bytes", maxRecordBytes)
)

// Registration is one tenant of an import file. It has no ID: whether the name is known is for the importer to find out.
type Registration struct {
	Name   string
	Target Target
	Labels map[string]string
	// Line is where the record begins in the file, from 1.
	Line int
}

// ReadImport reads tenants from CSV with a header (name, target and optionally labels, as k=v;k=v) or, if the first byte
// is "{", from JSON lines ({"name": …, "target": …, "labels": {…}}). Targets are read by ParseTarget with baseDir.
//
// Errors read "file:line: message" and show neither targets nor values of labels. After a record that is wrong in itself
// reading goes on, so that a caller can report all of them; after anything else (syntax of the file, reading) it ends. A
// name that appears twice is an error. Memory is bounded but for the set of names. The sequence can be used once.
func ReadImport(r io.Reader, file string, baseDir string) iter.Seq2[Registration, error] {
	return func(yield func(Registration, error) bool) {
		in := importer{file: file, baseDir: baseDir, firstLine: map[string]int{}, yield: yield}
		buffered := bufio.NewReader(r)
		if bom, _ := buffered.Peek(3); string(bom) == "\ufeff" {
			_, _ = buffered.Discard(len(bom)) // Peek has read them, so this cannot come short
		}
		first, err := buffered.Peek(1)
		switch {
		case err == io.EOF:
			in.fail(1, errEmptyFile)
		case err != nil:
			in.fail(1, err)
		case first[0] == '{':
			in.readJSONLines(buffered)
		default:
			in.readCSV(buffered)
		}
	}
}

type importer struct {
	file, baseDir string
	firstLine     map[string]int // of each name
	yield         func(Registration, error) bool
}

// record is what a line says, before it is checked.
type record struct {
	name, target string
	labels       map[string]string
}

// fail yields an error and reports whether to go on.
func (in *importer) fail(line int, err error) bool {
	return in.yield(Registration{Line: line}, fmt.Errorf("%s:%d: %w", in.file, line, err))
}

// add yields a record and reports whether to go on.
func (in *importer) add(line int, rec record) bool {
	if err := ValidateName(rec.name); err != nil {
		return in.fail(line, err)
	}
	if before, twice := in.firstLine[rec.name]; twice {
		return in.fail(line, fmt.Errorf("tenant %q is already on line %d", rec.name, before))
	}
	in.firstLine[strings.Clone(rec.name)] = line // a clone, because the name is a piece of the whole line
	if err := ValidateLabels(rec.labels); err != nil {
		return in.fail(line, err)
	}
	target, err := ParseTarget(rec.target, in.baseDir)
	if err != nil {
		return in.fail(line, err)
	}
	return in.yield(Registration{Name: rec.name, Target: target, Labels: rec.labels, Line: line}, nil)
}

func (in *importer) readCSV(r io.Reader) {
	limited := &recordReader{r: r, left: maxRecordBytes}
	reader := csv.NewReader(limited)
	reader.TrimLeadingSpace = true
	reader.ReuseRecord = true
	header, err := reader.Read()
	if errors.Is(err, io.EOF) {
		err = errEmptyFile
	}
	if err != nil {
		in.failCSV(1, err)
		return
	}
	columns, err := parseHeader(header)
	if err != nil {
		line, _ := reader.FieldPos(0)
		in.fail(line, err)
		return
	}
	line := 1
	for {
		limited.left = maxRecordBytes
		fields, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil && !errors.Is(err, csv.ErrFieldCount) {
			in.failCSV(line+1, err)
			return
		}
		line, _ = reader.FieldPos(0)
		var goOn bool
		if err != nil {
			goOn = in.fail(line, fmt.Errorf("%d fields, want %d as in the header", len(fields), len(columns)))
		} else if rec, err := columns.record(fields); err != nil {
			goOn = in.fail(line, err)
		} else {
			goOn = in.add(line, rec)
		}
		if !goOn {
			return
		}
	}
}

// failCSV takes the line from a syntax error; other errors only know that they happened from this line on.
func (in *importer) failCSV(line int, err error) {
	if syntax, ok := errors.AsType[*csv.ParseError](err); ok {
		line, err = syntax.StartLine, syntax.Err
	}
	in.fail(line, err)
}

// columns are the names of a CSV file's columns in their order.
type columns []string

func parseHeader(fields []string) (columns, error) {
	var cols columns
	for _, field := range fields {
		name := strings.TrimSpace(field)
		switch name {
		case "name", "target", "labels":
		default:
			return nil, fmt.Errorf("unknown column %s: the header is name,target,labels", quote(name))
		}
		if slices.Contains(cols, name) {
			return nil, fmt.Errorf("column %q appears twice", name)
		}
		cols = append(cols, name)
	}
	for _, name := range []string{"name", "target"} {
		if !slices.Contains(cols, name) {
			return nil, fmt.Errorf("column %q is missing: the header is name,target,labels", name)
		}
	}
	return cols, nil
}

func (c columns) record(fields []string) (record, error) {
	var rec record
	var err error
	for i, name := range c {
		switch name {
		case "name":
			rec.name = fields[i]
		case "target":
			rec.target = fields[i]
		case "labels":
			rec.labels, err = ParseLabels(fields[i], ";")
		}
	}
	return rec, err
}

// recordReader fails once more than left bytes were asked for; its user refills left before each record.
type recordReader struct {
	r    io.Reader
	left int
}

func (r *recordReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, errRecordTooLong
	}
	n, err := r.r.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}

func (in *importer) readJSONLines(r io.Reader) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxRecordBytes)
	line := 0
	for scanner.Scan() {
		line++
		text := bytes.TrimSpace(scanner.Bytes())
		if len(text) == 0 {
			continue
		}
		rec, err := parseJSONRecord(text)
		var goOn bool
		if err != nil {
			goOn = in.fail(line, err)
		} else {
			goOn = in.add(line, rec)
		}
		if !goOn {
			return
		}
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		in.fail(line+1, errRecordTooLong)
	case err != nil:
		in.fail(line+1, err)
	}
}

// parseJSONRecord walks the tokens itself: encoding/json would accept repeated keys and keys of another case.
func parseJSONRecord(text []byte) (record, error) {
	if !utf8.Valid(text) {
		return record{}, errors.New("line is not valid UTF-8")
	}
	var rec record
	dec := json.NewDecoder(bytes.NewReader(text))
	err := readObject(dec, "record", func(key string) (err error) {
		switch key {
		case "name":
			rec.name, err = readString(dec, "name")
		case "target":
			rec.target, err = readString(dec, "target")
		case "labels":
			rec.labels, err = readLabels(dec)
		default:
			return fmt.Errorf("unknown key %s: want name, target and labels", quote(key))
		}
		return err
	})
	if err != nil {
		return record{}, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return record{}, errors.New("text after the JSON object: want one object a line")
	}
	return rec, nil
}

func readLabels(dec *json.Decoder) (map[string]string, error) {
	labels := map[string]string{}
	err := readObject(dec, "labels", func(key string) error {
		value, err := readString(dec, "value of label "+quote(key))
		labels[key] = value
		return err
	})
	if err != nil || len(labels) == 0 {
		return nil, err
	}
	return labels, nil
}

// readObject calls visit for each key, which must read the key's value.
func readObject(dec *json.Decoder, what string, visit func(key string) error) error {
	if token, err := dec.Token(); err != nil {
		return jsonError(err)
	} else if token != json.Delim('{') {
		return fmt.Errorf("%s must be a JSON object", what)
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return jsonError(err)
		}
		key, _ := token.(string) // in an object, a token before a value is always a string
		if seen[key] {
			return fmt.Errorf("key %s appears twice", quote(key))
		}
		seen[key] = true
		if err := visit(key); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return jsonError(err)
	}
	return nil
}

func readString(dec *json.Decoder, what string) (string, error) {
	token, err := dec.Token()
	if err != nil {
		return "", jsonError(err)
	}
	s, ok := token.(string)
	if !ok {
		return "", fmt.Errorf("%s must be a string", what)
	}
	return s, nil
}

// jsonError keeps the position and drops the text, which may come from a target.
func jsonError(err error) error {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("not valid JSON at byte %d", syntax.Offset)
	}
	return errors.New("JSON object is not complete")
}
