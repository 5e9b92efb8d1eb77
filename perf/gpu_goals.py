"""Whether what the GPU acceptance measured reaches what is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gpu_frameworks import OURS
from gpu_rows import ATOMIC, GROUPS, JAX, NO_KERNELS, OFF, Goal, Row

PASS, FAIL, UNKNOWN = "pass", "FAIL", "not measured"
NOISE = 1.02  # two runs of one program differ by so much
MANY_SIZES_GOAL = Goal(times=0.05, rivals=(JAX,))

# By framework and row, what the children printed.
Records = Mapping[str, Mapping[str, Mapping[str, Any]]]


def seconds_of(records: Records, framework: str, row: str) -> float | None:
    """The time that a framework needs for a row."""
    return records.get(framework, {}).get(row, {}).get("seconds")


def wanted(goal: Goal) -> str:
    """What a goal asks for, in words."""
    parts = []
    if goal.share is not None:
        parts.append(f"at least {100 * goal.share:.0f} % of a copy")
    if goal.seconds is not None:
        parts.append(f"at most {goal.seconds * 1e6:.0f} us")
    if goal.times is not None:
        names = " and ".join(goal.rivals)
        is_ours = set(goal.rivals) <= set(OFF)
        parts.append(f"not slower than {names}" if is_ours else f"at most {goal.times:g} x {names}")
    return "; ".join(parts)


def verdict(goal: Goal, row: Row | None, name: str, records: Records, copy: float | None) -> str:
    """pass, FAIL with what was reached, or why it is not known; empty where nothing is asked."""
    if goal == Goal():
        return ""
    ours = seconds_of(records, OURS, name)
    if ours is None:
        return FAIL + ": no time" if records.get(OURS, {}).get(name) else UNKNOWN
    kernels = records[OURS][name].get("kernels")
    found = []
    if row is not None and row.kernels and kernels not in (None, row.kernels):
        found.append(f"{FAIL}: {kernels} kernels, not {row.kernels}")
    if goal.share is not None:
        found.append(_share(goal.share, row, records[OURS][name], copy))
    if goal.seconds is not None:
        found.append(PASS if ours <= goal.seconds else f"{FAIL}: {ours / goal.seconds:.2f} x it")
    if goal.times is not None:
        found.append(_times(goal, goal.times, ours, name, records))
    return "; ".join(dict.fromkeys(found))


def _share(share: float, row: Row | None, record: Mapping[str, Any], copy: float | None) -> str:
    if copy is None or row is None or row.traffic is None or "size" not in record:
        return f"{UNKNOWN}: no copy bandwidth"
    reached = row.traffic(record["size"]) / record["seconds"] / copy
    return PASS if reached >= share else f"{FAIL}: {100 * reached:.0f} % of a copy"


def _times(goal: Goal, times: float, ours: float, name: str, records: Records) -> str:
    found = {rival: seconds_of(records, rival, name) for rival in goal.rivals}
    rivals = {rival: seconds for rival, seconds in found.items() if seconds is not None}
    if not rivals:
        return f"{UNKNOWN}: no time of {' or '.join(goal.rivals)}"
    best = min(rivals, key=lambda rival: rivals[rival])
    ratio = ours / rivals[best]
    if ratio <= times * NOISE:
        return PASS
    if goal.rivals == (NO_KERNELS,):
        return f"DELETE the kernel: {ratio:.2f} x what stands in its place"
    return f"{FAIL}: {ratio:.2f} x {best}"


def groups(rows: Iterable[Row], records: Records) -> list[list[str]]:
    """What is asked of several times: a name, the goal, the ratio, and a verdict."""
    made = []
    rows = list(rows)
    for group, most in GROUPS.items():
        names = [row.name for row in rows if row.group == group]
        times = [seconds_of(records, OURS, name) for name in names]
        known = [seconds for seconds in times if seconds]
        if len(known) < len(names):
            ratio, result = "", UNKNOWN
        else:
            worst = max(known) / min(known)
            ratio, result = f"{worst:.2f} x", PASS if worst <= most else FAIL
        made.append([f"{group}: slowest over fastest", f"at most {most:g} x", ratio, result])
    for row in rows:
        times = [seconds_of(records, name, row.name) for name in (ATOMIC, OURS)]
        if ATOMIC in row.without:
            made.append([f"{row.name}: atomic over ordered", "less than 1 x", *_atomic(*times)])
    return made


def _atomic(atomic: float | None, ordered: float | None) -> list[str]:
    if not atomic or not ordered:
        return ["", UNKNOWN]
    result = PASS if atomic < ordered else "DELETE the atomic kernel, if nowhere faster"
    return [f"{atomic / ordered:.2f} x", result]


def agree(one: Mapping[str, Any], two: Mapping[str, Any], tolerance: float) -> bool:
    """Whether samples of two results are equal; a tolerance of 0 asks for nothing."""
    first, second = one.get("check"), two.get("check")
    if not first or not second or tolerance == 0:
        return True
    if len(first) != len(second):
        return False
    a, b = np.array(first), np.array(second)
    scale = max(float(np.abs(b).max()), 1e-30)
    return bool(np.all(np.abs(a - b) <= tolerance * scale))
