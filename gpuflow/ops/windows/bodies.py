"""Kernel bodies of ops on sliding windows: the computation of one element.

Small windows are unrolled tap by tap, larger ones are loops. A window's taps are visited in
row-major order, because the first of equal extremes counts.

Tests: tests/ops/test_windows.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import reduce
from math import prod
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.core.aval import storage_name
from gpuflow.kir.nodes import Value
from gpuflow.kir.scalar import compute_dtype
from gpuflow.ops.elementwise.comparison import le_p

MAX_UNROLLED = 32  # taps
Tap = Sequence[int | Value]
Carry = tuple[Value, ...]


@record
class _Slide:
    """The positions of windows in one dimension."""

    window: int
    stride: int
    low: int
    high: int
    base_dilation: int
    window_dilation: int

    @property
    def is_trivial(self) -> bool:
        """Whether each element is a separate window."""
        dilations = (self.base_dilation, self.window_dilation)
        geometry = (self.window, self.stride, self.low, self.high, *dilations)
        return geometry == (1, 1, 0, 0, 1, 1)

    @property
    def span(self) -> int:
        """The extent of a dilated window."""
        return (self.window - 1) * self.window_dilation + 1

    def reaches_low(self, tap: int | Value) -> bool:
        """Whether a tap of the first window may be before the first element."""
        return self.low > (0 if isinstance(tap, Value) else tap * self.window_dilation)

    def reaches_high(self, tap: int | Value) -> bool:
        """Whether a tap of the last window may be after the last element."""
        after = 0 if isinstance(tap, Value) else self.span - 1 - tap * self.window_dilation
        return self.high > after

    def is_before(self, back: int | Value) -> bool:
        """Whether the window that is ``back`` before an element's last one may not exist."""
        return isinstance(back, Value) or back * self.stride > self.low

    def is_after(self, back: int | Value) -> bool:
        """Whether that window may be after the last one."""
        return isinstance(back, Value) or self.span - 1 - back * self.stride > self.high


def _slides(params: dict[str, Any]) -> list[_Slide]:
    window = params["window_dimensions"]
    ones = (1,) * len(window)
    rows = zip(
        window,
        params["window_strides"],
        params["padding"],
        params.get("base_dilation") or ones,
        params.get("window_dilation") or ones,
        strict=True,
    )
    return [
        _Slide(w, stride, low, high, base, dilation)
        for w, stride, (low, high), base, dilation in rows
    ]


class _Arithmetic:
    """int64 arithmetic and conditions in a kernel."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def number(self, value: int | Value) -> Value:
        """An int as a value."""
        return value if isinstance(value, Value) else self.builder.const("int64", value)

    def add(self, a: Value, b: int | Value) -> Value:
        """``a + b``."""
        return a if b == 0 else self.builder.apply("add", a, self.number(b))

    def mul(self, a: int | Value, b: int) -> int | Value:
        """``a * b``."""
        if not isinstance(a, Value):
            return a * b
        return a if b == 1 else self.builder.apply("mul", a, self.number(b))

    def compare(self, name: str, a: Value, b: int | Value) -> Value:
        """Compare ``a`` with ``b``."""
        return self.builder.apply(name, a, self.number(b))

    def every(self, conditions: Sequence[Value]) -> Value | None:
        """Conjunction of the conditions; None if there are none."""
        if not conditions:
            return None
        return reduce(lambda a, b: self.builder.apply("and", a, b), conditions)

    def divide(self, a: Value, by: int) -> Value:
        """``a / by``, truncated."""
        return a if by == 1 else self.builder.apply("div", a, self.number(by))


def _starts(context: Any, slides: Sequence[_Slide]) -> list[Value]:
    """The position of the first tap of the window at the output's index."""
    math = _Arithmetic(context.builder)
    return [
        math.add(math.number(math.mul(context.index(d), slide.stride)), -slide.low)
        for d, slide in enumerate(slides)
    ]


@record
class _GuardedIndex:
    """Indices of an element, whether it exists, and whether it may be loaded."""

    math: _Arithmetic
    shape: Sequence[int]
    indices: list[Value] = field(default_factory=list)
    conditions: list[Value] = field(default_factory=list)
    load_conditions: list[Value] = field(default_factory=list)

    def add(self, index: Value, size: Value | None, is_low: bool) -> None:
        """Append the index in the next dimension, which may be out of bounds.

        A load is conditional only along the last dimension, where a loop can be split. In others
        the index is clamped, so that the condition is invariant in the inner loop.
        """
        math, builder = self.math, self.math.builder
        last = len(self.indices) == len(self.shape) - 1
        if is_low:
            self._add(math.compare("ge", index, 0), last)
        if size is not None:
            self._add(math.compare("lt", index, size), last)
            if not last:
                index = builder.apply("min", index, math.add(size, -1))
        if is_low and not last:
            index = builder.apply("max", index, math.number(0))
        self.indices.append(index)

    def _add(self, condition: Value, guards_load: bool) -> None:
        self.conditions.append(condition)
        if guards_load:
            self.load_conditions.append(condition)

    @property
    def in_bounds(self) -> Value | None:
        """Whether the element exists; None: always."""
        return self.math.every(self.conditions)

    @property
    def load_mask(self) -> Value | None:
        """Whether the element may be loaded; None: always."""
        return self.in_bounds if 0 in self.shape else self.math.every(self.load_conditions)


def sizes(in_avals: Any, params: dict[str, Any]) -> Sequence[int]:
    """The scalars of these ops: the sizes of the first operand."""
    del params
    return in_avals[0].shape


def _end_bounds(context: Any, has_end: Iterable[bool]) -> list[Value | None]:
    """The sizes that indices are compared with, shared by all taps."""
    return [context.bound(d, d) if has else None for d, has in enumerate(has_end)]


@record
class _Windows:
    """Position of an operand's window for the current output index."""

    context: Any
    slides: Sequence[_Slide]
    shape: Sequence[int]
    starts: Sequence[Value]
    ends: Sequence[Value | None]


def _windows(context: Any, slides: Sequence[_Slide], shape: Sequence[int]) -> _Windows:
    ends = _end_bounds(context, (slide.high > 0 for slide in slides))
    return _Windows(context, slides, shape, _starts(context, slides), ends)


def _element(windows: _Windows, tap: Tap) -> _GuardedIndex:
    """The element under a tap."""
    builder = windows.context.builder
    math = _Arithmetic(builder)
    element = _GuardedIndex(math, windows.shape)
    rows = zip(windows.slides, windows.starts, windows.ends, tap, strict=True)
    for slide, start, end, k in rows:
        index = math.add(start, math.mul(k, slide.window_dilation))
        if slide.base_dilation > 1:
            if slide.reaches_low(k):  # before the division, which truncates
                element.conditions.append(math.compare("ge", index, 0))
            remainder = builder.apply("rem", index, math.number(slide.base_dilation))
            element.conditions.append(math.compare("eq", remainder, 0))
            index = math.divide(index, slide.base_dilation)
        element.add(index, end if slide.reaches_high(k) else None, slide.reaches_low(k))
    return element


def _over_taps(
    builder: Any, window: Sequence[int], carry: Carry, body: Callable[[Tap, Carry], Carry]
) -> Carry:
    """``carry = body(tap, carry)`` for each tap."""

    def level(d: int, tap: Tap, carry: Carry) -> Carry:
        if d == len(window):
            return tuple(body(tap, carry))
        if prod(window[d:]) <= MAX_UNROLLED or window[d] == 1:
            for k in range(window[d]):
                carry = level(d + 1, (*tap, k), carry)
            return carry
        count = builder.const("int64", window[d])
        return builder.for_count(count, carry, lambda k, *running: level(d + 1, (*tap, k), running))

    return level(0, (), carry)


# --- reductions ----------------------------------------------------------------------------


def reduction(combine: str, neutral: Callable[[Any], Any]) -> Callable[..., Any]:
    """The body of an op that combines all elements of each window.

    Args:
        combine: a function of kir.scalar.
        neutral: ``dtype -> neutral element``, the value of padding and dilation.
    """

    def body(context: Any, in_avals: Any, out: Any, params: dict[str, Any]) -> Value:
        del out
        (x,), builder, slides = in_avals, context.builder, _slides(params)
        start = _constant(builder, x.dtype, neutral(x.dtype))
        windows = _windows(context, slides, x.shape)

        def one(tap: Tap, carry: Carry) -> Carry:
            element = _element(windows, tap)
            in_bounds = element.in_bounds
            value = context.load(0, element.indices, element.load_mask)
            if in_bounds is not None:
                value = builder.select(in_bounds, value, start)
            return (builder.apply(combine, carry[0], value),)

        return _over_taps(builder, params["window_dimensions"], (start,), one)[0]

    return body


def _constant(builder: Any, dtype: Any, value: Any) -> Value:
    value = float(value) if dtypes.is_floating(dtype) else int(value)
    return builder.const(compute_dtype(storage_name(dtype)), value)


# --- extremes ------------------------------------------------------------------------------


@record
class _Order:
    """Order of elements for the selection of an extremum; nan wins."""

    builder: Any
    least: bool
    has_nan: bool

    def is_nan(self, a: Value) -> Value:
        """Whether a value is nan."""
        return self.builder.apply("ne", a, a)

    def beats(self, a: Value, b: Value) -> Value:
        """Whether ``a`` is selected although ``b`` comes first."""
        builder = self.builder
        better = builder.apply("lt" if self.least else "gt", a, b)
        if not self.has_nan:
            return better
        other = builder.apply("not", self.is_nan(b))
        fresh = builder.apply("and", self.is_nan(a), other)
        return builder.apply("or", builder.apply("and", better, other), fresh)


def gathered(context: Any, in_avals: Any, out: Any, params: dict[str, Any]) -> Value:
    """The body of select_and_gather_add: the tangent at the extreme of each window."""
    del out
    (tangents, x), builder, slides = in_avals, context.builder, _slides(params)
    order = _order(builder, x, params)
    windows = _windows(context, slides, x.shape)
    zero = _constant(builder, tangents.dtype, 0)
    none = builder.const("bool", False)

    def one(tap: Tap, carry: Carry) -> Carry:
        best, seen, tangent = carry
        element = _element(windows, tap)
        in_bounds = element.in_bounds
        value = context.load(1, element.indices, element.load_mask)
        better = builder.apply("or", order.beats(value, best), builder.apply("not", seen))
        if in_bounds is not None:
            better = builder.apply("and", better, in_bounds)
        candidate = context.load(0, element.indices, element.load_mask)
        return (
            builder.select(better, value, best),
            builder.apply("or", seen, better),
            builder.select(better, candidate, tangent),
        )

    start = (_constant(builder, x.dtype, 0), none, zero)
    return _over_taps(builder, params["window_dimensions"], start, one)[2]


def _order(builder: Any, x: Any, params: dict[str, Any]) -> _Order:
    return _Order(builder, params["select_prim"] is le_p, dtypes.is_floating(x.dtype))


def extreme_tap(context: Any, in_avals: Any, out: Any, params: dict[str, Any]) -> Value:
    """The body of window_extreme: index of the tap at the first extremum; -1 if there is none."""
    del out
    (x,), builder, slides = in_avals, context.builder, _slides(params)
    math, order = _Arithmetic(builder), _order(builder, x, params)
    windows = _windows(context, slides, x.shape)
    none = builder.const("int32", -1)

    def one(tap: Tap, carry: Carry) -> Carry:
        best, best_tap = carry
        element = _element(windows, tap)
        in_bounds = element.in_bounds
        value = context.load(0, element.indices, element.load_mask)
        first = builder.apply("lt", best_tap, builder.const("int32", 0))
        better = builder.apply("or", order.beats(value, best), first)
        if in_bounds is not None:
            better = builder.apply("and", better, in_bounds)
        index = builder.cast(_linear(math, tap, params["window_dimensions"]), "int32")
        return builder.select(better, value, best), builder.select(better, index, best_tap)

    start = (_constant(builder, x.dtype, 0), none)
    return _over_taps(builder, params["window_dimensions"], start, one)[1]


def scattered(context: Any, in_avals: Any, out: Any, params: dict[str, Any]) -> Value:
    """The body of window_spread: an element sums the sources of windows that selected it."""
    (source, _), builder, slides = in_avals, context.builder, _slides(params)
    math = _Arithmetic(builder)
    zero = _constant(builder, source.dtype, 0)
    starts = [
        math.add(math.number(math.mul(context.index(d), slide.base_dilation)), slide.low)
        for d, slide in enumerate(slides)
    ]
    ends = _end_bounds(context, (not slide.is_trivial for slide in slides))
    lasts = [math.divide(start, slide.stride) for start, slide in zip(starts, slides, strict=True)]

    def one(back: Tap, carry: Carry) -> Carry:
        """Add the source of the window that is ``back`` before the element's last one."""
        sources, taps = _GuardedIndex(math, source.shape), []
        rows = zip(slides, starts, lasts, ends, back, strict=True)
        for slide, start, last, end, c in rows:
            window = builder.apply("sub", last, math.number(c))
            distance = builder.apply("sub", start, math.number(math.mul(window, slide.stride)))
            taps.append(math.divide(distance, slide.window_dilation))
            if slide.is_trivial:
                sources.add(window, end, False)
                continue
            sources.conditions.extend(_covers(math, slide, distance, c))
            sources.add(window, end if slide.is_after(c) else None, slide.is_before(c))
        windows, mask, covered = sources.indices, sources.load_mask, sources.in_bounds
        tap = builder.cast(_linear(math, taps, params["window_dimensions"]), "int32")
        hit = builder.apply("eq", context.load(1, windows, mask), tap)
        if covered is not None:
            hit = builder.apply("and", hit, covered)
        added = builder.select(hit, context.load(0, windows, mask), zero)
        return (builder.apply("add", carry[0], added),)

    backs = [-(-slide.span // slide.stride) for slide in slides]
    return _over_taps(builder, backs, (zero,), one)[0]


def _covers(math: _Arithmetic, slide: _Slide, distance: Value, back: int | Value) -> list[Value]:
    """Conditions for a window to have a tap at a distance from its start."""
    conditions = []
    is_static = not isinstance(back, Value)
    if slide.low < 0:
        conditions.append(math.compare("ge", distance, 0))
    if not is_static or (back + 1) * slide.stride > slide.span:
        conditions.append(math.compare("lt", distance, slide.span))
    if slide.window_dilation > 1:
        remainder = math.builder.apply("rem", distance, math.number(slide.window_dilation))
        conditions.append(math.compare("eq", remainder, 0))
    return conditions


def _linear(math: _Arithmetic, tap: Tap, window: Sequence[int]) -> Value:
    """The row-major index of a tap."""
    total: int | Value = 0
    for k, size in zip(tap, window, strict=True):
        if size == 1:
            continue
        scaled = math.mul(total, size)
        if isinstance(scaled, Value):
            total = math.add(scaled, k)
        else:
            total = math.add(k, scaled) if isinstance(k, Value) else k + scaled
    return math.number(total)
