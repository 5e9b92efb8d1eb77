"""Precision of matrix products: hints, and algorithms with their dtypes.

Tests: tests/ops/test_precision_on_gpu.py, tests/lax/test_lax_definitions.py.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.config import config
from gpuflow.base.errors import check


class Precision(enum.Enum):
    """Precision of products of float32 and complex64.

    On GPUs, as in XLA, float32 operands of products and convolutions may be rounded to TF32, unless
    one of them requests ``HIGHEST``. TF32 has 10 mantissa bits; sums are in float32. ``DEFAULT``
    and ``HIGH`` are equivalent on GPUs. On the CPU, all of them use full float32.

    ``"default"``, ``"fastest"`` and ``"bfloat16"`` are names of ``DEFAULT``; ``"high"``,
    ``"tensorfloat32"`` and ``"bfloat16_3x"`` of ``HIGH``; ``"highest"`` and ``"float32"`` of
    ``HIGHEST``.
    """

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2

    @classmethod
    def _missing_(cls, value: object) -> Precision | None:
        return _NAMES.get(value)

    def __repr__(self) -> str:
        return f"Precision.{self.name}"

    __str__ = __repr__


_NAMES: dict[Any, Precision] = {
    "default": Precision.DEFAULT,
    "fastest": Precision.DEFAULT,
    "bfloat16": Precision.DEFAULT,
    "high": Precision.HIGH,
    "tensorfloat32": Precision.HIGH,
    "bfloat16_3x": Precision.HIGH,
    "highest": Precision.HIGHEST,
    "float32": Precision.HIGHEST,
}


class DotAlgorithm(NamedTuple):
    """The dtypes of a product.

    Attributes:
        lhs_precision_type, rhs_precision_type: the dtype to which operands are rounded.
        accumulation_type: the dtype of the sums; a wider one may be used.
        lhs_component_count, rhs_component_count, num_primitive_operations: for algorithms that
            split operands; only 1 is supported.
        allow_imprecise_accumulation: permits less precise sums; no effect.
    """

    lhs_precision_type: Any
    rhs_precision_type: Any
    accumulation_type: Any
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


class DotAlgorithmPreset(enum.Enum):
    """Named algorithms: the dtypes of both operands and of the sum.

    ``TF32_TF32_F32`` lets GPUs round float32 operands to TF32, as ``DEFAULT`` does; the CPU never
    does. ``_X3``, ``_X6`` and ``_X9`` emulate float32 by several products; in gpuflow they are
    float32 products. float8 presets require float8 operands; those that end in ``ANY`` sum in
    ``preferred_element_type``.
    """

    DEFAULT = enum.auto()
    ANY_F8_ANY_F8_F32 = enum.auto()
    ANY_F8_ANY_F8_F32_FAST_ACCUM = enum.auto()
    ANY_F8_ANY_F8_ANY = enum.auto()
    ANY_F8_ANY_F8_ANY_FAST_ACCUM = enum.auto()
    F16_F16_F16 = enum.auto()
    F16_F16_F32 = enum.auto()
    BF16_BF16_BF16 = enum.auto()
    BF16_BF16_F32 = enum.auto()
    BF16_BF16_F32_X3 = enum.auto()
    BF16_BF16_F32_X6 = enum.auto()
    BF16_BF16_F32_X9 = enum.auto()
    TF32_TF32_F32 = enum.auto()
    TF32_TF32_F32_X3 = enum.auto()
    F32_F32_F32 = enum.auto()
    F64_F64_F64 = enum.auto()

    def __repr__(self) -> str:
        return f"DotAlgorithmPreset.{self.name}"

    def __str__(self) -> str:
        return self.name


_FORMATS: dict[str, Any] = {
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "TF32": np.dtype(np.float32),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}

PrecisionLike = (
    None
    | str
    | Precision
    | tuple[str, str]
    | tuple[Precision, Precision]
    | DotAlgorithm
    | DotAlgorithmPreset
)
CanonicalPrecision = None | tuple[Precision, Precision] | DotAlgorithm | DotAlgorithmPreset
DotDimensionNumbers = tuple[
    tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
]


def canonical_precision(precision: Any) -> CanonicalPrecision:
    """Normalize a ``precision`` argument; None uses the setting, which may be None.

    Raises:
        ValueError: if it is not a precision.
    """
    if precision is None:
        precision = config.trace_context().default_matmul_precision
        if precision is None:
            return None
    if isinstance(precision, (DotAlgorithm, DotAlgorithmPreset)):
        return precision
    if isinstance(precision, str) and precision in DotAlgorithmPreset.__members__:
        return DotAlgorithmPreset[precision]
    pair = precision if isinstance(precision, (tuple, list)) else (precision, precision)
    precisions = [_NAMES.get(p) if isinstance(p, str) else p for p in pair]
    if len(precisions) == 2:
        left, right = precisions
        if isinstance(left, Precision) and isinstance(right, Precision):
            return left, right
    raise ValueError(
        f"[precision] precision must be one of {', '.join(map(repr, _NAMES))}, a lax.Precision, a "
        "pair of them, a lax.DotAlgorithm, a lax.DotAlgorithmPreset or its name, or None; got "
        f"{precision!r}. Fix: precision='highest'."
    )


config.register_check("default_matmul_precision", canonical_precision)


def may_round(precision: CanonicalPrecision) -> bool:
    """Whether GPUs may round float32 operands of a product or convolution to TF32.

    Source: XLA, service/gpu: IsTf32Allowed of matmul_utils.cc, and allow_tf32 of convolution
        pickers.
    """
    if isinstance(precision, (DotAlgorithm, DotAlgorithmPreset)):
        return precision in (DotAlgorithmPreset.DEFAULT, DotAlgorithmPreset.TF32_TF32_F32)
    return precision is None or Precision.HIGHEST not in precision


def algorithm_dtypes(
    precision: CanonicalPrecision, lhs: Any, rhs: Any
) -> tuple[Any, Any, Any] | None:
    """The dtypes of rounded operands and of the sum, for an explicit algorithm.

    Args:
        precision: result of ``canonical_precision``.
        lhs, rhs: the dtypes of the operands.

    Returns:
        Three dtypes, the last of which is None for the result's; None if there is no algorithm.

    Raises:
        ValueError: if the algorithm is not supported.
    """
    if precision is DotAlgorithmPreset.DEFAULT:
        return None
    if isinstance(precision, DotAlgorithm):
        return _of_algorithm(precision)
    if not isinstance(precision, DotAlgorithmPreset):
        return None
    check(
        dtypes.is_floating(lhs) and dtypes.is_floating(rhs),
        lambda: (
            f"[dot_general] {precision} needs real float operands; got {lhs} and {rhs}. "
            "Fix: precision=None."
        ),
        ValueError,
    )
    if precision.name.startswith("ANY_F8"):
        return _of_float8(precision, lhs, rhs)
    formats = precision.name.split("_")
    if len(formats) == 4:
        formats = ["F32"] * 3
    return _supported(precision, [_FORMATS.get(name) for name in formats])


def _supported(algorithm: Any, formats: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Check and return the three dtypes of an algorithm."""
    check(
        all(dtype is not None and dtypes.canonicalize(dtype) == dtype for dtype in formats),
        lambda: (
            "[dot_general] an algorithm must have dtypes in which products are made here: float16, "
            f"bfloat16, float32, and float64 with enable_x64; got {algorithm}. "
            "Fix: precision='F32_F32_F32'."
        ),
        ValueError,
    )
    return formats[0], formats[1], formats[2]


def _of_float8(preset: DotAlgorithmPreset, lhs: Any, rhs: Any) -> tuple[Any, Any, Any]:
    check(
        lhs.itemsize == rhs.itemsize == 1,
        lambda: (
            f"[dot_general] {preset} needs float8 operands; got {lhs} and {rhs}. "
            "Fix: x.astype(jnp.float8_e4m3fn), or precision=None."
        ),
        ValueError,
    )
    has_any_sum = preset.name.startswith("ANY_F8_ANY_F8_ANY")
    return lhs, rhs, None if has_any_sum else _FORMATS["F32"]


def _of_algorithm(algorithm: DotAlgorithm) -> tuple[Any, Any, Any]:
    check(
        algorithm[3:6] == (1, 1, 1),
        lambda: (
            "[dot_general] a DotAlgorithm must have one component and one operation; got "
            f"{algorithm}. Fix: lax.DotAlgorithmPreset.BF16_BF16_F32_X3, or one of its kind."
        ),
        ValueError,
    )
    formats = [np.dtype(dtype) for dtype in algorithm[:3]]
    return _supported(algorithm, [d if d in _FORMATS.values() else None for d in formats])
