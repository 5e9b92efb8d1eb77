"""Schedules: mapping of a kernel's work to launches, loops and vectors. See docs/design/0027.

A schedule has three steps. ``applies`` checks the kernel alone, and its result is cached with the
kernel. ``choose`` checks one call, whose sizes and strides are known, and returns a small record of
integers, or None. ``rewrite`` makes the calls that replace it.

A rewrite that follows from a kernel alone, whatever its calls, is a ``KernelRewrite``. It is
applied when the kernel's text is generated, so that cached code costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from gpuflow.base.records import record
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.kir.nodes import Kernel, remembered

Allocate = Callable[[int], int]  # a buffer of so many bytes; its id


@record(eq=False)
class Schedule:
    """One rewrite of kernel calls.

    Attributes:
        name: for people.
        applies: whether any call of a kernel may be rewritten.
        choose: the rewrite of a call, or None.
        rewrite: the calls that replace one, given the result of ``choose``. Their kernels are
            cached with the kernel that they are made from.
        is_last: whether no other schedule is applied to its result.
    """

    name: str
    applies: Callable[[Kernel], bool]
    choose: Callable[[KernelCall], Hashable | None]
    rewrite: Callable[[KernelCall, Any, Allocate], tuple[KernelCall, ...]]
    is_last: bool = False


@record(eq=False)
class KernelRewrite:
    """A rewrite of a kernel for a target.

    Attributes:
        name: for people.
        rewrite: returns a kernel with equal operands; the same one if nothing changes.
    """

    name: str
    rewrite: Callable[[Kernel], Kernel]


KernelRewrites = tuple[KernelRewrite, ...]  # of a target, in the order in which they are applied


def rewritten(kernel: Kernel, rewrites: KernelRewrites) -> Kernel:
    """The kernel that is printed."""
    for step in rewrites:
        kernel = step.rewrite(kernel)
    return kernel


class Rewriting(NamedTuple):
    """A call that a schedule has rewritten."""

    schedule: Schedule
    call: KernelCall
    choice: Hashable
    result: tuple[KernelCall, ...]


Schedules = tuple[Schedule, ...]  # of a target, in the order in which they are tried


def is_plain(kernel: Kernel, schedules: Schedules) -> bool:
    """Whether every call of a kernel is its own launch."""
    return not remembered(kernel, _applicable, schedules, 0)


def scheduled(
    call: KernelCall,
    allocate: Allocate,
    schedules: Schedules,
    first: int = 0,
    report: Callable[[Rewriting], None] | None = None,
) -> tuple[KernelCall, ...]:
    """The calls that replace one.

    Args:
        call: of any kernel.
        allocate: gives a buffer of so many bytes.
        schedules: of the target.
        first: the first of them to try.
        report: called with each call that is rewritten.
    """
    for position, schedule in remembered(call.kernel, _applicable, schedules, first):
        choice = schedule.choose(call)
        if choice is None:
            continue
        calls = schedule.rewrite(call, choice, allocate)
        if report is not None:
            report(Rewriting(schedule, call, choice, calls))
        if schedule.is_last:
            return calls
        return tuple(
            [
                launch
                for one in calls
                for launch in scheduled(one, allocate, schedules, position + 1, report)
            ]
        )
    return (call,)


def rewritings(call: KernelCall, allocate: Allocate, schedules: Schedules) -> list[Rewriting]:
    """The steps of ``scheduled``."""
    steps: list[Rewriting] = []
    scheduled(call, allocate, schedules, report=steps.append)
    return steps


def _applicable(
    kernel: Kernel, schedules: Schedules, first: int
) -> tuple[tuple[int, Schedule], ...]:
    """The schedules from ``first`` on that may rewrite calls of a kernel, with their indices."""
    return tuple(
        [
            (position, schedule)
            for position, schedule in enumerate(schedules)
            if position >= first and schedule.applies(kernel)
        ]
    )
