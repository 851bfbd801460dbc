# The two commands: `make demo` and `make test`. Both do all set-up themselves; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CARGO_JOBS ?= 2
LOADGEN := workloads/loadgen/target/release/parties-loadgen
LOADGEN_SOURCES := $(shell find workloads/loadgen -path '*/target' -prune -o \( -name '*.rs' -o -name 'Cargo.*' \) -print)
PYTHON_TREES := parties monitors actuators simulator workloads configs tests
DEB := dist/parties_$(shell sed -n 's/^version = //p' setup.cfg)_$(shell dpkg --print-architecture 2>/dev/null || echo any).deb
DEB_SOURCES := setup.cfg LICENSE CHANGELOG.md $(shell find parties monitors actuators configs docs -type f -not -name '*.pyc' -not -name '*.png')
ROOT := $(filter 0,$(shell id -u))
TESTS ?= tests
GUESTS ?= 2
# Without root, or without control groups of version 1, the demo runs on the simulated node and needs no load generator.
DEMO_NEEDS := $(if $(and $(ROOT),$(shell grep -m 1 ' cgroup ' /proc/mounts)),setup,packages $(VENV)/.installed)

.PHONY: help setup packages test test-fast test-guest lint format bench deb demo experiments clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'

setup: packages $(VENV)/.installed $(LOADGEN) ## Debian packages (as root), .venv with the command, the load generator

packages:
	@workloads/install-packages.sh

$(VENV)/.installed: setup.cfg pyproject.toml workloads/install-packages.sh | packages
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "parties needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V 2>&1). Set PYTHON=..." >&2; exit 2; }
	@echo "setup: making $(VENV) with parties and what it needs from PyPI"
	@[[ -x $(BIN)/python ]] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip setuptools
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[harness,dev]'
	@touch $@

$(LOADGEN): $(LOADGEN_SOURCES)
	@command -v cargo >/dev/null || { echo "setup: the load generator needs Rust (cargo); install it and run again" >&2; exit 2; }
	@echo "setup: building the load generator (Rust)"
	@cargo build --quiet --release --locked --jobs $(CARGO_JOBS) --manifest-path workloads/loadgen/Cargo.toml
	@touch $@

test: setup ## every test that this machine can run; kernel tests need root
	@[[ -n "$(ROOT)" ]] || echo "test: not root, so the kernel tests are left out (they make control groups and network namespaces)"
	cargo test --quiet --locked --jobs $(CARGO_JOBS) --manifest-path workloads/loadgen/Cargo.toml
	$(BIN)/pytest -m 'not guest' $(TESTS)

test-fast: $(VENV)/.installed ## the tests that need neither root nor the load generator; under a minute
	$(BIN)/pytest -n 2 -m 'not kernel and not emulation and not slow' tests/parties tests/monitors tests/actuators tests/workloads tests/emulation tests/undo

test-guest: $(DEB) ## the tests that boot a virtual machine, as root; minutes, longer the first time; TESTS=tests/guest/test_boot.py for a part, GUESTS=1 for one machine at a time
	@workloads/install-packages.sh guest
	$(BIN)/pytest -m guest -n $(GUESTS) --dist loadgroup -s --durations=0 --durations-min=1 $(if $(filter tests,$(TESTS)),tests/guest,$(TESTS))

lint: setup ## ruff, mypy, rustfmt, clippy, shellcheck
	$(BIN)/ruff check --output-format concise .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cargo fmt --check --manifest-path workloads/loadgen/Cargo.toml
	cargo clippy --quiet --locked --all-targets --jobs $(CARGO_JOBS) --manifest-path workloads/loadgen/Cargo.toml -- -D warnings
	shellcheck .ci/run workloads/install-packages.sh configs/debian/postinst configs/debian/prerm configs/debian/postrm

format: $(VENV)/.installed ## put the sources into the house's form
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	cargo fmt --manifest-path workloads/loadgen/Cargo.toml

bench: setup ## what controller, simulated node and load generator cost, measured here and now; results/bench-*.json
	@mkdir -p results
	cargo build --quiet --release --locked --bins --examples --jobs $(CARGO_JOBS) --manifest-path workloads/loadgen/Cargo.toml
	$(BIN)/python -m workloads.bench_control --json results/bench-control.json
	$(BIN)/python -m workloads.bench_simulator --json results/bench-simulator.json
	$(BIN)/python workloads/loadgen/bench/bench.py --json results/bench-loadgen.json

deb: $(DEB) ## the Debian package, with an environment of its own; dist/parties_*.deb

$(DEB): $(DEB_SOURCES) | $(VENV)/.installed
	@$(BIN)/python configs/debian/build.py $@

demo: $(DEMO_NEEDS) ## as root: real services on this machine under four managers; else on the simulated node; results/demo.{json,png}
	$(BIN)/parties demo $(DEMO)

experiments: $(VENV)/.installed ## the paper's figures on the simulated node, small grids, minutes; results/experiments/report.html
	$(BIN)/parties experiment all --quick --out results/experiments
	$(BIN)/parties experiment report --out results/experiments

clean: ## what make made, but for results/
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis workloads/loadgen/target
