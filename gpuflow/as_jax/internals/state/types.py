"""``jax._src.state.types``: the type of refs."""

from gpuflow.core.refs import AbstractRef as AbstractRef
