# Every target does its own set-up: a fresh machine needs make and Python 3.11
# (or uv). `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
UV_VERSION := 0.13.9
BUILDIFIER := npx --yes @bazel/buildifier@8.2.1
# A uv on PATH that runs (a shim may not), else the one in .tools.
UV := $(shell uv --version >/dev/null 2>&1 && command -v uv || echo $(CURDIR)/.tools/bin/uv)
export UV

SYNCED := .venv/.synced
BIN := .venv/bin
PAGE ?= launch/configs/quickstart.toml
TESTS ?= tests
ARGS ?=
NAME ?=
BUILD_FILES = BUILD $(shell find tests/bazel -name BUILD -o -name '*.bzl' | sort)

.PHONY: help setup quickstart test check format lint types protos build-lint \
  architecture requirements requirements-check bench bench-docs bazel \
  clean

help:  ## List the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort \
	  | awk -F ':.*## ' '{printf "make %-20s %s\n", $$1, $$2}'

setup: $(SYNCED)  ## Make .venv from the lock (other targets do it too).

$(CURDIR)/.tools/bin/uv:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo 'make: error: neither uv nor $(PYTHON) with venv is here. Remedy:' \
	    'apt-get install python3.11-venv, or https://docs.astral.sh/uv/' >&2; \
	  exit 2; }
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install --quiet 'uv==$(UV_VERSION)'

$(SYNCED): pyproject.toml uv.lock | $(filter $(CURDIR)/%,$(UV))
	@echo 'setup: about 3 GB of packages into .venv'
	$(UV) sync --frozen --quiet
	@touch $@

quickstart: $(SYNCED)  ## Every stage once, from images to report.html.
	$(BIN)/dpemb quickstart $(PAGE) $(ARGS)

# Two processes, a file each at a time; then what needs the machine for itself.
# No test of one kind among those asked for (exit 5) is no failure of the other.
test: $(SYNCED)  ## All tests. TESTS=path and ARGS=... narrow them.
	@together=0; alone=0; \
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not alone' $(TESTS) \
	  $(ARGS) || together=$$?; \
	$(BIN)/python -m pytest -m alone $(TESTS) $(ARGS) || alone=$$?; \
	if [[ $$together -eq 5 ]]; then exit $$alone; fi; \
	if [[ $$alone -eq 5 ]]; then exit $$together; fi; \
	exit $$((together > alone ? together : alone))

check: lint types protos build-lint architecture requirements-check  ## All but tests.
	@echo 'make check: all passed'

format: $(SYNCED)  ## Rewrite the Python code in the house form.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(SYNCED)  ## Ruff: rules and form.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SYNCED)  ## Mypy.
	$(BIN)/mypy

protos: $(SYNCED)  ## Buf: the form of the .proto files.
	$(BIN)/buf lint protos

build-lint:  ## Buildifier on BUILD, where npm is installed.
	@if ! $(BUILDIFIER) --version >/dev/null 2>&1; then \
	  echo 'build-lint: skipped (needs npm and its registry)'; \
	else \
	  $(BUILDIFIER) -mode=check -lint=warn -warnings=all $(BUILD_FILES) \
	    && echo 'build-lint: passed'; \
	fi

architecture: $(SYNCED)  ## BUILD against the real imports.
	$(BIN)/python -m pytest -q tests/architecture_test.py

requirements: $(SYNCED)  ## Export requirements.txt from the lock.
	$(UV) export --frozen --no-dev --no-emit-project --no-header \
	  --output-file requirements.txt >/dev/null

requirements-check: $(SYNCED)  ## requirements.txt in step with the lock.
	$(BIN)/python -m pytest -q tests/requirements_test.py

bazel: $(SYNCED)  ## Build and test the pure part with an installed Bazel.
	DPEMB_BAZEL_ALL=1 $(BIN)/python -m pytest -rs tests/bazel_test.py

bench: $(SYNCED)  ## List the benchmarks; NAME=x runs one.
	$(BIN)/python -m benchmarks.runner $(NAME) $(ARGS)

bench-docs: $(SYNCED)  ## Only write the kept results into docs/benchmarks.md.
	$(BIN)/python -m benchmarks.runner --docs

clean:  ## Remove what the targets above made, but no run.
	rm -rf .venv .tools build dist *.egg-info
	rm -rf .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
