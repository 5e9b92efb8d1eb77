"""Select loads at computed offsets, alone or in branches, that one vector load replaces.

A concatenation loads from one of its operands in a branch. A gather loads a row that an index
selects. If all points of a vector take the same branch and load consecutive elements, one vector
load serves them all. Over the points of a vector, each value has one of these patterns:

    MULTIPLE      the same for all points, and a multiple of the vector's width
    SAME          the same for all points: uniform
    CONSECUTIVE   a multiple of the width at the first point, then one more at each next point
    VARYING       anything else

A pattern is valid if the arguments in its ``required_multiples`` are multiples of the width. The
printed kernel tests all of them once; if one is not, it loads element by element.

Tests: tests/targets/cuda/test_gpu_computed_loads.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Argument, Block, If, Kernel, Load, Mode, Operand, Statement, Stride
from gpuflow.kir.scalar import storage_bytes
from gpuflow.kir.walk import results_of, uses_of, without_dead_code
from gpuflow.targets.cuda.codegen.printing.vector_accesses import VECTOR_BYTES

_PURE = (nodes.Const, nodes.Load, nodes.Apply, nodes.Select, nodes.Cast)
# Comparisons of CONSECUTIVE with MULTIPLE that have the same result for all points of a vector.
_SAME_COMPARISON = ("lt", "ge")
_MIRRORED = {"gt": "lt", "le": "ge"}


class _PatternKind(Enum):
    """The patterns of the module's docstring, without their conditions."""

    MULTIPLE = "multiple"
    SAME = "same"
    CONSECUTIVE = "consecutive"
    VARYING = "varying"


@record
class _Pattern:
    """The pattern of a value over the points of a vector.

    Attributes:
        kind: the pattern.
        required_multiples: arguments that must be multiples of the vector's width.
    """

    kind: _PatternKind
    required_multiples: tuple[Argument, ...] = ()

    @property
    def is_uniform(self) -> bool:
        return self.kind in (_PatternKind.MULTIPLE, _PatternKind.SAME)


_VARYING = _Pattern(_PatternKind.VARYING)


def _uniform(*patterns: _Pattern) -> _Pattern:
    """The pattern of a result of uniform values: SAME."""
    # Requirements of MULTIPLE values are dropped: these are uniform in any case.
    return _Pattern(
        _PatternKind.SAME,
        _union(*[p.required_multiples for p in patterns if p.kind is _PatternKind.SAME]),
    )


@record
class ComputedLoad:
    """A value that a vector load gives for all points of a vector.

    Attributes:
        statements: the computation of the value and its offsets; the last statement defines it.
        operand: an operand that it is loaded from; those of other branches have the same dtype.
        loads: the loads that become vector loads, at most one in each branch.
        required_multiples: arguments that must be multiples of the vector's width.
    """

    statements: tuple[Statement, ...]
    operand: Operand
    loads: tuple[Load, ...]
    required_multiples: tuple[Argument, ...]

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
    patterns, found = _Patterns(kernel, width), []
    for position, statement in enumerate(body.body):
        vector_loads = patterns.vector_loads_of(statement)
        patterns.add(statement)
        if vector_loads is None:
            continue
        preceding = [s for s in body.body[:position] if isinstance(s, _PURE)]
        block = Block(body=(*preceding, statement), results=results_of(statement))
        operand = patterns.operands[vector_loads.loads[0].operand]
        found.append(ComputedLoad(without_dead_code(block).body, operand, *vector_loads))
    return found


class _VectorLoads(NamedTuple):
    """The vector loads that one statement becomes.

    Attributes:
        loads: the loads, one in each branch.
        required_multiples: arguments that must be multiples of the vector's width.
    """

    loads: tuple[Load, ...]
    required_multiples: tuple[Argument, ...]


class _Patterns:
    """The pattern of each value of a body. Values of enclosing blocks are SAME.

    Statements must be added in order: the pattern of a value follows from those of its operands.
    """

    def __init__(self, kernel: Kernel, width: int) -> None:
        self.operands = {operand.name: operand for operand in kernel.operands}
        self._axes = [axis.name for axis in kernel.axes]
        self._width = width
        self._by_value: dict[int, _Pattern] = {}  # by ``Value.number``

    def add(self, statement: Statement) -> None:
        """Record the pattern of the values that a statement defines."""
        pattern = self._result_pattern(statement)
        for value in results_of(statement):
            self._by_value[value.number] = pattern

    def vector_loads_of(self, statement: Statement) -> _VectorLoads | None:
        """The vector loads that a statement can become; None: it cannot."""
        if isinstance(statement, Load):
            return self._consecutive(statement)
        if isinstance(statement, If) and len(statement.outs) == 1:
            return self._branches(statement)
        return None

    def _branches(self, statement: If) -> _VectorLoads | None:
        """The vector loads of a branch with a uniform predicate, one in each side."""
        predicate = self._pattern_of(statement.predicate)
        if not predicate.is_uniform:
            return None
        loads, multiples = (), _uniform(predicate).required_multiples
        for block in (statement.then, statement.orelse):
            side = None
            for inner in block.body:
                side = self.vector_loads_of(inner)
                self.add(inner)
                if not isinstance(inner, _PURE) and side is None:
                    return None
            if side is None or results_of(block.body[-1]) != block.results:
                return None
            loads += side.loads
            multiples = _union(multiples, side.required_multiples)
        dtypes = {self.operands[load.operand].dtype for load in loads}
        return _VectorLoads(loads, multiples) if len(dtypes) == 1 else None

    def _consecutive(self, load: Load) -> _VectorLoads | None:
        """A load whose offset is CONSECUTIVE, of a vector of at most ``VECTOR_BYTES``."""
        operand = self.operands.get(load.operand)
        if operand is None or operand.mode is not Mode.IN or load.offset is None:
            return None
        where = _uniform() if load.where is None else self._pattern_of(load.where)
        if load.component is not None or not where.is_uniform:
            return None
        if self._width * storage_bytes(operand.dtype) > VECTOR_BYTES:
            return None
        address = self._sum(self._along_axes(operand), self._pattern_of(load.offset))
        if address.kind is not _PatternKind.CONSECUTIVE:
            return None
        multiples = _union(address.required_multiples, _uniform(where).required_multiples)
        return _VectorLoads((load,), multiples)

    def _pattern_of(self, value: nodes.Value) -> _Pattern:
        return self._by_value.get(value.number, _uniform())

    def _result_pattern(self, statement: Statement) -> _Pattern:
        match statement:
            case nodes.Const(out, value):
                is_multiple = out.dtype == "int64" and value % self._width == 0
                return _Pattern(_PatternKind.MULTIPLE) if is_multiple else _uniform()
            case nodes.Load():
                return self._load_pattern(statement)
            case nodes.Apply(_, fn, args) if len(args) == 2 and args[0].dtype == "int64":
                left, right = map(self._pattern_of, args)
                return self._binary_pattern(fn, left, right)
            case nodes.Apply() | nodes.Select() | nodes.Cast():
                used = [self._pattern_of(value) for value in uses_of(statement)]
                return _uniform(*used) if all(pattern.is_uniform for pattern in used) else _VARYING
        return _VARYING

    def _load_pattern(self, load: Load) -> _Pattern:
        operand = self.operands.get(load.operand)
        if operand is None or load.where is not None:
            return _VARYING
        if operand.mode is Mode.SCALAR:
            is_index = operand.dtype == "int64"
            multiples = (Argument("scalar", operand.name),)
            return _Pattern(_PatternKind.MULTIPLE, multiples) if is_index else _uniform()
        address = self._along_axes(operand)
        if load.offset is not None:
            address = self._sum(address, self._pattern_of(load.offset))
        if operand.mode is Mode.INDEX:
            base = _Pattern(_PatternKind.MULTIPLE, (Argument("base", operand.name),))
            # Indices are multiplied by row strides, so they need not be multiples themselves.
            return _uniform(address) if address.is_uniform else self._sum(address, base)
        is_uniform = operand.mode is Mode.IN and address.is_uniform
        return _uniform(address) if is_uniform else _VARYING

    def _along_axes(self, operand: Operand) -> _Pattern:
        """Pattern of an operand's offset: the sum of strides times indices of axes."""
        multiples = []
        for axis, stride in zip(self._axes, operand.strides, strict=False):
            if axis == self._axes[-1]:
                continue
            if stride is Stride.ANY:
                multiples.append(Argument("stride", operand.name, axis))
            elif (stride.static_value or 0) % self._width:
                return _VARYING
        innermost = operand.strides[-1] if operand.strides else Stride.ZERO
        kinds = {Stride.ZERO: _PatternKind.MULTIPLE, Stride.UNIT: _PatternKind.CONSECUTIVE}
        return _Pattern(kinds[innermost], tuple(multiples)) if innermost in kinds else _VARYING

    def _binary_pattern(self, fn: str, left: _Pattern, right: _Pattern) -> _Pattern:
        """Pattern of a binary function of int64 operands."""
        if fn == "add":
            return self._sum(left, right)
        if fn == "sub" and right.kind is not _PatternKind.CONSECUTIVE:
            return self._sum(left, right)
        if left.is_uniform and right.is_uniform:
            return self._product(left, right) if fn == "mul" else _uniform(left, right)
        if fn in _MIRRORED:
            fn, left, right = _MIRRORED[fn], right, left
        kinds = (left.kind, right.kind)
        if fn in _SAME_COMPARISON and kinds == (_PatternKind.CONSECUTIVE, _PatternKind.MULTIPLE):
            multiples = _union(left.required_multiples, right.required_multiples)
            return _Pattern(_PatternKind.SAME, multiples)
        return _VARYING

    def _sum(self, left: _Pattern, right: _Pattern) -> _Pattern:
        kinds = {left.kind, right.kind}
        if _PatternKind.VARYING in kinds or (kinds == {_PatternKind.CONSECUTIVE}):
            return _VARYING
        if _PatternKind.CONSECUTIVE in kinds and _PatternKind.SAME in kinds:
            return _VARYING
        if _PatternKind.SAME in kinds:
            return _uniform(left, right)
        is_consecutive = _PatternKind.CONSECUTIVE in kinds
        kind = _PatternKind.CONSECUTIVE if is_consecutive else _PatternKind.MULTIPLE
        return _Pattern(kind, _union(left.required_multiples, right.required_multiples))

    def _product(self, left: _Pattern, right: _Pattern) -> _Pattern:
        """MULTIPLE if one factor is: often the row stride that lowering multiplies an index by."""
        if right.kind is not _PatternKind.MULTIPLE:
            left, right = right, left
        if right.kind is not _PatternKind.MULTIPLE:
            return _uniform(left, right)
        multiples = _union(_uniform(left).required_multiples, right.required_multiples)
        return _Pattern(_PatternKind.MULTIPLE, multiples)


def _union(*groups: Iterable[Argument]) -> tuple[Argument, ...]:
    """Arguments without duplicates, in order of first occurrence."""
    return tuple(dict.fromkeys(argument for group in groups for argument in group))
