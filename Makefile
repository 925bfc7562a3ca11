# The one command for everything. `make` alone lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
UV := $(shell command -v uv 2>/dev/null || echo $(BIN)/uv)
KERNEL_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find crates -name '*.rs' -o -name Cargo.toml)
PROCESSES ?= 2
CRATES := --workspace --exclude weft-python
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of interpreters: none should compile what another has compiled

# $(call need,COMMAND,HOW TO GET IT)
need = command -v $(1) >/dev/null 2>&1 || { echo "weft needs $(1), which is not here: $(2)" >&2; exit 1; }

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.kernel ## make .venv, install the tools into it, build the kernel (the other targets do this themselves)

$(VENV)/.python:
	@$(call need,$(PYTHON),install Python 3.11 or newer (apt-get install python3 python3-venv python3-dev))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "weft needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V): run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(call need,cargo,install Rust 1.88 or newer with rustup (https://rustup.rs))
	@$(call need,cc,install a C compiler (apt-get install gcc libc6-dev))
	@if command -v uv >/dev/null 2>&1; then uv venv --quiet --allow-existing --python "$$(command -v $(PYTHON))" $(VENV); else \
		$(PYTHON) -m venv $(VENV) && $(PY) -m pip install --quiet uv || { \
		echo "weft needs uv, or venv and pip to get it (apt-get install python3-venv)" >&2; exit 1; }; fi
	@touch $@

$(VENV)/.tools: $(VENV)/.python pyproject.toml
	@echo "installing the tools and test clients into $(VENV)"
	@$(UV) pip install --quiet --python $(PY) --group dev || { \
		echo "installing into $(VENV) failed (see above): it needs the package index, and python-qpid-proton is compiled:" \
		"apt-get install pkg-config libssl-dev python3-dev" >&2; exit 1; }
	@touch $@

$(VENV)/.kernel: $(VENV)/.tools $(KERNEL_SOURCES)
	@echo "building the kernel"
	@# maturin writes into the file; a copy takes its place first, so that nodes which run keep the one they mapped.
	@for file in $(wildcard src/weft/_kernel*.so); do cp "$$file" "$$file.new" && mv "$$file.new" "$$file"; done
	@PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(BIN)/maturin develop --release --uv --quiet
	@touch $@

.PHONY: demo
demo: setup ## one node and unmodified clients, PayPal's network of five nodes, Spark, and speed, told in plain words
	@$(PY) examples/demo.py

.PHONY: test
test: setup ## every test of both languages, PROCESSES=2 files at a time (0: one by one; PYTEST_ARGS go to pytest)
	cargo test --quiet $(CRATES)
	$(PY) -m pytest -q --numprocesses $(PROCESSES) $(PYTEST_ARGS)

.PHONY: sim
sim: ## a node that dies again and again on an invented disk; SEED=n repeats one world, else fresh ones for 10 s
	cargo run --quiet -p weft-sim --bin sim -- $(SEED)

.PHONY: sim-fabric
sim-fabric: setup ## whole fabrics on an invented network; SEED=n NODES=m SHAPE=mesh DEATHS=1 repeat one, else fresh ones for 10 s
	PYTHONHASHSEED=0 PYTHONPATH=tests $(PY) -m simulation $(if $(SEED),--seed $(SEED)) $(if $(NODES),--nodes $(NODES)) \
		$(if $(SHAPE),--shape $(SHAPE)) $(if $(DEATHS),--deaths $(DEATHS))

.PHONY: check
check: setup generated ## format, lint, types, stubs, layers; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	$(BIN)/mypy
	$(PY) -m mypy.stubtest weft._kernel --concise
	$(BIN)/lint-imports --no-cache

.PHONY: generated
generated: $(VENV)/.tools ## compare generated files with their schema
	$(PY) tools/codegen.py --check
	$(PY) tools/config_schema.py --check
	$(PY) tools/unasync.py --check
	$(PY) tools/management_schema.py --check
	$(PY) tools/http_reference.py --check

.PHONY: format
format: setup ## format and repair what can be repaired
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .
	cargo fmt --all

.PHONY: bench
bench: setup ## measure speed and memory, beside RabbitMQ where it is installed
	$(PY) benchmarks/run.py $(ARGS)

.PHONY: upgrade
upgrade: setup ## roll three nodes from one revision to another under traffic (FROM=revision, TO=revision, BACK=1)
	PYTHONPATH=tests $(PY) -m system.rolling --from "$(FROM)" $(if $(TO),--to "$(TO)") $(if $(BACK),--back)

.PHONY: never-lost
never-lost: setup ## publish under kills, then count what is there (MESSAGES=1000000, SEED=n): 2 minutes on a quiet machine
	PYTHONPATH=tests $(PY) -m system.critical $(if $(MESSAGES),--messages $(MESSAGES)) $(if $(SEED),--seed $(SEED))

.PHONY: fuzz
fuzz: ## throw random bytes and operations at the kernel (SECONDS=60 in all, TARGET=name, SEED=number)
	cargo run --quiet --profile fuzz -p weft-fuzz -- --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(TARGET)

.PHONY: clean
clean: ## remove what make made
	rm -rf $(VENV) target .mypy_cache .ruff_cache .pytest_cache .hypothesis src/weft/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
