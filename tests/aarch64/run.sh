#!/usr/bin/env bash
# Builds kernels for aarch64 (Grace, Graviton) on x86-64, and looks for calls of functions that are
# not there. By hand: CI does not run it, and nothing is executed on aarch64.
#
#   apt-get install libc6-arm64-cross libgcc-s1-arm64-cross
#   tests/aarch64/run.sh [KERNELS [EACH]]
#
# KERNELS is the kernel cache of a test run; every EACH-th of its kernels is built (default: 100).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
libraries=/usr/aarch64-linux-gnu/lib
if [[ ! -e $libraries/libc.so.6 || ! -e $libraries/libgcc_s.so.1 ]]; then
    echo "needs Debian's packages libc6-arm64-cross and libgcc-s1-arm64-cross" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
kernels=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuflow-ci}
PYTHONPATH=$root GPUFLOW_CACHE_DIR=$work \
    "${PYTHON:-python3}" "$root/tests/aarch64/cross.py" "$libraries" "$kernels" "${2:-100}"
