"""``jax._src.state``: the part that libraries import."""
