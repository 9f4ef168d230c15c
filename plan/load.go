package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"
)

const (
	changeFile    = "change.yaml"
	changeVersion = 1
	maxFileBytes  = 64 << 20
	maxTotalBytes = 256 << 20 // all files of one change
	maxSteps      = 10_000
	maxIDLength   = 100
)

// origin says where the parts of a loaded change stand.
type origin struct {
	dir, file string
	id        position
	requires  []position
	steps     []stepOrigin
}

type stepOrigin struct{ id, up, down, verify position }

// Load reads the change in a directory: change.yaml and every file it refers to. What is wrong with them is reported
// at once, as an [InvalidError]; a directory that cannot be read or has no change.yaml is an error of the file system.
// Files that lie outside the directory, also behind a symbolic link, and anything but regular files are refused.
func Load(dir string) (*Change, error) {
	return load(dir, func(r *reader) (string, error) { return r.read(changeFile) })
}

// Parse reads a text as the change.yaml of a directory, as [Load] does with one that is there.
func Parse(dir string, text []byte) (*Change, error) {
	return load(dir, func(*reader) (string, error) { return normalise(text) })
}

func load(dir string, read func(*reader) (string, error)) (*Change, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("load change: %w", err)
	}
	defer root.Close() // read only
	file := filepath.Join(dir, changeFile)
	r := &reader{root: root}
	text, err := read(r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load change: %s: %w", file, fs.ErrNotExist)
	}
	w := &walk{dir: dir, file: file, scripts: map[string]*Source{}, reader: r}
	if err != nil {
		w.addFile(changeFile, err)
		return nil, w.problems.err()
	}
	c := w.document(text)
	if err := w.problems.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// reader reads the files of one change and counts their bytes.
type reader struct {
	root  *os.Root
	total int64
}

// contentError is a file whose bytes are not text.
type contentError struct {
	at      position
	message string
}

func (e *contentError) Error() string { return e.message }

// read returns a file's text, normalised.
func (r *reader) read(name string) (string, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for a writer.
	f, err := r.root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", cause(err)
	}
	defer f.Close() // read only
	info, err := f.Stat()
	if err != nil {
		return "", cause(err)
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return "", cause(err)
	}
	if len(data) > maxFileBytes {
		return "", fmt.Errorf("larger than %d MiB", maxFileBytes>>20)
	}
	if r.total += int64(len(data)); r.total > maxTotalBytes {
		return "", fmt.Errorf("the files of the change are larger than %d MiB together", maxTotalBytes>>20)
	}
	return normalise(data)
}

// cause drops the operation and the path that the file system puts before its reason: a problem has its own place.
func cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// normalise returns bytes as text without a byte order mark and with LF for every line ending, so that a file means
// the same whichever editor or checkout wrote it.
func normalise(data []byte) (string, error) {
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return "", &contentError{position{1, 1}, "the file is UTF-16; save it as UTF-8"}
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	data = bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))
	text := string(data)
	if i := strings.IndexByte(text, 0); i >= 0 {
		return "", &contentError{newLines(text).at(i), "the file holds a NUL byte; it is not text"}
	}
	if !utf8.ValidString(text) {
		i := 0
		for i < len(text) {
			r, size := utf8.DecodeRuneInString(text[i:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			i += size
		}
		return "", &contentError{newLines(text).at(i), "the file is not UTF-8"}
	}
	return text, nil
}

// addFile reports what is wrong with a file as a whole, or at the place within it.
func (w *walk) addFile(name string, err error) {
	var at position
	if content, ok := errors.AsType[*contentError](err); ok {
		at = content.at
	}
	w.problems.add(filepath.Join(w.dir, filepath.FromSlash(name)), at, "%v", err)
}

// lines finds the position of a byte in a text.
type lines struct {
	text   string
	starts []int
}

func newLines(text string) lines {
	starts := make([]int, 1, 1+strings.Count(text, "\n"))
	for i := range len(text) {
		if text[i] == '\n' {
			starts = append(starts, i+1)
		}
	}
	return lines{text, starts}
}

func (l lines) at(offset int) position {
	line, found := slices.BinarySearch(l.starts, offset)
	if !found {
		line--
	}
	return position{line + 1, utf8.RuneCountInString(l.text[l.starts[line]:offset]) + 1}
}
