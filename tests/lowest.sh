#!/usr/bin/env bash
# `make test-lowest`: tests without engines, with the lowest versions that pyproject.toml allows.
# Installs the core dependencies and the extra `plots`: a driver beside engines elsewhere, without
# SGLang, torch, numba and Mooncake. Needs python3 and the uv of the checkout's .venv.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
uv=$root/.venv/bin/uv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the tests below need of the extra `dev`; the linters depend on versions of their own.
grep -oE '"(hypothesis|pytest|pytest-asyncio|pytest-timeout)>=[^"]+"' "$root/pyproject.toml" |
    tr -d '"' >"$work/tools.txt"
"$uv" venv --quiet --python "${SEER_PYTHON:-python3}" "$work/env"
"$uv" pip install --quiet --python "$work/env/bin/python" --resolution lowest-direct \
    -r "$root/pyproject.toml" --extra plots -r "$work/tools.txt"

cd "$root"
PYTHONPATH=$root PYTHONDONTWRITEBYTECODE=1 "$work/env/bin/python" -m pytest -p no:cacheprovider \
    --hypothesis-profile=ci -m "not long and not own_engines and not shared_engines" \
    -k "not mooncake" \
    tests/scheduling tests/driver tests/link tests/report tests/rollout tests/sim \
    tests/test_{cli,config,config_bounds,console,files,masking,ready,signals,types}.py
