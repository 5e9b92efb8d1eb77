"""In-register transpose of a square block of elements.

Each row is loaded as a vector. In each stage, rows at a distance of 1, 2, 4 and 8 exchange half of
their elements (J. O. Eklundh, "A fast computer method for matrix transposing", 1972):

    a0 a1 a2 a3        a0 b0 a2 b2        a0 b0 c0 d0
    b0 b1 b2 b3   ->   a1 b1 a3 b3   ->   a1 b1 c1 d1
    c0 c1 c2 c3        c0 d0 c2 d2        a2 b2 c2 d2
    d0 d1 d2 d3        c1 d1 c3 d3        a3 b3 c3 d3

A kernel has one such function for each element width, which its transposed copies call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.kir.scalar import storage_bytes
from gpuflow.targets.llvm.ir_values import Instruction, shuffle_mask

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


def block_side(storage: str) -> int:
    """Number of rows and columns of a block; a row has at most 512 bits."""
    return 8 if storage_bytes(storage) == 8 else 16


def emit_transpose(
    storage: str,
    builder: ir.IRBuilder,
    source: Instruction,
    source_first: Instruction,
    source_pitch: Instruction,
    target: Instruction,
    target_first: Instruction,
    target_pitch: Instruction,
) -> None:
    """Emit a transposed copy of a block. The elements of a row must be contiguous.

    Args:
        storage: storage dtype.
        builder: position of the call.
        source, target: the arrays.
        source_first, target_first: offsets of the first row, in elements.
        source_pitch, target_pitch: strides of rows, in elements.
    """
    kind = ir.IntType(8 * storage_bytes(storage)).as_pointer()
    first = [
        builder.gep(builder.bitcast(array, kind), [address])
        for array, address in ((source, source_first), (target, target_first))
    ]
    function = _function(builder.module, storage)
    builder.call(function, [first[0], source_pitch, first[1], target_pitch])


def _function(module: ir.Module, storage: str) -> Instruction:
    """The function that transposes a block, defined in the module on demand."""
    side, element = block_side(storage), ir.IntType(8 * storage_bytes(storage))
    name = f"transpose_{element.width}"
    if name in module.globals:
        return module.globals[name]
    int64 = ir.IntType(64)
    pointers = [element.as_pointer(), int64] * 2
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), pointers), name)
    function.linkage = "internal"
    function.attributes.update(("nounwind", "noinline"))
    # llvmlite's update() rejects attributes that it does not know; that of set does not.
    set.update(function.attributes, ("memory(argmem: readwrite)", '"prefer-vector-width"="512"'))
    source, source_pitch, target, target_pitch = function.args
    for array in (source, target):
        array.add_attribute("noalias")
    builder = ir.IRBuilder(function.append_basic_block())
    vector = ir.VectorType(element, side)

    def row(array: Instruction, pitch: Instruction, k: int) -> Instruction:
        address = builder.gep(array, [builder.mul(pitch, ir.Constant(int64, k))])
        return builder.bitcast(address, vector.as_pointer())

    alignment = storage_bytes(storage)
    rows = [builder.load(row(source, source_pitch, k), align=alignment) for k in range(side)]
    for k, value in enumerate(_transposed(builder, rows)):
        builder.store(value, row(target, target_pitch, k), align=alignment)
    builder.ret_void()
    return function


def _transposed(builder: ir.IRBuilder, rows: list[Instruction]) -> list[Instruction]:
    """Emit the stages of the transpose of a square of vectors."""
    side, distance = len(rows), 1
    while distance < side:
        halves = [
            shuffle_mask([k if not k & distance else k - distance + side for k in range(side)]),
            shuffle_mask([k + distance if not k & distance else k + side for k in range(side)]),
        ]
        exchanged = list(rows)
        for k in range(side):
            if not k & distance:
                pair = rows[k], rows[k + distance]
                exchanged[k], exchanged[k + distance] = (
                    builder.shuffle_vector(*pair, mask) for mask in halves
                )
        rows, distance = exchanged, 2 * distance
    return rows
