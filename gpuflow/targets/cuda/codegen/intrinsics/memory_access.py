"""Numba intrinsics for accesses to memory: single elements, vectors, and pointers.

Offsets count elements. A "readonly" load goes through the read-only cache: nothing may write the
memory while the kernel runs. Addresses of vector accesses must be multiples of the vector's size.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpuflow.targets.cuda.codegen.toolchain import NumbaCuda

if TYPE_CHECKING:
    from llvmlite.ir import NamedValue, Type


def memory_intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    """All intrinsics of this module by name."""
    return {**_elements(tools), **_vector_loads(tools), **_vector_stores(tools)}


def _bytes(element: Any) -> int:
    return element.bitwidth // 8


def _emit_load(builder: Any, pointer: NamedValue, alignment: int, readonly: bool) -> NamedValue:
    value = builder.load(pointer, align=alignment)
    if readonly:
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _elements(tools: NumbaCuda) -> dict[str, Any]:
    ir, types = tools.llvm, tools.types

    @tools.intrinsic
    def load_readonly(typingctx, pointer, index):
        def emit(context, builder, signature, args):
            size = _bytes(signature.args[0].dtype)
            return _emit_load(builder, builder.gep(args[0], [args[1]]), size, readonly=True)

        return pointer.dtype(pointer, index), emit

    @tools.intrinsic
    def load_shared_by_gpu(typingctx, pointer, index):
        """Load a uint64 that another block stored: from L2, as L1 may be stale."""

        def emit(context, builder, signature, args):
            address = builder.gep(args[0], [args[1]])
            kind = ir.FunctionType(ir.IntType(64), [address.type])
            text = "ld.global.cg.u64 $0, [$1];"
            asm = ir.InlineAsm(kind, text, "=l,l,~{memory}", side_effect=True)
            return builder.call(asm, [address])

        return types.uint64(types.CPointer(types.uint64), index), emit

    @tools.intrinsic
    def pointer_from_address(typingctx, address, dtype):
        """A pointer to global memory from an address, an int64."""
        element = dtype.instance_type

        def emit(context, builder, signature, args):
            generic = context.get_data_type(element).as_pointer()
            # Address space 1 tells NVVM that it is global memory.
            in_global = ir.PointerType(generic.pointee, addrspace=1)
            return builder.addrspacecast(builder.inttoptr(args[0], in_global), generic)

        return types.CPointer(element)(types.int64, dtype), emit

    @tools.intrinsic
    def pointer_within(typingctx, pointer, count, dtype):
        """A pointer to elements of ``dtype``, ``count`` bytes after a byte pointer."""
        element = dtype.instance_type

        def emit(context, builder, signature, args):
            start = builder.gep(args[0], [args[1]])
            return builder.bitcast(start, context.get_data_type(element).as_pointer())

        return types.CPointer(element)(types.CPointer(types.uint8), types.int64, dtype), emit

    @tools.intrinsic
    def address_of(typingctx, pointer):
        """The address of a pointer as an int64."""

        def emit(context, builder, signature, args):
            return builder.ptrtoint(args[0], ir.IntType(64))

        return types.int64(pointer), emit

    functions = (
        address_of,
        load_readonly,
        load_shared_by_gpu,
        pointer_from_address,
        pointer_within,
    )
    return {function._name: function for function in functions}


def _vector_loads(tools: NumbaCuda) -> dict[str, Any]:
    """``load_vector(pointer, index, width)``: a tuple of ``width`` elements in one access."""
    ir, types = tools.llvm, tools.types

    def typed(pointer, index, width, readonly):
        if not isinstance(width, types.IntegerLiteral):
            return None  # Numba retries with the literal

        def emit(context, builder, signature, args):
            element, count = signature.return_type.dtype, signature.return_type.count
            lane, size = context.get_data_type(element), _bytes(element)
            chunk, chunks, lanes_per_chunk = _vector_chunks(ir, lane, size, count)
            address = builder.gep(args[0], [args[1]])
            address = builder.bitcast(address, ir.VectorType(chunk, chunks).as_pointer())
            loaded = _emit_load(builder, address, size * count, readonly)
            lanes = []
            for position in range(chunks):
                chunk_value = builder.extract_element(loaded, ir.Constant(ir.IntType(32), position))
                lanes += _unpack_chunk(ir, builder, chunk_value, lane, size, lanes_per_chunk)
            return context.make_tuple(builder, signature.return_type, lanes)

        result = types.UniTuple(pointer.dtype, width.literal_value)
        return result(pointer, index, width), emit

    @tools.intrinsic
    def load_vector(typingctx, pointer, index, width):
        return typed(pointer, index, width, readonly=False)

    @tools.intrinsic
    def load_vector_readonly(typingctx, pointer, index, width):
        return typed(pointer, index, width, readonly=True)

    return {function._name: function for function in (load_vector, load_vector_readonly)}


def _vector_stores(tools: NumbaCuda) -> dict[str, Any]:
    """``store_vector(pointer, index, values)``: a tuple of elements in one access."""
    ir, types = tools.llvm, tools.types

    @tools.intrinsic
    def store_vector(typingctx, pointer, index, values):
        def emit(context, builder, signature, args):
            element, tuple_type = signature.args[0].dtype, signature.args[2]
            lane_type, size = tuple_type.dtype, _bytes(element)
            lane = context.get_data_type(element)
            chunk, chunks, lanes_per_chunk = _vector_chunks(ir, lane, size, tuple_type.count)
            stored = ir.Constant(ir.VectorType(chunk, chunks), ir.Undefined)
            for position in range(chunks):
                first = position * lanes_per_chunk
                lanes = [
                    context.cast(builder, builder.extract_value(args[2], k), lane_type, element)
                    for k in range(first, first + lanes_per_chunk)
                ]
                chunk_value = _pack_chunk(ir, builder, lanes, chunk, size)
                at = ir.Constant(ir.IntType(32), position)
                stored = builder.insert_element(stored, chunk_value, at)
            address = builder.bitcast(builder.gep(args[0], [args[1]]), stored.type.as_pointer())
            builder.store(stored, address, size * tuple_type.count)
            return context.get_dummy_value()

        return types.void(pointer, index, values), emit

    return {store_vector._name: store_vector}


def _vector_chunks(ir: ModuleType, lane: Type, size: int, width: int) -> tuple[Type, int, int]:
    """The chunks of a vector of ``width`` lanes of ``size`` bytes: (type, count, lanes per chunk).

    A chunk is an element of the LLVM vector. NVVM splits vectors of 8- and 16-bit elements into
    several accesses, so chunks have 32 bits, or fewer if the whole vector has.
    """
    if size >= 4:
        return lane, width, 1
    chunk_bytes = min(4, size * width)
    return ir.IntType(8 * chunk_bytes), size * width // chunk_bytes, chunk_bytes // size


def _unpack_chunk(
    ir: ModuleType, builder: Any, chunk: NamedValue, lane: Type, size: int, lanes: int
) -> list[NamedValue]:
    """The ``lanes`` elements in one loaded chunk, lowest bits first."""
    if lanes == 1:
        return [chunk]
    elements = []
    for position in range(lanes):
        shift = ir.Constant(chunk.type, 8 * size * position)
        elements.append(builder.trunc(builder.lshr(chunk, shift) if position else chunk, lane))
    return elements


def _pack_chunk(
    ir: ModuleType, builder: Any, lanes: list[NamedValue], chunk: Type, size: int
) -> NamedValue:
    """The chunk of some elements, lowest bits first."""
    if len(lanes) == 1:
        return lanes[0]
    packed = builder.zext(lanes[0], chunk)
    for position, lane in enumerate(lanes[1:], start=1):
        shifted = builder.shl(builder.zext(lane, chunk), ir.Constant(chunk, 8 * size * position))
        packed = builder.or_(packed, shifted)
    return packed
