"""Differences, numerical derivatives and integrals, and interpolation.

Tests: tests/numpy/test_numpy_gradients.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import are_several, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, Axes
from gpuflow.numpy.arguments import as_array, as_arrays, static_int
from gpuflow.numpy.joining import concatenate
from gpuflow.numpy.logic import clip, isinf, where
from gpuflow.numpy.promotion import (
    check_numbers,
    convert,
    promote_dtypes,
    promote_dtypes_inexact,
    to_rank,
)
from gpuflow.numpy.reductions import sum as sum_of
from gpuflow.numpy.searching import searchsorted
from gpuflow.numpy.shaping import broadcast_to, moveaxis, ravel
from gpuflow.numpy.sorting import cumsum
from gpuflow.numpy.ufuncs import abs as absolute
from gpuflow.numpy.ufuncs import remainder, subtract
from gpuflow.ops.linalg.algebra import through_float32


def _steps(x: Any, axis: int) -> Any:
    """Each element minus the one before."""
    size = aval_of(x).shape[axis]
    after = lax.slice_in_dim(x, min(size, 1), size, axis=axis)
    before = lax.slice_in_dim(x, 0, max(size - 1, 0), axis=axis)
    if dtypes.is_bool(aval_of(x).dtype):
        return lax.ne(after, before)
    return lax.sub(after, before)


@composite
def diff(
    a: ArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Array:
    """Return the ``n``-th differences of neighbors.

    Args:
        a: array; bools are compared instead of subtracted.
        n: number of times to take differences.
        axis: the axis along which neighbors are subtracted.
        prepend, append: values to add before and after, arrays or a scalar; None adds nothing.

    Returns:
        An array of the dtype of ``a``; along ``axis`` it has ``n`` fewer elements than ``a`` with
        ``prepend`` and ``append``.

    Raises:
        ValueError: if ``n`` is negative, or the rank is 0.

    Example:
        >>> jnp.diff(jnp.array([1, 4, 9, 16]))
        Array([3, 5, 7], dtype=int32)
        >>> jnp.diff(jnp.array([1, 4, 9, 16]), n=2, prepend=0)
        Array([2, 2, 2], dtype=int32)
    """
    x, count = as_array("diff", a), static_int("diff", "n", n)
    check(
        count >= 0,
        lambda: f"[diff] n must not be negative; got {count}. Fix: n=1.",
        ValueError,
    )
    if count == 0:
        return x
    check(
        aval_of(x).ndim > 0,
        lambda: f"[diff] the array must have an axis; got {aval_of(x)}. Fix: jnp.atleast_1d(x).",
        ValueError,
    )
    here = canonicalize_axis(axis, aval_of(x).ndim, "diff")
    edge = [1 if d == here else size for d, size in enumerate(aval_of(x).shape)]
    operands = []
    for operand in (prepend, x, append):
        if operand is None:
            continue
        operand = as_array("diff", operand)
        operands.append(operand if aval_of(operand).ndim else broadcast_to(operand, edge))
    x = concatenate(operands, here) if len(operands) > 1 else x
    for _ in range(min(count, aval_of(x).shape[here])):  # no elements remain after that
        x = _steps(x, here)
    return x


@composite
def ediff1d(
    ary: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None
) -> Array:
    """Return the differences of neighbors in the flattened array.

    Args:
        ary: array.
        to_end: number or array to append to the differences; None appends nothing.
        to_begin: number or array to prepend to the differences; None prepends nothing.

    Returns:
        A vector of the dtype of ``ary``.

    Raises:
        TypeError: if an argument is boolean.

    Example:
        >>> jnp.ediff1d(jnp.array([[1, 4], [9, 16]]), to_begin=0)
        Array([0, 3, 5, 7], dtype=int32)
    """
    x = ravel(as_array("ediff1d", ary))
    check_numbers("ediff1d", x)
    dtype = aval_of(x).dtype
    operands = [_steps(x, 0)]
    if to_begin is not None:
        operands.insert(0, ravel(lax.convert_element_type(as_array("ediff1d", to_begin), dtype)))
    if to_end is not None:
        operands.append(ravel(lax.convert_element_type(as_array("ediff1d", to_end), dtype)))
    return concatenate(operands) if len(operands) > 1 else operands[0]


# --- derivatives and integrals -------------------------------------------------------------


@composite
def gradient(
    f: ArrayLike, *varargs: ArrayLike, axis: Axes = None, edge_order: int | None = None
) -> Any:
    """Estimate derivatives by central differences, with one-sided differences at the edges.

    Args:
        f: array of values.
        varargs: spacing or coordinates of the values: none, one for all axes, or one for each axis.
        axis: the axes of the derivatives; None uses all.
        edge_order: must be None.

    Returns:
        An array of floats of the shape of ``f``, or a list with one for each axis.

    Raises:
        NotImplementedError: if ``edge_order`` is given.
        ValueError: if an axis has fewer than two values, or coordinates have another shape.
        TypeError: if the number of distances does not match.

    Source:
        Fornberg (1988), weights of the first derivative, for unequally spaced coordinates.

    Example:
        >>> jnp.gradient(jnp.array([0., 1., 4., 9.]))
        Array([1., 2., 4., 5.], dtype=float32)
        >>> jnp.gradient(jnp.array([0., 1., 9.]), jnp.array([0., 1., 3.]))
        Array([1., 2., 4.], dtype=float32)
    """
    check(
        edge_order is None,
        lambda: f"[gradient] edge_order must be None; got {edge_order}. Fix: leave it out.",
        NotImplementedError,
    )
    x, *spacing = promote_dtypes_inexact(*as_arrays("gradient", f, *varargs))
    shape = aval_of(x).shape
    axes = _unsorted_axes(axis, len(shape))
    if not axes:
        return []
    check(
        min(shape[d] for d in axes) >= 2,
        lambda: (
            f"[gradient] there must be two values along each axis; got shape {shape} and axes "
            f"{axes}. Fix: axis=..."
        ),
        ValueError,
    )
    check(
        len(spacing) in (0, 1, len(axes)),
        lambda: (
            f"[gradient] there must be no distance, one, or one for each of {len(axes)} axes; "
            f"got {len(spacing)}. Fix: name the axis."
        ),
    )
    if len(spacing) < len(axes):
        spacing = (spacing or [convert(1, aval_of(x).dtype)]) * len(axes)
    out = [_slope(x, h, d) for h, d in zip(spacing, axes, strict=True)]
    return out[0] if len(out) == 1 else out


def _unsorted_axes(axis: Axes, rank: int) -> list[int]:
    if axis is None:
        return list(range(rank))
    axes: list[Any] = list(axis) if are_several(axis) else [axis]
    return [canonicalize_axis(d, rank, "gradient") for d in axes]


def _slope(x: Any, h: Any, axis: int) -> Any:
    def cut(array: Any, start: int | None, stop: int | None) -> Any:
        return lax.slice_in_dim(array, start, stop, axis=axis)

    steps = _steps(x, axis)
    first, last = cut(steps, 0, 1), cut(steps, -1, None)
    check(
        aval_of(h).ndim == 0 or aval_of(h).shape == (aval_of(x).shape[axis],),
        lambda: (
            f"[gradient] coordinates must be a vector of {aval_of(x).shape[axis]}, or a "
            f"spacing a number; got {aval_of(h)}. Fix: one coordinate for each value."
        ),
        ValueError,
    )
    if aval_of(h).ndim == 0:
        inner = (cut(x, 2, None) - cut(x, None, -2)) * 0.5 / h
        return concatenate([first / h, inner, last / h], axis)
    coordinates = lax.expand_dims(h, [d for d in range(aval_of(x).ndim) if d != axis])
    widths = _steps(coordinates, axis)
    before, after = cut(widths, 0, -1), cut(widths, 1, None)
    # The parabola through three points (Fornberg 1988, weights of the first derivative).
    left = -after / (before * (before + after))
    middle = (after - before) / (before * after)
    right = before / (after * (before + after))
    inner = left * cut(x, 0, -2) + middle * cut(x, 1, -1) + right * cut(x, 2, None)
    first, last = first / cut(widths, 0, 1), last / cut(widths, -1, None)
    return concatenate([first, inner, last], axis)


@composite
@through_float32
def trapezoid(
    y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1
) -> Array:
    """Integrate along an axis by the trapezoidal rule.

    Args:
        y: array of samples.
        x: coordinates of the samples, a vector or an array like ``y``; None uses the spacing
            ``dx``.
        dx: spacing, a scalar or an array.
        axis: the axis to integrate along.

    Returns:
        Floats of the shape of ``y`` without ``axis``.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.trapezoid(jnp.array([0., 1., 4.]))
        Array(3., dtype=float32)
        >>> jnp.trapezoid(jnp.array([0., 1., 4.]), jnp.array([0., 2., 3.]))
        Array(3.5, dtype=float32)
    """
    if x is None:
        (y,) = promote_dtypes_inexact(as_array("trapezoid", y))
        widths = as_array("trapezoid", dx)
        if aval_of(widths).ndim:
            widths = lax.expand_dims(widths, range(aval_of(y).ndim - aval_of(widths).ndim))
            widths = moveaxis(widths, axis, -1)
    else:
        y, x = promote_dtypes_inexact(*as_arrays("trapezoid", y, x))
        widths = _steps(x, 0) if aval_of(x).ndim == 1 else moveaxis(diff(x, axis=axis), axis, -1)
    y = moveaxis(y, axis, -1)
    if aval_of(widths).ndim == 0 or aval_of(widths).shape[-1] == 1:
        width = widths if aval_of(widths).ndim == 0 else widths[..., 0]
        return width * (sum_of(y, -1) - 0.5 * (y[..., 0] + y[..., -1]))
    widths = to_rank(widths, aval_of(y).ndim)
    return 0.5 * sum_of(widths * (y[..., 1:] + y[..., :-1]), -1)


@composite
def unwrap(
    p: ArrayLike, discont: ArrayLike | None = None, axis: int = -1, period: ArrayLike = 2 * np.pi
) -> Array:
    """Unwrap angles: neighbors then differ by less than half a period.

    Args:
        p: array of angles.
        discont: smallest difference that counts as a jump; half a period by default.
        axis: the axis along which neighbors are subtracted.
        period: the period of the angles.

    Returns:
        An array of the shape of ``p``, in the common dtype of ``p`` and ``period``.

    Raises:
        ValueError: if an argument is complex, or the axis does not exist.

    Example:
        >>> jnp.unwrap(jnp.array([0, 90, 200, 350, 10]), period=360)
        Array([  0,  90, 200, 350, 370], dtype=int32)
    """
    p, period = promote_dtypes(*as_arrays("unwrap", p, period))
    dtype = aval_of(p).dtype
    check(
        not dtypes.is_complex(dtype),
        lambda: f"[unwrap] angles must be real; got {aval_of(p)}. Fix: jnp.angle(x).",
        ValueError,
    )
    here = canonicalize_axis(axis, aval_of(p).ndim, "unwrap")
    if not aval_of(p).shape[here]:
        return p
    half = period // 2 if dtypes.is_integer(dtype) else period / 2
    limit = period / 2 if discont is None else discont
    steps = _steps(p, here)
    wrapped = remainder(steps + half, period) - half
    wrapped = where((wrapped == -half) & (steps > 0), half, wrapped)
    change = where(absolute(steps) < limit, 0, wrapped - steps)
    tail = lax.slice_in_dim(p, 1, None, axis=here) + cumsum(change, here)
    return concatenate([lax.slice_in_dim(p, 0, 1, axis=here), tail], here)


# --- interpolation -------------------------------------------------------------------------


@composite
def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: ArrayLike | str | None = None,
    right: ArrayLike | str | None = None,
    period: ArrayLike | None = None,
) -> Array:
    """Interpolate piecewise linearly between points.

    Args:
        x: evaluation points.
        xp: vector of coordinates in ascending order.
        fp: vector of values at ``xp``.
        left: value below ``xp[0]``: a number or ``"extrapolate"``; ``fp[0]`` by default.
        right: value above ``xp[-1]``, in the same form; ``fp[-1]`` by default.
        period: period of the function in ``x``; ``left`` and ``right`` are then ignored.

    Returns:
        An array of floats of the shape of ``x``; complex if ``fp`` is.

    Raises:
        ValueError: if points differ in shape, coordinates are complex, or ``period`` is invalid.

    Example:
        >>> xp, fp = jnp.array([0., 1., 2.]), jnp.array([0., 10., 0.])
        >>> jnp.interp(jnp.array([0.5, 1.75, 3.]), xp, fp)
        Array([5. , 2.5, 0. ], dtype=float32)
        >>> jnp.interp(3., xp, fp, right="extrapolate")
        Array(-10., dtype=float32)
    """
    x, xp, fp = as_arrays("interp", x, xp, fp)
    check(
        aval_of(xp).ndim == 1 and aval_of(xp).shape == aval_of(fp).shape,
        lambda: (
            f"[interp] xp and fp must be vectors of one size; got {aval_of(xp)} and "
            f"{aval_of(fp)}. Fix: gpuflow.vmap for several functions."
        ),
        ValueError,
    )
    for name, value in (("left", left), ("right", right)):
        check(
            not isinstance(value, str) or value == "extrapolate",
            lambda name=name, value=value: (
                f"[interp] {name} must be a number or 'extrapolate'; got {value!r}. "
                f"Fix: {name}='extrapolate'."
            ),
            ValueError,
        )
    x, xp = promote_dtypes_inexact(x, xp)
    (fp,) = promote_dtypes_inexact(fp)
    check(
        not dtypes.is_complex(aval_of(x).dtype),
        lambda: f"[interp] x must be real; got {aval_of(x)}. Fix: x.real.",
        ValueError,
    )
    if period is not None:
        x, xp, fp = _periodic(x, xp, fp, period)
    last = aval_of(xp).shape[0] - 1
    after = clip(searchsorted(xp, x, "right"), 1, last)
    out = _on_segments(x, xp[after - 1], xp[after], fp[after - 1], fp[after])
    if period is None and not isinstance(left, str):
        out = where(x < xp[0], fp[0] if left is None else left, out)
    if period is None and not isinstance(right, str):
        out = where(x > xp[-1], fp[-1] if right is None else right, out)
    return out


def _on_segments(x: Any, x0: Any, x1: Any, f0: Any, f1: Any) -> Array:
    """Linear interpolation between pairs of points; exact at both points."""
    if dtypes.is_complex(aval_of(f0).dtype):
        real, imag = (_on_segments(x, x0, x1, of(f0), of(f1)) for of in (lax.real, lax.imag))
        return lax.complex(real, imag)
    width, rise = x1 - x0, f1 - f0
    wide, steep = ~lax.is_finite(width), ~lax.is_finite(rise)
    share = (x - x0) / where(wide | (width == 0), 1, width)
    # Halves do not overflow. If one end is infinite, x is at the other end.
    halves = (0.5 * x - 0.5 * x0) / where(wide, 0.5 * x1 - 0.5 * x0, 1)
    halves = where(isinf(x0) & ~isinf(x1), 1, halves)
    share = where(wide, where(x == x0, 0, where(x == x1, 1, halves)), share)
    at_end = x == x1
    linear = where(at_end, f1, f0) + where(at_end, share - 1, share) * where(steep, 0, rise)
    # An end whose weight is 0 does not count, even if it is infinite.
    from_first = (1 - share) * where(steep & (share != 1), f0, 0)
    from_second = share * where(steep & (share != 0), f1, 0)
    return where(width == 0, f1, where(steep, from_first + from_second, linear))


def _periodic(x: Any, xp: Any, fp: Any, period: Any) -> tuple[Array, Array, Array]:
    """Coordinates reduced to one period and sorted, with one more point on both sides."""
    period = absolute(as_array("interp", period))
    check(
        aval_of(period).ndim == 0,
        lambda: f"[interp] period must be a number; got {aval_of(period)}. Fix: gpuflow.vmap.",
        ValueError,
    )
    x, xp = remainder(x, period), remainder(xp, period)
    xp, fp = lax.sort_key_val(xp, fp, 0, True)
    xp = concatenate([subtract(xp[-1:], period), xp, xp[:1] + period])
    return x, xp, concatenate([fp[-1:], fp, fp[:1]])
