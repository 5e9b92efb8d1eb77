"""The names that a kernel's text uses on the CPU target, as Numba intrinsics.

An intrinsic emits its LLVM instructions where it is called: it costs a fraction of what a compiled
helper function costs to build. The text uses these names (dtypes are compute dtypes, storages are
storage dtypes):

    <fn>_<dtype>(...)            a function of kir.scalar
    cast_<dtype>_<dtype>(x)      a Cast
    select_<dtype>(p, a, b)      a Select
    accumulate_add_<dtype>       a sum that may be reordered
    use_wide_registers()         a mark for the whole function
    word_pointer(words, k)       word k of an argument block, or word_<storage>
    column_<dtype>()             COLUMN_BLOCK accumulators on the stack
    load_<dtype>(p, i), store_<dtype>(p, i, x)
    reader(storage, scope, scopes), writer(storage, scope, scopes)

The last two make the load and the store of one operand. Operands in different scopes do not
overlap; all read-only ones share scope 0. LLVM then needs no overlap checks at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import llvmlite.ir as ir

from gpuflow.compiler import cpu_narrow
from gpuflow.compiler.cpu_emit import Lane, cast, llvm_type
from gpuflow.compiler.cpu_functions import emit_function
from gpuflow.kir.scalar import COMPUTE_DTYPES, FUNCTIONS, compute_dtype

COLUMN_BLOCK = 1024

Emit = Callable[..., Any]


class Intrinsics:
    """Makes intrinsics for one loaded Numba; each is made once.

    Args:
        numba: The numba module.
        intrinsic: ``numba.extending.intrinsic``.
    """

    def __init__(self, numba: Any, intrinsic: Callable[[Any], Any]) -> None:
        self.types = numba.types
        self._intrinsic = intrinsic
        self.reader = cache(self._reader)
        self.writer = cache(self._writer)
        self._named = cache(self._make_named)

    def namespace(self, names: Iterable[str]) -> dict[str, Any]:
        """The globals of a kernel's module that uses ``names``; unknown names are left out."""
        found = {"reader": self.reader, "writer": self.writer}
        for name in names:
            made = self._named(name)
            if made is not None:
                found[name] = made
        return found

    def _type(self, dtype: str) -> Any:
        return self.types.boolean if dtype == "bool" else getattr(self.types, dtype)

    def _define(self, name: str, result: Any, parameters: Sequence[Any], emit: Emit) -> Any:
        """An intrinsic with fixed types; ``emit(builder, *values)`` gives the LLVM result."""
        signature = result(*parameters)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = emit(builder, *arguments)
            if isinstance(value, tuple):
                return context.make_tuple(builder, signature.return_type, value)
            return context.get_dummy_value() if value is None else value

        # Numba reads the number of parameters off the function, so there is one per arity.
        def typing_1(context, a):
            return signature, codegen

        def typing_2(context, a, b):
            return signature, codegen

        def typing_3(context, a, b, c):
            return signature, codegen

        def typing_4(context, a, b, c, d):
            return signature, codegen

        def typing_0(context):
            return signature, codegen

        typing = (typing_0, typing_1, typing_2, typing_3, typing_4)[len(parameters)]
        typing.__name__ = name
        return self._intrinsic(typing)

    def _make_named(self, name: str) -> Any:
        start, _, last = name.rpartition("_")
        if name == "use_wide_registers":
            return self._define(name, self.types.void, [], _emit_wide_registers)
        if name.startswith("word_"):
            return self._word(name, name.removeprefix("word_"))
        if start in ("load", "store", "column", "select") and last in COMPUTE_DTYPES:
            return getattr(self, f"_{start}")(name, last)
        if start.startswith("cast_"):
            return self._cast(name, start.removeprefix("cast_"), last)
        if start.startswith("accumulate_"):
            return self._accumulate(name, start.removeprefix("accumulate_"), last)
        if start in FUNCTIONS and last in COMPUTE_DTYPES:
            return self._function(name, start, last)
        return None

    def _function(self, name: str, fn: str, dtype: str) -> Any:
        arity = FUNCTIONS[fn].arity
        results = [self._type(d) for d in FUNCTIONS[fn].results((dtype,) * arity)]
        result = results[0] if len(results) == 1 else self.types.UniTuple(results[0], len(results))

        def emit(builder: Any, *values: Any) -> Any:
            outs = emit_function(fn, *(Lane(builder, value, dtype) for value in values))
            return outs[0].value if len(outs) == 1 else tuple(out.value for out in outs)

        return self._define(name, result, [self._type(dtype)] * arity, emit)

    def _cast(self, name: str, source: str, dtype: str) -> Any:
        def emit(builder: Any, value: Any) -> Any:
            return cast(Lane(builder, value, source), dtype).value

        return self._define(name, self._type(dtype), [self._type(source)], emit)

    def _select(self, name: str, dtype: str) -> Any:
        def emit(builder: Any, predicate: Any, on_true: Any, on_false: Any) -> Any:
            return builder.select(predicate, on_true, on_false)

        kind = self._type(dtype)
        return self._define(name, kind, [self.types.boolean, kind, kind], emit)

    def _accumulate(self, name: str, fn: str, dtype: str) -> Any:
        def emit(builder: Any, running: Any, new: Any) -> Any:
            operation = {"add": builder.fadd, "mul": builder.fmul}[fn]
            return operation(running, new, flags=("reassoc", "contract"))

        kind = self._type(dtype)
        return self._define(name, kind, [kind, kind], emit)

    def _word(self, name: str, storage: str) -> Any:
        """Words are 8 bytes, and a scalar lies in the low ones."""
        if storage == "pointer":
            result, emit = self.types.voidptr, _emit_word_pointer
        else:
            result = self._type(compute_dtype(storage))
            emit = partial(_emit_word_scalar, storage)
        return self._define(name, result, [self.types.voidptr, self.types.int64], emit)

    def _column(self, name: str, dtype: str) -> Any:
        def emit(builder: Any) -> Any:
            kind = ir.ArrayType(_stored_type(dtype), COLUMN_BLOCK)
            with builder.goto_entry_block():
                place = builder.alloca(kind)
                place.align = 64
            return builder.bitcast(place, ir.IntType(8).as_pointer())

        return self._define(name, self.types.voidptr, [], emit)

    def _load(self, name: str, dtype: str) -> Any:
        return self._make_reader(name, dtype, None)

    def _store(self, name: str, dtype: str) -> Any:
        return self._make_writer(name, dtype, None)

    def _reader(self, storage: str, scope: int, scopes: int) -> Any:
        return self._make_reader(f"load_{storage}", storage, (scope, scopes))

    def _writer(self, storage: str, scope: int, scopes: int) -> Any:
        return self._make_writer(f"store_{storage}", storage, (scope, scopes))

    def _make_reader(self, name: str, storage: str, scopes: tuple[int, int] | None) -> Any:
        def emit(builder: Any, pointer: Any, offset: Any) -> Any:
            place = _element(builder, pointer, offset, storage)
            loaded = builder.load(place)
            _set_scope(builder.module, loaded, scopes)
            return _widened(builder, loaded, storage).value

        result = self._type(compute_dtype(storage))
        return self._define(name, result, [self.types.voidptr, self.types.int64], emit)

    def _make_writer(self, name: str, storage: str, scopes: tuple[int, int] | None) -> Any:
        def emit(builder: Any, pointer: Any, offset: Any, value: Any) -> None:
            place = _element(builder, pointer, offset, storage)
            stored = builder.store(_narrowed(builder, value, storage), place)
            _set_scope(builder.module, stored, scopes)

        value = self._type(compute_dtype(storage))
        parameters = [self.types.voidptr, self.types.int64, value]
        return self._define(name, self.types.void, parameters, emit)


def _emit_wide_registers(builder: Any) -> None:
    """Let LLVM use the widest vector registers: it would avoid 512 bits on some processors, on
    which these loops run up to 1.4 times as fast with them.
    """
    # llvmlite refuses attributes that it does not know; a plain set accepts them.
    set.add(builder.function.attributes, '"prefer-vector-width"="512"')


def _stored_type(storage: str) -> ir.Type:
    if cpu_narrow.is_narrow(storage):
        return llvm_type(cpu_narrow.code_dtype(storage))
    return ir.IntType(8) if storage == "bool" else llvm_type(storage)


def _element(builder: Any, pointer: Any, offset: Any, storage: str) -> Any:
    typed = builder.bitcast(pointer, _stored_type(storage).as_pointer())
    return builder.gep(typed, [offset])


def _widened(builder: Any, stored: Any, storage: str) -> Lane:
    if cpu_narrow.is_narrow(storage):
        code = Lane(builder, stored, cpu_narrow.code_dtype(storage))
        return cpu_narrow.widen(code, storage)
    if storage == "bool":
        return Lane(builder, stored, "uint8").differs(0)
    return Lane(builder, stored, storage)


def _narrowed(builder: Any, value: Any, storage: str) -> Any:
    if cpu_narrow.is_narrow(storage):
        return cpu_narrow.narrow(Lane(builder, value, "float32"), storage).value
    if storage == "bool":
        return cast(Lane(builder, value, "bool"), "uint8").value
    return value


def _emit_word_pointer(builder: Any, words: Any, index: Any) -> Any:
    pointer = ir.IntType(8).as_pointer()
    return builder.load(builder.gep(builder.bitcast(words, pointer.as_pointer()), [index]))


def _emit_word_scalar(storage: str, builder: Any, words: Any, index: Any) -> Any:
    word = ir.IntType(64)
    slot = builder.gep(builder.bitcast(words, word.as_pointer()), [index])
    kind = _stored_type(storage)
    bits = builder.load(slot)
    width = {"float": 32, "double": 64}.get(str(kind), getattr(kind, "width", 64))
    if width < 64:
        bits = builder.trunc(bits, ir.IntType(width))
    stored = builder.bitcast(bits, kind) if isinstance(kind, ir.FloatType | ir.DoubleType) else bits
    return _widened(builder, stored, storage).value


def _set_scope(module: ir.Module, instruction: Any, scopes: tuple[int, int] | None) -> None:
    """Say which scope an access is in, and that it overlaps no access of the others."""
    if scopes is None:
        return
    own, count = scopes
    domain = module.add_metadata(["gpuflow operands"])
    every = [module.add_metadata([f"gpuflow scope {k}", domain]) for k in range(count)]
    others = [scope for k, scope in enumerate(every) if k != own]
    instruction.set_metadata("alias.scope", module.add_metadata([every[own]]))
    if others:
        instruction.set_metadata("noalias", module.add_metadata(others))
