"""Loads and stores of array elements as LLVM instructions.

Elements in memory have storage dtypes, and values have compute dtypes. Accesses are annotated with
alias scopes, so that LLVM knows which of them do not overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen import narrow_floats
from gpuflow.targets.cpu.codegen.opaque import opaque_constant
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.ir_values import Instruction, IRValue, cast, intrinsic, llvm_type, splat

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

# Index of the alias scope of an access, and number of scopes; None: it may alias any access.
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
    builder: ir.IRBuilder,
    address: Instruction,
    storage: str,
    scopes: Scopes,
    width: int = 1,
    mask: Instruction | None = None,
) -> IRValue:
    """Load an element, or a vector of contiguous elements, as compute dtype.

    Args:
        builder: position of the load.
        address: address of the first element.
        storage: storage dtype.
        scopes: alias scope.
        width: number of elements.
        mask: active elements of a vector. The others are not accessed, and are 0. None: all.
    """
    if width == 1:
        loaded = builder.load(address)
        # Memory holds no undef values, whose semantics would prevent vectorization.
        loaded.set_metadata("noundef", builder.module.add_metadata([]))
    elif mask is None:
        loaded = builder.load(_vector(builder, address, width), align=size_of(storage))
    else:
        address = _vector(builder, address, width)
        kind = address.type.pointee
        int32 = ir.IntType(32)
        parameters, overloads = [address.type, int32, mask.type, kind], [kind, address.type]
        function = intrinsic(builder.module, "masked.load", kind, parameters, overloads)
        size, zeros = ir.Constant(int32, size_of(storage)), _zeros_of(storage, width)
        loaded = builder.call(function, [address, size, mask, zeros])
    _set_scope(builder.module, loaded, scopes)
    return widened(builder, loaded, storage)


def store(
    builder: ir.IRBuilder,
    address: Instruction,
    value: Instruction,
    storage: str,
    scopes: Scopes,
    mask: Instruction | None = None,
) -> None:
    """Store a value or a vector of compute dtype; ``mask`` has the active elements."""
    narrowed = _narrowed(builder, value, storage)
    if _merges(narrowed, address):
        narrowed = _computed(builder, narrowed)
    width = IRValue(builder, narrowed, storage).width
    if width > 1:
        address = _vector(builder, address, width)
    if mask is None:
        stored = builder.store(narrowed, address, align=size_of(storage) if width > 1 else None)
    else:
        kind, int32 = narrowed.type, ir.IntType(32)
        parameters, overloads = [kind, address.type, int32, mask.type], [kind, address.type]
        function = intrinsic(builder.module, "masked.store", ir.VoidType(), parameters, overloads)
        size = ir.Constant(int32, size_of(storage))
        stored = builder.call(function, [narrowed, address, size, mask])
    _set_scope(builder.module, stored, scopes)


@cache
def _zeros_of(storage: str, width: int) -> ir.Constant:
    """A vector of zeros of a storage dtype."""
    return ir.Constant(ir.VectorType(stored_type(storage), width), 0)


def size_of(storage: str) -> int:
    """The bytes of an element of a storage dtype."""
    kind = stored_type(storage)
    return {"float": 4, "double": 8}.get(str(kind)) or kind.width // 8


def _vector(builder: ir.IRBuilder, address: Instruction, width: int) -> Instruction:
    """Cast the address of an element to that of a vector."""
    return builder.bitcast(address, ir.VectorType(address.type.pointee, width).as_pointer())


def widened(builder: ir.IRBuilder, stored: Instruction, storage: str) -> IRValue:
    """Convert a stored value to the compute dtype."""
    if narrow_floats.is_narrow(storage):
        code = IRValue(builder, stored, narrow_floats.code_dtype(storage))
        return narrow_floats.widen(code, storage)
    if storage == "bool":
        return IRValue(builder, stored, "uint8").differs(0)
    return IRValue(builder, stored, storage)


def _narrowed(builder: ir.IRBuilder, value: Instruction, storage: str) -> Instruction:
    if narrow_floats.is_narrow(storage):
        return narrow_floats.narrow(IRValue(builder, value, "float32"), storage).value
    if storage == "bool":
        return cast(IRValue(builder, value, "bool"), "uint8").value
    return value


def _merges(value: Instruction, address: Instruction) -> bool:
    """Whether a store writes back the old value if some condition is false.

    LLVM converts that to a masked store. Without AVX-512, it takes ten times as long as a plain one
    on many processors, and later loads of the same memory wait for it.
    """
    target = cpu_target()
    if not target.is_x86 or target.has_masks or not isinstance(value, ir.SelectInstr):
        return False
    return any(_is_read_from(_array(address), operand) for operand in value.operands[1:])


def _is_read_from(array: Instruction, value: Instruction) -> bool:
    if isinstance(value, ir.SelectInstr):
        return any(_is_read_from(array, operand) for operand in value.operands[1:])
    return isinstance(value, ir.LoadInstr) and _array(value.operands[0]) is array


def _array(address: Instruction) -> Instruction:
    """The base pointer of an address."""
    while isinstance(address, ir.GEPInstr | ir.CastInstr):
        address = address.operands[0]
    return address


def _computed(builder: ir.IRBuilder, value: Instruction) -> Instruction:
    """Return ``value | 0`` with an opaque zero, so that LLVM does not see a select."""
    kind = value.type
    single = kind.element if isinstance(kind, ir.VectorType) else kind
    width = {"float": 32, "double": 64}.get(str(single)) or single.width
    bits = IRValue(builder, value, f"uint{width}")
    zero = bits.like(opaque_constant(builder, ir.IntType(width), 0))
    if bits.width > 1:
        zero = splat(zero, bits.width)
    merged = builder.or_(builder.bitcast(value, bits.type_of(bits.dtype)), zero.value)
    return builder.bitcast(merged, kind)


def _set_scope(module: ir.Module, instruction: Instruction, scopes: Scopes) -> None:
    """Annotate an access with its alias scope; it does not alias accesses in other scopes."""
    if scopes is None:
        return
    # The module owns the cache of its scopes' metadata.
    cached: dict[tuple[int, int], tuple[Any, Any]] = vars(module).setdefault("gpuflow_scopes", {})
    if scopes not in cached:
        own_index, count = scopes
        domain = module.add_metadata(["gpuflow operands"])
        every = [module.add_metadata([f"gpuflow scope {k}", domain]) for k in range(count)]
        others = [scope for k, scope in enumerate(every) if k != own_index]
        own = module.add_metadata([every[own_index]])
        cached[scopes] = own, module.add_metadata(others) if others else None
    own, others = cached[scopes]
    instruction.set_metadata("alias.scope", own)
    if others is not None:
        instruction.set_metadata("noalias", others)
