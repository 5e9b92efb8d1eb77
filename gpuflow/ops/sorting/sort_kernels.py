"""Sort kernels for few elements: for programs that would call a library just for them.

Keys become unsigned integers in the same order, and indices are sorted by one digit after the
other, least significant first; each pass is stable.

    counts of a digit     2 0 1 ...        offset of its first element  0 2 2 ...
    position p, in order: to the offset of its digit, which is then incremented

The few greatest elements are selected by insertion into a sorted list.

Source: Knuth, The Art of Computer Programming 3, section 5.2.5 (radix sort).

Tests: tests/ops/test_sorting.py, tests/targets/cpu/test_native_sorts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gpuflow.base import dtypes
from gpuflow.base.caches import cache
from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.blocks import Launch, Launches
from gpuflow.core.views import View
from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import Kernel, Mode, Value
from gpuflow.kir.scalar import COMPONENT_DTYPES, compute_dtype, storage_bytes
from gpuflow.ops.handwritten.launch import (
    array,
    builder_of,
    fits_kernels,
    launch,
    number,
    parallel_axes,
    worker_axes,
)

MAX_ROW_LENGTH = 1 << 11  # elements: for more, NumPy's vectorized sorts are worth a call
MAX_SELECTED = 32  # elements of the sorted list; more are sorted
MAX_MOVES = 1 << 17  # in such lists, in the worst case of ascending elements, for short rows
LONG = 8  # ratio of row length to selected elements above which few are moved
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
    """Layout of an operand; None if the dimensions around the axis do not merge."""
    outer = _stride(view.shape[:axis], view.strides[:axis])
    inner = _stride(view.shape[axis + 1 :], view.strides[axis + 1 :])
    if outer is None or inner is None:
        return None
    return _Rows(view.offset * itemsize, outer, view.strides[axis], inner)


def _stride(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of merged dimensions; None if they do not merge."""
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
    component = COMPONENT_DTYPES.get(dtype, dtype)
    return "uint64" if storage_bytes(compute_dtype(component)) == 8 else "uint32"


def _key(builder: Builder, x: Value, key_dtype: str, total: bool, descending: bool) -> Value:
    """An element's key.

    With ``total`` order floats are ordered by sign and magnitude; else all nan are last and
    zeros are equal.
    """
    apply, bits = builder.apply, int(key_dtype.removeprefix("uint"))
    ones, sign = (builder.const(key_dtype, n) for n in ((1 << bits) - 1, 1 << (bits - 1)))
    if x.dtype.startswith("float"):
        zero = builder.const(x.dtype, 0.0)
        value = x if total else builder.select(apply("eq", x, zero), zero, x)
        pattern = apply(f"bitcast_{key_dtype}", value)
        # Bit patterns of negative floats decrease as the float grows: flip all their bits.
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
def _key_kernel(dtype: str, component: int | None, total: bool, descending: bool) -> Kernel:
    """Kernel that computes the keys of all elements."""
    axes, key_dtype = parallel_axes(3), _key_dtype(dtype)
    operands = [array("x", dtype, Mode.IN, 3), array("k", key_dtype, Mode.OUT, 3)]
    builder = builder_of(operands, axes)
    with builder.for_axis("i0"), builder.for_axis("i1"), builder.for_axis("i2"):
        x = builder.load("x", component=component)
        builder.store("k", _key(builder, x, key_dtype, total, descending))
    return Kernel("sort_keys", axes, tuple(operands), builder.finish())


# --- orders ----------------------------------------------------------------------------------


@cache
def _order_kernel(key_dtype: str, is_first: bool) -> Kernel:
    """Radix sort kernel: positions of each row in the order of their keys, stable.

    ``is_first``: there is no order yet. Positions alternate between two halves of "p".
    """
    axes = worker_axes(1)
    operands = [
        array("k", key_dtype, Mode.IN, 1),
        array("p", _POSITION, Mode.WORK, 1),
        array("c", _COUNT, Mode.WORK, 1),
        *[number(name, 1) for name in ("length", "digit_bits", "digits", "passes")],
    ]
    builder = builder_of(operands, axes)
    apply, load, cast = builder.apply, builder.load, builder.cast
    one = builder.const(_COUNT, 1)

    def digit(position: Value, shift: Value) -> Value:
        shifted = apply("shift_right_logical", load("k", position), shift)
        mask = cast(apply("sub", load("digits"), builder.const("int64", 1)), key_dtype)
        return cast(apply("and", shifted, mask), "int64")

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
            slot = load("c", at)
            builder.store("c", apply("add", slot, one), at)
            builder.store("p", position, apply("add", target, cast(slot, "int64")))
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
def _selection_kernel(dtype: str, total: bool, descending: bool) -> Kernel:
    """Selection kernel: positions of the first few elements of each row in the order of keys."""
    axes, key_dtype = worker_axes(2), _key_dtype(dtype)
    operands = [
        array("x", dtype, Mode.IN, 2),
        array("k", key_dtype, Mode.WORK, 2),
        array("p", _POSITION, Mode.WORK, 2),
        *[number(name, 2) for name in ("length", "kept", "x_step")],
    ]
    builder = builder_of(operands, axes)
    apply, load, one = builder.apply, builder.load, builder.const("int64", 1)

    def element(k: Value) -> list[Value]:
        key = _key(
            builder, load("x", apply("mul", k, load("x_step"))), key_dtype, total, descending
        )
        last = apply("sub", load("kept"), one)
        end = apply("min", k, last)

        def insert() -> list[Value]:
            def make_room(j: Value, slot: Value) -> Value:
                to = apply("sub", end, j)
                before = apply("sub", to, one)
                other, position = load("k", before), load("p", before)
                moves = apply("lt", key, other)
                builder.store("k", other, to, where=moves)
                builder.store("p", position, to, where=moves)
                return builder.select(moves, before, slot)

            (slot,) = builder.for_count(end, [end], make_room)
            builder.store("k", key, slot)
            builder.store("p", builder.cast(k, _POSITION), slot)
            return []

        # Among equal elements the first one wins.
        is_in = apply("or", apply("lt", k, load("kept")), apply("lt", key, load("k", last)))
        builder.if_(is_in, insert, lambda: [])
        return []

    with builder.for_axis("i0"), builder.for_axis("i1"):
        builder.for_count(load("length"), [], element)
    return Kernel("top_k_order", axes, tuple(operands), builder.finish())


@cache
def _take_kernel(dtype: str, components: int) -> Kernel:
    """Kernel that gathers the elements at the positions."""
    axes = parallel_axes(3)
    operands = [
        array("x", dtype, Mode.IN, 3),
        array("p", _POSITION, Mode.IN, 3),
        array("o", dtype, Mode.OUT, 3),
        number("x_step", 3),
    ]
    builder = builder_of(operands, axes)
    with builder.for_axis("i0"), builder.for_axis("i1"), builder.for_axis("i2"):
        position = builder.cast(builder.load("p"), "int64")
        at = builder.apply("mul", position, builder.load("x_step"))
        for component in range(components) if components > 1 else (None,):
            builder.store("o", builder.load("x", at, component=component), component=component)
    return Kernel("sort_take", axes, tuple(operands), builder.finish())


@cache
def _position_kernel() -> Kernel:
    """Kernel that copies the positions."""
    axes = parallel_axes(3)
    operands = [array("p", _POSITION, Mode.IN, 3), array("o", "int32", Mode.OUT, 3)]
    builder = builder_of(operands, axes)
    with builder.for_axis("i0"), builder.for_axis("i1"), builder.for_axis("i2"):
        builder.store("o", builder.load("p"))
    return Kernel("sort_positions", axes, tuple(operands), builder.finish())


# --- launches --------------------------------------------------------------------------------


def sort_launches(
    views: Sequence[View],
    outs: Sequence[ShapedArray],
    axis: int,
    keys: int,
    out_length: int,
    descending: bool = False,
    total: bool = False,
) -> Launches | None:
    """The launches of a sort along ``axis``; None if NumPy sorts.

    Args:
        views: the layouts of the operands; each has the dtype of its output.
        outs: the types of results; one more than operands if positions are requested.
        axis: of the rows.
        keys, retained, descending, total: as in ``Sort``.
    """
    count, shape = len(views), views[0].shape
    size, length = prod(shape), shape[axis]
    if size == 0 or out_length == 0:
        return None
    names = [storage_name(out.dtype) for out in outs[:count]]
    pairs = zip(names, outs)
    if not all(name in COMPONENT_DTYPES or fits_kernels(out.dtype) for name, out in pairs):
        return None
    itemsizes = [out.dtype.itemsize for out in outs]
    layouts = [_rows(view, axis, n) for view, n in zip(views, itemsizes)]
    rows = [one for one in layouts if one is not None]
    if len(rows) < count or any(dtypes.is_extended(out.dtype) for out in outs):
        return None
    sizes = prod(shape[:axis]), length, prod(shape[axis + 1 :])
    few_moves = LONG * out_length <= length or size * out_length <= MAX_MOVES
    is_selected = out_length < length and out_length <= MAX_SELECTED and few_moves
    if not is_selected and size > MAX_ROW_LENGTH:
        return None
    in_row = out_length if is_selected else length
    maker = _Maker(sizes, out_length, in_row, descending, total, count, count + len(outs))
    if is_selected:
        launches = [maker.selected(names[0], rows[0])]  # only top_k, with one real key, selects
    else:
        launches = maker.ordered(names[:keys], rows[:keys])
    for k, (name, one) in enumerate(zip(names, rows, strict=True)):
        launches.append(maker.gathered(k, name, one))
    if len(outs) > count:
        launches.append(maker.positions())
    return Launches(tuple(launches), maker.workspace_bytes)


@record
class _Maker:
    """Builds the launches of one sort.

    For each row, the workspace has two arrays of positions, counts of digits, and ``in_row`` keys.
    ``workspace`` is its index among the arrays, after ``operands`` and outputs.
    """

    sizes: tuple[int, int, int]
    out_length: int
    in_row: int
    descending: bool
    total: bool
    operands: int
    workspace: int

    @property
    def _row_count(self) -> int:
        return self.sizes[0] * self.sizes[2]

    @property
    def _digit_bits(self) -> int:
        return 4 if self.sizes[1] < _SHORT else 8

    @property
    def _counts_at(self) -> int:
        return 2 * self._row_count * self.in_row * storage_bytes(_POSITION)

    @property
    def _keys_at(self) -> int:
        counts = self._row_count * (1 << self._digit_bits) * storage_bytes(_COUNT)
        return -(-(self._counts_at + counts) // 64) * 64

    @property
    def workspace_bytes(self) -> int:
        """Size of the workspace, for keys of the widest type."""
        return self._keys_at + self._row_count * self.in_row * 8

    def _by_rows(self, per_row: int) -> tuple[int, int]:
        """Strides of (outer, inner) of arrays with a number of elements per row."""
        return self.sizes[2] * per_row, per_row

    def selected(self, dtype: str, rows: _Rows) -> Launch:
        """The launch of the selection kernel."""
        outer, length, inner = self.sizes
        return launch(
            _selection_kernel(dtype, self.total, self.descending),
            {
                "x": (0, rows.first),
                "k": (self.workspace, self._keys_at),
                "p": (self.workspace, 0),
            },
            [outer, inner],
            {
                "x": (rows.outer, rows.inner),
                "k": self._by_rows(self.in_row),
                "p": self._by_rows(2 * self.in_row),
            },
            {"length": length, "kept": self.out_length, "x_step": rows.step},
            outer * length * inner,
        )

    def ordered(self, dtypes: Sequence[str], rows: Sequence[_Rows]) -> list[Launch]:
        """The launches that sort positions, by the last key first."""
        launches: list[Launch] = []
        for k in reversed(range(len(dtypes))):
            for component in (1, 0) if dtypes[k] in COMPONENT_DTYPES else (None,):
                launches += self._by_key(k, dtypes[k], rows[k], component, not launches)
        return launches

    def _by_key(
        self, k: int, dtype: str, rows: _Rows, component: int | None, is_first: bool
    ) -> list[Launch]:
        outer, length, inner = self.sizes
        key_dtype, points = _key_dtype(dtype), outer * length * inner
        passes = 8 * storage_bytes(key_dtype) // self._digit_bits
        workspace = self.workspace
        keys = launch(
            _key_kernel(dtype, component, self.total, self.descending),
            {"x": (k, rows.first), "k": (workspace, self._keys_at)},
            [outer, inner, length],
            {"x": (rows.outer, rows.inner, rows.step), "k": (*self._by_rows(length), 1)},
            {},
            points,
        )
        order = launch(
            _order_kernel(key_dtype, is_first),
            {
                "k": (workspace, self._keys_at),
                "p": (workspace, 0),
                "c": (workspace, self._counts_at),
            },
            [self._row_count],
            {"k": (length,), "p": (2 * length,), "c": (1 << self._digit_bits,)},
            {
                "length": length,
                "digit_bits": self._digit_bits,
                "digits": 1 << self._digit_bits,
                "passes": passes,
            },
            points * passes,
        )
        return [keys, order]

    def _results(self) -> tuple[list[int], dict[str, tuple[int, ...]]]:
        """Extents of results and strides of positions and results."""
        outer, _, inner = self.sizes
        extents = [outer, inner, self.out_length]
        return extents, {
            "p": (*self._by_rows(2 * self.in_row), 1),
            "o": (self.out_length * inner, 1, inner),
        }

    def gathered(self, k: int, dtype: str, rows: _Rows) -> Launch:
        """The launch that gathers elements of an operand."""
        extents, strides = self._results()
        kernel = _take_kernel(dtype, 2 if dtype in COMPONENT_DTYPES else 1)
        arrays = {"x": (k, rows.first), "p": (self.workspace, 0), "o": (self.operands + k, 0)}
        strides["x"] = (rows.outer, rows.inner, 0)
        return launch(kernel, arrays, extents, strides, {"x_step": rows.step}, prod(extents))

    def positions(self) -> Launch:
        """The launch that writes positions."""
        extents, strides = self._results()
        arrays = {"p": (self.workspace, 0), "o": (2 * self.operands, 0)}
        return launch(_position_kernel(), arrays, extents, strides, {}, prod(extents))
