"""jax.scipy.spatial."""

from gpuflow.base.names import missing_name as _missing_name

# Imported when it is first asked for.
_MODULES = ("transform",)
__getattr__ = _missing_name(__name__, "scipy.spatial", (), _MODULES)
