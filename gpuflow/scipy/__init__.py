"""SciPy functions on gpuflow arrays, under jit, grad and vmap, with JAX's names."""

from typing import TYPE_CHECKING

from gpuflow.base.names import publish as _publish

if TYPE_CHECKING:
    from gpuflow.scipy import cluster as cluster
    from gpuflow.scipy import fft as fft
    from gpuflow.scipy import integrate as integrate
    from gpuflow.scipy import interpolate as interpolate
    from gpuflow.scipy import linalg as linalg
    from gpuflow.scipy import ndimage as ndimage
    from gpuflow.scipy import optimize as optimize
    from gpuflow.scipy import signal as signal
    from gpuflow.scipy import sparse as sparse
    from gpuflow.scipy import spatial as spatial
    from gpuflow.scipy import special as special
    from gpuflow.scipy import stats as stats

# Each is imported when it is first asked for.
_MODULES = (
    "cluster",
    "fft",
    "integrate",
    "interpolate",
    "linalg",
    "ndimage",
    "optimize",
    "signal",
    "sparse",
    "spatial",
    "special",
    "stats",
)
_publish(globals(), "scipy", (), _MODULES)
