"""Numba intrinsics for atomic and relaxed accesses to global memory, for handwritten kernels.

Sums of floats depend on the order of threads, in their last bits; sums of integers do not. Float32
additions flush subnormal numbers.

``load_relaxed`` and ``store_relaxed`` are accesses at GPU scope: repeated loads eventually see
another block's store. They do not order other accesses.

Tests: tests/kernels/test_kernel_atomic_sums.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.targets.cuda.codegen.toolchain import NumbaCuda


def atomic_intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    """All intrinsics of this module by name."""
    ir, types = tools.llvm, tools.types
    i32 = ir.IntType(32)
    ptx_types = {
        types.float32: ("f32", "f"),
        types.float64: ("f64", "d"),
        types.int32: ("u32", "r"),
        types.uint32: ("u32", "r"),
        types.int64: ("u64", "l"),
        types.uint64: ("u64", "l"),
    }

    @tools.intrinsic
    def atomic_add(typingctx, pointer, index, value):
        """Add to ``pointer[index]`` in global memory; returns nothing.

        Elements are floats or integers of 32 or 64 bits. ``value`` is cast to their type.
        """
        if pointer.dtype not in ptx_types:
            return None
        ptx_type, constraint = ptx_types[pointer.dtype]

        def emit(context, builder, signature, args):
            address = builder.gep(args[0], [args[1]])
            addend = context.cast(builder, args[2], signature.args[2], pointer.dtype)
            asm_type = ir.FunctionType(ir.VoidType(), [address.type, addend.type])
            text = f"red.global.add.{ptx_type} [$0], $1;"
            asm = ir.InlineAsm(asm_type, text, f"l,{constraint},~{{memory}}", side_effect=True)
            builder.call(asm, [address, addend])
            return context.get_dummy_value()

        return types.void(pointer, index, value), emit

    def uint32_access(pointer, index, has_result, text, value_types=()):
        """The signature and emitter of one PTX access to ``pointer[index]`` of uint32.

        Args:
            pointer, index: Numba types of the first two arguments.
            has_result: whether the instruction returns a uint32.
            text: the instruction. Its operands are the result if any, the address, the values.
            value_types: Numba types of the further arguments, of 32 bits each.
        """

        def emit(context, builder, signature, args):
            address, *values = builder.gep(args[0], [args[1]]), *args[2:]
            result = i32 if has_result else ir.VoidType()
            asm_type = ir.FunctionType(result, [address.type, *[value.type for value in values]])
            constraints = ",".join([*(["=r"] if has_result else []), "l", *["r" for _ in values]])
            asm = ir.InlineAsm(asm_type, text, f"{constraints},~{{memory}}", side_effect=True)
            called = builder.call(asm, [address, *values])
            return called if has_result else context.get_dummy_value()

        if pointer != types.CPointer(types.uint32):
            return None
        return (types.uint32 if has_result else types.void)(pointer, index, *value_types), emit

    @tools.intrinsic
    def atomic_increment(typingctx, pointer, index):
        """Add 1 to a uint32, modulo 2**32; returns the previous value."""
        return uint32_access(pointer, index, True, "atom.global.add.u32 $0, [$1], 1;")

    @tools.intrinsic
    def load_relaxed(typingctx, pointer, index):
        """Load a uint32 that another block may store concurrently."""
        return uint32_access(pointer, index, True, "ld.relaxed.gpu.global.u32 $0, [$1];")

    @tools.intrinsic
    def store_relaxed(typingctx, pointer, index, value):
        """Store a uint32 that another block may load concurrently."""
        if value != types.uint32:
            return None
        text = "st.relaxed.gpu.global.u32 [$0], $1;"
        return uint32_access(pointer, index, False, text, (value,))

    functions = (atomic_add, atomic_increment, load_relaxed, store_relaxed)
    return {function._name: function for function in functions}
