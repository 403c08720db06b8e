#!/usr/bin/env bash
# `make test-sglang VERSION=0.5.23`: tests on real engines of another SGLang, on the CPU, in an
# environment of its own, .venv-sglang-VERSION. torch is the CPU build that the version wants, or
# TORCH where there is none. Needs python3 and the checkout's .venv.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
version=$1
env=$root/.venv-sglang-$version
cd "$root"
if [ ! -e "$env/.ready" ]; then
    rm -rf "$env"
    "${SEER_PYTHON:-python3}" -m venv "$env"
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    "$env/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$wheels" \
        "sglang==$version"
    .venv/bin/python -m tests.plugin.pins "$wheels"/sglang-*.whl >"$wheels/requirements.txt"
    "$env/bin/pip" install --quiet --disable-pip-version-check "torch==${TORCH:-2.13.0}"
    .venv/bin/uv pip install --quiet --python "$env/bin/python" --no-deps --compile-bytecode \
        -r "$wheels/requirements.txt"
    .venv/bin/uv pip install --quiet --python "$env/bin/python" --no-deps -e .
    touch "$env/.ready"
fi
PYTHONPATH=$root "$env/bin/python" -m tests.plugin.upgrade --installed || true
PYTHONPATH=$root "$env/bin/python" -m pytest --hypothesis-profile=ci --durations=12 \
    ${TESTS:-tests/e2e/test_smoke.py tests/e2e/test_speculation.py}
