"""``GpuApi`` of the simulated GPU: memory in NumPy, and ``ptxsim``, which interprets kernels' PTX.

It is for tests and debugging without a GPU. The driver, programs and kernels are those of a real
GPU. Errors that are silent on a GPU, such as loads out of bounds, raise.

Tests: tests/targets/cuda_sim/test_cuda_sim.py.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.base.recording import clock
from gpuflow.core.epilogues import Epilogue, aux_type, with_epilogue
from gpuflow.runtime.device_array import DeviceArray
from gpuflow.targets.cuda.codegen.build import KernelArrayAccess
from gpuflow.targets.cuda.codegen.cached_builds import DEFAULT_COMPUTE_CAPABILITY
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.library.dnn.calls import DnnLibrary
from gpuflow.targets.cuda.library.launch_binding import most_shared_bytes
from gpuflow.targets.cuda.runtime.driver.api import (
    BuiltKernel,
    Epilogues,
    Gemm,
    LibraryWork,
    LoadedKernel,
)
from gpuflow.targets.cuda.runtime.driver.driver import GpuDriver
from gpuflow.targets.cuda_sim.isolated_kernel import IsolatedKernel
from gpuflow.targets.cuda_sim.recording import SimGraph, current, recorded_work
from gpuflow.targets.cuda_sim.sim_kernel import SimKernel
from ptxsim.checks import THOROUGH, Checks
from ptxsim.kernel import PtxModule
from ptxsim.memory import DeviceMemory
from ptxsim.rounding import tf32_of
from ptxsim.types import F32

PROCESSOR_COUNT = 2  # few multiprocessors, so that grids are small
USUAL_CHECKS = Checks(uninitialized_global=True)


class _SimEpilogues:
    """Offers all epilogues; ``SimApi.gemm_with`` computes them in NumPy."""

    def supports(self, epilogue: Epilogue, dtype: np.dtype, reduced: bool) -> bool:
        """Whether cublasLt supports the dtype."""
        del epilogue, reduced
        return dtype.name in ("float32", "float16", "bfloat16")


SIM_EPILOGUES = _SimEpilogues()


class SimApi:
    """One simulated GPU; calls return after their work is done.

    Each has separate memory and, as CUDA, rejects work if another device is the current one.
    Methods are those of ``GpuApi``.

    Args:
        capacity: size of device memory in bytes; None: as much as can be reserved.

    Attributes:
        memory: the device memory.
        checks: the checks that launches make.
        loaded: kernels that are loaded; ``unload`` removes them.
    """

    name = "the simulated GPU"
    compute_capability: tuple[int, int] = DEFAULT_COMPUTE_CAPABILITY
    processors: int = PROCESSOR_COUNT
    xp: Any = np
    synchronous = True
    dnn_library: DnnLibrary | None = None  # tests set one
    planning_library: DnnLibrary | None = None
    epilogues: Epilogues | None = SIM_EPILOGUES

    def __init__(self, capacity: int | None = None) -> None:
        self.memory = DeviceMemory(capacity)
        self.memory.track_writes()
        self.checks = THOROUGH if config.environment.sim_check else USUAL_CHECKS
        self.memory_bytes = self.memory.capacity
        self.loaded: set[SimKernel] = set()
        self._streams = 0
        self._order = threading.RLock()

    def activate(self) -> None:
        """Make this the current device of the thread."""
        current.device = self

    def visit(self) -> None:
        """Do nothing: events need no current device."""

    def _check_current(self) -> None:
        if current.device is not self:
            raise RuntimeError(
                "[cuda_sim] work must be given to the current device; another one is. "
                "Fix: activate the device first."
            )

    def stream(self) -> int:
        """A new stream id."""
        self._streams += 1
        return self._streams

    def pool(self) -> SimPool:
        """A pool that does not cache freed memory, so that use after free is detected."""
        return SimPool(self.memory, self._check_current)

    def pinned(self, count: int) -> np.ndarray:
        """Ordinary host memory."""
        return np.empty(count, np.uint8)

    def event(self, stream: int) -> None:
        """Return None: all work is done."""
        del stream

    def timed_event(self, stream: int) -> SimpleNamespace:
        """An event with the current time."""
        event = SimpleNamespace()
        self._submit(stream, lambda: event.__setattr__("time", clock()))
        return event

    def nanoseconds(self, first: SimpleNamespace, second: SimpleNamespace) -> int:
        """The time between two events by the host's clock."""
        return second.time - first.time

    def wait_event(self, stream: int, event: None) -> None:
        """Do nothing: all work is done."""

    def is_done(self, event: None) -> bool:
        """Return True: all work is done."""
        return True

    def synchronize_event(self, event: None) -> None:
        """Do nothing: all work is done."""

    def synchronize(self, stream: int) -> None:
        """Do nothing: all work is done."""

    def copy_in(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy bytes to device memory."""
        del stream
        assert current.recording is None, "a replay would read the host's memory later"
        ctypes.memmove(self.memory.view(target, count).ctypes.data, source, count)

    def copy_out(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy bytes to host memory."""
        del stream
        ctypes.memmove(target, self.memory.view(source, count, writes=False).ctypes.data, count)

    def copy_within(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy bytes in device memory."""
        self.copy_in(target, self.memory.view(source, count, False).ctypes.data, count, stream)

    def copy_peer(self, target: int, other: SimApi, source: int, count: int, stream: int) -> None:
        """Copy bytes from another device's memory."""
        self._check_current()
        self.copy_in(target, other.memory.view(source, count, False).ctypes.data, count, stream)

    def clear(self, target: int, count: int, stream: int) -> None:
        """Write zeros."""
        del stream
        self.memory.view(target, count)[:] = 0

    def load(self, kernel: BuiltKernel) -> LoadedKernel:
        """The kernel's PTX, parsed."""
        self._check_current()
        entry = PtxModule(kernel.built.ptx).entry(kernel.built.entry)
        loaded = SimKernel(entry, most_shared_bytes(self.compute_capability))
        self.loaded.add(loaded)
        return LoadedKernel(loaded, loaded)

    def unload(self, module: SimKernel) -> None:
        """Unload a kernel: later launches of it are errors."""
        self.loaded.remove(module)

    def allow_shared(self, kernel: LoadedKernel, count: int) -> None:
        """As ``cuFuncSetAttribute``."""
        kernel.function.allow_shared(count)

    def bind(
        self,
        kernel: LoadedKernel,
        grid: Dim,
        block: Dim,
        slots: array[int],
        stream: int,
        shared_bytes: int = 0,
        array_accesses: Sequence[KernelArrayAccess] | None = None,
    ) -> Callable[[], None]:
        """Return a launch of the whole grid; ``slots`` are read when it is called.

        Args:
            kernel: a kernel that ``load`` returned.
            grid, block: numbers of blocks and threads.
            slots: the argument block, a 64-bit value per parameter.
            stream: the stream of the launch.
            shared_bytes: dynamic shared memory of a block.
            array_accesses: the arrays of a user's kernel, which ``IsolatedKernel`` then checks;
                None: a kernel of gpuflow.
        """

        def run() -> None:
            self._check_current()
            sim_kernel: SimKernel = kernel.function
            sim_kernel.check_shared(shared_bytes)
            parameters = np.frombuffer(slots, np.uint64).copy()  # CUDA reads parameters at the call
            launch = partial(
                self._launch, sim_kernel, grid, block, parameters, shared_bytes, array_accesses
            )
            self._enqueue(stream, launch)

        return run

    def _launch(
        self,
        sim_kernel: SimKernel,
        grid: Dim,
        block: Dim,
        slots: np.ndarray,
        shared_bytes: int,
        array_accesses: Sequence[KernelArrayAccess] | None,
    ) -> None:
        """Run a launch; as on a GPU, an enqueued launch does not keep its module loaded."""
        name = sim_kernel.kernel.program.name
        assert sim_kernel in self.loaded, f"the module of {name} was unloaded before it ran"
        launched_kernel: Any = sim_kernel.kernel
        if array_accesses is not None:
            launched_kernel = IsolatedKernel(sim_kernel.kernel, array_accesses)
        launched_kernel.launch(grid, block, slots, self.memory, shared_bytes, self.checks)

    def _enqueue(self, stream: int, work: Callable[[], object]) -> None:
        """Submit work to a stream, or add it to the thread's current recording."""
        if current.recording is not None:
            current.recording.append(work)
        else:
            self._submit(stream, work)

    def _submit(self, stream: int, work: Callable[[], object]) -> None:
        """Run work at once. Threads take turns, as kernels share scratch memory and counters."""
        del stream
        with self._order:
            work()

    def record(self, stream: int, work: Sequence[Callable[[], Any] | LibraryWork]) -> SimGraph:
        """Record the operations on the stream that the work would do."""
        calls = [partial(one.run, stream) if isinstance(one, LibraryWork) else one for one in work]
        return SimGraph(
            [recorded_work(one) for one in calls], lambda one: self._submit(stream, one)
        )

    @contextmanager
    def library(self, stream: int) -> Iterator[None]:
        """Do nothing: NumPy has no streams."""
        del stream
        yield

    def view(self, data: DeviceArray) -> np.ndarray:
        """A NumPy array on device memory."""
        if data.size == 0:
            return np.empty(data.shape, data.dtype)
        low, high = _byte_range(data)
        memory: Any = self.memory.view(data.address + low, high - low)
        return np.ndarray(data.shape, data.dtype, memory, -low, data.byte_strides)

    def gemm(self, gemm: Gemm, stream: int) -> Callable[..., None]:
        """Bind a GEMM in NumPy, which accumulates in float32 or a wider dtype of the operands.

        If allowed, operands are rounded to TF32, as tensor cores do.
        """
        left_strides = _matrix_strides(gemm.left_transposed, gemm.left_leading, gemm.left_step)
        right_strides = _matrix_strides(gemm.right_transposed, gemm.right_leading, gemm.right_step)
        out_strides = (gemm.out_step, gemm.n, 1)
        accumulator_dtype = np.promote_types(gemm.dtype, np.float32)

        def work(left: int, right: int, target: int) -> None:
            a = self._matrices(left, gemm.dtype, (gemm.count, gemm.m, gemm.k), left_strides)
            b = self._matrices(right, gemm.dtype, (gemm.count, gemm.k, gemm.n), right_strides)
            c = self._matrices(target, gemm.out_dtype, (gemm.count, gemm.m, gemm.n), out_strides)
            with np.errstate(all="ignore"):
                a, b = (_as_multiplicand(x, accumulator_dtype, gemm.reduced) for x in (a, b))
                c[...] = np.matmul(a, b).astype(gemm.out_dtype)

        def multiply(left: int, right: int, target: int, recorded: int = stream) -> None:
            self._check_current()
            self._enqueue(recorded, lambda: work(left, right, target))

        return multiply

    def gemm_with(self, gemm: Gemm, epilogue: Epilogue, stream: int) -> Callable[..., None]:
        """Bind a GEMM with an epilogue in NumPy, in float32."""
        left_strides = _matrix_strides(gemm.left_transposed, gemm.left_leading, 0)
        right_strides = _matrix_strides(gemm.right_transposed, gemm.right_leading, 0)
        m, n, dtype = gemm.m, gemm.n, gemm.dtype

        def work(left: int, right: int, target: int, bias: int, aux: int) -> None:
            (a,) = _as_multiplicand(
                self._matrices(left, dtype, (1, m, gemm.k), left_strides), F32, gemm.reduced
            )
            (b,) = _as_multiplicand(
                self._matrices(right, dtype, (1, gemm.k, n), right_strides), F32, gemm.reduced
            )
            bias_array = self._flat(bias, dtype, n) if epilogue.bias else None
            aux_array = None
            if epilogue.keeps or epilogue.gradient:
                (rows, columns), kind = aux_type(epilogue, m, n, dtype)
                aux_array = self._flat(aux, kind, rows * columns).reshape(rows, columns)
            product = a @ b
            with np.errstate(all="ignore"):
                if epilogue.gradient:
                    result, sums = with_epilogue(np, epilogue, product, aux=aux_array)
                    if bias_array is not None:
                        bias_array[...] = sums.astype(dtype)
                else:
                    result, extra = with_epilogue(np, epilogue, product, bias_array)
                    if aux_array is not None:
                        aux_array[...] = extra.astype(aux_array.dtype)
            self._flat(target, dtype, m * n).reshape(m, n)[...] = result.astype(dtype)

        def multiply(
            left: int, right: int, target: int, bias: int, aux: int, recorded: int = stream
        ) -> None:
            self._check_current()
            self._enqueue(recorded, lambda: work(left, right, target, bias, aux))

        return multiply

    def _flat(self, address: int, dtype: np.dtype, count: int) -> np.ndarray:
        """A vector of ``count`` elements in device memory."""
        memory: Any = self.memory.view(address, count * dtype.itemsize)
        return np.ndarray((count,), dtype, memory)

    def _matrices(
        self,
        address: int,
        dtype: np.dtype,
        shape: tuple[int, ...],
        element_strides: tuple[int, ...],
    ) -> np.ndarray:
        """A strided array in device memory; strides count elements and are not negative."""
        strides = tuple(step * dtype.itemsize for step in element_strides)
        last_offset = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        memory: Any = self.memory.view(address, last_offset + dtype.itemsize)
        return np.ndarray(shape, dtype, memory, 0, strides)

    def free_library_memory(self) -> None:
        """Do nothing: NumPy caches nothing."""

    def free_bytes(self) -> int:
        """The memory that is not allocated."""
        return self.memory.capacity - self.memory.used


class SimPool:
    """A pool whose allocations are freed at once when nothing refers to them."""

    def __init__(self, memory: DeviceMemory, check: Callable[[], None]) -> None:
        self._memory, self._check = memory, check

    def malloc(self, count: int) -> _Allocation:
        """Allocate ``count`` bytes."""
        self._check()
        return _Allocation(self._memory, count)

    def free_all_blocks(self) -> None:
        """Do nothing: nothing is cached."""


class _Allocation:
    """An allocation of device memory, freed when this object dies."""

    def __init__(self, memory: DeviceMemory, count: int) -> None:
        self.ptr = memory.allocate(count)
        weakref.finalize(self, memory.free, self.ptr).atexit = False


def _matrix_strides(transposed: bool, leading: int, step: int) -> tuple[int, ...]:
    """Strides in elements along matrices of a batch, rows and columns."""
    return (step, 1, leading) if transposed else (step, leading, 1)


def _as_multiplicand(x: np.ndarray, accumulator_dtype: np.dtype, reduced: bool) -> np.ndarray:
    """Matrices in the accumulator's dtype; if ``reduced``, rounded to TF32 per component.

    With ``reduced``, that dtype must consist of float32: complex64 or float32.
    """
    x = np.ascontiguousarray(x, accumulator_dtype)
    return tf32_of(x.view(F32), "rna").view(accumulator_dtype) if reduced else x


def _byte_range(data: DeviceArray) -> tuple[int, int]:
    """First byte of a nonempty array, and its exclusive end, relative to its address."""
    spans = [(n - 1) * s for n, s in zip(data.shape, data.byte_strides, strict=True)]
    low, high = sum(min(span, 0) for span in spans), sum(max(span, 0) for span in spans)
    return low, high + data.dtype.itemsize


@cache
def sim_driver(number: int) -> GpuDriver:
    """The driver of simulated device ``number``."""
    del number
    return GpuDriver(SimApi())
