"""Ops that take many NumPy calls: in eager mode each runs as one compiled program.

Indexing, windows and groups take a dozen small arrays, some derivatives several SciPy calls.
Other ops, and functions used by other packages of gpuflow, are those of ops/; see
docs/design/0035-composites.md.

Tests: tests/lax/test_lax_definitions.py, tests/lax/test_lax_rest.py.
"""

from __future__ import annotations

from gpuflow.control.composite import composite
from gpuflow.lax import one_dtype
from gpuflow.ops.contractions import convolution_calls as convolutions
from gpuflow.ops.contractions import ragged_dot as ragged
from gpuflow.ops.indexing import gather as gathers
from gpuflow.ops.indexing import scatter as scatters
from gpuflow.ops.random import rng_bit_generator as bits
from gpuflow.ops.sorting import approximate_top_k as approximate
from gpuflow.ops.sorting import sort as sorts

conv = composite(convolutions.conv)
conv_general_dilated = composite(convolutions.conv_general_dilated)
conv_general_dilated_patches = composite(convolutions.conv_general_dilated_patches)
conv_transpose = composite(convolutions.conv_transpose)
conv_with_general_padding = composite(convolutions.conv_with_general_padding)
ragged_dot = composite(ragged.ragged_dot)
ragged_dot_general = composite(ragged.ragged_dot_general)

gather = composite(gathers.gather)
scatter = composite(scatters.scatter)
scatter_add = composite(gathers.scatter_add)
scatter_max = composite(scatters.scatter_max)
scatter_min = composite(scatters.scatter_min)
scatter_mul = composite(scatters.scatter_mul)
scatter_sub = composite(gathers.scatter_sub)

approx_max_k = composite(approximate.approx_max_k)
approx_min_k = composite(approximate.approx_min_k)
top_k = composite(sorts.top_k)

igamma_grad_a = composite(one_dtype.igamma_grad_a)
random_gamma_grad = composite(one_dtype.random_gamma_grad)
rng_bit_generator = composite(bits.rng_bit_generator)
