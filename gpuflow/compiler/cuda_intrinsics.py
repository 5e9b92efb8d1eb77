"""Functions that printed CUDA source may call and that Numba does not have.

Each is a Numba intrinsic: it emits LLVM instructions or one line of PTX. They are made from the
loaded numba-cuda, so that importing this module costs nothing. Grouped by what they are for:

    threads   here: shuffle_xor  shared_array  barrier  count_block_done
    memory    cuda_memory.py
    numbers   cuda_arithmetic.py

16-bit floats are never given to Numba as such: pointers are uint16 and arithmetic is float32,
because Numba's own half types call functions that exist only inside Numba.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from gpuflow.compiler.cuda_arithmetic import arithmetic_intrinsics
from gpuflow.compiler.cuda_memory import memory_intrinsics
from gpuflow.compiler.cuda_toolchain import NumbaCuda

SHARED_ALIGNMENT = 16


@functools.lru_cache(maxsize=1)
def _intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    return {
        **memory_intrinsics(tools),
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
            array.align = SHARED_ALIGNMENT
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
