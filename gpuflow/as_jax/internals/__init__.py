"""Code of JAX's inner modules that gpuflow has under other names; ``..table`` has the rest."""
