.DEFAULT_GOAL := help

GO ?= go
# Two packages at a time: each that needs PostgreSQL starts one of its own, and the tests of crashes and lapsing leases
# need a processor that is not crowded.
TEST_FLAGS ?= -p 2 -timeout 10m
LINT := bin/golangci-lint

.PHONY: help build test lint fmt demo clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build bin/belay
	$(GO) build -o bin/belay ./cmd/belay

test: ## Run all tests, on SQLite and on a real PostgreSQL
	$(GO) test -race -shuffle=on $(TEST_FLAGS) ./...

lint: $(LINT) ## Check style, common bugs and the direction of imports
	$(LINT) run ./...

fmt: $(LINT) ## Format all Go files
	$(LINT) fmt ./...

demo: build ## Kill a change over 25 tenants half-way, heal it, roll one tenant back
	$(GO) run ./examples/demo bin/belay

clean: ## Remove what was built
	rm -rf bin

# The linter is a Go module of its own, so that none of its dependencies is one of Belay's.
$(LINT): tools/go.mod tools/go.sum
	$(GO) build -C tools -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
