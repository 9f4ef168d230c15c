package sitesync_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/belayhq/belay/engine"
	"github.com/belayhq/belay/plan"
	"github.com/belayhq/belay/sitelock"
	"github.com/belayhq/belay/storage"
	"github.com/belayhq/belay/storage/postgres"
	"github.com/belayhq/belay/tenant"
)

// A program with a PostgreSQL pool of its own applies a change to one tenant and takes it back.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	acme := tenant.Tenant{
		ID: "5b0c7d1e-6a63-4d3a-9c36-0f6f2f1f6c11", Name: "acme", // from your table of customers
		Target: tenant.Target{Dialect: tenant.Postgres, Scope: "acme"}, // the schema with its data
	}
	if err := applyAndRollBack(ctx, pool, acme, "changes/0042-customer-locale"); err != nil {
		log.Print(err)
	}
}

func applyAndRollBack(ctx context.Context, pool *pgxpool.Pool, acme tenant.Tenant, dir string) error {
	store, err := postgres.New(ctx, pool, storage.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	belay, err := engine.New(engine.Fixed(store), engine.Config{})
	if err != nil {
		return err
	}
	defer belay.Close()
	change, err := plan.Load(dir)
	if err != nil {
		return err
	}
	result, err := belay.Apply(ctx, acme, change, engine.ApplyOptions{LockTimeout: time.Minute})
	if busy, ok := errors.AsType[*sitelock.LockBusyError](err); ok {
		return fmt.Errorf("try again later: %w", busy)
	} else if err != nil {
		return err // says which step failed, where, and what is in place now
	}
	fmt.Println(result.Verdict, result.StepsDone, "of", result.StepsTotal)
	_, err = belay.Rollback(ctx, acme, change.ID, engine.RollbackOptions{})
	return err
}
