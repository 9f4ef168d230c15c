// Package sitesync is a small product that embeds Belay. It brings the sites of its tenants in line with a source site,
// and back: each site is a PostgreSQL schema with pages and settings, and a manifest on a CDN says what is published.
//
// Each sync is a change of its own, built from the difference between the two sites. Its rows step is a transactional
// action, exactly once; its publish step is an external one, at least once. The product has one pool and no control
// database. A sync or undo that was killed half-way is finished by the next call on the same site.
//
// It reads whole sites into memory, and a change holds every row that differs.
package sitesync

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/tenant"
)

// Config tunes a Product. The zero value of each field is its default.
type Config struct {
	// Lease is how long a site stays locked after the process working on it died. Default: the engine's.
	Lease time.Duration
	// PublishTimeout bounds one call of the CDN. After a crash the next sync waits until it has passed, so that a call
	// still under way cannot come late. Default 10 s.
	PublishTimeout time.Duration
}

// Product syncs sites. It is safe for concurrent use, in any number of processes.
type Product struct {
	pool   *pgxpool.Pool
	store  *postgres.Store
	engine *engine.Engine
	source string
	config Config
}

// New returns a Product that copies the schema source and publishes to cdn. The pool stays the caller's to close, after
// [Product.Close].
func New(ctx context.Context, pool *pgxpool.Pool, cdn CDN, source string, config Config) (*Product, error) {
	config.PublishTimeout = cmp.Or(config.PublishTimeout, 10*time.Second)
	store, err := postgres.New(ctx, pool, storage.Options{})
	if err != nil {
		return nil, err
	}
	actions := engine.NewActions()
	engine.Register(actions, writeRows, engine.Transactional[Difference]{Do: putRows, Undo: takeRowsBack})
	engine.RegisterExternal(actions, publishManifest, publishing(cdn))
	belay, err := engine.New(engine.Fixed(store), engine.Config{Lease: config.Lease, Actions: actions})
	if err != nil {
		store.Close()
		return nil, err
	}
	return &Product{pool: pool, store: store, engine: belay, source: source, config: config}, nil
}

// Close ends what runs in the background. Call it when no sync or undo runs any more.
func (p *Product) Close() {
	p.engine.Close()
	p.store.Close()
}

// Site is the tenant whose site is in a schema. A product takes the id from its table of customers; here it is derived
// from the name, so a site that is dropped and made again has the history of the old one.
func Site(schema string) tenant.Tenant {
	id := uuid.NewSHA1(uuid.NameSpaceDNS, []byte(schema+".sitesync.example"))
	return tenant.Tenant{
		ID: tenant.ID(id.String()), Name: schema,
		Target: tenant.Target{Dialect: tenant.Postgres, Scope: schema},
	}
}

// Sync makes a site equal to the source and publishes it. The verdict is already_applied if it was equal before. A sync
// that fails or is cancelled takes back what it did. Errors are the engine's; refused for its digest means that another
// process has synced the site to another state of the source meanwhile.
func (p *Product) Sync(ctx context.Context, site tenant.Tenant) (engine.Result, error) {
	// The plans are read before the difference. If somebody else syncs in between, both make a change of the same id, and
	// the second finds its work done or is refused.
	records, err := p.engine.Records(ctx, site)
	if err != nil {
		return failed(site, fmt.Errorf("read plans of %s: %w", site.Name, err))
	}
	done := engine.Result{Tenant: site, Verdict: engine.VerdictAlreadyApplied}
	// What a dead process left half-way comes first: compared with the source, such a site may look finished.
	resumed, err := p.engine.Resume(ctx, site, engine.ResumeOptions{LockTimeout: p.patience()})
	switch {
	case err != nil && resumed == nil:
		return failed(site, err)
	case err != nil:
		return *resumed, err
	case resumed != nil:
		done = *resumed
	}
	diff, wanted, err := p.compare(ctx, site)
	if err != nil {
		return failed(site, err)
	}
	if diff.Empty() {
		return done, nil
	}
	change, err := p.change(nextID(records), diff, wanted)
	if err != nil {
		return failed(site, err)
	}
	return p.engine.Apply(ctx, site, change, engine.ApplyOptions{LockTimeout: p.patience()})
}

// Undo takes a site back to before its newest sync. The verdict is already_rolled_back if there is none. It refuses if
// anybody has edited what it would overwrite.
func (p *Product) Undo(ctx context.Context, site tenant.Tenant) (engine.Result, error) {
	records, err := p.engine.Records(ctx, site)
	if err != nil {
		return failed(site, fmt.Errorf("read plans of %s: %w", site.Name, err))
	}
	var newest plan.Record
	for _, r := range records { // in the order of their first claim
		if _, ours := number(r.Plan.Change); ours && r.Touched() {
			newest = r
		}
	}
	if newest.Plan.Change == "" {
		return engine.Result{Tenant: site, Verdict: engine.VerdictAlreadyRolledBack}, nil
	}
	if err := p.checkUnedited(ctx, site, newest); err != nil {
		return engine.Result{Tenant: site, Change: newest.Plan.Change, Verdict: engine.VerdictRefused, Err: err}, err
	}
	return p.rollback(ctx, site, newest.Plan.Change)
}

// failed is the result of an operation that did not get as far as the engine.
func failed(site tenant.Tenant, err error) (engine.Result, error) {
	return engine.Result{Tenant: site, Verdict: engine.VerdictFailed, Err: err}, err
}

func (p *Product) rollback(ctx context.Context, site tenant.Tenant, change string) (engine.Result, error) {
	return p.engine.Rollback(ctx, site, change, engine.RollbackOptions{LockTimeout: p.patience()})
}

// checkUnedited refuses an undo before it has touched anything. The action checks again, in its transaction.
func (p *Product) checkUnedited(ctx context.Context, site tenant.Tenant, r plan.Record) error {
	change, err := p.engine.Change(ctx, site, r.Plan.Digest)
	if err != nil {
		return fmt.Errorf("read %s of %s: %w", r.Plan.Change, site.Name, err)
	}
	written, inPlace, err := rowsWritten(change, r)
	if err != nil || !inPlace {
		return err
	}
	return p.look(ctx, func(db reader) error {
		if err := db.enter(ctx, site.Target.Scope); err != nil {
			return err
		}
		return written.unedited(ctx, db)
	})
}

// patience outlasts the lease of a process that died.
func (p *Product) patience() time.Duration { return p.engine.Lease() * 3 / 2 }

// Diff says what a sync would change on a site.
func (p *Product) Diff(ctx context.Context, site tenant.Tenant) (Difference, error) {
	diff, _, err := p.compare(ctx, site)
	return diff, err
}

// compare reads both sites in one snapshot and returns what differs, and the source.
func (p *Product) compare(ctx context.Context, site tenant.Tenant) (diff Difference, wanted contents, err error) {
	err = p.look(ctx, func(db reader) error {
		if wanted, err = db.contents(ctx, p.source); err != nil {
			return err
		}
		if !wanted.made {
			return fmt.Errorf("schema %s has no tables", p.source)
		}
		present, err := db.contents(ctx, site.Target.Scope)
		diff = difference(wanted, present)
		return err
	})
	if err != nil {
		return Difference{}, contents{}, fmt.Errorf("compare %s with %s: %w", site.Name, p.source, err)
	}
	return diff, wanted, nil
}

// look runs fn in a read-only transaction that sees one snapshot.
func (p *Product) look(ctx context.Context, fn func(reader) error) error {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, p.pool, snapshot, func(tx pgx.Tx) error { return fn(reader{tx}) })
}

const idPrefix = "sync-"

// nextID numbers a site's syncs. The width keeps them in order as text, too.
func nextID(records []plan.Record) string {
	last := 0
	for _, r := range records {
		if n, ours := number(r.Plan.Change); ours {
			last = max(last, n)
		}
	}
	return fmt.Sprintf("%s%06d", idPrefix, last+1)
}

func number(change string) (n int, ours bool) {
	digits, ours := strings.CutPrefix(change, idPrefix)
	n, err := strconv.Atoi(digits)
	return n, ours && err == nil
}
