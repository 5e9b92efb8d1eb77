"""``jit`` under its older name for programs on several devices."""

from gpuflow.api.programs import jit as pjit  # noqa: F401
