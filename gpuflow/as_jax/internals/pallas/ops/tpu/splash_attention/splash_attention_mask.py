"""Its masks."""

from gpuflow.as_jax.internals.pallas.refusing import publish_absent

_NAMES = """
CausalMask ChunkedCausalMask FullMask LocalMask LogicalAnd LogicalOr Mask MultiHeadMask NumpyMask
make_causal_mask make_chunk_attention_mask make_local_attention_mask make_random_mask
"""
publish_absent(
    globals(), "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask", _NAMES
)
