// Command sitesync compares the sites of tenants with a source site, syncs them and takes them back.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/belayhq/belay/examples/sitesync"
	"github.com/belayhq/belay/sitelock"
)

const usage = `usage: sitesync [-source SCHEMA] [-cdn DIR] diff|sync|undo SITE...

SITE is the schema of a tenant's site in the database DATABASE_URL.

`

func main() {
	source := flag.String("source", "source", "schema of the site to copy")
	cdn := flag.String("cdn", "cdn", "directory for the published manifests")
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage); flag.PrintDefaults() }
	flag.Parse()
	if flag.NArg() < 2 {
		flag.Usage()
		os.Exit(64)
	}
	// The first signal cancels: the sync under way is taken back. The second ends the process, and the next sync finishes
	// what this one began.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, *source, *cdn, flag.Arg(0), flag.Args()[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sitesync:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, source, cdn, command string, sites []string) error {
	if err := os.MkdirAll(cdn, 0o755); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	product, err := sitesync.New(ctx, pool, sitesync.Dir(cdn), source, sitesync.Config{})
	if err != nil {
		return err
	}
	defer product.Close()

	var problems []error
	for _, site := range sites {
		err := one(ctx, product, command, site)
		if busy, ok := errors.AsType[*sitelock.LockBusyError](err); ok {
			err = fmt.Errorf("%s: try again later: %w", site, busy)
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func one(ctx context.Context, product *sitesync.Product, command, name string) error {
	operation := product.Sync
	switch command {
	case "diff":
		return diff(ctx, product, name)
	case "sync":
	case "undo":
		operation = product.Undo
	default:
		return fmt.Errorf("unknown command %s", command)
	}
	result, err := operation(ctx, sitesync.Site(name))
	if err == nil {
		fmt.Printf("%s: %s\n", name, result.Verdict)
	}
	return err
}

func diff(ctx context.Context, product *sitesync.Product, name string) error {
	d, err := product.Diff(ctx, sitesync.Site(name))
	if err != nil {
		return err
	}
	fmt.Printf("%s: pages %d to write, %d to delete; settings %d to write, %d to delete\n", name,
		len(d.Pages.Put), len(d.Pages.Delete), len(d.Settings.Put), len(d.Settings.Delete))
	return nil
}
