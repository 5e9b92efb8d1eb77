"""``select_and_scatter``: combine a value into the selected element of each window.

It generalizes the gradient of max pooling to arbitrary functions. The loop runs over the offsets in
a window: each offset is one strided view of the padded array.

Tests: tests/lax/test_lax_definitions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.control.programs import Program
from gpuflow.control.scalar_programs import map_scalars, trace_scalars
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.ops.define import check_same_dtype, types_text
from gpuflow.ops.elementwise.comparison import bitwise_and, bitwise_not, bitwise_or, eq
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.layout.axes import broadcast_in_dim
from gpuflow.ops.layout.slicing import pad, slice_
from gpuflow.ops.windows.sliding import window_counts
from gpuflow.ops.zeros import full


@explained
def select_and_scatter(
    operand: Any,
    select: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[Sequence[int]],
    source: Any,
    init_value: Any,
    scatter: Callable[[Any, Any], Any],
) -> Any:
    """Scatter one value for each window to the selected element of the window.

    Args:
        operand: array from which elements are selected.
        select: ``(a, b) -> bool`` on scalars: whether the current selection ``a`` is kept.
        window_dimensions, window_strides, padding: as in ``reduce_window``. Padding is never
            selected.
        source: one value for each position of the window, of the dtype of ``operand``.
        init_value: a scalar; the initial value of all elements, and the result for elements that no
            window selects.
        scatter: ``(a, b) -> c`` on scalars, associative and commutative: combines the value ``a``
            of an element with an update ``b``.

    Returns:
        An array like ``operand``.

    Raises:
        TypeError: if dtypes or shapes do not match.
        ValueError: if the windows are inconsistent.

    Source: the definition of SelectAndScatter in the XLA operation semantics.

    Example:
        >>> x, source = jnp.array([1.0, 3.0, 2.0]), jnp.array([10.0, 20.0])
        >>> lax.select_and_scatter(x, lax.ge, (2,), (1,), ((0, 0),), source, 0.0, lax.add)
        Array([ 0., 30.,  0.], dtype=float32)
    """
    name = "select_and_scatter"
    aval, source_aval = aval_of(operand), aval_of(source)
    check_same_dtype(name, [aval, source_aval])
    window, strides = tuple(map(int, window_dimensions)), tuple(map(int, window_strides))
    pads = tuple((int(low), int(high)) for low, high in padding)
    ones = (1,) * aval.ndim
    counts = window_counts(name, aval, window, strides, pads, ones, ones)
    check(
        source_aval.shape == counts,
        lambda: (
            f"[{name}] the source must have one element for each position of the window, {counts}; "
            f"got {types_text([source_aval, aval])}. Fix: an array of the shape of reduce_window's "
            "result."
        ),
    )
    selecting = _traced(name, select, aval.dtype, dtypes.bool_, "select")
    combining = _traced(name, scatter, aval.dtype, aval.dtype, "scatter")
    config = [(low, high, 0) for low, high in pads]
    wide = pad(operand, full((), 0, aval.dtype), config)
    real = pad(full(aval.shape, True, dtypes.bool_), full((), False, dtypes.bool_), config)
    views = [_View(offset, counts, strides) for offset in product(*map(range, window))]
    selected = _selected(selecting, views, wide, real)
    shape = aval_of(wide).shape
    start = convert_element_type(init_value, aval.dtype)
    total = broadcast_in_dim(start, shape, ())
    # At one offset, different windows have different elements, so updates do not collide.
    for view_index, view in enumerate(views):
        hit = view.scattered(bitwise_and(eq(selected, view_index), view.of_array(real)), shape)
        (changed,) = map_scalars(combining, [total, view.scattered(source, shape)])
        total = where(hit, changed, total)
    return pad(total, start, [(-low, -high, 0) for low, high in pads])


def _traced(op: str, function: Callable[..., Any], dtype: Any, result: Any, name: str) -> Program:
    program = trace_scalars(op, function, [dtype, dtype], name)
    outs = program.jaxpr.out_avals
    check(
        [(out.shape, out.dtype) for out in outs] == [((), result)],
        lambda: (
            f"[{op}] {name} must return {ShapedArray((), result)}; got "
            f"{', '.join(map(str, outs))}. Fix: x.astype(...)."
        ),
    )
    return program


@record
class _View:
    """The elements of all windows at one offset: a strided slice of the padded array.

    Attributes:
        starts: the offset, which is the first index in each dimension.
        counts: number of windows in each dimension.
        strides: window strides.
    """

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    strides: tuple[int, ...]

    def limits(self) -> list[int]:
        triples = zip(self.starts, self.counts, self.strides, strict=True)
        return [start + (n - 1) * s + 1 if n else start for start, n, s in triples]

    def of_array(self, x: Any) -> Any:
        """The elements of ``x``."""
        return slice_(x, self.starts, self.limits(), self.strides)

    def scattered(self, x: Any, shape: Sequence[int]) -> Any:
        """An array of ``shape`` with ``x`` at these elements, and zeros elsewhere."""
        bounds = zip(self.starts, self.limits(), self.strides, shape, strict=True)
        config = [(start, n - limit, s - 1) for start, limit, s, n in bounds]
        return pad(x, full((), 0, aval_of(x).dtype), config)


def _selected(program: Program, views: Sequence[_View], wide: Any, real: Any) -> Any:
    """For each window the index of the view whose element it selects.

    Args:
        program: the selection function.
        views: one view for each offset.
        wide: the padded array.
        real: whether an element of ``wide`` is not padding.
    """
    best, any_real = views[0].of_array(wide), views[0].of_array(real)
    selected = full(aval_of(best).shape, 0, "int32")
    for view_index, view in enumerate(views[1:], 1):
        value, is_real = view.of_array(wide), view.of_array(real)
        (stays,) = map_scalars(program, [best, value])
        better = bitwise_and(is_real, bitwise_or(bitwise_not(any_real), bitwise_not(stays)))
        best, selected = where(better, value, best), where(better, view_index, selected)
        any_real = bitwise_or(any_real, is_real)
    return selected
