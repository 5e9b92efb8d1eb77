"""``jaxlib._jax``: the class of jitted functions, for checks of types."""

from gpuflow.control.jit_function import JitFunction as PjitFunction  # noqa: F401
