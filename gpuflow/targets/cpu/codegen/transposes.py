"""In-register transpose of a square block of elements.

Each row is loaded as a vector. In each stage, rows at a distance of 1, 2, 4 and 8 exchange half of
their elements (J. O. Eklundh, "A fast computer method for matrix transposing", 1972):

    a0 a1 a2 a3        a0 b0 a2 b2        a0 b0 c0 d0
    b0 b1 b2 b3   ->   a1 b1 a3 b3   ->   a1 b1 c1 d1
    c0 c1 c2 c3        c0 d0 c2 d2        a2 b2 c2 d2
    d0 d1 d2 d3        c1 d1 c3 d3        a3 b3 c3 d3

A kernel has one such function for each element width, which its transposed copies call.

Tests: tests/targets/cpu/test_cpu_orders.py, tests/targets/cpu/test_cpu_copies.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.kir.scalar import storage_bytes
from gpuflow.targets.llvm.ir_values import LlvmValue, shuffle_mask

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
    source: LlvmValue,
    source_first: LlvmValue,
    source_pitch: LlvmValue,
    target: LlvmValue,
    target_first: LlvmValue,
    target_pitch: LlvmValue,
) -> None:
    """Emit a transposed copy of a block of ``block_side`` rows and columns.

    The elements of a row must be contiguous in both arrays, and the blocks must not overlap. All
    elements of the block are accessed. Rows need only the alignment of an element.

    Args:
        storage: storage dtype.
        builder: position of the call.
        source, target: pointers to the arrays' first elements, of any type.
        source_first, target_first: offsets of the first row, int64, in elements.
        source_pitch, target_pitch: strides of rows, int64, in elements.
    """
    pointer_type = ir.IntType(8 * storage_bytes(storage)).as_pointer()
    first_rows = [
        builder.gep(builder.bitcast(array, pointer_type), [address])
        for array, address in ((source, source_first), (target, target_first))
    ]
    function = _transpose_function(builder.module, storage)
    builder.call(function, [first_rows[0], source_pitch, first_rows[1], target_pitch])


def _transpose_function(module: ir.Module, storage: str) -> LlvmValue:
    """The function that transposes a block, defined in the module on demand."""
    side, element = block_side(storage), ir.IntType(8 * storage_bytes(storage))
    name = f"transpose_{element.width}"
    if name in module.globals:
        return module.globals[name]
    int64 = ir.IntType(64)
    parameter_types = [element.as_pointer(), int64] * 2
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), parameter_types), name)
    function.linkage = "internal"
    function.attributes.update(("nounwind", "noinline"))
    # llvmlite's update() rejects attributes that it does not know; that of set does not.
    set.update(function.attributes, ("memory(argmem: readwrite)", '"prefer-vector-width"="512"'))
    source, source_pitch, target, target_pitch = function.args
    for array in (source, target):
        array.add_attribute("noalias")
    builder = ir.IRBuilder(function.append_basic_block())
    vector = ir.VectorType(element, side)

    def row_address(array: LlvmValue, pitch: LlvmValue, k: int) -> LlvmValue:
        address = builder.gep(array, [builder.mul(pitch, ir.Constant(int64, k))])
        return builder.bitcast(address, vector.as_pointer())

    alignment = storage_bytes(storage)
    rows = [
        builder.load(row_address(source, source_pitch, k), align=alignment) for k in range(side)
    ]
    for k, value in enumerate(_transposed(builder, rows)):
        builder.store(value, row_address(target, target_pitch, k), align=alignment)
    builder.ret_void()
    return function


def _transposed(builder: ir.IRBuilder, rows: list[LlvmValue]) -> list[LlvmValue]:
    """Emit the stages of the transpose of a square of vectors; its side is a power of two."""
    side, distance = len(rows), 1
    while distance < side:
        masks = [
            shuffle_mask([k if not k & distance else k - distance + side for k in range(side)]),
            shuffle_mask([k + distance if not k & distance else k + side for k in range(side)]),
        ]
        exchanged = list(rows)
        for k in range(side):
            if not k & distance:
                pair = rows[k], rows[k + distance]
                exchanged[k], exchanged[k + distance] = (
                    builder.shuffle_vector(*pair, mask) for mask in masks
                )
        rows, distance = exchanged, 2 * distance
    return rows
