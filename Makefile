# Everything starts here. Each target does its own set-up; a second run of it is instant.

.DEFAULT_GOAL := help
SHELL := /bin/sh

# The first Python that is new enough. Override with: make PYTHON=/path/to/python3.12 ...
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
UV := $(BIN)/uv
INSTALLED := .venv/.installed
COMPILED := .venv/.compiled
APPS := $(dir $(wildcard apps/*/pyproject.toml))
SOURCES := $(shell find src apps -name '*.py' 2>/dev/null)

.PHONY: help setup run test programs collected lint format test-slow test-interop bench proto pins clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

$(UV):
	@test -n "$(PYTHON)" || { echo "crabtalk needs Python 3.11 or newer: install one, or say make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "could not create .venv with $(PYTHON): is it there? On Debian and Ubuntu it also needs python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt

$(INSTALLED): $(UV) pyproject.toml requirements/dev.txt $(wildcard apps/*/pyproject.toml)
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes --compile-bytecode -r requirements/dev.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . $(APPS:%=-e %)
	@touch $@

# Some environments forbid Python to write bytecode; without it every start is a cold start.
$(COMPILED): $(INSTALLED) $(SOURCES)
	@$(BIN)/python -m compileall -q src $(wildcard apps)
	@touch $@

setup: $(COMPILED) ## create .venv with everything in it

run: $(COMPILED) ## talk with your agents; echo "Say hello" | make run has them answer that
	@$(BIN)/crabtalkd model install --if-needed
	@exec $(BIN)/crabtalk

test: ## every check: format, lint, types, import contracts, the whole test suite
	@$(MAKE) --no-print-directory -j2 lint collected programs
	$(MEMORY) $(BIN)/python -m pytest -n 4 --dist worksteal

# The tests write much, wait for the disk at every step, and keep nothing: where there is room for
# it in memory that is where they write.
MEMORY := $(if $(shell df -Pk /dev/shm 2>/dev/null | awk '$$4 > 3000000 && $$6 == "/dev/shm"'),TMPDIR=/dev/shm)

# Each process of a run collects all tests, and would rewrite what they assert by itself. Done once,
# while types are checked, it is kept. What is wrong with a test is said by the run itself.
collected: $(COMPILED)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true

# The page is tested in Chromium, and the sandbox of bash with bubblewrap. What can be installed of
# them is; elsewhere these tests are skipped, and say so. CRABTALK_CHROMIUM names a Chromium that is
# not on the PATH. Its headless shell is the same engine for two thirds of the time.
CHROMIUM := $(or $(CRABTALK_CHROMIUM),$(shell command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || command -v google-chrome))
MISSING := $(if $(CHROMIUM),,chromium-headless-shell) $(if $(shell command -v bwrap),,bubblewrap)
programs:
ifneq ($(strip $(MISSING)),)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing for the tests:$(MISSING)" && apt-get update -qq; \
		for each in $(MISSING); do \
			DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$each >/dev/null \
			|| echo "$$each could not be installed" >&2; done; fi
else
	@:
endif

lint: $(COMPILED) ## format, lint, types, import contracts, generated code, names
	$(BIN)/ruff format --check
	$(BIN)/ruff check --output-format concise
	$(BIN)/mypy src proto tests bench $(wildcard apps/*/src apps/*/tests)
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/python -m tests.name_metrics

format: $(COMPILED) ## rewrite the sources in the house format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test-slow: $(COMPILED) ## the proofs that take minutes
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest -m "hypothesis and not slow and not interop" --hypothesis-profile thorough

NPM := .venv/npm
$(NPM)/.installed: $(INSTALLED)
	@npm install --prefix $(NPM) --no-fund --no-audit --no-package-lock --loglevel=error \
		@modelcontextprotocol/server-everything@2026 @modelcontextprotocol/server-filesystem@2026 \
		@modelcontextprotocol/server-memory@2026 @slopus/happy-wire@0.1.0 tweetnacl@1 socket.io-client@4
	@npm install --prefix $(NPM) --no-fund --no-audit --no-package-lock --loglevel=error --ignore-scripts \
		happy@1.2.5
	@touch $@

test-interop: $(COMPILED) $(NPM)/.installed ## against programs of others from npm (900 MB); needs node
	CRABTALK_NPM=$(CURDIR)/$(NPM) $(BIN)/python -m pytest -m interop tests/interop apps/web/tests

bench: $(COMPILED) ## measure, and rewrite the tables in bench/README.md
	$(BIN)/python -m bench
	$(BIN)/python -m docs.generate

proto: $(COMPILED) ## regenerate the wire code from proto/crabtalk.proto
	$(BIN)/python proto/generate.py

PINS := $(UV) pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11
pins: $(UV) ## compile the pinned requirements anew
	$(PINS) pyproject.toml $(wildcard apps/*/pyproject.toml) --extra ddgs --group dev --no-emit-package crabtalk -o requirements/dev.txt
	$(PINS) --group proto -o requirements/proto.txt
	$(PINS) --group bootstrap -o requirements/bootstrap.txt
	$(PINS) --group bench -o requirements/bench.txt

clean: ## remove everything the other targets made
	rm -rf apps/web/tests/browser/shots
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src apps tests bench proto -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
