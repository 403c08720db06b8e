#!/usr/bin/env bash
# Builds the second environment of the tests, .venv-openrlhf at the root of the checkout: OpenRLHF,
# its pins for a machine without a GPU, and seer-openrlhf from this folder. SGLang and OpenRLHF need
# different versions of transformers, hence two environments. Needs the checkout's .venv (its Python
# and uv). DeepSpeed compiles an operator at its first use, with g++.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
uv=$root/.venv/bin/uv
env=${1:-$root/.venv-openrlhf}
pins=$here/requirements-cpu.txt

command -v g++ >/dev/null ||
    { echo "OpenRLHF's DeepSpeed needs g++: apt-get install g++" >&2; exit 2; }
rm -rf "$env"
"$root/.venv/bin/python" -m venv "$env"
"$env/bin/pip" install --quiet --disable-pip-version-check --no-deps "$(grep '^torch==' "$pins")"
install() { "$uv" pip install --quiet --python "$env/bin/python" --no-deps "$@"; }
grep -v '^deepspeed==' "$pins" | install --compile-bytecode -r -
# Built among the packages above: DeepSpeed has no wheel, and its setup.py imports torch.
DS_BUILD_OPS=0 install --no-build-isolation "$(grep '^deepspeed==' "$pins")"
install --no-build-isolation -e "$here"
