#!/usr/bin/env bash
# Builds .venv-verl at the root of the checkout: veRL without a GPU, on top of the checkout's .venv.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
env=${1:-$root/.venv-verl}
rm -rf "$env"
"$root/.venv/bin/python" -m venv --without-pip "$env"
"$root/.venv/bin/uv" pip install --quiet --python "$env/bin/python" --no-deps -r "$here/requirements-cpu.txt"
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site=$(packages "$env")
# Python reads the .pth files of a folder that is added so; the checkout is in one of them.
echo "import site; site.addsitedir('$(packages "$root/.venv")')" >"$site/checkout.pth"
# torchvision has no operators beside a torch for CPUs, and transformers wants them.
echo "import seer_sgl.torchvision_schemas as s; s.define_missing_schemas()" >"$site/schemas.pth"
