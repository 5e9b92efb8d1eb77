"""``jax.experimental.pallas.ops``: see the package above."""
