"""Microkernel of matrix products: multiplies two packed panels to a tile held in registers.

A panel has a row for each step of the depth. A step is an outer product: each element of the left
row is broadcast and multiplied by the right row:

    tile[i, :] += left[step, i] * right[step, :]

A panel of kind ``pairs`` has pairs of int16 instead of elements, so that a step is two elements of
the depth. The sum of both products is one instruction of x86: pmaddwd, or with VNNI vpdpwssd, which
also adds it to the tile. Integers wrap.

``printing/packed_products`` packs the panels.

Tests: tests/targets/cpu/test_packed_products.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.kir.scalar import storage_bytes
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.ir_values import LlvmValue, is_float, llvm_type, shuffle_mask

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


@record
class PanelFormat:
    """The format of panels and tiles of one kind.

    Attributes:
        packed: dtype of a panel's elements.
        summed: dtype of a tile's elements; ``step_depth`` elements of a panel have its size.
        step_depth: elements of the depth per step; a panel's row has as many for each row or column
            of the tile, one after the other.
    """

    packed: str
    summed: str
    step_depth: int = 1


PANEL_FORMATS = {
    "float32": PanelFormat("float32", "float32"),
    "int32": PanelFormat("int32", "int32"),
    "int64": PanelFormat("int64", "int64"),
    "pairs": PanelFormat("int16", "int32", 2),
}


_VECTORS_PER_ROW = 2  # of a tile
# Intrinsics that multiply int16 and add adjacent products, by the bits of a register.
_PAIR_PRODUCT_INTRINSICS = {
    128: "llvm.x86.sse2.pmadd.wd",
    256: "llvm.x86.avx2.pmadd.wd",
    512: "llvm.x86.avx512.pmaddw.d.512",
}


class TileShape(NamedTuple):
    """Rows and columns of a tile: sizes of a left and a right panel."""

    rows: int
    columns: int


def tile_shape(kind: str) -> TileShape:
    """The largest tile that fits in this processor's registers, with rows of two vectors.

    Registers also hold a row of the right panel, and a broadcast element of the left one.
    """
    registers, bits = cpu_target().vector_registers
    if kind == "int64":  # products of int64 need further registers
        return TileShape(registers // 4, _VECTORS_PER_ROW * bits // 64)
    return TileShape((registers - 4) // 2, _VECTORS_PER_ROW * bits // 32)


def emit_tile(
    kind: str,
    builder: ir.IRBuilder,
    panels: LlvmValue,
    left: LlvmValue,
    right: LlvmValue,
    steps: LlvmValue,
    tile: LlvmValue,
) -> None:
    """Emit the product of two panels, which is stored in a tile.

    Args:
        kind: a key of ``PANEL_FORMATS``.
        builder: position of the call.
        panels: array that contains both panels, aligned to an element.
        left, right: offsets of the panels, int64 in elements of the ``packed`` dtype.
        steps: number of rows of each panel, an int64; 0 stores zeros.
        tile: row-major array of ``tile_shape(kind)``, which is overwritten. It must not overlap the
            panels.
    """
    element_type = llvm_type(PANEL_FORMATS[kind].packed).as_pointer()
    array = builder.bitcast(panels, element_type)
    addresses = [builder.gep(array, [first]) for first in (left, right)]
    sums = builder.bitcast(tile, llvm_type(PANEL_FORMATS[kind].summed).as_pointer())
    builder.call(_microkernel(builder.module, kind), [*addresses, steps, sums])


def _microkernel(module: ir.Module, kind: str) -> LlvmValue:
    """The microkernel ``void multiply_<kind>(left, right, steps, tile)``, defined on demand."""
    name = f"multiply_{kind}"
    if name in module.globals:
        return module.globals[name]
    panel_format, (rows, columns) = PANEL_FORMATS[kind], tile_shape(kind)
    int64, summed = ir.IntType(64), llvm_type(panel_format.summed)
    panel_pointer = llvm_type(panel_format.packed).as_pointer()
    parameters = [panel_pointer, panel_pointer, int64, summed.as_pointer()]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), parameters), name)
    function.linkage = "internal"
    function.attributes.update(("nounwind", "noinline"))
    # llvmlite's update() rejects attributes that it does not know; that of set does not.
    set.update(function.attributes, ("memory(argmem: readwrite)", '"prefer-vector-width"="512"'))
    left, right, steps, tile = function.args
    for array in (left, right, tile):
        array.add_attribute("noalias")
    lanes = columns // _VECTORS_PER_ROW
    vector = ir.VectorType(summed, lanes)
    entry, head, body, end = (
        function.append_basic_block(name) for name in ("entry", "head", "body", "end")
    )
    builder = ir.IRBuilder(entry)
    builder.branch(head)
    builder.position_at_end(head)
    step = builder.phi(int64)
    sums = [[builder.phi(vector) for _ in range(_VECTORS_PER_ROW)] for _ in range(rows)]
    builder.cbranch(builder.icmp_signed("<", step, steps), body, end)
    builder.position_at_end(body)
    alignment = storage_bytes(panel_format.packed)

    def vectors(array: LlvmValue, first: int) -> list[LlvmValue]:
        """The addresses of the vectors of a row that starts at element ``first``."""
        starts = [ir.Constant(int64, first + k * lanes) for k in range(_VECTORS_PER_ROW)]
        return [
            builder.bitcast(builder.gep(array, [start]), vector.as_pointer()) for start in starts
        ]

    def row_start(panel: LlvmValue, size: int) -> LlvmValue:
        """The address of the current step's row. A pair counts as one element of the tile."""
        elements = ir.Constant(int64, size * panel_format.step_depth)
        row = builder.gep(panel, [builder.mul(step, elements)])
        return builder.bitcast(row, summed.as_pointer())

    left_row_start, right_row_start = row_start(left, rows), row_start(right, columns)
    right_row = [builder.load(address, align=alignment) for address in vectors(right_row_start, 0)]
    new_sums = []
    for k, row_sums in enumerate(sums):
        address = builder.gep(left_row_start, [ir.Constant(int64, k)])
        left_element = _broadcast(builder, builder.load(address, align=alignment), lanes)
        new_sums.append(
            [
                _multiply_add(builder, panel_format, left_element, right_vector, total)
                for right_vector, total in zip(right_row, row_sums, strict=True)
            ]
        )
    next_step = builder.add(step, ir.Constant(int64, 1))
    builder.branch(head)
    step.add_incoming(ir.Constant(int64, 0), entry)
    step.add_incoming(next_step, body)
    for row_sums, new_row_sums in zip(sums, new_sums, strict=True):
        for total, new_total in zip(row_sums, new_row_sums, strict=True):
            total.add_incoming(ir.Constant(vector, [0] * lanes), entry)
            total.add_incoming(new_total, body)
    builder.position_at_end(end)
    for k, row_sums in enumerate(sums):
        for total, address in zip(row_sums, vectors(tile, k * columns), strict=True):
            builder.store(total, address, align=storage_bytes(panel_format.summed))
    builder.ret_void()
    return function


def _multiply_add(
    builder: ir.IRBuilder,
    panel_format: PanelFormat,
    left: LlvmValue,
    right: LlvmValue,
    running: LlvmValue,
) -> LlvmValue:
    """The sum of ``running`` and the products of two vectors with the tile's dtype."""
    if is_float(panel_format.summed):
        product = builder.fmul(left, right, flags=("contract",))
        return builder.fadd(running, product, flags=("contract",))
    is_pair = panel_format.step_depth == 2
    product = _pair_products(builder, left, right) if is_pair else builder.mul(left, right)
    return builder.add(running, product)


def _pair_products(builder: ir.IRBuilder, left: LlvmValue, right: LlvmValue) -> LlvmValue:
    """For each pair of int16, the sum of both products as an int32.

    Operands are vectors of int32, each of which is a pair.
    """
    sum_type = left.type
    pair_type = ir.VectorType(ir.IntType(16), 2 * sum_type.count)
    left, right = builder.bitcast(left, pair_type), builder.bitcast(right, pair_type)
    if cpu_target().is_x86:
        function = builder.module.declare_intrinsic(
            _PAIR_PRODUCT_INTRINSICS[32 * sum_type.count],
            (),
            ir.FunctionType(sum_type, [pair_type, pair_type]),
        )
        return builder.call(function, [left, right])
    products = []
    for component in range(2):
        mask = shuffle_mask([2 * k + component for k in range(sum_type.count)])
        x, y = (builder.sext(builder.shuffle_vector(v, v, mask), sum_type) for v in (left, right))
        products.append(builder.mul(x, y))
    return builder.add(*products)


def _broadcast(builder: ir.IRBuilder, value: LlvmValue, lanes: int) -> LlvmValue:
    """The vector of a scalar in all lanes."""
    undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    inserted = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(inserted, undefined, shuffle_mask([0] * lanes))
