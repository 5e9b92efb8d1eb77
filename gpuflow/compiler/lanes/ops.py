"""Layout ops and products of small matrices in a lane program."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian

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
    check_small,
    joined_kind,
    object_array,
    viewed,
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
    if not isinstance(array, LaneArray) and all(kind == SMALL for kind in array.kinds):
        steps = _view_steps(array.shape, view)
        if steps is not None:
            return _read_elsewhere(context, array, view.shape, *steps)
    return viewed(context.values_of(array), out.shape, view)


def _view_steps(shape: Sequence[int], view: View) -> tuple[list[int], list[tuple[int, int]]] | None:
    """A view as affine indices: the start index, and for each view dimension (dimension, step).

    None if a dimension of the view spans several dimensions of the array.
    """
    if 0 in shape or 0 in view.shape:
        return None
    strides = views.contiguous(shape).strides
    first, offset = [], view.offset
    for stride in strides:
        first.append(offset // stride)
        offset %= stride
    low, high, steps = [*first], [*first], []
    for size, stride in zip(view.shape, view.strides, strict=True):
        dims = [d for d, of_dim in enumerate(strides) if shape[d] > 1 and of_dim <= abs(stride)]
        if not dims or size == 1:
            if size > 1 and stride:
                return None
            steps.append((0, 0))
            continue
        step, remainder = divmod(stride, strides[dims[0]])
        if remainder:
            return None
        steps.append((dims[0], step))
        end = low if step < 0 else high
        end[dims[0]] += step * (size - 1)
    in_bounds = all(a >= 0 and b < n for a, b, n in zip(low, high, shape, strict=True))
    return (first, steps) if in_bounds else None


def _read_elsewhere(
    context: LaneContext,
    array: MemoryArray | ComputedArray,
    shape: tuple[int, ...],
    first: Sequence[int],
    steps: Sequence[tuple[int, int]],
) -> ComputedArray:
    """A view that is read on demand, given the result of ``_view_steps``."""
    builder = context.builder

    def element(indices: Sequence[Value]) -> Element:
        source = [builder.const("int64", start) for start in first]
        for index, (dim, step) in zip(indices, steps, strict=True):
            if step:
                shift = builder.apply("mul", index, builder.const("int64", step))
                source[dim] = builder.apply("add", source[dim], shift)
        return context.load(array, source)

    return ComputedArray(shape, element)


def product(context: LaneContext, eqn: Eqn, arrays: Sequence[LaneArray]) -> LaneArray:
    """A product of small matrices, unrolled; each sum is in the order of its terms."""
    block = block_of(eqn)
    out = eqn.outputs[0].aval
    if not isinstance(block, Product) or is_complex(out.dtype):
        raise NotLanesError(
            f"{eqn.primitive.name} is a call of a library",
            "call it outside, and give its result to the kernel as an argument",
        )
    left, right = arrays
    batch, rows, depth = block.left
    right_batch, right_depth, columns = block.right
    for array, dims in ((left, depth), (right, right_depth)):
        if any(array.kinds[d] >= 0 for d in dims):
            raise NotLanesError("it sums over lanes")
    sources = [
        *zip(batch, right_batch, strict=True),
        *[(d, None) for d in rows],
        *[(None, d) for d in columns],
    ]
    kinds, sizes = [], []
    for a, b in sources:
        kind = REPEATED
        for array, d in ((left, a), (right, b)):
            if d is not None:
                kind = joined_kind(kind, array.kinds[d])
        kinds.append(kind)
        if kind == SMALL:
            sizes.append(left.shape[a] if a is not None else right.shape[b])
    depths = [left.shape[d] for d in depth]
    check_small([*sizes, *depths])
    storage = storage_name(out.dtype)
    dtype = compute_dtype(storage)
    start = context.builder.const(dtype, 0)
    elements = []
    for index in cartesian(*map(range, sizes)):
        small_index, point = iter(index), []
        for kind in kinds:
            point.append(next(small_index) if kind == SMALL else 0)
        total: Value | None = None
        for deep in cartesian(*map(range, depths)):
            at_left, at_right = (
                dict(zip(depth, deep, strict=True)),
                dict(zip(right_depth, deep, strict=True)),
            )
            for (a, b), i in zip(sources, point, strict=True):
                if a is not None:
                    at_left[a] = i
                if b is not None:
                    at_right[b] = i
            x = context.builder.cast(_item(left, at_left), dtype)
            y = context.builder.cast(_item(right, at_right), dtype)
            term = context.builder.apply("mul", x, y)
            total = term if total is None else context.builder.apply("add", total, term)
        elements.append(context.rounded(start if total is None else total, eqn.outputs[0]))
    return LaneArray(out.shape, tuple(kinds), object_array(elements, sizes))


def _item(array: LaneArray, at: dict[int, int]) -> Value:
    return array.items[tuple(at[d] for d in array.small)]
