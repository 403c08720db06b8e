#!/usr/bin/env bash
# The benchmark on a machine with NVIDIA GPUs, from nothing to one archive:
#
#   bench/gpu/run.sh [--out DIR] [any option of `seer-sgl bench`]
#
# Needs the NVIDIA driver, python3 (3.11 or newer) with its venv module and headers, a C compiler,
# nvcc (the CUDA toolkit, or CUDA_HOME), make, and a package index. Paths are relative to the
# checkout. Details: README.md beside it.
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
make venv SEER_PYTHON="$python" || fail "make venv failed"
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

# 3. The model and the workload. SHAPES: options of bench.gpu.shapes, such as "--size 7b".
read -ra shapes <<<"${SHAPES:-}"
mkdir -p "$out/inputs"
"$bin/python" -m bench.gpu.shapes --out "$out/inputs" ${shapes[@]+"${shapes[@]}"} |
    tee "$out/inputs/shapes.json" || fail "bench.gpu.shapes failed"

# 4. The benchmark: a GPU for each engine where there are several, FlashAttention 3 on Hopper.
chip=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 | tr -cs 'A-Za-z0-9\n' '-')
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0)
gpus=$("$bin/python" -c 'import torch; print(torch.cuda.device_count())')
run=$out/$(date +%Y%m%d-%H%M)-$chip
mkdir -p "$run" || fail "$run: cannot be made"
config=configs/bench-gpu.yaml
if ((gpus > 1)); then
    config=$out/inputs/bench.yaml
    sed '/^    base-gpu-id:/d' configs/bench-gpu.yaml >"$config"
fi
ours=(--set "model.path=$out/inputs/model" --set "bench.workload=$out/inputs/trace.jsonl")
if [[ $capability == 9.* ]]; then
    ours+=(--set engines.sglang.attention-backend=fa3)
fi
status=0
"$bin/seer-sgl" bench --config "$config" --out "$run" "${ours[@]}" \
    ${options[@]+"${options[@]}"} || status=$?

# 5. What the figures were taken on, and all of it in one archive, also of a benchmark that failed.
# What is already known is worth more than a collection that stops half way.
"$bin/python" -m pip freeze >"$run/packages.txt" || true
cp "$config" "$run/config.yaml"
cp "$out/inputs/shapes.json" "$run/shapes.json"
{
    nvidia-smi --format=csv \
        --query-gpu=index,name,driver_version,memory.total,compute_cap,clocks.max.sm,power.limit
    nvidia-smi topo -m
    nvidia-smi -q -d MEMORY,ECC,CLOCK,POWER,COMPUTE
} >"$run/gpus.txt" 2>&1 || true
{
    uname -srm
    "$bin/python" --version
    "${CUDA_HOME:+$CUDA_HOME/bin/}nvcc" --version || /usr/local/cuda/bin/nvcc --version
    lscpu
    free -g
} >"$run/machine.txt" 2>&1 || true
tails=$run/log-tails
mkdir -p "$tails"
shopt -s nullglob
for log in "$run"/engines/*.log "$run"/engines/*/*.log; do
    name=${log#"$run/engines/"}
    tail -n 200 "$log" | cut -c -400 >"$tails/${name//\//-}" || true
done
archive=$run.tar.gz
tar -czf "$archive" -C "$out" --exclude "$(basename "$run")/engines" "$(basename "$run")" ||
    fail "$archive: cannot be written"
if ((status)); then
    echo "bench/gpu/run.sh: the benchmark ended with status $status; what there is: $archive" >&2
    exit "$status"
fi
echo "report, plots and logs: $archive ($(du -h "$archive" | cut -f1))"
