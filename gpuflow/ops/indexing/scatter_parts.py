"""Many updates of few elements: shares of the updates go to copies of the array, which are joined.

    updates   u0 u1 u2 | u3 u4 u5 | u6 u7 u8
    copies       c0    |    c1    |    c2         each begins with the neutral element
    result    x + c0 + c1 + c2

Shares are independent of each other, and in order within. How many there are depends on the shapes
only, and so does the result. The compiler makes these ops from scatters (``simplify``), after all
transformations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.blocks import Kernels, Launch, Launches
from gpuflow.core.jaxpr import Atom
from gpuflow.core.lowering import Elementwise, Library
from gpuflow.core.views import View
from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import Kernel, Mode, Value
from gpuflow.kir.scalar import compute_dtype, storage_bytes
from gpuflow.ops.define import define
from gpuflow.ops.elementwise.nary import broadcast_shape
from gpuflow.ops.handwritten.launch import (
    array,
    builder_of,
    is_held,
    launch,
    number,
    parallel_axes,
    worker_axes,
)
from gpuflow.ops.indexing.updating import Component, place_operands, window_places_p
from gpuflow.ops.layout.axes import reshape_p

SMALLEST = 1 << 14  # updated elements: fewer are done before another thread has begun
MOST_SHARES = 32
_PER_ELEMENT = 8  # updates for each element of all copies: filling and joining these cost little

X, PLACES, ROWS, OUT, WORKSPACE = 0, 1, 2, 3, 4
_FUNCTIONS = {"add": "add", "multiply": "mul", "minimum": "min", "maximum": "max"}
_NARROW = ("int8", "int16", "int32", "uint8", "uint16")
_INT32, _UINT16 = np.dtype(np.int32), np.dtype(np.uint16)


def shares(size: int, count: int, width: int) -> int:
    """Into how many shares ``count`` updates of ``width`` elements each are split; 1: not at all.

    Args:
        size: elements of the array.
    """
    if count * width < SMALLEST or size + width >= 1 << 31:
        return 1
    return max(1, min(MOST_SHARES, count * width // (_PER_ELEMENT * (size + width))))


def _place_dtype(size: int) -> Any:
    """Smallest dtype for all indices and one more, to save memory traffic."""
    return _UINT16 if size <= np.iinfo(_UINT16).max else _INT32


def can_be_shared(dtype: Any, combine: str) -> bool:
    """Whether updates may be combined with each other before they are with the array.

    Products of floats may not: they overflow in one order and not in another.
    """
    if combine not in _FUNCTIONS or not is_held(dtype) or dtypes.is_bool(dtype):
        return False
    return combine != "multiply" or dtypes.is_integer(dtype)


# --- places --------------------------------------------------------------------------------


def _kept_shape(*avals: ShapedArray, checked: bool, dtype: Any) -> ShapedArray:
    del checked
    return ShapedArray(broadcast_shape("kept_places", avals), dtype)


def _kept_impl(xp: Any, outside: Any, *arrays: Any, checked: bool, dtype: Any) -> Any:
    assert window_places_p.impl is not None
    place, inside = window_places_p.impl(xp, *arrays, checked=checked)
    return xp.where(inside, place, outside).astype(dtype)


def _kept_body(builder: Any, values: Any, in_avals: Any, out: Any, params: Any) -> Value:
    """In 32 bits where the starts have no more, which vectors hold twice as many of."""
    del in_avals, out
    outside, *rest = values
    threes = list(zip(*[iter(rest)] * 3, strict=True))
    wide = "int32" if all(start.dtype in _NARROW for start, _, _ in threes) else "int64"
    zero = builder.const(wide, 0)
    place, inside = zero, None
    for start, last, stride in threes:
        bound = builder.cast(last, start.dtype if start.dtype == "uint64" else wide)
        widened = start if start.dtype == "uint64" else builder.cast(start, wide)
        least = builder.cast(builder.apply("min", widened, bound), wide)
        clamped = builder.apply("max", least, zero)
        if params["checked"]:
            # What is inside is not moved.
            good = builder.apply("eq", builder.cast(clamped, widened.dtype), widened)
            inside = good if inside is None else builder.apply("and", inside, good)
        step = builder.apply("mul", clamped, builder.cast(stride, wide))
        place = builder.apply("add", place, step)
    if inside is not None:
        place = builder.select(inside, place, builder.cast(outside, wide))
    return builder.cast(place, params["dtype"].name)


# The places of windows in few bits, and another number where one does not count: the first operand.
# The others are those of ``window_places``.
kept_places_p = define(
    "kept_places",
    shape=_kept_shape,
    impl=_kept_impl,
    lower=Elementwise(_kept_body),
)


# --- the op --------------------------------------------------------------------------------


def _shape(x: ShapedArray, places: ShapedArray, rows: ShapedArray, *, combine: str) -> ShapedArray:
    del combine
    assert rows.shape[:1] == places.shape and rows.ndim == 2 and rows.dtype == x.dtype
    return ShapedArray(x.shape, x.dtype)


def _impl(xp: Any, x: Any, places: Any, rows: Any, *, combine: str) -> Any:
    wide = np.dtype(compute_dtype(storage_name(x.dtype)))
    kept = places < x.size
    spots = places[kept][:, None] + xp.arange(rows.shape[1])
    out = x.astype(wide).reshape(-1)
    getattr(xp, combine).at(out, spots.reshape(-1), rows[kept].reshape(-1).astype(wide))
    return out.reshape(x.shape).astype(x.dtype)


def _neutral(dtype: str, combine: str) -> Any:
    is_float = dtype.startswith("float")
    if combine == "add":
        return -0.0 if is_float else 0  # 0.0 would turn -0.0 into 0.0
    if combine == "multiply":
        return 1
    if is_float:
        return np.inf if combine == "minimum" else -np.inf
    bounds = np.iinfo(dtype)
    return int(bounds.max if combine == "minimum" else bounds.min)


def _each(builder: Builder, count: str, body: Any) -> None:
    """``body(k)`` for each k below the number ``count``."""

    def step(k: Value) -> list[Value]:
        body(k)
        return []

    builder.for_count(builder.load(count), [], step)


@cache
def _fill_kernel(dtype: str, combine: str) -> Kernel:
    """The neutral element everywhere."""
    axes, wide = parallel_axes(1), compute_dtype(dtype)
    operands = [array("c", wide, Mode.OUT, 1)]
    builder = builder_of(operands, axes)
    with builder.for_axis("i0"):
        builder.store("c", builder.const(wide, _neutral(wide, combine)))
    return Kernel("scatter_fill", axes, tuple(operands), builder.finish())


@cache
def _share_kernel(dtype: str, combine: str, is_wide: bool, place_dtype: str) -> Kernel:
    """The updates of each share, one after the other, go to its copy.

    ``is_wide``: an update has several elements, which lie together.
    """
    axes, wide = worker_axes(1), compute_dtype(dtype)
    operands = [
        array("c", wide, Mode.INOUT, 1), array("p", place_dtype, Mode.IN, 1),
        array("r", dtype, Mode.IN, 1),
        *[number(name, 1) for name in ("share", "width", "row_step", "element_step")],
    ]  # fmt: skip
    builder = builder_of(operands, axes)

    def combined(at: Value, source: Value) -> None:
        old, new = builder.load("c", at), builder.load("r", source)
        builder.store("c", builder.apply(_FUNCTIONS[combine], old, new), at)

    def update(k: Value) -> None:
        place = builder.cast(builder.load("p", k), "int64")
        first = builder.apply("mul", k, builder.load("row_step"))
        if not is_wide:
            combined(place, first)
            return

        def element(j: Value) -> None:
            source = builder.apply("mul", j, builder.load("element_step"))
            combined(builder.apply("add", place, j), builder.apply("add", first, source))

        _each(builder, "width", element)

    with builder.for_axis("i0"):
        _each(builder, "share", update)
    return Kernel(f"scatter_{combine}_share", axes, tuple(operands), builder.finish())


@cache
def _join_kernel(dtype: str, combine: str) -> Kernel:
    """The array and all copies, element by element."""
    axes, wide = parallel_axes(1), compute_dtype(dtype)
    operands = [
        array("x", dtype, Mode.IN, 1), array("c", wide, Mode.IN, 1),
        array("o", dtype, Mode.OUT, 1), number("copies", 1), number("between", 1),
    ]  # fmt: skip
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
    (x, places, rows), (out,), combine = views, outs, params["combine"]
    if not (x.is_contiguous and places.is_contiguous):
        return None
    (count, width), dtype = rows.shape, storage_name(out.dtype)
    wide = compute_dtype(dtype)
    small, large = storage_bytes(dtype), storage_bytes(wide)
    place_dtype = _place_dtype(out.size)
    share = -(-count // shares(out.size, count, width))
    whole, rest = divmod(count, share)
    copies = whole + (rest > 0)
    # Updates that do not count go behind the elements of a copy.
    between = out.size + width
    total = copies * between
    fill = _fill_kernel(dtype, combine)
    launches = [launch(fill, {"c": (WORKSPACE, 0)}, [total], {"c": [1]}, {}, total)]
    for first, number_of, length in ((0, whole, share), (whole, int(rest > 0), rest)):
        if number_of:
            launches.append(
                launch(
                    _share_kernel(dtype, combine, width > 1, place_dtype.name),
                    {
                        "c": (WORKSPACE, first * between * large),
                        "p": (PLACES, (places.offset + first * share) * place_dtype.itemsize),
                        "r": (ROWS, (rows.offset + first * share * rows.strides[0]) * small),
                    },
                    [number_of],
                    {"c": [between], "p": [share], "r": [share * rows.strides[0]]},
                    {
                        "share": length, "width": width, "row_step": rows.strides[0],
                        "element_step": rows.strides[1],
                    },
                    number_of * length * width,
                )
            )  # fmt: skip
    joined: Launch = launch(
        _join_kernel(dtype, combine),
        {"x": (X, x.offset * small), "c": (WORKSPACE, 0), "o": (OUT, 0)},
        [out.size],
        {"x": [1], "c": [1], "o": [1]},
        {"copies": copies, "between": between},
        copies * out.size,
    )
    return Launches((*launches, joined), total * large)


def _what(ins: Any, outs: Any, params: dict[str, Any]) -> Kernels:
    del ins, outs, params
    return Kernels(_launches)


scatter_parts_p = define(
    "scatter_parts",
    shape=_shape,
    impl=_impl,
    lower=Library(what=_what),
)


def scatter_by_parts(
    build: Any, x: Atom, components: Sequence[Component], windows: Atom, combine: str,
    checked: bool,
) -> Atom | None:  # fmt: skip
    """A scatter as ``scatter_parts``, or None where it is done in order.

    Args:
        build: makes the equations.
        x: the array.
        components: where windows start.
        windows: of shape (*indices' shape, *window); each is contiguous in ``x``.
        combine: the NumPy function that combines elements.
        checked: windows that do not fit are left out; else they are moved inside.
    """
    lead = components[0].start.aval.shape
    count, size = prod(lead), x.aval.size
    width = windows.aval.size // max(count, 1)
    if shares(size, count, width) == 1:
        return None
    outside = build.literal(size, ShapedArray((), np.dtype(np.int64)))
    kept = build.apply(
        kept_places_p, outside, *place_operands(build, components), checked=checked,
        dtype=_place_dtype(size),
    )  # fmt: skip
    places = _reshaped(build, kept, (count,))
    rows = _reshaped(build, windows, (count, width))
    return build.apply(scatter_parts_p, x, places, rows, combine=combine)


def _reshaped(build: Any, x: Atom, shape: tuple[int, ...]) -> Atom:
    return x if x.aval.shape == shape else build.apply(reshape_p, x, new_sizes=shape)
