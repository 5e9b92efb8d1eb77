"""Vectorization of group kernels: which accesses of their phases can be vectors, and how wide.

A phase is one loop that is distributed over the threads of a group: adjacent reductions, or a loop
that stores. If every phase iterates along the innermost axis, a thread takes several neighbors at
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeGuard

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Kernel, Mode, Operand, Stride
from gpuflow.kir.scalar import storage_bytes
from gpuflow.kir.walk import all_uses, is_whole, statements
from gpuflow.targets.kernel_walk import operands_in

VECTOR_BYTES = 16
MOST_REPEATED = 16  # most statements in a column's iteration for which it is unrolled
PAIR = 2  # neighboring columns that a thread computes
MOST_SHARED = 48 << 10  # bytes of shared memory that every GPU gives a block by default
_HALVES = ("bfloat16", "float16")
# Most elements (of at most 4 bytes) and vectors of rows in a thread's registers: more would reduce
# occupancy.
MAX_REGISTER_ELEMENTS = 32
MAX_REGISTER_VECTORS = 4

_PURE = (nodes.Const, nodes.Load, nodes.Apply, nodes.Select, nodes.Cast)


@record
class Phase:
    """One loop over ``axes`` that runs ``bodies`` in each iteration."""

    axes: tuple[str, ...]
    bodies: tuple[Block, ...]


@record
class Vectors:
    """The vector accesses of a group kernel.

    Attributes:
        width: elements of a vector; 1: no vectors.
        operands: names of the operands that are loaded or stored as vectors.
        register_operands: operands that several phases read, and that registers may hold.
        tile: vectors of each of them in a thread's registers; 0 if there are none.
    """

    width: int = 1
    operands: tuple[str, ...] = ()
    register_operands: tuple[str, ...] = ()
    tile: int = 0


def moves_as_vector(
    statement: nodes.Statement, kernel: Kernel
) -> TypeGuard[nodes.Load | nodes.Store]:
    """Whether a statement is a plain access to neighbors along the innermost axis."""
    if not isinstance(statement, nodes.Load | nodes.Store):
        return False
    operand = next(o for o in kernel.operands if o.name == statement.operand)
    if operand.mode in (Mode.INDEX, Mode.SCALAR) or not operand.strides:
        return False
    plain = is_whole(statement)
    return plain and operand.strides[-1] is Stride.UNIT


def may_fuse(fused: Sequence[nodes.Reduce], s: nodes.Reduce) -> bool:
    """Whether a reduction runs over the same axes as others and uses none of their results."""
    results = {value.number for other in fused for value in other.outs}
    return set(s.axes) == set(fused[0].axes) and not all_uses(s) & results


def group_vectors(kernel: Kernel, block: Block, may_keep: bool) -> Vectors:
    """Select the vectors of a row or full reduction; ``Vectors()`` if it can have none.

    Args:
        kernel: the kernel. Its innermost axis is distributed over the threads of a group.
        block: the statements of one point of ``kernel``.
        may_keep: whether a row fits into the registers of a group, for some sizes.
    """
    phases, last = _phases_of(kernel, block), kernel.axes[-1]
    if not phases or any(phase.axes != phases[0].axes for phase in phases):
        return Vectors()
    if phases[0].axes[-1] != last.name:
        return Vectors()
    bodies = [body for phase in phases for body in phase.bodies]
    if not all(_takes_vectors(body, kernel) for body in bodies):
        return Vectors()
    moved = [s for body in bodies for s in body.body if moves_as_vector(s, kernel)]
    names = tuple(dict.fromkeys(s.operand for s in moved))
    operands = {o.name: o for o in kernel.operands}
    if not names or any(Stride.UNIT in operands[name].strides[:-1] for name in names):
        return Vectors()
    width = VECTOR_BYTES // max(storage_bytes(operands[name].dtype) for name in names)
    if width == 1 or (last.exact is not None and last.exact % width):
        return Vectors()
    reused = _read_repeatedly(phases, kernel, operands) if may_keep else ()
    tile = min(MAX_REGISTER_VECTORS, MAX_REGISTER_ELEMENTS // width) // len(reused) if reused else 0
    return Vectors(width, names, reused if tile else (), tile)


def column_pairs(kernel: Kernel, block: Block) -> Vectors:
    """Select vectors of two neighboring columns for a thread; ``Vectors()`` if they do not pay off.

    They are for 16-bit floats: a warp would read 64 bytes at once, where one access can have 128.
    The statements are printed once per column. So ``block`` must have no loops or branches, and no
    operand that is both read and written. A body that is too long to be unrolled gains nothing.

    Args:
        kernel: the kernel. Its innermost axis counts columns.
        block: the statements of one column of ``kernel``.
    """
    reduces = [s for s in block.body if isinstance(s, nodes.Reduce)]
    body = [s for s in block.body if not isinstance(s, nodes.Reduce)]
    nested = [s for reduce in reduces for s in reduce.body.body]
    combining = [s for reduce in reduces for s in reduce.combine.body]
    stores = all(isinstance(s, _PURE) or (isinstance(s, nodes.Store) and is_whole(s)) for s in body)
    if not stores or not all(isinstance(s, _PURE) for s in (*nested, *combining)):
        return Vectors()
    if any(o.mode is Mode.INOUT for o in kernel.operands):
        return Vectors()
    operands, last = {o.name: o for o in kernel.operands}, kernel.axes[-1]
    moved = [s.operand for s in nested if moves_as_vector(s, kernel)]
    names = tuple(name for name in dict.fromkeys(moved) if operands[name].mode is Mode.IN)
    if not any(operands[name].dtype in _HALVES for name in names):
        return Vectors()
    if PAIR * len(nested) > MOST_REPEATED:
        return Vectors()
    if any(Stride.UNIT in operands[name].strides[:-1] for name in names):
        return Vectors()
    if last.exact is not None and last.exact % PAIR:
        return Vectors()
    outs = {(number, out.dtype) for s in reduces for number, out in enumerate(s.outs)}
    shared = sum(PAIR * 32 * 32 * storage_bytes(dtype) for _, dtype in outs)
    return Vectors(PAIR, names) if shared <= MOST_SHARED else Vectors()


def read_after_write(body: Block, stores: Sequence[str]) -> bool:
    """Whether the body stores an operand twice, or loads one that it has stored before."""
    written: set[str] = set()
    for statement in body.body:
        accessed = operands_in(Block(body=(statement,)))
        if isinstance(statement, nodes.Store):
            written.add(statement.operand)
        elif written.intersection(accessed):
            return True
    return len(stores) != len(set(stores))


def _phases_of(kernel: Kernel, block: Block) -> list[Phase]:
    """The phases in order; empty if a loop over an axis is inside another statement."""
    phases: list[Phase] = []
    fused: list[nodes.Reduce] = []
    for statement in block.body:
        if isinstance(statement, nodes.Reduce):
            if fused and may_fuse(fused, statement):
                fused.append(statement)
                phases[-1] = Phase(phases[-1].axes, (*phases[-1].bodies, statement.body))
                continue
            fused = [statement]
            axes = tuple(axis.name for axis in kernel.axes if axis.name in statement.axes)
            phases.append(Phase(axes, (statement.body,)))
            continue
        if not isinstance(statement, nodes.Const):
            fused = []
        if isinstance(statement, nodes.For) and statement.axis is not None:
            phases.append(_loop_phase(statement))
        elif any(isinstance(s, nodes.Reduce) or _is_over_axis(s) for s in _inner(statement)):
            return []
    return phases


def _inner(statement: nodes.Statement) -> list[nodes.Statement]:
    return list(statements(Block(body=(statement,))))


def _is_over_axis(statement: nodes.Statement) -> bool:
    return isinstance(statement, nodes.For) and statement.axis is not None


def _loop_phase(loop: nodes.For) -> Phase:
    assert loop.axis is not None
    axes, body = [loop.axis], loop.body
    while len(body.body) == 1 and _is_over_axis(body.body[0]):
        inner = body.body[0]
        assert isinstance(inner, nodes.For) and inner.axis is not None
        axes, body = [*axes, inner.axis], inner.body
    return Phase(tuple(axes), (body,))


def _takes_vectors(body: Block, kernel: Kernel) -> bool:
    """Whether the body has only arithmetic and loads, and stores of consecutive elements."""
    stores = [s.operand for s in body.body if isinstance(s, nodes.Store)]
    simple = all(isinstance(s, _PURE) or moves_as_vector(s, kernel) for s in body.body)
    return simple and not read_after_write(body, stores)


def _read_repeatedly(
    phases: Sequence[Phase], kernel: Kernel, operands: dict[str, Operand]
) -> tuple[str, ...]:
    """Operands that nothing writes and several phases read, all of them in vectors."""
    count: Counter[str] = Counter()
    in_scalars: set[str] = set()
    for phase in phases:
        loads = [s for b in phase.bodies for s in b.body if isinstance(s, nodes.Load)]
        # A dict, as the order of a set differs between processes and would change the text.
        in_vectors = dict.fromkeys(s.operand for s in loads if moves_as_vector(s, kernel))
        count.update(list(in_vectors))
        in_scalars |= {s.operand for s in loads if not moves_as_vector(s, kernel)}
    readonly = [name for name in count if operands[name].mode is Mode.IN]
    return tuple(n for n in readonly if count[n] > 1 and n not in in_scalars)
