"""What JAX keeps under jax.experimental."""

from gpuflow.callbacks import io_callback as io_callback
