"""Microkernel of matrix products: multiplies two packed panels to a tile held in registers.

A panel has a row for each step of the depth. A step is an outer product: each element of the left
row is broadcast and multiplied by the right row:

    tile[i, :] += left[step, i] * right[step, :]

A panel of kind ``pairs`` has pairs of int16 instead of elements, so that a step is two elements of
the depth. The sum of both products is one instruction of x86: pmaddwd, or with VNNI vpdpwssd, which
also adds it to the tile. Integers wrap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.kir.scalar import storage_bytes
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.ir_values import Instruction, is_float, llvm_type, shuffle_mask

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


@record
class Panel:
    """The format of panels and tiles of one kind.

    Attributes:
        packed: dtype of a panel's elements.
        summed: dtype of a tile's elements.
        step_depth: elements of the depth per step.
    """

    packed: str
    summed: str
    step_depth: int = 1


PANELS = {
    "float32": Panel("float32", "float32"),
    "int32": Panel("int32", "int32"),
    "int64": Panel("int64", "int64"),
    "pairs": Panel("int16", "int32", 2),
}


_VECTORS = 2  # vectors in a row of a tile
# Intrinsics that multiply int16 and add adjacent products, by the bits of a register.
_PAIR_PRODUCTS = {
    128: "llvm.x86.sse2.pmadd.wd",
    256: "llvm.x86.avx2.pmadd.wd",
    512: "llvm.x86.avx512.pmaddw.d.512",
}


class TileShape(NamedTuple):
    """Rows and columns of a tile."""

    rows: int
    columns: int


def tile_shape(kind: str) -> TileShape:
    """The largest tile that fits in this processor's registers, with rows of two vectors.

    Registers also hold a row of the right panel, and a broadcast element of the left one.
    """
    registers, bits = cpu_target().vector_registers
    if kind == "int64":  # products of int64 need further registers
        return TileShape(registers // 4, _VECTORS * bits // 64)
    return TileShape((registers - 4) // 2, _VECTORS * bits // 32)


def emit_tile(
    kind: str,
    builder: ir.IRBuilder,
    panels: Instruction,
    left: Instruction,
    right: Instruction,
    steps: Instruction,
    tile: Instruction,
) -> None:
    """Emit the product of two panels, which is stored in a tile.

    Args:
        kind: a key of ``PANELS``.
        builder: position of the call.
        panels: array that contains both panels.
        left, right: offsets of the panels, in elements.
        steps: number of rows of each panel.
        tile: array of the tile, row-major.
    """
    element = llvm_type(PANELS[kind].packed).as_pointer()
    array = builder.bitcast(panels, element)
    addresses = [builder.gep(array, [first]) for first in (left, right)]
    sums = builder.bitcast(tile, llvm_type(PANELS[kind].summed).as_pointer())
    builder.call(_function(builder.module, kind), [*addresses, steps, sums])


def _function(module: ir.Module, kind: str) -> Instruction:
    """The microkernel ``void multiply_<kind>(left, right, steps, tile)``, defined on demand."""
    name = f"multiply_{kind}"
    if name in module.globals:
        return module.globals[name]
    panel, (rows, columns) = PANELS[kind], tile_shape(kind)
    int64, summed = ir.IntType(64), llvm_type(panel.summed)
    element = llvm_type(panel.packed).as_pointer()
    arguments = [element, element, int64, summed.as_pointer()]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.update(("nounwind", "noinline"))
    # llvmlite's update() rejects attributes that it does not know; that of set does not.
    set.update(function.attributes, ("memory(argmem: readwrite)", '"prefer-vector-width"="512"'))
    left, right, steps, tile = function.args
    for array in (left, right, tile):
        array.add_attribute("noalias")
    lanes = columns // _VECTORS
    vector = ir.VectorType(summed, lanes)
    entry, head, body, end = (
        function.append_basic_block(name) for name in ("entry", "head", "body", "end")
    )
    builder = ir.IRBuilder(entry)
    builder.branch(head)
    builder.position_at_end(head)
    step = builder.phi(int64)
    sums = [[builder.phi(vector) for _ in range(_VECTORS)] for _ in range(rows)]
    builder.cbranch(builder.icmp_signed("<", step, steps), body, end)
    builder.position_at_end(body)
    alignment = storage_bytes(panel.packed)

    def vectors(array: Instruction, first: int) -> list[Instruction]:
        """The addresses of the vectors of a row that starts at element ``first``."""
        starts = [ir.Constant(int64, first + k * lanes) for k in range(_VECTORS)]
        return [
            builder.bitcast(builder.gep(array, [start]), vector.as_pointer()) for start in starts
        ]

    # A pair counts as one element of the tile's dtype.
    a, b = (
        builder.bitcast(
            builder.gep(side, [builder.mul(step, ir.Constant(int64, count * panel.step_depth))]),
            summed.as_pointer(),
        )
        for side, count in ((left, rows), (right, columns))
    )
    right_row = [builder.load(address, align=alignment) for address in vectors(b, 0)]
    added = []
    for k, running in enumerate(sums):
        number = builder.load(builder.gep(a, [ir.Constant(int64, k)]), align=alignment)
        splat = _splat(builder, number, lanes)
        added.append(
            [
                _multiply_add(builder, panel, splat, factor, total)
                for factor, total in zip(right_row, running, strict=True)
            ]
        )
    following = builder.add(step, ir.Constant(int64, 1))
    builder.branch(head)
    step.add_incoming(ir.Constant(int64, 0), entry)
    step.add_incoming(following, body)
    for row, new_row in zip(sums, added, strict=True):
        for running, new in zip(row, new_row, strict=True):
            running.add_incoming(ir.Constant(vector, [0] * lanes), entry)
            running.add_incoming(new, body)
    builder.position_at_end(end)
    for k, row in enumerate(sums):
        for total, address in zip(row, vectors(tile, k * columns), strict=True):
            builder.store(total, address, align=storage_bytes(panel.summed))
    builder.ret_void()
    return function


def _multiply_add(
    builder: ir.IRBuilder, panel: Panel, a: Instruction, b: Instruction, running: Instruction
) -> Instruction:
    if is_float(panel.summed):
        product = builder.fmul(a, b, flags=("contract",))
        return builder.fadd(running, product, flags=("contract",))
    product = builder.mul(a, b) if panel.step_depth == 1 else _pair_products(builder, a, b)
    return builder.add(running, product)


def _pair_products(builder: ir.IRBuilder, a: Instruction, b: Instruction) -> Instruction:
    """For each pair of int16, the sum of both products as an int32."""
    wide = a.type
    halves = ir.VectorType(ir.IntType(16), 2 * wide.count)
    a, b = builder.bitcast(a, halves), builder.bitcast(b, halves)
    if cpu_target().is_x86:
        function = builder.module.declare_intrinsic(
            _PAIR_PRODUCTS[32 * wide.count], (), ir.FunctionType(wide, [halves, halves])
        )
        return builder.call(function, [a, b])
    products = []
    for half in range(2):
        mask = shuffle_mask([2 * k + half for k in range(wide.count)])
        x, y = (builder.sext(builder.shuffle_vector(v, v, mask), wide) for v in (a, b))
        products.append(builder.mul(x, y))
    return builder.add(*products)


def _splat(builder: ir.IRBuilder, value: Instruction, count: int) -> Instruction:
    empty = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    one = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, empty, shuffle_mask([0] * count))
