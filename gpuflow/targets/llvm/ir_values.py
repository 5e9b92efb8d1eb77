"""SSA values of LLVM with Python operators: each operator emits an instruction.

An ``IRValue`` is one LLVM value with its compute dtype. The scalar functions of the CPU target
(``scalar_functions``) are formulas on such values. They become a few inline instructions, which
compile faster than calls of helper functions.

Tests: tests/targets/cpu/test_cpu_functions.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gpuflow.base.caches import cache, lru_cache
from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

_FLOATS = ("float32", "float64")
# LLVM's only fast-math flag here: a product and a sum may become one fused multiply-add.
_FAST_MATH_FLAGS = ("contract",)

Number = bool | int | float
# An ir.Value: an instruction, a constant or an argument. It is Any because llvmlite has no type
# hints, and type checkers infer wrong types: None for most instructions of the builder, and an
# ir.Value without its ``type``.
LlvmValue = Any


def llvm_type(dtype: str, width: int = 1) -> ir.Type:
    """The LLVM type of values of a compute dtype, or of vectors of ``width`` of them."""
    if dtype in _FLOATS:
        element = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    else:
        element = ir.IntType(bits(dtype))
    return element if width == 1 else ir.VectorType(element, width)


def bits(dtype: str) -> int:
    """The width of a compute dtype in bits; a bool is an i1, an "int64" has 64."""
    return 1 if dtype == "bool" else int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))


def is_float(dtype: str) -> bool:
    """Whether a compute dtype is a float."""
    return dtype in _FLOATS


def is_signed(dtype: str) -> bool:
    """Whether a compute dtype is a signed integer."""
    return dtype.startswith("int")


@record(eq=False)
class IRValue:
    """An SSA value of LLVM: a scalar or a vector. Operators emit instructions at ``builder``.

    Both operands of an operator must have the same dtype and width; a Python number is converted
    to a constant of them. ``/`` is for floats; ``&``, ``|``, ``^``, ``<<`` and ``>>`` are for
    integers and bools. Shift counts must be less than the width in bits.

    Attributes:
        builder: inserts the instructions.
        value: the LLVM value, of type ``llvm_type(dtype, width)``.
        dtype: compute dtype.
    """

    builder: ir.IRBuilder
    value: LlvmValue
    dtype: str

    def constant(self, number: Number) -> IRValue:
        """A constant of this value's dtype."""
        return constant(self.builder, self.dtype, number, self.width)

    @property
    def width(self) -> int:
        """The number of elements; 1 if it is not a vector."""
        kind = self.value.type
        return kind.count if isinstance(kind, ir.VectorType) else 1

    def type_of(self, dtype: str) -> ir.Type:
        """The LLVM type of another dtype with this value's width."""
        return llvm_type(dtype, self.width)

    def like(self, value: LlvmValue) -> IRValue:
        """Wrap an LLVM value, with this value's dtype."""
        return IRValue(self.builder, value, self.dtype)

    @property
    def is_constant(self) -> bool:
        """Whether the value is a constant."""
        return isinstance(self.value, ir.Constant)

    def _operand(self, other: IRValue | Number) -> LlvmValue:
        return other.value if isinstance(other, IRValue) else self.constant(other).value

    def _arithmetic(self, name: str, left: LlvmValue, right: LlvmValue) -> IRValue:
        if is_float(self.dtype):
            return self.like(getattr(self.builder, "f" + name)(left, right, flags=_FAST_MATH_FLAGS))
        return self.like(getattr(self.builder, name)(left, right))

    def __add__(self, other: IRValue | Number) -> IRValue:
        return self._arithmetic("add", self.value, self._operand(other))

    def __radd__(self, other: Number) -> IRValue:
        return self + other

    def __sub__(self, other: IRValue | Number) -> IRValue:
        return self._arithmetic("sub", self.value, self._operand(other))

    def __rsub__(self, other: Number) -> IRValue:
        return self.constant(other) - self

    def __mul__(self, other: IRValue | Number) -> IRValue:
        return self._arithmetic("mul", self.value, self._operand(other))

    def __rmul__(self, other: Number) -> IRValue:
        return self * other

    def __truediv__(self, other: IRValue | Number) -> IRValue:
        return self.like(self.builder.fdiv(self.value, self._operand(other)))

    def __rtruediv__(self, other: Number) -> IRValue:
        return self.constant(other) / self

    def __neg__(self) -> IRValue:
        if is_float(self.dtype):
            return self.like(self.builder.fneg(self.value))
        return self.like(self.builder.neg(self.value))

    def __and__(self, other: IRValue | Number) -> IRValue:
        return self.like(self.builder.and_(self.value, self._operand(other)))

    def __or__(self, other: IRValue | Number) -> IRValue:
        return self.like(self.builder.or_(self.value, self._operand(other)))

    def __xor__(self, other: IRValue | Number) -> IRValue:
        return self.like(self.builder.xor(self.value, self._operand(other)))

    def __lshift__(self, other: IRValue | Number) -> IRValue:
        return self.like(self.builder.shl(self.value, self._operand(other)))

    def __rshift__(self, other: IRValue | Number) -> IRValue:
        """Shift right: logical for unsigned integers, arithmetic for signed ones."""
        shift = self.builder.ashr if is_signed(self.dtype) else self.builder.lshr
        return self.like(shift(self.value, self._operand(other)))

    def __lt__(self, other: IRValue | Number) -> IRValue:
        return self._compare("<", other)

    def __le__(self, other: IRValue | Number) -> IRValue:
        return self._compare("<=", other)

    def __gt__(self, other: IRValue | Number) -> IRValue:
        return self._compare(">", other)

    def __ge__(self, other: IRValue | Number) -> IRValue:
        return self._compare(">=", other)

    def equals(self, other: IRValue | Number) -> IRValue:
        """Emit ``==``, ordered: false if an operand is nan."""
        return self._compare("==", other)

    def differs(self, other: IRValue | Number) -> IRValue:
        """Emit ``!=``, unordered: true if an operand is nan."""
        return self._compare("!=", other)

    def _compare(self, operator: str, other: IRValue | Number) -> IRValue:
        right = self._operand(other)
        if is_float(self.dtype):
            ordered = operator != "!="
            emit = self.builder.fcmp_ordered if ordered else self.builder.fcmp_unordered
        elif is_signed(self.dtype):
            emit = self.builder.icmp_signed
        else:
            emit = self.builder.icmp_unsigned
        return IRValue(self.builder, emit(operator, self.value, right), "bool")

    def is_nan(self) -> IRValue:
        """Emit the test for nan."""
        return self.differs(self)

    def bitcast(self, dtype: str) -> IRValue:
        """The same bits as another dtype with as many bits."""
        return IRValue(self.builder, self.builder.bitcast(self.value, self.type_of(dtype)), dtype)

    def intrinsic(self, name: str, *others: IRValue) -> IRValue:
        """Emit a call of an intrinsic whose operands and result all have this value's type."""
        kind = self.value.type
        arguments = [self.value, *(other.value for other in others)]
        function = intrinsic(self.builder.module, name, kind, [kind] * len(arguments))
        return self.like(self.builder.call(function, arguments))


def intrinsic(
    module: ir.Module,
    name: str,
    result: ir.Type,
    parameters: Sequence[ir.Type],
    overloads: Sequence[ir.Type] = (),
) -> ir.Function:
    """Return the declaration of an LLVM intrinsic in a module; it is declared once.

    llvmlite's ``declare_intrinsic`` does not know the names of overloads for vectors.

    Args:
        module: the module.
        name: name of the intrinsic without ``llvm.`` and type suffixes.
        result: type of the result.
        parameters: types of the operands.
        overloads: types in the name's suffix, in order; empty: the result's type.
    """
    full_name = ".".join(["llvm", name, *map(_overload_suffix, overloads or [result])])
    declared = module.globals.get(full_name)
    return declared or ir.Function(module, ir.FunctionType(result, parameters), full_name)


def _overload_suffix(kind: ir.Type) -> str:
    """The suffix for a type in an intrinsic's name, such as ``v8f32``."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{kind.element.intrinsic_name}"
    return "p0" if isinstance(kind, ir.PointerType) else kind.intrinsic_name


def constant(builder: ir.IRBuilder, dtype: str, number: Number, width: int = 1) -> IRValue:
    """A constant of a compute dtype, or its splat if ``width`` is not 1."""
    exact = float(number) if is_float(dtype) else int(number)
    # The cache key is the repr: 0.0 equals -0.0, and nan does not equal nan.
    cached = _cached_constant(dtype, repr(exact), width) if exact == exact else None
    return IRValue(builder, cached or _constant(dtype, exact, width), dtype)


@lru_cache(4096)
def _cached_constant(dtype: str, number: str, width: int) -> ir.Constant:
    """A shared constant, whose text llvmlite then formats only once."""
    return _constant(dtype, float(number) if is_float(dtype) else int(number), width)


def _constant(dtype: str, number: float, width: int) -> ir.Constant:
    scalar_constant = ir.Constant(llvm_type(dtype), number)
    return scalar_constant if width == 1 else splat_constant(scalar_constant, width)


@cache
def step_vector(dtype: str, start: int, width: int, step: int = 1) -> ir.Constant:
    """The constant vector ``step * (start + k)`` for 0 <= k < ``width``."""
    multiples = [step * k for k in range(start, start + width)]
    return ir.Constant(llvm_type(dtype, width), multiples)


def shuffle_mask(indices: Iterable[int]) -> ir.Constant:
    """The mask operand of a shufflevector: the index of each element of its result."""
    index_list = list(indices)
    return ir.Constant(llvm_type("int32", len(index_list)), index_list)


def splat_constant(scalar: ir.Constant, width: int) -> ir.Constant:
    """The splat of a constant."""
    return ir.Constant(ir.VectorType(scalar.type, width), (scalar,) * width)


def splat(x: IRValue, width: int) -> IRValue:
    """Broadcast a scalar to all elements of a vector."""
    if isinstance(x.value, ir.Constant):
        return x.like(splat_constant(x.value, width))
    builder = x.builder
    undefined = ir.Constant(ir.VectorType(x.value.type, width), ir.Undefined)
    first = builder.insert_element(undefined, x.value, _cached_constant("int32", "0", 1))
    return x.like(builder.shuffle_vector(first, undefined, _cached_constant("int32", "0", width)))


def is_splat(x: IRValue) -> bool:
    """Whether a vector is the result of ``splat`` for a value that is not constant."""
    vector = x.value
    return isinstance(vector, ir.ShuffleVector) and isinstance(vector.operands[0], ir.InsertElement)


def select(predicate: IRValue, on_true: IRValue, on_false: IRValue | Number) -> IRValue:
    """``on_true if predicate else on_false``, without a branch."""
    other = on_false if isinstance(on_false, IRValue) else on_true.constant(on_false)
    selected = predicate.builder.select(predicate.value, on_true.value, other.value)
    return on_true.like(selected)


def polynomial(x: IRValue, coefficients: Sequence[float]) -> IRValue:
    """Evaluate a polynomial by Horner's rule; the highest power's coefficient comes first.

    ``coefficients`` must not be empty.
    """
    result = x.constant(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def cast(x: IRValue, dtype: str) -> IRValue:
    """Convert as ``nodes.Cast``: float to integer saturates, integers wrap."""
    builder, source, kind = x.builder, x.dtype, x.type_of(dtype)
    if source == dtype:
        return x
    if dtype == "bool":
        return x.differs(0)
    if is_float(source):
        value = _from_float(x, dtype)
    elif is_float(dtype):
        convert = builder.sitofp if is_signed(source) else builder.uitofp
        value = convert(x.value, kind)
    elif bits(dtype) < bits(source):
        value = builder.trunc(x.value, kind)
    elif bits(dtype) > bits(source):
        extend = builder.sext if is_signed(source) else builder.zext
        value = extend(x.value, kind)
    else:
        value = x.value
    return IRValue(builder, value, dtype)


def _from_float(x: IRValue, dtype: str) -> LlvmValue:
    builder, kind = x.builder, x.type_of(dtype)
    if is_float(dtype):
        widen = bits(dtype) > bits(x.dtype)
        return builder.fpext(x.value, kind) if widen else builder.fptrunc(x.value, kind)
    name, source = "fptosi.sat" if is_signed(dtype) else "fptoui.sat", x.value.type
    function = intrinsic(builder.module, name, kind, [source], [kind, source])
    return builder.call(function, [x.value])
