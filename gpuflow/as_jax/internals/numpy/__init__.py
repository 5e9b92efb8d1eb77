"""``jax._src.numpy``: the modules of jax.numpy that libraries import."""
