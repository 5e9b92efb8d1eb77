"""The processor that CPU kernels are compiled for: that of this machine, or a level below it.

GPUFLOW_CPU_TARGET takes the microarchitecture levels of the x86-64 psABI. Code for a lower level
behaves as on a processor without the other features. So tests need no such processor, and one
machine can fill a cache folder for a mixed cluster.

Tests: tests/targets/cpu/test_cpu_target.py.
"""

from __future__ import annotations

import platform
from typing import NamedTuple

from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.host import host_processor

# The additional features of each level, in LLVM's names. Source: x86-64 psABI, table 3.1.
_LEVEL_FEATURES = {
    "x86-64": ("cx8", "cmov", "fxsr", "mmx", "sse", "sse2"),
    "x86-64-v2": ("cx16", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
# By level: a core type of OpenBLAS whose kernels need no features of higher levels.
_OPENBLAS_CORE_TYPES = {"x86-64": "Prescott", "x86-64-v2": "Nehalem", "x86-64-v3": "Haswell"}
_X86_MACHINES = ("x86_64", "AMD64")
# Features for float16 arithmetic are disabled, because kernels compute in float32. With them, LLVM
# would contract a product and a sum into one operation, and omit the rounding between them.
_DISABLED_FEATURES = ("avx512fp16", "fullfp16", "fp16fml")
# With AVX-512, LLVM would use gather instructions for elements that are not contiguous. On an EPYC
# of 2022 they take 4 times as long as scalar loads for every seventh of a million elements, and 1.1
# to 1.25 times as long for tables and searches.
_NO_GATHERS = "+prefer-no-gather"


class VectorRegisters(NamedTuple):
    """The number of vector registers of a processor, and the bits of each."""

    count: int
    bits: int


@record
class CpuTarget:
    """A processor to compile for.

    Attributes:
        name: the value of GPUFLOW_CPU_TARGET: a level, or "native".
        cpu: LLVM's name of the processor.
        flags: LLVM's feature flags, relative to ``cpu``.
        features: all its features that kernels may use, in LLVM's names.
        openblas_core_type: OpenBLAS's core type; None: OpenBLAS detects it.
    """

    name: str
    cpu: str
    flags: str
    features: frozenset[str]
    openblas_core_type: str | None = None

    @property
    def has_fused_multiply_add(self) -> bool:
        """Whether it has fused multiply-add: ``a * b + c`` with one rounding."""
        return self._has("fma")

    @property
    def has_float16_conversion(self) -> bool:
        """Whether it has instructions that convert float16."""
        return self._has("f16c")

    @property
    def has_masks(self) -> bool:
        """Whether it has masked loads and stores of all element sizes (AVX-512)."""
        return {"avx512bw", "avx512vl"} <= self.features

    @property
    def vector_registers(self) -> VectorRegisters:
        """The vector registers that code for this target may use."""
        if self.has_masks:
            return VectorRegisters(32, 512)
        if self.is_x86:
            return VectorRegisters(16, 256 if "avx2" in self.features else 128)
        return VectorRegisters(32, 128)  # NEON

    @property
    def is_x86(self) -> bool:
        """Whether it is an x86-64, so that LLVM's x86 intrinsics are available."""
        return platform.machine() in _X86_MACHINES

    def _has(self, feature: str) -> bool:
        """Whether it has a feature of x86; 64-bit Arm has all that are asked for."""
        if self.is_x86:
            return feature in self.features
        return platform.machine() in ("aarch64", "arm64")


@cache
def cpu_target() -> CpuTarget:
    """The processor that this process compiles for.

    Raises:
        RuntimeError: if GPUFLOW_CPU_TARGET needs features that this processor does not have.
    """
    return target_named(config.environment.cpu_target)


def target_named(name: str) -> CpuTarget:
    """The target for a value of GPUFLOW_CPU_TARGET; raises as ``cpu_target``.

    The name must be "native" or a key of ``_LEVEL_FEATURES``; ``base.variables`` checks that.
    """
    host = host_processor()
    present = frozenset(host.features)
    if name == "native":
        flags = [flag for flag in host.flags.split(",") if flag[1:] not in _DISABLED_FEATURES]
        flags += [f"-{feature}" for feature in _DISABLED_FEATURES if feature in present]
        flags += _tuning_flags(present)
        return CpuTarget(name, host.cpu, ",".join(flags), present.difference(_DISABLED_FEATURES))
    required = _features_of(name)
    is_x86 = platform.machine() in _X86_MACHINES
    missing = sorted(required - present) if is_x86 else [platform.machine()]
    check(
        not missing,
        lambda: (
            f"[cpu] GPUFLOW_CPU_TARGET must be a level that this processor reaches; got {name}, "
            f"which it does not: {' '.join(missing)}. Fix: export GPUFLOW_CPU_TARGET=native."
        ),
        RuntimeError,
    )
    return CpuTarget(
        name, name, ",".join(_tuning_flags(required)), required, _OPENBLAS_CORE_TYPES.get(name)
    )


def _tuning_flags(features: frozenset[str]) -> list[str]:
    """LLVM's tuning flags for a processor with these features of x86."""
    return [_NO_GATHERS] if "avx512f" in features else []


def _features_of(name: str) -> frozenset[str]:
    """The features of a level and of all lower ones; ``name`` is a key of ``_LEVEL_FEATURES``."""
    levels = list(_LEVEL_FEATURES)
    included = levels[: levels.index(name) + 1]
    return frozenset(feature for level in included for feature in _LEVEL_FEATURES[level])
