# Ratoon: see `make help`. Everything that is made lies in bin/ and .cache/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# A go older than the one go.mod names fetches that one.
export GOTOOLCHAIN ?= auto
GO ?= go
PACKAGES ?= ./...
VENV := .cache/venv
PYTHON := $(CURDIR)/$(VENV)/bin/python

# Real VMs take a CPU each; more test binaries at once than that only wait.
GOTEST := $(GO) test -json -p 2 $(if $(RACE),-race) -timeout $(if $(RATOON_TEST_LONG),150m,35m)
REPORT := .cache/testreport -skips integration/expected-skips.txt $(if $(RATOON_TEST_STRICT),-strict)

.PHONY: help setup build test test-go test-python test-all demo bench lint clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the system packages (asks for root when some are missing)
	@setup/install.sh
	@mkdir -p .cache && touch .cache/setup.stamp

# Targets below need the packages, but not a look at them each time.
.cache/setup.stamp: setup/install.sh
	@setup/install.sh
	@mkdir -p .cache && touch $@

build: .cache/setup.stamp ## build bin/ratoon and bin/agentd
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ratoon ./host/cmd/ratoon
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ratoond ./host/cmd/ratoond
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o bin/agentd ./guest/cmd/agentd

test: test-go test-python ## unit tests, and integration tests on real VMs

# The tests' own state directory, so that they never meet a user's sandboxes.
export RATOON_STATE_DIR ?= $(if $(filter test%,$(MAKECMDGOALS)),$(CURDIR)/.cache/state)

test-go: build .cache/testreport $(VENV)/stamp # schemathesis lies in it
	@echo 'making the guest image and a template for the tests'
	@bin/ratoon run -- true
	RATOON_AGENTD=$(CURDIR)/bin/agentd $(GOTEST) $(PACKAGES) | $(REPORT)

test-python: $(VENV)/stamp
	cd python && $(PYTHON) -m pytest

test-all: ## as test, with the race detector and long matrices
	$(MAKE) test RATOON_TEST_LONG=1 RACE=1

demo: build ## run the examples: programs that search by forking their own machine
	@echo '== examples/treesearch: a Sudoku, one machine per guess'
	@bin/ratoon run --max-live 64 -- python3 - "$$(awk '$$1 == "inkala-2010" { print $$2 }' examples/treesearch/puzzles.txt)" <examples/treesearch/treesearch.py
	@echo; echo '== examples/llm_search: best-first search with a recorded model'
	@bin/ratoon run --llm cassette:examples/llm_search/game24.jsonl -- python3 - 4 9 10 13 <examples/llm_search/llm_search.py

bench: build ## measure this machine into docs/BENCHMARKS.md (BENCH=-quick: fewer rounds, BENCH=-long: more)
	RATOON_AGENTD=$(CURDIR)/bin/agentd CGO_ENABLED=0 $(GO) run ./bench $(BENCH) -o docs/BENCHMARKS.md

lint: .cache/setup.stamp $(VENV)/stamp ## gofmt, go vet, staticcheck and shellcheck if installed, ruff, mypy
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$unformatted" ]; then echo "not formatted: $$unformatted" >&2; exit 1; fi
	$(GO) vet $(PACKAGES)
	@if command -v staticcheck >/dev/null; then echo staticcheck $(PACKAGES); staticcheck $(PACKAGES); fi
	@for f in setup/install.sh .ci/run; do bash -n $$f; done
	@if command -v shellcheck >/dev/null; then echo shellcheck; shellcheck setup/install.sh .ci/run; fi
	cd python && $(PYTHON) -m ruff check . && $(PYTHON) -m mypy

clean: ## remove what make made (not the images: those lie in the state directory)
	rm -rf bin .cache

.cache/testreport: .cache/setup.stamp $(wildcard internal/testreport/*.go)
	@$(GO) build -o $@ ./internal/testreport

$(VENV)/stamp: python/pyproject.toml .cache/setup.stamp
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e 'python[dev]'
	@touch $@
