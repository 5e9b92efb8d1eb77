"""``jax.experimental.pallas.triton``: see the package."""

from gpuflow.as_jax.internals.pallas.refusing import publish_absent

_NAMES = """
CompilerParams TritonCompilerParams approx_tanh atomic_add atomic_and atomic_cas atomic_max
atomic_min atomic_or atomic_xchg atomic_xor debug_barrier dot elementwise_inline_asm load
max_contiguous store
"""
publish_absent(globals(), "jax.experimental.pallas.triton", _NAMES)
