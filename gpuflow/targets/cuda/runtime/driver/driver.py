"""The driver of GPUs, real and simulated: arrays, launches and programs on a ``GpuApi``.

A device has one compute stream. Kernels and libraries run on it in the order of calls, which return
immediately. Large copies from and to the host run concurrently on another stream.

Tests: tests/targets/cuda/test_cuda_driver.py, tests/targets/cuda/test_cuda_device.py.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from operator import attrgetter
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.errors import CommunicationError
from gpuflow.base.recording import span
from gpuflow.base.util import SourceLocation
from gpuflow.compiler.planning.plan import Plan
from gpuflow.compiler.target import Target
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.communicator import DRIVERS, dispatch_lock, served
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device
from gpuflow.runtime.device_array import DeviceArray, described, strided
from gpuflow.runtime.driver import FlagReader
from gpuflow.runtime.holders import Holders
from gpuflow.runtime.memory import arenas
from gpuflow.targets.cuda.codegen.build import CudaObject, KernelArrayAccess
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.library.target import chosen_gpu_target
from gpuflow.targets.cuda.runtime.driver.api import BuiltKernel, GpuApi
from gpuflow.targets.cuda.runtime.driver.arena import DeviceArena
from gpuflow.targets.cuda.runtime.driver.device_memory import DeviceAllocator, in_units
from gpuflow.targets.cuda.runtime.driver.faults import GpuFault, StatusError, fault, is_fault
from gpuflow.targets.cuda.runtime.driver.flags import Flags
from gpuflow.targets.cuda.runtime.driver.loaded_kernels import LoadedKernels
from gpuflow.targets.cuda.runtime.driver.side_stream import SideWork
from gpuflow.targets.cuda.runtime.driver.transfers import SMALL, Transfers
from gpuflow.targets.cuda.runtime.program.eager_ops import OneOpPrograms
from gpuflow.targets.cuda.runtime.program.program import GpuProgram

_BYTE, _COUNTER = np.dtype(np.uint8), np.dtype(np.uint32)
_MAX_SCALARS = 1024  # cached device scalars
_MAX_RECENT = 16  # recent programs that an error names


class GpuDriver:
    """The driver of one GPU, which implements ``Driver`` and ``GpuDevice``.

    Args:
        api: the device.
        preallocate: fraction of device memory to allocate at once, and to retain.

    Attributes:
        compute: the compute stream.
        transfers: copies between host and device.
        recent_programs: summaries of the last programs since a wait, for errors.
        xp: the functions of an array module that printed drivers of programs use.
        memory, allocate, host_calls, broken, side_work: see ``GpuDevice``.
    """

    strided: Callable[..., Any] = staticmethod(strided)

    def __init__(self, api: GpuApi, preallocate: float = 0.0) -> None:
        self.api = api
        self.compute_capability, self.processors = api.compute_capability, api.processors
        api.activate()
        self.compute = api.stream()
        self.memory = DeviceAllocator(api, self._forget_idle)
        # Allocates memory that the compute stream writes first. The device must be current.
        self.allocate = self.memory.allocator(self.compute)
        self.transfers = Transfers(api, self.compute)
        self._flags = Flags(api, self.compute)
        self.host_calls: dict[str, str] = {}
        self.broken: str | None = None
        self.side_work: list[SideWork] = []
        self.recent_programs: deque[str] = deque(maxlen=_MAX_RECENT)
        self._one_op_programs = OneOpPrograms(self)
        self._holders = Holders(attrgetter("block"), partial(self.empty, (1,), _BYTE))
        self._idle: list[DeviceArena] = []
        self._programs: WeakSet[GpuProgram] = WeakSet()
        self._kernels = LoadedKernels(api, self.compute)
        self._scalars: OrderedDict[Any, DeviceArray] = OrderedDict()
        self._scratch = self.empty((0,), _BYTE)
        self._counters = self.empty((0,), _COUNTER)
        # Former scratch memory and counters, which must live as programs contain their addresses.
        self._outgrown_buffers: list[Any] = []
        self._lock = threading.RLock()
        # For program_arrays.py and inner_programs.py.
        self.xp: Any = SimpleNamespace(copyto=self.copy_into, empty=self.empty)
        if preallocate:
            self._preallocate(preallocate)

    def _preallocate(self, fraction: float) -> None:
        """Make the pool of the compute stream allocate and retain a fraction of device memory.

        Raises:
            MemoryError: if less is free.
        """
        api, count = self.api, int(fraction * self.api.memory_bytes)
        try:
            self.memory.pool_of(self.compute).malloc(count)  # freed to the pool at once
        except MemoryError as error:
            raise MemoryError(
                f"[memory] {api.name} must have enough free memory for the share that is allocated "
                f"at the start, {fraction:g} or {in_units(count)}; got "
                f"{in_units(api.free_bytes())} free of {in_units(api.memory_bytes)}. Fix: end "
                "other programs that use the GPU, "
                "or set GPUFLOW_PREALLOCATE to a smaller share, or to 0."
            ) from error

    # --- arrays ---

    @property
    def target(self) -> Target:
        """The compilation target for this thread's settings."""
        return chosen_gpu_target(self.api.planning_library, self.api.epilogues)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        """Allocate an uninitialized array, whose memory is freed when no array uses it."""
        self.api.activate()
        block = self.allocate(prod(shape) * dtype.itemsize, partial(described, shape, dtype))
        return DeviceArray(self, shape, dtype, block.address, block)

    def from_host(self, array: np.ndarray) -> DeviceArray:
        """Copy a host array to device memory; small scalars are cached."""
        if array.size == 1 and array.nbytes <= 16:
            return self._scalar(array)
        return self._from_host(np.ascontiguousarray(array).reshape(array.shape))

    def _from_host(self, array: np.ndarray) -> DeviceArray:
        with span("copies", "to the device", bytes=array.nbytes):
            try:
                return self._copied(array)
            except RuntimeError as error:
                raise self.fault_of(error) from error

    def _copied(self, array: np.ndarray) -> DeviceArray:
        if array.nbytes <= SMALL:
            data = self.empty(array.shape, array.dtype)
        else:
            self.api.activate()
            stream = self.transfers.stream
            what = partial(described, array.shape, array.dtype)
            block = self.memory.allocate(array.nbytes, stream, what)
            self.memory.record_stream(block, self.compute)
            data = DeviceArray(self, array.shape, array.dtype, block.address, block)
        self.transfers.to_device(data.address, array)
        return data

    def _scalar(self, array: np.ndarray) -> DeviceArray:
        """A device scalar, cached: the same ones recur, and must never be written."""
        key = (array.shape, array.dtype, array.tobytes())
        with self._lock:
            cached = self._scalars.get(key)
            if cached is None:
                cached = self._scalars[key] = self._from_host(array)
                if len(self._scalars) > _MAX_SCALARS:
                    self._scalars.popitem(last=False)
        return cached

    def to_host(self, data: DeviceArray) -> np.ndarray:
        """Copy values to the host; waits until they are computed."""
        self.api.activate()
        if not data.is_row_major:
            data = self.copy(data)
        result = np.empty(data.shape, data.dtype)
        try:
            with span("copies", "to the host", bytes=data.nbytes):
                self.transfers.to_host(result, data.address)
        except RuntimeError as error:
            raise self.fault_of(error) from error
        self._check()
        return result

    def from_driver(self, data: Any, source: Any) -> DeviceArray:
        """Copy an array of another driver; between GPUs without waiting for either.

        While a program over several devices calls a host function, which synchronizes both, the
        copy goes through the host.
        """
        is_peer = isinstance(source, GpuDriver) and type(source.api) is type(self.api)
        if not is_peer or data.nbytes == 0 or served(DRIVERS) is not None:
            return self.from_host(source.to_host(data))
        source._check()
        if not data.is_row_major:
            data = source.copy(data)
        try:
            with span("copies", "between devices", bytes=data.nbytes), dispatch_lock():
                return self._from_peer(data, source)
        except RuntimeError as error:
            raise source.fault_of(self.fault_of(error)) from error

    def _from_peer(self, data: DeviceArray, source: GpuDriver) -> DeviceArray:
        """Copy on the stream of large copies, ordered by events of both compute streams."""
        self.api.activate()
        stream = self.transfers.stream
        what = partial(described, data.shape, data.dtype)
        block = self.memory.allocate(data.nbytes, stream, what)
        self.memory.record_stream(block, self.compute)
        self.api.wait_event(stream, source.api.event(source.compute))
        self.api.copy_peer(block.address, source.api, data.address, data.nbytes, stream)
        done = self.api.event(stream)
        self.api.wait_event(self.compute, done)
        # Later writes to the source wait for the copy, as it may be freed or donated.
        source.api.wait_event(source.compute, done)
        return DeviceArray(self, data.shape, data.dtype, block.address, block)

    def flag_reader(self) -> FlagReader:
        """A reader of bools in device memory, which does not wait for kernels launched later."""
        begin = self._flags.reader().begin

        def start(data: DeviceArray) -> Callable[[], bool]:
            read = begin(data.address)

            def waited() -> bool:
                try:
                    flag = read()
                except RuntimeError as error:
                    raise self.fault_of(error) from error
                self._check()
                return flag

            return waited

        return start

    def copy(self, data: DeviceArray) -> DeviceArray:
        """A row-major copy."""
        result = self.empty(data.shape, data.dtype)
        self.copy_into(result, data)
        return result

    def copy_into(self, target: DeviceArray, source: DeviceArray) -> None:
        """Copy elements between arrays of equal shape and dtype, and any strides."""
        assert target.shape == source.shape and target.dtype == source.dtype, (target, source)
        if target.size == 0:
            return
        if target.is_row_major and source.is_row_major:
            self.api.copy_within(target.address, source.address, target.nbytes, self.compute)
            return
        with self.api.library(self.compute):
            self.api.view(_as_unsigned(target))[...] = self.api.view(_as_unsigned(source))

    def wait(self, data: DeviceArray) -> None:
        """Wait until the values are computed."""
        del data  # one stream computes everything
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until all launched work is done.

        Raises:
            GpuFault: if a kernel failed.
            CommunicationError: if a collective was aborted; later results are invalid.
        """
        self.api.activate()
        try:
            self.api.synchronize(self.compute)
        except RuntimeError as error:
            raise self.fault_of(error) from error
        self._check()
        self.recent_programs.clear()

    def _check(self) -> None:
        """Raise if results are invalid; to be called after waits."""
        if self.broken is not None:
            raise CommunicationError(self.broken)

    def result(self, value: Any, aval: ShapedArray, operands: Sequence[Any]) -> DeviceArray:
        """Copy the result of a host computation to device memory."""
        del operands
        return self.from_host(np.asarray(value, storage_dtype(aval.dtype)))

    def made_at(self, data: DeviceArray) -> SourceLocation | None:
        """The user's source line that allocated an array, if it is large."""
        return self.memory.allocation_source(data.address)

    def is_shared(self, arrays: list[DeviceArray], k: int) -> bool:
        """Whether others than one Array hold operand k's memory, and would see it change."""
        return self._holders.is_shared(arrays, k)

    # --- programs ---

    def program(self, plan: Plan, out_avals: Sequence[ShapedArray]) -> GpuProgram:
        """Create the program of a plan."""
        program = GpuProgram(plan, out_avals, self)
        with self._lock:  # other threads may iterate over them
            self._programs.add(program)
        return program

    def evaluate(
        self,
        primitive: Any,
        avals: Sequence[ShapedArray],
        params: dict[str, Any],
        arrays: list[Any],
        device: Device,
    ) -> list[Array]:
        """Run one op as a program of one equation."""
        return self._one_op_programs.run(primitive, avals, params, arrays, device)

    def program_of_op(
        self, primitive: Any, avals: Sequence[ShapedArray], params: dict[str, Any]
    ) -> None:
        """Return None: ``evaluate`` compiles all programs of single ops."""

    def acquire(self, program: GpuProgram) -> DeviceArena:
        """An idle arena for a program to run in; the caller must ``release`` it."""
        self.api.activate()
        self.recent_programs.append(program.summary)
        try:
            return self._idle.pop()
        except IndexError:
            arena = DeviceArena(self)
            arenas.track(arena)  # so that drivers are printed again if tracing starts or stops
            return arena

    def release(self, arena: DeviceArena) -> None:
        """Return an arena to the idle ones."""
        self._idle.append(arena)

    def _forget_idle(self) -> None:
        """Free idle arenas, drivers of programs that are bound to them, and cached scalars."""
        idle, self._idle = set(self._idle), []
        with self._lock:
            programs = list(self._programs)
            self._scalars.clear()
        for program in programs:
            program.forget(idle)

    # --- launches ---

    def loaded_kernels(self) -> set[CudaObject]:
        """The kernels that are loaded on the device."""
        return self._kernels.built()

    def upload(self, data: DeviceArray, slots: array[int]) -> None:
        """Copy 8-byte slots to device memory, in the order of launches."""
        address, count = slots.buffer_info()
        self.api.copy_in(data.address, address, 8 * count, self.compute)

    def prepare(
        self,
        kernel: BuiltKernel,
        grid: Dim,
        block: Dim,
        slots: array[int],
        shared_bytes: int = 0,
        array_accesses: Sequence[KernelArrayAccess] | None = None,
    ) -> Callable[[], None]:
        """As ``GpuDevice.prepare``; with GPUFLOW_CHECK, launches wait and report failures."""
        launch = self._kernels.bind(kernel, grid, block, slots, shared_bytes, array_accesses)
        if self.api.synchronous or not config.environment.check:
            return launch
        return self._checked(launch, kernel.built.entry)

    def _checked(self, launch: Callable[[], None], entry: str) -> Callable[[], None]:
        """The launch followed by a wait, so that an error names the kernel that failed."""

        def run() -> None:
            try:
                launch()
                self.api.synchronize(self.compute)
            except RuntimeError as error:
                raise fault(
                    error, [entry, *list(self.recent_programs)[-1:]], exactly=True
                ) from error

        return run

    def free_unused(self) -> None:
        """Return memory that no array uses to CUDA, and unload unused kernels."""
        self.memory.free_unused()
        self.api.activate()
        self._kernels.unload_unused()

    def fault_of(self, error: BaseException) -> BaseException:
        """The error to raise instead of ``error``: a GpuFault if a kernel has failed."""
        if isinstance(error, GpuFault):
            return error
        if isinstance(error, StatusError):  # has no details, which a wait gives
            try:
                self.api.synchronize(self.compute)
            except RuntimeError as cause:
                error = cause
        return fault(error, list(self.recent_programs)) if is_fault(error) else error

    def scratch(self, count: int) -> int:
        """The address of scratch memory, which all launches share as they run in order."""
        with self._lock:
            if self._scratch.nbytes < count:
                self._outgrown_buffers.append(self._scratch)
                self._scratch = self.empty((count,), _BYTE)
            return self._scratch.address

    def counters(self, count: int) -> int:
        """The address of zeroed counters, which all launches share as each resets them to 0."""
        with self._lock:
            if self._counters.size < count:
                self._outgrown_buffers.append(self._counters)
                self._counters = self.empty((count,), _COUNTER)
                self.api.clear(self._counters.address, self._counters.nbytes, self.compute)
            return self._counters.address

    def memory_stats(self) -> dict[str, int]:
        """Memory of arrays and temporaries, as ``Device.memory_stats`` describes."""
        return {
            "num_allocs": self.memory.count,
            "bytes_in_use": self.memory.used,
            "peak_bytes_in_use": self.memory.peak,
            "largest_alloc_size": self.memory.largest,
            "bytes_limit": self.api.memory_bytes,
        }


def _as_unsigned(data: DeviceArray) -> DeviceArray:
    """The array viewed as unsigned integers of its itemsize."""
    size = data.dtype.itemsize
    kind = np.dtype(np.complex128) if size == 16 else np.dtype(f"u{size}")
    return DeviceArray(data.device, data.shape, kind, data.address, data.block, data.strides)
