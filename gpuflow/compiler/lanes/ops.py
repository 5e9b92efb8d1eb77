"""Layout ops and products of small matrices in a lane program.

Tests: tests/compiler/test_lanes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from typing import NamedTuple

from gpuflow.base.dtypes import is_complex
from gpuflow.compiler.lanes.arrays import (
    REPEATED,
    SMALL,
    Array,
    ComputedArray,
    Element,
    LaneArray,
    MemoryArray,
    NotLanesError,
    apply_view,
    check_small,
    common_kind,
    object_array,
)
from gpuflow.compiler.lanes.context import LaneContext
from gpuflow.core import views
from gpuflow.core.aval import storage_name
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.lowering import block_of
from gpuflow.core.views import View
from gpuflow.kir.nodes import Value
from gpuflow.kir.scalar import compute_dtype


def layout(context: LaneContext, eqn: Eqn, array: Array) -> Array:
    """The output of a layout op. Elements that are read on demand are read at shifted indices."""
    out = eqn.outputs[0].aval
    view = eqn.primitive.lower.view(views.contiguous(array.shape), out, **eqn.params)
    if view is None:
        raise NotLanesError(f"{eqn.primitive.name} copies")
    if not isinstance(array, LaneArray) and all(kind == SMALL for kind in array.dim_kinds):
        affine = _affine_indices(array.shape, view)
        if affine is not None:
            return _view_on_demand(context, array, view.shape, affine)
    return apply_view(context.values_of(array), out.shape, view)


class _AffineIndices(NamedTuple):
    """Indices into an array that are affine in those into a view of it.

    Attributes:
        start: for each dimension of the array the index of the view's first element.
        steps: for each dimension of the view a dimension of the array, and the distance there
            between neighbors along the view's dimension; 0 if it is broadcast or of size 1.
    """

    start: list[int]
    steps: list[tuple[int, int]]


def _affine_indices(shape: Sequence[int], view: View) -> _AffineIndices | None:
    """The affine indices of a view of a row-major array.

    None if a dimension of the view spans several dimensions of the array, or either is empty.
    """
    if 0 in shape or 0 in view.shape:
        return None
    strides = views.contiguous(shape).strides
    start, offset = [], view.offset
    for stride in strides:
        start.append(offset // stride)
        offset %= stride
    lowest, highest, steps = [*start], [*start], []
    for size, stride in zip(view.shape, view.strides, strict=True):
        dims = [
            d for d, dim_stride in enumerate(strides) if shape[d] > 1 and dim_stride <= abs(stride)
        ]
        if not dims or size == 1:
            if size > 1 and stride:
                return None
            steps.append((0, 0))
            continue
        step, remainder = divmod(stride, strides[dims[0]])
        if remainder:
            return None
        steps.append((dims[0], step))
        bound = lowest if step < 0 else highest
        bound[dims[0]] += step * (size - 1)
    in_bounds = all(a >= 0 and b < n for a, b, n in zip(lowest, highest, shape, strict=True))
    return _AffineIndices(start, steps) if in_bounds else None


def _view_on_demand(
    context: LaneContext,
    array: MemoryArray | ComputedArray,
    shape: tuple[int, ...],
    affine: _AffineIndices,
) -> ComputedArray:
    """A view, of a shape, that is read on demand, given the result of ``_affine_indices``."""
    builder = context.builder

    def element(indices: Sequence[Value]) -> Element:
        array_index = [builder.const("int64", start) for start in affine.start]
        for index, (dim, step) in zip(indices, affine.steps, strict=True):
            if step:
                shift = builder.apply("mul", index, builder.const("int64", step))
                array_index[dim] = builder.apply("add", array_index[dim], shift)
        return context.load(array, array_index)

    return ComputedArray(shape, element)


def product(context: LaneContext, eqn: Eqn, arrays: Sequence[LaneArray]) -> LaneArray:
    """A product of small matrices, unrolled; each sum is in the order of its terms.

    Args:
        context: the evaluator.
        eqn: a library call; raises NotLanesError unless it is a real ``Product``.
        arrays: its two operands. Their depth dimensions must not be batch dimensions.
    """
    block = block_of(eqn)
    out = eqn.outputs[0].aval
    if not isinstance(block, Product) or is_complex(out.dtype):
        raise NotLanesError(
            f"{eqn.primitive.name} is a call of a library",
            "call it outside, and give its result to the kernel as an argument",
        )
    left, right = arrays
    batch, rows, left_depth = block.left
    right_batch, right_depth, columns = block.right
    for array, dims in ((left, left_depth), (right, right_depth)):
        if any(array.dim_kinds[d] >= 0 for d in dims):
            raise NotLanesError("it sums over lanes")
    output_dims = [
        *zip(batch, right_batch, strict=True),
        *[(d, None) for d in rows],
        *[(None, d) for d in columns],
    ]
    kinds, sizes = [], []
    for a, b in output_dims:
        kind = REPEATED
        for array, d in ((left, a), (right, b)):
            if d is not None:
                kind = common_kind(kind, array.dim_kinds[d])
        kinds.append(kind)
        if kind == SMALL:
            sizes.append(left.shape[a] if a is not None else right.shape[b])
    depth_sizes = [left.shape[d] for d in left_depth]
    check_small([*sizes, *depth_sizes])
    storage = storage_name(out.dtype)
    dtype = compute_dtype(storage)
    zero = context.builder.const(dtype, 0)
    elements = []
    for index in cartesian(*map(range, sizes)):
        small_index, small_coordinates = iter(index), []
        for kind in kinds:
            small_coordinates.append(next(small_index) if kind == SMALL else 0)
        total: Value | None = None
        for depth_index in cartesian(*map(range, depth_sizes)):
            left_index, right_index = (
                dict(zip(left_depth, depth_index, strict=True)),
                dict(zip(right_depth, depth_index, strict=True)),
            )
            for (a, b), i in zip(output_dims, small_coordinates, strict=True):
                if a is not None:
                    left_index[a] = i
                if b is not None:
                    right_index[b] = i
            x = context.builder.cast(_element_at(left, left_index), dtype)
            y = context.builder.cast(_element_at(right, right_index), dtype)
            term = context.builder.apply("mul", x, y)
            total = term if total is None else context.builder.apply("add", total, term)
        elements.append(context.rounded(zero if total is None else total, eqn.outputs[0]))
    return LaneArray(out.shape, tuple(kinds), object_array(elements, sizes))


def _element_at(array: LaneArray, index: dict[int, int]) -> Value:
    """The element at an index by dimension; only SMALL dimensions matter."""
    return array.items[tuple(index[d] for d in array.small)]
