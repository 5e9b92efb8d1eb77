"""Namespace of printed CUDA source: NumPy-like types, libdevice, and Numba intrinsics of our own.

An intrinsic emits LLVM instructions or one line of PTX. They are created from the loaded
numba-cuda, so that importing this module costs nothing. The modules:

    this one           warps, blocks, grid: shuffle_xor  shared_array  barrier  count_block_done
    memory_access.py   global memory, vectors
    arithmetic.py      scalars
    matrices.py        tensor cores, registers, asynchronous copies; for handwritten kernels
    atomics.py         atomic sums, relaxed accesses; for handwritten kernels

Numba never sees 16-bit floats: pointers are to uint16 and arithmetic is float32. Numba's own half
types call functions that exist only inside Numba.

Tests: tests/targets/cuda/test_cuda_intrinsics.py.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpuflow.base.caches import lru_cache
from gpuflow.targets.cuda.codegen.intrinsics.arithmetic import arithmetic_intrinsics
from gpuflow.targets.cuda.codegen.intrinsics.atomics import atomic_intrinsics
from gpuflow.targets.cuda.codegen.intrinsics.matrices import call_convergent, matrix_intrinsics
from gpuflow.targets.cuda.codegen.intrinsics.memory_access import memory_intrinsics
from gpuflow.targets.cuda.codegen.toolchain import NumbaCuda

if TYPE_CHECKING:
    from llvmlite.ir import NamedValue

SHARED_ALIGNMENT = 16  # bytes, of each array in shared memory


@lru_cache(1)
def _intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    return {
        **memory_intrinsics(tools),
        **_warp_intrinsics(tools),
        **_block_intrinsics(tools),
        **arithmetic_intrinsics(tools),
        **matrix_intrinsics(tools),
        **atomic_intrinsics(tools),
    }


def source_namespace(tools: NumbaCuda) -> dict[str, Any]:
    """All names that printed source may use, in a new dictionary that callers may extend."""
    modules = {"math": math, "cuda": tools.cuda, "libdevice": tools.libdevice}
    names = ["boolean", "float32", "float64"]
    names += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    dtypes = {name: getattr(tools.types, name) for name in names}
    return {**modules, **dtypes, **_intrinsics(tools)}


def _shuffle_i32(ir: ModuleType, builder: Any, value: NamedValue, distance: int) -> NamedValue:
    """Emit a butterfly shuffle of 32 bits, between lanes ``l`` and ``l ^ distance``.

    ``distance`` is at least 0 and less than 32.
    """
    text = f"shfl.sync.bfly.b32 $0, $1, {distance}, 0x1f, 0xffffffff;"
    function_type = ir.FunctionType(value.type, [value.type])
    asm = ir.InlineAsm(function_type, text, "=r,r", side_effect=True)
    return call_convergent(builder, asm, [value])


def _shuffle_bits(ir: ModuleType, builder: Any, bits: Any, distance: int) -> NamedValue:
    """Emit a butterfly shuffle of an integer of any width; 64 bits take two shuffles."""
    i32, width = ir.IntType(32), bits.type.width
    if width == 32:
        return _shuffle_i32(ir, builder, bits, distance)
    if width < 32:
        wide = builder.zext(bits, i32)
        return builder.trunc(_shuffle_i32(ir, builder, wide, distance), bits.type)
    half = ir.Constant(bits.type, 32)
    low = _shuffle_i32(ir, builder, builder.trunc(bits, i32), distance)
    high = builder.trunc(builder.lshr(bits, half), i32)
    high = builder.zext(_shuffle_i32(ir, builder, high, distance), bits.type)
    return builder.or_(builder.shl(high, half), builder.zext(low, bits.type))


def _warp_intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    """Intrinsics for the threads of a warp."""
    ir, types = tools.llvm, tools.types

    @tools.intrinsic
    def shuffle_xor(typingctx, value, distance):
        """The value of lane ``lane ^ distance`` of the warp; all 32 lanes must call it together."""
        if not isinstance(distance, types.IntegerLiteral):
            return None  # Numba retries with the literal

        def emit(context, builder, signature, args):
            value_type, step = args[0].type, distance.literal_value
            if isinstance(value_type, ir.IntType):
                return _shuffle_bits(ir, builder, args[0], step)
            bits = builder.bitcast(args[0], ir.IntType(64 if value_type == ir.DoubleType() else 32))
            return builder.bitcast(_shuffle_bits(ir, builder, bits, step), value_type)

        plain = types.unliteral(value)
        return plain(plain, distance), emit

    return {shuffle_xor._name: shuffle_xor}


def _block_intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    """Intrinsics for the threads of a block and of the grid."""
    ir, types = tools.llvm, tools.types
    i32 = ir.IntType(32)

    @tools.intrinsic
    def shared_array(typingctx, dtype, count):
        """A pointer to ``count`` elements in the block's static shared memory.

        ``count`` is a literal. Each call in the text allocates other memory.
        """
        if not isinstance(count, types.IntegerLiteral):
            return None
        element = dtype.instance_type

        def emit(context, builder, signature, args):
            array_type = ir.ArrayType(context.get_data_type(element), count.literal_value)
            name = builder.module.get_unique_name("shared_array")
            array = ir.GlobalVariable(builder.module, array_type, name, addrspace=3)
            array.linkage = "internal"
            array.initializer = ir.Constant(array_type, ir.Undefined)
            array.align = SHARED_ALIGNMENT
            generic = builder.addrspacecast(array, array_type.as_pointer())
            return builder.bitcast(generic, array_type.element.as_pointer())

        return types.CPointer(element)(dtype, count), emit

    @tools.intrinsic
    def barrier(typingctx):
        """Wait for all threads of the block, which must all call it; their writes are visible."""

        def emit(context, builder, signature, args):
            function_type = ir.FunctionType(ir.VoidType(), [])
            asm = ir.InlineAsm(function_type, "bar.sync 0;", "~{memory}", side_effect=True)
            call_convergent(builder, asm, [])
            return context.get_dummy_value()

        return types.void(), emit

    @tools.intrinsic
    def count_block_done(typingctx, counter, last):
        """Add one to ``counter[0]``, or reset it to 0 at ``last``; returns the old value.

        The reset prepares the counter for the next launch. The access has release and acquire
        semantics: the block that gets ``last`` sees all earlier writes of the other blocks.
        """

        def emit(context, builder, signature, args):
            function_type = ir.FunctionType(i32, [i32.as_pointer(), i32])
            text = "atom.global.acq_rel.gpu.inc.u32 $0, [$1], $2;"
            asm = ir.InlineAsm(function_type, text, "=r,l,r,~{memory}", side_effect=True)
            return builder.call(asm, args)

        pointer = types.CPointer(types.uint32)
        return types.uint32(pointer, types.uint32), emit

    functions = (shared_array, barrier, count_block_done)
    return {function._name: function for function in functions}
