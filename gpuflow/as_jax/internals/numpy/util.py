"""``jax._src.numpy.util``: promotion of arguments."""

from gpuflow.numpy.promotion import promote_dtypes_inexact as promote_dtypes_inexact
