"""``pad``: padding of arrays.

Tests: tests/numpy/test_numpy_gradients.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes, tree
from gpuflow.base.errors import ConcretizationTypeError, check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import Tracer
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.elementary import round as round_
from gpuflow.numpy.mapping import apply_along_axis
from gpuflow.numpy.quantiles import median
from gpuflow.numpy.ranges import linspace
from gpuflow.numpy.reductions import max as largest
from gpuflow.numpy.reductions import min as smallest
from gpuflow.numpy.shaping import broadcast_to, squeeze
from gpuflow.numpy.statistics import mean
from gpuflow.numpy.tiling import repeat

Pairs = list[tuple[Any, Any]]

# The options that each mode accepts.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "constant": ("constant_values",),
    "edge": (),
    "empty": (),
    "linear_ramp": ("end_values",),
    "maximum": ("stat_length",),
    "mean": ("stat_length",),
    "median": ("stat_length",),
    "minimum": ("stat_length",),
    "reflect": ("reflect_type",),
    "symmetric": ("reflect_type",),
    "wrap": (),
}
_STATISTICS = {"maximum": largest, "minimum": smallest, "mean": mean, "median": median}


@composite
def pad(
    array: ArrayLike,
    pad_width: ArrayLike | Sequence[Any],
    mode: str | Callable[..., Any] = "constant",
    **kwargs: Any,
) -> Array:
    """Pad an array at its edges.

    Args:
        array: array of any dtype.
        pad_width: number of elements to add: an int, a pair (before, after), or one such pair for
            each axis.
        mode: ``"constant"``, ``"edge"``, ``"empty"``, ``"linear_ramp"``, ``"maximum"``, ``"mean"``,
            ``"median"``, ``"minimum"``, ``"reflect"``, ``"symmetric"`` or ``"wrap"``. Or a function
            of a padded vector, its pad widths, the axis and a dict, that returns the vector.
        kwargs: options of the mode. ``constant_values`` of ``"constant"`` and ``end_values`` of
            ``"linear_ramp"``: like ``pad_width``, 0 by default. ``stat_length``: number of elements
            at the edge for ``"maximum"``, ``"mean"`` and so on. ``reflect_type``: ``"even"``, or
            ``"odd"`` to mirror values at the edge value too.

    Returns:
        An array of the dtype of ``array``, enlarged by the pad widths.

    Raises:
        NotImplementedError: if the mode is not supported.
        ValueError: if the mode does not take an option, a width is negative, or an axis is empty.
        TypeError: if widths are not ints.

    Example:
        >>> x = jnp.array([1, 2, 3])
        >>> jnp.pad(x, (1, 2), constant_values=9)
        Array([9, 1, 2, 3, 9, 9], dtype=int32)
        >>> jnp.pad(x, 2, mode="reflect")
        Array([3, 2, 1, 2, 3, 2, 1], dtype=int32)
    """
    x = as_array("pad", array)
    widths = _widths(pad_width, aval_of(x).ndim)
    if callable(mode):
        return _by_function(x, widths, mode, kwargs)
    check(
        mode in _OPTIONS,
        lambda: (
            f"[pad] mode must be one of {', '.join(map(repr, _OPTIONS))}, or a function; got "
            f"{mode!r}. Fix: mode='edge'."
        ),
        NotImplementedError,
    )
    unknown = set(kwargs) - set(_OPTIONS[mode])
    check(
        not unknown,
        lambda: (
            f"[pad] mode {mode!r} takes the options {_OPTIONS[mode]}; got {sorted(unknown)}. "
            "Fix: leave them out."
        ),
        ValueError,
    )
    if mode == "constant":
        return _constant(x, widths, kwargs.get("constant_values", 0))
    return _axis_by_axis(x, widths, mode, kwargs)


def _widths(pad_width: Any, rank: int) -> Pairs:
    pairs = _pairs("pad_width", pad_width, rank)
    flat = [n for pair in pairs for n in pair]
    check(
        all(isinstance(n, (int, np.integer)) for n in flat),
        lambda: f"[pad] widths must be ints; got {pad_width!r}. Fix: pad_width=1.",
    )
    check(
        all(n >= 0 for n in flat),
        lambda: f"[pad] widths must not be negative; got {pad_width!r}. Fix: slice to cut off.",
        ValueError,
    )
    return [(int(low), int(high)) for low, high in pairs]


def _pairs(name: str, number_or_pairs: Any, rank: int) -> Pairs:
    """A number, a pair, or pairs, as one pair for each axis."""
    check(
        not any(isinstance(x, Tracer) for x in tree.leaves(number_or_pairs)),
        lambda: (
            f"[pad] {name} must be known while tracing; got {number_or_pairs!r}. Fix: pass ints."
        ),
        ConcretizationTypeError,
    )
    try:
        values = np.asarray(number_or_pairs)
    except ValueError:
        values = np.zeros((0,))
    check(
        values.shape in ((), (1,), (2,), (1, 2), (rank, 2)),
        lambda: (
            f"[pad] {name} must be a number, a pair, or {rank} pairs; got {number_or_pairs!r}. "
            f"Fix: {name}=((1, 1),) * {rank}."
        ),
        TypeError if values.shape == (0,) else ValueError,
    )
    return [tuple(row) for row in np.broadcast_to(values, (rank, 2)).tolist()]


def _constant(x: Any, widths: Pairs, constant_values: Any) -> Any:
    aval = aval_of(x)
    is_sequence = isinstance(constant_values, (tuple, list))
    if is_sequence and not any(isinstance(v, Tracer) for v in constant_values):
        constant_values = np.asarray(constant_values)
    values = lax.convert_element_type(asarray(constant_values), aval.dtype, aval.weak_type)
    shape = aval_of(values).shape
    check(
        shape in ((), (1,), (2,), (1, 2), (aval.ndim, 2), (aval.ndim, 1)),
        lambda: (
            f"[pad] constant_values must be a number, a pair, or {aval.ndim} pairs; got shape "
            f"{shape}. Fix: constant_values=0."
        ),
        ValueError,
    )
    if shape in ((), (1,)):
        return lax.pad(x, squeeze(values), [(low, high, 0) for low, high in widths])
    values = broadcast_to(values, (aval.ndim, 2))
    for d, pair in enumerate(widths):
        for side in (0, 1):
            config = [(0, 0, 0)] * aval.ndim
            config[d] = (pair[0], 0, 0) if side == 0 else (0, pair[1], 0)
            x = lax.pad(x, values[d, side], config) if pair[side] else x
    return x


def _by_function(x: Any, widths: Pairs, function: Callable[..., Any], options: Any) -> Any:
    x = _constant(x, widths, 0)
    for d, pair in enumerate(widths):
        x = apply_along_axis(function, d, x, pair, d, options)
    return x


def _axis_by_axis(x: Any, widths: Pairs, mode: str, options: dict[str, Any]) -> Any:
    rank = aval_of(x).ndim
    ends = _pairs("end_values", options.get("end_values", 0), rank)
    lengths = options.get("stat_length")
    lengths = None if lengths is None else _pairs("stat_length", lengths, rank)
    odd = _is_odd(options.get("reflect_type", "even"))
    for d, pair in enumerate(widths):
        if pair == (0, 0):
            continue
        check(
            aval_of(x).shape[d] > 0 or mode == "empty",
            lambda d=d, x=x: (
                f"[pad] mode {mode!r} needs elements; got shape {aval_of(x).shape}, "
                f"whose axis {d} is empty. Fix: mode='constant'."
            ),
            ValueError,
        )
        if mode == "edge":
            paddings = _first(x, d, 1), _last(x, d, 1)
            paddings = tuple(repeat(b, n, d) for b, n in zip(paddings, pair, strict=True))
        elif mode == "empty":
            paddings = tuple(_zeros(x, d, n) for n in pair)
        elif mode == "linear_ramp":
            paddings = _ramps(x, d, pair, ends[d])
        elif mode in _STATISTICS:
            paddings = _statistics(x, d, pair, mode, None if lengths is None else lengths[d])
        elif mode == "wrap":
            paddings = _wrapped(x, d, pair)
        else:
            x = _mirrored(x, d, pair, mode == "reflect", odd)
            continue
        x = lax.concatenate([paddings[0], x, paddings[1]], d)
    return x


def _is_odd(reflect_type: Any) -> bool:
    check(
        reflect_type in ("even", "odd"),
        lambda: f"[pad] reflect_type must be 'even' or 'odd'; got {reflect_type!r}. Fix: 'even'.",
        ValueError,
    )
    return reflect_type == "odd"


def _first(x: Any, d: int, count: int) -> Any:
    return lax.slice_in_dim(x, 0, count, axis=d)


def _last(x: Any, d: int, count: int) -> Any:
    size = aval_of(x).shape[d]
    return lax.slice_in_dim(x, size - count, size, axis=d)


def _zeros(x: Any, d: int, count: int) -> Any:
    shape = list(aval_of(x).shape)
    shape[d] = count
    return lax.full(shape, 0, aval_of(x).dtype)


def _ramps(x: Any, d: int, pair: tuple[int, int], ends: tuple[Any, Any]) -> tuple[Any, Any]:
    aval = aval_of(x)
    edges = _first(x, d, 1), _last(x, d, 1)
    ramps = []
    for edge, count, end in zip(edges, pair, ends, strict=True):
        edge = squeeze(edge, d)
        ramp = linspace(end, edge, count, endpoint=False, dtype=aval.dtype, axis=d)
        ramps.append(lax.convert_element_type(ramp, aval.dtype, aval.weak_type))
    return ramps[0], lax.rev(ramps[1], (d,))


def _statistics(
    x: Any, d: int, pair: tuple[int, int], mode: str, lengths: tuple[Any, Any] | None
) -> tuple[Any, ...]:
    aval = aval_of(x)
    size = aval.shape[d]
    counts = (size, size) if lengths is None else tuple(min(int(n), size) for n in lengths)
    check(
        all(counts),
        lambda: f"[pad] stat_length must be positive; got {lengths}. Fix: stat_length=1.",
        ValueError,
    )
    paddings = []
    edge_slices = _first(x, d, counts[0]), _last(x, d, counts[1])
    for edge_slice, width in zip(edge_slices, pair, strict=True):
        value = _STATISTICS[mode](edge_slice, axis=d, keepdims=True)
        value = round_(value) if dtypes.is_integer(aval.dtype) else value
        value = lax.convert_element_type(value, aval.dtype, aval.weak_type)
        paddings.append(repeat(value, width, d))
    return tuple(paddings)


def _wrapped(x: Any, d: int, pair: tuple[int, int]) -> tuple[Any, Any]:
    size = aval_of(x).shape[d]
    whole = [[x] * (n // size) for n in pair]
    before = [_last(x, d, pair[0] % size), *whole[0]]
    after = [*whole[1], _first(x, d, pair[1] % size)]
    return lax.concatenate(before, d), lax.concatenate(after, d)


def _mirrored(x: Any, d: int, pair: tuple[int, int], skip_edge: bool, odd: bool) -> Any:
    """Mirror the array at both edges, repeatedly if a width exceeds the size."""
    size = aval_of(x).shape[d]
    skipped = 1 if skip_edge and size > 1 else 0
    for at_front, width in ((True, pair[0]), (False, pair[1])):
        while width > 0:
            count = min(width, size - skipped)
            width -= count
            length = aval_of(x).shape[d]
            if at_front:
                mirrored = lax.slice_in_dim(x, skipped, skipped + count, axis=d)
                edge = _first(x, d, 1)
            else:
                mirrored = lax.slice_in_dim(x, length - skipped - count, length - skipped, axis=d)
                edge = _last(x, d, 1)
            mirrored = lax.rev(mirrored, (d,))
            mirrored = 2 * edge - mirrored if odd else mirrored
            x = lax.concatenate([mirrored, x] if at_front else [x, mirrored], d)
    return x
