#!/usr/bin/env bash
# The results of a GPU that is rented by the minute, on a bare machine without a network: two
# commands, of at most 8 and 5 minutes.
#
# usage: perf/rented_gpu.sh prepare [--wheel NAME] [--python 3.12] [--capability 9.0 8.0]
#                                   [--processes 2] [--tiny]                   here; no GPU needed
#        perf/rented_gpu.sh first | second [--out FOLDER] [--only TEXT,TEXT] [--tiny]
#
# prepare makes .rented_gpu/bring, which travels beside the tree, and prints the two commands to run
# there. A part that runs again goes on with what is missing. Results are in FOLDER as soon as they
# exist ($OUT, or .rented_gpu/bring/results). What .rented_gpu/bring/results holds of earlier runs
# is not done again, nor what the other part found on the same machine.
#
# PYTHON=python3.12 chooses the interpreter. perf/README.md says more.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bring=${RENTED_GPU_FOLDER:-$root/.rented_gpu/bring}
python=${PYTHON:-python3}
usage() { sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }

part=${1:-}
[ $# -gt 0 ] && shift
case $part in
    prepare) limit=0 ;;
    first) limit=480 ;;
    second) limit=300 ;;
    *) usage ;;
esac

# Some machines export this and halve NumPy's matrix products; no result should hang on it.
unset OPENBLAS_CORETYPE
# Numba's variables are in the keys of kernels, which are built on one machine for another.
for name in ${!NUMBA_@}; do unset "$name"; done
export PYTHONUNBUFFERED=1
cd "$root"
if [ "$part" = prepare ]; then
    exec "$python" perf/gpu_prepare.py --bring "$bring" "$@"
fi

# Kernels are code: they lie where nobody else can write, whoever owns what was brought.
work=${RENTED_GPU_WORK:-${TMPDIR:-/tmp}/rented-gpu-$(id -u)}
mkdir -p -m 700 "$work"
[ -O "$work" ] || { echo "$work belongs to somebody else. Fix: set RENTED_GPU_WORK." >&2; exit 2; }
unpack() {  # FOLDER: of what was brought as FOLDER.tar.gz
    local mark
    mark=$(cksum <"$bring/$1.tar.gz")
    [ "$(cat "$work/$1.mark" 2>/dev/null || true)" != "$mark" ] || return 0
    rm -rf "${work:?}/$1"
    mkdir -m 700 "$work/$1"
    tar -xzf "$bring/$1.tar.gz" -C "$work/$1" --no-same-owner
    chmod -R go= "$work/$1"
    printf '%s' "$mark" >"$work/$1.mark"
}
if [ -f "$bring/kernels.tar.gz" ]; then
    unpack kernels
else
    echo "There is no $bring/kernels.tar.gz: kernels are built here. Was prepare run, and its folder brought?"
fi
if [ -f "$bring/site.tar.gz" ]; then
    unpack site
fi
export GPUFLOW_CACHE_DIR=$work/kernels
# The packages that built the kernels: kernels are looked up by their versions.
if [ -f "$bring/versions" ]; then
    GPUFLOW_KERNEL_VERSIONS=$(cat "$bring/versions")
    export GPUFLOW_KERNEL_VERSIONS
fi
export PYTHONPATH=$root:$work/site${PYTHONPATH:+:$PYTHONPATH}
# Several frameworks share the memory of the GPU, and what they compile is there the next time.
export XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CPP_MIN_LOG_LEVEL=2
export JAX_COMPILATION_CACHE_DIR=$work/jax JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
export TORCHINDUCTOR_COMPILE_THREADS=4 TORCHINDUCTOR_CACHE_DIR=$work/torch
export TRITON_CACHE_DIR=$work/triton CUPY_CACHE_DIR=$work/cupy
# Where NVVM is a part of the system's toolkit, this is how it is found.
if [ -z "${CUDA_HOME:-}${CUDA_PATH:-}" ] && [ -d /usr/local/cuda ]; then
    export CUDA_HOME=/usr/local/cuda
fi

out=${OUT:-$bring/results}
options=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=$2; shift ;;
        *) options+=("$1") ;;
    esac
    shift
done
mkdir -p "$out"

# Imported, as what is there may lack something itself.
find_missing='
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(f"{name} ({error})", end="  ")
'
needed="numpy optree ml_dtypes scipy opt_einsum llvmlite pytest"
# Kernels that were brought along need no compiler.
[ -f "$bring/versions" ] || needed="$needed numba"
# shellcheck disable=SC2086
missing=$("$python" -c "$find_missing" $needed)
if [ -n "$missing" ]; then
    echo "$python has no $missing Fix: PYTHON=..., or prepare --wheel NAME and bring it." >&2
    exit 2
fi
# A fresh tree has no compiled Python: several processes would each compile all of it.
"$python" -m compileall -q -j 0 gpuflow kernels perf || true
# It ends by itself, within the time that is left; the rest is for the case that it cannot.
status=0
left=$((limit - SECONDS))
timeout -k 3 "$((left - 3))" "$python" perf/gpu_acceptance.py "$part" --seconds "$((left - 8))" \
    --out "$out" --done "$bring/results" "$work/results" "${options[@]}" 2>&1 |
    tee -a "$out/$part.log" || status=$?
# A folder of results may be emptied before the next command.
mkdir -p "$work/results"
cp "$out/gpu-records.jsonl" "$work/results/" 2>/dev/null || true
echo "$part ended with status $status after $SECONDS s; results in $out"
exit "$status"
