"""scatter, scatter_mul, scatter_min, scatter_max: windows replaced, multiplied or compared.

Tests: tests/ops/test_gather_scatter.py, tests/ops/test_segments.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import Zero, is_undefined, zero_tangent
from gpuflow.core.types import Array, ArrayLike, ModeLike
from gpuflow.ops.define import any_dtype, is_number, is_ordered
from gpuflow.ops.elementwise.arithmetic import add, div, mul
from gpuflow.ops.elementwise.comparison import eq
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.nary import add_any_p
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.indexing.dimension_numbers import ScatterDimensionNumbers
from gpuflow.ops.indexing.gather import read_back, scatter_add_p
from gpuflow.ops.indexing.repeated_products import products_of_others
from gpuflow.ops.indexing.scatter_core import define_scatter, scatter_params
from gpuflow.ops.layout.axes import reshape
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.zeros import full, instantiate, zeros_of

# --- set -----------------------------------------------------------------------------------


def _set_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """Tangent; for repeated indices, scatter the updates' ids to find the visible update."""
    x, indices, updates = primals
    out = scatter_p.bind(x, indices, updates, **params)
    if all(type(tangents[k]) is Zero for k in (0, 2)):
        return out, zero_tangent(out)
    x_tangent, update_tangent = instantiate(tangents[0]), instantiate(tangents[2])
    if params["unique_indices"]:
        return out, scatter_p.bind(x_tangent, indices, update_tangent, **params)
    written, seen = _seen(aval_of(x).shape, indices, aval_of(updates), params)
    x_visible = where(eq(written, np.int32(0)), x_tangent, zeros_of(aval_of(x_tangent)))
    update_visible = where(seen, update_tangent, zeros_of(aval_of(update_tangent)))
    return out, scatter_add_p.bind(x_visible, indices, update_visible, **params)


def _seen(
    shape: tuple[int, ...], indices: Any, updates: ShapedArray, params: dict[str, Any]
) -> tuple[Any, Any]:
    """The id of the update at each element of the array, or 0; and a mask of visible updates."""
    ids = _ids_of(updates)
    written = scatter_p.bind(full(shape, 0, np.int32), indices, ids, **params)
    return written, eq(read_back(written, indices, updates, params), ids)


def _ids_of(updates: ShapedArray) -> Any:
    """1, 2, 3, ... in the shape of the updates."""
    flat = add(iota(np.int32, (updates.size,), 0), np.int32(1))
    return reshape(flat, updates.shape)


def _set_transpose(cotangent: Any, x: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
    if type(cotangent) is Zero:
        return [Zero(v.aval.tangent()) if is_undefined(v) else None for v in (x, indices, updates)]
    result: list[Any] = [None, None, None]
    aval = updates.aval if is_undefined(updates) else aval_of(updates)
    if is_undefined(x):
        zeros = zeros_of(aval.update(dtype=aval_of(cotangent).dtype))
        result[0] = scatter_p.bind(cotangent, indices, zeros, **params)
    if is_undefined(updates):
        windows = read_back(cotangent, indices, aval, params)
        if not params["unique_indices"]:
            seen = _seen(aval_of(cotangent).shape, indices, aval, params)[1]
            windows = where(seen, windows, zeros_of(aval_of(windows)))
        result[2] = windows
    return result


scatter_p = define_scatter("scatter", "set", any_dtype, _set_jvp, _set_transpose)

# --- mul -----------------------------------------------------------------------------------


def _mul_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    x, indices, updates = primals
    out = scatter_mul_p.bind(x, indices, updates, **params)
    terms = []
    if type(tangents[0]) is not Zero:
        terms.append(scatter_mul_p.bind(tangents[0], indices, updates, **params))
    if type(tangents[2]) is not Zero:
        change = tangents[2]
        if not params["unique_indices"]:
            change = mul(change, _other_factors(aval_of(x), indices, updates, params))
        start = zeros_of(aval_of(x))
        terms.append(mul(x, scatter_add_p.bind(start, indices, change, **params)))
    if not terms:
        return out, zero_tangent(out)
    return out, terms[0] if len(terms) == 1 else add_any_p.bind(*terms)


def _other_factors(x: ShapedArray, indices: Any, updates: Any, params: dict[str, Any]) -> Any:
    """For each update, the product of the other updates of its element."""
    aval = aval_of(updates)
    # Ids of elements, from 1; 0 for dropped updates.
    element_ids = read_back(_ids_of(x), indices, aval, params)
    others = products_of_others(reshape(element_ids, (aval.size,)), reshape(updates, (aval.size,)))
    return reshape(others, aval.shape)


def _mul_transpose(cotangent: Any, x: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
    if type(cotangent) is Zero:
        return [Zero(v.aval.tangent()) if is_undefined(v) else None for v in (x, indices, updates)]
    if is_undefined(x):
        return [scatter_mul_p.bind(cotangent, indices, updates, **params), None, None]
    product = read_back(mul(cotangent, x), indices, updates.aval, params)
    return [None, None, product]


scatter_mul_p = define_scatter("scatter_mul", "multiply", is_number, _mul_jvp, _mul_transpose)

# --- min and max ---------------------------------------------------------------------------


def _extreme_jvp(
    primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
    """The tangents of all that equal the result, averaged."""
    x, indices, updates = primals
    out = primitive.bind(x, indices, updates, **params)
    if all(type(tangents[k]) is Zero for k in (0, 2)):
        return out, zero_tangent(out)
    x_tangent, update_tangent = instantiate(tangents[0]), instantiate(tangents[2])
    dtype = aval_of(out).dtype
    x_hits = convert_element_type(eq(out, x), dtype)
    extremes = read_back(out, indices, aval_of(updates), params)
    update_hits = convert_element_type(eq(extremes, updates), dtype)
    count = scatter_add_p.bind(x_hits, indices, update_hits, **params)
    total = scatter_add_p.bind(
        mul(x_hits, x_tangent), indices, mul(update_hits, update_tangent), **params
    )
    return out, div(total, count)


def _extreme(name: str, combine: str) -> Primitive:
    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        return _extreme_jvp(primitive, primals, tangents, **params)

    primitive = define_scatter(name, combine, is_ordered, jvp)
    return primitive


scatter_min_p = _extreme("scatter_min", "minimum")
scatter_max_p = _extreme("scatter_max", "maximum")

# --- public functions -----------------------------------------------------------------------


def scatter(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: ModeLike = None,
) -> Array:
    """Replace windows of ``operand`` at indices; the last update of a repeated index wins.

    Args:
        operand: array of any dtype.
        scatter_indices: integers of shape ``batch + (n,)``: index vectors of length n.
        updates: array of the dtype of ``operand``.
        dimension_numbers: see ``ScatterDimensionNumbers``.
        indices_are_sorted: whether index vectors are guaranteed to be in ascending order.
        unique_indices: whether no element is guaranteed to be written twice.
        mode: ``clip``, ``drop`` (the default, skips windows that are out of bounds) or
            ``promise_in_bounds``.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if dtypes, shapes or dimension numbers are inconsistent.
        ValueError: if the mode is unknown.

    Example:
        >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        >>> x, indices = jnp.array([5, 5, 5]), jnp.array([[2], [0]])
        >>> lax.scatter(x, indices, jnp.array([1, 10]), numbers)
        Array([10,  5,  1], dtype=int32)
    """
    params = scatter_params(dimension_numbers, indices_are_sorted, unique_indices, mode)
    return scatter_p.bind(operand, scatter_indices, updates, **params)


def scatter_mul(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: ModeLike = None,
) -> Array:
    """Multiply windows of ``operand`` by updates at indices, once for each occurrence.

    Args:
        operand: array of numbers.
        scatter_indices: integers of shape ``batch + (n,)``: index vectors of length n.
        updates: array of the dtype of ``operand``.
        dimension_numbers: see ``ScatterDimensionNumbers``.
        indices_are_sorted: whether index vectors are guaranteed to be in ascending order.
        unique_indices: whether no element is guaranteed to be written twice.
        mode: ``clip``, ``drop`` (the default, skips windows that are out of bounds) or
            ``promise_in_bounds``.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if dtypes, shapes or dimension numbers are inconsistent.
        ValueError: if the mode is unknown.

    Example:
        >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        >>> x, indices = jnp.array([5, 5, 5]), jnp.array([[2], [0]])
        >>> lax.scatter_mul(x, indices, jnp.array([1, 10]), numbers)
        Array([50,  5,  5], dtype=int32)
    """
    params = scatter_params(dimension_numbers, indices_are_sorted, unique_indices, mode)
    return scatter_mul_p.bind(operand, scatter_indices, updates, **params)


def scatter_min(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: ModeLike = None,
) -> Array:
    """Return the minimum of elements and updates at indices.

    nan propagates; the derivative is divided equally among all elements equal to the result.

    Args:
        operand: array of numbers or bools.
        scatter_indices: integers of shape ``batch + (n,)``: index vectors of length n.
        updates: array of the dtype of ``operand``.
        dimension_numbers: see ``ScatterDimensionNumbers``.
        indices_are_sorted: whether index vectors are guaranteed to be in ascending order.
        unique_indices: whether no element is guaranteed to be written twice.
        mode: ``clip``, ``drop`` (the default, skips windows that are out of bounds) or
            ``promise_in_bounds``.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if dtypes, shapes or dimension numbers are inconsistent.
        ValueError: if the mode is unknown.

    Example:
        >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        >>> x, indices = jnp.array([5, 5, 5]), jnp.array([[2], [0]])
        >>> lax.scatter_min(x, indices, jnp.array([1, 10]), numbers)
        Array([5, 5, 1], dtype=int32)
    """
    params = scatter_params(dimension_numbers, indices_are_sorted, unique_indices, mode)
    return scatter_min_p.bind(operand, scatter_indices, updates, **params)


def scatter_max(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: ModeLike = None,
) -> Array:
    """Return the maximum of elements and updates at indices.

    nan propagates; the derivative is divided equally among all elements equal to the result.

    Args:
        operand: array of numbers or bools.
        scatter_indices: integers of shape ``batch + (n,)``: index vectors of length n.
        updates: array of the dtype of ``operand``.
        dimension_numbers: see ``ScatterDimensionNumbers``.
        indices_are_sorted: whether index vectors are guaranteed to be in ascending order.
        unique_indices: whether no element is guaranteed to be written twice.
        mode: ``clip``, ``drop`` (the default, skips windows that are out of bounds) or
            ``promise_in_bounds``.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if dtypes, shapes or dimension numbers are inconsistent.
        ValueError: if the mode is unknown.

    Example:
        >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        >>> x, indices = jnp.array([5, 5, 5]), jnp.array([[2], [0]])
        >>> lax.scatter_max(x, indices, jnp.array([1, 10]), numbers)
        Array([10,  5,  5], dtype=int32)
    """
    params = scatter_params(dimension_numbers, indices_are_sorted, unique_indices, mode)
    return scatter_max_p.bind(operand, scatter_indices, updates, **params)
