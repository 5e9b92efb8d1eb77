"""``jax._src.lax``: the modules of jax.lax that libraries import."""
