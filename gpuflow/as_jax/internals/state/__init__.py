"""``jax._src.state``: the type of refs."""

from gpuflow.core.refs import AbstractRef as AbstractRef
