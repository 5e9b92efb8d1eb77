"""Functions that printed CUDA source may call and that Numba does not have.

Each is a Numba intrinsic: it emits LLVM instructions or one line of PTX. They are made from the
loaded numba-cuda, so that importing this module costs nothing. Grouped by what they are for:

    memory    load_readonly  load_vector  load_vector_readonly  store_vector  load_shared_by_gpu
              pointer_from_address
    threads   shuffle_xor  shared_array  barrier  count_block_done
    numbers   see cuda_arithmetic.py

16-bit floats are never given to Numba as such: pointers are uint16 and arithmetic is float32,
because Numba's own half types call functions that exist only inside Numba.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from gpuflow.compiler.cuda_arithmetic import arithmetic_intrinsics
from gpuflow.compiler.cuda_toolchain import NumbaCuda

VECTOR_BYTES = 16  # the widest access of one thread


@functools.lru_cache(maxsize=1)
def _intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    return {
        **_memory_intrinsics(tools),
        **_thread_intrinsics(tools),
        **arithmetic_intrinsics(tools),
    }


def source_namespace(tools: NumbaCuda) -> dict[str, Any]:
    """Every name that printed source may use, in a fresh dictionary to execute it in."""
    import_free = {
        "math": math,
        "cuda": tools.cuda,
        "libdevice": tools.libdevice,
        "device_function": tools.cuda.jit(device=True),
    }
    names = ["boolean", "float32", "float64"]
    names += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    dtypes = {name: getattr(tools.types, name) for name in names}
    return {**import_free, **dtypes, **_intrinsics(tools)}


def _memory_intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    """Global loads and stores of one element or of a vector of up to 16 bytes."""
    ir, types = tools.llvm, tools.types

    def emit_load(builder, pointer, alignment, readonly):
        value = builder.load(pointer, align=alignment)
        if readonly:
            value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value

    def one(readonly):
        def emit(context, builder, signature, args):
            element = signature.args[0].dtype
            return emit_load(builder, builder.gep(args[0], [args[1]]), _bytes(element), readonly)

        return emit

    @tools.intrinsic
    def load_readonly(typingctx, pointer, index):
        return pointer.dtype(pointer, index), one(readonly=True)

    def vector(readonly):
        def emit(context, builder, signature, args):
            element, width = signature.return_type.dtype, signature.return_type.count
            lane = context.get_data_type(element)
            size = _bytes(element)
            address = builder.gep(args[0], [args[1]])
            word, words, lanes_per_word = _vector_words(ir, lane, size, width)
            pointer = builder.bitcast(address, ir.VectorType(word, words).as_pointer())
            loaded = emit_load(builder, pointer, size * width, readonly)
            lanes = []
            for position in range(words):
                part = builder.extract_element(loaded, ir.Constant(ir.IntType(32), position))
                lanes += _split_word(ir, builder, part, lane, size, lanes_per_word)
            return context.make_tuple(builder, signature.return_type, lanes)

        return emit

    def typed_vector(pointer, index, width, readonly):
        if not isinstance(width, types.IntegerLiteral):
            return None  # Numba asks again with the literal
        result = types.UniTuple(pointer.dtype, width.literal_value)
        return result(pointer, index, width), vector(readonly)

    @tools.intrinsic
    def load_vector(typingctx, pointer, index, width):
        return typed_vector(pointer, index, width, readonly=False)

    @tools.intrinsic
    def load_vector_readonly(typingctx, pointer, index, width):
        return typed_vector(pointer, index, width, readonly=True)

    @tools.intrinsic
    def store_vector(typingctx, pointer, index, values):
        def emit(context, builder, signature, args):
            element, width = signature.args[0].dtype, signature.args[2].count
            lane = context.get_data_type(element)
            size = _bytes(element)
            word, words, lanes_per_word = _vector_words(ir, lane, size, width)
            stored = ir.Constant(ir.VectorType(word, words), ir.Undefined)
            for position in range(words):
                first = position * lanes_per_word
                lanes = []
                for lane_number in range(first, first + lanes_per_word):
                    value = builder.extract_value(args[2], lane_number)
                    lanes.append(context.cast(builder, value, signature.args[2].dtype, element))
                part = _join_word(ir, builder, lanes, word, size)
                at = ir.Constant(ir.IntType(32), position)
                stored = builder.insert_element(stored, part, at)
            address = builder.gep(args[0], [args[1]])
            builder.store(stored, builder.bitcast(address, stored.type.as_pointer()), size * width)
            return context.get_dummy_value()

        return types.void(pointer, index, values), emit

    @tools.intrinsic
    def load_shared_by_gpu(typingctx, pointer, index):
        """Read what another block wrote: from L2, past this multiprocessor's stale L1."""

        def emit(context, builder, signature, args):
            element = signature.args[0].dtype
            lane = context.get_data_type(element)
            bits = 8 * _bytes(element)
            address = builder.gep(args[0], [args[1]])
            register = {16: "h", 32: "r", 64: "l"}[max(bits, 16)]
            result = ir.IntType(max(bits, 16))
            text = f"ld.global.cg.u{bits} $0, [$1];"
            kind = ir.FunctionType(result, [address.type])
            asm = ir.InlineAsm(kind, text, f"={register},l,~{{memory}}", side_effect=True)
            loaded = builder.call(asm, [address])
            if bits < 16:
                return builder.trunc(loaded, lane)
            return builder.bitcast(loaded, lane)

        return pointer.dtype(pointer, index), emit

    @tools.intrinsic
    def pointer_from_address(typingctx, address, dtype):
        """A pointer to global memory from the integer that a table holds."""
        element = dtype.instance_type

        def emit(context, builder, signature, args):
            generic = context.get_data_type(element).as_pointer()
            # Passing through address space 1 tells NVVM that it is global memory.
            in_global = ir.PointerType(generic.pointee, addrspace=1)
            return builder.addrspacecast(builder.inttoptr(args[0], in_global), generic)

        return types.CPointer(element)(types.int64, dtype), emit

    functions = (
        load_readonly, load_vector, load_vector_readonly, store_vector, load_shared_by_gpu,
        pointer_from_address,
    )  # fmt: skip
    return {function._name: function for function in functions}


def _bytes(element: Any) -> int:
    return element.bitwidth // 8


def _vector_words(ir: Any, lane: Any, size: int, width: int) -> tuple[Any, int, int]:
    """How to read ``width`` lanes of ``size`` bytes: (word type, words, lanes per word).

    NVVM splits vectors of 8- and 16-bit elements into several accesses, so those travel as 32-bit
    words (or as one narrower word when the whole vector is narrower).
    """
    if size >= 4:
        return lane, width, 1
    word_bytes = min(4, size * width)
    return ir.IntType(8 * word_bytes), size * width // word_bytes, word_bytes // size


def _split_word(ir: Any, builder: Any, word: Any, lane: Any, size: int, lanes: int) -> list[Any]:
    """The ``lanes`` elements inside one loaded word, lowest bits first."""
    if lanes == 1:
        return [word]
    parts = []
    for position in range(lanes):
        shift = ir.Constant(word.type, 8 * size * position)
        parts.append(builder.trunc(builder.lshr(word, shift) if position else word, lane))
    return parts


def _join_word(ir: Any, builder: Any, lanes: list[Any], word: Any, size: int) -> Any:
    """One word to store, from its elements, lowest bits first."""
    if len(lanes) == 1:
        return lanes[0]
    joined = builder.zext(lanes[0], word)
    for position, lane in enumerate(lanes[1:], start=1):
        shifted = builder.shl(builder.zext(lane, word), ir.Constant(word, 8 * size * position))
        joined = builder.or_(joined, shifted)
    return joined


def _call_convergent(builder: Any, asm: Any, args: list[Any]) -> Any:
    """Call what all threads must reach together, so that LLVM moves it into no branch.

    The function around it is marked too: until it is inlined, its calls are what LLVM looks at.
    """
    builder.function.attributes.add("convergent")
    return builder.call(asm, args, attrs=("convergent",))


def _thread_intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    """Exchange within a warp, a block and the grid."""
    ir, types = tools.llvm, tools.types
    word = ir.IntType(32)

    def shuffle_word(builder, value, distance):
        """One 32-bit exchange between lanes whose numbers differ in the bits of ``distance``."""
        text = f"shfl.sync.bfly.b32 $0, $1, {distance}, 0x1f, 0xffffffff;"
        asm = ir.InlineAsm(ir.FunctionType(word, [word]), text, "=r,r", side_effect=True)
        return _call_convergent(builder, asm, [value])

    def shuffle_bits(builder, bits, distance):
        """Exchange an integer of any width; 64 bits go as two halves."""
        width = bits.type.width
        if width <= 32:
            wide = builder.zext(bits, word) if width < 32 else bits
            moved = shuffle_word(builder, wide, distance)
            return builder.trunc(moved, bits.type) if width < 32 else moved
        low = shuffle_word(builder, builder.trunc(bits, word), distance)
        high = builder.trunc(builder.lshr(bits, ir.Constant(bits.type, 32)), word)
        high = builder.zext(shuffle_word(builder, high, distance), bits.type)
        low = builder.zext(low, bits.type)
        return builder.or_(builder.shl(high, ir.Constant(bits.type, 32)), low)

    @tools.intrinsic
    def shuffle_xor(typingctx, value, distance):
        """The value that lane ``lane ^ distance`` of the warp holds; all 32 lanes take part."""
        if not isinstance(distance, types.IntegerLiteral):
            return None

        def emit(context, builder, signature, args):
            kind = args[0].type
            if isinstance(kind, ir.IntType):
                return shuffle_bits(builder, args[0], distance.literal_value)
            bits = builder.bitcast(args[0], ir.IntType(64 if kind == ir.DoubleType() else 32))
            return builder.bitcast(shuffle_bits(builder, bits, distance.literal_value), kind)

        plain = types.unliteral(value)
        return plain(plain, distance), emit

    @tools.intrinsic
    def shared_array(typingctx, dtype, count):
        """A pointer to ``count`` elements of shared memory of the block; one array per call."""
        if not isinstance(count, types.IntegerLiteral):
            return None
        element = dtype.instance_type

        def emit(context, builder, signature, args):
            kind = ir.ArrayType(context.get_data_type(element), count.literal_value)
            name = builder.module.get_unique_name("shared_array")
            array = ir.GlobalVariable(builder.module, kind, name, addrspace=3)
            array.linkage = "internal"
            array.initializer = ir.Constant(kind, ir.Undefined)
            array.align = VECTOR_BYTES
            generic = builder.addrspacecast(array, kind.as_pointer())
            return builder.bitcast(generic, kind.element.as_pointer())

        return types.CPointer(element)(dtype, count), emit

    @tools.intrinsic
    def barrier(typingctx):
        """Wait for all threads of the block; what they wrote before is visible after."""

        def emit(context, builder, signature, args):
            kind = ir.FunctionType(ir.VoidType(), [])
            asm = ir.InlineAsm(kind, "bar.sync 0;", "~{memory}", side_effect=True)
            _call_convergent(builder, asm, [])
            return context.get_dummy_value()

        return types.void(), emit

    @tools.intrinsic
    def count_block_done(typingctx, counter, last):
        """Add one to ``counter``, or set it to 0 when it is ``last``; gives what it was.

        Wrapping to 0 leaves the counter ready for the next launch. Release and acquire: what the
        block wrote before is visible to the block that is told ``last``.
        """

        def emit(context, builder, signature, args):
            kind = ir.FunctionType(word, [word.as_pointer(), word])
            text = "atom.global.acq_rel.gpu.inc.u32 $0, [$1], $2;"
            asm = ir.InlineAsm(kind, text, "=r,l,r,~{memory}", side_effect=True)
            return builder.call(asm, args)

        pointer = types.CPointer(types.uint32)
        return types.uint32(pointer, types.uint32), emit

    functions = (shuffle_xor, shared_array, barrier, count_block_done)
    return {function._name: function for function in functions}
