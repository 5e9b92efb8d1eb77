"""Dtypes: the extra number types, 32-bit defaults, weak types and the promotion lattice.

Source: the lattice is JAX's "Type promotion semantics"; tests compare every pair with stored data.

Tests: tests/numpy/test_numpy_promotion.py, tests/core/test_aval.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.base.errors import TypePromotionError
from gpuflow.base.foreign import brief

bfloat16 = np.dtype(ml_dtypes.bfloat16)
float16 = np.dtype(np.float16)
float32 = np.dtype(np.float32)
float64 = np.dtype(np.float64)
complex64 = np.dtype(np.complex64)
complex128 = np.dtype(np.complex128)
bool_ = np.dtype(np.bool_)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
uint32 = np.dtype(np.uint32)
uint64 = np.dtype(np.uint64)

# The dtype of tangents of integer, bool and key values: it holds nothing.
float0 = np.dtype([("float0", np.void, 0)])

# Dtypes of at most 8 bits, one element per byte.
NARROW_FLOATS = tuple(
    np.dtype(getattr(ml_dtypes, name))
    for name in (
        "float4_e2m1fn",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
)
NARROW_INTEGERS = tuple(
    np.dtype(getattr(ml_dtypes, name)) for name in ("int2", "uint2", "int4", "uint4")
)
_UNSUPPORTED = {
    np.dtype(getattr(ml_dtypes, name))
    for name in ("int1", "uint1", "float6_e2m3fn", "float6_e3m2fn")
    if hasattr(ml_dtypes, name)
}
_CUSTOM_FLOATS = {bfloat16, *NARROW_FLOATS}
_SHORT_PREFIX = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}


class extended(np.generic):
    """Category of all dtypes that are not numeric."""


class prng_key(extended):
    """Category of the dtypes of random keys."""


class ExtendedDType:
    """Base class of dtypes that hide a physical layout, such as random keys."""

    name: str
    itemsize: int
    kind = "X"
    type: type  # its kind, as np.dtype.type


def is_extended(dtype: Any) -> bool:
    """Whether ``dtype`` is an extended dtype."""
    return isinstance(dtype, ExtendedDType)


def is_floating(dtype: Any) -> bool:
    """Whether ``dtype`` is a real floating-point dtype, those of 4 to 16 bits included."""
    return not is_extended(dtype) and (dtype.kind == "f" or dtype in _CUSTOM_FLOATS)


def is_complex(dtype: Any) -> bool:
    """Whether ``dtype`` is complex."""
    return dtype.kind == "c"


def is_inexact(dtype: Any) -> bool:
    """Whether values of ``dtype`` can have derivatives."""
    return is_floating(dtype) or is_complex(dtype)


def is_integer(dtype: Any) -> bool:
    """Whether ``dtype`` is a signed or unsigned integer dtype (bool is not)."""
    return dtype.kind in "iu" or dtype in NARROW_INTEGERS


def is_unsigned(dtype: Any) -> bool:
    """Whether ``dtype`` is an unsigned integer dtype (bool is not)."""
    return dtype.kind == "u" or (dtype in NARROW_INTEGERS and dtype.name.startswith("u"))


@cache
def bits_of(dtype: Any) -> int:
    """The number of bits of an element: 4 for int4; both components of a complex value."""
    if is_extended(dtype) or dtype not in (*NARROW_INTEGERS, *NARROW_FLOATS):
        return 8 * dtype.itemsize
    return int((ml_dtypes.iinfo if is_integer(dtype) else ml_dtypes.finfo)(dtype).bits)


def is_bool(dtype: Any) -> bool:
    """Whether ``dtype`` is bool."""
    return dtype.kind == "b"


_TO_32 = {
    float64: float32,
    int64: int32,
    uint64: uint32,
    complex128: complex64,
}
_PYTHON = {bool: bool_, int: int64, float: float64, complex: complex128}


def canonicalize(dtype: Any) -> Any:
    """``dtype`` as a native np.dtype, narrowed to 32 bits unless x64 is enabled.

    Raises:
        TypeError: a dtype that arrays cannot hold.
        ValueError: if an array is given instead of a dtype.
    """
    is_wide = config.trace_context().enable_x64
    canonical_of = _canonical_wide if is_wide else _canonical_narrow
    try:
        return canonical_of[dtype]
    except (KeyError, TypeError):  # not seen before, or not hashable
        canonical = _supported(dtype)
    if not is_wide:
        canonical = _TO_32.get(canonical, canonical)
    if isinstance(dtype, np.dtype | type | ExtendedDType):
        canonical_of[dtype] = canonical
    return canonical


_canonical_wide: dict[Any, Any] = {}
_canonical_narrow: dict[Any, Any] = {}


def _supported(dtype: Any) -> Any:
    if is_extended(dtype):
        return dtype
    if isinstance(dtype, type) and dtype in _PYTHON:
        dtype = _PYTHON[dtype]
    if hasattr(dtype, "aval"):
        raise ValueError(
            f"[dtype] a dtype must be named; got an array, of {dtype.dtype}. Fix: dtype=x.dtype."
        )
    try:
        dtype = np.dtype(dtype)
    except (TypeError, ValueError):
        raise TypeError(
            f"[dtype] a dtype must be one of numbers; got {brief(dtype)}. Fix: jnp.float32."
        ) from None
    if dtype.kind in "OSUMm" or (dtype.fields is not None and dtype != float0):
        raise TypeError(
            f"[dtype] arrays hold numbers and bools; got {dtype}. Fix: convert with NumPy first, "
            "x.astype(float), or give each field as an array."
        )
    if dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
        raise TypeError(
            f"[dtype] arrays cannot hold {dtype}, which no device computes with. "
            f"Fix: x.astype(np.{'float64' if dtype.kind == 'f' else 'complex128'})."
        )
    if dtype.kind == "V" and dtype in _UNSUPPORTED:
        raise TypeError(
            f"[dtype] arrays cannot hold {dtype.name}. "
            "Fix: use jnp.int4, jnp.int8 or jnp.float8_e4m3fn."
        )
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def index_dtype(size: int) -> np.dtype:
    """The dtype that positions among ``size`` elements are computed in, and ``size`` itself.

    Raises:
        OverflowError: they need 64 bits, which are not enabled.
    """
    if size < 2**31:
        return int32
    if config.trace_context().enable_x64:
        return int64
    if size < 2**32:
        return uint32
    raise OverflowError(
        f"[index] without 64-bit dtypes an index can reach 2**32 - 1 elements; got {size}. "
        "Fix: config.update('enable_x64', True)."
    )


def default_float() -> np.dtype:
    """float32, or float64 with x64."""
    return canonicalize(float64)


def inexact_dtype(dtype: Any) -> Any:
    """``dtype`` if it can hold fractions, else float32, or float64 for integers of 64 bits.

    It does not matter whether 64 bits are enabled: narrower values are not widened.
    """
    if is_extended(dtype) or is_inexact(dtype):
        return dtype
    return float64 if is_integer(dtype) and dtype.itemsize == 8 else float32


def default_int() -> np.dtype:
    """int32, or int64 with x64."""
    return canonicalize(int64)


def short_name(dtype: Any) -> str:
    """The short form used in types: f32, bf16, i32, u8, bool, c64."""
    if is_extended(dtype):
        return dtype.name
    if dtype == float0:
        return "float0"
    name = dtype.name
    if name == "bool":
        return "bool"
    stem = name.rstrip("0123456789_abcdefghijklmnopqrstuvwxyz")
    for prefix, short in _SHORT_PREFIX.items():
        if name.startswith(prefix):
            return short + name[len(prefix) :]
    return stem or name


def tangent_dtype(dtype: Any) -> Any:
    """The dtype of tangents of values of ``dtype``."""
    if not is_extended(dtype) and is_inexact(dtype):
        return dtype
    return float0


# --- promotion -----------------------------------------------------------------------------

_LATTICE_STEPS: dict[str, tuple[str, ...]] = {
    "bool": ("int*",),
    "int*": ("uint8", "int8", *(dtype.name for dtype in NARROW_INTEGERS)),
    "uint8": ("int16", "uint16"),
    "uint16": ("int32", "uint32"),
    "uint32": ("int64", "uint64"),
    "uint64": ("float*",),
    "int8": ("int16",),
    "int16": ("int32",),
    "int32": ("int64",),
    "int64": ("float*",),
    "float*": ("complex*", "bfloat16", "float16", *(dtype.name for dtype in NARROW_FLOATS)),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "float32": ("float64", "complex64"),
    "float64": ("complex128",),
    "complex*": ("complex64",),
    "complex64": ("complex128",),
    "complex128": (),
    **{dtype.name: () for dtype in (*NARROW_INTEGERS, *NARROW_FLOATS)},
}
_WEAK_DTYPES = {"int*": int64, "float*": float64, "complex*": complex128}
_STRICT_FREE = ("int*", "float*", "complex*")


@cache
def _upper_bounds(node: str) -> frozenset[str]:
    if node not in _LATTICE_STEPS:  # float0, whose name is that of its kind
        raise TypeError(
            f"[promote] operands must hold numbers; got {node}. Fix: leave out tangents of "
            "integers (float0), which are zero."
        )
    bounds = {node}
    for step in _LATTICE_STEPS[node]:
        bounds |= _upper_bounds(step)
    return frozenset(bounds)


def _node(dtype: Any, weak_type: bool) -> str:
    if weak_type and dtype != bool_:
        if is_complex(dtype):
            return "complex*"
        return "float*" if is_floating(dtype) else "int*"
    return dtype.name


@cache
def _join(nodes: frozenset[str]) -> str:
    common = frozenset.intersection(*(_upper_bounds(node) for node in nodes))
    for candidate in common:
        if common == _upper_bounds(candidate):
            return candidate
    raise TypePromotionError(
        f"[promote] the dtypes must have an implicit common dtype; got {sorted(nodes)}. "
        "Fix: convert one of them with x.astype(...)."
    )


def promote(*types: tuple[Any, bool]) -> tuple[Any, bool]:
    """The common (dtype, weak_type) of operands given as (dtype, weak_type) pairs.

    Raises:
        TypePromotionError: no implicit common dtype, or a mixture under strict promotion.
        TypeError: random keys among other types.
    """
    if len(types) == 1:
        return types[0]
    first = types[0]
    if all(other == first for other in types[1:]):
        return first
    if any(is_extended(dtype) for dtype, _ in types):
        raise TypeError(
            f"[promote] random keys do not promote; got {[dtype.name for dtype, _ in types]}. "
            "Fix: use key_data(key) for the integers inside."
        )
    nodes = frozenset(_node(dtype, weak) for dtype, weak in types)
    if config.trace_context().numpy_dtype_promotion == "strict":
        _check_strict(nodes)
    joined = _join(nodes)
    if joined in _WEAK_DTYPES:
        dtype = canonicalize(_WEAK_DTYPES[joined])
        candidates = [dt for dt, weak in types if weak and _node(dt, weak) == joined]
        # An array that was made with x64 on is narrowed where it is off.
        return (canonicalize(candidates[0]) if candidates else dtype), True
    return canonicalize(np.dtype(_numpy_type(joined))), False


def _numpy_type(name: str) -> Any:
    return getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name


def _check_strict(nodes: frozenset[str]) -> None:
    strong = {node for node in nodes if node not in _STRICT_FREE}
    joined = _join(nodes)
    if len(strong) > 1 or (strong and joined not in strong):
        raise TypePromotionError(
            "[promote] operands must have one dtype under strict promotion; "
            f"got {sorted(nodes)}. Fix: x.astype(...), or "
            "config.update('numpy_dtype_promotion', 'standard')."
        )
