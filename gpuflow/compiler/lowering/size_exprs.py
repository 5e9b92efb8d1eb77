"""Size expressions: symbolic sizes, strides and offsets, each with its value for one program.

The key of a program omits its sizes. A kernel that is compiled for some sizes may serve others if
no decision depended on them. So expressions are compared by their symbolic source, and the few
queries of values must go through ``SizeQueries``, which records the answers as a guard. The source
of an expression in an argument block defines the argument for other programs of the key.

One ``SizeExprs`` and one ``SizeQueries`` belong to one lowering of one program, in one thread.

Tests: tests/compiler/test_size_exprs.py, tests/compiler/test_new_sizes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from gpuflow.compiler.fusion.space import FusionProgram
from gpuflow.compiler.lowering.size_table import (
    MAX_EXACT,
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
    """A size expression with its value in one program; ``SizeExprs`` interns them by source.

    It is equal only to itself: 12 is not 3 * 4, because other sizes could differ. It has no truth
    value and no order, and is not an int, so that no decision can depend on its value by mistake.
    Use ``SizeQueries`` for those that must.

    Args:
        value: the value in this program.
        source: the symbolic expression, see ``size_table.Source``.
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
    """Queries of values while a program is lowered, with their answers: the future guard.

    Attributes:
        short: for each expression its value if that is short enough for a kernel's text, else None.
        in_text: values of other expressions that are in a kernel's text.
        equal: for each pair whether the values are equal.
    """

    def __init__(self) -> None:
        self.short: dict[SizeExpr, int | None] = {}
        self.in_text: dict[SizeExpr, int] = {}
        self.equal: dict[tuple[SizeExpr, SizeExpr], bool] = {}

    def value_if_short(self, expr: SizeExpr) -> int | None:
        """The value of an expression if it may be in a kernel's text (MAX_EXACT), else None."""
        value = expr.value if expr.value <= MAX_EXACT else None
        if not _is_constant(expr):
            self.short[expr] = value
        return value

    def value_in_text(self, expr: SizeExpr) -> int:
        """The value of an expression that is written in a kernel's text."""
        if not _is_constant(expr):
            self.in_text[expr] = expr.value
        return expr.value

    def are_equal(self, a: SizeExpr, b: SizeExpr) -> bool:
        """Whether two expressions have equal values."""
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
            tuple([(ordinal(expr), value) for expr, value in self.in_text.items()]),
            tuple([(ordinal(a), ordinal(b), answer) for (a, b), answer in self.equal.items()]),
        )


def may_be_equal_products(a: SizeExpr, b: SizeExpr) -> bool:
    """Whether values of different products may be equal: their constant factors differ.

    Both must be products of sizes; they are if they are strides, sizes or constants.
    For example, a stride of one row of 12 elements equals 3 times a size of 4; then two loops can
    be collapsed to one.
    """
    return _as_product(a).factor != _as_product(b).factor


class ArrayLayout(NamedTuple):
    """Layout of a variable in memory: a ``View`` whose offset and strides are size expressions.

    Attributes:
        buffer: the variable that owns the memory.
        offset: offset of the first element, in elements.
        strides: stride of each dimension, in elements.
        broadcast: for each dimension whether elements repeat along it.
    """

    buffer: Var
    offset: SizeExpr
    strides: tuple[SizeExpr, ...]
    broadcast: tuple[bool, ...]


class SizeExprs:
    """Factory of the size expressions of a program; makes one object for each source.

    Args:
        program: the program to lower.
        erased: its sizes.
    """

    def __init__(self, program: FusionProgram, erased: ErasedSizes) -> None:
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
        """A constant: an integer that is equal in all programs of the key."""
        return self._expr(value, ("constant", value))

    def size(self, size: int) -> SizeExpr:
        """A size of an array of the program, not negative. 0 and 1 are part of the key."""
        if size <= 1:
            return self.constant(size)
        return self._expr(size, ("product", self._symbol_of[size]))

    def product(self, exprs: Sequence[SizeExpr]) -> SizeExpr:
        """The product of sizes, strides and constants; the order of factors does not matter.

        The factors must not be offsets, literals or declared numbers.
        """
        factor, symbols = 1, []
        for expr in exprs:
            product = _as_product(expr)
            factor *= product.factor
            symbols += product.symbols
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
        """An offset in elements, converted to bytes; ``offset`` is a constant or that of a view."""
        kind, *source_args = offset.source
        value = offset.value * itemsize
        if kind == "constant":
            return self.constant(value)
        position = source_args[0]
        return self._expr(value, ("offset", position, itemsize))

    def declared_numbers(self, position: int) -> tuple[SizeExpr, ...]:
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
        """The bits of a literal, or of a component of a complex one, as an argument slot.

        Args:
            position: position of the equation.
            operand: index of the operand that is the literal.
            dtype: storage dtype of the slot; of the component, if the literal is complex.
            value: the literal, or its component; a scalar.
            component: 0 for the real, 1 for the imaginary component; None if it is not complex.
        """
        jaxpr = self.program.jaxpr
        index = jaxpr.memo("literal slots", lambda: _literal_indices(jaxpr))[position][operand]
        kind = ("literal", index, dtype) if component is None else ("part", index, dtype, component)
        return self._expr(scalar_to_slot(dtype, value), kind)

    def layout(self, var: Var) -> ArrayLayout:
        """The layout of a variable; row-major in its own buffer unless it is an alias."""
        cached = self._layouts.get(var)
        if cached is None:
            shape = var.aval.shape
            cached = ArrayLayout(var, self.zero, self.strides(shape), (False,) * len(shape))
            self._layouts[var] = cached
        return cached

    def view_strides(
        self, eqn: Eqn, operand_strides: Sequence[SizeExpr], view: View
    ) -> list[SizeExpr]:
        """The strides of a layout op's output as a view of its operand.

        Args:
            eqn: the equation of the layout op.
            operand_strides: the strides of its operand.
            view: the view; only its broadcast dimensions are used.
        """
        lowering, avals = eqn.primitive.lower, (eqn.inputs[0].aval, eqn.outputs[0].aval)
        if lowering.steps is not None:
            steps = lowering.steps(*avals, **eqn.params)
            return [
                self.product([stride, self.constant(step)])
                for stride, step in zip(operand_strides, steps, strict=True)
            ]
        strides = list(self.strides(avals[1].shape))
        for d, repeats in enumerate(view.broadcast):
            if repeats:
                strides[d] = self.zero
        for operand_dim, dim in lowering.links(*avals, **eqn.params) or ():
            strides[dim] = operand_strides[operand_dim]
        return strides

    def _alias(self, var: Var) -> ArrayLayout:
        """The layout of an alias; checks that its values agree with ``FusionProgram.views``."""
        position = self.program.producer[var]
        eqn = self.program.jaxpr.eqns[position]
        index, update = eqn.outputs.index(var), self.program.updates.get(position)
        if update is not None:
            (index,) = [operand for operand, out in update.pairs if out == index]
        operand = eqn.inputs[index]
        assert type(operand) is Var  # or it would be no alias
        operand_layout, lowering = self.layout(operand), eqn.primitive.lower
        if lowering.view is None:
            return operand_layout
        view, offset = self.program.views[var].layout, operand_layout.offset
        strides = self.view_strides(eqn, operand_layout.strides, view)
        if lowering.steps is not None:
            offset = self._expr(view.offset, ("offset", position, 1))
        values = [expr.value for expr in (*strides, offset)]
        assert values == [*view.strides, view.offset], f"[lower] {eqn} has the layout {view}"
        return ArrayLayout(operand_layout.buffer, offset, tuple(strides), view.broadcast)


def _literal_indices(jaxpr: Jaxpr) -> list[dict[int, int]]:
    """For each equation the index of each literal operand in ``ErasedSizes.literals``.

    Copies of an equation share the indices of the first one, so that a kernel with several copies
    passes and computes it once. ``erase_sizes`` counts literals in the same way.
    """
    first: dict[int, int] = {}
    count = 0
    indices = []
    for eqn in jaxpr.eqns:
        by_operand = {}
        for operand, atom in enumerate(eqn.inputs):
            if type(atom) is Literal:
                by_operand[operand] = first.setdefault(id(atom), count)
                count += 1
        indices.append(by_operand)
    return indices


class _Product(NamedTuple):
    """A product of sizes: a constant factor, and the symbols of the sizes."""

    factor: int
    symbols: Sequence[int]


def _as_product(expr: SizeExpr) -> _Product:
    """A size, stride or constant as a product of sizes."""
    kind, *source_args = expr.source
    if kind == "product":
        return _Product(1, source_args)
    assert kind in ("constant", "multiple"), f"[lower] {expr} is not a product of sizes"
    return _Product(source_args[0], source_args[1:])


def _is_constant(expr: SizeExpr) -> bool:
    return expr.source[0] == "constant"
