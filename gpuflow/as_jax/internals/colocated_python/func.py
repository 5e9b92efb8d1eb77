"""``jax.experimental.colocated_python.func``: there is nothing in it."""
