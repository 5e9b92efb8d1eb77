"""gpuflow: a GPU-first array framework with JAX's names. See docs/architecture.md."""
