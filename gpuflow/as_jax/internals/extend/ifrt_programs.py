"""``jax.extend.ifrt_programs``: programs for plug-ins, of which there are none."""

from gpuflow.as_jax.internals.absent import absent_class

ifrt_programs = absent_class(
    "jax.extend.ifrt_programs.ifrt_programs",
    "programs must be jitted functions; got one for a plug-in. Fix: jax.jit.",
)
