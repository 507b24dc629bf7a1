# make run, make test: each makes what it needs. Python 3.11 or newer and make are enough; PYTHON=... chooses another.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
SHELL := /bin/sh
# What is compiled once need not be compiled by each of the hundreds of processes that the tests start.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# The newest interpreter that really starts (a pyenv shim may not) and can make a venv (Debian splits that off).
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { command -v "$$p"; break; }; done)
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check
# What mypy reads; a part that is not there is not named.
TYPED := dtq $(wildcard *.py) $(wildcard examples/*.py) $(wildcard benchmarks/*.py)
ARGS ?=
# A unix socket is what all tests use without being told.
TOPOLOGIES ?= acl tls sentinel cluster
SECONDS ?= 120
SEED ?=

# Every line and branch of these is run by these tests. CI runs them apart from the others, not twice (WITHOUT_CORE=1).
CORE_MODULES := dtq.broker dtq.mq dtq.scripts dtq.streams
CORE_TESTS := $(wildcard tests/test_mq_*.py) $(patsubst %,tests/test_%.py,admission broker idempotency lost_replies \
	scripts streams)

.PHONY: help run test coverage coverage-core test-slow test-long test-topologies chaos bench lint fmt docs screenshots requirements clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

run: $(VENV)/.installed  ## everything on this machine: server, web, worker; Ctrl-C stops it
	@$(BIN)/flask dtq up $(ARGS)

test: $(VENV)/.installed-dev  ## the tests (ARGS="-k name" for some of them)
	@$(BIN)/python -m pytest -n 4 --dist loadgroup $(if $(WITHOUT_CORE),$(CORE_TESTS:%=--ignore=%)) $(ARGS)

coverage: $(VENV)/.installed-dev  ## the tests, with coverage
	@$(BIN)/python -m pytest --cov=dtq $(ARGS)

coverage-core: $(VENV)/.installed-dev  ## every line and branch of queue, broker, streams and scripts, or it fails
	@$(BIN)/python -m pytest -n 4 --dist loadgroup $(CORE_MODULES:%=--cov=%) --cov-branch --cov-fail-under=100 \
		$(if $(ARGS),--cov-append) $(CORE_TESTS) $(ARGS)

test-slow: $(VENV)/.installed-dev  ## the tests that take tens of seconds each
	@$(BIN)/python -m pytest -n 3 --dist loadgroup -m slow --timeout 300 $(ARGS)

test-long: $(VENV)/.installed-dev  ## the tests that take minutes
	@$(BIN)/python -m pytest -m long --timeout 900 $(ARGS)

test-topologies: $(VENV)/.installed-dev  ## the tests that take a server, on each way to run one
	@bad=; for one in $(TOPOLOGIES); do echo "on $$one:"; \
		$(BIN)/python -m pytest -n 4 --dist loadgroup --topology $$one $(ARGS) || bad="$$bad $$one"; done; \
	test -z "$$bad" || { echo "failed on:$$bad" >&2; exit 1; }

chaos: $(VENV)/.installed-dev  ## workers and servers killed under load (SECONDS=120 SEED=...)
	@$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: $(VENV)/.installed-dev  ## the benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

lint: $(VENV)/.installed-dev  ## style, format, types, layers
	@bad=; check() { what=$$1; shift; \
		if told=$$("$$@" 2>&1); then echo "$$what: clean"; else printf '%s\n' "$$told"; bad="$$bad $$what"; fi; }; \
	check ruff $(BIN)/ruff check --quiet --output-format concise .; \
	check format $(BIN)/ruff format --quiet --check --output-format concise .; \
	check mypy $(BIN)/mypy $(TYPED); \
	check layers $(BIN)/lint-imports --no-logo; \
	test -z "$$bad" || { echo "not clean:$$bad (make fmt repairs what it can)" >&2; exit 1; }

fmt: $(VENV)/.installed-dev  ## format, and repair what can be repaired
	@$(BIN)/ruff check --fix-only --quiet . ; $(BIN)/ruff format .

docs: $(VENV)/.installed  ## docs/settings.md and .env.example, from the settings themselves
	@$(BIN)/python -m dtq.settings_docs

screenshots: $(VENV)/.installed-dev  ## docs/images, by the Chromium of this machine
	@$(BIN)/python -m tests.browser.screenshots

requirements: $(VENV)/.installed-dev  ## pin the newest allowed versions (on the oldest Python that is supported)
	@$(COMPILE) --output-file=requirements.txt pyproject.toml
	@$(COMPILE) --extra=dev --constraint=requirements.txt --output-file=requirements-dev.txt \
		pyproject.toml requirements-dev.in

clean:  ## remove what was made; .dtq/ (the data) stays
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov \
		build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

COMPILE = CUSTOM_COMPILE_COMMAND="make requirements" $(BIN)/pip-compile -qq --upgrade --strip-extras --no-annotate \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --resolver=backtracking

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "dtq needs Python 3.11 or newer with its venv module" \
		"(Debian: apt-get install python3-venv). PYTHON=/path/to/python make ... chooses one." >&2; exit 1; }
	@echo "making $(VENV) with $$("$(PYTHON)" --version)"
	@rm -rf $(VENV) && "$(PYTHON)" -m venv $(VENV) && touch $@

# `import dtq` works in any directory for this environment's Python. The path is relative to site-packages.
$(VENV)/.linked: | $(VENV)/.made
	@for site in $(VENV)/lib/python*/site-packages; do echo ../../../.. > "$$site/dtq-checkout.pth" || exit 1; done
	@touch $@

$(VENV)/.installed: requirements.txt | $(VENV)/.made $(VENV)/.linked
	@echo "installing requirements.txt"
	@$(PIP_INSTALL) -r requirements.txt && touch $@

$(VENV)/.installed-dev: requirements.txt requirements-dev.txt | $(VENV)/.made $(VENV)/.linked
	@echo "installing requirements-dev.txt"
	@$(PIP_INSTALL) -r requirements-dev.txt && touch $(VENV)/.installed $@
