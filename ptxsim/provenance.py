"""Pointer provenance: the array whose start an address was computed from.

An access past the end of its array may hit another one, where the address itself is valid. The
registers of a kernel are followed from its parameters and variables to each access: an address
computed from the start of some arrays must be inside these. Loaded values count as offsets; a
loaded address is not followed.

Tests: tests/ptxsim/test_ptx_thorough.py.
"""

from __future__ import annotations

import numpy as np

from ptxsim.allocation import Allocation
from ptxsim.frame import Frame
from ptxsim.memory import DeviceMemory
from ptxsim.program import Program
from ptxsim.types import BOOL, U64, Array

Ranges = list[tuple[int, int]]


def base_origins(program: Program) -> list[tuple[int, ...]]:
    """For each access, the slots of the parameters and variables that its address derives from."""
    roots = [slot for slot, _, dtype in program.parameters if dtype.itemsize == 8]
    roots += [slot for slot, *_ in program.symbols] + list(program.shared_roots)
    masks = [0] * len(program.initial_values)
    for bit, slot in enumerate(roots):
        masks[slot] = 1 << bit
    changed = True
    while changed:
        changed = False
        for reads, writes in program.flows:
            read_mask = 0
            for slot in reads:
                read_mask |= masks[slot]
            for slot in writes:
                if read_mask & ~masks[slot]:
                    masks[slot] |= read_mask
                    changed = True
    bases = [masks[program.base_slots[site]] for site in range(program.sites)]
    return [tuple(s for k, s in enumerate(roots) if mask >> k & 1) for mask in bases]


class Provenance:
    """The arrays of a launch that each access may touch."""

    def __init__(
        self, program: Program, registers: list[Array], memory: DeviceMemory, shared_bytes: int
    ) -> None:
        if program.base_origins is None:
            program.base_origins = base_origins(program)
        self._program, self._registers, self._memory = program, registers, memory
        self._shared_bytes = shared_bytes
        self._global: dict[int, list[Allocation]] = {}
        self._shared: dict[int, Ranges] = {}

    def check_global(self, frame: Frame, site: int, allocation: Allocation, offset: int) -> None:
        """Fail if the lanes' addresses were computed from other allocations than this one."""
        origins = self._global.get(site)
        if origins is None:
            origins = self._global[site] = self._allocations(site)
        if origins and allocation not in origins:
            frame.fail(
                "an access must stay inside its array: out of bounds; an address that was computed "
                f"from an array of {origins[0].size - origins[0].low} bytes came to byte "
                f"{offset - allocation.low} of another one, of {allocation.size - allocation.low}",
                "compare the index with the extent first",
            )

    def _allocations(self, site: int) -> list[Allocation]:
        program, allocations = self._program, []
        assert program.base_origins is not None
        for slot in program.base_origins[site]:
            if slot in program.shared_roots:
                continue
            origin = self._memory.find(int(self._registers[slot].view(U64)[0]))
            if origin is not None:
                allocations.append(origin)
        return allocations

    def check_shared(self, frame: Frame, site: int, at: Array, size: int) -> None:
        """Fail if a lane's address was computed from other shared variables than it is in."""
        ranges = self._shared.get(site)
        if ranges is None:
            ranges = self._shared[site] = self._ranges(site)
        if not ranges:
            return
        offsets = at.view(np.int64)
        in_bounds = np.zeros(len(offsets), BOOL)
        for first, end in ranges:
            in_bounds |= (offsets >= first) & (offsets + size <= end)
        if not in_bounds.all():
            bad = int(np.argmin(in_bounds))
            first, end = ranges[0]
            frame.fail(
                "a shared access must stay inside its array; an address that was computed from an "
                f"array of {end - first} bytes is byte {int(offsets[bad]) - first} from its start",
                "bound the index, or declare the array larger",
                bad,
            )

    def _ranges(self, site: int) -> Ranges:
        program, ranges = self._program, []
        assert program.base_origins is not None
        for slot in program.base_origins[site]:
            if slot in program.shared_roots:
                first, end = program.shared_roots[slot]
                ranges.append((first, self._shared_bytes if end < 0 else end))
        return ranges
