"""Comparisons and selection: setp, set, selp, slct.

Tests: tests/ptxsim/test_ptx_data.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxsim.floats import flush, packed
from ptxsim.frame import Frame, Step
from ptxsim.instruction_table import apply, compute, instruction
from ptxsim.site import Site
from ptxsim.types import BOOL, F32, PACKED, TYPES, Array, bits, is_float

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
# Comparisons that hold for NaN are the opposites of ordered ones.
_UNORDERED = {"ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _comparison(site: Site, dtype: np.dtype) -> Callable[[Array, Array], Array]:
    """The predicate that the instruction names."""
    how = site.one_of((*_COMPARE, *_UNORDERED, "equ", "neu", "num", "nan"))
    floats = is_float(dtype)
    if how in ("num", "nan"):
        is_nan = how == "nan"
        return lambda x, y: (np.isnan(x) | np.isnan(y)) == is_nan
    if how in _UNORDERED:
        opposite = _COMPARE[_UNORDERED[how]]
        function: Any = lambda x, y: ~opposite(x, y)  # noqa: E731
    elif how == "equ":
        function = lambda x, y: np.equal(x, y) | np.isnan(x) | np.isnan(y)  # noqa: E731
    elif how == "neu":
        function = np.not_equal
    elif how == "ne" and floats:
        function = lambda x, y: (x < y) | (x > y)  # noqa: E731
    elif how in _COMPARE:
        function = _COMPARE[how]
    else:
        site.refuse("must name a comparison")
    if site.has("ftz") and dtype == F32:
        inner = function
        return lambda x, y: inner(flush(x), flush(y))
    return function


def _logic_of(site: Site) -> Callable[[Array, Array], Array] | None:
    how = site.one_of(tuple(_LOGIC))
    return _LOGIC[how] if how and site.count() == 4 else None


@instruction("setp")
def _set_predicate(site: Site) -> Step:
    """``setp.lt.and.f32 p|q, a, b, c``: q is for the opposite comparison."""
    name = site.type_name()
    if name in PACKED:
        return _set_predicates(site, name)
    dtype = TYPES[name]
    compare, logic = _comparison(site, dtype), _logic_of(site)
    first, _, second = site.text(0).partition("|")
    slots = [site.source(1, dtype), site.source(2, dtype)]
    types = [dtype, dtype]
    if logic is not None:
        slots.append(site.source(3, BOOL))
        types.append(BOOL)
    if not second:
        function = compare
        if logic is not None:
            function: Any = lambda x, y, p: logic(compare(x, y), p)  # noqa: E731
        return apply(function, slots, types, site.target_of(first, BOOL))
    yes, no = site.target_of(first, BOOL), site.target_of(second, BOOL)

    def step(frame: Frame) -> None:
        x, y, *third = (frame.registers[s].view(t) for s, t in zip(slots, types, strict=True))
        result = compare(x, y)
        opposite = ~result
        if logic is not None:
            result, opposite = logic(result, third[0]), logic(opposite, third[0])
        frame.registers[yes], frame.registers[no] = result, opposite

    return step


def _set_predicates(site: Site, name: str) -> Step:
    """Packed: ``setp.lt.f16x2 p|q``: p is for the low half, q for the high one."""
    element, pair = PACKED[name], TYPES[name]
    compare, logic = _comparison(site, element), _logic_of(site)
    a, b = site.source(1, pair), site.source(2, pair)
    third = site.source(3, BOOL) if logic is not None else a
    names = site.text(0).split("|")
    targets = [site.target_of(target, BOOL) for target in names]

    def step(frame: Frame) -> None:
        x, y = (
            np.ascontiguousarray(frame.registers[s]).view(element).reshape(-1, 2) for s in (a, b)
        )
        result = compare(x, y)
        for column, target in enumerate(targets):
            half = np.ascontiguousarray(result[:, column])
            frame.registers[target] = half if logic is None else logic(half, frame.registers[third])

    return step


@instruction("set")
def _set(site: Site) -> Step:
    """``set.lt.u32.f32 d, a, b``: all ones, or 1.0 for a float result."""
    to, name = site.type_name(0), site.type_name()
    target, element = TYPES[to], PACKED.get(name, TYPES[name])
    compare, logic = _comparison(site, element), _logic_of(site)
    result = PACKED.get(to, target)
    if name in PACKED and not is_float(result):
        result = bits(element)
    true = result.type(1) if is_float(result) else ~result.type(0)

    def function(x: Array, y: Array, *third: Array) -> Array:
        holds = compare(x, y)
        if logic is not None:
            holds = logic(holds, third[0])
        return np.where(holds, true, result.type(0)).astype(result)

    if name in PACKED:
        if logic is not None:
            site.refuse("must not combine a packed comparison with a predicate")
        return compute(site, packed(function, element, target), [TYPES[name]] * 2, target)
    types = [element, element] + ([BOOL] if logic is not None else [])
    return compute(site, function, types, target)


@instruction("selp")
def _select(site: Site) -> Step:
    dtype = bits(site.dtype())

    def function(x: Array, y: Array, condition: Array) -> Array:
        return np.where(condition, x, y)

    site.chooses = True
    return compute(site, function, [dtype, dtype, BOOL], dtype)


@instruction("slct")
def _select_by_sign(site: Site) -> Step:
    """``slct.b32.f32 d, a, b, c``: a where c >= 0."""
    dtype, sign = bits(site.dtype(0)), site.dtype()
    ftz = site.has("ftz")

    def function(x: Array, y: Array, z: Array) -> Array:
        return np.where((flush(z) if ftz else z) >= 0, x, y)

    return compute(site, function, [dtype, dtype, sign], dtype)
