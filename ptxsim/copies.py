"""cp.async: copies from global to shared memory, done at once but checked as asynchronous.

No lane may access the bytes of a copy before the lane that started it has waited for its group.

Tests: tests/ptxsim/test_ptx_memory.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptxsim.frame import Frame, Step
from ptxsim.instruction_table import instruction
from ptxsim.memory_access import Access
from ptxsim.shared import READ, WRITE
from ptxsim.site import Site
from ptxsim.types import BOOL, U32, Array


@dataclass
class _Copies:
    """The pending copies of a run: no lane has waited for them.

    Attributes:
        group: the index of each lane's open group.
        open: the lanes of each copy, their groups, and the granules that it writes.
    """

    group: Array
    open: list[tuple[Array, Array, Array]] = field(default_factory=list)


def _copies(frame: Frame) -> _Copies:
    run = frame.run
    if "copies" not in run.instruction_state:
        run.instruction_state["copies"] = _Copies(np.zeros(run.geometry.count, np.int64))
    return run.instruction_state["copies"]


@instruction("cp")
def _copy(site: Site) -> Step:
    if site.has("bulk", "mbarrier", "reduce") or not site.has("async"):
        site.refuse("must be a cp.async of a few bytes")
    if site.has("commit_group"):
        return _commit
    if site.has("wait_group", "wait_all"):
        return _wait(None if site.has("wait_all") else int(site.text(0)))
    return _begin(site)


def _begin(site: Site) -> Step:
    """``cp.async.ca.shared.global [to], [of], size{, bytes that are read}{, skip}``."""
    size = int(site.text(2))
    count = size // 4
    to = Access(site, 0, U32, count, WRITE, "shared")
    of = Access(site, 1, U32, count, READ, "global")
    slots = [site.temporary() for _ in range(count)]
    read, skip = None, None
    if site.count() > 3:
        is_predicate = site.scope.function.register_type(site.text(3).lstrip("!")) == "pred"
        skip = site.source(3, BOOL) if is_predicate else None
        read = None if is_predicate else site.source(3, U32)

    def gather(frame: Frame, elements: Array, index: Array) -> None:
        loaded = elements[index]
        for column, slot in enumerate(slots):
            values = loaded if count == 1 else np.ascontiguousarray(loaded[:, column])
            frame.registers[slot] = values

    def load(frame: Frame) -> None:
        of.run(frame, load, gather)

    def values(frame: Frame) -> Array:
        columns = [frame.per_lane(frame.registers[slot]) for slot in slots]
        return columns[0] if count == 1 else np.stack(columns, axis=1)

    def put(frame: Frame, elements: Array, index: Array) -> None:
        elements[index] = values(frame)

    def store(frame: Frame) -> None:
        to.run(frame, store, put)

    to.stored = values

    def step(frame: Frame) -> None:
        for slot in slots:
            frame.registers[slot] = np.zeros(1, U32)
        _run_reads(frame, _reading_lanes(frame, read, skip, size), load, of.base, slots)
        store(frame)
        _mark_pending(frame, to)

    return step


def _reading_lanes(frame: Frame, read: int | None, skip: int | None, size: int) -> Array | None:
    """Return the lanes that read; the others store zeros. None for all."""
    if read is not None:
        counts = frame.per_lane(frame.registers[read].view(U32))
        if ((counts != 0) & (counts != size)).any():
            frame.fail(
                f"cp.async must read all of its {size} bytes or none",
                "copy the last elements one by one",
                int(np.argmax((counts != 0) & (counts != size))),
            )
        return np.flatnonzero(counts)
    if skip is not None:
        return np.flatnonzero(~frame.per_lane(frame.registers[skip].view(BOOL)))
    return None


def _run_reads(frame: Frame, lanes: Array | None, load: Step, base: int, slots: list[int]) -> None:
    if lanes is None or len(lanes) == frame.count:
        load(frame)
    elif len(lanes):
        frame.run_lanes(lanes, [load], (base, *slots), slots)


def _mark_pending(frame: Frame, to: Access) -> None:
    """Mark copied elements as pending."""
    shared, copies = frame.run.shared, _copies(frame)
    at = to.addresses(frame)
    spots = np.atleast_2d(shared.granules(shared.flat_offsets(frame, at, to.size), to.size))
    if shared.pending is None:
        shared.pending = np.zeros(len(shared.flat), bool)
    spots = np.broadcast_to(spots, (len(spots), frame.count))
    shared.pending[spots] = True
    lanes = frame.lane_ids()
    copies.open.append((lanes, copies.group[lanes], spots))


def _commit(frame: Frame) -> None:
    """Close the current group: later copies are in the next one."""
    _copies(frame).group[frame.lane_ids()] += 1


def _wait(most: int | None) -> Step:
    """Complete all but the last ``most`` groups; None: also the open one."""

    def step(frame: Frame) -> None:
        copies, pending = _copies(frame), frame.run.shared.pending
        limit = np.full(frame.run.geometry.count, -1)
        lanes = frame.lane_ids()
        limit[lanes] = copies.group[lanes] + 1 if most is None else copies.group[lanes] - most
        unfinished = []
        for owners, groups, spots in copies.open:
            done = groups < limit[owners]
            assert pending is not None
            pending[spots[:, done]] = False
            if not done.all():
                unfinished.append((owners[~done], groups[~done], spots[:, ~done]))
        copies.open = unfinished

    return step
