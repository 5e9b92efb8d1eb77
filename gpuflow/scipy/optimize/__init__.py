"""jax.scipy.optimize: minima of functions of vectors."""

from gpuflow.base.names import missing_name as _missing_name
from gpuflow.base.names import public_names as _public_names
from gpuflow.scipy.optimize.minimizing import OptimizeResults as OptimizeResults
from gpuflow.scipy.optimize.minimizing import minimize as minimize

__getattr__ = _missing_name(__name__, "scipy.optimize", _public_names(globals()))
