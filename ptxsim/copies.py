"""cp.async: copies from global to shared memory, done at once, but watched as if they took time.

Nobody may touch the bytes of a copy before the lane that began it has waited for its group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptxsim.frame import Frame, Step
from ptxsim.instruction_table import instruction
from ptxsim.reach import Access
from ptxsim.shared import READ, WRITE
from ptxsim.site import Site
from ptxsim.types import BOOL, U32, Array


@dataclass
class _Copies:
    """The copies of a run that nobody has waited for.

    Attributes:
        group: the number of each lane's open group.
        open: of each copy the lanes, their groups, and the granules that are set.
    """

    group: Array
    open: list[tuple[Array, Array, Array]] = field(default_factory=list)


def _copies(frame: Frame) -> _Copies:
    run = frame.run
    if "copies" not in run.services:
        run.services["copies"] = _Copies(np.zeros(run.geometry.count, np.int64))
    return run.services["copies"]


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
    words = size // 4
    to = Access(site, 0, U32, words, WRITE, "shared")
    of = Access(site, 1, U32, words, READ, "global")
    slots = [site.temporary() for _ in range(words)]
    read, skip = None, None
    if site.count() > 3:
        is_predicate = site.scope.function.register_type(site.text(3).lstrip("!")) == "pred"
        skip = site.source(3, BOOL) if is_predicate else None
        read = None if is_predicate else site.source(3, U32)

    def keep(frame: Frame, elements: Array, index: Array) -> None:
        loaded = elements[index]
        for place, slot in enumerate(slots):
            frame.registers[slot] = loaded if words == 1 else np.ascontiguousarray(loaded[:, place])

    def load(frame: Frame) -> None:
        of.run(frame, load, keep)

    def values(frame: Frame) -> Array:
        parts = [frame.spread(frame.registers[slot]) for slot in slots]
        return parts[0] if words == 1 else np.stack(parts, axis=1)

    def put(frame: Frame, elements: Array, index: Array) -> None:
        elements[index] = values(frame)

    def store(frame: Frame) -> None:
        to.run(frame, store, put)

    to.stored = values

    def step(frame: Frame) -> None:
        for slot in slots:
            frame.registers[slot] = np.zeros(1, U32)
        _run_reads(frame, _wanted(frame, read, skip, size), load, of.base, slots)
        store(frame)
        _begun(frame, to)

    return step


def _wanted(frame: Frame, read: int | None, skip: int | None, size: int) -> Array | None:
    """Which lanes read; the others store zeros. None for all."""
    if read is not None:
        chosen = frame.spread(frame.registers[read].view(U32))
        if ((chosen != 0) & (chosen != size)).any():
            frame.fail(
                f"cp.async must read all of its {size} bytes or none",
                "copy the last elements one by one",
                int(np.argmax((chosen != 0) & (chosen != size))),
            )
        return np.flatnonzero(chosen)
    if skip is not None:
        return np.flatnonzero(~frame.spread(frame.registers[skip].view(BOOL)))
    return None


def _run_reads(
    frame: Frame, lanes: Array | None, load: Step, base: int, slots: list[int]
) -> None:
    if lanes is None or len(lanes) == frame.count:
        load(frame)
    elif len(lanes):
        frame.run_part(lanes, [load], (base, *slots), slots)


def _begun(frame: Frame, to: Access) -> None:
    """Mark copied elements as not to be touched yet."""
    shared, copies = frame.run.shared, _copies(frame)
    at = to.addresses(frame)
    spots = np.atleast_2d(shared.granules(shared.places(frame, at, to.size), to.size))
    if shared.pending is None:
        shared.pending = np.zeros(len(shared.flat), bool)
    spots = np.broadcast_to(spots, (len(spots), frame.count))
    shared.pending[spots] = True
    lanes = frame.numbers()
    copies.open.append((lanes, copies.group[lanes], spots))


def _commit(frame: Frame) -> None:
    """Copies from now on are in the next group."""
    _copies(frame).group[frame.numbers()] += 1


def _wait(most: int | None) -> Step:
    """All but the last so many groups are done; None: also the one that is open."""

    def step(frame: Frame) -> None:
        copies, pending = _copies(frame), frame.run.shared.pending
        limit = np.full(frame.run.geometry.count, -1)
        lanes = frame.numbers()
        limit[lanes] = copies.group[lanes] + 1 if most is None else copies.group[lanes] - most
        left = []
        for owners, groups, spots in copies.open:
            done = groups < limit[owners]
            assert pending is not None
            pending[spots[:, done]] = False
            if not done.all():
                left.append((owners[~done], groups[~done], spots[:, ~done]))
        copies.open = left

    return step
