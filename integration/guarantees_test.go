package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// shown is what a test says about itself: the guarantees in its comment.
type shown map[string][]string

var (
	aGuarantee = regexp.MustCompile(`\bG\d+\b`)
	aTest      = regexp.MustCompile("`(Test[A-Z]\\w+|storagetest/\\w+)`")
	aGroup     = regexp.MustCompile(`(?m)^\s*\{"(\w+)", \w+\},(.*)$`)
)

// The documents name no test that is not there, and the tests of a guarantee say that they are.
func TestEveryGuaranteeIsShownByTestsThatExist(t *testing.T) {
	t.Parallel()
	tests := testsOf(t, "..")
	documents, err := filepath.Glob("../docs/*.md")
	check(t, err)
	decisions, err := filepath.Glob("../docs/*/*.md")
	check(t, err)
	for _, path := range slices.Concat(documents, decisions, []string{"../README.md", "../CONTRIBUTING.md"}) {
		text, err := os.ReadFile(path)
		check(t, err)
		for _, name := range aTest.FindAllStringSubmatch(string(text), -1) {
			if _, exists := tests[name[1]]; !exists {
				t.Errorf("%s names %s, which does not exist", path, name[1])
			}
		}
	}
	text, err := os.ReadFile("../docs/guarantees.md")
	check(t, err)
	promised := map[string]bool{}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		number := aGuarantee.FindString(strings.SplitN(section, " ", 2)[0])
		if number == "" {
			continue
		}
		promised[number] = true
		_, by, _ := strings.Cut(section, "**Shown by**")
		names := aTest.FindAllStringSubmatch(by, -1)
		if len(names) == 0 || !strings.Contains(section, "**Not promised**") || !strings.Contains(section, "**Holds under**") {
			t.Errorf("%s lacks the failures under which it holds, what it does not promise, or tests that show it", number)
		}
		for _, name := range names {
			if !slices.Contains(tests[name[1]], number) {
				t.Errorf("%s is said to show %s, and its comment does not say so", name[1], number)
			}
		}
	}
	for name, numbers := range tests {
		for _, number := range numbers {
			if !promised[number] {
				t.Errorf("%s shows %s, which docs/guarantees.md does not promise", name, number)
			}
		}
	}
}

// testsOf finds every test below a directory, and the groups of the suite for both databases as storagetest/name.
func testsOf(t *testing.T, root string) shown {
	t.Helper()
	found, files := shown{}, token.NewFileSet()
	check(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				found[f.Name.Name] = append(found[f.Name.Name], aGuarantee.FindAllString(f.Doc.Text(), -1)...)
			}
		}
		return nil
	}))
	suite, err := os.ReadFile(filepath.Join(root, "storage/storagetest/storagetest.go"))
	check(t, err)
	for _, group := range aGroup.FindAllStringSubmatch(string(suite), -1) {
		found["storagetest/"+group[1]] = aGuarantee.FindAllString(group[2], -1)
	}
	return found
}
