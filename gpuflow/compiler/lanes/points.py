"""Pointwise ops and small reductions in a lane program, unrolled over their small dimensions.

The op's ``emit`` rule emits each point of an equation's iteration, as in kernels of groups. Batch
dimensions have the index of the lane.

Tests: tests/compiler/test_lanes.py, tests/compiler/test_lane_scatters.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuflow.compiler.lanes.arrays import (
    REPEATED,
    SMALL,
    Array,
    ComputedArray,
    LaneArray,
    NotLanesError,
    check_small,
    common_kind,
    is_computed,
    object_array,
)
from gpuflow.compiler.lanes.context import LaneContext
from gpuflow.compiler.lanes.folding import zero_element
from gpuflow.core import views
from gpuflow.core.aval import storage_name
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.lowering import Element, Iteration, has_complex
from gpuflow.kir.nodes import Value

AxisKinds = tuple[int, ...]
SmallIndex = dict[int, int]  # index along each small dimension of an iteration


def emit_pointwise(context: LaneContext, eqn: Eqn, operands: Sequence[Array]) -> list[Array]:
    """The outputs of an equation; functions of arrays computed on demand are so, too."""
    rule = eqn.primitive.lower
    is_on_demand = not operands or (rule.is_elementwise and is_computed(operands))
    if is_on_demand and len(eqn.outputs) == 1:
        return [computed_array(context, eqn, operands)]
    _check_fusible(eqn)
    # Indexed ops load the elements that they need, so their operands are not loaded here.
    arrays = operands if rule.is_indexed else [context.values_of(operand) for operand in operands]
    iteration = rule.iteration(eqn)
    kinds = (_kinds_by_index if rule.is_indexed else _iteration_kinds)(eqn, arrays, iteration)
    small_dims = [d for d in iteration.out if kinds[d] == SMALL]
    reduced = [d for d in range(len(kinds)) if d in iteration.reduced]
    sizes = [iteration.sizes[d] for d in small_dims]
    reduced_sizes = [iteration.sizes[d] for d in reduced]
    check_small([*sizes, *reduced_sizes])
    results: list[list[Element]] = [[] for _ in eqn.outputs]
    for index in np.ndindex(*sizes):
        small_index = dict(zip(small_dims, index, strict=True))
        if rule.is_reduction:
            points = [
                LanePoint(
                    context,
                    eqn,
                    arrays,
                    iteration,
                    kinds,
                    {**small_index, **dict(zip(reduced, reduced_point))},
                )
                for reduced_point in np.ndindex(*reduced_sizes)
            ]
            elements: Sequence[Element] = [_fold_sequentially(context, eqn, points)]
        else:
            elements = _elements(
                LanePoint(context, eqn, arrays, iteration, kinds, small_index), eqn
            )
        for result, element, var in zip(results, elements, eqn.outputs, strict=True):
            result.append(context.rounded(element, var))
    shape, out_kinds = eqn.outputs[0].aval.shape, tuple(kinds[d] for d in iteration.out)
    return [LaneArray(shape, out_kinds, object_array(result, sizes)) for result in results]


def computed_array(context: LaneContext, eqn: Eqn, operands: Sequence[Array]) -> ComputedArray:
    """The output of an elementwise equation as an array that is computed on demand.

    Its operands must be arrays of this kind and of its shape, or scalars.
    """
    _check_fusible(eqn)
    iteration = eqn.primitive.lower.iteration(eqn)
    (out,) = eqn.outputs

    def element(indices: Sequence[Value]) -> Element:
        (value,) = _elements(DynamicPoint(context, eqn, operands, iteration, indices), eqn)
        return context.rounded(value, out)

    return ComputedArray(out.aval.shape, element)


def _check_fusible(eqn: Eqn) -> None:
    rule = eqn.primitive.lower
    if rule.is_fusible(eqn):
        return
    is_complex = has_complex(eqn) and not rule.takes_complex(eqn)
    whose = "of complex numbers" if is_complex else "of these"
    raise NotLanesError(f"kernels do not hold {eqn.primitive.name} {whose}")


def _elements(point: LanePoint, eqn: Eqn) -> Sequence[Element]:
    results = eqn.primitive.lower.emit(point, eqn)
    return (results,) if isinstance(results, Element) else results


def _fold_sequentially(context: LaneContext, eqn: Eqn, points: Sequence[LanePoint]) -> Element:
    """A sequential reduction over points, from the first to the last; of none its start value."""
    rule, total = eqn.primitive.lower, None
    for point in points:
        values = rule.values(point, eqn)
        total = values if total is None else rule.combined(context.builder, total, values, eqn)
    if total is None:
        total = rule.starts(context.builder, eqn)
    return rule.folded(context.builder, total, eqn)


def _iteration_kinds(eqn: Eqn, arrays: Sequence[Array], iteration: Iteration) -> AxisKinds:
    """The kind of each iteration dimension: the common kind in all operands."""
    del eqn
    kinds = [REPEATED] * len(iteration.sizes)
    for array, dim_axes in zip(arrays, iteration.reads, strict=True):
        for d, axis in dim_axes:
            if iteration.sizes[axis] != 1 or array.dim_kinds[d] != SMALL:
                kinds[axis] = common_kind(kinds[axis], array.dim_kinds[d])
    for axis, kind in enumerate(kinds):
        if axis in iteration.reduced and kind >= 0:
            raise NotLanesError("it reduces over lanes")
        if kind == REPEATED and (axis in iteration.reduced or iteration.sizes[axis] == 1):
            kinds[axis] = SMALL
    return tuple(kinds)


def _kinds_by_index(eqn: Eqn, arrays: Sequence[Array], iteration: Iteration) -> AxisKinds:
    """``_iteration_kinds`` of an indexed op: batch dimensions of its operands; others are SMALL."""
    rule, out = eqn.primitive.lower, eqn.outputs[0].aval
    links = None
    if rule.partitionable is not None:
        links = rule.partitionable([atom.aval for atom in eqn.inputs], out, eqn.params)
    kinds = [SMALL] * out.ndim
    for array, dim_axes in zip(arrays, iteration.reads if links is None else links, strict=False):
        for d, axis in dim_axes:
            if axis < out.ndim and array.dim_kinds[d] >= 0:
                if kinds[axis] not in (SMALL, array.dim_kinds[d]):
                    raise NotLanesError("it mixes lanes")
                kinds[axis] = array.dim_kinds[d]
    return tuple(kinds)


class LanePoint:
    """The context that an op's ``emit`` rule gets at one point; see ``core.lowering.Context``.

    Args:
        context: the evaluator of the lane program.
        eqn, operands: the equation, and its operands as arrays of the lane.
        iteration, axis_kinds: its iteration dimensions, and their kinds (``lanes/arrays.py``).
        small_index: the index along each SMALL iteration dimension.
    """

    def __init__(
        self,
        context: LaneContext,
        eqn: Eqn,
        operands: Sequence[Array],
        iteration: Iteration,
        axis_kinds: AxisKinds,
        small_index: SmallIndex,
    ) -> None:
        self._context, self._eqn, self._operands = context, eqn, operands
        self._iteration, self._axis_kinds, self._small_index = iteration, axis_kinds, small_index
        self.builder = context.builder

    def operand(self, number: int) -> Element:
        """An operand's element at the point."""
        array = self._context.values_of(self._operands[number])
        axis_of = dict(self._iteration.reads[number])
        index = tuple(self._small_index.get(axis_of.get(d, -1), 0) for d in array.small)
        return array.items[index]

    def index(self, dim: int) -> Value:
        """The output's index along a dimension, as int64."""
        coordinate = self._small_index.get(dim)
        if coordinate is None:
            return self._context.lane_index(self._axis_kinds[dim])
        return self.builder.const("int64", coordinate)

    def reduced_index(self) -> Value:
        """The index along the axis that the equation reduces."""
        (axis,) = self._iteration.reduced
        return self.builder.const("int64", self._small_index[axis])

    def linear_index(self, first_dim: int = 0) -> Value:
        """The row-major index over output dimensions ``first_dim`` and later."""
        shape = self._eqn.outputs[0].aval.shape
        if any(kind >= 0 for kind in self._axis_kinds[first_dim:]):
            raise NotLanesError("it counts over lanes")
        strides = views.contiguous(shape[first_dim:]).strides
        strides_of = enumerate(strides, first_dim)
        return self.builder.const("int64", sum(self._small_index[d] * s for d, s in strides_of))

    def number(self, k: int) -> Value:
        """The k-th size expression that the op declares (``numbers``)."""
        numbers = self._eqn.primitive.lower.numbers
        avals = [atom.aval for atom in self._eqn.inputs]
        return self.builder.const("int64", int(numbers(avals, self._eqn.params)[k]))

    def bound(self, dim: int, k: int) -> Value:
        """``number(k)``, which is always static here."""
        del dim
        return self.number(k)

    def load(self, operand: int, indices: Sequence[Value], where: Value | None = None) -> Element:
        """The operand's element at ``indices``; zero where ``where`` is false.

        An index of a SMALL dimension that is not static becomes a chain of selects over all
        elements; the result is unspecified where it is out of bounds.
        """
        array = self._operands[operand]
        if not isinstance(array, LaneArray):
            return self._context.load(array, list(indices), where)
        builder, candidates_of = self.builder, []
        for d, (kind, index) in enumerate(zip(array.dim_kinds, indices, strict=True)):
            if kind >= 0:
                if index != self._context.lane_index(kind):
                    raise NotLanesError("it reads what belongs to other lanes")
            elif kind == SMALL:
                static = builder.static_value(index)
                candidates_of.append(
                    (index, [static] if static is not None else range(array.shape[d]))
                )
        static_where = None if where is None else builder.static_value(where)
        dtype = storage_name(self._eqn.inputs[operand].aval.dtype)
        if static_where == 0 or not array.items.size:
            return zero_element(builder, dtype)

        def select_element(depth: int, selected: tuple[int, ...]) -> Element:
            if depth == len(candidates_of):
                return array.items[selected]
            index, candidates = candidates_of[depth]
            in_range = [k for k in candidates if 0 <= k < array.items.shape[depth]]
            if not in_range:
                return zero_element(builder, dtype)
            *others, last = in_range
            result = select_element(depth + 1, (*selected, last))
            for k in reversed(others):
                is_index = builder.apply("eq", index, builder.const(index.dtype, k))
                result = builder.select(is_index, select_element(depth + 1, (*selected, k)), result)
            return result

        element = select_element(0, ())
        if where is None or static_where:
            return element
        return builder.select(where, element, zero_element(builder, dtype))

    def element(self, operand: int, dims: Sequence[int]) -> Element:
        """The operand's element at the output's index; its dimension k is output ``dims[k]``."""
        return self.load(operand, [self.index(d) for d in dims])


class DynamicPoint(LanePoint):
    """A point at run-time indices, for arrays that are computed on demand."""

    def __init__(
        self,
        context: LaneContext,
        eqn: Eqn,
        operands: Sequence[Array],
        iteration: Iteration,
        indices: Sequence[Value],
    ) -> None:
        super().__init__(context, eqn, operands, iteration, (SMALL,) * len(indices), {})
        self._indices = indices

    def operand(self, number: int) -> Element:
        array = self._operands[number]
        if isinstance(array, ComputedArray):
            return self._context.load(array, self._indices if array.shape else ())
        return self._context.values_of(array).flat()[0]

    def index(self, dim: int) -> Value:
        return self._indices[dim]

    def linear_index(self, first_dim: int = 0) -> Value:
        strides = views.contiguous(self._eqn.outputs[0].aval.shape[first_dim:]).strides
        builder = self.builder
        total = builder.const("int64", 0)
        for index, stride in zip(self._indices[first_dim:], strides, strict=True):
            term = builder.apply("mul", index, builder.const("int64", stride))
            total = builder.apply("add", total, term)
        return total
