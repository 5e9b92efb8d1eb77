"""Moves: mov with packing, parameters of calls, address spaces, counters.

Tests: tests/ptxsim/test_ptx_data.py.
"""

from __future__ import annotations

import re

import numpy as np

from ptxsim.frame import Frame, Step
from ptxsim.instruction_table import apply, compute, instruction
from ptxsim.program import LOCAL_WINDOW, SHARED_WINDOW
from ptxsim.site import Site
from ptxsim.types import BOOL, U32, U64, Array, bits, unsigned

# Registers that count while the kernel runs, with their types.
_COUNTERS = {"%clock": U32, "%clock_hi": U32, "%clock64": U64, "%globaltimer": U64}


@instruction("mov")
def _move(site: Site) -> Step:
    dtype = bits(site.dtype())
    if site.text(0).startswith("{"):
        return _unpack(site, dtype)
    if site.text(1).startswith("{"):
        return _pack(site, dtype)
    if site.text(1) in _COUNTERS:
        return _count(site, dtype)
    source, target = site.source(1, dtype), site.target(0, dtype)

    def step(frame: Frame) -> None:
        frame.registers[target] = frame.registers[source]

    return step


def _unpack(site: Site, dtype: np.dtype) -> Step:
    """``mov.b32 {lo, hi}, d``."""
    element = unsigned(dtype.itemsize // len(site.text(0).split(",")))
    targets, source = site.targets(0, element), site.source(1, dtype)

    def step(frame: Frame) -> None:
        packed = np.ascontiguousarray(frame.registers[source])
        elements = packed.view(element).reshape(-1, len(targets))
        for column, target in enumerate(targets):
            frame.registers[target] = np.ascontiguousarray(elements[:, column])

    return step


def _pack(site: Site, dtype: np.dtype) -> Step:
    """``mov.b32 d, {lo, hi}``."""
    element = unsigned(dtype.itemsize // len(site.text(1).split(",")))
    sources, target = site.sources(1, element), site.target(0, dtype)

    def step(frame: Frame) -> None:
        columns = [frame.registers[source].view(element) for source in sources]
        stacked = np.stack(np.broadcast_arrays(*columns), axis=1)
        frame.registers[target] = stacked.view(dtype).reshape(-1)

    return step


def _count(site: Site, dtype: np.dtype) -> Step:
    """The clock counts the blocks of code that have run: it only ever grows."""
    target, high = site.target(0, dtype), site.text(1) == "%clock_hi"

    def step(frame: Frame) -> None:
        run = frame.run
        run.instruction_state["clock"] = ticks = run.instruction_state.get("clock", run.issued) + 1
        frame.registers[target] = np.array([ticks >> 32 if high else ticks], U64).astype(dtype)

    return step


# --- address spaces ----------------------------------------------------------------------

_WINDOWS = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW}


@instruction("cvta")
def _convert_address(site: Site) -> Step:
    """Between addresses of a space and generic ones; a wider register gets zeros above."""
    window = _WINDOWS.get(site.one_of(("shared", "shared::cta", "local")), 0)
    dtype = bits(site.dtype())
    if dtype != U64:
        site.refuse("must be of 64 bits")
    if not window:
        return compute(site, lambda x: x, [U64], U64)
    base = np.uint64(window)
    function = np.subtract if site.has("to") else np.add
    return compute(site, lambda x: function(x, base), [U64], U64)


@instruction("isspacep")
def _is_space(site: Site) -> Step:
    """Whether a generic address is in a space."""
    space = site.one_of(("global", "const", "param", *_WINDOWS))
    window = _WINDOWS.get(space)

    def function(address: Array) -> Array:
        if window is None:
            return (address < SHARED_WINDOW) & (space == "global")
        return (address & np.uint64(SHARED_WINDOW | LOCAL_WINDOW)) == window

    return apply(function, [site.source(1, U64)], [U64], site.target(0, BOOL))


# --- parameters --------------------------------------------------------------------------


def parameter_address(site: Site, position: int) -> tuple[str, int]:
    """The variable and the byte of ``[name+offset]`` in the param space."""
    match = re.fullmatch(r"\[([\w$%]+)(?:\+(\d+))?\]", site.text(position))
    if match is None or site.scope.function.register_type(match[1]) is not None:
        site.refuse("must name the parameter that it accesses")
    return match[1], int(match[2] or 0)


def parameter_step(site: Site, load: bool) -> Step:
    """ld.param and st.param: elements of param variables are slots like registers."""
    dtype = site.dtype()
    registers = site.targets(0, dtype) if load else site.sources(1, dtype)
    name, first = parameter_address(site, 1 if load else 0)
    slots = [
        site.decoder.parameter(site.scope, name, first + k * dtype.itemsize, dtype)
        for k in range(len(registers))
    ]
    (site.reads if load else site.writes).extend(slots)
    copies = list(zip(registers, slots, strict=True))
    copies = [(to, of) if load else (of, to) for to, of in copies]

    def step(frame: Frame) -> None:
        for target, source in copies:
            values = frame.registers[source]
            frame.registers[target] = values if values.dtype is dtype else values.view(dtype)

    return step


# --- nothing to do -----------------------------------------------------------------------


@instruction(
    "prefetch",
    "prefetchu",
    "applypriority",
    "nanosleep",
    "griddepcontrol",
    "pmevent",
)
def _nothing(site: Site) -> Step:
    """Hints change no values."""
    del site
    return lambda frame: None
