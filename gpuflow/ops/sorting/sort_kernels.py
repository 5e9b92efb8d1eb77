"""Sorts of few elements as kernels: for programs that would call a library just for them.

Keys become unsigned integers in the same order, and indices are sorted by one digit after the
other, least significant first; each pass is stable.

    counts of a digit     2 0 1 ...        where its first one goes     0 2 2 ...
    position p, in order: to where its digit goes, which moves on by one

Of the few greatest, a list in order is kept, into which greater elements are put on the way.

Source: Knuth, The Art of Computer Programming 3, section 5.2.5 (radix sort).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.blocks import Launch, Launches
from gpuflow.core.views import View
from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import Kernel, Mode, Value
from gpuflow.kir.scalar import PARTS, compute_dtype, storage_bytes
from gpuflow.ops.handwritten.launch import (
    array,
    builder_of,
    is_held,
    launch,
    number,
    parallel_axes,
    worker_axes,
)

LARGEST = 1 << 11  # elements: beyond, vectors of NumPy's sorts are worth a call
MOST_CHOSEN = 32  # of a list that is kept in order; more are sorted
MOST_MOVES = 1 << 17  # in such lists, where each element is greater than all before, in short rows
LONG = 8  # times as many elements as are chosen has a row of which few are moved
_SHORT = 128  # rows of fewer elements have digits of 4 bits, others of 8
_POSITION, _COUNT = "int32", "int32"


@record
class _Rows:
    """An array as (outer, length, inner): bytes to its first element, and strides in elements."""

    first: int
    outer: int
    step: int
    inner: int


def _rows(view: View, axis: int, itemsize: int) -> _Rows | None:
    """How an operand lies, or None where dimensions around the axis are no single ones."""
    outer = _stride(view.shape[:axis], view.strides[:axis])
    inner = _stride(view.shape[axis + 1 :], view.strides[axis + 1 :])
    if outer is None or inner is None:
        return None
    return _Rows(view.offset * itemsize, outer, view.strides[axis], inner)


def _stride(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """Of dimensions as one."""
    size, stride = 1, 0
    for extent, step in zip(reversed(sizes), reversed(strides), strict=True):
        if extent == 1:
            continue
        if size > 1 and step != stride * size:
            return None
        stride = step if size == 1 else stride
        size *= extent
    return stride


# --- keys ------------------------------------------------------------------------------------


def _key_dtype(dtype: str) -> str:
    return "uint64" if storage_bytes(compute_dtype(PARTS.get(dtype, dtype))) == 8 else "uint32"


def _key(builder: Builder, x: Value, key_dtype: str, total: bool, descending: bool) -> Value:
    """An element's key.

    With ``total`` order floats are ordered by sign and magnitude alone; else all nan are last and
    zeros are equal.
    """
    apply, bits = builder.apply, int(key_dtype.removeprefix("uint"))
    ones, sign = (builder.const(key_dtype, n) for n in ((1 << bits) - 1, 1 << (bits - 1)))
    if x.dtype.startswith("float"):
        zero = builder.const(x.dtype, 0.0)
        value = x if total else builder.select(apply("eq", x, zero), zero, x)
        pattern = apply(f"bitcast_{key_dtype}", value)
        # Patterns of negative floats fall as the float grows: all their bits are turned.
        is_negative = apply("ge", pattern, sign)
        key = apply("xor", pattern, builder.select(is_negative, ones, sign))
        if not total:
            key = builder.select(apply("ne", x, x), ones, key)
    elif x.dtype.startswith("int"):
        wide = builder.cast(x, f"int{bits}")
        key = apply("xor", apply(f"bitcast_{key_dtype}", wide), sign)
    else:
        key = builder.cast(x, key_dtype)
    return apply("xor", key, ones) if descending else key


@cache
def _key_kernel(dtype: str, part: int | None, total: bool, descending: bool) -> Kernel:
    """The keys of all elements."""
    axes, key_dtype = parallel_axes(3), _key_dtype(dtype)
    operands = [array("x", dtype, Mode.IN, 3), array("k", key_dtype, Mode.OUT, 3)]
    builder = builder_of(operands, axes)
    with builder.for_axis("i0"), builder.for_axis("i1"), builder.for_axis("i2"):
        x = builder.load("x", part=part)
        builder.store("k", _key(builder, x, key_dtype, total, descending))
    return Kernel("sort_keys", axes, tuple(operands), builder.finish())


# --- orders ----------------------------------------------------------------------------------


@cache
def _order_kernel(key_dtype: str, is_first: bool) -> Kernel:
    """Indices of rows in the order of their keys; the order of equal keys is stable.

    ``is_first``: there is no order yet. Positions go back and forth between two halves of "p".
    """
    axes = worker_axes(1)
    operands = [
        array("k", key_dtype, Mode.IN, 1), array("p", _POSITION, Mode.WORK, 1),
        array("c", _COUNT, Mode.WORK, 1),
        *[number(name, 1) for name in ("length", "digit_bits", "digits", "passes")],
    ]  # fmt: skip
    builder = builder_of(operands, axes)
    apply, load, cast = builder.apply, builder.load, builder.cast
    one = builder.const(_COUNT, 1)

    def digit(position: Value, shift: Value) -> Value:
        moved = apply("shift_right_logical", load("k", position), shift)
        mask = cast(apply("sub", load("digits"), builder.const("int64", 1)), key_dtype)
        return cast(apply("and", moved, mask), "int64")

    def begin(k: Value) -> list[Value]:
        builder.store("p", cast(k, _POSITION), k)
        return []

    def clear(d: Value) -> list[Value]:
        builder.store("c", builder.const(_COUNT, 0), d)
        return []

    def add_up(d: Value, before: Value) -> Value:
        count = load("c", d)
        builder.store("c", before, d)
        return apply("add", before, count)

    def each_pass(k: Value) -> list[Value]:
        shift = cast(apply("mul", k, load("digit_bits")), key_dtype)
        is_odd = apply("and", k, builder.const("int64", 1))
        source = apply("mul", is_odd, load("length"))
        target = apply("sub", load("length"), source)

        def count(position: Value) -> list[Value]:
            at = digit(position, shift)
            builder.store("c", apply("add", load("c", at), one), at)
            return []

        def move(k: Value) -> list[Value]:
            position = load("p", apply("add", source, k))
            at = digit(cast(position, "int64"), shift)
            place = load("c", at)
            builder.store("c", apply("add", place, one), at)
            builder.store("p", position, apply("add", target, cast(place, "int64")))
            return []

        builder.for_count(load("digits"), [], clear)
        builder.for_count(load("length"), [], count)
        builder.for_count(load("digits"), [builder.const(_COUNT, 0)], add_up)
        builder.for_count(load("length"), [], move)
        return []

    with builder.for_axis("i0"):
        if is_first:
            builder.for_count(load("length"), [], begin)
        builder.for_count(load("passes"), [], each_pass)
    return Kernel("sort_order", axes, tuple(operands), builder.finish())


@cache
def _choice_kernel(dtype: str, total: bool, descending: bool) -> Kernel:
    """Positions of the first few of each row in the order of keys."""
    axes, key_dtype = worker_axes(2), _key_dtype(dtype)
    operands = [
        array("x", dtype, Mode.IN, 2), array("k", key_dtype, Mode.WORK, 2),
        array("p", _POSITION, Mode.WORK, 2),
        *[number(name, 2) for name in ("length", "kept", "x_step")],
    ]  # fmt: skip
    builder = builder_of(operands, axes)
    apply, load, one = builder.apply, builder.load, builder.const("int64", 1)

    def element(k: Value) -> list[Value]:
        key = _key(
            builder, load("x", apply("mul", k, load("x_step"))), key_dtype, total, descending
        )
        last = apply("sub", load("kept"), one)
        end = apply("min", k, last)

        def insert() -> list[Value]:
            def make_room(turn: Value, place: Value) -> Value:
                to = apply("sub", end, turn)
                before = apply("sub", to, one)
                other, position = load("k", before), load("p", before)
                moves = apply("lt", key, other)
                builder.store("k", other, to, where=moves)
                builder.store("p", position, to, where=moves)
                return builder.select(moves, before, place)

            (place,) = builder.for_count(end, [end], make_room)
            builder.store("k", key, place)
            builder.store("p", builder.cast(k, _POSITION), place)
            return []

        # Of equal ones the first one stays.
        is_in = apply("or", apply("lt", k, load("kept")), apply("lt", key, load("k", last)))
        builder.if_(is_in, insert, lambda: [])
        return []

    with builder.for_axis("i0"), builder.for_axis("i1"):
        builder.for_count(load("length"), [], element)
    return Kernel("top_k_order", axes, tuple(operands), builder.finish())


@cache
def _take_kernel(dtype: str, parts: int) -> Kernel:
    """The elements at the positions."""
    axes = parallel_axes(3)
    operands = [
        array("x", dtype, Mode.IN, 3), array("p", _POSITION, Mode.IN, 3),
        array("o", dtype, Mode.OUT, 3), number("x_step", 3),
    ]  # fmt: skip
    builder = builder_of(operands, axes)
    with builder.for_axis("i0"), builder.for_axis("i1"), builder.for_axis("i2"):
        position = builder.cast(builder.load("p"), "int64")
        at = builder.apply("mul", position, builder.load("x_step"))
        for part in range(parts) if parts > 1 else (None,):
            builder.store("o", builder.load("x", at, part=part), part=part)
    return Kernel("sort_take", axes, tuple(operands), builder.finish())


@cache
def _position_kernel() -> Kernel:
    """The positions themselves."""
    axes = parallel_axes(3)
    operands = [array("p", _POSITION, Mode.IN, 3), array("o", "int32", Mode.OUT, 3)]
    builder = builder_of(operands, axes)
    with builder.for_axis("i0"), builder.for_axis("i1"), builder.for_axis("i2"):
        builder.store("o", builder.load("p"))
    return Kernel("sort_positions", axes, tuple(operands), builder.finish())


# --- launches --------------------------------------------------------------------------------


def sort_launches(
    views: Sequence[View], outs: Sequence[ShapedArray], axis: int, keys: int, kept: int,
    descending: bool = False, total: bool = False,
) -> Launches | None:  # fmt: skip
    """The launches of a sort along ``axis``, or None where NumPy does it.

    Args:
        views: the layouts of the operands; each has the dtype of its output.
        outs: the types of results; one more than operands: the positions.
        axis: of the rows.
        keys, kept, descending, total: as in ``Sort``.
    """
    count, shape = len(views), views[0].shape
    size, length = prod(shape), shape[axis]
    if size == 0 or kept == 0:
        return None
    names = [storage_name(out.dtype) for out in outs[:count]]
    if not all(name in PARTS or is_held(out.dtype) for name, out in zip(names, outs)):
        return None
    itemsizes = [out.dtype.itemsize for out in outs]
    lying = [_rows(view, axis, n) for view, n in zip(views, itemsizes)]
    rows = [one for one in lying if one is not None]
    if len(rows) < count or any(dtypes.is_extended(out.dtype) for out in outs):
        return None
    sizes = prod(shape[:axis]), length, prod(shape[axis + 1 :])
    few_moves = LONG * kept <= length or size * kept <= MOST_MOVES
    is_chosen = kept < length and kept <= MOST_CHOSEN and few_moves
    if not is_chosen and size > LARGEST:
        return None
    in_row = kept if is_chosen else length
    maker = _Maker(sizes, kept, in_row, descending, total, count, count + len(outs))
    if is_chosen:
        launches = [maker.chosen(names[0], rows[0])]  # only top_k, of one real key, keeps a part
    else:
        launches = maker.ordered(names[:keys], rows[:keys])
    for k, (name, one) in enumerate(zip(names, rows, strict=True)):
        launches.append(maker.taken(k, name, one))
    if len(outs) > count:
        launches.append(maker.positions())
    return Launches(tuple(launches), maker.workspace_bytes)


@record
class _Maker:
    """Makes the launches of one sort.

    In the workspace are positions, twice, counts of digits, and keys, ``in_row`` of them: each row
    has its own. ``workspace`` is its number among the arrays, after ``operands`` and outputs.
    """

    sizes: tuple[int, int, int]
    kept: int
    in_row: int
    descending: bool
    total: bool
    operands: int
    workspace: int

    @property
    def _lanes(self) -> int:
        return self.sizes[0] * self.sizes[2]

    @property
    def _digit_bits(self) -> int:
        return 4 if self.sizes[1] < _SHORT else 8

    @property
    def _counts_at(self) -> int:
        return 2 * self._lanes * self.in_row * storage_bytes(_POSITION)

    @property
    def _keys_at(self) -> int:
        counts = self._lanes * (1 << self._digit_bits) * storage_bytes(_COUNT)
        return -(-(self._counts_at + counts) // 64) * 64

    @property
    def workspace_bytes(self) -> int:
        """For keys of the widest type."""
        return self._keys_at + self._lanes * self.in_row * 8

    def _by_rows(self, per_row: int) -> tuple[int, int]:
        """Strides of (outer, inner) of arrays with a number of elements per row."""
        return self.sizes[2] * per_row, per_row

    def chosen(self, dtype: str, rows: _Rows) -> Launch:
        """The launch that chooses a few."""
        outer, length, inner = self.sizes
        return launch(
            _choice_kernel(dtype, self.total, self.descending),
            {
                "x": (0, rows.first), "k": (self.workspace, self._keys_at),
                "p": (self.workspace, 0),
            },
            [outer, inner],
            {
                "x": (rows.outer, rows.inner), "k": self._by_rows(self.in_row),
                "p": self._by_rows(2 * self.in_row),
            },
            {"length": length, "kept": self.kept, "x_step": rows.step},
            outer * length * inner,
        )  # fmt: skip

    def ordered(self, dtypes: Sequence[str], rows: Sequence[_Rows]) -> list[Launch]:
        """The launches that put positions in order, by the last key first."""
        launches: list[Launch] = []
        for k in reversed(range(len(dtypes))):
            for part in (1, 0) if dtypes[k] in PARTS else (None,):
                launches += self._by_key(k, dtypes[k], rows[k], part, not launches)
        return launches

    def _by_key(
        self, k: int, dtype: str, rows: _Rows, part: int | None, is_first: bool
    ) -> list[Launch]:
        outer, length, inner = self.sizes
        key_dtype, points = _key_dtype(dtype), outer * length * inner
        passes = 8 * storage_bytes(key_dtype) // self._digit_bits
        workspace = self.workspace
        keys = launch(
            _key_kernel(dtype, part, self.total, self.descending),
            {"x": (k, rows.first), "k": (workspace, self._keys_at)},
            [outer, inner, length],
            {"x": (rows.outer, rows.inner, rows.step), "k": (*self._by_rows(length), 1)},
            {},
            points,
        )
        order = launch(
            _order_kernel(key_dtype, is_first),
            {
                "k": (workspace, self._keys_at), "p": (workspace, 0),
                "c": (workspace, self._counts_at),
            },
            [self._lanes],
            {"k": (length,), "p": (2 * length,), "c": (1 << self._digit_bits,)},
            {
                "length": length, "digit_bits": self._digit_bits,
                "digits": 1 << self._digit_bits, "passes": passes,
            },
            points * passes,
        )  # fmt: skip
        return [keys, order]

    def _results(self) -> tuple[list[int], dict[str, tuple[int, ...]]]:
        """Extents of results and strides of positions and results."""
        outer, _, inner = self.sizes
        extents = [outer, inner, self.kept]
        return extents, {
            "p": (*self._by_rows(2 * self.in_row), 1),
            "o": (self.kept * inner, 1, inner),
        }

    def taken(self, k: int, dtype: str, rows: _Rows) -> Launch:
        """The launch that takes elements of an operand."""
        extents, strides = self._results()
        kernel = _take_kernel(dtype, 2 if dtype in PARTS else 1)
        arrays = {"x": (k, rows.first), "p": (self.workspace, 0), "o": (self.operands + k, 0)}
        strides["x"] = (rows.outer, rows.inner, 0)
        return launch(kernel, arrays, extents, strides, {"x_step": rows.step}, prod(extents))

    def positions(self) -> Launch:
        """The launch that writes positions."""
        extents, strides = self._results()
        arrays = {"p": (self.workspace, 0), "o": (2 * self.operands, 0)}
        return launch(_position_kernel(), arrays, extents, strides, {}, prod(extents))
