"""Symbols: size expressions, values with their sources, that lowering computes with.

A program's key omits its sizes. A kernel that is compiled for one set of sizes can be used for
another if no decision depended on them, so lowering sees sizes, strides and offsets as ``Number``s
only: two are equal if their sources are, and the few queries of values go to ``Facts``, which
records the answers. For a number in a kernel's argument block, its source defines the argument in
another program of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from gpuflow.compiler.fusion.space import Program
from gpuflow.compiler.lowering.word_sources import Source, Symbols, declared_numbers
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import Layout
from gpuflow.kir.interpret import scalar_to_slot

LONGEST_EXACT = 16  # of the sizes that are written in a kernel's text


class Number:
    """A size expression of one program; ``Numbers`` makes one object for each source.

    It is equal only to itself, so that 12 is not 3 * 4, whatever the sizes. It has no truth value
    and no order, and is not an int: lowering queries ``Facts`` for decisions that depend on a
    value.
    """

    __slots__ = ("source", "value")

    def __init__(self, value: int, source: Source) -> None:
        self.value, self.source = value, source

    def __bool__(self) -> bool:
        raise TypeError(f"[lower] nothing may depend on whether a number is 0; got {self}.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Number):
            raise TypeError(f"[lower] a number can be compared with numbers only; got {other}.")
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Number({self.value}, {self.source})"


class Facts:
    """Facts about sizes that the lowering of a group has queried, with the answers.

    Attributes:
        short: of each expression, its value if it may be in the text, or None: it is longer.
        written: the values of further expressions that are in the text.
        equal: of pairs, whether they are equal.
    """

    def __init__(self) -> None:
        self.short: dict[Number, int | None] = {}
        self.written: dict[Number, int] = {}
        self.equal: dict[tuple[Number, Number], bool] = {}

    def if_short(self, number: Number) -> int | None:
        """The value of an expression if it is short enough to be in the text, else None."""
        value = number.value if number.value <= LONGEST_EXACT else None
        if not _is_constant(number):
            self.short[number] = value
        return value

    def write(self, number: Number) -> int:
        """The value of an expression, for the text."""
        if not _is_constant(number):
            self.written[number] = number.value
        return number.value

    def are_equal(self, a: Number, b: Number) -> bool:
        """Whether two expressions for which ``may_be_equal`` holds are equal."""
        self.equal[a, b] = a.value == b.value
        return self.equal[a, b]


def may_be_equal(a: Number, b: Number) -> bool:
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
    offset: Number
    strides: tuple[Number, ...]
    broadcast: tuple[bool, ...]


class Numbers:
    """The size expressions of a program, each once.

    Args:
        program: the program to lower.
        symbols: its sizes.
    """

    def __init__(self, program: Program, symbols: Symbols) -> None:
        self.program, self._sizes = program, symbols.sizes
        self._symbol_of = {size: k for k, size in enumerate(symbols.sizes)}
        self._numbers: dict[Source, Number] = {}
        self._strides: dict[tuple[int, ...], tuple[Number, ...]] = {}
        self._declared: dict[int, tuple[Number, ...]] = {}
        self.zero, self.one = self.constant(0), self.constant(1)
        self._layouts: dict[Var, ArrayLayout] = {}
        for var in program.views:  # an alias comes after its operand
            self._layouts[var] = self._alias(var)

    def _number(self, value: int, source: Source) -> Number:
        number = self._numbers.get(source)
        if number is None:
            number = self._numbers[source] = Number(value, source)
        return number

    def constant(self, value: int) -> Number:
        """An expression that follows from the key."""
        return self._number(value, ("constant", value))

    def size(self, size: int) -> Number:
        """A size of an array of the program. 0 and 1 are part of the key."""
        if size <= 1:
            return self.constant(size)
        return self._number(size, ("product", self._symbol_of[size]))

    def product(self, numbers: Sequence[Number]) -> Number:
        """The product of sizes, strides and constants: equal ones have equal factors."""
        factor, symbols = 1, []
        for number in numbers:
            constant, factors = _factors(number)
            factor *= constant
            symbols += factors
        if not symbols or not factor:
            return self.constant(factor)
        symbols.sort()
        value = factor * prod([self._sizes[k] for k in symbols])
        source = ("product", *symbols) if factor == 1 else ("multiple", factor, *symbols)
        return self._number(value, source)

    def strides(self, shape: Sequence[int]) -> tuple[Number, ...]:
        """The strides of a row-major array, in elements; sizes of 0 count as 1."""
        shape = tuple(shape)
        cached = self._strides.get(shape)
        if cached is None:
            sizes = [self.size(max(size, 1)) for size in shape]
            cached = tuple([self.product(sizes[d + 1 :]) for d in range(len(shape))])
            self._strides[shape] = cached
        return cached

    def bytes(self, offset: Number, itemsize: int) -> Number:
        """An offset in bytes."""
        kind, *rest = offset.source
        value = offset.value * itemsize
        if kind == "constant":
            return self.constant(value)
        return self._number(value, ("offset", rest[0], itemsize))

    def declared(self, position: int) -> tuple[Number, ...]:
        """Return the size expressions that an ``Indexed`` op passes to its kernel."""
        cached = self._declared.get(position)
        if cached is None:
            values = declared_numbers(self.program.jaxpr.eqns[position])
            cached = tuple(
                [self._number(value, ("number", position, k)) for k, value in enumerate(values)]
            )
            self._declared[position] = cached
        return cached

    def literal(
        self, position: int, operand: int, dtype: str, value: Any, component: int | None = None
    ) -> Number:
        """The argument slot of a literal, or of a component of a complex one."""
        jaxpr = self.program.jaxpr
        slot = jaxpr.memo("literal slots", lambda: _literal_slots(jaxpr))[position][operand]
        kind = ("literal", slot, dtype) if component is None else ("part", slot, dtype, component)
        return self._number(scalar_to_slot(dtype, value), kind)

    def layout(self, var: Var) -> ArrayLayout:
        """The layout of a variable."""
        cached = self._layouts.get(var)
        if cached is None:
            shape = var.aval.shape
            cached = ArrayLayout(var, self.zero, self.strides(shape), (False,) * len(shape))
            self._layouts[var] = cached
        return cached

    def _alias(self, var: Var) -> ArrayLayout:
        position = self.program.producer[var]
        eqn = self.program.jaxpr.eqns[position]
        number, done = eqn.outputs.index(var), self.program.updates.get(position)
        if done is not None:
            (number,) = [operand for operand, out in done.pairs if out == number]
        operand = eqn.inputs[number]
        assert type(operand) is Var  # or it would be no alias
        operand_layout, rule = self.layout(operand), eqn.primitive.lower
        if rule.view is None:
            return operand_layout
        view, avals = self.program.views[var][1], (operand.aval, var.aval)
        offset = operand_layout.offset
        if rule.steps is not None:
            steps = rule.steps(*avals, **eqn.params)
            strides = [
                self.product([stride, self.constant(step)])
                for stride, step in zip(operand_layout.strides, steps, strict=True)
            ]
            offset = self._number(view.offset, ("offset", position, 1))
        else:
            strides = _followed(self, operand_layout, view.broadcast, rule, avals, eqn)
        numbers = [number.value for number in (*strides, offset)]
        assert numbers == [*view.strides, view.offset], f"[lower] {eqn} has the layout {view}"
        return ArrayLayout(operand_layout.buffer, offset, tuple(strides), view.broadcast)


def _followed(
    numbers: Numbers, operand_layout: ArrayLayout, broadcast: Sequence[bool], rule: Layout,
    avals: tuple[ShapedArray, ShapedArray], eqn: Eqn,
) -> list[Number]:  # fmt: skip
    """The strides of an alias: those of its operand's dimensions, else row-major."""
    strides = list(numbers.strides(avals[1].shape))
    links = rule.links(*avals, **eqn.params)
    for d, repeats in enumerate(broadcast):
        if repeats:
            strides[d] = numbers.zero
    for operand_dim, dim in links or ():
        strides[dim] = operand_layout.strides[operand_dim]
    return strides


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


def _factors(number: Number) -> tuple[int, Sequence[int]]:
    """The constant factor and the symbols of a product of sizes."""
    kind, *rest = number.source
    if kind == "product":
        return 1, rest
    assert kind in ("constant", "multiple"), f"[lower] {number} is not a product of sizes"
    return rest[0], rest[1:]


def _is_constant(number: Number) -> bool:
    return number.source[0] == "constant"
