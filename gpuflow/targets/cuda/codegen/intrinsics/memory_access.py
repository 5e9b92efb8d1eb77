"""Numba intrinsics for accesses to memory: single elements, vectors, and pointers.

Offsets count elements. A "readonly" load goes through the read-only cache: nothing may write the
memory while the kernel runs. Addresses of vector accesses must be multiples of the vector's size.

Tests: tests/targets/cuda/test_cuda_intrinsics.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuflow.targets.cuda.codegen.toolchain import NumbaCuda

if TYPE_CHECKING:
    from llvmlite.ir import NamedValue, Type


def memory_intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    """All intrinsics of this module by name."""
    return {**_elements(tools), **_vector_loads(tools), **_vector_stores(tools)}


def _byte_size(element: Any) -> int:
    """Size of a Numba scalar type in bytes."""
    return element.bitwidth // 8


def _emit_load(builder: Any, pointer: NamedValue, alignment: int, readonly: bool) -> NamedValue:
    """Emit a load of what ``pointer`` points to, which must be aligned to ``alignment`` bytes."""
    value = builder.load(pointer, align=alignment)
    if readonly:
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _elements(tools: NumbaCuda) -> dict[str, Any]:
    ir, types = tools.llvm, tools.types

    @tools.intrinsic
    def load_readonly(typingctx, pointer, index):
        def emit(context, builder, signature, args):
            size = _byte_size(signature.args[0].dtype)
            return _emit_load(builder, builder.gep(args[0], [args[1]]), size, readonly=True)

        return pointer.dtype(pointer, index), emit

    @tools.intrinsic
    def load_shared_by_gpu(typingctx, pointer, index):
        """Load a uint64 that another block stored: from L2, as L1 may be stale."""

        def emit(context, builder, signature, args):
            address = builder.gep(args[0], [args[1]])
            function_type = ir.FunctionType(ir.IntType(64), [address.type])
            text = "ld.global.cg.u64 $0, [$1];"
            asm = ir.InlineAsm(function_type, text, "=l,l,~{memory}", side_effect=True)
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
        """A pointer to elements of ``dtype``, ``count`` bytes after a byte pointer.

        The result must be aligned to ``dtype``.
        """
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
    """``load_vector(pointer, index, width)``: a tuple of ``width`` elements in one access.

    ``width`` is a literal power of two, and the vector has at most 16 bytes.
    """
    ir, types = tools.llvm, tools.types

    def vector_load(pointer, index, width, readonly):
        if not isinstance(width, types.IntegerLiteral):
            return None  # Numba retries with the literal

        def emit(context, builder, signature, args):
            element, count = signature.return_type.dtype, signature.return_type.count
            lane, size = context.get_data_type(element), _byte_size(element)
            chunks = _vector_chunks(ir, lane, size, count)
            address = builder.gep(args[0], [args[1]])
            address = builder.bitcast(address, chunks.vector_type(ir).as_pointer())
            loaded = _emit_load(builder, address, size * count, readonly)
            lanes = []
            for position in range(chunks.count):
                chunk = builder.extract_element(loaded, ir.Constant(ir.IntType(32), position))
                lanes += _unpack_chunk(ir, builder, chunk, lane, size, chunks.lanes_per_chunk)
            return context.make_tuple(builder, signature.return_type, lanes)

        result = types.UniTuple(pointer.dtype, width.literal_value)
        return result(pointer, index, width), emit

    @tools.intrinsic
    def load_vector(typingctx, pointer, index, width):
        return vector_load(pointer, index, width, readonly=False)

    @tools.intrinsic
    def load_vector_readonly(typingctx, pointer, index, width):
        return vector_load(pointer, index, width, readonly=True)

    return {function._name: function for function in (load_vector, load_vector_readonly)}


def _vector_stores(tools: NumbaCuda) -> dict[str, Any]:
    """``store_vector(pointer, index, values)``: a tuple of elements in one access."""
    ir, types = tools.llvm, tools.types

    @tools.intrinsic
    def store_vector(typingctx, pointer, index, values):
        def emit(context, builder, signature, args):
            element, tuple_type = signature.args[0].dtype, signature.args[2]
            lane_type, size = tuple_type.dtype, _byte_size(element)
            lane = context.get_data_type(element)
            chunks = _vector_chunks(ir, lane, size, tuple_type.count)
            stored = ir.Constant(chunks.vector_type(ir), ir.Undefined)
            for position in range(chunks.count):
                first = position * chunks.lanes_per_chunk
                lanes = [
                    context.cast(builder, builder.extract_value(args[2], k), lane_type, element)
                    for k in range(first, first + chunks.lanes_per_chunk)
                ]
                chunk = _pack_chunk(ir, builder, lanes, chunks.chunk_type, size)
                at = ir.Constant(ir.IntType(32), position)
                stored = builder.insert_element(stored, chunk, at)
            address = builder.bitcast(builder.gep(args[0], [args[1]]), stored.type.as_pointer())
            builder.store(stored, address, size * tuple_type.count)
            return context.get_dummy_value()

        return types.void(pointer, index, values), emit

    return {store_vector._name: store_vector}


class _Chunks(NamedTuple):
    """The elements of the LLVM vector of an access.

    Attributes:
        chunk_type: LLVM type of a chunk.
        count: number of chunks in the vector.
        lanes_per_chunk: number of neighboring lanes that share a chunk, lowest bits first.
    """

    chunk_type: Type
    count: int
    lanes_per_chunk: int

    def vector_type(self, ir: ModuleType) -> Type:
        """The LLVM type of the vector."""
        return ir.VectorType(self.chunk_type, self.count)


def _vector_chunks(ir: ModuleType, lane: Type, size: int, width: int) -> _Chunks:
    """The chunks of a vector of ``width`` lanes of ``size`` bytes each.

    NVVM splits vectors of 8- and 16-bit elements into several accesses, so chunks have 32 bits, or
    fewer if the whole vector has.
    """
    if size >= 4:
        return _Chunks(lane, width, 1)
    chunk_bytes = min(4, size * width)
    chunk_type = ir.IntType(8 * chunk_bytes)
    return _Chunks(chunk_type, size * width // chunk_bytes, chunk_bytes // size)


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
    """The chunk of some elements of ``size`` bytes, lowest bits first."""
    if len(lanes) == 1:
        return lanes[0]
    packed = builder.zext(lanes[0], chunk)
    for position, lane in enumerate(lanes[1:], start=1):
        shifted = builder.shl(builder.zext(lane, chunk), ir.Constant(chunk, 8 * size * position))
        packed = builder.or_(packed, shifted)
    return packed
