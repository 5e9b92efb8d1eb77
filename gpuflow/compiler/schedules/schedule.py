"""Schedules: rewrites that map a kernel call to launches, loops and vectors of a target.

A schedule has three steps (docs/design/0027). ``applies`` checks the kernel alone; the result is
cached with the kernel. ``choose`` checks one call with its sizes and strides, and returns a small
record of integers, or None. ``rewrite`` returns the calls that replace it.

A rewrite that depends on the kernel alone is a ``KernelRewrite``. It is applied when the kernel's
text is generated, so that cached code costs nothing.

A plan is scheduled when it is bound, possibly in several threads at the same time: the functions of
a schedule must not keep state, except what ``memoized`` caches with a kernel.

Tests: tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from gpuflow.base.records import record
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.kir.nodes import Kernel, memoized

Allocate = Callable[[int], int]  # bytes -> id of a scratch buffer


@record(eq=False)
class Schedule:
    """One rewrite of kernel calls.

    The result must compute the same values, and preserve the order of loads and stores of
    overwritten operands (``lowering/donation.py``).

    Attributes:
        name: the name in ``explain``.
        applies: whether calls of a kernel may be rewritten at all; must depend on the kernel alone.
        choose: the parameters of the rewrite for a call; None to leave the call unchanged.
            ``explain`` prints them.
        rewrite: the calls that replace a call, given the result of ``choose``. Their kernels should
            be cached with the original kernel (``kir.nodes.memoized``).
        is_last: whether no later schedule is applied to its result.
    """

    name: str
    applies: Callable[[Kernel], bool]
    choose: Callable[[KernelCall], Hashable | None]
    rewrite: Callable[[KernelCall, Any, Allocate], tuple[KernelCall, ...]]
    is_last: bool = False


@record(eq=False)
class KernelRewrite:
    """A rewrite of a kernel for a target, independent of its calls.

    Attributes:
        name: the name in ``explain``.
        rewrite: returns a kernel with equal operands and argument slots, because calls are bound
            before; the same object if nothing changes.
    """

    name: str
    rewrite: Callable[[Kernel], Kernel]


KernelRewrites = tuple[KernelRewrite, ...]  # those of a target, in the order of application


def apply_rewrites(kernel: Kernel, rewrites: KernelRewrites) -> Kernel:
    """Apply all rewrites: the kernel that is printed."""
    for kernel_rewrite in rewrites:
        kernel = kernel_rewrite.rewrite(kernel)
    return kernel


class Rewriting(NamedTuple):
    """One application of a schedule, for ``explain``.

    Attributes:
        schedule: the schedule.
        call: the call that it has rewritten.
        parameters: the result of ``choose``.
        result: the calls that replace it, in the order in which they run.
    """

    schedule: Schedule
    call: KernelCall
    parameters: Hashable
    result: tuple[KernelCall, ...]


Schedules = tuple[Schedule, ...]  # those of a target, in the order in which they are tried


def is_plain(kernel: Kernel, schedules: Schedules) -> bool:
    """Whether no schedule can rewrite calls of a kernel: each call is one launch."""
    return not memoized(kernel, _applicable, schedules, 0)


def scheduled(
    call: KernelCall,
    allocate: Allocate,
    schedules: Schedules,
    first: int = 0,
    report: Callable[[Rewriting], None] | None = None,
) -> tuple[KernelCall, ...]:
    """Apply schedules to a call, recursively; returns its launches.

    Args:
        call: the call.
        allocate: allocates scratch buffers.
        schedules: the schedules of the target.
        first: index of the first schedule to try; results of a schedule try only later ones.
        report: called with each application of a schedule.
    """
    for position, schedule in memoized(call.kernel, _applicable, schedules, first):
        parameters = schedule.choose(call)
        if parameters is None:
            continue
        calls = schedule.rewrite(call, parameters, allocate)
        if report is not None:
            report(Rewriting(schedule, call, parameters, calls))
        if schedule.is_last:
            return calls
        return tuple(
            [
                launch
                for rewritten_call in calls
                for launch in scheduled(rewritten_call, allocate, schedules, position + 1, report)
            ]
        )
    return (call,)


def rewritings(call: KernelCall, allocate: Allocate, schedules: Schedules) -> list[Rewriting]:
    """The applications of schedules in ``scheduled``."""
    applications: list[Rewriting] = []
    scheduled(call, allocate, schedules, report=applications.append)
    return applications


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
