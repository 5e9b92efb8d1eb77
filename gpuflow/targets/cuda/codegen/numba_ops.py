"""Typed LLVM values, and operations on them that emit the instructions that Numba would emit.

Numba resolves each function, once per process and argument types. Integer promotion, casts,
libdevice and intrinsics therefore have the semantics of functions that Numba compiles.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuflow.base.caches import register_table
from gpuflow.targets.cuda.codegen.toolchain import NumbaCuda

if TYPE_CHECKING:
    from llvmlite.ir import NamedValue

NumbaType = Any  # a numba.types.Type
Operand = Any  # a Typed, a Python scalar, a scalar type, or a tuple of these
_AXES = {"threadIdx": "tid", "blockIdx": "ctaid", "blockDim": "ntid", "gridDim": "nctaid"}
# Attributes of numba.cuda, and the registers that they read.
_REGISTERS = {
    f"{ours}.{axis}": f"llvm.nvvm.read.ptx.sreg.{theirs}.{axis}"
    for ours, theirs in _AXES.items()
    for axis in "xyz"
}
_BITS_OF_COUNTERS = 32

_Resolved = tuple[Any, Callable[..., Any]]
# Resolved overloads: (function, argument types) to (signature, code generator). Types of a key are
# literal types only if the overload requires literals.
_calls: dict[tuple[Any, tuple[Any, ...]], _Resolved] = {}
register_table("overloads that Numba has resolved", _calls)


class Unsupported(Exception):
    """A construct that printed CUDA source must not use."""


class Typed:
    """An LLVM value and its Numba type."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: Any, value: Any) -> None:
        self.kind, self.value = kind, value


class NumbaOps:
    """Emits operations at the position of an IR builder.

    Operands are Typed, Python scalars, scalar types, or tuples of these. If no operand is Typed,
    Python computes the operation (constant folding).

    Args:
        tools: modules of numba-cuda.
        typing, context: Numba's typing and target context of the kernel.
        builder: llvmlite's IRBuilder.
    """

    def __init__(self, tools: NumbaCuda, typing: Any, context: Any, builder: Any) -> None:
        self.types, self.ir, self.cuda = tools.types, tools.llvm, tools.cuda
        self.tools, self.typing, self.context, self.builder = tools, typing, context, builder

    def at(self, builder: Any) -> NumbaOps:
        """These operations for another builder."""
        return NumbaOps(self.tools, self.typing, self.context, builder)

    # --- types ---

    def scalar_type(self, value: Any) -> NumbaType:
        """The Numba type to which a call of ``value`` casts; None: it is not a scalar type."""
        if isinstance(value, type):
            if value in (bool, np.bool_):
                return self.types.boolean
            if value in (int, float):
                return self.types.int64 if value is int else self.types.float64
            if issubclass(value, np.generic):
                return getattr(self.types, np.dtype(value).name)
            return None
        return value if isinstance(value, self.types.Number | self.types.Boolean) else None

    def type_of(self, value: Any) -> NumbaType:
        """The Numba type of an operand; a literal type for an int."""
        if isinstance(value, Typed):
            return value.kind
        if isinstance(value, bool | np.bool_):
            return self.types.boolean
        if isinstance(value, int):
            return self.types.literal(value)
        if isinstance(value, float):
            return self.types.float64
        if isinstance(value, tuple):
            kinds = [self.types.unliteral(self.type_of(one)) for one in value]
            return self.types.BaseTuple.from_types(kinds)
        if (scalar := self.scalar_type(value)) is not None:
            return self.types.NumberClass(scalar)
        raise Unsupported(f"a value {value!r}")

    def counter_type(self, bounds: Sequence[Any]) -> NumbaType:
        """The type of the induction variable of a loop over a range."""
        kinds = [self.types.unliteral(self.type_of(bound)) for bound in bounds]
        if all(kind.bitwidth <= _BITS_OF_COUNTERS and kind.signed for kind in kinds):
            return self.types.int32
        return self.types.uint64 if self.types.uint64 in kinds else self.types.int64

    # --- values ---

    def typed(self, value: Any) -> Typed:
        """Convert a scalar to a Typed."""
        if isinstance(value, Typed):
            return value
        kind = self.types.unliteral(self.type_of(value))
        return Typed(kind, self.context.get_constant(kind, value))

    def cast(self, value: Any, kind: Any) -> Typed:
        """Cast a scalar to the Numba type ``kind``."""
        if not isinstance(value, Typed) and isinstance(kind, self.types.Number):
            constant = float(value) if isinstance(kind, self.types.Float) else int(value)
            return Typed(kind, self.context.get_constant(kind, constant))
        value = self.typed(value)
        if value.kind == kind:
            return value
        return Typed(kind, self.context.cast(self.builder, value.value, value.kind, kind))

    def truth(self, value: Any) -> NamedValue:
        """The truth value of a scalar, as LLVM's i1."""
        return self.cast(value, self.types.boolean).value

    def local_array(self, count: int, dtype: Any, entry: Any) -> Typed:
        """Allocate an array of this thread in the basic block ``entry``; returns a pointer."""
        element = self.context.get_data_type(dtype)
        with self.builder.goto_block(entry):
            array = self.builder.alloca(self.ir.ArrayType(element, count))
            pointer = self.builder.bitcast(array, element.as_pointer())
        return Typed(self.types.CPointer(dtype), pointer)

    def element(self, values: tuple[Any, ...], index: Any) -> Operand:
        """An element of a tuple; a computed index must be in bounds."""
        if not isinstance(index, Typed):
            return values[index]
        kind = self.typing.unify_types(*[self.typed(one).kind for one in values])
        if kind is None:
            raise Unsupported("an element of a tuple of several types")
        *others, result = [self.cast(one, kind).value for one in values]
        for k, other in reversed(list(enumerate(others))):
            is_it = self.apply(operator.eq, index, k).value
            result = self.builder.select(is_it, other, result)
        return Typed(kind, result)

    def cuda_attribute(self, name: str) -> Operand:
        """The value of ``cuda.name``."""
        if name in _REGISTERS:
            return Typed(self.types.int32, self._read_register(_REGISTERS[name]))
        return self.typing.resolve_getattr(self.types.Module(self.cuda), name)

    def _read_register(self, name: str) -> NamedValue:
        function = self.builder.module.globals.get(name)
        if function is None:
            kind = self.ir.FunctionType(self.ir.IntType(32), [])
            function = self.ir.Function(self.builder.module, kind, name)
        return self.builder.call(function, [])

    # --- functions ---

    def apply(self, function: Callable[..., Any], *operands: Any) -> Operand:
        """Apply an operator; on Python scalars, Python does."""
        if not any(isinstance(operand, Typed) for operand in operands):
            return function(*operands)
        return self.call(function, operands)

    def store(self, array: Any, index: Any, value: Any) -> None:
        """Store ``array[index] = value``, with a cast to the element type."""
        if not isinstance(array, Typed) or not isinstance(array.kind, self.types.CPointer):
            raise Unsupported("an assignment to an element of something that is no array")
        self.call(operator.setitem, [array, index, self.cast(value, array.kind.dtype)])

    def call(self, function: Any, arguments: Sequence[Any]) -> Operand:
        """Call a function that Numba can resolve: an operator, libdevice, an intrinsic, a cast.

        Raises:
            Unsupported: if it has no overload for these arguments.
        """
        if (scalar := self.scalar_type(function)) is not None:
            return self.cast(*arguments, scalar)
        signature, emit = self._resolved(function, [self.type_of(one) for one in arguments])
        values = [
            self._argument(one, kind) for one, kind in zip(arguments, signature.args, strict=True)
        ]
        return self._result(emit(self.context, self.builder, signature, values), signature)

    def _argument(self, value: Any, kind: Any) -> NamedValue:
        if isinstance(value, tuple):
            pairs = zip(value, kind.types, strict=True)
            elements = [self.cast(element, kind).value for element, kind in pairs]
            return self.context.make_tuple(self.builder, kind, elements)
        if isinstance(value, Typed | int | float):
            return self.cast(value, self.types.unliteral(kind)).value
        return self.context.get_dummy_value()

    def _result(self, value: Any, signature: Any) -> Operand:
        kind = signature.return_type
        if not isinstance(kind, self.types.BaseTuple):
            return Typed(kind, value)
        extract = self.builder.extract_value
        return tuple([Typed(one, extract(value, k)) for k, one in enumerate(kind.types)])

    def _resolved(self, function: Any, kinds: Sequence[Any]) -> _Resolved:
        exact, plain = tuple(kinds), tuple(map(self.types.unliteral, kinds))
        for key in ((function, plain), (function, exact)):
            if key in _calls:
                return _calls[key]
        define = getattr(function, "_defn", None)
        if define is not None:  # an intrinsic, which may require literals
            overload = define(self.typing, *exact) or define(self.typing, *plain)
            if overload is None:
                raise Unsupported(f"{function._name} of {', '.join(map(str, exact))}")
            return _calls.setdefault((function, exact), overload)
        callee = self._callee(function)
        try:
            signature, key = callee.get_call_type(self.typing, plain, {}), (function, plain)
        except Exception:  # as cuda.grid, of a literal
            signature, key = callee.get_call_type(self.typing, exact, {}), (function, exact)
        if signature is None:
            raise Unsupported(f"{function} of {', '.join(map(str, exact))}")
        emit = self.context.get_function(callee, signature)
        return _calls.setdefault(
            key, (signature, lambda context, builder, _, values: emit(builder, values))
        )

    def _callee(self, function: Any) -> NumbaType:
        if isinstance(function, self.types.Type):
            return function
        try:
            return self.typing.resolve_value_type(function)
        except Exception as error:
            raise Unsupported(f"a call of {function!r}") from error
