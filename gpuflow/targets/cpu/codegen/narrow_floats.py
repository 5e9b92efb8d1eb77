"""Conversions between float32 and narrow floats, as LLVM instructions of the CPU.

``narrow`` rounds to nearest, ties to even, and preserves nan; ``widen`` is exact. A narrow value is
its bit pattern, an unsigned integer. bfloat16 is the upper half of a float32. float16 uses LLVM's
``half`` if the processor converts it. All others share the formula of ``llvm/narrow_formats``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.ir_values import IRValue, cast, select
from gpuflow.targets.llvm.narrow_formats import FORMATS, narrow_by_bits, widen_by_bits

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


def is_narrow(storage: str) -> bool:
    """Whether a storage dtype is a narrow float."""
    return storage == "bfloat16" or storage in FORMATS


def code_dtype(storage: str) -> str:
    """The unsigned integer dtype of a narrow float's bit pattern."""
    return "uint8" if storage.startswith("float8") else "uint16"


def narrow(x: IRValue, storage: str) -> IRValue:
    """Round a float32 to a narrow float; returns its bit pattern."""
    if storage == "bfloat16":
        return _narrow_bfloat16(x)
    if storage == "float16" and cpu_target().has_half:
        half = x.builder.fptrunc(x.value, _half(x))
        return IRValue(x.builder, x.builder.bitcast(half, x.type_of("uint16")), "uint16")
    return cast(narrow_by_bits(x, FORMATS[storage]), code_dtype(storage))


def widen(code: IRValue, storage: str) -> IRValue:
    """Convert the bit pattern of a narrow float to float32."""
    if storage == "bfloat16":
        return (cast(code, "uint32") << 16).bitcast("float32")
    if storage == "float16" and cpu_target().has_half:
        half = code.builder.bitcast(code.value, _half(code))
        return IRValue(code.builder, code.builder.fpext(half, code.type_of("float32")), "float32")
    return widen_by_bits(cast(code, "uint32"), FORMATS[storage])


def rounded(x: IRValue, storage: str) -> IRValue:
    """Round a float32 to a narrow float, and return it as a float32."""
    if storage == "bfloat16":  # stays in 32 bits, without packing and unpacking
        return (_to_even(x) & 0xFFFF0000).bitcast("float32")
    return widen(narrow(x, storage), storage)


def _half(x: IRValue) -> ir.Type:
    """LLVM's half type, with the width of a value."""
    return ir.HalfType() if x.width == 1 else ir.VectorType(ir.HalfType(), x.width)


def _narrow_bfloat16(x: IRValue) -> IRValue:
    return cast(_to_even(x) >> 16, "uint16")


def _to_even(x: IRValue) -> IRValue:
    """Bits whose upper half is the nearest bfloat16, or a quiet nan; the lower half is garbage."""
    bits = x.bitcast("uint32")
    return select(x.is_nan(), bits | 0x400000, bits + 0x7FFF + ((bits >> 16) & 1))
