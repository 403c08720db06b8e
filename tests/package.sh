#!/usr/bin/env bash
# `make test-package`: the wheel, as a user would install it, in an empty environment and folder.
# For machines without a GPU. Needs python3 and the uv of the checkout's .venv; leaves nothing behind.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${SEER_PYTHON:-python3}
uv=$root/.venv/bin/uv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step() { echo "package: $*"; }

step "build"
"$uv" build --quiet --out-dir "$work/dist" "$root"
wheel=("$work"/dist/seer_sgl-*.whl)

step "quick tests in the unpacked source distribution"
mkdir "$work/source"
tar -xzf "$work"/dist/seer_sgl-*.tar.gz -C "$work/source" --strip-components=1
(
    cd "$work/source"
    test -f Makefile && test -f tests/e2e/conftest.py
    export PYTHONPATH=$PWD
    "$root/.venv/bin/python" -c 'import os, seer_sgl; assert seer_sgl.__file__.startswith(os.getcwd())'
    "$root/.venv/bin/python" -m pytest --hypothesis-profile=ci --tier gate \
        tests/{bench,docs,report} tests/benchmark/test_{config,summary}.py \
        tests/test_{config,console,ready}.py
)

step "install the wheel alone"
"$python" -m venv "$work/env"
bin=$work/env/bin
mkdir "$work/empty" && cd "$work/empty"
"$bin/pip" install --quiet --disable-pip-version-check "${wheel[0]}"
"$bin/seer-sgl" --help >/dev/null
"$bin/seer-sgl" simulate --workload moonlight --policy seer --json \
    --set workload.groups=4 --set workload.lengths.max=4096 --set workload.lengths.mean=512 |
    "$bin/python" -c 'import json, sys; assert json.load(sys.stdin)["policy"] == "seer"'
if "$bin/seer-sgl" doctor >doctor.txt; then
    echo "the doctor misses nothing without SGLang"
    exit 1
fi
grep -q 'torch .*fix: pip install torch' doctor.txt

step "install SGLang, by the doctor's commands"
"$bin/pip" install --quiet --disable-pip-version-check torch==2.13.0
"$bin/seer-sgl" requirements cpu |
    "$uv" pip install --quiet --python "$bin/python" --compile-bytecode --no-deps -r -
"$bin/seer-sgl" doctor

step "a rollout"
"$bin/seer-sgl" rollout --ready cpu-seer --set engines.count=1 --set rollout.max_prompts=2 --out out
"$bin/python" - <<'PY'
import json

report = json.load(open("out/report.json"))
assert report["error"] is None and report["samples"] == 16, report
assert report["drafting"]["engines"] and report["accept_length"] > 1
PY
step "passed: $(basename "${wheel[0]}")"
