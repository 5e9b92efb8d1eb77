"""``jax._src.lax.control_flow``: loops and branches, with their primitives."""

from gpuflow.lax import associative_scan as associative_scan
from gpuflow.lax import cond as cond
from gpuflow.lax import cond_p as cond_p  # type: ignore[attr-defined]
from gpuflow.lax import fori_loop as fori_loop
from gpuflow.lax import map as map
from gpuflow.lax import scan as scan
from gpuflow.lax import scan_p as scan_p  # type: ignore[attr-defined]
from gpuflow.lax import switch as switch
from gpuflow.lax import while_loop as while_loop
from gpuflow.lax import while_p as while_p  # type: ignore[attr-defined]
