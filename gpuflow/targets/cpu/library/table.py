"""Providers of library calls on the CPU, by class of block. The first that applies is used.

Tests: tests/test_provider_docs.py, tests/runtime/test_single_ops.py.
"""

from __future__ import annotations

from gpuflow.compiler.target import Providers
from gpuflow.core.blocks import (
    Cholesky,
    Convolution,
    Eig,
    Eigh,
    Fourier,
    Kernels,
    Lu,
    Product,
    Qr,
    Scan,
    Sort,
    Svd,
    Triangular,
)
from gpuflow.targets.cpu.library import (
    convolutions,
    fourier,
    fourier_loops,
    handwritten,
    lu,
    matrices,
    packed_products,
    products,
    qr,
    triangular,
)

# Blocks that use these providers outside of jit too; the others use NumPy there. Their providers
# build no kernel for a new dtype. NumPy's BLAS would start threads for products, and some of
# NumPy's decompositions run in float64, so signs of vectors would differ from jit's.
EAGER_BLOCKS = (Product, Fourier, Cholesky, Eigh, Eig, Svd, Qr, Lu, Triangular)

PROVIDERS: Providers = {
    Product: (products.PROVIDER, packed_products.PROVIDER),
    Convolution: (convolutions.PROVIDER,),
    Triangular: (triangular.PROVIDER,),
    Lu: (lu.PROVIDER,),
    Qr: (qr.PROVIDER,),
    Cholesky: (matrices.PROVIDER,),
    Eigh: (matrices.PROVIDER,),
    Eig: (matrices.PROVIDER,),
    Svd: (matrices.PROVIDER,),
    Sort: (handwritten.PROVIDER,),
    Scan: (handwritten.PROVIDER,),
    Fourier: (fourier.PROVIDER, fourier_loops.PROVIDER),
    Kernels: (handwritten.PROVIDER,),
}
