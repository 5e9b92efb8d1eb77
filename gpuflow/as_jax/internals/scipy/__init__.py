"""``jax._src.scipy``: the modules of jax.scipy that libraries import."""
