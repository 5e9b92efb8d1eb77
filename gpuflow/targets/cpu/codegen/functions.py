"""Builtin functions of loop programs: their parameters, results, and LLVM instructions.

A call is inlined: it emits instructions at its position. A program may call these (dtypes are
compute dtypes, storages are storage dtypes):

    <fn>_<dtype>(...)            a function of kir.scalar
    cast_<dtype>_<dtype>(x)      a Cast
    cast_index_<dtype>(x)        a Cast of an index to a float
    select_<dtype>(p, a, b)      a Select; select_pointer(p, a, b)
    accumulate_<fn>_<dtype>      a float sum (add) or product (mul) that may be reassociated
    order_<fn>_<dtype>(x)        an integer with the order of floats, and nan as extremum of fn
    unorder_<fn>_<dtype>(k)      the inverse of order_<fn>_<dtype>; fn is max or min
    use_wide_registers()         a function attribute: prefer 512-bit vectors
    is_interrupted()             whether the function must return
    word_pointer(words, k)       slot k of an argument block, or word_<storage>
    local_<storage>(n)           n elements on the stack; n is a literal
    load_<storage>(p, i), store_<storage>(p, i, x)
    transpose_<storage>(..)      a transposed copy of a block of elements, see transposes
    multiply_<kind>(..)          a tile of a product of matrices, see product_tiles
    reader(storage, scope, count), writer(storage, scope, count)
    guarded_reader(storage, scope, count)

The last three declare accessors of one operand: its load, its store, and a conditional load. If the
condition is False, the latter reads the argument block instead of the operand, and returns 0. LLVM
vectorizes that like a gather. A branch around a load would become a masked load, which is slow if
inactive elements are in unmapped memory (``printing/boundaries``).

``scope`` and ``count`` are ``elements.AliasScope``: operands in different scopes must not overlap.
All read-only operands share scope 0. So LLVM needs no overlap checks at run time.

Offsets are int64 indices in elements. No call checks bounds, overflow or division by zero.

Tests: tests/targets/cpu/test_cpu_functions.py, tests/targets/cpu/test_loop_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.kir.scalar import COMPUTE_DTYPES, FUNCTIONS, NARROW_DTYPES, compute_dtype
from gpuflow.targets.cpu.codegen.elements import (
    AliasScope,
    element_address,
    load,
    storage_type,
    store,
    to_compute_dtype,
)
from gpuflow.targets.cpu.codegen.product_tiles import PANEL_FORMATS, emit_tile
from gpuflow.targets.cpu.codegen.scalar_functions import emit_function, saturating_cast
from gpuflow.targets.cpu.codegen.transposes import emit_transpose
from gpuflow.targets.llvm.ir_values import IRValue, LlvmValue, cast, is_float

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

POINTER = "pointer"  # the type of pointers, next to the compute dtypes
# The function of the native runtime that ``is_interrupted`` calls.
INTERRUPT_FUNCTION = "gf_interrupted"
# Elements after an array on the stack: stores of a last, partial vector may write them. 64 elements
# are the largest vector, of bytes in a register of AVX-512.
STACK_PADDING = 64
_INDEX_BASE = 0x4338_0000_0000_0000  # bits of 2 ** 52 + 2 ** 51 as a float64

Emitter = Callable[..., Any]


@record
class Access:
    """The memory access of an accessor: one element, loaded or stored.

    Attributes:
        storage: storage dtype of the element.
        alias_scope: its alias scope; None if it may alias any access.
        is_store: whether it is a store.
    """

    storage: str
    alias_scope: AliasScope | None
    is_store: bool


@record
class Callee:
    """A function that a loop program can call: a builtin, or an accessor of the program.

    Attributes:
        parameters: types of the parameters: compute dtypes, or "pointer".
        results: types of the results.
        emit: ``(builder, *LLVM values) -> value``, a tuple for several results, None for none.
        access: its memory access, if it accesses one element; else None.
    """

    parameters: tuple[str, ...]
    results: tuple[str, ...]
    emit: Emitter
    access: Access | None = None


@cache
def builtin(name: str) -> Callee | None:
    """Return the builtin function with a name; None for other names."""
    stem, _, suffix = name.rpartition("_")
    verb, _, storage = name.partition("_")
    if name == "use_wide_registers":
        return Callee((), (), _emit_wide_registers)
    if name == "is_interrupted":
        return Callee((), ("bool",), _emit_is_interrupted)
    if name.startswith("word_"):
        return _argument_slot(name.removeprefix("word_"))
    if verb in _LOCAL_ARRAY_FUNCTIONS and storage in (*COMPUTE_DTYPES, *NARROW_DTYPES):
        return _LOCAL_ARRAY_FUNCTIONS[verb](storage)
    if verb == "transpose" and storage in (*COMPUTE_DTYPES, *NARROW_DTYPES):
        return Callee((POINTER, "int64", "int64") * 2, (), partial(emit_transpose, storage))
    if verb == "multiply" and storage in PANEL_FORMATS:
        parameters = (POINTER, "int64", "int64", "int64", POINTER)
        return Callee(parameters, (), partial(emit_tile, storage))
    if stem == "select" and suffix in (*COMPUTE_DTYPES, POINTER):
        return _select(suffix)
    if stem == "cast_index":
        return Callee(("int64",), (suffix,), partial(_emit_index_as_float, suffix))
    if stem.startswith("cast_"):
        return _cast(stem.removeprefix("cast_"), suffix)
    if stem.startswith("accumulate_"):
        return _accumulate(stem.removeprefix("accumulate_"), suffix)
    if stem in _ORDERS and suffix in _ORDERED_BITS:
        return _order(stem, suffix)
    if stem in FUNCTIONS and suffix in COMPUTE_DTYPES:
        return _function(stem, suffix)
    return None


@cache
def reader(storage: str, scope_index: int, scope_count: int) -> Callee:
    """Return the load of an operand's element, ``load(pointer, offset)``.

    Args:
        storage: storage dtype of the operand.
        scope_index, scope_count: its ``AliasScope``.
    """
    return _reader(storage, AliasScope(scope_index, scope_count))


@cache
def writer(storage: str, scope_index: int, scope_count: int) -> Callee:
    """Return the store ``store(pointer, offset, value)``; arguments as for ``reader``."""
    return _writer(storage, AliasScope(scope_index, scope_count))


@cache
def guarded_reader(storage: str, scope_index: int, scope_count: int) -> Callee:
    """Return the conditional load ``load(pointer, offset, condition, words)``; see ``reader``.

    If the condition is false, it reads slot 0 of the argument block ``words``, and returns 0.
    """
    scope = AliasScope(scope_index, scope_count)

    def emit(
        builder: ir.IRBuilder,
        pointer: LlvmValue,
        offset: LlvmValue,
        condition: LlvmValue,
        arguments: LlvmValue,
    ) -> LlvmValue:
        address = element_address(builder, pointer, offset, storage)
        argument_slot = builder.bitcast(arguments, address.type)
        readable = builder.select(condition, address, argument_slot)
        loaded = load(builder, readable, storage, scope)
        return builder.select(condition, loaded.value, loaded.constant(0).value)

    dtype = compute_dtype(storage)
    access = Access(storage, scope, is_store=False)
    return Callee((POINTER, "int64", "bool", POINTER), (dtype,), emit, access)


def _function(fn: str, dtype: str) -> Callee:
    arity = FUNCTIONS[fn].arity
    results = tuple(FUNCTIONS[fn].results((dtype,) * arity))

    def emit(builder: ir.IRBuilder, *values: LlvmValue) -> LlvmValue:
        outs = emit_function(fn, *(IRValue(builder, value, dtype) for value in values))
        return outs[0].value if len(outs) == 1 else tuple(out.value for out in outs)

    return Callee((dtype,) * arity, results, emit)


def _cast(source: str, dtype: str) -> Callee:
    def emit(builder: ir.IRBuilder, value: LlvmValue) -> LlvmValue:
        typed = IRValue(builder, value, source)
        truncates = is_float(source) and not is_float(dtype) and dtype != "bool"
        return (saturating_cast if truncates else cast)(typed, dtype).value

    return Callee((source,), (dtype,), emit)


def _emit_index_as_float(dtype: str, builder: ir.IRBuilder, value: LlvmValue) -> LlvmValue:
    """Convert an index to a float by vector instructions. Its magnitude must be below 2 ** 51.

    Many processors have no vector conversion of int64. The sum of the index and the bits of the
    float 2 ** 52 + 2 ** 51 is the bits of that number plus the index.
    """
    index = IRValue(builder, value, "int64")
    base = index.constant(_INDEX_BASE)
    # Emitted without IRValue's flags: the subtraction must not be contracted or reordered.
    shifted = (index + base).bitcast("float64").value
    unshifted = builder.fsub(shifted, base.bitcast("float64").value)
    return cast(IRValue(builder, unshifted, "float64"), dtype).value


def _select(dtype: str) -> Callee:
    def emit(
        builder: ir.IRBuilder, predicate: LlvmValue, on_true: LlvmValue, on_false: LlvmValue
    ) -> LlvmValue:
        return builder.select(predicate, on_true, on_false)

    return Callee(("bool", dtype, dtype), (dtype,), emit)


def _accumulate(fn: str, dtype: str) -> Callee:
    """Return the float sum (fn "add") or product ("mul") that LLVM may reassociate."""

    def emit(builder: ir.IRBuilder, running: LlvmValue, new: LlvmValue) -> LlvmValue:
        operation: Callable[..., LlvmValue] = {"add": builder.fadd, "mul": builder.fmul}[fn]
        return operation(running, new, flags=("reassoc", "contract"))

    return Callee((dtype, dtype), (dtype,), emit)


class _FloatBits(NamedTuple):
    """The bits of a float, and those of its mantissa that are stored."""

    total: int
    mantissa: int


_ORDERED_BITS = {"float32": _FloatBits(32, 23), "float64": _FloatBits(64, 52)}
_ORDERS = ("order_max", "order_min", "unorder_max", "unorder_min")


def _order(name: str, dtype: str) -> Callee:
    """Map floats to integers with the same order, in which nan is the extremum; or the inverse.

    ``name`` is one of ``_ORDERS``. The integer has the bits of the float dtype, and is signed.

    The maximum of such integers is that of the floats, including nan and -0.0. It takes one
    instruction, and ``llvm.maximum`` takes six dependent ones.
    """
    bits, mantissa = _ORDERED_BITS[dtype]
    integer = f"int{bits}"
    # Nans with a sign bit come before -inf: for max, adding this wraps them around past inf. For
    # min, it wraps the other nans around to before -inf.
    nan_shift = (1 << mantissa) - 1
    nan_shift = -nan_shift if name.endswith("max") else nan_shift

    def flip(x: IRValue) -> IRValue:
        """Reverse the order of negative floats. It is its own inverse."""
        return x ^ ((x >> (bits - 1)) & ((1 << (bits - 1)) - 1))

    def order(builder: ir.IRBuilder, value: LlvmValue) -> LlvmValue:
        return (flip(IRValue(builder, value, dtype).bitcast(integer)) + nan_shift).value

    def unorder(builder: ir.IRBuilder, value: LlvmValue) -> LlvmValue:
        return flip(IRValue(builder, value, integer) - nan_shift).bitcast(dtype).value

    if name.startswith("un"):
        return Callee((integer,), (dtype,), unorder)
    return Callee((dtype,), (integer,), order)


def _argument_slot(storage: str) -> Callee:
    """Return the load of an argument slot: 8 bytes, of which scalars use the low ones."""
    if storage == POINTER:
        return Callee((POINTER, "int64"), (POINTER,), _emit_pointer_slot)
    emit = partial(_emit_scalar_slot, storage)
    return Callee((POINTER, "int64"), (compute_dtype(storage),), emit)


def _stack_array(dtype: str) -> Callee:
    """Return the allocation of an array in the function's entry block; its count is a literal."""

    def emit(builder: ir.IRBuilder, count: ir.Constant) -> LlvmValue:
        array_type = ir.ArrayType(storage_type(dtype), count.constant + STACK_PADDING)
        with builder.goto_entry_block():
            address: LlvmValue = builder.alloca(array_type)
            address.align = 64
        return builder.bitcast(address, ir.IntType(8).as_pointer())

    return Callee(("int64",), (POINTER,), emit)


def _reader(storage: str, scope: AliasScope | None) -> Callee:
    def emit(builder: ir.IRBuilder, pointer: LlvmValue, offset: LlvmValue) -> LlvmValue:
        address = element_address(builder, pointer, offset, storage)
        return load(builder, address, storage, scope).value

    access = Access(storage, scope, is_store=False)
    return Callee((POINTER, "int64"), (compute_dtype(storage),), emit, access)


def _writer(storage: str, scope: AliasScope | None) -> Callee:
    def emit(
        builder: ir.IRBuilder, pointer: LlvmValue, offset: LlvmValue, value: LlvmValue
    ) -> None:
        address = element_address(builder, pointer, offset, storage)
        store(builder, address, value, storage, scope)

    access = Access(storage, scope, is_store=True)
    return Callee((POINTER, "int64", compute_dtype(storage)), (), emit, access)


_LOCAL_ARRAY_FUNCTIONS: dict[str, Callable[[str], Callee]] = {
    "load": lambda storage: _reader(storage, None),
    "store": lambda storage: _writer(storage, None),
    "local": _stack_array,
}


def _emit_wide_registers(builder: ir.IRBuilder) -> None:
    """Let LLVM use 512-bit vectors, which it avoids on some processors.

    There, these loops run up to 1.4 times as fast with them.
    """
    # llvmlite's add() rejects attributes that it does not know; that of set does not.
    set.add(builder.function.attributes, '"prefer-vector-width"="512"')


def _emit_is_interrupted(builder: ir.IRBuilder) -> LlvmValue:
    """Call ``gf_interrupted`` of the native runtime, an import that loading resolves."""
    module = builder.module
    if INTERRUPT_FUNCTION not in module.globals:
        function = ir.Function(module, ir.FunctionType(ir.IntType(32), []), INTERRUPT_FUNCTION)
        function.attributes.update(("nounwind", "cold"))
        # It accesses no memory of kernels, so LLVM may keep their values in registers.
        set.add(function.attributes, "memory(inaccessiblemem: readwrite)")
    result = builder.call(module.globals[INTERRUPT_FUNCTION], [])
    return builder.icmp_signed("!=", result, ir.Constant(ir.IntType(32), 0))


def _emit_pointer_slot(builder: ir.IRBuilder, arguments: LlvmValue, index: LlvmValue) -> LlvmValue:
    pointer = ir.IntType(8).as_pointer()
    return builder.load(builder.gep(builder.bitcast(arguments, pointer.as_pointer()), [index]))


def _emit_scalar_slot(
    storage: str, builder: ir.IRBuilder, arguments: LlvmValue, index: LlvmValue
) -> LlvmValue:
    int64 = ir.IntType(64)
    slot = builder.gep(builder.bitcast(arguments, int64.as_pointer()), [index])
    element_type = storage_type(storage)
    bits = builder.load(slot)
    width = {"float": 32, "double": 64}.get(str(element_type), getattr(element_type, "width", 64))
    if width < 64:
        bits = builder.trunc(bits, ir.IntType(width))
    is_float_type = isinstance(element_type, ir.FloatType | ir.DoubleType)
    stored = builder.bitcast(bits, element_type) if is_float_type else bits
    return to_compute_dtype(builder, stored, storage).value
