#!/usr/bin/env bash
# Runs tests on 64-bit ARM under qemu's emulation, on x86-64 with Debian's apt. By hand: CI does not
# run it. The first run downloads some 120 MB.
#
#   apt-get install qemu-user-static && dpkg --add-architecture arm64 && apt-get update
#   tests/aarch64/qemu.sh                       the example of README, and a sample of the op sweep
#   tests/aarch64/qemu.sh tests/targets/cpu     any arguments of pytest
#
# Tests that start processes fail: the emulator runs one program. CPU=cortex-a72 emulates another
# processor than the newest one, for which OpenBLAS takes other kernels.
set -euo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
home=${AARCH64_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/gpuflow-aarch64}
root=$home/root
if [[ ! -d $home/site ]]; then
    mkdir -p "$home/packages" "$root"
    cd "$home/packages"
    names=(python3.11 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1
        libstdc++6 zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libtinfo6
        libncursesw6 libreadline8 libcrypt1 libgomp1 libnsl2 libtirpc3)
    apt-get download -q "${names[@]/%/:arm64}"
    for package in *.deb; do dpkg -x "$package" "$root"; done
    platforms=()
    for version in 2014 _2_17 _2_27 _2_28; do platforms+=(--platform "manylinux${version}_aarch64"); done
    python3 -m pip install -q --target "$home/new" "${platforms[@]}" --only-binary=:all: \
        --python-version 3.11 numpy numba llvmlite optree ml_dtypes scipy opt_einsum pytest hypothesis \
        threadpoolctl rich mpmath
    mv "$home/new" "$home/site"
fi

export PYTHONPATH=$home/site:$tree PYTHONHOME=$root/usr GPUFLOW_CACHE_DIR=$home/kernels
arm() { qemu-aarch64-static ${CPU:+-cpu "$CPU"} -L "$root" "$root/usr/bin/python3.11" "$@"; }

cd "$tree"
if (($#)); then
    arm -m pytest -q -p no:cacheprovider -rf "$@"
    exit
fi
arm -c '
import gpuflow as gf, gpuflow.numpy as jnp
print(gf.jit(gf.grad(lambda w, x: jnp.tanh(x @ w).sum()))(jnp.ones((3, 2)), jnp.ones((4, 3))))'
arm -m pytest -q -p no:cacheprovider -rf tests/ops/test_every_op.py \
    -k "triangular or cholesky or sort or gather or dot or conv or reduce or exp or random or select"
