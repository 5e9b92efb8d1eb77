"""Loads and stores of array elements as LLVM instructions.

Elements in memory have storage dtypes, and values have compute dtypes. Accesses are annotated with
alias scopes, so that LLVM knows which of them do not overlap.

No bounds are checked: the caller guarantees that all active elements are inside of the array, and
that addresses are aligned to the element.

Tests: tests/targets/cpu/test_cpu_kernels.py, tests/targets/cpu/test_cpu_vectors.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen import narrow_floats
from gpuflow.targets.cpu.codegen.opaque import opaque_constant
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.ir_values import IRValue, LlvmValue, cast, intrinsic, llvm_type, splat

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


class AliasScope(NamedTuple):
    """The alias scope of an access in a kernel. It does not alias accesses in other scopes.

    Where an ``AliasScope | None`` is expected, None means that the access may alias any other.

    Attributes:
        index: index of the scope, from 0 to ``count - 1``.
        count: number of scopes of the kernel; equal for all its accesses.
    """

    index: int
    count: int


def storage_type(storage: str) -> ir.Type:
    """The LLVM type of elements of a storage dtype."""
    if narrow_floats.is_narrow(storage):
        return llvm_type(narrow_floats.bits_dtype_of(storage))
    return ir.IntType(8) if storage == "bool" else llvm_type(storage)


def element_address(
    builder: ir.IRBuilder, pointer: LlvmValue, offset: LlvmValue, storage: str
) -> LlvmValue:
    """The address of an element, as a pointer to ``storage_type``.

    Args:
        builder: position of the instructions.
        pointer: address of element 0, a pointer of any type.
        offset: index of the element, an int64 in elements; it may be negative.
        storage: storage dtype.
    """
    typed = builder.bitcast(pointer, storage_type(storage).as_pointer())
    return builder.gep(typed, [offset])


def load(
    builder: ir.IRBuilder,
    address: LlvmValue,
    storage: str,
    scope: AliasScope | None,
    width: int = 1,
    mask: LlvmValue | None = None,
) -> IRValue:
    """Load an element, or a vector of contiguous elements, as compute dtype.

    Args:
        builder: position of the load.
        address: address of the first element, from ``element_address``.
        storage: storage dtype.
        scope: alias scope; None if the load may alias any access.
        width: number of elements; 1 for a scalar.
        mask: active elements of a vector, as ``width`` i1. The others are not accessed, and are
            0. None if all are active, and for scalars.
    """
    if width == 1:
        loaded = builder.load(address)
        # Memory holds no undef values, whose semantics would prevent vectorization.
        loaded.set_metadata("noundef", builder.module.add_metadata([]))
    elif mask is None:
        loaded = builder.load(
            _vector_address(builder, address, width), align=element_bytes(storage)
        )
    else:
        address = _vector_address(builder, address, width)
        vector_type = address.type.pointee
        int32 = ir.IntType(32)
        parameters, overloads = (
            [address.type, int32, mask.type, vector_type],
            [vector_type, address.type],
        )
        function = intrinsic(builder.module, "masked.load", vector_type, parameters, overloads)
        size, zeros = ir.Constant(int32, element_bytes(storage)), _zero_vector(storage, width)
        loaded = builder.call(function, [address, size, mask, zeros])
    _set_scope(builder.module, loaded, scope)
    return to_compute_dtype(builder, loaded, storage)


def store(
    builder: ir.IRBuilder,
    address: LlvmValue,
    value: LlvmValue,
    storage: str,
    scope: AliasScope | None,
    mask: LlvmValue | None = None,
) -> None:
    """Store a value or a vector of compute dtype to contiguous elements.

    Args:
        builder: position of the store.
        address: address of the first element, from ``element_address``.
        value: the value, of the compute dtype of ``storage``.
        storage: storage dtype.
        scope: alias scope; None if the store may alias any access.
        mask: active elements of a vector, as i1. The others are not accessed. None if all are
            active, and for scalars.
    """
    narrowed = _to_storage_dtype(builder, value, storage)
    if _writes_back(narrowed, address):
        narrowed = _with_opaque_zero(builder, narrowed)
    width = IRValue(builder, narrowed, storage).width
    if width > 1:
        address = _vector_address(builder, address, width)
    if mask is None:
        stored = builder.store(
            narrowed, address, align=element_bytes(storage) if width > 1 else None
        )
    else:
        value_type, int32 = narrowed.type, ir.IntType(32)
        parameters, overloads = (
            [value_type, address.type, int32, mask.type],
            [value_type, address.type],
        )
        function = intrinsic(builder.module, "masked.store", ir.VoidType(), parameters, overloads)
        size = ir.Constant(int32, element_bytes(storage))
        stored = builder.call(function, [narrowed, address, size, mask])
    _set_scope(builder.module, stored, scope)


@cache
def _zero_vector(storage: str, width: int) -> ir.Constant:
    """A vector of zeros of a storage dtype."""
    return ir.Constant(ir.VectorType(storage_type(storage), width), 0)


def element_bytes(storage: str) -> int:
    """The bytes of an element of a storage dtype."""
    element_type = storage_type(storage)
    return {"float": 4, "double": 8}.get(str(element_type)) or element_type.width // 8


def _vector_address(builder: ir.IRBuilder, address: LlvmValue, width: int) -> LlvmValue:
    """Cast the address of an element to that of a vector."""
    return builder.bitcast(address, ir.VectorType(address.type.pointee, width).as_pointer())


def to_compute_dtype(builder: ir.IRBuilder, stored: LlvmValue, storage: str) -> IRValue:
    """Convert a stored value to the compute dtype."""
    if narrow_floats.is_narrow(storage):
        bits = IRValue(builder, stored, narrow_floats.bits_dtype_of(storage))
        return narrow_floats.widen(bits, storage)
    if storage == "bool":
        return IRValue(builder, stored, "uint8").differs(0)
    return IRValue(builder, stored, storage)


def _to_storage_dtype(builder: ir.IRBuilder, value: LlvmValue, storage: str) -> LlvmValue:
    """Convert a value of compute dtype to the stored value; narrow floats are rounded."""
    if narrow_floats.is_narrow(storage):
        return narrow_floats.narrow(IRValue(builder, value, "float32"), storage).value
    if storage == "bool":
        return cast(IRValue(builder, value, "bool"), "uint8").value
    return value


def _writes_back(value: LlvmValue, address: LlvmValue) -> bool:
    """Whether a store writes back the old value if some condition is false.

    LLVM converts that to a masked store. Without AVX-512, it takes ten times as long as a plain one
    on many processors, and later loads of the same memory wait for it.
    """
    target = cpu_target()
    if not target.is_x86 or target.has_masks or not isinstance(value, ir.SelectInstr):
        return False
    return any(_is_read_from(_base_pointer(address), operand) for operand in value.operands[1:])


def _is_read_from(array: LlvmValue, value: LlvmValue) -> bool:
    """Whether a value is loaded from an array, or is a select with such a side."""
    if isinstance(value, ir.SelectInstr):
        return any(_is_read_from(array, operand) for operand in value.operands[1:])
    return isinstance(value, ir.LoadInstr) and _base_pointer(value.operands[0]) is array


def _base_pointer(address: LlvmValue) -> LlvmValue:
    """The base pointer of an address."""
    while isinstance(address, ir.GEPInstr | ir.CastInstr):
        address = address.operands[0]
    return address


def _with_opaque_zero(builder: ir.IRBuilder, value: LlvmValue) -> LlvmValue:
    """Return ``value | 0`` with an opaque zero, so that LLVM does not see a select."""
    value_type = value.type
    element_type = value_type.element if isinstance(value_type, ir.VectorType) else value_type
    bits_per_element = {"float": 32, "double": 64}.get(str(element_type)) or element_type.width
    bits = IRValue(builder, value, f"uint{bits_per_element}")
    zero = bits.like(opaque_constant(builder, ir.IntType(bits_per_element), 0))
    if bits.width > 1:
        zero = splat(zero, bits.width)
    merged = builder.or_(builder.bitcast(value, bits.type_of(bits.dtype)), zero.value)
    return builder.bitcast(merged, value_type)


def _set_scope(module: ir.Module, instruction: LlvmValue, scope: AliasScope | None) -> None:
    """Annotate an access with its alias scope; it does not alias accesses in other scopes."""
    if scope is None:
        return
    # The module owns the cache of its scopes' metadata.
    cached: dict[AliasScope, tuple[Any, Any]] = vars(module).setdefault("gpuflow_scopes", {})
    if scope not in cached:
        domain = module.add_metadata(["gpuflow operands"])
        nodes = [module.add_metadata([f"gpuflow scope {k}", domain]) for k in range(scope.count)]
        others = [node for k, node in enumerate(nodes) if k != scope.index]
        own_list = module.add_metadata([nodes[scope.index]])
        cached[scope] = own_list, module.add_metadata(others) if others else None
    own_list, noalias_list = cached[scope]
    instruction.set_metadata("alias.scope", own_list)
    if noalias_list is not None:
        instruction.set_metadata("noalias", noalias_list)
