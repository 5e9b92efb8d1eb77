"""Providers of library calls on GPUs: the first that supports a call is used, else CuPy.

Providers of cuDNN come before those of our kernels, which support more calls.

Tests: tests/targets/cuda/test_cudnn.py, tests/kernels/test_kernels_offline.py.
"""

from __future__ import annotations

from gpuflow.compiler.target import Providers
from gpuflow.core.blocks import (
    AtomicSums,
    Attention,
    Cholesky,
    Convolution,
    Eig,
    Eigh,
    Lu,
    Product,
    Qr,
    Runs,
    Scan,
    Sort,
    Triangular,
    UserKernel,
)
from gpuflow.targets.cuda.library import (
    attention,
    convolutions,
    cudnn_attention,
    cudnn_convolutions,
    prefix_scans,
    products,
    runs,
    small_matrices,
    sorts,
    user_kernels,
)
from gpuflow.targets.cuda.library import scatter_add as atomic_sums

PROVIDERS: Providers = {
    Product: (products.PROVIDER,),
    Convolution: (cudnn_convolutions.PROVIDER, convolutions.PROVIDER),
    Triangular: (small_matrices.PROVIDER,),
    Lu: (small_matrices.PROVIDER,),
    Cholesky: (small_matrices.PROVIDER,),
    Qr: (small_matrices.PROVIDER,),
    Eigh: (small_matrices.PROVIDER,),
    Eig: (small_matrices.PROVIDER,),
    Scan: (prefix_scans.PROVIDER,),
    Sort: (sorts.PROVIDER,),
    Runs: (runs.PROVIDER,),
    AtomicSums: (atomic_sums.PROVIDER,),
    UserKernel: (user_kernels.PROVIDER,),
    Attention: (cudnn_attention.PROVIDER, attention.PROVIDER),
}
