"""cvt: between all types, with every rounding and saturation.

Tests: tests/ptxsim/test_ptx_data.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxsim import rounding
from ptxsim.floats import flush, relu
from ptxsim.floats import saturate as unit
from ptxsim.frame import Step
from ptxsim.instruction_table import compute, instruction
from ptxsim.site import Site
from ptxsim.types import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    PACKED,
    TYPES,
    U32,
    Array,
    bits,
    is_float,
)

Function = Callable[[Array], Array]

_MAX_FINITE = {E4M3: 448.0, E5M2: 57344.0, F16: 65504.0}

_WHOLE: dict[str, Function] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


@instruction("cvt")
def _convert(site: Site) -> Step:
    names = site.instruction.types()
    if len(names) != 2:
        site.refuse("must name two types")
    if site.has("rs") or site.count() > 3:
        site.refuse("must not round at random")
    to, of = names
    if to == "tf32":
        return _to_tf32(site)
    if to in PACKED and of == "f32":
        return _pack_pair(site, PACKED[to], TYPES[to])
    if of in PACKED:
        return _widen_pair(site, of, to)
    source, target = TYPES[of], TYPES[to]
    return compute(site, _function(site, source, target), [source], target)


def _function(site: Site, source: np.dtype, target: np.dtype) -> Function:
    flushes = site.has("ftz")
    if is_float(source) and is_float(target):
        function = _between_floats(site, source, target)
    elif is_float(source):
        whole = _WHOLE[site.one_of(tuple(_WHOLE), "rzi")]
        return lambda x: to_integer(whole(_computable(flush(x) if flushes else x)), target)
    elif is_float(target):
        function = _integer_to_float(site, source, target)
    else:
        return _between_integers(site, source, target)
    if flushes:
        inner = function
        function = lambda x: flush(inner(flush(x)))  # noqa: E731
    if site.has("sat"):
        return lambda x: unit(function(x))
    if site.has("relu"):
        return lambda x: relu(function(x))
    return function


def _computable(x: Array) -> Array:
    """16-bit floats as float32: NumPy rounds those fastest."""
    return x.astype(F32) if x.dtype in (BF16, F16) else x


# --- integers ----------------------------------------------------------------------------


def _between_integers(site: Site, source: np.dtype, target: np.dtype) -> Function:
    if not site.has("sat"):
        return lambda x: x.astype(target)
    low, high = np.iinfo(target).min, np.iinfo(target).max
    least, most = np.iinfo(source).min, np.iinfo(source).max

    def function(x: Array) -> Array:
        low_here, high_here = source.type(max(low, least)), source.type(min(high, most))
        return np.clip(x, low_here, high_here).astype(target)

    return function


def to_integer(whole: Array, target: np.dtype) -> Array:
    """An integral float as an integer: saturates; NaN gives 0, or 2**63 for 64 bits."""
    limits = np.iinfo(target)
    low, high = whole <= float(limits.min), whole >= float(limits.max)
    nan = np.isnan(whole)
    out_of_range = low | high | nan
    if not np.count_nonzero(out_of_range):
        return whole.astype(target)
    in_range = np.where(out_of_range, whole.dtype.type(0), whole).astype(target)
    missing = np.array([1 << 63 if target.itemsize == 8 else 0], np.uint64).astype(target)
    result = np.where(low, target.type(limits.min), in_range)
    result = np.where(high, target.type(limits.max), result)
    return np.where(nan, missing, result)


def _integer_to_float(site: Site, source: np.dtype, target: np.dtype) -> Function:
    mode = site.one_of(rounding.MODES, "rn")
    if mode == "rn" and target in (F32, F64):
        return lambda x: x.astype(target)
    if target == F64:
        return lambda x: _directed_integer(x, mode)
    if source.itemsize < 8:
        return lambda x: rounding.narrow(x.astype(F64), target, mode)

    def function(x: Array) -> Array:
        nearest = x.astype(F64)
        return rounding.narrow(rounding.to_odd(nearest, _lost(x, nearest)), target, mode)

    return function


def _lost(x: Array, nearest: Array) -> Array:
    """The sign of an integer minus the float64 nearest to it."""
    exact = [(int(a) > int(b)) - (int(a) < int(b)) for a, b in zip(x, nearest, strict=True)]
    return np.array(exact, F64)


def _directed_integer(x: Array, mode: str) -> Array:
    nearest = x.astype(F64)
    return rounding.directed(nearest, _lost(x, nearest), mode)


# --- floats ------------------------------------------------------------------------------


def _between_floats(site: Site, source: np.dtype, target: np.dtype) -> Function:
    whole = site.one_of(tuple(_WHOLE))
    mode = site.one_of(rounding.MODES, "rn")
    if source == target:
        if not whole:
            return lambda x: x
        function = _WHOLE[whole]
        return lambda x: function(_computable(x)).astype(target)
    if target.itemsize > source.itemsize:
        return lambda x: x.astype(target)
    if whole:
        site.refuse("must not round to whole numbers and to a narrower type at once")
    if mode == "rn" and target == BF16 and source == F32:
        convert: Function = rounding.bf16_of
    elif mode == "rn" and (target in (F16, F32)):
        convert = lambda x: x.astype(target)  # noqa: E731
    else:
        convert = lambda x: rounding.narrow(x.astype(F64), target, mode)  # noqa: E731
    return finite(convert, target) if site.has("satfinite") else convert


def finite(convert: Function, target: np.dtype) -> Function:
    """A conversion that gives the largest finite number instead of an infinity."""
    most = _MAX_FINITE.get(target, 2.0**127 * (2 - 2.0**-7))

    def function(x: Array) -> Array:
        limited = np.clip(x.astype(F64), -most, most)
        return np.where(np.isnan(x), convert(x), convert(limited.astype(x.dtype)))

    return function


def _to_tf32(site: Site) -> Step:
    mode = site.one_of(rounding.MODES, "rna")
    last = relu if site.has("relu") else None

    def function(x: Array) -> Array:
        result = rounding.tf32_of(x, mode)
        return result if last is None else last(result.view(F32)).view(U32)

    return compute(site, function, [F32], U32)


# --- pairs -------------------------------------------------------------------------------


def _pack_pair(site: Site, element: np.dtype, pair: np.dtype) -> Step:
    """``cvt.rn.bf16x2.f32 d, a, b``: a becomes the high half, b the low one."""
    mode = site.one_of(rounding.MODES, "rn")
    last = relu if site.has("relu") else None
    convert: Function = lambda x: rounding.narrow(x.astype(F64), element, mode)  # noqa: E731
    if element in (E4M3, E5M2):
        convert = lambda x: x.astype(element)  # noqa: E731
    elif mode == "rn":
        convert = rounding.bf16_of if element == BF16 else lambda x: x.astype(element)
    if site.has("satfinite"):
        convert = finite(convert, element)
    each = bits(element)

    def function(high: Array, low: Array) -> Array:
        if last is not None:
            high, low = last(high), last(low)
        halves = np.broadcast_arrays(convert(low).view(each), convert(high).view(each))
        return np.stack(halves, axis=1).view(pair).reshape(-1)

    return compute(site, function, [F32, F32], pair)


def _widen_pair(site: Site, of: str, to: str) -> Step:
    """``cvt.rn.f16x2.e4m3x2 d, a``, and its inverse."""
    if to not in PACKED:
        site.refuse("must convert pairs to pairs")
    source, target = PACKED[of], PACKED[to]
    convert: Function = lambda x: x.astype(F32).astype(target)  # noqa: E731
    if site.has("satfinite"):
        convert = finite(convert, target)
    last = relu if site.has("relu") else None

    def function(x: Array) -> Array:
        result = convert(np.ascontiguousarray(x).view(source))
        result = result if last is None else last(result)
        return result.view(TYPES[to])

    return compute(site, function, [TYPES[of]], TYPES[to])
