"""Its kernels."""

from gpuflow.as_jax.internals.pallas.refusing import publish_absent

_NAMES = """
BlockSizes QKVLayout SegmentIds SplashAttentionKernel make_splash_mha make_splash_mha_single_device
make_splash_mqa make_splash_mqa_single_device
"""
publish_absent(
    globals(), "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel", _NAMES
)
