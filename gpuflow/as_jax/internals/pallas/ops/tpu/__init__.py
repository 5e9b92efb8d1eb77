"""``jax.experimental.pallas.ops.tpu``: see the package above."""

from gpuflow.base.names import publish

publish(globals(), "jax.experimental.pallas.ops.tpu", (), ("megablox", "splash_attention"))
