"""Thread pool with one thread per device memory, started at first use and then reused.

Tests: tests/parallel/test_device_threads.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread

from gpuflow.base.config import Blocks, config
from gpuflow.base.records import record
from gpuflow.runtime.device import Device

Work = Callable[[int], None]


@record(eq=False)
class _Task:
    """A call for one device.

    Attributes:
        work, index: the function and its argument, the index of the device.
        context, blocks: the caller's context variables and settings, for the duration of the call.
        finished: a queue that receives the error of the call, or None, when it has ended.
    """

    work: Work
    index: int
    context: Context
    blocks: Blocks
    finished: SimpleQueue[BaseException | None]

    def run(self) -> None:
        raised = None
        try:
            with config.within(self.blocks):
                self.context.run(self.work, self.index)
        except BaseException as error:
            raised = error
        self.finished.put(raised)


class _DeviceThread:
    """A thread that runs calls in order; its current CUDA device never changes."""

    def __init__(self, device: Device) -> None:
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        Thread(target=self._run, name=f"gpuflow-{device}", daemon=True).start()

    def _run(self) -> None:
        while True:
            task = self.tasks.get()
            if task is None:
                return
            task.run()
            del task  # an idle thread must not keep arrays alive


_threads: dict[Device, _DeviceThread] = {}


def for_each(devices: Sequence[Device], work: Work) -> None:
    """Run ``work(k)`` in the thread of device k, for all devices, and wait for all calls.

    Only one thread may call this at a time. If an exception such as KeyboardInterrupt ends the
    wait, the threads finish their work and end; later calls start new ones.

    Args:
        devices: distinct devices.
        work: a function of the index of a device.

    Raises:
        BaseException: the first exception of a call, after all calls have ended.
    """
    used: list[_DeviceThread] = []
    finished: SimpleQueue[BaseException | None] = SimpleQueue()
    blocks = config.blocks()
    try:
        for index, device in enumerate(devices):
            thread = _threads.get(device)
            if thread is None:
                thread = _threads[device] = _DeviceThread(device)
            used.append(thread)
            thread.tasks.put(_Task(work, index, copy_context(), blocks, finished))
        raised = [finished.get() for _ in devices]
    except BaseException:
        for device in devices:
            if _threads.get(device) in used:
                _threads.pop(device).tasks.put(None)
        raise
    error = next((one for one in raised if one is not None), None)
    if error is not None:
        raise error


# A forked child inherits the thread objects, but no threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.clear)
