"""jax.scipy.sparse."""

from gpuflow.base.names import missing_name as _missing_name

# Imported when it is first asked for.
_MODULES = ("linalg",)
__getattr__ = _missing_name(__name__, "scipy.sparse", (), _MODULES)
