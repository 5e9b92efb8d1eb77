"""Conversions between float32 and narrow floats, as LLVM instructions of the CPU.

``narrow`` rounds to nearest, ties to even, and preserves nan; ``widen`` is exact. A narrow value is
its bit pattern, an unsigned integer. bfloat16 is the upper half of a float32. float16 uses LLVM's
``half`` if the processor converts it. All others share the formula of ``llvm/narrow_formats``.

``storage`` must be a dtype for which ``is_narrow`` holds. Values are scalars or vectors.

Tests: tests/targets/cpu/test_cpu_functions.py, tests/compiler/test_narrow_values.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.ir_values import IRValue, cast, select
from gpuflow.targets.llvm.narrow_formats import NARROW_FORMATS, narrow_by_bits, widen_by_bits

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


def is_narrow(storage: str) -> bool:
    """Whether a storage dtype is a narrow float."""
    return storage == "bfloat16" or storage in NARROW_FORMATS


def bits_dtype_of(storage: str) -> str:
    """The unsigned integer dtype of a narrow float's bit pattern, of the same width."""
    return "uint8" if storage.startswith("float8") else "uint16"


def narrow(x: IRValue, storage: str) -> IRValue:
    """Round a float32 to a narrow float; returns its bit pattern."""
    if storage == "bfloat16":
        return _narrow_bfloat16(x)
    if storage == "float16" and cpu_target().has_float16_conversion:
        half = x.builder.fptrunc(x.value, _half_type(x))
        return IRValue(x.builder, x.builder.bitcast(half, x.type_of("uint16")), "uint16")
    return cast(narrow_by_bits(x, NARROW_FORMATS[storage]), bits_dtype_of(storage))


def widen(bits: IRValue, storage: str) -> IRValue:
    """Convert the bit pattern of a narrow float, of dtype ``bits_dtype_of``, to float32."""
    if storage == "bfloat16":
        return (cast(bits, "uint32") << 16).bitcast("float32")
    if storage == "float16" and cpu_target().has_float16_conversion:
        half = bits.builder.bitcast(bits.value, _half_type(bits))
        return IRValue(bits.builder, bits.builder.fpext(half, bits.type_of("float32")), "float32")
    return widen_by_bits(cast(bits, "uint32"), NARROW_FORMATS[storage])


def round_to(x: IRValue, storage: str) -> IRValue:
    """Round a float32 to a narrow float, and return it as a float32."""
    if storage == "bfloat16":  # stays in 32 bits, without packing and unpacking
        return (_bits_to_even(x) & 0xFFFF0000).bitcast("float32")
    return widen(narrow(x, storage), storage)


def _half_type(x: IRValue) -> ir.Type:
    """LLVM's half type, with the width of a value."""
    return ir.HalfType() if x.width == 1 else ir.VectorType(ir.HalfType(), x.width)


def _narrow_bfloat16(x: IRValue) -> IRValue:
    return cast(_bits_to_even(x) >> 16, "uint16")


def _bits_to_even(x: IRValue) -> IRValue:
    """Bits whose upper half is the nearest bfloat16, or a quiet nan; the lower half is garbage."""
    bits = x.bitcast("uint32")
    return select(x.is_nan(), bits | 0x400000, bits + 0x7FFF + ((bits >> 16) & 1))
