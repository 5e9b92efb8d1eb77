"""Arrays with at least one, two or three axes.

Tests: tests/numpy/test_scalar_operands.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from gpuflow import lax
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.promotion import check_arraylike
from gpuflow.numpy.shaping import with_new_axes


@overload
def atleast_1d(arys: ArrayLike, /) -> Array: ...
@overload
def atleast_1d(*arys: ArrayLike) -> list[Array]: ...
def atleast_1d(*arys: ArrayLike) -> Any:
    """Return arrays with at least one axis.

    Args:
        arys: arrays or scalars.

    Returns:
        An array for one argument, otherwise a list of arrays.

    Example:
        >>> jnp.atleast_1d(jnp.array(5), jnp.array([1, 2]))
        [Array([5], dtype=int32, weak_type=True), Array([1, 2], dtype=int32)]
    """
    return _at_least(arys, 1, ((0,),))


@overload
def atleast_2d(arys: ArrayLike, /) -> Array: ...
@overload
def atleast_2d(*arys: ArrayLike) -> list[Array]: ...
def atleast_2d(*arys: ArrayLike) -> Any:
    """Return arrays with at least two axes; new ones come first.

    Args:
        arys: arrays or scalars.

    Returns:
        An array for one argument, otherwise a list of arrays.

    Example:
        >>> jnp.atleast_2d(jnp.array([1, 2]))
        Array([[1, 2]], dtype=int32)
    """
    return _at_least(arys, 2, ((0, 1), (0,)))


@overload
def atleast_3d(arys: ArrayLike, /) -> Array: ...
@overload
def atleast_3d(*arys: ArrayLike) -> list[Array]: ...
def atleast_3d(*arys: ArrayLike) -> Any:
    """Return arrays with at least three axes: vectors become (1, n, 1), matrices (m, n, 1).

    Args:
        arys: arrays or scalars.

    Returns:
        An array for one argument, otherwise a list of arrays.

    Example:
        >>> jnp.atleast_3d(jnp.array([1, 2])).shape
        (1, 2, 1)
    """
    return _at_least(arys, 3, ((0, 1, 2), (0, 2), (2,)))


def _at_least(arys: Sequence[Any], rank: int, new: Sequence[tuple[int, ...]]) -> Any:
    """Arrays with axes of size 1 at the positions that ``new`` has for each lower rank."""
    arys = check_arraylike(f"atleast_{rank}d", *arys)
    shapes = [aval_of(x).shape for x in arys]
    outs = [
        lax.asarray(x) if len(old) >= rank else with_new_axes(x, old, new[len(old)])
        for x, old in zip(arys, shapes, strict=True)
    ]
    return outs[0] if len(outs) == 1 else outs
