#!/usr/bin/env bash
# All measurements on a machine with NVIDIA GPUs, from nothing to one archive:
#
#   bench/gpu/run.sh [--out DIR] [options of bench.gpu.session, and of `seer-sgl bench`]
#
# Needs the NVIDIA driver, python3 (3.11 or newer) with its venv module and headers, a C compiler,
# nvcc (the CUDA toolkit, or CUDA_HOME), make, and a package index; without an index: bare/. Paths
# are relative to the checkout. Details: README.md beside it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
    echo "bench/gpu/run.sh: $1" >&2
    exit 2
}

out=out/gpu
options=()
while (($#)); do
    case $1 in
        --out) (($# > 1)) || fail "--out needs a folder"; out=$2; shift 2 ;;
        --out=*) out=${1#--out=}; shift ;;
        *) options+=("$1"); shift ;;
    esac
done
mkdir -p "$out" 2>/dev/null || fail "--out $out: cannot be made"
out=$(cd "$out" && pwd)

# 1. What has to be here already.
python=${SEER_PYTHON:-python3}
command -v nvidia-smi >/dev/null || fail "no nvidia-smi: this needs an NVIDIA GPU and its driver"
nvidia-smi -L >/dev/null 2>&1 || fail "nvidia-smi finds no GPU"
command -v "$python" >/dev/null ||
    fail "no $python: install Python 3.11 or newer, or set SEER_PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is older than 3.11: set SEER_PYTHON=python3.11"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python has no venv module: apt-get install python3-venv"
command -v make >/dev/null || fail "no make: apt-get install make"
command -v cc >/dev/null || command -v gcc >/dev/null ||
    fail "no C compiler, which Triton needs: apt-get install build-essential"
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[[ -f $headers/Python.h ]] || fail "no Python.h, which Triton needs: apt-get install python3-dev"

# 2. Set up. SGLang compiles kernels with nvcc, which may have come as a package.
make venv SEER_PYTHON="$python" ||
    fail "make venv failed; without a package index: bench/gpu/README.md"
bin=$PWD/.venv/bin
if [[ -z ${CUDA_HOME:-} && ! -x /usr/local/cuda/bin/nvcc ]] && ! command -v nvcc >/dev/null; then
    packaged=$(find "$PWD/.venv/lib" -path '*/nvidia/*/bin/nvcc' -print -quit 2>/dev/null || true)
    [[ -n $packaged ]] ||
        fail "no nvcc: install the CUDA toolkit that torch is built for, or set CUDA_HOME"
    CUDA_HOME=$(dirname "$(dirname "$packaged")")
    export CUDA_HOME
fi
"$bin/python" -c 'from seer_sgl.kvpool import packages; packages.load_store()' 2>/dev/null ||
    fail "Mooncake cannot be loaded; .venv/bin/seer-sgl doctor names the command that mends it"
"$bin/seer-sgl" doctor || fail "the doctor found something missing (above)"

# 3. Measure. The last line names the archive.
chip=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 | tr -cs 'A-Za-z0-9\n' '-')
exec "$bin/python" -m bench.gpu.session "$out/$(date +%Y%m%d-%H%M)-$chip" \
    ${options[@]+"${options[@]}"}
