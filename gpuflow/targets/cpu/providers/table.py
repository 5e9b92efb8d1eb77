"""Which blocks native programs of the CPU make, and by what. The first that can is taken."""

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
from gpuflow.targets.cpu.providers import (
    convolutions,
    fourier,
    handwritten,
    lu,
    matrices,
    products,
    qr,
    triangular,
)

PROVIDERS: Providers = {
    Product: (products.PROVIDER,),
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
    Fourier: (handwritten.PROVIDER, fourier.PROVIDER),
    Kernels: (handwritten.PROVIDER,),
}
