"""jax.scipy.optimize: minima of functions of vectors."""

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.scipy.optimize.minimizing import OptimizeResults as OptimizeResults
from gpuflow.scipy.optimize.minimizing import minimize as minimize

_publish(globals(), "scipy.optimize", _public_names(globals()))
