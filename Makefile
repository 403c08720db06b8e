# make rollout | test | test-long | check | bench | microbench: each sets up .venv when it is missing
# or stale.
# Needs python3 >= 3.11 with its venv module, and make. SEER_PYTHON chooses another interpreter.

SEER_PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
IBVERBS := $(SEER_PYTHON) -c 'import ctypes; ctypes.CDLL("libibverbs.so.1")' 2>/dev/null
GPU := $(wildcard /proc/driver/nvidia/version /dev/kfd)

.PHONY: venv rollout test test-long check bench microbench clean

venv: $(READY)

$(READY): requirements-cpu.txt pyproject.toml Makefile
	@$(SEER_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "seer-sgl needs Python 3.11 or newer: make SEER_PYTHON=python3.11"; exit 2; }
	rm -rf .venv
	$(SEER_PYTHON) -m venv .venv
ifeq ($(GPU),)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0 uv==0.13.8
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --compile-bytecode \
		-r requirements-cpu.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@$(IBVERBS) || { test "$$(id -u)" = 0 && apt-get -qq update && \
		apt-get -qq install --yes --no-install-recommends libibverbs1 >/dev/null; } || \
		echo "Mooncake needs libibverbs: sudo apt-get install libibverbs1"
else
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[sglang,router,dev]"
endif
	touch $(READY)

rollout: $(READY)
	$(BIN)/seer-sgl rollout --config configs/cpu.yaml --out out --overwrite

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The same examples every time; plain pytest draws new ones.
test: check
	$(BIN)/python -m pytest --hypothesis-profile=ci --durations=12 -m "not long"

# What takes longer than a change should wait for: wider variants of the tests above.
test-long: $(READY)
	$(BIN)/python -m pytest --hypothesis-profile=ci --durations=12 -m long

# All of Seer against plain SGLang (50 minutes on two cores). OUT chooses another folder.
OUT ?= out/bench/$(shell date +%Y%m%d-%H%M%S)
bench: $(READY)
	$(BIN)/seer-sgl bench --config configs/bench-cpu.yaml --out $(OUT)

# Its parts, one by one.
microbench: $(READY)
	$(BIN)/python -m bench.driver --profile
	$(BIN)/python -m bench.scheduler
	$(BIN)/python -m bench.sim_reality
	$(BIN)/python -m bench.attention
	$(BIN)/python -m bench.kv_pool
	$(BIN)/python -m bench.draft_index
	$(BIN)/python -m bench.speculation

clean:
	rm -rf .venv out
