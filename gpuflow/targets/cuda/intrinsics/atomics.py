"""Additions to memory that many threads add to, for handwritten kernels.

What integers add up to does not depend on the order of threads; what floats do, does in their last
bits. A GPU flushes subnormal float32 numbers in such additions.
"""

from __future__ import annotations

from typing import Any

from gpuflow.targets.cuda.codegen.toolchain import NumbaCuda


def atomic_intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    """All functions of this file by name."""
    ir, types = tools.llvm, tools.types
    forms = {
        types.float32: ("f32", "f"), types.float64: ("f64", "d"),
        types.int32: ("u32", "r"), types.uint32: ("u32", "r"),
        types.int64: ("u64", "l"), types.uint64: ("u64", "l"),
    }  # fmt: skip

    @tools.intrinsic
    def atomic_add(typingctx, pointer, index, value):
        """Add to ``pointer[index]``, of 32 or 64 bits in global memory."""
        if pointer.dtype not in forms:
            return None
        kind, constraint = forms[pointer.dtype]

        def emit(context, builder, signature, args):
            address = builder.gep(args[0], [args[1]])
            number = context.cast(builder, args[2], signature.args[2], pointer.dtype)
            form = ir.FunctionType(ir.VoidType(), [address.type, number.type])
            text = f"red.global.add.{kind} [$0], $1;"
            asm = ir.InlineAsm(form, text, f"l,{constraint},~{{memory}}", side_effect=True)
            builder.call(asm, [address, number])
            return context.get_dummy_value()

        return types.void(pointer, index, value), emit

    return {atomic_add._name: atomic_add}
