"""``jax.experimental.pallas.ops``: see the package above."""

from gpuflow.base.names import publish

publish(globals(), "jax.experimental.pallas.ops", (), ("tpu",))
