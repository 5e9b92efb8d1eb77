"""Typed LLVM values, and operations on them that emit the instructions that Numba would emit.

Numba resolves each function, once per process and argument types. Integer promotion, casts,
libdevice and intrinsics therefore have the semantics of functions that Numba compiles.

Tests: tests/targets/cuda/test_source_kernel.py.
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
Operand = Any  # a TypedValue, a Python scalar, a scalar type, or a tuple of these
_AXES = {"threadIdx": "tid", "blockIdx": "ctaid", "blockDim": "ntid", "gridDim": "nctaid"}
# Attributes of numba.cuda, and the registers that they read.
_REGISTERS = {
    f"{numba_name}.{axis}": f"llvm.nvvm.read.ptx.sreg.{ptx_name}.{axis}"
    for numba_name, ptx_name in _AXES.items()
    for axis in "xyz"
}
_COUNTER_BITS = 32  # widest bounds of a range whose induction variable has 32 bits

_ResolvedOverload = tuple[Any, Callable[..., Any]]
# Resolved overloads: (function, argument types) to (signature, code generator). Types of a key are
# literal types only if the overload requires literals. Builds run one at a time (the lock of
# ``build.function_ptx``), so the table needs no lock.
_resolved_overloads: dict[tuple[Any, tuple[Any, ...]], _ResolvedOverload] = {}
register_table("overloads that Numba has resolved", _resolved_overloads)


class UnsupportedConstruct(Exception):
    """A construct that printed CUDA source must not use."""


class TypedValue:
    """An LLVM value and its Numba type.

    Attributes:
        numba_type: the Numba type.
        value: llvmlite's value; its LLVM type is the value type of ``numba_type``.
    """

    __slots__ = ("numba_type", "value")

    def __init__(self, numba_type: NumbaType, value: Any) -> None:
        self.numba_type, self.value = numba_type, value


class NumbaOps:
    """Emits operations at the position of an IR builder.

    Operands are TypedValues, Python scalars, scalar types, or tuples of these. If no operand is a
    TypedValue, Python computes the operation (constant folding).

    Args:
        tools: modules of numba-cuda.
        typing, context: Numba's typing and target context of the kernel.
        builder: llvmlite's IRBuilder.
    """

    def __init__(self, tools: NumbaCuda, typing: Any, context: Any, builder: Any) -> None:
        self.types, self.ir, self.cuda = tools.types, tools.llvm, tools.cuda
        self.tools, self.typing, self.context, self.builder = tools, typing, context, builder

    def with_builder(self, builder: Any) -> NumbaOps:
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
        if isinstance(value, TypedValue):
            return value.numba_type
        if isinstance(value, bool | np.bool_):
            return self.types.boolean
        if isinstance(value, int):
            return self.types.literal(value)
        if isinstance(value, float):
            return self.types.float64
        if isinstance(value, tuple):
            numba_types = [self.types.unliteral(self.type_of(element)) for element in value]
            return self.types.BaseTuple.from_types(numba_types)
        if (scalar := self.scalar_type(value)) is not None:
            return self.types.NumberClass(scalar)
        raise UnsupportedConstruct(f"a value {value!r}")

    def counter_type(self, bounds: Sequence[Any]) -> NumbaType:
        """The type of the induction variable of a loop over a range."""
        numba_types = [self.types.unliteral(self.type_of(bound)) for bound in bounds]
        if all(
            numba_type.bitwidth <= _COUNTER_BITS and numba_type.signed for numba_type in numba_types
        ):
            return self.types.int32
        return self.types.uint64 if self.types.uint64 in numba_types else self.types.int64

    # --- values ---

    def typed(self, value: Any) -> TypedValue:
        """Convert a scalar to a TypedValue."""
        if isinstance(value, TypedValue):
            return value
        numba_type = self.types.unliteral(self.type_of(value))
        return TypedValue(numba_type, self.context.get_constant(numba_type, value))

    def cast(self, value: Any, numba_type: Any) -> TypedValue:
        """Cast a scalar to the Numba type ``numba_type``."""
        if not isinstance(value, TypedValue) and isinstance(numba_type, self.types.Number):
            constant = float(value) if isinstance(numba_type, self.types.Float) else int(value)
            return TypedValue(numba_type, self.context.get_constant(numba_type, constant))
        value = self.typed(value)
        if value.numba_type == numba_type:
            return value
        converted = self.context.cast(self.builder, value.value, value.numba_type, numba_type)
        return TypedValue(numba_type, converted)

    def truth(self, value: Any) -> NamedValue:
        """The truth value of a scalar, as LLVM's i1."""
        return self.cast(value, self.types.boolean).value

    def local_array(self, count: int, dtype: Any, entry: Any) -> TypedValue:
        """Allocate an array of this thread in the basic block ``entry``; returns a pointer.

        Args:
            count: number of elements, a constant.
            dtype: Numba type of an element.
            entry: the entry block of the LLVM function.
        """
        element = self.context.get_data_type(dtype)
        with self.builder.goto_block(entry):
            array = self.builder.alloca(self.ir.ArrayType(element, count))
            pointer = self.builder.bitcast(array, element.as_pointer())
        return TypedValue(self.types.CPointer(dtype), pointer)

    def element(self, values: tuple[Any, ...], index: Any) -> Operand:
        """An element of a tuple; a computed index must be at least 0 and in bounds.

        A computed index needs elements of types that Numba unifies.
        """
        if not isinstance(index, TypedValue):
            return values[index]
        numba_type = self.typing.unify_types(
            *[self.typed(element).numba_type for element in values]
        )
        if numba_type is None:
            raise UnsupportedConstruct("an element of a tuple of several types")
        *others, result = [self.cast(element, numba_type).value for element in values]
        for k, other in reversed(list(enumerate(others))):
            is_selected = self.apply(operator.eq, index, k).value
            result = self.builder.select(is_selected, other, result)
        return TypedValue(numba_type, result)

    def cuda_attribute(self, name: str) -> Operand:
        """The value of ``cuda.name``."""
        if name in _REGISTERS:
            return TypedValue(self.types.int32, self._read_register(_REGISTERS[name]))
        return self.typing.resolve_getattr(self.types.Module(self.cuda), name)

    def _read_register(self, name: str) -> NamedValue:
        function = self.builder.module.globals.get(name)
        if function is None:
            function_type = self.ir.FunctionType(self.ir.IntType(32), [])
            function = self.ir.Function(self.builder.module, function_type, name)
        return self.builder.call(function, [])

    # --- functions ---

    def apply(self, function: Callable[..., Any], *operands: Any) -> Operand:
        """Apply an operator; on Python scalars, Python does."""
        if not any(isinstance(operand, TypedValue) for operand in operands):
            return function(*operands)
        return self.call(function, operands)

    def store(self, array: Any, index: Any, value: Any) -> None:
        """Store ``array[index] = value``, with a cast to the element type."""
        array_type = array.numba_type if isinstance(array, TypedValue) else None
        if not isinstance(array_type, self.types.CPointer):
            raise UnsupportedConstruct("an assignment to an element of something that is no array")
        self.call(operator.setitem, [array, index, self.cast(value, array_type.dtype)])

    def call(self, function: Any, arguments: Sequence[Any]) -> Operand:
        """Call a function that Numba can resolve: an operator, libdevice, an intrinsic, a cast.

        Raises:
            UnsupportedConstruct: if it has no overload for these arguments.
        """
        if (scalar := self.scalar_type(function)) is not None:
            return self.cast(*arguments, scalar)
        numba_types = [self.type_of(argument) for argument in arguments]
        signature, emit = self._resolve_overload(function, numba_types)
        values = [
            self._llvm_argument(argument, numba_type)
            for argument, numba_type in zip(arguments, signature.args, strict=True)
        ]
        result = emit(self.context, self.builder, signature, values)
        return self._operand_of_result(result, signature)

    def _llvm_argument(self, value: Any, numba_type: Any) -> NamedValue:
        """The LLVM value of an operand for a parameter of the Numba type ``numba_type``."""
        if isinstance(value, tuple):
            pairs = zip(value, numba_type.types, strict=True)
            elements = [self.cast(element, numba_type).value for element, numba_type in pairs]
            return self.context.make_tuple(self.builder, numba_type, elements)
        if isinstance(value, TypedValue | int | float):
            return self.cast(value, self.types.unliteral(numba_type)).value
        return self.context.get_dummy_value()

    def _operand_of_result(self, value: Any, signature: Any) -> Operand:
        """The operand for an LLVM result; a tuple type becomes a tuple of TypedValues."""
        numba_type = signature.return_type
        if not isinstance(numba_type, self.types.BaseTuple):
            return TypedValue(numba_type, value)
        extract = self.builder.extract_value
        types = enumerate(numba_type.types)
        return tuple([TypedValue(element, extract(value, k)) for k, element in types])

    def _resolve_overload(self, function: Any, numba_types: Sequence[Any]) -> _ResolvedOverload:
        """The overload of a function for argument types; resolved once per process."""
        exact, plain = tuple(numba_types), tuple(map(self.types.unliteral, numba_types))
        for key in ((function, plain), (function, exact)):
            if key in _resolved_overloads:
                return _resolved_overloads[key]
        define = getattr(function, "_defn", None)
        if define is not None:  # an intrinsic, which may require literals
            overload = define(self.typing, *exact) or define(self.typing, *plain)
            if overload is None:
                raise UnsupportedConstruct(f"{function._name} of {', '.join(map(str, exact))}")
            return _resolved_overloads.setdefault((function, exact), overload)
        callee = self._numba_function_type(function)
        try:
            signature, key = callee.get_call_type(self.typing, plain, {}), (function, plain)
        except Exception:  # as cuda.grid, of a literal
            signature, key = callee.get_call_type(self.typing, exact, {}), (function, exact)
        if signature is None:
            raise UnsupportedConstruct(f"{function} of {', '.join(map(str, exact))}")
        emit = self.context.get_function(callee, signature)
        return _resolved_overloads.setdefault(
            key, (signature, lambda context, builder, _, values: emit(builder, values))
        )

    def _numba_function_type(self, function: Any) -> NumbaType:
        if isinstance(function, self.types.Type):
            return function
        try:
            return self.typing.resolve_value_type(function)
        except Exception as error:
            raise UnsupportedConstruct(f"a call of {function!r}") from error
