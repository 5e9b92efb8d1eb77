"""Opaque constants: keep LLVM from specializing a loop on a known trip count.

Tests: tests/targets/cpu/test_short_vectors.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.llvm.ir_values import LlvmValue

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


def opaque(builder: ir.IRBuilder, value: LlvmValue) -> LlvmValue:
    """Hide how a value is computed from LLVM, by an empty inline assembly.

    The value must fit in an integer register: an integer of at most 64 bits, or a pointer.
    """
    value_type = value.type
    return builder.asm(ir.FunctionType(value_type, [value_type]), "", "=r,0", [value], False)


def opaque_constant(builder: ir.IRBuilder, int_type: ir.IntType, value: int) -> LlvmValue:
    """An integer constant whose value LLVM does not know, defined in the entry block.

    Other blocks can use it as well, since the entry block dominates them.
    """
    with builder.goto_entry_block():
        return opaque(builder, ir.Constant(int_type, value))
