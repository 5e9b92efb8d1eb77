"""``jax._src.lax.convolution``: convolutions, with their primitive."""

from gpuflow.lax import conv_general_dilated as conv_general_dilated
from gpuflow.lax import conv_general_dilated_p as conv_general_dilated_p  # type: ignore[attr-defined]
