"""What libraries import from the inside of JAX (jax.core, jax.extend, jax._src)."""
