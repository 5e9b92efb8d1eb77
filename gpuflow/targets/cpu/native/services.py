"""What native programs of the CPU call and launch: kernels, products, convolutions, threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.lazy import LazyModule
from gpuflow.compiler.planning.plan import CallStep, KernelStep, kernels_of
from gpuflow.core.lowering import Convolution, Launches, Library, Product
from gpuflow.core.views import View
from gpuflow.kir.nodes import Kernel
from gpuflow.kir.walk import statements
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cpu.codegen.build import LoadedKernel
from gpuflow.targets.cpu.kernels import compile_cpu, load_stored, print_cpu
from gpuflow.targets.cpu.native.object_code import NativeRuntime, load_native, module_with
from gpuflow.targets.cpu.native.pool import pool
from gpuflow.targets.cpu.providers.blas import BLAS_LETTERS, private_blas
from gpuflow.targets.cpu.providers.convolutions import (
    ConvolutionCall,
    convolution_call,
    workspace_places,
)
from gpuflow.targets.cpu.providers.decompositions import is_native_lu, lu_bytes
from gpuflow.targets.cpu.providers.kernel_steps import launches_of
from gpuflow.targets.cpu.providers.products import ProductCall, product_call
from gpuflow.targets.cpu.schedules.pipeline import CPU_REWRITES, CPU_SCHEDULES

if TYPE_CHECKING:
    from concurrent import futures
else:
    futures = LazyModule("concurrent.futures")

# A launch with fewer points than this runs on the calling thread: waking a worker costs more.
SMALLEST_PARALLEL = 1 << 15
CHUNKS_PER_THREAD = 4
CONVOLUTION_DTYPES = ("float32", "float64")

Dims = tuple[int, ...]


class ConvolutionFunctions(NamedTuple):
    """Addresses of what a convolution calls."""

    convolution: int
    sum_parts: int
    zero: int
    gemm: int


class NativeServices:
    """Looks up, builds and sizes what native programs use."""

    on_gpu = False
    atomic_sums = False
    excess_precision = False  # each 16-bit result is rounded
    schedules = CPU_SCHEDULES
    rewrites = CPU_REWRITES

    def load(self, kernel: Kernel) -> LoadedKernel:
        return compile_cpu(kernel, kernel_cache(), config.environment.check)

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        """Load several kernels; those that are new are built on all cores at once."""
        cache, check = kernel_cache(), config.environment.check
        kernels = [kernel for kernel in kernels if not load_stored(kernel, cache, check)]
        threads = min(len(kernels), config.environment.num_threads)
        if threads < 2:
            return
        # The largest first, so that no thread is left alone with one.
        ordered = sorted(kernels, key=lambda kernel: -sum(1 for _ in statements(kernel.body)))
        with futures.ThreadPoolExecutor(threads, "gpuflow-build") as executor:
            builds: list[futures.Future[Any]] = [executor.submit(lambda: pool().runtime)]
            builds += [executor.submit(self.load, kernel) for kernel in ordered]
            for build in builds:
                build.result()

    @property
    def runtime(self) -> NativeRuntime:
        """What runs native programs; its workers are awake."""
        workers = pool()
        workers.start()
        return workers.runtime

    def function(self, name: str) -> int:
        """The address of a function of the native runtime."""
        return _native_function(name)

    def chunk(self, extent: int, points: int) -> int:
        """Indices of the split axis that one thread takes at a time."""
        if points < SMALLEST_PARALLEL or pool().threads == 1:
            return max(extent, 1)
        parts = pool().threads * CHUNKS_PER_THREAD
        chunk = -(-extent // parts)
        # Whole vectors: which elements are left over for scalar code must not depend on threads.
        lanes = 1024 if chunk >= 1024 else 64 if points <= 64 * extent else 1
        return -(-chunk // lanes) * lanes

    def choice_of(self, step: CallStep) -> Any:
        """Nothing is asked."""
        return None

    def workspace_bytes(self, step: CallStep) -> int:
        """Memory that a library call needs besides its operands and outputs."""
        launches = launches_of(step)
        if launches is not None:
            return launches.workspace
        if is_native_lu(step):
            return lu_bytes(step)[1]
        convolution = self.convolution_of(step)
        if convolution is None:
            return 0
        size = step.eqn.outputs[0].aval.dtype.itemsize
        calls, _ = convolution
        return max((workspace_places(call, size)[1] for call in calls), default=0)

    def texts_of(self, step: KernelStep) -> list[str]:
        """The printed text of each of a step's launches."""
        return [print_cpu(kernel).text for kernel in kernels_of(step)]

    def launches_of(self, step: CallStep) -> Launches | None:
        """The kernels written by hand that make a library call, or None."""
        return launches_of(step)

    def convolution_of(self, step: CallStep) -> tuple[list[ConvolutionCall], bool] | None:
        """What a step that is a convolution runs, or None."""
        rule = step.eqn.primitive.lower
        if not isinstance(rule, Library) or rule.convolution is None:
            return None
        avals = [operand.aval for operand in step.operands]
        out = step.eqn.outputs[0].aval
        record = rule.convolution(avals, [out], step.eqn.params)
        if record is None:
            return None
        left, right = (operand.lies._replace(offset=0) for operand in step.operands)
        return self.convolution(record, left, right, out.shape, out.dtype)

    def product(
        self, product: Product, left: View, right: View, dtype: np.dtype
    ) -> ProductCall | None:
        """How to call GEMM for a product of views, or None where it cannot read them."""
        if _letter(dtype) is None or private_blas() is None:
            return None
        return product_call(product, left, right, dtype, pool().threads)

    def product_functions(self, dtype: np.dtype) -> tuple[int, int]:
        """The addresses of the product of stacks of matrices and of the GEMM that it calls."""
        return _product_functions(dtype)

    def convolution(
        self, convolution: Convolution, left: View, right: View, out: Dims, dtype: np.dtype
    ) -> tuple[list[ConvolutionCall], bool] | None:
        """How to compute a convolution of views natively, or None where it is not known."""
        if dtype.name not in CONVOLUTION_DTYPES or private_blas() is None:
            return None
        return _convolution_call(convolution, left, right, out, dtype, pool().threads)

    def convolution_functions(self, dtype: np.dtype) -> ConvolutionFunctions:
        """The addresses of what a convolution calls."""
        blas, letter = private_blas(), BLAS_LETTERS[dtype.name]
        assert blas is not None  # convolution() says so first
        convolution, sum_parts, zero = (
            self.function(f"gf_{name}_{letter}") for name in ("convolution", "sum_parts", "zero")
        )
        return ConvolutionFunctions(convolution, sum_parts, zero, blas.gemm[dtype.name])

    def slots(self, count: int) -> tuple[int, int, int, int]:
        """Memory for each thread: addresses of marks and memory, number of slots, their bytes."""
        return pool().slots(count)


# The plan asks for the memory, the driver for the words.
_convolution_call = lru_cache(256)(convolution_call)


@cache
def _letter(dtype: np.dtype) -> str | None:
    """BLAS's letter for a dtype, if it has one."""
    return BLAS_LETTERS.get(dtype.name)


@cache
def _product_functions(dtype: np.dtype) -> tuple[int, int]:
    blas = private_blas()
    assert blas is not None  # product() says so first
    return _native_function(f"gf_product_{_letter(dtype)}"), blas.gemm[dtype.name]


@cache
def _native_function(name: str) -> int:
    return load_native(module_with(name), kernel_cache()).addresses[name]


@cache
def native_services() -> NativeServices:
    """The services of the process."""
    return NativeServices()
