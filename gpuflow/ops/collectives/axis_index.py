"""axis_size and axis_index: size of named axes, and index along them.

Tests: tests/ops/test_collectives.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray
from gpuflow.core.effects import AxisUse
from gpuflow.core.rules import AxisData
from gpuflow.core.types import Array
from gpuflow.ops.collectives.named_axes import (
    Names,
    as_names,
    communicator_for,
    is_over,
    manual_axes,
    sizes_of,
)
from gpuflow.ops.define import define
from gpuflow.ops.elementwise.arithmetic import add, mul
from gpuflow.ops.elementwise.comparison import eq
from gpuflow.ops.elementwise.select import select
from gpuflow.ops.layout.iota import iota


@explained
def axis_size(axis_name: Any) -> int:
    """Return the size of a named axis, or the product of several, as a Python int.

    Args:
        axis_name: an axis name, or several.

    Returns:
        int.

    Raises:
        NameError: if no enclosing transformation binds the axis name.

    Example:
        >>> gf.vmap(lambda x: x / lax.axis_size("i"), axis_name="i")(jnp.array([2.0, 4.0]))
        Array([1., 2.], dtype=float32)
    """
    return prod(sizes_of("axis_size", as_names(axis_name)))


def _index_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[Any], *, axis_name: Any
) -> tuple[Any, int | None]:
    del operands, dims
    if not is_over(axis, (axis_name,)):
        return axis_index_p.bind(axis_name=axis_name), None
    return iota(dtypes.int32, (axis.size,)), 0


def _index_impl(xp: Any, *, axis_name: Any) -> Any:
    return xp.asarray(communicator_for("axis_index", (axis_name,)).rank, np.int32)


@explained
def axis_index(axis_name: Any) -> Array:
    """Return the index along a named axis.

    Args:
        axis_name: an axis name, or several; their index is row-major.

    Returns:
        An ``i32[]``.

    Raises:
        NameError: if no enclosing transformation binds the axis name.

    Example:
        >>> gf.vmap(lambda x: lax.axis_index("i"), axis_name="i")(jnp.zeros(3))
        Array([0, 1, 2], dtype=int32)
    """
    names = as_names(axis_name)
    return index_of(names, sizes_of("axis_index", names))


def index_of(names: Names, sizes: Sequence[int]) -> Any:
    """The row-major index along axes of static sizes."""
    index: Any = np.int32(0)
    for k, (name, size) in enumerate(zip(names, sizes, strict=True)):
        coordinate = axis_index_p.bind(axis_name=name)
        index = add(mul(index, np.int32(size)), coordinate) if k else coordinate
    return index


axis_index_p = define(
    "axis_index",
    shape=lambda *, axis_name: ShapedArray((), dtypes.int32),
    impl=_index_impl,
    batch=_index_batch,
    effects=lambda params: frozenset({AxisUse(params["axis_name"])}),
    varies=lambda varying, params: [manual_axes((params["axis_name"],))],
)


def select_at_index(names: Names, sizes: Sequence[int], position: int, x: Any, other: Any) -> Any:
    """``x`` at one index along the axes, ``other`` elsewhere."""
    return select(eq(index_of(names, sizes), np.int32(position)), x, other)
