"""One thread for each memory of this process: the same program, whose collectives meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.config import config, launcher_variables
from gpuflow.base.errors import CommunicationError
from gpuflow.base.records import record
from gpuflow.core.communicator import DRIVERS, Communicator, serving
from gpuflow.parallel.checks import CheckedCommunicator
from gpuflow.parallel.loopback import LoopbackCommunicator, Meeting
from gpuflow.parallel.nccl_connect import connect_gpus
from gpuflow.runtime.device import Device


@record(eq=False)
class Team:
    """The communicators of the memories of one process, and what ends their waiting."""

    communicators: tuple[Communicator, ...]
    fail: Callable[[str], None]


def _no_end(reason: str) -> None:
    del reason  # NCCL reports errors of the others by itself


_teams: dict[tuple[Device, ...], Team] = {}


def _team(devices: tuple[Device, ...]) -> Team:
    found = _teams.get(devices)
    if found is None:
        found = _teams[devices] = _make(devices)
    return found


def _make(devices: tuple[Device, ...]) -> Team:
    if devices[0].platform == "cuda":
        made: Sequence[Any] = connect_gpus(devices)
        return Team(_checked(made), _no_end)
    timeout = float(launcher_variables().get("GPUFLOW_COLLECTIVE_TIMEOUT", "300"))
    meeting = Meeting(len(devices), timeout)
    ranks = [LoopbackCommunicator(meeting, rank) for rank in range(len(devices))]
    return Team(_checked(ranks), meeting.fail)


def _checked(made: Sequence[Communicator]) -> tuple[Communicator, ...]:
    return tuple(map(CheckedCommunicator, made) if config.environment.check else made)


def in_threads(
    run: Callable[[Device], Any], devices: Sequence[Device], ranks: Sequence[int]
) -> list[Any]:
    """``run`` of each device, in threads of their own whose collectives meet.

    Args:
        run: runs a program on a device.
        devices: one for each memory of this process.
        ranks: of the devices, if there are several.

    Raises:
        Exception: the first error of a thread; the others are ended.
    """
    if len(devices) == 1:
        return [run(devices[0])]
    in_order = tuple(devices[ranks.index(rank)] for rank in range(len(devices)))
    team = _team(in_order)
    results: list[Any] = [None] * len(devices)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        device = devices[number]
        try:
            with serving(DRIVERS, team.communicators[ranks[number]]):
                results[number] = run(device)
        except BaseException as error:
            errors.append(error)
            team.fail(f"{device} raised {type(error).__name__}: {error}")

    threads = [
        threading.Thread(target=work, args=(number,), name=f"gpuflow-{device}", daemon=True)
        for number, device in enumerate(devices)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        _teams.pop(in_order, None)  # who waits there would wait in vain
        raise next((e for e in errors if not isinstance(e, CommunicationError)), errors[0])
    return results
