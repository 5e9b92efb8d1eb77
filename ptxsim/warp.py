"""Warp-collective instructions: shuffles, votes, matches, reductions.

Tests: tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxsim.frame import Frame, Step
from ptxsim.geometry import WARP
from ptxsim.instruction_table import instruction
from ptxsim.site import Site
from ptxsim.types import BOOL, F32, U32, Array, bits

_EVERY = 0xFFFFFFFF


# --- shuffles ----------------------------------------------------------------------------


@instruction("shfl", member=-1)
def _shuffle(site: Site) -> Step:
    """``shfl.sync.mode.b32 d|p, a, b, c, member``: a of the lane that b and c specify."""
    if not site.has("sync"):
        site.refuse("must be shfl.sync")
    mode = site.one_of(("up", "down", "bfly", "idx"))
    name, _, predicate = site.text(0).partition("|")
    a, b, c, member = (site.source(operand, U32) for operand in (1, 2, 3, 4))
    target = site.target_of(name, U32)
    holds = site.target_of(predicate, BOOL) if predicate else None

    def step(frame: Frame) -> None:
        registers = frame.registers
        values, mask = registers[a], registers[member]
        source, in_segment = _sources(frame, mode, registers[b], registers[c])
        _check_sources(frame, source, in_segment, mask)
        if holds is not None:
            registers[holds] = in_segment
        if len(values) > 1:
            position = source
            if frame.lanes is not None:
                position = np.searchsorted(frame.lanes, source)
            values = values.take(position)
        registers[target] = values

    return step


def _sources(frame: Frame, mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """The lane that each lane reads, itself if out of its segment, and whether it is in it."""
    geometry = frame.run.geometry
    constant = len(b) == 1 and len(c) == 1
    if constant and frame.lanes is None:
        key = mode, int(b[0]), int(c[0])
        cached = geometry.shuffles.get(key)
        if cached is None:
            cached = geometry.shuffles[key] = _compute_sources(frame, mode, b, c)
        return cached
    return _compute_sources(frame, mode, b, c)


def _compute_sources(frame: Frame, mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """The PTX manual's definition of shfl."""
    geometry = frame.run.geometry
    lane = frame.of_lanes(geometry.lane)
    distance, control = b.view(U32).astype(np.int64) & 31, c.view(U32).astype(np.int64)
    segment, clamp = control >> 8 & 31, control & 31
    least = lane & segment
    most = least | (clamp & ~segment)
    if mode == "up":
        source, in_segment = lane - distance, lane - distance >= most
    elif mode == "down":
        source, in_segment = lane + distance, lane + distance <= most
    elif mode == "bfly":
        source, in_segment = lane ^ distance, (lane ^ distance) <= most
    else:
        source = least | (distance & ~segment)
        in_segment = source <= most
    source = np.where(in_segment, source, lane)
    return frame.of_lanes(geometry.warp_start) + source, in_segment


def _check_sources(frame: Frame, source: Array, in_segment: Array, member: Array) -> None:
    """A lane that is read must execute the shuffle, and be in the member mask."""
    geometry = frame.run.geometry
    whole = frame.lanes is None and geometry.whole_warps
    if whole and len(member) == 1 and int(member[0]) == _EVERY:
        return
    lane = source - frame.of_lanes(geometry.warp_start)
    wrong = (frame.per_lane(member).view(U32) >> lane.astype(U32)) & 1 == 0
    wrong |= lane >= frame.of_lanes(geometry.warp_size)
    if frame.lanes is not None:
        here = np.searchsorted(frame.lanes, source)
        nearest = frame.lanes[np.minimum(here, frame.count - 1)]
        wrong |= nearest != source
    wrong &= in_segment
    if wrong.any():
        bad = int(np.argmax(wrong))
        frame.fail(
            "a shuffle must read lanes that execute it and are in its member mask; got a read of "
            f"the inactive lane {int(lane[bad])}",
            "let all lanes of the warp reach the shuffle",
            bad,
        )


# --- votes -------------------------------------------------------------------------------


def _groups(frame: Frame, member: Array) -> tuple[Array, int]:
    """Group index of each lane (one warp, one mask), and the number of groups."""
    warp = frame.of_lanes(frame.run.geometry.warp)
    if len(member) == 1:
        keys = warp
    else:
        keys = warp << 32 | member.view(U32).astype(np.int64)
    groups, number = np.unique(keys, return_inverse=True)
    return number, len(groups)


def _ballots(frame: Frame, holds: Array, group: Array, count: int) -> Array:
    """For each group, the mask of the lanes whose predicate holds."""
    weight = np.left_shift(1, frame.of_lanes(frame.run.geometry.lane))
    votes = np.where(frame.per_lane(holds), weight, 0)
    return np.bincount(group, votes, count).astype(U32)


@instruction("vote", member=-1)
def _vote(site: Site) -> Step:
    if not site.has("sync"):
        site.refuse("must be vote.sync")
    mode = site.one_of(("all", "any", "uni", "ballot"))
    predicate, member = site.source(1, BOOL), site.source(2, U32)
    target = site.target(0, U32 if mode == "ballot" else BOOL)

    def step(frame: Frame) -> None:
        group, count = _groups(frame, frame.registers[member])
        holds = frame.registers[predicate].view(BOOL)
        yes = _ballots(frame, holds, group, count)
        if mode == "ballot":
            result = yes
        elif mode == "any":
            result = yes != 0
        else:
            everybody = _ballots(frame, np.ones(1, BOOL), group, count)
            result = yes == everybody
            if mode == "uni":
                result = result | (yes == 0)
        frame.registers[target] = result[group]

    return step


@instruction("activemask")
def _active(site: Site) -> Step:
    target = site.target(0, U32)

    def step(frame: Frame) -> None:
        group, count = _groups(frame, np.zeros(1, U32))
        frame.registers[target] = _ballots(frame, np.ones(1, BOOL), group, count)[group]

    return step


@instruction("elect", member=-1)
def _elect(site: Site) -> Step:
    """``elect.sync d|p, member``: the lowest lane is the leader."""
    name, _, predicate = site.text(0).partition("|")
    member, leader, is_leader = site.source(1, U32), site.target_of(name, U32), None
    is_leader = site.target_of(predicate, BOOL)

    def step(frame: Frame) -> None:
        group, count = _groups(frame, frame.registers[member])
        lane = frame.of_lanes(frame.run.geometry.lane)
        least = np.full(count, WARP)
        np.minimum.at(least, group, lane)
        frame.registers[leader] = least[group].astype(U32)
        frame.registers[is_leader] = least[group] == lane

    return step


@instruction("match", member=-1)
def _match(site: Site) -> Step:
    """``match.any d, a, member``: who has my value; ``match.all d|p``: whether all have."""
    dtype = bits(site.dtype())
    name, _, predicate = site.text(0).partition("|")
    a, member = site.source(1, dtype), site.source(2, U32)
    target = site.target_of(name, U32)
    holds = site.target_of(predicate, BOOL) if predicate else None
    asks_all = site.has("all")

    def step(frame: Frame) -> None:
        group, count = _groups(frame, frame.registers[member])
        values = frame.per_lane(frame.registers[a].view(dtype))
        _, number = np.unique(values, return_inverse=True)
        keys = group * (int(number.max()) + 1) + number
        _, same = np.unique(keys, return_inverse=True)
        equal = _ballots(frame, np.ones(1, BOOL), same, int(same.max()) + 1)[same]
        result = equal
        if asks_all:
            everybody = _ballots(frame, np.ones(1, BOOL), group, count)[group]
            agree = equal == everybody
            result = np.where(agree, everybody, 0).astype(U32)
            if holds is not None:
                frame.registers[holds] = agree
        frame.registers[target] = result

    return step


_REDUCE: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@instruction("redux", member=-1)
def _reduce(site: Site) -> Step:
    """``redux.sync.op d, a, member``; of floats only min and max."""
    how, dtype = site.one_of(tuple(_REDUCE)), site.dtype()
    function = _REDUCE[how]
    if dtype == F32 and not site.has("NaN"):
        function = np.fmin if how == "min" else np.fmax
    absolute = site.has("abs")
    a, member, target = site.source(1, dtype), site.source(2, U32), site.target(0, dtype)

    def step(frame: Frame) -> None:
        group, count = _groups(frame, frame.registers[member])
        values = frame.per_lane(frame.registers[a].view(dtype))
        values = np.abs(values) if absolute else values
        _, first = np.unique(group, return_index=True)
        result = values[first]
        others = np.ones(len(group), bool)
        others[first] = False
        function.at(result, group[others], values[others])
        frame.registers[target] = result[group]
        del count

    return step


@instruction("bar", "barrier", member=0)
def _warp_barrier(site: Site) -> Step:
    """bar.warp.sync: orders the warp's accesses to shared memory."""

    def step(frame: Frame) -> None:
        lanes = slice(None) if frame.lanes is None else frame.lanes
        frame.run.shared.pass_warp_barrier(lanes)
        if frame.run.races is not None:
            frame.run.races.pass_warp_barrier(frame)

    return step
