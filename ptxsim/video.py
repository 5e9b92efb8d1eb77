"""Video instructions: arithmetic on bytes and halves of a register, in 33 bits or more.

Tests: tests/ptxsim/test_ptx_data.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ptxsim.frame import Step
from ptxsim.instruction_table import apply, instruction
from ptxsim.site import Site
from ptxsim.types import I64, U32, Array

Function = Callable[[Array, Array], Array]

_FUNCTIONS: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "absdiff": lambda x, y: np.abs(x - y),
    "min": np.minimum,
    "max": np.maximum,
    "avrg": lambda x, y: (x + y + (x + y >= 0)) >> 1,
}
_SECOND: dict[str, Function] = {"add": np.add, "min": np.minimum, "max": np.maximum}


def _limits(name: str, width: int) -> tuple[int, int]:
    if name == "s32":
        return -(1 << (width - 1)), (1 << (width - 1)) - 1
    return 0, (1 << width) - 1


# --- one value: vadd d, a.b0, b.h1, c ------------------------------------------------------


@instruction("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr")
def _scalar(site: Site) -> Step:
    opcode = site.instruction.opcode[1:]
    to, first, second = site.instruction.types()[:3]
    a, choose_a = _selected(site, 1, first)
    b, choose_b = _selected(site, 2, second)
    low, high = _limits(to, 32)
    saturates = site.has("sat")
    then = site.one_of(tuple(_SECOND)) if site.count() > 3 else ""
    if site.count() > 3 and not then:
        site.refuse("must not merge its result into a part of a word")
    function = _FUNCTIONS.get(opcode) or _shift(site, opcode)

    def run(x: Array, y: Array, *third: Array) -> Array:
        result = function(choose_a(x), choose_b(y))
        if saturates:
            result = np.clip(result, low, high)
        if then:
            c = third[0].view(np.int32).astype(I64) if to == "s32" else third[0].astype(I64)
            result = _SECOND[then](_wrapped(result, to), c)
        return result.astype(U32)

    slots = [a, b] + ([site.source(3, U32)] if then else [])
    return apply(run, slots, [U32] * len(slots), site.target(0, U32))


def _wrapped(result: Array, name: str) -> Array:
    low = result.astype(U32)
    return low.view(np.int32).astype(I64) if name == "s32" else low.astype(I64)


def _shift(site: Site, opcode: str) -> Function:
    move = np.left_shift if opcode == "shl" else np.right_shift
    wraps = site.has("wrap")

    def function(x: Array, y: Array) -> Array:
        return move(x, y & 31 if wraps else np.minimum(y & 0xFFFFFFFF, 32))

    return function


def _selected(site: Site, position: int, name: str) -> tuple[int, Callable[[Array], Array]]:
    """An operand with a selector: ``%r1.b2`` is a byte, ``%r1.h1`` a half."""
    match = re.fullmatch(r"(.+?)(?:\.([bh])(\d))?", site.text(position))
    assert match is not None
    width = {"b": 8, "h": 16, None: 32}[match[2]]
    shift = width * int(match[3] or 0)
    low = 1 << (width - 1) if name == "s32" else 0

    def choose(x: Array) -> Array:
        field = x.astype(I64) >> shift & ((1 << width) - 1)
        return (field ^ low) - low  # extend the sign

    return site.source_of(match[1], U32), choose


# --- all elements at once: vadd4 d, a, b, c ------------------------------------------------


@instruction(*(f"v{name}{count}" for name in _FUNCTIONS for count in (2, 4)))
def _parallel(site: Site) -> Step:
    """Operands a and b element by element; .add adds the sum of the results to c."""
    opcode = site.instruction.opcode
    function, count = _FUNCTIONS[opcode[1:-1]], int(opcode[-1])
    if any("." in site.text(position) for position in range(4)):
        site.refuse("must not choose parts of its operands")
    to, first, second = site.instruction.types()[:3]
    width = 32 // count
    low, high = _limits(to, width)
    saturates = site.has("sat")
    sums = site.has("add")
    kinds = [np.dtype(f"{'i' if name == 's32' else 'u'}{width // 8}") for name in (first, second)]
    element = np.dtype(f"u{width // 8}")

    def run(x: Array, y: Array, z: Array) -> Array:
        values = [
            np.ascontiguousarray(operand).view(kind).reshape(-1, count).astype(I64)
            for operand, kind in zip((x, y), kinds, strict=True)
        ]
        result = function(*values)
        if saturates:
            result = np.clip(result, low, high)
        if sums:
            return (result.sum(axis=1) + z).astype(U32)
        return np.ascontiguousarray(result.astype(element)).view(U32).reshape(-1)

    slots = [site.source(position, U32) for position in (1, 2, 3)]
    return apply(run, slots, [U32] * 3, site.target(0, U32))
