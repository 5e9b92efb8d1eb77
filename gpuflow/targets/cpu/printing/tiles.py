"""Prints map kernels that read across rows for the CPU: in tiles, by way of the stack.

Where the output goes along a row, a transposed operand goes down a column, and touches a cache line
for each element. In a tile, all of a line is used: the tile of such an operand is copied to the
stack in its own order, and read in the output's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gpuflow.kir.nodes import (
    Axis,
    Block,
    For,
    Kernel,
    Load,
    Mode,
    Operand,
    Role,
    Store,
    Stride,
    remembered,
)
from gpuflow.kir.scalar import compute_dtype
from gpuflow.kir.walk import is_whole, statements
from gpuflow.targets.cpu.codegen.text_names import TILE
from gpuflow.targets.cpu.printing.loop_printer import CpuPrinter

BAND = 256  # rows that are done before the next: their memory pages stay known
KIND = "tiled"  # a map whose transposed operands are read in tiles


def across_operands(kernel: Kernel) -> tuple[Operand, ...]:
    """The operands that may lie across the rows of a map, by what the kernel does with them."""
    accesses = [s for s in statements(kernel.body) if isinstance(s, Load | Store)]
    elsewhere = {s.operand for s in accesses if not is_whole(s)}
    return tuple(
        operand
        for operand in kernel.operands
        if operand.mode is Mode.IN
        and operand.name not in elsewhere
        and operand.strides[-2:] == (Stride.ANY, Stride.ANY)
    )


def can_be_tiled(kernel: Kernel) -> bool:
    """Whether a map is a nest of loops with all of its work in the innermost two."""
    return remembered(kernel, _can_be_tiled)


def _can_be_tiled(kernel: Kernel) -> bool:
    if kernel.kind != "map" or len(kernel.axes) < 2 or kernel.segmented:
        return False
    if any(axis.role is not Role.PARALLEL for axis in kernel.axes):
        return False
    block, depth = kernel.body, 0
    while block.body and isinstance(block.body[-1], For):
        if block.body[-1].axis != kernel.axes[depth].name:
            return False
        block, depth = block.body[-1].body, depth + 1
    loops = [s for s in statements(kernel.body) if isinstance(s, For)]
    return depth == len(kernel.axes) == len(loops) and bool(across_operands(kernel))


class TilePrinter(CpuPrinter):
    """A CpuPrinter that runs the innermost two axes of a map tile by tile."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._outer, self._inner = kernel.axes[-2:]
        self._tiles = {o.name: f"{o.name}_tile" for o in across_operands(kernel)}
        self._is_open = False

    def loop(self, s: For) -> None:
        if s.axis != self._outer.name:
            super().loop(s)
            return
        operands = [self.operands[name] for name in self._tiles]
        for operand in operands:
            self.emit(f"{self._tiles[operand.name]} = tile_{compute_dtype(operand.dtype)}()")
        first, last = self.span(self._outer)
        extent = ("0", self.names.extent(self._inner))
        with (
            self._tiles_of(f"{self._outer.name}_band", first, last, BAND) as band,
            self._tiles_of(self._inner.name, *extent, TILE),
            self._tiles_of(self._outer.name, *band, TILE),
        ):
            for operand in operands:
                self._fill(operand)
            self._is_open = True
            with self._inside((self._outer,), s.body):
                self.block(s.body)
            self._is_open = False

    @contextmanager
    def _tiles_of(self, name: str, first: str, last: str, size: int) -> Iterator[tuple[str, str]]:
        """A loop over pieces of ``first..last``; yields where a piece starts and ends."""
        bits = size.bit_length() - 1
        blocks = f"({last} - {first} + {size - 1}) >> {bits}"
        start, end = f"{name}_start", f"{name}_end"
        with self.indented(f"for {name}_block in range({blocks}):"):
            self.emit(f"{start} = {first} + ({name}_block << {bits})")
            self.emit(f"{end} = min_int64({start} + {size}, {last})")
            yield start, end

    @contextmanager
    def _inside(self, axes: Sequence[Axis], body: Block) -> Iterator[None]:
        """Loops over a tile."""
        with ExitStack() as loops:
            for axis in axes:
                loops.enter_context(self.indented(self._head(axis, self._tile_span(axis))))
                loops.enter_context(self.at_point(axis, body))
            yield

    def _tile_span(self, axis: Axis) -> tuple[str, str]:
        return f"{axis.name}_start", f"{axis.name}_end"

    def _fill(self, operand: Operand) -> None:
        """Copy a tile to the stack, down the columns, which are lines of memory."""
        loads = [s for s in statements(self.kernel.body) if isinstance(s, Load)]
        access = Block(body=(next(s for s in loads if s.operand == operand.name),))
        with self._inside((self._inner, self._outer), access):
            element = super().load(operand, self.offsets[operand.name])
            dtype = compute_dtype(operand.dtype)
            self.emit(f"store_{dtype}({self._place(operand)}, {element})")

    def _place(self, operand: Operand) -> str:
        """The tile and the index in it, as arguments."""
        down, along = (f"({axis.name} - {axis.name}_start)" for axis in (self._outer, self._inner))
        return f"{self._tiles[operand.name]}, {along} * {TILE} + {down}"

    def span(self, axis: Axis) -> tuple[str, str]:
        if self._is_open and axis is self._inner:
            return self._tile_span(axis)
        return super().span(axis)

    def load(self, operand: Operand, offset: str) -> str:
        if self._is_open and operand.name in self._tiles:
            return f"load_{compute_dtype(operand.dtype)}({self._place(operand)})"
        return super().load(operand, offset)
