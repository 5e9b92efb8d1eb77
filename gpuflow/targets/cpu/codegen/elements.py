"""Elements of arrays in memory as LLVM instructions: their addresses, loads and stores.

Memory holds storage dtypes, values have compute dtypes. Accesses are in scopes, so that LLVM knows
which of them do not overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen import narrow_floats
from gpuflow.targets.llvm.lanes import Instruction, Lane, cast, llvm_type

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

# The number of an operand's scope, and how many there are; None: it may overlap any other access.
Scopes = tuple[int, int] | None


def stored_type(storage: str) -> ir.Type:
    """The LLVM type of elements of a storage dtype."""
    if narrow_floats.is_narrow(storage):
        return llvm_type(narrow_floats.code_dtype(storage))
    return ir.IntType(8) if storage == "bool" else llvm_type(storage)


def element(
    builder: ir.IRBuilder, pointer: Instruction, offset: Instruction, storage: str
) -> Instruction:
    """The address of an element."""
    typed = builder.bitcast(pointer, stored_type(storage).as_pointer())
    return builder.gep(typed, [offset])


def load(builder: ir.IRBuilder, place: Instruction, storage: str, scopes: Scopes) -> Lane:
    """The value at an address."""
    loaded = builder.load(place)
    # Memory holds numbers. What LLVM does about others keeps loops from being vectorised.
    loaded.set_metadata("noundef", builder.module.add_metadata([]))
    _set_scope(builder.module, loaded, scopes)
    return widened(builder, loaded, storage)


def store(
    builder: ir.IRBuilder, place: Instruction, value: Instruction, storage: str, scopes: Scopes
) -> None:
    """Write a value to an address."""
    stored = builder.store(_narrowed(builder, value, storage), place)
    _set_scope(builder.module, stored, scopes)


def widened(builder: ir.IRBuilder, stored: Instruction, storage: str) -> Lane:
    """What memory holds, as a value of the compute dtype."""
    if narrow_floats.is_narrow(storage):
        code = Lane(builder, stored, narrow_floats.code_dtype(storage))
        return narrow_floats.widen(code, storage)
    if storage == "bool":
        return Lane(builder, stored, "uint8").differs(0)
    return Lane(builder, stored, storage)


def _narrowed(builder: ir.IRBuilder, value: Instruction, storage: str) -> Instruction:
    if narrow_floats.is_narrow(storage):
        return narrow_floats.narrow(Lane(builder, value, "float32"), storage).value
    if storage == "bool":
        return cast(Lane(builder, value, "bool"), "uint8").value
    return value


def _set_scope(module: ir.Module, instruction: Instruction, scopes: Scopes) -> None:
    """Say which scope an access is in, and that it overlaps no access of the others."""
    if scopes is None:
        return
    number, count = scopes
    domain = module.add_metadata(["gpuflow operands"])
    every = [module.add_metadata([f"gpuflow scope {k}", domain]) for k in range(count)]
    others = [scope for k, scope in enumerate(every) if k != number]
    instruction.set_metadata("alias.scope", module.add_metadata([every[number]]))
    if others:
        instruction.set_metadata("noalias", module.add_metadata(others))
