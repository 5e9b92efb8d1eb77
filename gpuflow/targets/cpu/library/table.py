"""Blocks of native CPU programs, and their providers. The first that supports one is used."""

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

# Blocks that use these providers outside of jit too, where others use NumPy: no kernel has to be
# built for a new type. NumPy's BLAS uses separate threads for products. Some of its decompositions
# are done in float64, and the vectors of a matrix would have other signs than in jit.
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
