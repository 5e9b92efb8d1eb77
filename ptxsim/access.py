"""Loads and stores. Cache operators and hints change nothing; every access is checked.

Tests: tests/ptxsim/test_ptx_memory.py, tests/ptxsim/test_ptx_thorough.py.
"""

from __future__ import annotations

import numpy as np

from ptxsim.frame import Frame, Step
from ptxsim.instruction_table import instruction
from ptxsim.memory_access import Access, space_of
from ptxsim.moves import parameter_step
from ptxsim.shared import READ, RELAXED_READ, RELAXED_WRITE, WRITE
from ptxsim.site import Site
from ptxsim.types import Array, bits


def _vector(site: Site, position: int) -> int:
    """The vector length of an operand: elements in braces, else 1."""
    return site.text(position).count(",") + 1 if site.text(position).startswith("{") else 1


def _is_relaxed(site: Site) -> bool:
    """Whether other threads may access the address at the same time, in some order."""
    return site.has("volatile", "relaxed", "acquire", "release", "mmio")


@instruction("ld", "ldu")
def _load(site: Site) -> Step:
    if space_of(site) == "param":
        return parameter_step(site, load=True)
    dtype, count = site.dtype(), _vector(site, 0)
    access = Access(site, 1, dtype, count, RELAXED_READ if _is_relaxed(site) else READ)
    targets = site.targets(0, dtype)
    (only,) = targets if count == 1 else (0,)

    def one(frame: Frame, elements: Array, index: Array) -> None:
        frame.registers[only] = elements.take(index)

    def several(frame: Frame, elements: Array, index: Array) -> None:
        rows = elements[index].T.copy()
        registers = frame.registers
        for column, target in enumerate(targets):
            registers[target] = rows[column]

    action = one if count == 1 else several

    def step(frame: Frame) -> None:
        access.run(frame, step, action)

    return step


@instruction("st")
def _store(site: Site) -> Step:
    if space_of(site) == "param":
        return parameter_step(site, load=False)
    dtype, count = bits(site.dtype()), _vector(site, 1)
    access = Access(site, 0, dtype, count, RELAXED_WRITE if _is_relaxed(site) else WRITE)
    sources = site.sources(1, dtype)
    (only,) = sources if count == 1 else (0,)

    def value(frame: Frame) -> Array:
        if count == 1:
            return frame.registers[only].view(dtype)
        columns = [frame.registers[source].view(dtype) for source in sources]
        return np.stack(np.broadcast_arrays(*columns), axis=1)

    def action(frame: Frame, elements: Array, index: Array) -> None:
        values = value(frame)
        if len(values) != len(index) and len(index) == 1:  # the last lane wins
            values = values[-1:]
        elements[index] = values

    access.stored = value

    def step(frame: Frame) -> None:
        access.run(frame, step, action)

    return step


@instruction("membar", "fence")
def _fence(site: Site) -> Step:
    """Memory is in order in the simulator; the race check records fences."""
    if site.has("proxy", "mbarrier_init"):
        return lambda frame: None
    beyond_block = not site.has("cta")

    def step(frame: Frame) -> None:
        if frame.run.races is not None:
            frame.run.races.fence(frame, beyond_block)

    return step
