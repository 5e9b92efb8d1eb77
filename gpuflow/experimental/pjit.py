"""``jit`` under its older name ``pjit``."""

from gpuflow.api.programs import jit as pjit  # noqa: F401
