"""jax.scipy.cluster."""

from gpuflow.base.names import missing_name as _missing_name

# Imported when it is first asked for.
_MODULES = ("vq",)
__getattr__ = _missing_name(__name__, "scipy.cluster", (), _MODULES)
