"""Argument conversion for composite functions: arrays, static values and named options.

Tests: tests/numpy/test_operand_kinds.py, tests/numpy/test_argument_kinds.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base.arguments import as_count, as_integer
from gpuflow.base.errors import ConcretizationTypeError, OutOfMemoryError, check
from gpuflow.base.foreign import brief
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import Tracer
from gpuflow.core.types import Array
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.promotion import check_arraylike


def as_array(name: str, x: Any) -> Array:
    """An argument as an array; TypeError for lists and other objects."""
    (x,) = check_arraylike(name, x)
    return asarray(x)


def as_arrays(name: str, *operands: Any) -> list[Array]:
    """Arguments as arrays; TypeError for lists and other objects."""
    operands = check_arraylike(name, *operands)
    return [asarray(x) for x in operands]


def known(name: str, what: str, x: Any, mend: str) -> np.ndarray:
    """The values of ``x``, as a NumPy array, for results whose shape depends on them.

    Raises:
        ConcretizationTypeError: if ``x`` is traced.
    """
    if isinstance(x, Tracer):
        value = x.concrete()
        check(
            value is not None,
            lambda: (
                f"[{name}] {what} must be known while tracing, as the shape of the result depends "
                f"on it; got a traced {aval_of(x)}. Fix: {mend}"
            ),
            ConcretizationTypeError,
        )
        x = value
    try:
        return np.asarray(x)
    except ValueError:
        raise ValueError(
            f"[{name}] {what} must hold rows of one length; got {brief(x)}. Fix: pad the rows."
        ) from None


def static_int(name: str, what: str, value: Any) -> int:
    """An argument that must be a static int; TypeError otherwise."""
    if isinstance(value, Tracer):
        value = known(name, what, value, f"pass {what} as a Python int.")[()]
    return as_integer(name, what, value)


def truncated_int(name: str, what: str, value: Any) -> int:
    """Truncate an argument to a static int, where NumPy and JAX accept floats."""
    if isinstance(value, Tracer):
        value = known(name, what, value, f"pass {what} as a Python int.").item()
    return as_count(name, what, value)


def check_not_inplace(name: str, inplace: bool, error: type[Exception] = ValueError) -> None:
    """Raise an error for a NumPy function with in-place semantics, unless it is disabled."""
    check(
        not inplace,
        lambda: (
            f"[{name}] arrays are immutable, so inplace must be False; got {inplace}. "
            f"Fix: y = jnp.{name}(..., inplace=False)."
        ),
        error,
    )


def tiled_to(name: str, values: Any, size: int) -> Any:
    """The first ``size`` elements of a vector repeated endlessly.

    Raises:
        OutOfMemoryError: if the elements do not fit into memory.
    """
    length = aval_of(values).shape[0]
    if length < size:
        try:
            indices = (np.arange(size) % length).astype(np.int32)
        except (MemoryError, ValueError, OverflowError):
            raise OutOfMemoryError(
                f"[{name}] the elements must fit into memory; got {brief(size)}. "
                "Fix: a smaller shape."
            ) from None
        values = asarray(values)[indices]
    return values[:size]
