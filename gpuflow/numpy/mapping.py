"""Functions applied along axes, to indices, and piecewise.

Tests: tests/numpy/test_numpy_gradients.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow import lax
from gpuflow.api.vmap import vmap
from gpuflow.base.arguments import are_several, as_items, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, ArraysLike, DTypeLike
from gpuflow.numpy.arguments import as_array, static_int
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.promotion import broadcast_shapes
from gpuflow.numpy.ranges import arange
from gpuflow.numpy.shaping import expand_dims
from gpuflow.numpy.vectorizing import vectorize

Function = Callable[..., Any]


# --- along axes ----------------------------------------------------------------------------


@explained
def apply_along_axis(
    func1d: Function, axis: int, arr: ArrayLike, *args: Any, **kwargs: Any
) -> Array:
    """Apply a function of vectors to each vector along an axis.

    Args:
        func1d: a function of a vector, ``args`` and ``kwargs``; the axes of its result replace
            ``axis``.
        axis: the axis of the vectors.
        arr: array.
        args, kwargs: additional arguments of the function.

    Returns:
        An array of the function's dtype.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.apply_along_axis(lambda v: v[::-1], 1, jnp.array([[1, 2], [3, 4]]))
        Array([[2, 1],
               [4, 3]], dtype=int32)
    """
    x = as_array("apply_along_axis", arr)
    rank = aval_of(x).ndim
    here = canonicalize_axis(axis, rank, "apply_along_axis")

    def function(vector: Any) -> Any:
        return func1d(vector, *args, **kwargs)

    for d in range(1, rank - here):
        function = vmap(function, in_axes=d, out_axes=-1)
    for _ in range(here):
        function = vmap(function)
    return function(x)


@explained
def apply_over_axes(func: Function, a: ArrayLike, axes: Sequence[int]) -> Array:
    """Apply a function of an array and an axis to several axes in turn.

    Args:
        func: ``func(array, axis)``; its result has the rank of the array, or one less.
        a: array.
        axes: an axis or a sequence of axes.

    Returns:
        An array of the rank of ``a``.

    Raises:
        ValueError: if the result has another rank.

    Example:
        >>> jnp.apply_over_axes(jnp.sum, jnp.ones((2, 3, 2)), (0, 2))
        Array([[[4.],
                [4.],
                [4.]]], dtype=float32)
    """
    x = as_array("apply_over_axes", a)
    for axis in axes if isinstance(axes, (tuple, list)) or hasattr(axes, "__len__") else (axes,):
        out = func(x, int(axis))
        rank = aval_of(x).ndim
        if aval_of(out).ndim == rank - 1:
            out = expand_dims(out, int(axis))
        check(
            aval_of(out).ndim == rank,
            lambda out=out, rank=rank: (
                f"[apply_over_axes] the function must return rank {rank} or {rank - 1}; got "
                f"{aval_of(out)}. Fix: keepdims=True."
            ),
            ValueError,
        )
        x = out
    return x


@explained
def fromfunction(
    function: Function, shape: Any, *, dtype: DTypeLike = float, **kwargs: Any
) -> Array:
    """Compute a function of indices for all indices of a shape.

    Args:
        function: a function of one scalar for each axis, and of ``kwargs``.
        shape: an int or a sequence of ints.
        dtype: dtype of the indices.
        kwargs: additional arguments of the function.

    Returns:
        An array of ``shape`` followed by the axes of the function's results.

    Example:
        >>> jnp.fromfunction(lambda i, j: 10 * i + j, (2, 3), dtype=int)
        Array([[ 0,  1,  2],
               [10, 11, 12]], dtype=int32)
    """
    sizes = shape if are_several(shape) else (shape,)
    sizes = [static_int("fromfunction", "shape", n) for n in sizes]

    def positional(*positions: Any) -> Any:
        return function(*positions, **kwargs)

    for d in reversed(range(len(sizes))):
        in_axes = tuple(0 if k == d else None for k in range(len(sizes)))
        positional = vmap(positional, in_axes)
    return positional(*[arange(n, dtype=dtype) for n in sizes])


# --- by case -------------------------------------------------------------------------------


@explained
def piecewise(
    x: ArrayLike,
    condlist: ArraysLike,
    funclist: Sequence[Any],
    *args: Any,
    **kw: Any,
) -> Array:
    """Compute a piecewise function.

    Args:
        x: array.
        condlist: bool arrays of the shape of ``x``; if several are True, the last one wins.
        funclist: a function of scalars, or a scalar, for each condition; optionally one more for
            elements where no condition is True, which otherwise are 0.
        args, kw: additional arguments of the functions.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        ValueError: if the number of functions does not match.

    Example:
        >>> x = jnp.array([-2, 1, 3])
        >>> jnp.piecewise(x, [x < 0, x > 2], [lambda v: -v, 9])
        Array([2, 0, 9], dtype=int32)
    """
    x, count = as_array("piecewise", x), len(as_items("piecewise", "condlist", condlist))
    functions = list(funclist)
    check(
        len(functions) in (count, count + 1),
        lambda: (
            f"[piecewise] there must be {count} or {count + 1} functions for {count} "
            f"conditions; got {len(functions)}. Fix: add a number for where none holds."
        ),
        ValueError,
    )
    default = functions.pop() if len(functions) == count + 1 else 0
    dtype = aval_of(x).dtype

    def branch(function: Any) -> Function:
        if callable(function):
            return lambda value: lax.convert_element_type(function(value, *args, **kw), dtype)
        return lambda value: asarray(function, dtype=dtype)

    branches = [branch(function) for function in (default, *functions)]
    which = lax.full((), 0, "int32")
    for k in range(count):
        condition = asarray(condlist[k], dtype=bool)
        which = lax.select_n(*_in_one_shape(condition, which, lax.full((), k + 1, "int32")))
    return vectorize(lambda k, value: lax.switch(k, branches, value))(which, x)


def _in_one_shape(*operands: Any) -> list[Any]:
    shape = broadcast_shapes(*[aval_of(x).shape for x in operands], name="piecewise")
    out = []
    for x in operands:
        operand_shape = aval_of(x).shape
        dims = range(len(shape) - len(operand_shape), len(shape))
        out.append(lax.broadcast_in_dim(x, shape, dims))
    return out
