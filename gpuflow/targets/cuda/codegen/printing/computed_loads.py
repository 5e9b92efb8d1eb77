"""Vectorization of loads at computed offsets, alone or in branches: an analysis of values.

A concatenation loads from one of its operands in a branch. A gather loads a row that an index
selects. If all points of a vector take the same branch and load consecutive elements, one vector
load serves them all. Over the points of a vector, each value has one of these patterns:

    MULTIPLE      the same for all points, and a multiple of the vector's width
    SAME          the same for all points: uniform
    CONSECUTIVE   a multiple of the width at the first point, then one more at each next point
    VARYING       anything else

A pattern is valid if the arguments in its ``needs`` are multiples of the width. The printed kernel
tests all of them once; if one is not, it loads element by element.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Argument, Block, If, Kernel, Load, Mode, Operand, Statement, Stride
from gpuflow.kir.scalar import storage_bytes
from gpuflow.kir.walk import pruned, results_of, uses_of
from gpuflow.targets.cuda.codegen.printing.phases import VECTOR_BYTES

_PURE = (nodes.Const, nodes.Load, nodes.Apply, nodes.Select, nodes.Cast)
# Comparisons of CONSECUTIVE with MULTIPLE that have the same result for all points of a vector.
_SAME_COMPARISON = ("lt", "ge")
_MIRRORED = {"gt": "lt", "le": "ge"}


class _Kind(Enum):
    """The patterns of the module's docstring, without their conditions."""

    MULTIPLE = "multiple"
    SAME = "same"
    CONSECUTIVE = "consecutive"
    VARYING = "varying"


@record
class _Pattern:
    """The pattern of a value; valid if all ``needs`` are multiples of the vector's width."""

    kind: _Kind
    needs: tuple[Argument, ...] = ()

    @property
    def is_same(self) -> bool:
        return self.kind in (_Kind.MULTIPLE, _Kind.SAME)


_VARYING = _Pattern(_Kind.VARYING)


def _same(*patterns: _Pattern) -> _Pattern:
    """The pattern of a result of uniform values: SAME."""
    # The needs of MULTIPLE values are dropped: these are uniform in any case.
    return _Pattern(_Kind.SAME, _union(*[p.needs for p in patterns if p.kind is _Kind.SAME]))


@record
class ComputedLoad:
    """A value that a vector load gives for all points of a vector.

    Attributes:
        statements: the computation of the value and its offsets; the last statement defines it.
        operand: an operand that it is loaded from; those of other branches have the same dtype.
        loads: the loads that become vector loads, at most one in each branch.
        needs: arguments that must be multiples of the vector's width.
    """

    statements: tuple[Statement, ...]
    operand: Operand
    loads: tuple[Load, ...]
    needs: tuple[Argument, ...]

    @property
    def out(self) -> nodes.Value:
        """The loaded value."""
        return results_of(self.statements[-1])[0]


def computed_loads(kernel: Kernel, body: Block, width: int) -> list[ComputedLoad]:
    """Return the values of one point that a vector load can give for ``width`` points.

    Args:
        kernel: the kernel. Points of a vector are neighbors along its innermost axis.
        body: the statements of one point of ``kernel``.
        width: points of a vector.
    """
    patterns, vector_loads = _Patterns(kernel, width), []
    for position, statement in enumerate(body.body):
        loaded = patterns.loaded(statement)
        patterns.add(statement)
        if loaded is None:
            continue
        before = [s for s in body.body[:position] if isinstance(s, _PURE)]
        block = Block(body=(*before, statement), results=results_of(statement))
        loads, needs = loaded
        operand = patterns.operands[loads[0].operand]
        vector_loads.append(ComputedLoad(pruned(block).body, operand, loads, needs))
    return vector_loads


_Loaded = tuple[tuple[Load, ...], tuple[Argument, ...]]


class _Patterns:
    """Pattern of each value of a body, by its number. Values of enclosing blocks are SAME."""

    def __init__(self, kernel: Kernel, width: int) -> None:
        self.operands = {operand.name: operand for operand in kernel.operands}
        self._axes = [axis.name for axis in kernel.axes]
        self._width = width
        self._by_value: dict[int, _Pattern] = {}

    def add(self, statement: Statement) -> None:
        """Record the pattern of the values that a statement defines."""
        pattern = self._pattern(statement)
        for value in results_of(statement):
            self._by_value[value.number] = pattern

    def loaded(self, statement: Statement) -> _Loaded | None:
        """The vector loads that a statement becomes, and their needs; None: it cannot."""
        if isinstance(statement, Load):
            return self._consecutive(statement)
        if isinstance(statement, If) and len(statement.outs) == 1:
            return self._branches(statement)
        return None

    def _branches(self, statement: If) -> _Loaded | None:
        predicate = self._get(statement.predicate)
        if not predicate.is_same:
            return None
        loads, needs = (), _same(predicate).needs
        for block in (statement.then, statement.orelse):
            loaded = None
            for inner in block.body:
                loaded = self.loaded(inner)
                self.add(inner)
                if not isinstance(inner, _PURE) and loaded is None:
                    return None
            if loaded is None or results_of(block.body[-1]) != block.results:
                return None
            loads, needs = loads + loaded[0], _union(needs, loaded[1])
        dtypes = {self.operands[load.operand].dtype for load in loads}
        return (loads, needs) if len(dtypes) == 1 else None

    def _consecutive(self, load: Load) -> _Loaded | None:
        """A load whose offset is CONSECUTIVE, of a vector of at most ``VECTOR_BYTES``."""
        operand = self.operands.get(load.operand)
        if operand is None or operand.mode is not Mode.IN or load.offset is None:
            return None
        where = _same() if load.where is None else self._get(load.where)
        if load.component is not None or not where.is_same:
            return None
        if self._width * storage_bytes(operand.dtype) > VECTOR_BYTES:
            return None
        address = self._sum(self._along_axes(operand), self._get(load.offset))
        if address.kind is not _Kind.CONSECUTIVE:
            return None
        return (load,), _union(address.needs, _same(where).needs)

    def _get(self, value: nodes.Value) -> _Pattern:
        return self._by_value.get(value.number, _same())

    def _pattern(self, statement: Statement) -> _Pattern:
        match statement:
            case nodes.Const(out, value):
                is_multiple = out.dtype == "int64" and value % self._width == 0
                return _Pattern(_Kind.MULTIPLE) if is_multiple else _same()
            case nodes.Load():
                return self._of_load(statement)
            case nodes.Apply(_, fn, args) if len(args) == 2 and args[0].dtype == "int64":
                left, right = map(self._get, args)
                return self._of_two(fn, left, right)
            case nodes.Apply() | nodes.Select() | nodes.Cast():
                used = [self._get(value) for value in uses_of(statement)]
                return _same(*used) if all(one.is_same for one in used) else _VARYING
        return _VARYING

    def _of_load(self, load: Load) -> _Pattern:
        operand = self.operands.get(load.operand)
        if operand is None or load.where is not None:
            return _VARYING
        if operand.mode is Mode.SCALAR:
            is_index = operand.dtype == "int64"
            needs = (Argument("scalar", operand.name),)
            return _Pattern(_Kind.MULTIPLE, needs) if is_index else _same()
        along = self._along_axes(operand)
        address = along if load.offset is None else self._sum(along, self._get(load.offset))
        if operand.mode is Mode.INDEX:
            base = _Pattern(_Kind.MULTIPLE, (Argument("base", operand.name),))
            # Indices are multiplied by row strides, so they need not be multiples themselves.
            return _same(address) if address.is_same else self._sum(address, base)
        is_same = operand.mode is Mode.IN and address.is_same
        return _same(address) if is_same else _VARYING

    def _along_axes(self, operand: Operand) -> _Pattern:
        """Pattern of an operand's offset: the sum of strides times indices of axes."""
        needs = []
        for axis, stride in zip(self._axes, operand.strides, strict=False):
            if axis == self._axes[-1]:
                continue
            if stride is Stride.ANY:
                needs.append(Argument("stride", operand.name, axis))
            elif (stride.number or 0) % self._width:
                return _VARYING
        last = operand.strides[-1] if operand.strides else Stride.ZERO
        kinds = {Stride.ZERO: _Kind.MULTIPLE, Stride.UNIT: _Kind.CONSECUTIVE}
        return _Pattern(kinds[last], tuple(needs)) if last in kinds else _VARYING

    def _of_two(self, fn: str, left: _Pattern, right: _Pattern) -> _Pattern:
        if fn == "add":
            return self._sum(left, right)
        if fn == "sub" and right.kind is not _Kind.CONSECUTIVE:
            return self._sum(left, right)
        if left.is_same and right.is_same:
            return self._product(left, right) if fn == "mul" else _same(left, right)
        if fn in _MIRRORED:
            fn, left, right = _MIRRORED[fn], right, left
        kinds = (left.kind, right.kind)
        if fn in _SAME_COMPARISON and kinds == (_Kind.CONSECUTIVE, _Kind.MULTIPLE):
            return _Pattern(_Kind.SAME, _union(left.needs, right.needs))
        return _VARYING

    def _sum(self, left: _Pattern, right: _Pattern) -> _Pattern:
        kinds = {left.kind, right.kind}
        if _Kind.VARYING in kinds or (kinds == {_Kind.CONSECUTIVE}):
            return _VARYING
        if _Kind.CONSECUTIVE in kinds and _Kind.SAME in kinds:
            return _VARYING
        if _Kind.SAME in kinds:
            return _same(left, right)
        kind = _Kind.CONSECUTIVE if _Kind.CONSECUTIVE in kinds else _Kind.MULTIPLE
        return _Pattern(kind, _union(left.needs, right.needs))

    def _product(self, left: _Pattern, right: _Pattern) -> _Pattern:
        """MULTIPLE if one factor is: often the row stride that lowering multiplies an index by."""
        if right.kind is not _Kind.MULTIPLE:
            left, right = right, left
        if right.kind is not _Kind.MULTIPLE:
            return _same(left, right)
        return _Pattern(_Kind.MULTIPLE, _union(_same(left).needs, right.needs))


def _union(*needs: Iterable[Argument]) -> tuple[Argument, ...]:
    return tuple(dict.fromkeys(argument for some in needs for argument in some))
