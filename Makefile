# make rollout | test | test-engines | test-all | check | docs | rl | bench | microbench, and the parts
# of the tests below: each target sets up .venv if it is missing or stale.
# Needs python3 >= 3.11 with its venv module, and make. SEER_PYTHON selects another interpreter.

SEER_PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
UV := uv==0.13.8
GPU := $(wildcard /proc/driver/nvidia/version /dev/nvidiactl /dev/kfd)
OVERRIDES := requirements-gpu-overrides.txt
OPENRLHF := .venv-openrlhf
VERL := .venv-verl

# System libraries of Mooncake, and their packages in Debian and Ubuntu. With CUDA, Mooncake needs
# one more.
RDMA_LIBRARIES := libibverbs.so.1 $(if $(GPU),libmlx5.so.1)
RDMA_PACKAGES := libibverbs1 $(if $(GPU),ibverbs-providers)
HAS_RDMA := $(SEER_PYTHON) -c 'import ctypes, sys; list(map(ctypes.CDLL, sys.argv[1:]))' \
	$(RDMA_LIBRARIES) 2>/dev/null

.PHONY: venv rollout test test-engines test-all check check-style check-types check-imports test-unit \
	test-smoke test-process test-servers test-long test-flaky test-bare test-browser soak chaos abuse \
	test-package test-lowest test-index test-sglang \
	openrlhf-env test-openrlhf test-verl rl docs bench microbench clean

venv: $(READY)

$(READY): requirements-cpu.txt $(OVERRIDES) pyproject.toml Makefile
	@$(SEER_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "seer-sgl needs Python 3.11 or newer: make SEER_PYTHON=python3.11"; exit 2; }
	rm -rf .venv
	$(SEER_PYTHON) -m venv .venv
ifeq ($(GPU),)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0 $(UV)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --compile-bytecode \
		-r requirements-cpu.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
else
	$(BIN)/pip install --quiet --disable-pip-version-check $(UV)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode \
		--override $(OVERRIDES) -e ".[sglang,ray,plots,dev]"
endif
	@$(HAS_RDMA) || { test "$$(id -u)" = 0 && apt-get -qq update && \
		apt-get -qq install --yes --no-install-recommends $(RDMA_PACKAGES) >/dev/null; } || \
		echo "Mooncake needs system libraries, otherwise cpu-seer's KV pool uses files: sudo apt-get install $(RDMA_PACKAGES)"
	touch $(READY)

# All of Seer, then the same rollout on plain SGLang; `make rollout COMPARE=` leaves that out.
COMPARE ?= --compare
rollout: $(READY)
	$(BIN)/seer-sgl rollout --config configs/cpu-seer.yaml --out out --overwrite $(COMPARE)

# Three tiers of tests: `test` before every commit, `test-engines` before every merge, `test-all` before
# a release. Each prints how long its parts took; every part is a target of its own.
PHASES := $(BIN)/python -m tests.support.phases
test: $(READY)
	@$(PHASES) check-style check-types check-imports test-unit test-smoke

# A server that starts leaves a core to others, so everything else runs beside the tests with servers.
test-engines: $(READY)
	@$(PHASES) test-servers --beside docs test-process test-package

test-all: $(READY)
	@$(PHASES) test test-engines test-openrlhf test-verl test-long test-browser test-bare test-lowest test-index soak chaos abuse

check: check-style check-types check-imports

check-style: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-types: $(READY)
	$(BIN)/mypy
	cd integrations/openrlhf && ../../$(BIN)/mypy

check-imports: $(READY)
	$(BIN)/lint-imports --no-cache

# The pages of docs/ as a site in out/docs. Fails at a link that leads nowhere.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The profile `ci` runs the same examples every time; plain pytest draws new ones.
PYTEST := $(BIN)/python -m pytest --hypothesis-profile=ci --durations=12

# Tests that start no process and wait for nothing (tests/support/tiers.py).
test-unit: $(READY)
	$(PYTEST) --tier gate

# Two tests on real engines.
test-smoke: $(READY)
	$(PYTEST) --tier smoke

# Tests that start processes, wait for real time or take long, without real engines.
test-process: $(READY)
	$(PYTEST) --tier process

# All other tests on real engines.
test-servers: $(READY)
	$(PYTEST) --tier engines

# Slow tests: wider variants of the tests above.
test-long: $(READY)
	$(PYTEST) --tier long

# The live page in Chromium. Elsewhere its tests are skipped without one; here they fail.
test-browser: $(READY)
	@$(BIN)/python -c 'import sys; from bench.browser import NAMES, find_chromium; \
		sys.exit(None if find_chromium() else "no Chromium on the PATH: " + ", ".join(NAMES))'
	$(PYTEST) tests/server/test_page_in_browser.py

# A tier N times while LOAD busy processes keep the cores busy; prints which tests failed, if any did.
N ?= 10
LOAD ?= 8
TIER ?= gate
test-flaky: $(READY)
	$(BIN)/python -m tests.flaky --runs $(N) --load $(LOAD) --tier $(TIER)

# Rollouts on simulated and fake engines with many faults (half an hour on two cores).
soak: $(READY)
	$(BIN)/python -m tests.soak

# A rollout on three real engines with pool and drafts, while they, the pool, the draft hub and the
# connections between them are killed, stopped, slowed and cut off. Prints its seed first; SEED
# repeats it (10 minutes on two cores).
SEED ?=
MINUTES ?= 5
chaos: $(READY)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# A server of two real engines between honest and hostile clients: every honest answer is that of a
# plain engine, and no process ends or grows (MINUTES, and five more on two cores).
abuse: $(READY)
	$(BIN)/python -m tests.abuse --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Quick tests in the unpacked source distribution; then the wheel in an empty environment and
# folder: installed as the doctor says, and a rollout.
test-package: $(READY)
	tests/package.sh

# `make rollout` and `make test` as on a machine that has never run them: a new HOME, empty caches, no
# compiler; then `make rollout` with the machine's own PATH.
test-bare:
	$(SEER_PYTHON) tests/bare.py
	$(SEER_PYTHON) tests/bare.py --compiler --only rollout

# Tests without engines, with the lowest versions that pyproject.toml allows. Downloads them once.
test-lowest: $(READY)
	tests/lowest.sh

# Checks that the package index has wheels for all packages that `make venv` installs on a machine
# with a GPU; only metadata is downloaded. SGLang's wheels need glibc 2.34 or later. Also reports
# what an upgrade to the newest SGLang would break: its wheel is downloaded, not installed.
test-index: $(READY)
	$(BIN)/uv pip compile --quiet --python-platform x86_64-manylinux_2_34 --python-version 3.12 \
		--only-binary :all: --override $(OVERRIDES) --extra sglang --extra ray --extra plots \
		--extra dev pyproject.toml >/dev/null
	@echo "the GPU extras resolve to wheels"
	$(BIN)/python -m tests.plugin.upgrade

# Tests on real engines of another SGLang, on a CPU, in .venv-sglang-VERSION (docs/sglang-versions.md).
# TORCH: a version of torch with a CPU build, where SGLang's own has none.
VERSION ?= 0.5.23
test-sglang: $(READY)
	TORCH=$(TORCH) tests/sglang.sh $(VERSION)

# The second environment: OpenRLHF on a CPU, and the adapter in integrations/openrlhf.
openrlhf-env: $(OPENRLHF)/.ready

$(OPENRLHF)/.ready: $(READY) $(addprefix integrations/openrlhf/, \
		environment.sh requirements-cpu.txt pyproject.toml)
	integrations/openrlhf/environment.sh $(OPENRLHF)
	touch $@

# Tests of the adapter with the installed OpenRLHF, real training steps included.
test-openrlhf: openrlhf-env
	$(OPENRLHF)/bin/python -m pytest --durations=12 integrations/openrlhf/tests -m "not long"

# veRL's agent loops on real engines, with the installed veRL.
test-verl: $(VERL)/.ready
	$(VERL)/bin/python -m pytest --durations=3 integrations/verl

$(VERL)/.ready: $(READY) $(addprefix integrations/verl/, environment.sh requirements-cpu.txt)
	integrations/verl/environment.sh $(VERL)
	touch $@

# OpenRLHF trains the model of the repository on seer-sgl's engines, and the gain on held-out prompts
# is measured (15 minutes a seed on two cores, 12 GB).
SEEDS ?= 1
rl: openrlhf-env
	$(BIN)/python -m bench.rl --seeds $(SEEDS) --out out/rl

# All of Seer against plain SGLang, with router, prediction and soak (1 to 2 hours on two cores). OUT
# selects another folder.
OUT ?= out/bench/$(shell date +%Y%m%d-%H%M%S)
bench: $(READY)
	$(BIN)/python -m bench.full --config configs/bench-cpu.yaml --out $(OUT) \
		--router --sim bench/full/cpu.yaml --soak 10

# Benchmarks of single components.
microbench: $(READY)
	$(BIN)/python -m bench.driver --profile
	$(BIN)/python -m bench.journal
	$(BIN)/python -m bench.scheduler
	$(BIN)/python -m bench.sim_reality
	$(BIN)/python -m bench.attention
	$(BIN)/python -m bench.kv_pool
	$(BIN)/python -m bench.draft_index
	$(BIN)/python -m bench.speculation

clean:
	rm -rf .venv $(OPENRLHF) $(VERL) .venv-sglang-* out
