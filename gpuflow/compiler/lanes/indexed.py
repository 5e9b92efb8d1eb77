"""Context of indexed ops in a program of one batch element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuflow.compiler.lanes.arrays import SMALL, Array, Element, LaneArray, NotLanesError
from gpuflow.compiler.lanes.folding import zero
from gpuflow.core import views
from gpuflow.core.aval import storage_name
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.lowering import Indexed
from gpuflow.kir.nodes import Value

if TYPE_CHECKING:
    from gpuflow.compiler.lanes.evaluate import Evaluator


class IndexContext:
    """Context of the body of an ``Indexed`` op, see compiler/lowering/emit.py."""

    def __init__(
        self, evaluator: Evaluator, eqn: Eqn, rule: Indexed, operands: Sequence[Array],
        kinds: Sequence[int], place: tuple[int, ...],
    ) -> None:  # fmt: skip
        self._of, self._eqn, self._rule, self._operands = evaluator, eqn, rule, operands
        self._kinds = tuple(kinds)
        rest = iter(place)
        self._place = [next(rest) if kind == SMALL else None for kind in kinds]
        self.builder = evaluator.builder

    def index(self, dim: int) -> Value:
        """The output's index along a dimension, as int64."""
        kind, place = self._kinds[dim], self._place[dim]
        if place is None:
            return self._of.lane_index(kind)
        return self.builder.const("int64", place)

    def linear_index(self, first_dim: int = 0) -> Value:
        """The row-major index over output dimensions ``first_dim`` and later."""
        shape = self._eqn.outputs[0].aval.shape
        if any(kind >= 0 for kind in self._kinds[first_dim:]):
            raise NotLanesError("it counts over lanes")
        strides = views.contiguous(shape[first_dim:]).strides
        places = zip(self._place[first_dim:], strides, strict=True)
        return self.builder.const("int64", sum((p or 0) * s for p, s in places))

    def number(self, k: int) -> Value:
        """The k-th of the numbers that the op declares."""
        assert self._rule.numbers is not None
        avals = [atom.aval for atom in self._eqn.inputs]
        numbers = self._rule.numbers([*avals], self._eqn.params)
        return self.builder.const("int64", int(numbers[k]))

    def border(self, dim: int, k: int) -> Value:
        """The same."""
        del dim
        return self.number(k)

    def load(
        self, operand: int, indices: Sequence[Value], where: Value | None = None
    ) -> Element:
        """The operand's element at ``indices``; zero where ``where`` is false."""
        array = self._operands[operand]
        if not isinstance(array, LaneArray):
            return self._of.load(array, list(indices), where)
        builder, choices = self.builder, []
        for d, (kind, index) in enumerate(zip(array.kinds, indices, strict=True)):
            if kind >= 0:
                if index != self._of.lane_index(kind):
                    raise NotLanesError("it reads what belongs to other lanes")
            elif kind == SMALL:
                known = builder.known(index)
                choices.append((index, [known] if known is not None else range(array.shape[d])))
        known_where = None if where is None else builder.known(where)
        dtype = storage_name(self._eqn.inputs[operand].aval.dtype)
        if known_where == 0 or not array.items.size:
            return zero(builder, dtype)

        def pick(level: int, place: tuple[int, ...]) -> Element:
            if level == len(choices):
                return array.items[place]
            index, candidates = choices[level]
            inside = [k for k in candidates if 0 <= k < array.items.shape[level]]
            if not inside:
                return zero(builder, dtype)
            *others, last = inside
            result = pick(level + 1, (*place, last))
            for k in reversed(others):
                is_it = builder.apply("eq", index, builder.const(index.dtype, k))
                result = builder.select(is_it, pick(level + 1, (*place, k)), result)
            return result

        element = pick(0, ())
        if where is None or known_where:
            return element
        return builder.select(where, element, zero(builder, dtype))

    def element(self, operand: int, dims: Sequence[int]) -> Element:
        """The operand's element at the output's index; its dimension k is output ``dims[k]``."""
        return self.load(operand, [self.index(d) for d in dims])


class CounterContext(IndexContext):
    """The same at any indices, of an op without operands."""

    def __init__(
        self, evaluator: Evaluator, eqn: Eqn, rule: Indexed, indices: Sequence[Value]
    ) -> None:
        super().__init__(evaluator, eqn, rule, (), (SMALL,) * len(indices), (0,) * len(indices))
        self._indices = indices

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
