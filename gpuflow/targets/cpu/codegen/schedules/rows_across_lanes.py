"""Vectorization of short rows across rows: each lane of a vector is a row.

    for i:                          strip i by 64:
        %1 = reduce j { load x }        for i: for j: x_tile[j, i] = x[i, j]
        for j:                          for i: running[i] = init
            store o f(%1)               for j: for i: running[i] = combine(running[i], x_tile[j, i])
                                        for j: for i: o_tile[j, i] = f(running[i])
                                        for i: for j: o[i, j] = o_tile[j, i]

A row of ten elements does not fill vector registers, so LLVM emits scalar code. This schedule
transposes a strip of rows into a local array, in which adjacent elements belong to different rows.
``interchange`` then treats the rows as columns. Results are transposed back at the end.

Tests: tests/targets/cpu/test_cpu_row_kernels.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.argmax import is_argmax
from gpuflow.kir.nodes import (
    Apply,
    Block,
    For,
    Kernel,
    Load,
    Local,
    Mode,
    Operand,
    Reduce,
    Role,
    Statement,
    Store,
    Stride,
    Strip,
    Value,
    memoized,
)
from gpuflow.kir.rewrite import substituted
from gpuflow.kir.scalar import TRANSCENDENTAL, compute_dtype
from gpuflow.kir.walk import is_plain_access, statements
from gpuflow.targets.cpu.codegen.schedules.interchange import Interchange
from gpuflow.targets.cpu.codegen.schedules.known_strides import MAX_STATIC_STRIDE
from gpuflow.targets.cpu.codegen.schedules.row_values import cache_row_values

# Points of a call: with fewer, the transpose saves less than it costs to build the larger kernel.
MIN_TRANSPOSED = 1 << 13
MAX_ROW_LENGTH = 16  # elements of a row
ROWS = 64  # rows of a strip; a power of two
# Most statements of a row for which LLVM unrolls the loops over a row. It then vectorizes the loop
# over rows if their strides are static (``known_strides``), and transposing is not faster.
MAX_UNROLLED_STATEMENTS = 110


def _applies(kernel: Kernel) -> bool:
    """Whether the rows of a kernel are short, and transposing them is worth its cost."""
    if kernel.kind != "row" or len(kernel.axes) < 2:
        return False
    *outer, last = kernel.axes
    is_nest = all(axis.role is Role.PARALLEL for axis in outer)
    if not is_nest or last.role is not Role.ROW or last.exact is None:
        return False
    if last.exact > MAX_ROW_LENGTH:
        return False
    loops = [
        s
        for s in statements(kernel.body)
        if (isinstance(s, Reduce) and s.axes == (last.name,))
        or (isinstance(s, For) and s.axis == last.name)
    ]
    return any(_is_slow(loop) for loop in loops) and not _is_unrolled(loops, last.exact)


def _is_unrolled(loops: Sequence[Reduce | For], count: int) -> bool:
    """Whether LLVM unrolls the loops over a row, because they have few statements.

    Args:
        loops: the loops over a row.
        count: elements of a row.
    """
    row_statements = [
        s for loop in loops for s in (*statements(loop.body), *_combine_statements(loop))
    ]
    if any(isinstance(s, Apply) and s.fn in TRANSCENDENTAL for s in row_statements):
        return False
    return count <= MAX_STATIC_STRIDE and len(row_statements) * count <= MAX_UNROLLED_STATEMENTS


def _combine_statements(loop: Reduce | For) -> Iterator[Statement]:
    """The statements that combine two values of a Reduce; none for other loops."""
    return statements(loop.combine) if isinstance(loop, Reduce) else iter(())


def _is_slow(loop: Reduce | For) -> bool:
    """Whether a loop over a row costs more than the transpose: argmax and transcendentals do."""
    if isinstance(loop, Reduce) and is_argmax(loop):
        return True
    return any(isinstance(s, Apply) and s.fn in TRANSCENDENTAL for s in statements(loop.body))


def _choose(call: KernelCall) -> bool | None:
    return call.points >= MIN_TRANSPOSED or None


def _rewrite(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=memoized(call.kernel, _transposed)),)


ROWS_ACROSS_LANES = Schedule("rows across lanes", _applies, _choose, _rewrite)


def _transposed(kernel: Kernel) -> Kernel:
    """Rewrite the kernel, for which ``_applies`` must hold, to transposed strips of rows."""
    # ``cache_row_values`` may read some of these back, but only elements it has written.
    outputs = {o.name for o in kernel.operands if o.mode is Mode.OUT}
    kernel = cache_row_values(kernel)
    rows, row = kernel.axes[-2:]
    assert row.exact is not None  # see ``_applies``
    interchange = Interchange(kernel, ROWS)
    tiles = {
        operand.name: Local(
            f"{operand.name}_tile",
            compute_dtype(operand.dtype),
            ((row.name, row.exact), (rows.name, ROWS)),
        )
        for operand in _transposed_operands(kernel)
    }
    tile_names = {name: tile.name for name, tile in tiles.items()}
    copies_in, copies_out = [], []
    for operand in kernel.operands:
        if operand.name in tiles:
            tile = tiles[operand.name]
            if operand.mode is not Mode.OUT and operand.name not in outputs:
                copies_in.append(
                    _element_copy(interchange.fresh(tile.dtype), operand.name, tile.name)
                )
            if operand.mode is not Mode.IN:
                copies_out.append(
                    _element_copy(interchange.fresh(tile.dtype), tile.name, operand.name)
                )

    def over_rows(copies: Sequence[Block]) -> list[Statement]:
        return [For(rows.name, Block(body=(For(row.name, copy),))) for copy in copies]

    def in_nest(block: Block) -> Block:
        """Rewrite the innermost loop over rows, inside the loops over outer axes."""
        *before, loop = block.body
        assert isinstance(loop, For)  # the axes around a row are all PARALLEL
        if loop.axis != rows.name:
            return replace(block, body=(*before, replace(loop, body=in_nest(loop.body))))
        work = interchange.strip_body(rows.name, substituted(loop.body, {}, tile_names))
        strip = Block(body=(*over_rows(copies_in), *work.body, *over_rows(copies_out)))
        return replace(block, body=(*before, Strip(rows.name, ROWS, strip)))

    body = in_nest(kernel.body)
    return replace(kernel, body=body, locals=(*tiles.values(), *interchange.locals))


def _element_copy(value: Value, source: str, target: str) -> Block:
    return Block(body=(Load(value, source), Store(target, value)))


def _transposed_operands(kernel: Kernel) -> list[Operand]:
    """Arrays that vary along the last two axes, and are only accessed at the current point."""
    accesses = [s for s in statements(kernel.body) if isinstance(s, Load | Store)]
    accessed_elsewhere = {s.operand for s in accesses if not is_plain_access(s)}
    return [
        operand
        for operand in kernel.operands
        if operand.name not in accessed_elsewhere
        and operand.mode in (Mode.IN, Mode.OUT, Mode.INOUT)
        and len(operand.strides) == len(kernel.axes)
        and Stride.ZERO not in operand.strides[-2:]
    ]
