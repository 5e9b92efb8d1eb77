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
    reader(storage, scope, scopes), writer(storage, scope, scopes)
    guarded_reader(storage, scope, scopes)

The last three declare accessors of one operand: its load, its store, and a conditional load. If the
condition is False, the latter reads the argument block instead of the operand, and returns 0. LLVM
vectorizes that like a gather. A branch around a load would become a masked load, which is slow if
inactive elements are in unmapped memory (``printing/boundaries``).

Scopes are LLVM's alias scopes: operands in different scopes must not overlap. All read-only
operands share scope 0. So LLVM needs no overlap checks at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.kir.scalar import COMPUTE_DTYPES, FUNCTIONS, NARROW_DTYPES, compute_dtype
from gpuflow.targets.cpu.codegen.elements import (
    Scopes,
    element,
    load,
    store,
    stored_type,
    widened,
)
from gpuflow.targets.cpu.codegen.product_tiles import PANELS, emit_tile
from gpuflow.targets.cpu.codegen.scalar_functions import emit_function, truncated
from gpuflow.targets.cpu.codegen.transposes import emit_transpose
from gpuflow.targets.llvm.ir_values import Instruction, IRValue, cast, is_float

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

POINTER = "pointer"
INTERRUPTED = "gf_interrupted"
# Spare elements after an array on the stack: stores of a last, partial vector may write them.
SPARE = 64
_INDEX_BASE = 0x4338_0000_0000_0000  # bits of 2 ** 52 + 2 ** 51 as a float64

Emit = Callable[..., Any]


@record
class Access:
    """The memory access of an accessor: one element, loaded or stored.

    Attributes:
        storage: storage dtype of the element.
        scopes: alias scope, see ``elements.Scopes``.
        is_store: whether it is a store.
    """

    storage: str
    scopes: Scopes
    is_store: bool


@record
class Named:
    """A builtin function or an accessor.

    Attributes:
        parameters: types of the parameters: compute dtypes, or "pointer".
        results: types of the results.
        emit: ``(builder, *LLVM values) -> value``, a tuple for several results, None for none.
        access: its memory access, if it accesses one element; else None.
    """

    parameters: tuple[str, ...]
    results: tuple[str, ...]
    emit: Emit
    access: Access | None = None


@cache
def named(name: str) -> Named | None:
    """Return the builtin function with a name; None for other names."""
    start, _, last = name.rpartition("_")
    verb, _, storage = name.partition("_")
    if name == "use_wide_registers":
        return Named((), (), _emit_wide_registers)
    if name == "is_interrupted":
        return Named((), ("bool",), _emit_is_interrupted)
    if name.startswith("word_"):
        return _argument_slot(name.removeprefix("word_"))
    if verb in _OF_LOCALS and storage in (*COMPUTE_DTYPES, *NARROW_DTYPES):
        return _OF_LOCALS[verb](storage)
    if verb == "transpose" and storage in (*COMPUTE_DTYPES, *NARROW_DTYPES):
        return Named((POINTER, "int64", "int64") * 2, (), partial(emit_transpose, storage))
    if verb == "multiply" and storage in PANELS:
        parameters = (POINTER, "int64", "int64", "int64", POINTER)
        return Named(parameters, (), partial(emit_tile, storage))
    if start == "select" and last in (*COMPUTE_DTYPES, POINTER):
        return _select(last)
    if start == "cast_index":
        return Named(("int64",), (last,), partial(_emit_index_as_float, last))
    if start.startswith("cast_"):
        return _cast(start.removeprefix("cast_"), last)
    if start.startswith("accumulate_"):
        return _accumulate(start.removeprefix("accumulate_"), last)
    if start in _ORDERS and last in _ORDERED_BITS:
        return _order(start, last)
    if start in FUNCTIONS and last in COMPUTE_DTYPES:
        return _function(start, last)
    return None


@cache
def reader(storage: str, scope: int, scopes: int) -> Named:
    """Return the load of an operand's element; the arguments are as in ``loops.nodes.Accessor``."""
    return _reader(storage, (scope, scopes))


@cache
def writer(storage: str, scope: int, scopes: int) -> Named:
    """Return the store of an operand's element."""
    return _writer(storage, (scope, scopes))


@cache
def guarded_reader(storage: str, scope: int, scopes: int) -> Named:
    """Return the conditional load of an operand's element.

    Its last argument is the argument block, which is read if the condition is false.
    """

    def emit(
        builder: ir.IRBuilder,
        pointer: Instruction,
        offset: Instruction,
        where: Instruction,
        arguments: Instruction,
    ) -> Instruction:
        address = element(builder, pointer, offset, storage)
        spare = builder.bitcast(arguments, address.type)
        loaded = load(builder, builder.select(where, address, spare), storage, (scope, scopes))
        return builder.select(where, loaded.value, loaded.constant(0).value)

    dtype = compute_dtype(storage)
    access = Access(storage, (scope, scopes), is_store=False)
    return Named((POINTER, "int64", "bool", POINTER), (dtype,), emit, access)


def _function(fn: str, dtype: str) -> Named:
    arity = FUNCTIONS[fn].arity
    results = tuple(FUNCTIONS[fn].results((dtype,) * arity))

    def emit(builder: ir.IRBuilder, *values: Instruction) -> Instruction:
        outs = emit_function(fn, *(IRValue(builder, value, dtype) for value in values))
        return outs[0].value if len(outs) == 1 else tuple(out.value for out in outs)

    return Named((dtype,) * arity, results, emit)


def _cast(source: str, dtype: str) -> Named:
    def emit(builder: ir.IRBuilder, value: Instruction) -> Instruction:
        typed = IRValue(builder, value, source)
        truncates = is_float(source) and not is_float(dtype) and dtype != "bool"
        return (truncated if truncates else cast)(typed, dtype).value

    return Named((source,), (dtype,), emit)


def _emit_index_as_float(dtype: str, builder: ir.IRBuilder, value: Instruction) -> Instruction:
    """Convert an index to a float by vector instructions. Its magnitude must be below 2 ** 51.

    Many processors have no vector conversion of int64. The sum of the index and the bits of the
    float 2 ** 52 + 2 ** 51 is the bits of that number plus the index.
    """
    index = IRValue(builder, value, "int64")
    base = index.constant(_INDEX_BASE)
    # Emitted without IRValue's flags: the subtraction must not be contracted or reordered.
    number = (index + base).bitcast("float64").value
    exact = builder.fsub(number, base.bitcast("float64").value)
    return cast(IRValue(builder, exact, "float64"), dtype).value


def _select(dtype: str) -> Named:
    def emit(
        builder: ir.IRBuilder, predicate: Instruction, on_true: Instruction, on_false: Instruction
    ) -> Instruction:
        return builder.select(predicate, on_true, on_false)

    return Named(("bool", dtype, dtype), (dtype,), emit)


def _accumulate(fn: str, dtype: str) -> Named:
    def emit(builder: ir.IRBuilder, running: Instruction, new: Instruction) -> Instruction:
        operation: Callable[..., Instruction] = {"add": builder.fadd, "mul": builder.fmul}[fn]
        return operation(running, new, flags=("reassoc", "contract"))

    return Named((dtype, dtype), (dtype,), emit)


# By dtype: the bits of a float, and of its mantissa.
_ORDERED_BITS = {"float32": (32, 23), "float64": (64, 52)}
_ORDERS = ("order_max", "order_min", "unorder_max", "unorder_min")


def _order(name: str, dtype: str) -> Named:
    """Map floats to integers with the same order, in which nan is the extremum; or the inverse.

    The maximum of such integers is that of the floats, including nan and -0.0. It takes one
    instruction, and ``llvm.maximum`` takes six dependent ones.
    """
    bits, mantissa = _ORDERED_BITS[dtype]
    integer = f"int{bits}"
    # Nans with a sign bit come before -inf: for max, adding this wraps them around past inf. For
    # min, it wraps the other nans around to before -inf.
    shift = (1 << mantissa) - 1
    shift = -shift if name.endswith("max") else shift

    def flip(x: IRValue) -> IRValue:
        """Reverse the order of negative floats. It is its own inverse."""
        return x ^ ((x >> (bits - 1)) & ((1 << (bits - 1)) - 1))

    def order(builder: ir.IRBuilder, value: Instruction) -> Instruction:
        return (flip(IRValue(builder, value, dtype).bitcast(integer)) + shift).value

    def unorder(builder: ir.IRBuilder, value: Instruction) -> Instruction:
        return flip(IRValue(builder, value, integer) - shift).bitcast(dtype).value

    if name.startswith("un"):
        return Named((integer,), (dtype,), unorder)
    return Named((dtype,), (integer,), order)


def _argument_slot(storage: str) -> Named:
    """Return the load of an argument slot: 8 bytes, of which scalars use the low ones."""
    if storage == POINTER:
        return Named((POINTER, "int64"), (POINTER,), _emit_pointer_slot)
    emit = partial(_emit_scalar_slot, storage)
    return Named((POINTER, "int64"), (compute_dtype(storage),), emit)


def _on_stack(dtype: str) -> Named:
    def emit(builder: ir.IRBuilder, count: ir.Constant) -> Instruction:
        kind = ir.ArrayType(stored_type(dtype), count.constant + SPARE)
        with builder.goto_entry_block():
            address: Instruction = builder.alloca(kind)
            address.align = 64
        return builder.bitcast(address, ir.IntType(8).as_pointer())

    return Named(("int64",), (POINTER,), emit)


def _reader(storage: str, scopes: Scopes) -> Named:
    def emit(builder: ir.IRBuilder, pointer: Instruction, offset: Instruction) -> Instruction:
        address = element(builder, pointer, offset, storage)
        return load(builder, address, storage, scopes).value

    access = Access(storage, scopes, is_store=False)
    return Named((POINTER, "int64"), (compute_dtype(storage),), emit, access)


def _writer(storage: str, scopes: Scopes) -> Named:
    def emit(
        builder: ir.IRBuilder, pointer: Instruction, offset: Instruction, value: Instruction
    ) -> None:
        address = element(builder, pointer, offset, storage)
        store(builder, address, value, storage, scopes)

    access = Access(storage, scopes, is_store=True)
    return Named((POINTER, "int64", compute_dtype(storage)), (), emit, access)


_OF_LOCALS: dict[str, Callable[[str], Named]] = {
    "load": lambda storage: _reader(storage, None),
    "store": lambda storage: _writer(storage, None),
    "local": _on_stack,
}


def _emit_wide_registers(builder: ir.IRBuilder) -> None:
    """Let LLVM use 512-bit vectors, which it avoids on some processors.

    There, these loops run up to 1.4 times as fast with them.
    """
    # llvmlite's add() rejects attributes that it does not know; that of set does not.
    set.add(builder.function.attributes, '"prefer-vector-width"="512"')


def _emit_is_interrupted(builder: ir.IRBuilder) -> Instruction:
    """Call ``gf_interrupted`` of the native runtime, an import that loading resolves."""
    module = builder.module
    if INTERRUPTED not in module.globals:
        function = ir.Function(module, ir.FunctionType(ir.IntType(32), []), INTERRUPTED)
        function.attributes.update(("nounwind", "cold"))
        # It accesses no memory of kernels, so LLVM may keep their values in registers.
        set.add(function.attributes, "memory(inaccessiblemem: readwrite)")
    answer = builder.call(module.globals[INTERRUPTED], [])
    return builder.icmp_signed("!=", answer, ir.Constant(ir.IntType(32), 0))


def _emit_pointer_slot(
    builder: ir.IRBuilder, arguments: Instruction, index: Instruction
) -> Instruction:
    pointer = ir.IntType(8).as_pointer()
    return builder.load(builder.gep(builder.bitcast(arguments, pointer.as_pointer()), [index]))


def _emit_scalar_slot(
    storage: str, builder: ir.IRBuilder, arguments: Instruction, index: Instruction
) -> Instruction:
    int64 = ir.IntType(64)
    slot = builder.gep(builder.bitcast(arguments, int64.as_pointer()), [index])
    kind = stored_type(storage)
    bits = builder.load(slot)
    width = {"float": 32, "double": 64}.get(str(kind), getattr(kind, "width", 64))
    if width < 64:
        bits = builder.trunc(bits, ir.IntType(width))
    stored = builder.bitcast(bits, kind) if isinstance(kind, ir.FloatType | ir.DoubleType) else bits
    return widened(builder, stored, storage).value
