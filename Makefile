.DEFAULT_GOAL := help

GO ?= go
# Two packages at a time: each that needs PostgreSQL starts one of its own, and the tests of crashes and lapsing leases
# need a processor that is not crowded.
TEST_FLAGS ?= -p 2 -timeout 20m
LINT := bin/golangci-lint

DURATION ?= 2m
SEED ?= 0

.PHONY: help build test test-pooler sweep soak mutants lint fmt demo bench bench-quick bench-test model model-full clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/belay
	@echo 'building bin/belay (the first time this compiles SQLite, which takes a minute)'
	@$(GO) build -o bin/belay ./cmd/belay

test: ## Run all tests, on SQLite and on a real PostgreSQL
	$(GO) test -race -shuffle=on $(TEST_FLAGS) ./...

# Its two connections to a database are too few for tests that need more transactions open at once.
test-pooler: ## Run the crash tests on PostgreSQL behind PgBouncer (half a minute)
	BELAY_TEST_POOLER=1 $(GO) test -race -shuffle=on -parallel 6 -timeout 5m ./integration \
		-run '^Test(AProcessKilledAtAnyEdge|AnAbandonedApply|AStalledHolder|ABrokenHolder|AnUnknownCommit|ATerminatedApply|ACascadeSurvives|APartialPlan|SixteenProcessesStart)'

# make test tries a part in which each pair of database, operation, step, point and fault occurs.
sweep: ## Try every fault at every point of every operation, not only a part (ten minutes)
	BELAY_TEST_SWEEP=1 $(GO) test -count=1 -timeout 30m ./integration -run '^TestEveryFaultAtEveryPointHeals$$'

soak: ## Kill, stop and cut processes at random on both databases, then check all they did (DURATION=2m, SEED= to replay)
	$(GO) test -v -count=1 -timeout 0 ./integration/soak -duration $(DURATION) -seed $(SEED)
	$(GO) test -v -count=1 ./storage/sqlite -run '^TestManyProcessesThatWrite' -crowded 1m

mutants: ## Break each rule of the protocol and demand that a test goes red (MUTANTS='-run regexp -list', ten minutes)
	$(GO) run ./integration/mutants $(MUTANTS)

lint: $(LINT) ## Check style, common bugs and the direction of imports
	$(LINT) run ./...
	cd bench && ../$(LINT) run ./...

fmt: $(LINT) ## Format all Go files
	$(LINT) fmt ./...

demo: build ## Kill a change over 25 tenants half-way, heal it, roll one tenant back
	$(GO) run ./examples/demo bin/belay

# The peers are dependencies of the bench alone, which is a Go module of its own.
bench: ## Measure Belay beside its peers and write docs/performance.md (an hour)
	$(GO) run -C bench . -write ../docs/performance.md

bench-quick: ## The same on few tenants, one round, nothing written (a few minutes)
	$(GO) run -C bench . -tenants 200 -schemas 50 -rounds 1 -workers 16

bench-test: ## See that every contender of the bench does its work, on few tenants
	$(GO) test -C bench ./...

model: ## Check the protocol's model, and that each broken rule is noticed (needs spin)
	docs/model/run quick

model-full: ## The model's longer variants (some minutes)
	docs/model/run full

clean: ## Remove what was built
	rm -rf bin

# The linter is a Go module of its own, so that none of its dependencies is one of Belay's.
$(LINT): tools/go.mod tools/go.sum
	$(GO) build -C tools -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
