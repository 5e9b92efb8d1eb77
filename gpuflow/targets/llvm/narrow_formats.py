"""Narrow float formats, and their conversions to and from float32 by integer arithmetic.

Both LLVM (CPU) and NVVM (CUDA) use them. A narrow value is its bit pattern, an unsigned integer.
``narrow_by_bits`` rounds to nearest, ties to even, and preserves nan; ``widen_by_bits`` is exact.
All formats share one formula over exponent bits, mantissa bits and bias.

Tests: tests/ops/test_dtypes_storage.py, tests/targets/cuda/test_cuda_halves.py.
"""

from __future__ import annotations

from gpuflow.base.records import record
from gpuflow.targets.llvm.ir_values import IRValue, select


@record
class NarrowFormat:
    """A narrow float format: sign, exponent, mantissa, from the highest bit to the lowest.

    Attributes:
        exponent_bits, mantissa_bits: numbers of bits; ``mantissa_bits`` has no implicit bit.
        bias: bias of the exponent.
        kind: "ieee" has inf and nan. "fn" has no inf, and its nan is all ones, with either sign.
            "fnuz" has no inf and no -0.0, and its nan is the sign bit alone.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    kind: str

    @property
    def sign_bit(self) -> int:
        """The index of the sign bit."""
        return self.exponent_bits + self.mantissa_bits

    @property
    def largest(self) -> int:
        """The bit pattern of the largest finite number."""
        ones = (1 << self.sign_bit) - 1
        return {"ieee": ones - (1 << self.mantissa_bits), "fn": ones - 1, "fnuz": ones}[self.kind]

    @property
    def overflow(self) -> int:
        """The bit pattern, without its sign, of the result for too large values: inf or nan."""
        return (1 << self.sign_bit) if self.kind == "fnuz" else self.largest + 1

    @property
    def nan(self) -> int:
        """The bit pattern of nan."""
        quiet = self.overflow | 1 << (self.mantissa_bits - 1)
        return quiet if self.kind == "ieee" else self.overflow


NARROW_FORMATS = {
    "float16": NarrowFormat(5, 10, 15, "ieee"),
    "float8_e5m2": NarrowFormat(5, 2, 15, "ieee"),
    "float8_e4m3": NarrowFormat(4, 3, 7, "ieee"),
    "float8_e3m4": NarrowFormat(3, 4, 3, "ieee"),
    "float8_e4m3fn": NarrowFormat(4, 3, 7, "fn"),
    "float8_e4m3b11fnuz": NarrowFormat(4, 3, 11, "fnuz"),
    "float8_e4m3fnuz": NarrowFormat(4, 3, 8, "fnuz"),
    "float8_e5m2fnuz": NarrowFormat(5, 2, 16, "fnuz"),
}
_FLOAT32_BIAS = 127
_FLOAT32_MANTISSA_BITS = 23


def narrow_by_bits(x: IRValue, float_format: NarrowFormat) -> IRValue:
    """Round a float32 to ``float_format``; returns the bit pattern as uint32."""
    # Clear the sign bit by integer arithmetic, because NVVM does not support llvm.fabs.
    bits = x.bitcast("uint32") & 0x7FFFFFFF
    magnitude = bits.bitcast("float32")
    dropped_bits = _FLOAT32_MANTISSA_BITS - float_format.mantissa_bits
    below_half = (1 << (dropped_bits - 1)) - 1
    nearest = (bits + below_half + ((bits >> dropped_bits) & 1)) >> dropped_bits
    normal = nearest - ((_FLOAT32_BIAS - float_format.bias) << float_format.mantissa_bits)
    # Adding this power of two rounds, and leaves the subnormal's pattern in the lowest bits.
    addend = x.constant(2.0 ** (1 - float_format.bias + dropped_bits))
    rounded = x.like(x.builder.fadd(magnitude.value, addend.value))  # without fast-math flags
    subnormal = rounded.bitcast("uint32") - addend.bitcast("uint32")
    code = select(magnitude < 2.0 ** (1 - float_format.bias), subnormal, normal)
    too_large = code > float_format.largest
    code = select(too_large, code.constant(float_format.overflow), code)
    signed = code | ((x.bitcast("uint32") >> 31) << float_format.sign_bit)
    if float_format.kind == "fnuz":
        signed = select(code.equals(0), code, signed)
    return select(x.is_nan(), code.constant(float_format.nan), signed)


def widen_by_bits(code: IRValue, float_format: NarrowFormat) -> IRValue:
    """Convert a bit pattern (uint32) of ``float_format`` to float32.

    Its bits are shifted to float32's exponent and mantissa; a power of two then corrects the bias.
    ``shifted`` is a float32 subnormal where ``code`` is one, so neither the compiler nor the thread
    may flush subnormals to zero.
    """
    magnitude = code & ((1 << float_format.sign_bit) - 1)
    shifted = magnitude << (_FLOAT32_MANTISSA_BITS - float_format.mantissa_bits)
    scaled = shifted.bitcast("float32") * 2.0 ** (_FLOAT32_BIAS - float_format.bias)
    special = magnitude > float_format.largest
    if float_format.kind == "fnuz":
        special = code.equals(float_format.nan)
    bits = select(special, shifted | 0x7F800000, scaled.bitcast("uint32"))
    if float_format.kind == "fnuz":
        bits = select(special, bits.constant(0x7FC00000), bits)
    return (bits | ((code >> float_format.sign_bit) << 31)).bitcast("float32")
