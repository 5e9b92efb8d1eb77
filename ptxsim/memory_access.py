"""Memory accesses of instructions: each lane's address becomes a checked index in a space.

Tests: tests/ptxsim/test_ptx_memory.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxsim.allocation import Allocation
from ptxsim.frame import Frame, Step
from ptxsim.races import GlobalRaces
from ptxsim.shared import Kind, misaligned
from ptxsim.site import Site
from ptxsim.types import U64, Array

SPACES = ("global", "shared", "local", "const", "param")
_WINDOW_BITS = np.uint64((1 << 60) - 1)

# Accesses memory, given the elements of a space and each lane's index among them.
Action = Callable[[Frame, Array, Array], None]


def space_of(site: Site) -> str:
    """The space that the instruction names; empty for generic addresses."""
    for modifier in site.instruction.modifiers:
        if modifier.partition("::")[0] in SPACES:
            return modifier.partition("::")[0]
    return ""


class Access:
    """A memory access of an instruction.

    Attributes:
        size: bytes that each lane accesses.
        kind: the kind of access.
        stored: gives the values that a store writes, once they are known.
    """

    def __init__(
        self,
        site: Site,
        position: int,
        dtype: np.dtype,
        count: int,
        kind: Kind,
        space: str | None = None,
    ) -> None:
        """Decode an operand ``[base+offset]``.

        Args:
            site: the instruction.
            position: index of the operand.
            dtype: of an element.
            count: elements of each lane, next to each other.
            kind: the kind of access.
            space: by default the one that the instruction names.
        """
        self.base, offset = site.address(position)
        site.accesses = True
        register = site.reads[-1]  # ``base`` may be a copy of its value, of another width
        self.offset = np.uint64(offset & (2**64 - 1)) if offset else None
        self.space = space_of(site) if space is None else space
        self.dtype = dtype
        self.count = count
        self.size = dtype.itemsize * count
        self.kind = kind
        self.number = site.decoder.new_site()
        site.decoder.program.base_slots[self.number] = register
        self.constant = site.has("nc")
        self.releases = site.has("release", "acq_rel")
        self.acquires = site.has("acquire", "acq_rel")
        self.beyond_block = not site.has("cta")
        self.site = site
        self.stored: Callable[[Frame], Array] | None = None
        if self.space in ("shared", ""):
            program = site.decoder.program
            program.shared_granule = min(program.shared_granule, dtype.itemsize)
        if self.space in ("global", ""):
            program = site.decoder.program
            program.global_granule = min(program.global_granule, dtype.itemsize)

    def run(self, frame: Frame, step: Step, action: Action) -> None:
        """Apply an action to the memory of all lanes; lanes in different memory run separately.

        ``action`` gets the elements of the space, and the lanes' indices among them.
        """
        at = self.addresses(frame)
        space = self.space
        if not space:
            windows = at >> 60
            first = int(windows[0])
            if np.count_nonzero(windows != first):
                self._separately(frame, step, windows)
                return
            space = {0: "global", 1: "shared", 2: "local"}.get(first, "global")
            at = at & _WINDOW_BITS if first in (1, 2) else at
        if space == "shared":
            self._shared(frame, at, action)
        elif space == "local":
            self._local(frame, at, action)
        else:
            self._global(frame, at, step, action)

    def addresses(self, frame: Frame) -> Array:
        """The lanes' addresses, as the instruction gives them."""
        at = frame.registers[self.base]
        if at.dtype is not U64:
            at = at.view(U64)
        return at if self.offset is None else at + self.offset

    def _separately(self, frame: Frame, step: Step, keys: Array) -> None:
        """Run the step once for each group of lanes with equal keys."""
        keys = frame.per_lane(keys)
        written = (*self.site.writes, *self.site.temporaries)
        for key in np.unique(keys):
            index = np.flatnonzero(keys == key)
            frame.run_lanes(index, [step], (*self.site.reads, *written), written)

    # --- shared and local memory ---

    def _shared(self, frame: Frame, at: Array, action: Action) -> None:
        shared, kind = frame.run.shared, self.kind
        offsets = shared.flat_offsets(frame, at, self.size)
        if frame.run.provenance is not None:
            frame.run.provenance.check_shared(frame, self.number, at, self.size)
        elements = shared.elements(self.dtype, self.count)
        index = offsets // self.size
        if kind.reads or kind.atomic or not shared.races:
            shared.check(frame, offsets, self.size, kind)
            action(frame, elements, index)
            return
        before = elements[index]
        action(frame, elements, index)
        same = before == elements[index]
        unchanged = same if self.count == 1 else same.all(axis=1)
        twice = shared.check(frame, offsets, self.size, kind, unchanged)
        if twice is not None and self.stored is not None:
            # Lanes may store to one address only if they store the same value.
            wrong = elements[index] != self.stored(frame)
            wrong = (wrong if self.count == 1 else wrong.any(axis=1)) & twice
            if wrong.any():
                shared.report_race(frame, wrong, "written", "written")

    def _local(self, frame: Frame, at: Array, action: Action) -> None:
        run = frame.run
        limit = run.program.local_bytes
        reach = int(np.bitwise_or.reduce(at))
        if reach & (self.size - 1):
            misaligned(frame, at, self.size)
        if int(at.max()) + self.size > limit:
            bad = int(np.argmax(at > max(limit - self.size, -1)))
            frame.fail(
                f"a local access must stay inside the {limit} bytes of the thread; got bytes "
                f"{int(at[bad])} to {int(at[bad]) + self.size}",
                "bound the index of the local array",
                bad,
            )
        offsets = frame.lane_ids() * run.local_stride + at.view(np.int64)
        flat = run.local.view(self.dtype)
        elements = flat if self.count == 1 else flat.reshape(-1, self.count)
        action(frame, elements, offsets // self.size)

    # --- global memory ---

    def _global(self, frame: Frame, at: Array, step: Step, action: Action) -> None:
        run, size = frame.run, self.size
        allocation = run.sites[self.number]
        offsets = at if allocation is None else at - allocation.start
        if allocation is None or not self._in_bounds(frame, offsets, allocation):
            allocation = run.memory.find(int(at[0]))
            if allocation is not None:
                offsets = at - allocation.start
            if allocation is None or not self._in_bounds(frame, offsets, allocation):
                self._scattered(frame, at, step)
                return
            if run.provenance is not None:
                run.provenance.check_global(frame, self.number, allocation, int(offsets[0]))
            run.sites[self.number] = allocation
        if self.kind.writes:
            if allocation.read_only:
                frame.fail(
                    "a store must go to memory that the kernel may write: store to a read-only "
                    f"argument, byte {int(offsets[0])} of {allocation.size}",
                    "store to an output, or pass the operand as one that is written",
                )
            run.stores += frame.count
        if self.kind.reads:
            run.loads += frame.count
        run.bytes += frame.count * size
        shift = size.bit_length() - 1
        index = (offsets >> shift).view(np.int64) if shift else offsets.view(np.int64)
        if allocation.written is not None:
            self._initialized(frame, allocation.size, allocation.written, offsets)
        elements = allocation.elements(self.dtype, self.count)
        if run.races is None:
            action(frame, elements, index)
        else:
            self._watched(frame, run.races, allocation, offsets, (elements, index), action)

    def _watched(
        self,
        frame: Frame,
        races: GlobalRaces,
        allocation: Allocation,
        offsets: Array,
        where: tuple[Array, Array],
        action: Action,
    ) -> None:
        """Run an access that is reported to the race check."""
        if self.releases:
            races.fence(frame, self.beyond_block, acquire=False)
        if self.kind.writes:
            self._watched_write(frame, races, allocation, offsets, where, action)
        else:
            races.read(frame, allocation, offsets, self.size, self.kind, self.constant)
            action(frame, *where)
        if self.acquires:
            races.fence(frame, self.beyond_block, release=False)

    def _watched_write(
        self,
        frame: Frame,
        races: GlobalRaces,
        allocation: Allocation,
        offsets: Array,
        where: tuple[Array, Array],
        action: Action,
    ) -> None:
        """Run a store or an atomic, with the lanes that it leaves unchanged."""
        (elements, index), kind = where, self.kind
        if kind.atomic:
            races.write(frame, allocation, offsets, self.size, kind, None)
            action(frame, elements, index)
            return
        before = elements[index]
        action(frame, elements, index)
        unchanged = before == elements[index]
        unchanged = unchanged if self.count == 1 else unchanged.all(axis=1)
        twice = races.write(frame, allocation, offsets, self.size, kind, unchanged)
        if twice is not None and self.stored is not None:
            # Lanes may store to one address only if they store the same value.
            wrong = elements[index] != self.stored(frame)
            wrong = (wrong if self.count == 1 else wrong.any(axis=1)) & twice
            if wrong.any():
                races.report_lanes(frame, int(np.argmax(wrong)))

    def _in_bounds(self, frame: Frame, offsets: Array, allocation: Allocation) -> bool:
        """Whether all lanes access this allocation; the least multiple is checked first."""
        reach = int(np.bitwise_or.reduce(offsets))
        if reach & (self.size - 1):
            misaligned(frame, offsets, self.size)
        last = allocation.size - self.size
        if allocation.low and int(offsets.min()) < allocation.low:
            return False
        return reach <= last or int(offsets.max()) <= last

    def _scattered(self, frame: Frame, at: Array, step: Step) -> None:
        """Several allocations, or a fault."""
        starts, allocations = frame.run.memory.snapshot()
        which = np.searchsorted(starts, at, side="right") - 1
        ends = np.array([a.start + a.size for a in allocations] or [0], np.uint64)
        in_bounds = (which >= 0) & (at + np.uint64(self.size) <= ends[which])
        if not in_bounds.all():
            bad = int(np.argmin(in_bounds))
            where = frame.run.memory.describe(int(at[bad]))
            freed = "freed" in where
            frame.fail(
                (
                    "a kernel must not use freed memory"
                    if freed
                    else "an access must stay inside its array: out of bounds"
                )
                + f"; the {self.size}-byte access at {int(at[bad]):#x} {where}",
                "keep the array alive until the kernel has run"
                if freed
                else "compare the index with the extent first",
                bad,
            )
        if len(np.unique(which)) == 1:  # found meanwhile by another thread's allocation
            allocation = allocations[int(which[0])]
            if frame.run.provenance is not None:
                offset = int(at[0]) - allocation.start
                frame.run.provenance.check_global(frame, self.number, allocation, offset)
            frame.run.sites[self.number] = allocation
        self._separately(frame, step, which)

    def _initialized(self, frame: Frame, total: int, written: Array, offsets: Array) -> None:
        """Check that read bytes are initialized, and mark written ones."""
        spots = offsets.view(np.int64)[:, None] + np.arange(self.size)
        is_checked = frame.run.checks.uninitialized_global
        if is_checked and self.kind.reads and not written[spots].all():
            missing = ~written[spots].all(axis=1)
            bad = int(np.argmax(missing))
            frame.fail(
                "global memory must be set before it is read; got a read of byte "
                f"{int(offsets[bad])} of {total}, which nobody has written",
                "write every element of the array before it is used",
                bad,
            )
        if self.kind.writes:
            written[spots] = True
