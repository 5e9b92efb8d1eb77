"""Run an SPMD program in several memories: one thread per memory, with collectives among them.

The memories of a program may belong to several processes, each with the same number of them.

Tests: tests/parallel/test_device_threads.py, tests/parallel/test_user_threads.py,
tests/parallel/test_loopback.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpuflow.base.config import collective_timeout, config
from gpuflow.base.errors import CommunicationError, check
from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.core.communicator import DRIVERS, HOSTS, Communicator, dispatch_lock, served, serving
from gpuflow.parallel.collectives.checked import CheckedCommunicator
from gpuflow.parallel.collectives.device_threads import for_each
from gpuflow.parallel.collectives.loopback import LoopbackCommunicator, Meeting
from gpuflow.parallel.collectives.multiprocess_meeting import MultiprocessMeeting
from gpuflow.runtime.device import Device

if TYPE_CHECKING:
    from gpuflow.parallel.collectives import nccl_connect
else:
    nccl_connect = LazyModule("gpuflow.parallel.collectives.nccl_connect")


@record(eq=False)
class Team:
    """The communicators of this process's memories.

    Attributes:
        communicators: from the rank of a memory to its communicator.
        fail: ends all waits with an error.
        close: frees the communicators.
        is_closed: whether they were closed, for example at the end of a group of processes.
    """

    communicators: dict[int, Communicator]
    fail: Callable[[str], None]
    close: Callable[[], None] = lambda: None
    is_closed: Callable[[], bool] = lambda: False


_teams: dict[tuple[Device, ...], Team] = {}


def _team(devices: tuple[Device, ...]) -> Team:
    team = _teams.get(devices)
    if team is None or team.is_closed():
        team = _teams[devices] = _make(devices)
    return team


def _make(devices: tuple[Device, ...]) -> Team:
    ranks = [rank for rank, device in enumerate(devices) if device.is_local]
    world = None if len(ranks) == len(devices) else served(HOSTS)
    if devices[0].platform == "cuda":
        gpus = [devices[rank] for rank in ranks]
        communicators: Sequence[Any] = nccl_connect.connect_gpus(gpus, world, ranks)
        watch = communicators[0].watch
        return Team(
            _checked(ranks, communicators), watch.fail, watch.stop, lambda: watch.is_stopped
        )
    timeout = collective_timeout()
    # Threads wait longer than the first one waits for processes, whose error is clearer.
    local_meeting = Meeting(len(ranks), timeout if world is None else 2 * timeout)
    meeting = local_meeting if world is None else MultiprocessMeeting(world, local_meeting)
    communicators = [LoopbackCommunicator(meeting, rank) for rank in ranks]
    return Team(_checked(ranks, communicators), local_meeting.fail)


def _checked(
    ranks: Sequence[int], communicators: Sequence[Communicator]
) -> dict[int, Communicator]:
    checked = map(CheckedCommunicator, communicators) if config.environment.check else communicators
    return dict(zip(ranks, checked, strict=True))


def in_threads(
    run: Callable[[Device], Any], devices: Sequence[Device], team_devices: tuple[Device, ...]
) -> list[Any]:
    """Call ``run`` for each device in its thread; collectives connect the threads.

    Programs of several user threads run one after the other.

    Args:
        run: runs a program on a device.
        devices: one device for each memory of this process.
        team_devices: one device for each memory that runs the program, of all processes, by rank.

    Returns:
        The result for each device.

    Raises:
        Exception: the first error of a thread. The other threads end with an error.
        RuntimeError: if a host function of such a program runs another one.
    """
    if len(team_devices) == 1:
        return [run(devices[0])]
    check(
        served(DRIVERS) is None,
        lambda: (
            "[jit] a host function of a program over several devices must not run another one; "
            f"got one over {', '.join(map(str, team_devices))}. Fix: run it before or after, or "
            "use arrays of one device."
        ),
        RuntimeError,
    )
    with dispatch_lock():  # concurrent programs would mix up their collectives
        return _run_serialized(run, devices, team_devices)


def _run_serialized(
    run: Callable[[Device], Any], devices: Sequence[Device], team_devices: tuple[Device, ...]
) -> list[Any]:
    """Run in all threads; an error in one fails the team, so that no other waits for it."""
    team = _team(team_devices)
    results: list[Any] = [None] * len(devices)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        device = devices[number]
        try:
            with serving(DRIVERS, team.communicators[team_devices.index(device)]):
                results[number] = run(device)
        except BaseException as error:
            errors.append(error)
            team.fail(f"{device} raised {type(error).__name__}: {error}")

    try:
        for_each(devices, work)
    except BaseException as error:  # such as Ctrl-C: the threads must stop waiting
        team.fail(f"the call was interrupted by {type(error).__name__}")
        _give_up(team_devices, team)
        raise
    if errors:
        _give_up(team_devices, team)
        raise next((e for e in errors if not isinstance(e, CommunicationError)), errors[0])
    return results


def _give_up(devices: tuple[Device, ...], team: Team) -> None:
    """Drop a team whose threads are out of step; the next program creates another one."""
    _teams.pop(devices, None)
    team.close()


# The threads of a team do not exist in a forked child.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_teams.clear)
