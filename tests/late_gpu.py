"""A simulated GPU that does nothing before somebody waits for it.

Work is queued in streams, as on a real GPU, and runs as late as the calls allow. Memory that goes
back to a pool is handed out again at once. So what a driver forgets to wait for, or to keep, gives
wrong numbers here every time, and on a real GPU sometimes.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict, deque
from contextlib import contextmanager

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.core.aval import ShapedArray
from gpuflow.runtime import device
from gpuflow.runtime.array import Array
from gpuflow.runtime.device_array import DeviceArray
from gpuflow.targets.cuda.runtime.driver.driver import GpuDriver
from gpuflow.targets.cuda.runtime.driver.transfers import SMALL
from gpuflow.targets.cuda_sim.driver import SimApi
from gpuflow.targets.cuda_sim.recording import SimGraph, current


def gpu_devices(name, *apis):
    """The devices of a new platform: one for each API."""
    drivers = [GpuDriver(api) for api in apis]
    device.register_platform(
        device.Platform(name, lambda: len(drivers), lambda number: drivers[number])
    )
    return gf.devices(name)


class LateEvent:
    """A mark in a stream of a device."""

    def __init__(self, api, stream):
        self.api, self.stream, self.done = api, stream, False

    def reach(self):
        """Run the stream, up to here."""
        self.api._run(self.stream, self)


class LatePool:
    """Memory that is reused at once, within one pool, as CuPy's is."""

    def __init__(self, memory):
        self.memory, self.free = memory, defaultdict(list)

    def malloc(self, count):
        rounded = -(-count // 512) * 512
        place = self.free[rounded].pop() if self.free[rounded] else self.memory.allocate(rounded)
        return LatePiece(place, rounded, self)

    def free_all_blocks(self):
        for places in self.free.values():
            for place in places:
                self.memory.free(place)
        self.free.clear()


class LatePiece:
    def __init__(self, ptr, count, pool):
        self.ptr = ptr
        weakref.finalize(self, lambda: pool.free[count].append(ptr))


class LateGraph:
    """A graph that counts what is done with it."""

    def __init__(self, graph: SimGraph, log):
        self.graph, self.log = graph, log

    def __call__(self):
        self.log["replay"] += 1
        self.graph()

    def change_launch(self, number, launch):
        self.log["change"] += 1
        return self.graph.change_launch(number, launch)


class LateApi(SimApi):
    """A GPU with queues; ``log`` counts what it was asked for."""

    name = "the late GPU"
    synchronous = False

    def __init__(self, capacity=None):
        super().__init__(capacity)
        self.queues = defaultdict(deque)
        self.log = defaultdict(int)
        self._pinned = []

    def pool(self):
        return LatePool(self.memory)

    def pinned(self, count):
        memory = np.empty(count, np.uint8)
        self._pinned.append((memory.ctypes.data, memory.ctypes.data + count))
        return memory

    def _is_pinned(self, address):
        return any(start <= address < end for start, end in self._pinned)

    # --- streams and events ---

    def _run(self, stream, event=None):
        """Run a stream, up to an event."""
        queue = self.queues[stream]
        try:
            while queue and not (event and event.done):
                queue.popleft()()
        except RuntimeError:
            # After a fault CUDA does nothing more; memory that copies were to fill may be gone.
            self.queues.clear()
            raise

    def event(self, stream):
        assert current.recording is None, "the event would become a part of the graph"
        late = LateEvent(self, stream)
        self.queues[stream].append(lambda: setattr(late, "done", True))
        return late

    def wait_event(self, stream, event):
        self.queues[stream].append(event.reach)

    def is_done(self, event):
        return event.done

    def synchronize_event(self, event):
        """``idle``: the stream has nothing left to do when the host goes on."""
        self.log["wait"] += 1
        event.reach()
        self.log["idle"] += not event.api.queues[event.stream]

    def synchronize(self, stream):
        self.log["synchronize"] += 1
        self._run(stream)

    # --- copies ---

    def copy_in(self, target, source, count, stream):
        self.log["copy_in"] += 1
        assert current.recording is None, "a replay would read the host's memory later"
        if self._is_pinned(source):
            self.queues[stream].append(lambda: SimApi.copy_in(self, target, source, count, 0))
            return
        if count > SMALL:
            raise AssertionError("large copies from pageable memory make the caller wait")
        kept = ctypes.string_at(source, count)
        self.queues[stream].append(
            lambda: ctypes.memmove(self.memory.view(target, count).ctypes.data, kept, count)
        )

    def copy_out(self, target, source, count, stream):
        self.log["copy_out"] += 1
        self.queues[stream].append(lambda: SimApi.copy_out(self, target, source, count, 0))
        if not self._is_pinned(target):
            self._run(stream)

    def copy_within(self, target, source, count, stream):
        self.queues[stream].append(
            lambda: SimApi.copy_in(
                self, target, self.memory.view(source, count, False).ctypes.data, count, 0
            )
        )

    def copy_peer(self, target, other, source, count, stream):
        self.log["copy_peer"] += 1
        self._check_current()
        self.queues[stream].append(
            lambda: ctypes.memmove(
                self.memory.view(target, count).ctypes.data,
                other.memory.view(source, count, False).ctypes.data,
                count,
            )
        )

    def clear(self, target, count, stream):
        self.queues[stream].append(lambda: SimApi.clear(self, target, count, 0))

    # --- work ---

    def _submit(self, stream, work):
        self.queues[stream].append(work)

    def record(self, stream, work):
        self.log["record"] += 1
        return LateGraph(super().record(stream, work), self.log)

    def bind(self, *args):
        bound = super().bind(*args)

        def launch():
            self.log["launch"] += 1
            bound()

        return launch

    @contextmanager
    def library(self, stream):
        """NumPy works at once, so what was launched before has to be done."""
        self._run(stream)
        yield

    def gemm(self, gemm, stream):
        self.log["gemm"] += 1
        return super().gemm(gemm, stream)


def shifted(device, array, dtype, count):
    """The array on the device, ``count`` elements behind a multiple of 16 bytes."""
    flat = np.concatenate([np.zeros(count), array.ravel()])
    whole = jnp.asarray(flat, dtype).block_until_ready()._data
    address = whole.address + count * whole.dtype.itemsize
    data = DeviceArray(whole.device, array.shape, whole.dtype, address, whole.block)
    assert bool(data.address % 16) == bool(count)
    return Array(data, ShapedArray(array.shape, jnp.dtype(dtype)), device)
