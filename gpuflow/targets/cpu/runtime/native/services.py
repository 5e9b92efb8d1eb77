"""Services for writers of native programs: kernels, functions of the runtime, thread counts.

Tests: tests/targets/cpu/test_native_builds.py, tests/targets/cpu/test_cpu_pool.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.base.undisturbed import start_call
from gpuflow.kir.nodes import Kernel
from gpuflow.kir.walk import statements
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu.codegen.build import LoadedKernel
from gpuflow.targets.cpu.codegen.loops.text import LoopSource
from gpuflow.targets.cpu.runtime.kernels import compile_cpu, compile_text, load_stored
from gpuflow.targets.cpu.runtime.native.object_code import LoadedModule
from gpuflow.targets.cpu.runtime.native.pool import ScratchSlots, pool, pool_exists, pool_threads

# A launch with fewer points than this runs on the calling thread: waking a worker costs more.
MIN_PARALLEL = 1 << 15
CHUNKS_PER_THREAD = 4  # more than 1, so that a delayed thread leaves its share to the others


class Build(NamedTuple):
    """A function of the runtime that a program will call, so that it is built in advance.

    ``builder(*arguments)`` builds it, and must cache the result. Any thread may call it.
    """

    builder: Callable[..., object]
    arguments: tuple[Hashable, ...] = ()

    def __call__(self) -> None:
        self.builder(*self.arguments)
        _built.add(self)


_built: set[Build] = set()
Buildable = Kernel | Build  # code that a program runs, and that can be built in advance


class NativeServices:
    """Loads the code of native programs, and determines their chunks.

    Args:
        is_serial: each program runs on one thread, because it is the body of a loop whose
            iterations threads share.
    """

    def __init__(self, is_serial: bool = False) -> None:
        self._is_serial = is_serial

    @property
    def threads(self) -> int:
        """Number of threads that a program may use."""
        return 1 if self._is_serial else pool_threads()

    def load(self, kernel: Kernel) -> LoadedKernel:
        """Return a kernel in memory; builds it if needed."""
        return compile_cpu(kernel, kernel_cache(), config.environment.check)

    def prepare(self, code: Sequence[Buildable]) -> None:
        """Load the code of a program, and build missing code on all cores at once.

        Raises:
            Exception: if a build fails; builds that have not started are dropped.
        """
        cache, check = kernel_cache(), config.environment.check
        builds = dict.fromkeys(item for item in code if isinstance(item, Build))
        kernels = [item for item in code if not isinstance(item, Build)]
        kernels = [kernel for kernel in kernels if not load_stored(kernel, cache, check)]
        # In ascending order of size: threads pop from the end, so that large kernels start first.
        ordered = sorted(kernels, key=lambda kernel: sum(1 for _ in statements(kernel.body)))
        pending: list[Callable[[], object]] = [partial(self.load, kernel) for kernel in ordered]
        pending += [build for build in builds if build not in _built]
        if pending and not pool_exists():
            pending.append(pool)
        threads = min(len(pending), config.environment.num_threads)

        def build_pending() -> None:
            while True:
                try:
                    load = pending.pop()
                except IndexError:
                    return
                load()

        if threads < 2:
            build_pending()
            return
        try:
            for wait in [start_call(build_pending) for _ in range(threads)]:
                wait()
        finally:
            pending.clear()

    @property
    def runtime(self) -> LoadedModule:
        """The core module of the runtime; starts the workers of its pool."""
        thread_pool = pool()
        thread_pool.start()
        return thread_pool.runtime

    def chunk(self, extent: int, points: int, iterations: int = 1) -> int:
        """Return the number of indices of the split axis that a thread takes at a time.

        It is at least 1, and the whole extent if one thread should do all of the work.

        Args:
            extent: size of the split axis.
            points: number of points of all axes.
            iterations: approximate trip count of loops inside a point.
        """
        if points * iterations < MIN_PARALLEL or self.threads == 1:
            return max(extent, 1)
        chunks = self.threads * CHUNKS_PER_THREAD
        chunk = -(-extent // chunks)
        # A multiple of the most points of a vector loop's iteration (``calls.VECTOR_POINTS``):
        # which elements the scalar remainder loop computes must not depend on the number of
        # threads.
        multiple = 1024 if chunk >= 1024 else 64 if points <= 64 * extent else 1
        return -(-chunk // multiple) * multiple

    def slots(self, slot_bytes: int) -> ScratchSlots:
        """Return scratch memory of threads, as ``ThreadPool.slots``."""
        return pool().slots(slot_bytes)


def load_text(source: LoopSource) -> LoadedKernel:
    """Load a loop program that was written without KernelIR."""
    return compile_text(source, kernel_cache())


@cache
def native_services(is_serial: bool = False) -> NativeServices:
    """The services of the process; ``is_serial`` as for the class."""
    return NativeServices(is_serial)
