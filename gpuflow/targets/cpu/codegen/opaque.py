"""Opaque constants: keep LLVM from specializing a loop on a known trip count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.llvm.ir_values import Instruction

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


def opaque(builder: ir.IRBuilder, value: Instruction) -> Instruction:
    """Hide how a value is computed from LLVM, by an empty inline assembly."""
    kind = value.type
    return builder.asm(ir.FunctionType(kind, [kind]), "", "=r,0", [value], False)


def opaque_constant(builder: ir.IRBuilder, kind: ir.IntType, number: int) -> Instruction:
    """An integer constant whose value LLVM does not know, defined in the entry block."""
    with builder.goto_entry_block():
        return opaque(builder, ir.Constant(kind, number))
