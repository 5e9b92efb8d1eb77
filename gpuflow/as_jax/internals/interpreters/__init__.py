"""``jax.interpreters``: the part that libraries import."""

from gpuflow.as_jax.internals.interpreters import partial_eval as partial_eval
