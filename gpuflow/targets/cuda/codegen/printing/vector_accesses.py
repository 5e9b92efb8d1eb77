"""Vectorization of group kernels: which accesses of their phases can be vectors, and how wide.

A phase is one loop that is distributed over the threads of a group: adjacent reductions, or a loop
that stores. If every phase iterates along the innermost axis, a thread takes several neighbors at
once.

Tests: tests/targets/cuda/test_cuda_schedule.py, tests/targets/cuda/test_gpu_columns.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeGuard

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Kernel, Mode, Operand, Stride
from gpuflow.kir.scalar import storage_bytes
from gpuflow.kir.walk import is_plain_access, statements, value_numbers_used
from gpuflow.targets.kernel_walk import operands_in

VECTOR_BYTES = 16  # the largest access of a thread
MAX_UNROLLED_STATEMENTS = 16  # most statements in a column's iteration for which it is unrolled
COLUMNS_PER_THREAD = 2  # neighboring columns that a thread computes
DEFAULT_SHARED_BYTES = 48 << 10  # bytes of shared memory that every GPU gives a block by default
_HALVES = ("bfloat16", "float16")
# Most elements (of at most 4 bytes) and vectors of rows in a thread's registers: more would reduce
# occupancy. Elements are those of all held operands together.
MAX_REGISTER_ELEMENTS = 32
MAX_REGISTER_VECTORS = 4

# Statements without effects, loops or branches.
_PURE = (nodes.Const, nodes.Load, nodes.Apply, nodes.Select, nodes.Cast)


@record
class Phase:
    """One loop that is distributed over the threads of a group.

    Attributes:
        axes: names of its axes, outermost first.
        bodies: blocks that it runs in each iteration, in order.
    """

    axes: tuple[str, ...]
    bodies: tuple[Block, ...]


@record
class VectorAccesses:
    """The vector accesses of a group kernel.

    Attributes:
        width: elements of a vector; 1: no vectors.
        operands: names of the operands that are loaded or stored as vectors.
        register_operands: operands that several phases read, and that registers may hold.
        register_vectors: vectors of each of them in a thread's registers; 0 if there are none.
    """

    width: int = 1
    operands: tuple[str, ...] = ()
    register_operands: tuple[str, ...] = ()
    register_vectors: int = 0


def is_vector_access(
    statement: nodes.Statement, kernel: Kernel
) -> TypeGuard[nodes.Load | nodes.Store]:
    """Whether a statement is a plain access to neighbors along the innermost axis."""
    if not isinstance(statement, nodes.Load | nodes.Store):
        return False
    operand = next(o for o in kernel.operands if o.name == statement.operand)
    if operand.mode in (Mode.INDEX, Mode.SCALAR) or not operand.strides:
        return False
    is_unmasked = is_plain_access(statement)
    return is_unmasked and operand.strides[-1] is Stride.UNIT


def may_fuse(reduces: Sequence[nodes.Reduce], candidate: nodes.Reduce) -> bool:
    """Whether a reduction runs over the same axes as ``reduces`` and uses none of their results.

    ``reduces`` must not be empty.
    """
    results = {value.number for other in reduces for value in other.outs}
    return (
        set(candidate.axes) == set(reduces[0].axes) and not value_numbers_used(candidate) & results
    )


def group_vectors(kernel: Kernel, block: Block, may_hold_rows: bool) -> VectorAccesses:
    """Select the vectors of a row or full reduction; ``Vectors()`` if it can have none.

    Args:
        kernel: the kernel. Its innermost axis is distributed over the threads of a group.
        block: the statements of one point of ``kernel``.
        may_hold_rows: whether a row fits into the registers of a group, for some sizes.
    """
    phases, innermost = _phases_of(kernel, block), kernel.axes[-1]
    if not phases or any(phase.axes != phases[0].axes for phase in phases):
        return VectorAccesses()
    if phases[0].axes[-1] != innermost.name:
        return VectorAccesses()
    bodies = [body for phase in phases for body in phase.bodies]
    if not all(_is_vectorizable(body, kernel) for body in bodies):
        return VectorAccesses()
    vector_accesses = [s for body in bodies for s in body.body if is_vector_access(s, kernel)]
    names = tuple(dict.fromkeys(s.operand for s in vector_accesses))
    operands = {o.name: o for o in kernel.operands}
    if not names or any(Stride.UNIT in operands[name].strides[:-1] for name in names):
        return VectorAccesses()
    width = VECTOR_BYTES // max(storage_bytes(operands[name].dtype) for name in names)
    if width == 1 or (innermost.exact is not None and innermost.exact % width):
        return VectorAccesses()
    reread = _read_repeatedly(phases, kernel, operands) if may_hold_rows else ()
    register_vectors = (
        min(MAX_REGISTER_VECTORS, MAX_REGISTER_ELEMENTS // width) // len(reread) if reread else 0
    )
    return VectorAccesses(width, names, reread if register_vectors else (), register_vectors)


def column_pairs(kernel: Kernel, block: Block) -> VectorAccesses:
    """Select vectors of two neighboring columns; ``VectorAccesses()`` if they do not pay off.

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
    is_map_body = all(
        isinstance(s, _PURE) or (isinstance(s, nodes.Store) and is_plain_access(s)) for s in body
    )
    if not is_map_body or not all(isinstance(s, _PURE) for s in (*nested, *combining)):
        return VectorAccesses()
    if any(o.mode is Mode.INOUT for o in kernel.operands):
        return VectorAccesses()
    operands, innermost = {o.name: o for o in kernel.operands}, kernel.axes[-1]
    vector_loads = [s.operand for s in nested if is_vector_access(s, kernel)]
    names = tuple(name for name in dict.fromkeys(vector_loads) if operands[name].mode is Mode.IN)
    if not any(operands[name].dtype in _HALVES for name in names):
        return VectorAccesses()
    if COLUMNS_PER_THREAD * len(nested) > MAX_UNROLLED_STATEMENTS:
        return VectorAccesses()
    if any(Stride.UNIT in operands[name].strides[:-1] for name in names):
        return VectorAccesses()
    if innermost.exact is not None and innermost.exact % COLUMNS_PER_THREAD:
        return VectorAccesses()
    outs = {(number, out.dtype) for s in reduces for number, out in enumerate(s.outs)}
    shared_bytes = sum(COLUMNS_PER_THREAD * 32 * 32 * storage_bytes(dtype) for _, dtype in outs)
    return (
        VectorAccesses(COLUMNS_PER_THREAD, names)
        if shared_bytes <= DEFAULT_SHARED_BYTES
        else VectorAccesses()
    )


def read_after_write(body: Block, stores: Sequence[str]) -> bool:
    """Whether the body stores an operand twice, or loads one that it has stored before.

    ``stores`` are the operands of the stores of ``body``, one for each.
    """
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
    adjacent: list[nodes.Reduce] = []
    for statement in block.body:
        if isinstance(statement, nodes.Reduce):
            if adjacent and may_fuse(adjacent, statement):
                adjacent.append(statement)
                phases[-1] = Phase(phases[-1].axes, (*phases[-1].bodies, statement.body))
                continue
            adjacent = [statement]
            axes = tuple(axis.name for axis in kernel.axes if axis.name in statement.axes)
            phases.append(Phase(axes, (statement.body,)))
            continue
        if not isinstance(statement, nodes.Const):
            adjacent = []
        if isinstance(statement, nodes.For) and statement.axis is not None:
            phases.append(_loop_phase(statement))
        elif any(
            isinstance(s, nodes.Reduce) or _is_over_axis(s) for s in _nested_statements(statement)
        ):
            return []
    return phases


def _nested_statements(statement: nodes.Statement) -> list[nodes.Statement]:
    """The statement, and all statements of its blocks."""
    return list(statements(Block(body=(statement,))))


def _is_over_axis(statement: nodes.Statement) -> bool:
    return isinstance(statement, nodes.For) and statement.axis is not None


def _loop_phase(loop: nodes.For) -> Phase:
    """The phase of a perfect nest of loops over axes, which starts at ``loop``."""
    assert loop.axis is not None
    axes, body = [loop.axis], loop.body
    while len(body.body) == 1 and _is_over_axis(body.body[0]):
        inner = body.body[0]
        assert isinstance(inner, nodes.For) and inner.axis is not None
        axes, body = [*axes, inner.axis], inner.body
    return Phase(tuple(axes), (body,))


def _is_vectorizable(body: Block, kernel: Kernel) -> bool:
    """Whether the body has only arithmetic and loads, and stores of consecutive elements."""
    stores = [s.operand for s in body.body if isinstance(s, nodes.Store)]
    is_elementwise = all(isinstance(s, _PURE) or is_vector_access(s, kernel) for s in body.body)
    return is_elementwise and not read_after_write(body, stores)


def _read_repeatedly(
    phases: Sequence[Phase], kernel: Kernel, operands: dict[str, Operand]
) -> tuple[str, ...]:
    """Operands that nothing writes and several phases read, all of them in vectors."""
    phase_counts: Counter[str] = Counter()
    in_scalars: set[str] = set()
    for phase in phases:
        loads = [s for b in phase.bodies for s in b.body if isinstance(s, nodes.Load)]
        # A dict: the order of a set differs between processes, and would change the text.
        in_vectors = dict.fromkeys(s.operand for s in loads if is_vector_access(s, kernel))
        phase_counts.update(list(in_vectors))
        in_scalars |= {s.operand for s in loads if not is_vector_access(s, kernel)}
    readonly = [name for name in phase_counts if operands[name].mode is Mode.IN]
    return tuple(n for n in readonly if phase_counts[n] > 1 and n not in in_scalars)
