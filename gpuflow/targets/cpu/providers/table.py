"""Which blocks native programs of the CPU make, and by what. The first that can is taken."""

from __future__ import annotations

from gpuflow.compiler.target import Providers
from gpuflow.core.blocks import Convolution, Fourier, Kernels, Lu, Product, Scan, Triangular
from gpuflow.targets.cpu.providers import (
    convolutions,
    handwritten,
    lu,
    packed_products,
    products,
    triangular,
)

# Blocks that are made so outside of jit as well, where others are NumPy's: its BLAS has threads of
# its own, and no kernel has to be built for a new type.
EAGER_BLOCKS = (Product,)

PROVIDERS: Providers = {
    Product: (products.PROVIDER, packed_products.PROVIDER),
    Convolution: (convolutions.PROVIDER,),
    Triangular: (triangular.PROVIDER,),
    Lu: (lu.PROVIDER,),
    Scan: (handwritten.PROVIDER,),
    Fourier: (handwritten.PROVIDER,),
    Kernels: (handwritten.PROVIDER,),
}
