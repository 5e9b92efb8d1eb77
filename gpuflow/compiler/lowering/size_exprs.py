"""Size expressions: sizes, strides and offsets as lowering sees them, values with their sources.

A program's key omits its sizes. A kernel that is compiled for one set of sizes can be used for
another if no decision depended on them. So two expressions are equal if their sources are, and the
few queries of values go to ``SizeQueries``, which records the answers as a guard. For an expression
in a kernel's argument block, its source defines the argument in another program of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from gpuflow.compiler.fusion.space import Program
from gpuflow.compiler.lowering.size_table import (
    LONGEST_EXACT,
    ErasedSizes,
    Guard,
    SizeTable,
    Source,
    declared_numbers,
)
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var
from gpuflow.core.views import View
from gpuflow.kir.interpret import scalar_to_slot


class SizeExpr:
    """A size expression of one program; ``SizeExprs`` makes one object for each source.

    It is equal only to itself, so that 12 is not 3 * 4, whatever the sizes. It has no truth value
    and no order, and is not an int: lowering queries ``SizeQueries`` for decisions that depend on a
    value.
    """

    __slots__ = ("source", "value")

    def __init__(self, value: int, source: Source) -> None:
        self.value, self.source = value, source

    def __bool__(self) -> bool:
        raise TypeError(f"[lower] nothing may depend on whether a number is 0; got {self}.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SizeExpr):
            raise TypeError(f"[lower] a number can be compared with numbers only; got {other}.")
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"SizeExpr({self.value}, {self.source})"


class SizeQueries:
    """Queries of values by the lowering of a program, with the answers.

    Attributes:
        short: of each expression, its value if it may be in the text, or None: it is longer.
        written: the values of further expressions that are in the text.
        equal: of pairs, whether they are equal.
    """

    def __init__(self) -> None:
        self.short: dict[SizeExpr, int | None] = {}
        self.written: dict[SizeExpr, int] = {}
        self.equal: dict[tuple[SizeExpr, SizeExpr], bool] = {}

    def if_short(self, expr: SizeExpr) -> int | None:
        """The value of an expression if it is short enough to be in the text, else None."""
        value = expr.value if expr.value <= LONGEST_EXACT else None
        if not _is_constant(expr):
            self.short[expr] = value
        return value

    def write(self, expr: SizeExpr) -> int:
        """The value of an expression, for the text."""
        if not _is_constant(expr):
            self.written[expr] = expr.value
        return expr.value

    def are_equal(self, a: SizeExpr, b: SizeExpr) -> bool:
        """Whether two expressions are equal."""
        answer = a.value == b.value
        if a is not b and not (_is_constant(a) and _is_constant(b)):
            self.equal[a, b] = answer
        return answer

    def guard(self, table: SizeTable) -> Guard:
        """The condition that all queries have these answers."""

        def ordinal(expr: SizeExpr) -> int:
            return table.ordinal(expr.source)

        return Guard(
            tuple([(ordinal(expr), value) for expr, value in self.short.items()]),
            tuple([(ordinal(expr), value) for expr, value in self.written.items()]),
            tuple([(ordinal(a), ordinal(b), answer) for (a, b), answer in self.equal.items()]),
        )


def may_be_equal(a: SizeExpr, b: SizeExpr) -> bool:
    """Whether the values of different expressions may be equal: they have different factors.

    Rows of 12 have the same stride as every third element of four, and then there is one loop.
    """
    return _factors(a)[0] != _factors(b)[0]


class ArrayLayout(NamedTuple):
    """Layout of the elements of a variable: a ``View`` as size expressions.

    Attributes:
        buffer: the variable whose memory it is.
        offset: of the first element, in elements.
        strides: in elements.
        broadcast: the dimensions along which elements repeat.
    """

    buffer: Var
    offset: SizeExpr
    strides: tuple[SizeExpr, ...]
    broadcast: tuple[bool, ...]


class SizeExprs:
    """The size expressions of a program, each once.

    Args:
        program: the program to lower.
        erased: its sizes.
    """

    def __init__(self, program: Program, erased: ErasedSizes) -> None:
        self.program, self._sizes = program, erased.sizes
        self._symbol_of = {size: k for k, size in enumerate(erased.sizes)}
        self._exprs: dict[Source, SizeExpr] = {}
        self._strides: dict[tuple[int, ...], tuple[SizeExpr, ...]] = {}
        self._declared: dict[int, tuple[SizeExpr, ...]] = {}
        self.zero, self.one = self.constant(0), self.constant(1)
        self._layouts: dict[Var, ArrayLayout] = {}
        for var in program.views:  # an alias comes after its operand
            self._layouts[var] = self._alias(var)

    def _expr(self, value: int, source: Source) -> SizeExpr:
        expr = self._exprs.get(source)
        if expr is None:
            expr = self._exprs[source] = SizeExpr(value, source)
        return expr

    def constant(self, value: int) -> SizeExpr:
        """An expression that follows from the key."""
        return self._expr(value, ("constant", value))

    def size(self, size: int) -> SizeExpr:
        """A size of an array of the program. 0 and 1 are part of the key."""
        if size <= 1:
            return self.constant(size)
        return self._expr(size, ("product", self._symbol_of[size]))

    def product(self, exprs: Sequence[SizeExpr]) -> SizeExpr:
        """The product of sizes, strides and constants: equal ones have equal factors."""
        factor, symbols = 1, []
        for expr in exprs:
            constant, factors = _factors(expr)
            factor *= constant
            symbols += factors
        if not symbols or not factor:
            return self.constant(factor)
        symbols.sort()
        value = factor * prod([self._sizes[k] for k in symbols])
        source = ("product", *symbols) if factor == 1 else ("multiple", factor, *symbols)
        return self._expr(value, source)

    def strides(self, shape: Sequence[int]) -> tuple[SizeExpr, ...]:
        """The strides of a row-major array, in elements; sizes of 0 count as 1."""
        shape = tuple(shape)
        cached = self._strides.get(shape)
        if cached is None:
            sizes = [self.size(max(size, 1)) for size in shape]
            cached = tuple([self.product(sizes[d + 1 :]) for d in range(len(shape))])
            self._strides[shape] = cached
        return cached

    def bytes(self, offset: SizeExpr, itemsize: int) -> SizeExpr:
        """An offset in bytes."""
        kind, *rest = offset.source
        value = offset.value * itemsize
        if kind == "constant":
            return self.constant(value)
        return self._expr(value, ("offset", rest[0], itemsize))

    def declared(self, position: int) -> tuple[SizeExpr, ...]:
        """The numbers that an ``Indexed`` op passes to its kernel."""
        cached = self._declared.get(position)
        if cached is None:
            values = declared_numbers(self.program.jaxpr.eqns[position])
            cached = tuple(
                [self._expr(value, ("number", position, k)) for k, value in enumerate(values)]
            )
            self._declared[position] = cached
        return cached

    def literal(
        self, position: int, operand: int, dtype: str, value: Any, component: int | None = None
    ) -> SizeExpr:
        """The argument slot of a literal, or of a component of a complex one."""
        jaxpr = self.program.jaxpr
        slot = jaxpr.memo("literal slots", lambda: _literal_slots(jaxpr))[position][operand]
        kind = ("literal", slot, dtype) if component is None else ("part", slot, dtype, component)
        return self._expr(scalar_to_slot(dtype, value), kind)

    def layout(self, var: Var) -> ArrayLayout:
        """The layout of a variable."""
        cached = self._layouts.get(var)
        if cached is None:
            shape = var.aval.shape
            cached = ArrayLayout(var, self.zero, self.strides(shape), (False,) * len(shape))
            self._layouts[var] = cached
        return cached

    def view_strides(
        self, eqn: Eqn, operand_strides: Sequence[SizeExpr], view: View
    ) -> list[SizeExpr]:
        """The strides of the view that a layout op is.

        Args:
            eqn: the op.
            operand_strides: the strides of its operand.
            view: its broadcast dimensions are needed.
        """
        rule, avals = eqn.primitive.lower, (eqn.inputs[0].aval, eqn.outputs[0].aval)
        if rule.steps is not None:
            steps = rule.steps(*avals, **eqn.params)
            return [
                self.product([stride, self.constant(step)])
                for stride, step in zip(operand_strides, steps, strict=True)
            ]
        strides = list(self.strides(avals[1].shape))
        for d, repeats in enumerate(view.broadcast):
            if repeats:
                strides[d] = self.zero
        for operand_dim, dim in rule.links(*avals, **eqn.params) or ():
            strides[dim] = operand_strides[operand_dim]
        return strides

    def _alias(self, var: Var) -> ArrayLayout:
        position = self.program.producer[var]
        eqn = self.program.jaxpr.eqns[position]
        index, update = eqn.outputs.index(var), self.program.updates.get(position)
        if update is not None:
            (index,) = [operand for operand, out in update.pairs if out == index]
        operand = eqn.inputs[index]
        assert type(operand) is Var  # or it would be no alias
        operand_layout, rule = self.layout(operand), eqn.primitive.lower
        if rule.view is None:
            return operand_layout
        view, offset = self.program.views[var][1], operand_layout.offset
        strides = self.view_strides(eqn, operand_layout.strides, view)
        if rule.steps is not None:
            offset = self._expr(view.offset, ("offset", position, 1))
        values = [expr.value for expr in (*strides, offset)]
        assert values == [*view.strides, view.offset], f"[lower] {eqn} has the layout {view}"
        return ArrayLayout(operand_layout.buffer, offset, tuple(strides), view.broadcast)


def _literal_slots(jaxpr: Jaxpr) -> list[dict[int, int]]:
    """For each equation the slots of its literals by operand.

    Copies of an equation share the slots of the first one, so that a kernel of several copies
    computes one expression.
    """
    first: dict[int, int] = {}
    count = 0
    slots = []
    for eqn in jaxpr.eqns:
        by_operand = {}
        for operand, atom in enumerate(eqn.inputs):
            if type(atom) is Literal:
                by_operand[operand] = first.setdefault(id(atom), count)
                count += 1
        slots.append(by_operand)
    return slots


def _factors(expr: SizeExpr) -> tuple[int, Sequence[int]]:
    """The constant factor and the symbols of a product of sizes."""
    kind, *rest = expr.source
    if kind == "product":
        return 1, rest
    assert kind in ("constant", "multiple"), f"[lower] {expr} is not a product of sizes"
    return rest[0], rest[1:]


def _is_constant(expr: SizeExpr) -> bool:
    return expr.source[0] == "constant"
