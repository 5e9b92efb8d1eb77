"""Detection of reused random keys: ``gpuflow.debug_key_reuse`` and ``gpuflow.random.clone``.

The module has no public names; neither has ``jax.experimental.key_reuse``.
"""
