"""Random keys that are used twice: ``gpuflow.debug_key_reuse`` and ``gpuflow.random.clone``.

The module has no public names; neither has ``jax.experimental.key_reuse``.
"""
