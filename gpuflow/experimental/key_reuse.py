"""Random keys that are used twice: ``gpuflow.debug_key_reuse`` and ``gpuflow.random.clone``.

The module has no names of its own; ``jax.experimental.key_reuse`` has none either.
"""
