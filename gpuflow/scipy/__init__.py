"""The part of SciPy that works on our arrays, under jit, grad and vmap, with JAX's names."""

from gpuflow.base.names import missing_name as _missing_name

# Each is imported when it is first asked for.
_MODULES = (
    "cluster", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal",
    "sparse", "spatial", "special", "stats",
)  # fmt: skip
__getattr__ = _missing_name(__name__, "scipy", (), _MODULES)
