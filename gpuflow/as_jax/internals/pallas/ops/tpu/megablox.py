"""``jax.experimental.pallas.ops.tpu.megablox``: products of groups of rows, on TPUs."""

from gpuflow.as_jax.internals.pallas.refusing import publish_absent

publish_absent(globals(), "jax.experimental.pallas.ops.tpu.megablox", "gmm")
