"""Write LLVM instructions with Python operators.

An ``IRValue`` is one LLVM value with its compute dtype. The scalar functions of the CPU target
(``scalar_functions``) are formulas on such values: they become a few inline instructions, which
takes less time to compile than calls of helper functions.
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
# Products and sums may become one fused operation; nothing else may change.
_FLAGS = ("contract",)

Number = bool | int | float
# An ir.Value with a type. llvmlite has no type hints, and what a checker infers is wrong: None for
# most of the builder's instructions, and an ir.Value without its type.
Instruction = Any


def llvm_type(dtype: str, width: int = 1) -> ir.Type:
    """The LLVM type of values of a compute dtype, or of vectors of ``width`` of them."""
    if dtype in _FLOATS:
        element = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    else:
        element = ir.IntType(bits(dtype))
    return element if width == 1 else ir.VectorType(element, width)


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
class IRValue:
    """One LLVM value, or a vector of them; operators emit instructions with ``builder``."""

    builder: ir.IRBuilder
    value: Instruction
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

    def like(self, value: Instruction) -> IRValue:
        """An LLVM value of this value's dtype."""
        return IRValue(self.builder, value, self.dtype)

    @property
    def is_constant(self) -> bool:
        """Whether the value is a constant."""
        return isinstance(self.value, ir.Constant)

    def _other(self, other: IRValue | Number) -> Instruction:
        return other.value if isinstance(other, IRValue) else self.constant(other).value

    def _arithmetic(self, name: str, left: Instruction, right: Instruction) -> IRValue:
        if is_float(self.dtype):
            return self.like(getattr(self.builder, "f" + name)(left, right, flags=_FLAGS))
        return self.like(getattr(self.builder, name)(left, right))

    def __add__(self, other: IRValue | Number) -> IRValue:
        return self._arithmetic("add", self.value, self._other(other))

    def __radd__(self, other: Number) -> IRValue:
        return self + other

    def __sub__(self, other: IRValue | Number) -> IRValue:
        return self._arithmetic("sub", self.value, self._other(other))

    def __rsub__(self, other: Number) -> IRValue:
        return self.constant(other) - self

    def __mul__(self, other: IRValue | Number) -> IRValue:
        return self._arithmetic("mul", self.value, self._other(other))

    def __rmul__(self, other: Number) -> IRValue:
        return self * other

    def __truediv__(self, other: IRValue | Number) -> IRValue:
        return self.like(self.builder.fdiv(self.value, self._other(other)))

    def __rtruediv__(self, other: Number) -> IRValue:
        return self.constant(other) / self

    def __neg__(self) -> IRValue:
        if is_float(self.dtype):
            return self.like(self.builder.fneg(self.value))
        return self.like(self.builder.neg(self.value))

    def __and__(self, other: IRValue | Number) -> IRValue:
        return self.like(self.builder.and_(self.value, self._other(other)))

    def __or__(self, other: IRValue | Number) -> IRValue:
        return self.like(self.builder.or_(self.value, self._other(other)))

    def __xor__(self, other: IRValue | Number) -> IRValue:
        return self.like(self.builder.xor(self.value, self._other(other)))

    def __lshift__(self, other: IRValue | Number) -> IRValue:
        return self.like(self.builder.shl(self.value, self._other(other)))

    def __rshift__(self, other: IRValue | Number) -> IRValue:
        """Logical for unsigned and arithmetic for signed integers."""
        shift = self.builder.ashr if is_signed(self.dtype) else self.builder.lshr
        return self.like(shift(self.value, self._other(other)))

    def __lt__(self, other: IRValue | Number) -> IRValue:
        return self._compare("<", other)

    def __le__(self, other: IRValue | Number) -> IRValue:
        return self._compare("<=", other)

    def __gt__(self, other: IRValue | Number) -> IRValue:
        return self._compare(">", other)

    def __ge__(self, other: IRValue | Number) -> IRValue:
        return self._compare(">=", other)

    def equals(self, other: IRValue | Number) -> IRValue:
        """Whether both are equal; false with nan."""
        return self._compare("==", other)

    def differs(self, other: IRValue | Number) -> IRValue:
        """Whether they are not equal; true with nan."""
        return self._compare("!=", other)

    def _compare(self, operator: str, other: IRValue | Number) -> IRValue:
        right = self._other(other)
        if is_float(self.dtype):
            ordered = operator != "!="
            emit = self.builder.fcmp_ordered if ordered else self.builder.fcmp_unordered
        elif is_signed(self.dtype):
            emit = self.builder.icmp_signed
        else:
            emit = self.builder.icmp_unsigned
        return IRValue(self.builder, emit(operator, self.value, right), "bool")

    def is_nan(self) -> IRValue:
        """Whether this is nan."""
        return self.differs(self)

    def bitcast(self, dtype: str) -> IRValue:
        """The same bits as another dtype of the same width."""
        return IRValue(self.builder, self.builder.bitcast(self.value, self.type_of(dtype)), dtype)

    def intrinsic(self, name: str, *others: IRValue) -> IRValue:
        """An LLVM intrinsic on values of this dtype, overloaded on it."""
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
    """The declaration of an LLVM intrinsic; llvmlite does not know the names of those of vectors.

    Args:
        overloads: the types that it is overloaded on, in their order; none: its result.
    """
    full = ".".join(["llvm", name, *map(_spelled, overloads or [result])])
    declared = module.globals.get(full)
    return declared or ir.Function(module, ir.FunctionType(result, parameters), full)


def _spelled(kind: ir.Type) -> str:
    """The suffix of an intrinsic's name for a type."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{kind.element.intrinsic_name}"
    return "p0" if isinstance(kind, ir.PointerType) else kind.intrinsic_name


def constant(builder: ir.IRBuilder, dtype: str, number: Number, width: int = 1) -> IRValue:
    """A constant of a compute dtype, or a vector that repeats it."""
    exact = float(number) if is_float(dtype) else int(number)
    # As keys, 0.0 would equal -0.0, and nan would not equal nan.
    cached = _cached_constant(dtype, repr(exact), width) if exact == exact else None
    return IRValue(builder, cached or _constant(dtype, exact, width), dtype)


@lru_cache(4096)
def _cached_constant(dtype: str, number: str, width: int) -> ir.Constant:
    """A shared constant: llvmlite caches its text."""
    return _constant(dtype, float(number) if is_float(dtype) else int(number), width)


def _constant(dtype: str, number: float, width: int) -> ir.Constant:
    single = ir.Constant(llvm_type(dtype), number)
    return single if width == 1 else repeated(single, width)


@cache
def counted(dtype: str, start: int, width: int, step: int = 1) -> ir.Constant:
    """The vector of ``width`` multiples of ``step``, from the ``start``-th on."""
    numbers = [step * k for k in range(start, start + width)]
    return ir.Constant(llvm_type(dtype, width), numbers)


def shuffle_mask(numbers: Iterable[int]) -> ir.Constant:
    """The vector of indices of a shuffle."""
    listed = list(numbers)
    return ir.Constant(llvm_type("int32", len(listed)), listed)


def repeated(single: ir.Constant, width: int) -> ir.Constant:
    """The vector that repeats one constant."""
    return ir.Constant(ir.VectorType(single.type, width), (single,) * width)


def splat(x: IRValue, width: int) -> IRValue:
    """A vector that repeats one value."""
    if isinstance(x.value, ir.Constant):
        return x.like(repeated(x.value, width))
    builder = x.builder
    undefined = ir.Constant(ir.VectorType(x.value.type, width), ir.Undefined)
    first = builder.insert_element(undefined, x.value, _cached_constant("int32", "0", 1))
    return x.like(builder.shuffle_vector(first, undefined, _cached_constant("int32", "0", width)))


def is_splat(x: IRValue) -> bool:
    """Whether ``splat`` made the vector."""
    made = x.value
    return isinstance(made, ir.ShuffleVector) and isinstance(made.operands[0], ir.InsertElement)


def select(predicate: IRValue, on_true: IRValue, on_false: IRValue | Number) -> IRValue:
    """``on_true if predicate else on_false``, without a branch."""
    other = on_false if isinstance(on_false, IRValue) else on_true.constant(on_false)
    selected = predicate.builder.select(predicate.value, on_true.value, other.value)
    return on_true.like(selected)


def polynomial(x: IRValue, coefficients: Sequence[float]) -> IRValue:
    """Horner's rule; the highest power comes first."""
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


def _from_float(x: IRValue, dtype: str) -> Instruction:
    builder, kind = x.builder, x.type_of(dtype)
    if is_float(dtype):
        widen = bits(dtype) > bits(x.dtype)
        return builder.fpext(x.value, kind) if widen else builder.fptrunc(x.value, kind)
    name, source = "fptosi.sat" if is_signed(dtype) else "fptoui.sat", x.value.type
    function = intrinsic(builder.module, name, kind, [source], [kind, source])
    return builder.call(function, [x.value])
