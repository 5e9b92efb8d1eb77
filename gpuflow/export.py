"""jax.export writes programs as StableHLO, which gpuflow neither makes nor reads.

The names are here so that programs can be imported, and say what to write instead.
"""

from __future__ import annotations

from typing import Any, NoReturn

from gpuflow.base.names import public_names, publish


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"[export] programs must be kept as Python, as there is no StableHLO here; got a call of "
        f"{name}. Fix: ship the function: its kernels are kept in the cache folder "
        "(GPUFLOW_CACHE_DIR), which can be copied, and jit(f).lower(x).as_text() prints a program."
    )


def export(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError: the cache folder keeps compiled kernels."""
    _refuse("export")


def deserialize(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError, as ``export``."""
    _refuse("deserialize")


def symbolic_shape(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError; kernels do not know sizes in any case."""
    _refuse("symbolic_shape")


def symbolic_args_specs(*args: Any, **kwargs: Any) -> Any:
    """Raises NotImplementedError; kernels do not know sizes in any case."""
    _refuse("symbolic_args_specs")


publish(globals(), "export", public_names(globals(), __name__))
