"""Privatized scatters of many updates to few elements: copies of the array, then a reduction.

    updates   u0 u1 u2 | u3 u4 u5 | u6 u7 u8
    copies       c0    |    c1    |    c2         each begins with the neutral element
    result    x + c0 + c1 + c2

Shares are independent of each other, and in order within. Their count depends only on the shapes,
and so does the result. The compiler makes these ops from scatters (``simplify``), after all
transformations.

Tests: tests/ops/test_scatter_shares.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.caches import cache
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.blocks import Kernels, Launch, Launches
from gpuflow.core.jaxpr import Atom
from gpuflow.core.lowering import Elementwise, Library
from gpuflow.core.lowering.rewrite_rules import EqnBuilder
from gpuflow.core.views import View
from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import Kernel, Mode, Value
from gpuflow.kir.scalar import compute_dtype, storage_bytes
from gpuflow.ops.define import define
from gpuflow.ops.elementwise.nary import broadcast_shape
from gpuflow.ops.handwritten.launch import (
    array,
    builder_of,
    fits_kernels,
    launch,
    number,
    parallel_axes,
    worker_axes,
)
from gpuflow.ops.indexing.updating import Component, offset_operands, window_offsets_p
from gpuflow.ops.layout.axes import reshape_p

MIN_UPDATES = 1 << 14  # updated elements: fewer are done before another thread has begun
MAX_SHARES = 32
_PER_ELEMENT = 8  # updates for each element of all copies: then filling and joining cost little

X, OFFSETS, ROWS, OUT, WORKSPACE = 0, 1, 2, 3, 4
_FUNCTIONS = {"add": "add", "multiply": "mul", "minimum": "min", "maximum": "max"}
_NARROW = ("int8", "int16", "int32", "uint8", "uint16")
_INT32, _UINT16 = np.dtype(np.int32), np.dtype(np.uint16)


def shares(size: int, count: int, width: int) -> int:
    """Number of shares that ``count`` updates of ``width`` elements are split into; 1: no split.

    Args:
        size: elements of the array.
    """
    if count * width < MIN_UPDATES or size + width >= 1 << 31:
        return 1
    return max(1, min(MAX_SHARES, count * width // (_PER_ELEMENT * (size + width))))


def _offset_dtype(size: int) -> Any:
    """Smallest dtype for offsets up to ``size``, to save memory traffic."""
    return _UINT16 if size <= np.iinfo(_UINT16).max else _INT32


def can_be_shared(dtype: Any, combine: str) -> bool:
    """Whether updates may be combined with each other before the array.

    Products of floats may not: they overflow in one order and not in another.
    """
    if combine not in _FUNCTIONS or not fits_kernels(dtype) or dtypes.is_bool(dtype):
        return False
    return combine != "multiply" or dtypes.is_integer(dtype)


# --- offsets -------------------------------------------------------------------------------


def _masked_shape(*avals: ShapedArray, checked: bool, dtype: Any) -> ShapedArray:
    del checked
    return ShapedArray(broadcast_shape("kept_places", avals), dtype)


def _masked_impl(xp: Any, dropped_offset: Any, *arrays: Any, checked: bool, dtype: Any) -> Any:
    assert window_offsets_p.impl is not None
    offset, in_bounds = window_offsets_p.impl(xp, *arrays, checked=checked)
    return xp.where(in_bounds, offset, dropped_offset).astype(dtype)


def _masked_body(builder: Any, values: Any, in_avals: Any, out: Any, params: Any) -> Value:
    """Offsets; in 32 bits if the starts have no more, so that vectors hold twice as many."""
    del in_avals, out
    dropped_offset, *operands = values
    triples = list(zip(*[iter(operands)] * 3, strict=True))
    wide = "int32" if all(start.dtype in _NARROW for start, _, _ in triples) else "int64"
    zero = builder.const(wide, 0)
    offset, in_bounds = zero, None
    for start, last, stride in triples:
        bound = builder.cast(last, start.dtype if start.dtype == "uint64" else wide)
        widened = start if start.dtype == "uint64" else builder.cast(start, wide)
        least = builder.cast(builder.apply("min", widened, bound), wide)
        clamped = builder.apply("max", least, zero)
        if params["checked"]:
            # A start in bounds is not clamped.
            valid = builder.apply("eq", builder.cast(clamped, widened.dtype), widened)
            in_bounds = valid if in_bounds is None else builder.apply("and", in_bounds, valid)
        step = builder.apply("mul", clamped, builder.cast(stride, wide))
        offset = builder.apply("add", offset, step)
    if in_bounds is not None:
        offset = builder.select(in_bounds, offset, builder.cast(dropped_offset, wide))
    return builder.cast(offset, params["dtype"].name)


# Offsets of windows in few bits; the first operand replaces those that are out of bounds.
# The others are those of ``window_places``.
masked_offsets_p = define(
    "kept_places",
    shape=_masked_shape,
    impl=_masked_impl,
    lower=Elementwise(_masked_body),
)


# --- the op --------------------------------------------------------------------------------


def _shape(x: ShapedArray, offsets: ShapedArray, rows: ShapedArray, *, combine: str) -> ShapedArray:
    del combine
    assert rows.shape[:1] == offsets.shape and rows.ndim == 2 and rows.dtype == x.dtype
    return ShapedArray(x.shape, x.dtype)


def _impl(xp: Any, x: Any, offsets: Any, rows: Any, *, combine: str) -> Any:
    wide = np.dtype(compute_dtype(storage_name(x.dtype)))
    counted = offsets < x.size
    indices = offsets[counted][:, None] + xp.arange(rows.shape[1])
    out = x.astype(wide).reshape(-1)
    getattr(xp, combine).at(out, indices.reshape(-1), rows[counted].reshape(-1).astype(wide))
    return out.reshape(x.shape).astype(x.dtype)


def _neutral(dtype: str, combine: str) -> Any:
    is_float = dtype.startswith("float")
    if combine == "add":
        return -0.0 if is_float else 0  # 0.0 + -0.0 would be 0.0
    if combine == "multiply":
        return 1
    if is_float:
        return np.inf if combine == "minimum" else -np.inf
    bounds = np.iinfo(dtype)
    return int(bounds.max if combine == "minimum" else bounds.min)


def _each(builder: Builder, count: str, body: Any) -> None:
    """``body(k)`` for each k below the scalar ``count``."""

    def step(k: Value) -> list[Value]:
        body(k)
        return []

    builder.for_count(builder.load(count), [], step)


@cache
def _fill_kernel(dtype: str, combine: str) -> Kernel:
    """Kernel that fills the copies with the neutral element."""
    axes, wide = parallel_axes(1), compute_dtype(dtype)
    operands = [array("c", wide, Mode.OUT, 1)]
    builder = builder_of(operands, axes)
    with builder.for_axis("i0"):
        builder.store("c", builder.const(wide, _neutral(wide, combine)))
    return Kernel("scatter_fill", axes, tuple(operands), builder.finish())


@cache
def _share_kernel(dtype: str, combine: str, is_wide: bool, offset_dtype: str) -> Kernel:
    """Kernel that applies the updates of each share in order to its copy.

    ``is_wide``: an update has several elements, contiguous in the array.
    """
    axes, wide = worker_axes(1), compute_dtype(dtype)
    operands = [
        array("c", wide, Mode.INOUT, 1),
        array("p", offset_dtype, Mode.IN, 1),
        array("r", dtype, Mode.IN, 1),
        *[number(name, 1) for name in ("share", "width", "row_step", "element_step")],
    ]
    builder = builder_of(operands, axes)

    def combined(at: Value, source: Value) -> None:
        old, new = builder.load("c", at), builder.load("r", source)
        builder.store("c", builder.apply(_FUNCTIONS[combine], old, new), at)

    def update(k: Value) -> None:
        offset = builder.cast(builder.load("p", k), "int64")
        first = builder.apply("mul", k, builder.load("row_step"))
        if not is_wide:
            combined(offset, first)
            return

        def element(j: Value) -> None:
            source = builder.apply("mul", j, builder.load("element_step"))
            combined(builder.apply("add", offset, j), builder.apply("add", first, source))

        _each(builder, "width", element)

    with builder.for_axis("i0"):
        _each(builder, "share", update)
    return Kernel(f"scatter_{combine}_share", axes, tuple(operands), builder.finish())


@cache
def _join_kernel(dtype: str, combine: str) -> Kernel:
    """Kernel that combines the array with all copies, element by element."""
    axes, wide = parallel_axes(1), compute_dtype(dtype)
    operands = [
        array("x", dtype, Mode.IN, 1),
        array("c", wide, Mode.IN, 1),
        array("o", dtype, Mode.OUT, 1),
        number("copies", 1),
        number("between", 1),
    ]
    builder = builder_of(operands, axes)
    with builder.for_axis("i0"):

        def step(k: Value, total: Value) -> Value:
            at = builder.apply("mul", k, builder.load("between"))
            return builder.apply(_FUNCTIONS[combine], total, builder.load("c", at))

        (total,) = builder.for_count(builder.load("copies"), [builder.load("x")], step)
        builder.store("o", total)
    return Kernel(f"scatter_{combine}_join", axes, tuple(operands), builder.finish())


# --- launches ------------------------------------------------------------------------------


def _launches(
    views: Sequence[View], outs: Sequence[ShapedArray], params: dict[str, Any]
) -> Launches | None:
    (x, offsets, rows), (out,), combine = views, outs, params["combine"]
    if not (x.is_contiguous and offsets.is_contiguous):
        return None
    (count, width), dtype = rows.shape, storage_name(out.dtype)
    wide = compute_dtype(dtype)
    small, large = storage_bytes(dtype), storage_bytes(wide)
    offset_dtype = _offset_dtype(out.size)
    share = -(-count // shares(out.size, count, width))
    full, tail = divmod(count, share)
    copies = full + (tail > 0)
    # Dropped updates go after the elements of a copy.
    between = out.size + width
    total = copies * between
    fill = _fill_kernel(dtype, combine)
    launches = [launch(fill, {"c": (WORKSPACE, 0)}, [total], {"c": [1]}, {}, total)]
    for first, groups, length in ((0, full, share), (full, int(tail > 0), tail)):
        if groups:
            launches.append(
                launch(
                    _share_kernel(dtype, combine, width > 1, offset_dtype.name),
                    {
                        "c": (WORKSPACE, first * between * large),
                        "p": (OFFSETS, (offsets.offset + first * share) * offset_dtype.itemsize),
                        "r": (ROWS, (rows.offset + first * share * rows.strides[0]) * small),
                    },
                    [groups],
                    {"c": [between], "p": [share], "r": [share * rows.strides[0]]},
                    {
                        "share": length,
                        "width": width,
                        "row_step": rows.strides[0],
                        "element_step": rows.strides[1],
                    },
                    groups * length * width,
                )
            )
    join: Launch = launch(
        _join_kernel(dtype, combine),
        {"x": (X, x.offset * small), "c": (WORKSPACE, 0), "o": (OUT, 0)},
        [out.size],
        {"x": [1], "c": [1], "o": [1]},
        {"copies": copies, "between": between},
        copies * out.size,
    )
    return Launches((*launches, join), total * large)


def _what(ins: Any, outs: Any, params: dict[str, Any]) -> Kernels:
    del ins, outs, params
    return Kernels(_launches)


scatter_shares_p = define(
    "scatter_parts",
    shape=_shape,
    impl=_impl,
    lower=Library(what=_what),
)


def scatter_by_shares(
    build: EqnBuilder,
    x: Atom,
    components: Sequence[Component],
    windows: Atom,
    combine: str,
    checked: bool,
) -> Atom | None:
    """A scatter as ``scatter_parts``; None if it has one share.

    Args:
        build: makes the equations.
        x: the array.
        components: starts of windows.
        windows: of shape (*indices' shape, *window); each is contiguous in ``x``.
        combine: the NumPy function that combines elements.
        checked: out-of-bounds windows are dropped; else they are clamped.
    """
    lead = components[0].start.aval.shape
    count, size = prod(lead), x.aval.size
    width = windows.aval.size // max(count, 1)
    if shares(size, count, width) == 1:
        return None
    dropped_offset = build.literal(size, ShapedArray((), np.dtype(np.int64)))
    masked = build.apply(
        masked_offsets_p,
        dropped_offset,
        *offset_operands(build, components),
        checked=checked,
        dtype=_offset_dtype(size),
    )
    offsets = _reshaped(build, masked, (count,))
    rows = _reshaped(build, windows, (count, width))
    return build.apply(scatter_shares_p, x, offsets, rows, combine=combine)


def _reshaped(build: EqnBuilder, x: Atom, shape: tuple[int, ...]) -> Atom:
    return x if x.aval.shape == shape else build.apply(reshape_p, x, new_sizes=shape)
