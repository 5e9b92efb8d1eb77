"""The equations of a program, emitted for one lane element by element, by their lowering class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as places
from math import prod
from typing import TYPE_CHECKING

import numpy as np

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
    mapped,
    object_array,
    viewed,
)
from gpuflow.compiler.lanes.folding import FoldingBuilder, storage_of
from gpuflow.compiler.lanes.indexed import CounterContext, IndexContext
from gpuflow.core import views
from gpuflow.core.aval import storage_dtype, storage_name
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.lowering import (
    Elementwise,
    Indexed,
    Layout,
    Reduction,
    TupleReduction,
    block_of,
)
from gpuflow.core.views import View
from gpuflow.kir.builder import Pair
from gpuflow.kir.nodes import Value
from gpuflow.kir.scalar import PARTS, compute_dtype

if TYPE_CHECKING:
    from gpuflow.compiler.lanes.evaluate import Evaluator


def elementwise(
    of: Evaluator, eqn: Eqn, rule: Elementwise, arrays: Sequence[LaneArray]
) -> list[LaneArray]:
    """One element from the operands' elements."""
    out = eqn.outputs[0].aval
    emit = _emitting(of, eqn, rule)
    kinds, expanded = mapped(arrays, out.shape)
    sizes = tuple(n for n, kind in zip(out.shape, kinds, strict=True) if kind == SMALL)
    check_small(sizes)
    results: list[list[Element]] = [[] for _ in eqn.outputs]
    for index in np.ndindex(*sizes):
        for result, part in zip(results, emit([items[index] for items in expanded]), strict=True):
            result.append(part)
    return [LaneArray(out.shape, kinds, object_array(result, sizes)) for result in results]


def _emitting(
    of: Evaluator, eqn: Eqn, rule: Elementwise
) -> Callable[[Sequence[Element]], list[Element]]:
    """A function that emits one element of each output from those of the operands."""
    ins, out = [atom.aval for atom in eqn.inputs], eqn.outputs[0].aval
    if rule.holds is not None and not rule.holds(*ins, out):
        raise NotLanesError(f"kernels do not hold {eqn.primitive.name} of these")
    complex_ = any(is_complex(atom.aval.dtype) for atom in (*eqn.inputs, *eqn.outputs))
    body = rule.pair if complex_ else rule.body
    if body is None:
        raise NotLanesError(f"kernels do not hold {eqn.primitive.name} of complex numbers")

    def emit(values: Sequence[Element]) -> list[Element]:
        if isinstance(body, str):
            emitted = of.builder.apply(body, *values)
        else:
            emitted = body(of.builder, values, ins, out, eqn.params)
        parts = (emitted,) if isinstance(emitted, Element) else emitted
        return [of.rounded(part, var) for part, var in zip(parts, eqn.outputs, strict=True)]

    return emit


def computed(
    of: Evaluator, eqn: Eqn, rule: Elementwise, operands: Sequence[Array]
) -> ComputedArray:
    """The same of arrays whose elements are computed when they are wanted, and of numbers."""
    emit = _emitting(of, eqn, rule)

    def element(indices: Sequence[Value]) -> Element:
        return emit([
            of.load(operand, indices if operand.shape else ())
            if isinstance(operand, ComputedArray)
            else of.values_of(operand).flat()[0]
            for operand in operands
        ])[0]  # fmt: skip

    return ComputedArray(eqn.outputs[0].aval.shape, element)


def layout(of: Evaluator, eqn: Eqn, rule: Layout, array: Array) -> Array:
    """A rearrangement; values that are not computed yet are read at their new position."""
    out = eqn.outputs[0].aval
    view = rule.view(views.contiguous(array.shape), out, **eqn.params)
    if view is None:
        raise NotLanesError(f"{eqn.primitive.name} copies")
    if not isinstance(array, LaneArray) and all(kind == SMALL for kind in array.kinds):
        places = _places(array.shape, view)
        if places is not None:
            return _read_elsewhere(of, array, view.shape, *places)
    return viewed(of.values_of(array), out.shape, view)


def _places(shape: Sequence[int], view: View) -> tuple[list[int], list[tuple[int, int]]] | None:
    """Where an array's view begins, and for each of its dimensions that of the array and the step.

    None: a dimension of the view goes along several of the array.
    """
    if 0 in shape or 0 in view.shape:
        return None
    strides = views.contiguous(shape).strides
    first, rest = [], view.offset
    for stride in strides:
        first.append(rest // stride)
        rest %= stride
    low, high, steps = [*first], [*first], []
    for size, stride in zip(view.shape, view.strides, strict=True):
        dims = [d for d, of_dim in enumerate(strides) if shape[d] > 1 and of_dim <= abs(stride)]
        if not dims or size == 1:
            if size > 1 and stride:
                return None
            steps.append((0, 0))
            continue
        step, left = divmod(stride, strides[dims[0]])
        if left:
            return None
        steps.append((dims[0], step))
        end = low if step < 0 else high
        end[dims[0]] += step * (size - 1)
    inside = all(a >= 0 and b < n for a, b, n in zip(low, high, shape, strict=True))
    return (first, steps) if inside else None


def _read_elsewhere(
    of: Evaluator, array: MemoryArray | ComputedArray, shape: tuple[int, ...],
    first: Sequence[int], steps: Sequence[tuple[int, int]],
) -> ComputedArray:  # fmt: skip
    builder = of.builder

    def element(indices: Sequence[Value]) -> Element:
        there = [builder.const("int64", place) for place in first]
        for index, (dim, step) in zip(indices, steps, strict=True):
            if step:
                moved = builder.apply("mul", index, builder.const("int64", step))
                there[dim] = builder.apply("add", there[dim], moved)
        return of.load(array, there)

    return ComputedArray(shape, element)


def reduced(array: LaneArray, axes: Sequence[int]) -> tuple[LaneArray, np.ndarray]:
    """The shape of a reduction, with items (kept..., reduced)."""
    for d in axes:
        if array.kinds[d] >= 0:
            raise NotLanesError("it reduces over lanes")
    kinds = tuple(
        SMALL if d in axes else kind for d, kind in enumerate(array.kinds)
    )
    sizes = [n for n, kind in zip(array.shape, kinds, strict=True) if kind == SMALL]
    check_small(sizes)
    index = tuple(
        slice(None) if array.kinds[d] == SMALL else None
        for d, kind in enumerate(kinds) if kind == SMALL
    )
    items = np.broadcast_to(array.items[index], sizes)
    small = [d for d, kind in enumerate(kinds) if kind == SMALL]
    kept = [k for k, d in enumerate(small) if d not in axes]
    gone = [k for k, d in enumerate(small) if d in axes]
    count = prod(sizes[k] for k in gone)
    items = items.transpose((*kept, *gone)).reshape((*[sizes[k] for k in kept], count))
    dims = [d for d in range(len(array.shape)) if d not in axes]
    shape = tuple(array.shape[d] for d in dims)
    like = LaneArray(shape, tuple(kinds[d] for d in dims), items[..., :0])
    return like, items


def reduction(of: Evaluator, eqn: Eqn, rule: Reduction, array: LaneArray) -> LaneArray:
    """A reduction over small dimensions, in order."""
    like, items = reduced(array, tuple(eqn.params["axes"]))
    dtype = eqn.inputs[0].aval.dtype
    storage = storage_of(eqn.inputs[0].aval)
    start = of.builder.const(compute_dtype(storage), rule.init(storage_dtype(dtype)))
    if storage in PARTS and not rule.by_parts:
        raise NotLanesError(f"kernels do not hold {eqn.primitive.name} of complex numbers")

    def total(elements: Sequence[Element]) -> Element:
        if storage in PARTS:
            parts = zip(*[(e.real, e.imag) for e in elements], strict=True)
            sums = [fold(of.builder, rule.combine, start, part) for part in parts]
            return Pair(*sums) if sums else Pair(start, start)
        return fold(of.builder, rule.combine, start, elements)

    sizes, out = items.shape[:-1], eqn.outputs[0]
    elements = [of.rounded(total(list(items[i])), out) for i in np.ndindex(*sizes)]
    return LaneArray(like.shape, like.kinds, object_array(elements, sizes))


def tuple_reduction(
    of: Evaluator, eqn: Eqn, rule: TupleReduction, array: LaneArray
) -> LaneArray:
    """A reduction of several values."""
    like, items = reduced(array, tuple(eqn.params["axes"]))
    builder, in_aval, out = of.builder, eqn.inputs[0].aval, eqn.outputs[0].aval
    elements = []
    for index in np.ndindex(*items.shape[:-1]):
        running = list(rule.init(builder, in_aval, eqn.params))
        for place, element in enumerate(items[index]):
            new = rule.element(builder, element, builder.const("int64", place), eqn.params)
            running = list(rule.combine(builder, *running, *new))
        elements.append(of.rounded(rule.result(builder, running, out), eqn.outputs[0]))
    return LaneArray(like.shape, like.kinds, object_array(elements, items.shape[:-1]))


def product(of: Evaluator, eqn: Eqn, arrays: Sequence[LaneArray]) -> LaneArray:
    """A product of small matrices, in the order of its sums."""
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
        *[(d, None) for d in rows], *[(None, d) for d in columns],
    ]  # fmt: skip
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
    start = of.builder.const(dtype, 0)
    elements = []
    for index in places(*map(range, sizes)):
        rest, place = iter(index), []
        for kind in kinds:
            place.append(next(rest) if kind == SMALL else 0)
        total: Value | None = None
        for deep in places(*map(range, depths)):
            at_left, at_right = dict(zip(depth, deep, strict=True)), dict(
                zip(right_depth, deep, strict=True)
            )
            for (a, b), i in zip(sources, place, strict=True):
                if a is not None:
                    at_left[a] = i
                if b is not None:
                    at_right[b] = i
            x = of.builder.cast(_item(left, at_left), dtype)
            y = of.builder.cast(_item(right, at_right), dtype)
            term = of.builder.apply("mul", x, y)
            total = term if total is None else of.builder.apply("add", total, term)
        elements.append(of.rounded(start if total is None else total, eqn.outputs[0]))
    return LaneArray(out.shape, tuple(kinds), object_array(elements, sizes))


def indexed(of: Evaluator, eqn: Eqn, rule: Indexed, operands: Sequence[Array]) -> list[LaneArray]:
    """An op that chooses elements for itself."""
    out, avals = eqn.outputs[0].aval, [atom.aval for atom in eqn.inputs]
    if any(is_complex(a.aval.dtype) for a in (*eqn.inputs, *eqn.outputs)) and not rule.moves:
        raise NotLanesError(f"kernels do not hold {eqn.primitive.name} of complex numbers")
    kinds = _indexed_kinds(eqn, rule, operands)
    sizes = tuple(n for n, kind in zip(out.shape, kinds, strict=True) if kind == SMALL)
    check_small(sizes)
    results: list[list[Element]] = [[] for _ in eqn.outputs]
    for index in np.ndindex(*sizes):
        context = IndexContext(of, eqn, rule, operands, kinds, index)
        emitted = rule.body(context, avals, out, eqn.params)
        parts = (emitted,) if isinstance(emitted, Element) else emitted
        for result, var, part in zip(results, eqn.outputs, parts, strict=True):
            result.append(of.rounded(part, var))
    return [LaneArray(out.shape, kinds, object_array(result, sizes)) for result in results]


def counted(of: Evaluator, eqn: Eqn, rule: Indexed) -> ComputedArray:
    """Handler of such an op without operands: its elements are computed on demand."""
    out = eqn.outputs[0]

    def element(indices: Sequence[Value]) -> Element:
        context = CounterContext(of, eqn, rule, indices)
        emitted = rule.body(context, [], out.aval, eqn.params)
        (part,) = (emitted,) if isinstance(emitted, Element) else emitted
        return of.rounded(part, out)

    return ComputedArray(out.aval.shape, element)


def _indexed_kinds(
    eqn: Eqn, rule: Indexed, operands: Sequence[Array]
) -> tuple[int, ...]:
    """The kinds of an output's dimensions: those along which operands are lanes are, too."""
    out, avals = eqn.outputs[0].aval, [atom.aval for atom in eqn.inputs]
    links = None
    if rule.apart is not None:
        links = rule.apart(avals, out, eqn.params)
    if links is None:
        in_memory = len(operands) if rule.in_memory is None else rule.in_memory
        links = [
            [] if k < in_memory else [(d, d) for d in range(aval.ndim)]
            for k, aval in enumerate(avals)
        ]
    kinds = [SMALL] * out.ndim
    for array, pairs in zip(operands, links, strict=False):
        for d, axis in pairs:
            if axis < out.ndim and array.kinds[d] >= 0:
                if kinds[axis] not in (SMALL, array.kinds[d]):
                    raise NotLanesError("it mixes lanes")
                kinds[axis] = array.kinds[d]
    return tuple(kinds)


def fold(builder: FoldingBuilder, fn: str, start: Value, elements: Sequence[Value]) -> Value:
    """The elements combined from the first to the last."""
    if not elements:
        return start
    total = elements[0]
    for element in elements[1:]:
        total = builder.apply(fn, total, element)
    return total


def _item(array: LaneArray, at: dict[int, int]) -> Value:
    return array.items[tuple(at[d] for d in array.small)]
