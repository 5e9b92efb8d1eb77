"""Conversions between float32 and the narrow floats, as LLVM instructions.

``narrow`` rounds to nearest, ties to even, and keeps nan; ``widen`` is exact. Narrow values are
unsigned integers here. bfloat16 is the upper half of a float32; float16 uses LLVM's ``half`` where
the processor has it; all others share one formula over their exponent, mantissa and bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.compiler.cpu_emit import Lane, cast, select
from gpuflow.compiler.cpu_target import cpu_target

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


@record
class Format:
    """A narrow float: ``mantissa`` bits below ``exponent`` bits with a bias, below the sign.

    kind: "ieee" has inf and nan; "fn" has no inf, and one nan, all ones; "fnuz" has no inf and no
    -0.0, and its nan is the sign bit alone.
    """

    exponent: int
    mantissa: int
    bias: int
    kind: str

    @property
    def sign(self) -> int:
        """The position of the sign bit."""
        return self.exponent + self.mantissa

    @property
    def largest(self) -> int:
        """The code of the largest finite number."""
        ones = (1 << self.sign) - 1
        return {"ieee": ones - (1 << self.mantissa), "fn": ones - 1, "fnuz": ones}[self.kind]

    @property
    def overflow(self) -> int:
        """The code, without a sign, of what is too large."""
        return (1 << self.sign) if self.kind == "fnuz" else self.largest + 1

    @property
    def nan(self) -> int:
        """The code of nan."""
        quiet = self.overflow | 1 << (self.mantissa - 1)
        return quiet if self.kind == "ieee" else self.overflow


FORMATS = {
    "float16": Format(5, 10, 15, "ieee"),
    "float8_e5m2": Format(5, 2, 15, "ieee"),
    "float8_e4m3": Format(4, 3, 7, "ieee"),
    "float8_e3m4": Format(3, 4, 3, "ieee"),
    "float8_e4m3fn": Format(4, 3, 7, "fn"),
    "float8_e4m3b11fnuz": Format(4, 3, 11, "fnuz"),
    "float8_e4m3fnuz": Format(4, 3, 8, "fnuz"),
    "float8_e5m2fnuz": Format(5, 2, 16, "fnuz"),
}
_FLOAT32_BIAS = 127
_FLOAT32_MANTISSA = 23


def is_narrow(storage: str) -> bool:
    """Whether a storage dtype is a narrow float."""
    return storage == "bfloat16" or storage in FORMATS


def code_dtype(storage: str) -> str:
    """The unsigned integer in which a narrow float is stored."""
    return "uint8" if storage.startswith("float8") else "uint16"


def narrow(x: Lane, storage: str) -> Lane:
    """Round a float32 to a narrow float; its code as an unsigned integer."""
    if storage == "bfloat16":
        return _narrow_bfloat16(x)
    if storage == "float16" and cpu_target().has_half:
        half = x.builder.fptrunc(x.value, ir.HalfType())
        return Lane(x.builder, x.builder.bitcast(half, ir.IntType(16)), "uint16")
    return cast(narrow_by_bits(x, FORMATS[storage]), code_dtype(storage))


def widen(code: Lane, storage: str) -> Lane:
    """The float32 of a narrow float's code."""
    if storage == "bfloat16":
        return (cast(code, "uint32") << 16).bitcast("float32")
    if storage == "float16" and cpu_target().has_half:
        half = code.builder.bitcast(code.value, ir.HalfType())
        return Lane(code.builder, code.builder.fpext(half, ir.FloatType()), "float32")
    return widen_by_bits(cast(code, "uint32"), FORMATS[storage])


def rounded(x: Lane, storage: str) -> Lane:
    """A float32 rounded to a narrow float, as a float32."""
    if storage == "bfloat16":  # all in 32 bits, which packs nothing
        return (_to_even(x) & 0xFFFF0000).bitcast("float32")
    return widen(narrow(x, storage), storage)


def _narrow_bfloat16(x: Lane) -> Lane:
    return cast(_to_even(x) >> 16, "uint16")


def _to_even(x: Lane) -> Lane:
    """The bits of a float32 whose upper half is the nearest bfloat16, or a quiet nan."""
    bits = x.bitcast("uint32")
    return select(x.is_nan(), bits | 0x400000, bits + 0x7FFF + ((bits >> 16) & 1))


def narrow_by_bits(x: Lane, form: Format) -> Lane:
    """The code of a float32 in ``form``, as uint32, by integer arithmetic."""
    # By its bits and not by llvm.fabs, which NVVM does not take: the CUDA target uses this too.
    bits = x.bitcast("uint32") & 0x7FFFFFFF
    magnitude = bits.bitcast("float32")
    dropped = _FLOAT32_MANTISSA - form.mantissa
    nearest = (bits + ((1 << (dropped - 1)) - 1) + ((bits >> dropped) & 1)) >> dropped
    normal = nearest - ((_FLOAT32_BIAS - form.bias) << form.mantissa)
    # Adding a power of two leaves the subnormal code, rounded, in the lowest bits.
    magic = 2.0 ** (1 - form.bias - form.mantissa + _FLOAT32_MANTISSA)
    sum_ = x.like(x.builder.fadd(magnitude.value, x.constant(magic).value))
    subnormal = sum_.bitcast("uint32") - x.constant(magic).bitcast("uint32")
    code = select(magnitude < 2.0 ** (1 - form.bias), subnormal, normal)
    too_large = code > form.largest
    code = select(too_large, code.constant(form.overflow), code)
    signed = code | ((x.bitcast("uint32") >> 31) << form.sign)
    if form.kind == "fnuz":
        signed = select(code.equals(0), code, signed)
    return select(x.is_nan(), code.constant(form.nan), signed)


def widen_by_bits(code: Lane, form: Format) -> Lane:
    """The float32 of a code (uint32) in ``form``: place the bits, then scale by a power of two."""
    magnitude = code & ((1 << form.sign) - 1)
    placed = magnitude << (_FLOAT32_MANTISSA - form.mantissa)
    scaled = placed.bitcast("float32") * 2.0 ** (_FLOAT32_BIAS - form.bias)
    special = magnitude > form.largest
    if form.kind == "fnuz":
        special = code.equals(form.nan)
    bits = select(special, placed | 0x7F800000, scaled.bitcast("uint32"))
    if form.kind == "fnuz":
        bits = select(special, bits.constant(0x7FC00000), bits)
    return (bits | ((code >> form.sign) << 31)).bitcast("float32")
