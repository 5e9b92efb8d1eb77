"""``jax.experimental.pallas.ops.tpu``: see the package above."""
