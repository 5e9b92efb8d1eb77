"""``jax._src.numpy.einsum``: sums of products by subscripts."""

from gpuflow.numpy import einsum as einsum
from gpuflow.numpy import einsum_path as einsum_path
