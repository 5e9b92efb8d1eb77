"""``jax.experimental.pallas.ops.tpu.splash_attention``: attention for TPUs."""

from gpuflow.as_jax.internals.pallas.refusing import publish_absent

_NAMES = """
BlockSizes CausalMask FullMask LocalMask Mask MultiHeadMask NumpyMask QKVLayout SegmentIds
make_causal_mask make_local_attention_mask make_random_mask make_splash_mha
make_splash_mha_single_device make_splash_mqa make_splash_mqa_single_device
"""
publish_absent(
    globals(),
    "jax.experimental.pallas.ops.tpu.splash_attention",
    _NAMES,
    ("splash_attention_kernel", "splash_attention_mask"),
)
