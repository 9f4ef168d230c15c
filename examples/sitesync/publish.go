package sitesync

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
)

// CDN keeps one manifest for each site.
type CDN interface {
	// Manifest returns what is published for a site; nil if nothing is.
	Manifest(ctx context.Context, site string) ([]byte, error)
	// Publish replaces what is published as a whole, and durably; nil takes it away.
	Publish(ctx context.Context, site string, manifest []byte) error
}

// Manifest is what a CDN is told of a site: content hashes, in hexadecimal.
type Manifest struct {
	Pages    map[string]string `json:"pages"` // by slug
	Settings string            `json:"settings"`
}

func (c contents) manifest() Manifest {
	m := Manifest{Pages: make(map[string]string, len(c.pages)), Settings: hash(c.settings)}
	for slug, page := range c.pages {
		m.Pages[slug] = hash(page)
	}
	return m
}

// hash is of JSON with sorted keys, which cannot fail for strings.
func hash(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// publication is the arguments of a publish step.
type publication struct {
	Manifest Manifest `json:"manifest"`
}

func (p publication) text() ([]byte, error) { return json.MarshalIndent(p.Manifest, "", "  ") }

// publishing is the external action. What it does to the CDN can be done twice, and looked at, so that nothing is lost or
// doubled when a process dies between the effect and the record of it.
func publishing(cdn CDN) engine.External[publication] {
	type call = engine.ActionCall[publication]
	return engine.External[publication]{
		Capture: func(ctx context.Context, c call) ([]byte, error) {
			return cdn.Manifest(ctx, c.Tenant.Name)
		},
		Do: func(ctx context.Context, c call) error {
			text, err := c.Args.text()
			if err != nil {
				return err
			}
			return cdn.Publish(ctx, c.Tenant.Name, text)
		},
		Inspect: func(ctx context.Context, c call) (happened bool, err error) {
			want := c.Before
			if c.Direction == plan.Up {
				if want, err = c.Args.text(); err != nil {
					return false, err
				}
			}
			published, err := cdn.Manifest(ctx, c.Tenant.Name)
			return bytes.Equal(published, want), err
		},
		Undo: func(ctx context.Context, c call) error {
			return cdn.Publish(ctx, c.Tenant.Name, c.Before)
		},
	}
}

// Dir is a CDN kept in a directory that exists: a file for each site.
type Dir string

var _ CDN = Dir("")

// Manifest reads a site's file.
func (d Dir) Manifest(_ context.Context, site string) ([]byte, error) {
	text, err := os.ReadFile(d.file(site))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// Publish replaces a site's file by renaming a complete one, so that nobody reads half a manifest.
func (d Dir) Publish(ctx context.Context, site string, manifest []byte) error {
	if manifest == nil {
		if err := os.Remove(d.file(site)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return d.sync()
	}
	fresh, err := os.CreateTemp(string(d), "fresh-*")
	if err != nil {
		return err
	}
	defer os.Remove(fresh.Name()) //nolint:errcheck // gone once it is renamed
	_, err = fresh.Write(manifest)
	if err := errors.Join(err, fresh.Sync(), fresh.Close(), context.Cause(ctx)); err != nil {
		return err
	}
	if err := os.Rename(fresh.Name(), d.file(site)); err != nil {
		return err
	}
	return d.sync()
}

// sync makes a rename or a removal durable: the journal will say that it happened.
func (d Dir) sync() error {
	dir, err := os.Open(string(d))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// file has the site's name in a form that cannot lead out of the directory.
func (d Dir) file(site string) string { return filepath.Join(string(d), url.PathEscape(site)+".json") }
