"""Code of JAX's inner modules that gpuflow has under other names; as_jax/table.txt has the rest."""
