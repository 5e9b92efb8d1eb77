"""Write LLVM instructions with Python operators.

A ``Lane`` is one LLVM value with its compute dtype. Scalar functions of the CPU target are written
on Lanes (``scalar_functions``): their formulas read as such and become a few inline instructions,
which takes less time to compile than calls of helper functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

_FLOATS = ("float32", "float64")
# Products and sums may become one fused operation; nothing else may change.
_FLAGS = ("contract",)

Number = bool | int | float
# An ir.Value with a type. llvmlite has no type hints, and what a checker infers is wrong: None for
# most of the builder's instructions, and an ir.Value without its type.
Instruction = Any


def llvm_type(dtype: str) -> ir.Type:
    """The LLVM type of values of a compute dtype."""
    if dtype in _FLOATS:
        return ir.FloatType() if dtype == "float32" else ir.DoubleType()
    return ir.IntType(bits(dtype))


def bits(dtype: str) -> int:
    """The width of a compute dtype."""
    return 1 if dtype == "bool" else int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))


def is_float(dtype: str) -> bool:
    """Whether a compute dtype is a float."""
    return dtype in _FLOATS


def is_signed(dtype: str) -> bool:
    """Whether a compute dtype is a signed integer."""
    return dtype.startswith("int")


@record(eq=False)
class Lane:
    """One LLVM value: ``builder`` emits what the operators ask for."""

    builder: ir.IRBuilder
    value: Instruction
    dtype: str

    def constant(self, number: Number) -> Lane:
        """A constant of this value's dtype."""
        return constant(self.builder, self.dtype, number)

    def like(self, value: Instruction) -> Lane:
        """An LLVM value of this value's dtype."""
        return Lane(self.builder, value, self.dtype)

    @property
    def is_constant(self) -> bool:
        """Whether the value is known."""
        return isinstance(self.value, ir.Constant)

    def _other(self, other: Lane | Number) -> Instruction:
        return other.value if isinstance(other, Lane) else self.constant(other).value

    def _arithmetic(self, name: str, left: Instruction, right: Instruction) -> Lane:
        if is_float(self.dtype):
            return self.like(getattr(self.builder, "f" + name)(left, right, flags=_FLAGS))
        return self.like(getattr(self.builder, name)(left, right))

    def __add__(self, other: Lane | Number) -> Lane:
        return self._arithmetic("add", self.value, self._other(other))

    def __radd__(self, other: Number) -> Lane:
        return self + other

    def __sub__(self, other: Lane | Number) -> Lane:
        return self._arithmetic("sub", self.value, self._other(other))

    def __rsub__(self, other: Number) -> Lane:
        return self.constant(other) - self

    def __mul__(self, other: Lane | Number) -> Lane:
        return self._arithmetic("mul", self.value, self._other(other))

    def __rmul__(self, other: Number) -> Lane:
        return self * other

    def __truediv__(self, other: Lane | Number) -> Lane:
        return self.like(self.builder.fdiv(self.value, self._other(other)))

    def __rtruediv__(self, other: Number) -> Lane:
        return self.constant(other) / self

    def __neg__(self) -> Lane:
        if is_float(self.dtype):
            return self.like(self.builder.fneg(self.value))
        return self.like(self.builder.neg(self.value))

    def __and__(self, other: Lane | Number) -> Lane:
        return self.like(self.builder.and_(self.value, self._other(other)))

    def __or__(self, other: Lane | Number) -> Lane:
        return self.like(self.builder.or_(self.value, self._other(other)))

    def __xor__(self, other: Lane | Number) -> Lane:
        return self.like(self.builder.xor(self.value, self._other(other)))

    def __lshift__(self, other: Lane | Number) -> Lane:
        return self.like(self.builder.shl(self.value, self._other(other)))

    def __rshift__(self, other: Lane | Number) -> Lane:
        """Logical for unsigned and arithmetic for signed integers."""
        shift = self.builder.ashr if is_signed(self.dtype) else self.builder.lshr
        return self.like(shift(self.value, self._other(other)))

    def __lt__(self, other: Lane | Number) -> Lane:
        return self._compare("<", other)

    def __le__(self, other: Lane | Number) -> Lane:
        return self._compare("<=", other)

    def __gt__(self, other: Lane | Number) -> Lane:
        return self._compare(">", other)

    def __ge__(self, other: Lane | Number) -> Lane:
        return self._compare(">=", other)

    def equals(self, other: Lane | Number) -> Lane:
        """Whether both are equal; false with nan."""
        return self._compare("==", other)

    def differs(self, other: Lane | Number) -> Lane:
        """Whether they are not equal; true with nan."""
        return self._compare("!=", other)

    def _compare(self, operator: str, other: Lane | Number) -> Lane:
        right = self._other(other)
        if is_float(self.dtype):
            ordered = operator != "!="
            emit = self.builder.fcmp_ordered if ordered else self.builder.fcmp_unordered
        elif is_signed(self.dtype):
            emit = self.builder.icmp_signed
        else:
            emit = self.builder.icmp_unsigned
        return Lane(self.builder, emit(operator, self.value, right), "bool")

    def is_nan(self) -> Lane:
        """Whether this is nan."""
        return self.differs(self)

    def bitcast(self, dtype: str) -> Lane:
        """The same bits as another dtype of the same width."""
        return Lane(self.builder, self.builder.bitcast(self.value, llvm_type(dtype)), dtype)

    def intrinsic(self, name: str, *others: Lane) -> Lane:
        """An LLVM intrinsic on values of this dtype, overloaded on it."""
        kind = self.value.type
        arguments = [self.value, *(other.value for other in others)]
        signature = ir.FunctionType(kind, [kind] * len(arguments))
        function = self.builder.module.declare_intrinsic(f"llvm.{name}", [kind], signature)
        return self.like(self.builder.call(function, arguments))


def constant(builder: ir.IRBuilder, dtype: str, number: Number) -> Lane:
    """A constant of a compute dtype."""
    kind = llvm_type(dtype)
    exact = float(number) if is_float(dtype) else int(number)
    return Lane(builder, ir.Constant(kind, exact), dtype)


def select(predicate: Lane, on_true: Lane, on_false: Lane | Number) -> Lane:
    """``on_true if predicate else on_false``, without a branch."""
    other = on_false if isinstance(on_false, Lane) else on_true.constant(on_false)
    chosen = predicate.builder.select(predicate.value, on_true.value, other.value)
    return on_true.like(chosen)


def polynomial(x: Lane, coefficients: Sequence[float]) -> Lane:
    """Horner's rule; the highest power comes first."""
    result = x.constant(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def cast(x: Lane, dtype: str) -> Lane:
    """Convert as ``nodes.Cast`` says: float to integer saturates, integers wrap."""
    builder, source, kind = x.builder, x.dtype, llvm_type(dtype)
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
    return Lane(builder, value, dtype)


def _from_float(x: Lane, dtype: str) -> Instruction:
    builder, kind = x.builder, llvm_type(dtype)
    if is_float(dtype):
        widen = bits(dtype) > bits(x.dtype)
        return builder.fpext(x.value, kind) if widen else builder.fptrunc(x.value, kind)
    name = "llvm.fptosi.sat" if is_signed(dtype) else "llvm.fptoui.sat"
    signature = ir.FunctionType(kind, [x.value.type])
    function = builder.module.declare_intrinsic(name, [kind, x.value.type], signature)
    return builder.call(function, [x.value])
