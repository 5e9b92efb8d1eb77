"""Elements of arrays in memory as LLVM instructions: their addresses, loads and stores.

Memory holds storage dtypes, values have compute dtypes. Accesses are in scopes, so that LLVM knows
which of them do not overlap.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen import narrow_floats
from gpuflow.targets.cpu.codegen.hidden import hidden
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.lanes import Instruction, Lane, cast, intrinsic, llvm_type, spread

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


def load(
    builder: ir.IRBuilder, place: Instruction, storage: str, scopes: Scopes,
    width: int = 1, mask: Instruction | None = None,
) -> Lane:  # fmt: skip
    """Load the value at an address, or a vector of contiguous ones.

    Args:
        mask: the active elements of a vector; the others are not touched, and read as 0.
    """
    if width == 1:
        loaded = builder.load(place)
        # Memory holds numbers. What LLVM does about others keeps loops from being vectorised.
        loaded.set_metadata("noundef", builder.module.add_metadata([]))
    elif mask is None:
        loaded = builder.load(_vector(builder, place, width), align=size_of(storage))
    else:
        place = _vector(builder, place, width)
        kind = place.type.pointee
        word = ir.IntType(32)
        parameters, overloads = [place.type, word, mask.type, kind], [kind, place.type]
        function = intrinsic(builder.module, "masked.load", kind, parameters, overloads)
        size, zeros = ir.Constant(word, size_of(storage)), _zeros_of(storage, width)
        loaded = builder.call(function, [place, size, mask, zeros])
    _set_scope(builder.module, loaded, scopes)
    return widened(builder, loaded, storage)


def store(
    builder: ir.IRBuilder, place: Instruction, value: Instruction, storage: str, scopes: Scopes,
    mask: Instruction | None = None,
) -> None:  # fmt: skip
    """Store a value at an address, or a vector; ``mask`` selects its elements."""
    narrowed = _narrowed(builder, value, storage)
    if _merges(narrowed, place):
        narrowed = _computed(builder, narrowed)
    width = Lane(builder, narrowed, storage).width
    if width > 1:
        place = _vector(builder, place, width)
    if mask is None:
        stored = builder.store(narrowed, place, align=size_of(storage) if width > 1 else None)
    else:
        kind, word = narrowed.type, ir.IntType(32)
        parameters, overloads = [kind, place.type, word, mask.type], [kind, place.type]
        function = intrinsic(builder.module, "masked.store", ir.VoidType(), parameters, overloads)
        size = ir.Constant(word, size_of(storage))
        stored = builder.call(function, [narrowed, place, size, mask])
    _set_scope(builder.module, stored, scopes)


@cache
def _zeros_of(storage: str, width: int) -> ir.Constant:
    """A vector of zeros of a storage dtype."""
    return ir.Constant(ir.VectorType(stored_type(storage), width), 0)


def size_of(storage: str) -> int:
    """The bytes of an element of a storage dtype."""
    kind = stored_type(storage)
    return {"float": 4, "double": 8}.get(str(kind)) or kind.width // 8


def _vector(builder: ir.IRBuilder, place: Instruction, width: int) -> Instruction:
    """The address of an element as that of a vector."""
    return builder.bitcast(place, ir.VectorType(place.type.pointee, width).as_pointer())


def widened(builder: ir.IRBuilder, stored: Instruction, storage: str) -> Lane:
    """Convert a stored value to the compute dtype."""
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


def _merges(value: Instruction, place: Instruction) -> bool:
    """Whether a store conditionally keeps the old value.

    LLVM makes a masked store of that. Without AVX-512 it takes ten times as long as another one on
    many processors, and loads of the same memory behind it wait for it.
    """
    target = cpu_target()
    if not target.is_x86 or target.has_masks or not isinstance(value, ir.SelectInstr):
        return False
    return any(_is_read_from(_array(place), choice) for choice in value.operands[1:])


def _is_read_from(array: Instruction, value: Instruction) -> bool:
    if isinstance(value, ir.SelectInstr):
        return any(_is_read_from(array, choice) for choice in value.operands[1:])
    return isinstance(value, ir.LoadInstr) and _array(value.operands[0]) is array


def _array(place: Instruction) -> Instruction:
    """The pointer that an address was made of."""
    while isinstance(place, ir.GEPInstr | ir.CastInstr):
        place = place.operands[0]
    return place


def _computed(builder: ir.IRBuilder, value: Instruction) -> Instruction:
    """A value as the result of an operation: ``value | 0``, with a hidden zero."""
    kind = value.type
    single = kind.element if isinstance(kind, ir.VectorType) else kind
    width = {"float": 32, "double": 64}.get(str(single)) or single.width
    bits = Lane(builder, value, f"uint{width}")
    zero = bits.like(hidden(builder, ir.IntType(width), 0))
    if bits.width > 1:
        zero = spread(zero, bits.width)
    merged = builder.or_(builder.bitcast(value, bits.type_of(bits.dtype)), zero.value)
    return builder.bitcast(merged, kind)


def _set_scope(module: ir.Module, instruction: Instruction, scopes: Scopes) -> None:
    """Say which scope an access is in, and that it overlaps no access of the others."""
    if scopes is None:
        return
    # What a scope's accesses are marked with is kept with the module that it is a part of.
    known: dict[tuple[int, int], tuple[Any, Any]] = vars(module).setdefault("gpuflow_scopes", {})
    if scopes not in known:
        number, count = scopes
        domain = module.add_metadata(["gpuflow operands"])
        every = [module.add_metadata([f"gpuflow scope {k}", domain]) for k in range(count)]
        others = [scope for k, scope in enumerate(every) if k != number]
        own = module.add_metadata([every[number]])
        known[scopes] = own, module.add_metadata(others) if others else None
    own, others = known[scopes]
    instruction.set_metadata("alias.scope", own)
    if others is not None:
        instruction.set_metadata("noalias", others)
