# Every command of the project. `make help` explains them.

# The first one that really starts and is new enough; name another with make PYTHON=...
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  && { echo $$python; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

FOLDER      ?=
SEEDS       ?= 200
KIND        ?=
JOBS        ?= 3
PYTEST_ARGS ?=

# The suite starts hundreds of processes: with what was compiled kept, each is up in half the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test java browser check docs proto format sim mutants soak bench clean

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} \
	  /^## / {printf "\n%s\n", substr($$0, 4)} \
	  /^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

## Setting up

venv: $(STAMP) ## Make the private virtual environment, with the versions of constraints.txt

# One that was made here is made anew when the versions change. One of somebody's own is never removed.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" \
	  || { echo "No Python 3.11 or later found (Debian: apt-get install python3 python3-venv)."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) does not start or is older than 3.11: name a later one, make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "$(PYTHON) has no venv module. Install it (Debian: apt-get install python3-venv)."; exit 1; }
	@set -e; by=make; \
	if grep -qs "by make" $(STAMP); then rm -rf $(VENV); fi; \
	if [ ! -e $(VENV) ]; then \
	  $(PYTHON) -m venv $(VENV); \
	elif [ -f $(VENV)/pyvenv.cfg ] \
	  && $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  by=others; echo "$(VENV) was here before: it stays, and gets what it lacks."; \
	else \
	  echo "$(VENV) is no environment of Python 3.11 or later with pip: remove it, or make VENV=..."; \
	  exit 1; \
	fi; \
	echo "Installing into $(VENV): 1.2 GB, which takes some minutes ..."; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'; \
	echo "by $$by" >$(STAMP)

## Using it

demo: $(STAMP) ## A mailing platform's day on three nodes, two are killed: FOLDER=... (default: Python's sources)
	@$(MAKE) --no-print-directory java || true
	@$(BIN)/herdbook demo $(if $(FOLDER),"$(patsubst ~/%,$(HOME)/%,$(FOLDER))")

bench: $(STAMP) ## Measure the ledger beside the raw disk
	@$(BIN)/python -m benchmarks ledger

## Testing it

# A test that hangs counts as failed and ends its process. Tests that were left for that process may not run.
HANGS = -o faulthandler_exit_on_timeout=true --max-worker-restart 0

test: $(STAMP) java browser ## Run the whole suite, with 100 seeds, a real ZooKeeper and a real browser
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadscope --no-loadscope-reorder --ignore=tests/tidy $(HANGS) $(PYTEST_ARGS)

# ZooKeeper and Spark are Java programs. Where there is none, root on Debian gets it.
java:
	@home=$${JAVA_HOME:+$$JAVA_HOME/bin/}; \
	version=$$($${home}java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	[ "$${version:-0}" -ge 17 ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Java ..."; \
	  apt-get -qq update && apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless >/dev/null; \
	else \
	  echo "No Java 17 or later found (Debian: apt-get install openjdk-17-jre-headless)."; exit 1; \
	fi

# The console is tested in Chromium, in which people use it.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium ..."; \
	  apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	else \
	  echo "No Chromium found (Debian: apt-get install chromium)."; exit 1; \
	fi

check: $(STAMP) ## Lint, format, types, imports, and the rules of the house
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q -p no:randomly tests/tidy

sim: $(STAMP) ## Simulate: SEED=7 replays one seed, SEEDS=1000 runs many; KIND=log, replicas, herd, groups, blobs or broker
	@$(BIN)/python -m tests.simulation $(if $(KIND),--$(KIND)) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --jobs $(JOBS))

mutants: $(STAMP) ## Take each rule of the protocol out and see the suite go red
	@$(BIN)/python -m tests.mutants

soak: $(STAMP) ## The full sizes: 2,000 seeds of each kind, all mutants, ten million adds; writes docs/soak.md
	@$(BIN)/python -m tests.soak

## Keeping house

docs: $(STAMP) ## Build the documents as a site: build/site/index.html
	@$(BIN)/python -m tests.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

proto: $(STAMP) ## Make the generated modules of the public wire anew from proto/
	@$(BIN)/python -m grpc_tools.protoc -I engine/transport/grpc_generated=proto \
	  --python_out=. --pyi_out=. engine/transport/grpc_generated/bookie.proto \
	  engine/transport/grpc_generated/access.proto
	@$(BIN)/python -m grpc_tools.protoc -I herd/wire/grpc_generated=proto \
	  --python_out=. --pyi_out=. herd/wire/grpc_generated/herd.proto
	@$(BIN)/python -m grpc_tools.protoc -I broker/wire/grpc_generated=proto \
	  --python_out=. --pyi_out=. broker/wire/grpc_generated/broker.proto

format: $(STAMP) ## Put the sources into shape
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

clean: ## Remove what the commands made
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
