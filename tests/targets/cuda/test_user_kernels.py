"""gf.raw_kernel on the simulated GPU: kernels as Numba's and CUDA's users write them."""

import linecache
from dataclasses import replace

import numba
import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import LateApi, gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.config import config
from gpuflow.base.garbage import collect_garbage
from gpuflow.runtime.device import devices, local_devices
from gpuflow.targets.cuda_sim.driver import SimApi
from ptxsim.faults import PtxError

pytestmark = [requires_cuda_tools]
cuda = pytest.importorskip("numba.cuda")
RNG = np.random.default_rng(0)
FIELD = RNG.standard_normal((10, 12)).astype(np.float32)
VECTOR = RNG.standard_normal(300).astype(np.float32)


@pytest.fixture(scope="module", params=["sim", "late"])
def device(request):
    api = SimApi() if request.param == "sim" else LateApi()
    return gpu_devices(f"cuda_user_{request.param}", api)[0]


@pytest.fixture(autouse=True)
def on_device(device):
    with gf.default_device(device):
        yield


# --- kernels that know nothing of gpuflow ---------------------------------------------------


@cuda.jit
def stencil(x, out):
    i, j = cuda.grid(2)
    if 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1:
        out[i, j] = 0.25 * (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])
    elif i < x.shape[0] and j < x.shape[1]:
        out[i, j] = x[i, j]


@cuda.jit
def histogram(x, bins):
    shared = cuda.shared.array(64, numba.int32)
    t = cuda.threadIdx.x
    if t < 64:
        shared[t] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(shared, x[i], 1)
    cuda.syncthreads()
    if t < bins.shape[0]:
        cuda.atomic.add(bins, t, shared[t])


@cuda.jit
def total(x, out):
    shared = cuda.shared.array(0, numba.float32)
    t = cuda.threadIdx.x
    acc = numba.float32(0)
    for k in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        acc += x[k]
    shared[t] = acc
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            shared[t] += shared[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]


@cuda.jit
def two_memories(x, out):
    static = cuda.shared.array(1024, numba.float32)
    dynamic = cuda.shared.array(0, numba.float32)
    t = cuda.threadIdx.x
    static[t] = x[t]
    cuda.syncthreads()
    dynamic[t] = static[31 - t]
    cuda.syncthreads()
    out[t] = dynamic[t]


SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + sinf(y[i]);
}
"""

STENCIL = gf.raw_kernel(
    stencil,
    out=lambda x: x,
    grid=lambda x: ((-(-x.shape[0] // 8), -(-x.shape[1] // 8)), (8, 8)),
)
HISTOGRAM = gf.raw_kernel(histogram, inout=(1,), grid=lambda x, b: (-(-x.size // 128), 128))
TOTAL = gf.raw_kernel(total, out=lambda x: gf.ShapeDtypeStruct((4,), x.dtype), grid=(4, 64, 64 * 4))


def c_kernel(text=SAXPY, **changes):
    given = {
        "out": lambda a, x, y: x,
        "grid": lambda a, x, y: (-(-x.size // 128), 128),
        "arguments": lambda a, x, y, out: (np.float32(a), x, y, out, np.int32(x.size)),
    }
    return gf.raw_kernel(text, **{**given, **changes})


@STENCIL.defreference
def smoothed(x):
    x = jnp.asarray(x)
    around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    return x.at[1:-1, 1:-1].set(0.25 * around)


@TOTAL.defreference
def totals(x):
    return jnp.zeros(4).at[jnp.arange(x.size) // 64 % 4].add(x)


def test_a_stencil():
    np.testing.assert_array_equal(STENCIL(FIELD), smoothed(FIELD))
    STENCIL.check(FIELD, sizes=(3, 5, 17))


def test_a_histogram_with_atomics():
    x = RNG.integers(0, 64, 1000).astype(np.int32)
    bins = jnp.ones(64, jnp.int32)
    np.testing.assert_array_equal(HISTOGRAM(x, bins), 1 + np.bincount(x, minlength=64))
    np.testing.assert_array_equal(bins, np.ones(64))


def test_a_reduction_with_shared_memory():
    np.testing.assert_allclose(TOTAL(VECTOR).sum(), VECTOR.sum(), rtol=1e-4)
    TOTAL.check(VECTOR, sizes=(0, 1, 33))


def test_cuda_c():
    f = gf.jit(lambda x, y: c_kernel()(2.0, x + 1, y[::-1]).sum())
    want = np.sum(2 * (VECTOR + 1) + np.sin(VECTOR[::-1]), dtype=np.float64)
    np.testing.assert_allclose(f(VECTOR, VECTOR), want, rtol=1e-5)


def test_headers_and_several_kernels_in_a_text():
    text = (
        f"#include <cuda_fp16.h>\n{SAXPY}"
        + """
extern "C" __global__ void negated(const __half* x, __half* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __hneg(x[i]);
}"""
    )
    kernel = gf.raw_kernel(
        text,
        name="negated",
        out=lambda x: x,
        grid=(1, 32),
        arguments=lambda x, out: (x, out, np.int32(x.size)),
    )
    np.testing.assert_array_equal(kernel(jnp.arange(5, dtype=jnp.float16)), -np.arange(5.0))


def test_in_programs_of_many_launches():
    """Temporaries lie beside each other in one piece of memory; launches are recorded."""

    def f(x):
        y = STENCIL(jnp.sin(x)) + 1
        for _ in range(3):
            y = STENCIL(y) * 2
        return lax.fori_loop(0, 3, lambda i, y: STENCIL(y), y)

    def same(x):
        y = smoothed(jnp.sin(x)) + 1
        for _ in range(3):
            y = smoothed(y) * 2
        return lax.fori_loop(0, 3, lambda i, y: smoothed(y), y)

    program = gf.jit(f)
    for _ in range(4):
        np.testing.assert_allclose(program(FIELD), gf.jit(same)(FIELD), rtol=1e-5, atol=1e-5)


def test_transformations():
    stack = np.stack([FIELD, 2 * FIELD])
    want = np.stack([smoothed(x) for x in stack])
    np.testing.assert_array_equal(gf.vmap(STENCIL)(stack), want)
    loss = lambda run: lambda x: jnp.sum(run(x) ** 2)  # noqa: E731
    got, want = gf.grad(loss(STENCIL))(FIELD), gf.grad(loss(smoothed))(FIELD)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_options_of_numba():
    plain = gf.raw_kernel(
        cuda.jit(fastmath=True)(stencil.py_func), out=lambda x: x, grid=((2, 2), (8, 8))
    )
    np.testing.assert_array_equal(plain(FIELD), smoothed(FIELD))


def test_all_dtypes_of_numpy():
    def copy(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i]

    kernel = gf.raw_kernel(copy, out=lambda x: x, grid=(1, 32))
    for dtype in (bool, np.int8, np.uint16, np.int32, np.float16, np.float32, np.complex64):
        x = (np.arange(5) % 2).astype(dtype)
        np.testing.assert_array_equal(kernel(x), x)


def test_operands_of_five_dimensions_that_lie_apart():
    """They are copied in front of the kernel, which never runs as its function for the CPU."""

    def on_cpu(x, out):
        raise AssertionError("this is no CPU")

    def flat(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i // 16, i // 8 % 2, i // 4 % 2, i // 2 % 2, i % 2]

    kernel = gf.raw_kernel(
        flat, out=gf.ShapeDtypeStruct((32,), np.float32), grid=(1, 32), cpu=on_cpu
    )
    x = np.arange(32, dtype=np.float32).reshape((2,) * 5)
    apart = gf.jit(lambda x: kernel(x.transpose(4, 2, 0, 3, 1)))
    for _ in range(3):
        np.testing.assert_array_equal(apart(x), x.transpose(4, 2, 0, 3, 1).ravel())
    backwards = gf.jit(lambda x: kernel(x[::-1, :, ::-1]))
    np.testing.assert_array_equal(backwards(x), x[::-1, :, ::-1].ravel())


def test_a_grid_without_blocks():
    assert STENCIL(np.zeros((0, 4), np.float32)).shape == (0, 4)
    histogram_of_none = HISTOGRAM(np.zeros(0, np.int32), jnp.arange(64, dtype=jnp.int32))
    np.testing.assert_array_equal(histogram_of_none, np.arange(64))


# --- mistakes -------------------------------------------------------------------------------

on_sim = pytest.mark.parametrize("device", ["sim"], indirect=True)


def _line(text):
    """The number of a line of this file."""
    lines = linecache.getlines(__file__)
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def past_the_end(x, out):
    i = cuda.grid(1)
    out[i] = x[0]  # past the end


def into_an_operand(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 0
        x[i] = 1  # an operand


def unknown(x, out):
    out[0] = x[0].width  # unknown


def _of(function, **changes):
    given = {"out": lambda x: x, "grid": lambda x: (-(-x.size // 128), 128)}
    return gf.raw_kernel(function, **{**given, **changes})


def _message(call):
    with pytest.raises((RuntimeError, ValueError, TypeError)) as caught:
        np.asarray(call())
    return str(caught.value)


@on_sim
def test_a_store_behind_an_output_names_thread_and_line():
    # A temporary in the arena, with others behind it.
    said = _message(lambda: gf.jit(lambda x: _of(past_the_end)(x + 1) * 2)(VECTOR))
    assert "out of bounds" in said and "thread (44, 0, 0)" in said and "block (2, 0, 0)" in said
    line = _line("out[i] = x[0]  # past the end")
    assert f"test_user_kernels.py:{line}" in said


@on_sim
def test_a_store_to_an_operand_names_thread_and_line():
    said = _message(lambda: _of(into_an_operand)(VECTOR))
    assert "read-only" in said and "thread (0, 0, 0)" in said
    assert f"test_user_kernels.py:{_line('x[i] = 1  # an operand')}" in said


@on_sim
def test_a_grid_that_does_not_cover_the_output():
    def copy(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i]

    said = _message(lambda: _of(copy, grid=(2, 64))(VECTOR))
    assert "688 of 1200 bytes of output 0" in said and "byte 512" in said and "(2, 1, 1)" in said


@on_sim
def test_source_that_does_not_compile_has_the_compilers_message():
    said = _message(lambda: _of(unknown)(VECTOR))
    assert "Unknown attribute 'width'" in said and "float32[:]" in said
    assert f"line {_line('out[0] = x[0].width  # unknown')}" in said
    said = _message(lambda: c_kernel(SAXPY.replace("sinf(", "sinff("))(2.0, VECTOR, VECTOR))
    assert 'saxpy.cu(4): error: identifier "sinff" is undefined' in said


@on_sim
def test_numbers_and_parameters_of_cuda_c_are_compared():
    said = _message(
        lambda: c_kernel(arguments=lambda a, x, y, out: (a, x, y, out, np.int32(9)))(
            2.0, VECTOR, VECTOR
        )
    )
    assert "parameter 0" in said and "32 bits (float); got float64" in said
    said = _message(
        lambda: c_kernel(arguments=lambda a, x, y, out: (np.float32(a), x, y, out))(
            2.0, VECTOR, VECTOR
        )
    )
    assert "got 5 for 4" in said
    said = _message(lambda: c_kernel(SAXPY.replace('extern "C"', ""))(2.0, VECTOR, VECTOR))
    assert 'extern "C"' in said


@on_sim
def test_shared_memory_has_a_limit():
    said = _message(lambda: _of(total.py_func, grid=(4, 64, 300_000))(VECTOR))
    assert "at most" in said and "300000 in grid" in said


@on_sim
def test_a_block_may_have_all_of_its_shared_memory():
    """227 KB, without the 1 KB that CUDA reserves besides."""
    most, out = 227 << 10, lambda x: gf.ShapeDtypeStruct((4,), x.dtype)
    got = gf.raw_kernel(total, out=out, grid=(4, 64, most))(VECTOR)
    np.testing.assert_allclose(got.sum(), VECTOR.sum(), rtol=1e-4)
    said = _message(lambda: gf.raw_kernel(total, out=out, grid=(4, 64, most + 4))(VECTOR))
    assert f"at most {most} bytes" in said


@pytest.mark.parametrize("sizes", [(47, 8), (8, 47)])
def test_static_and_dynamic_shared_memory_share_the_default_limit(sizes):
    """4 KB static and 47 KB dynamic: CUDA refuses the launch, unless it was asked for more."""
    kernels = [
        gf.raw_kernel(two_memories, out=lambda x: x, grid=(1, 32, kilobytes << 10))
        for kilobytes in sizes
    ]
    step = gf.jit(lambda x: [kernel(x) for kernel in kernels])  # one function, two limits
    for got in step(VECTOR[:32]):
        np.testing.assert_array_equal(got, VECTOR[31::-1])


@on_sim
def test_planted_launches_without_the_attribute_are_refused(device):
    """A driver that compares the dynamic part alone with 48 KB: the stand-in refuses the sum."""
    (planted,) = gpu_devices("cuda_user_planted", SimApi())
    planted.driver.api.allow_shared = lambda kernel, count: None
    kernel = gf.raw_kernel(two_memories, out=lambda x: x, grid=(1, 32, 46_656))
    with (
        gf.default_device(planted),
        pytest.raises(
            PtxError, match=r"at most 45056 dynamic bytes.* got 4096 static and 46656 dynamic"
        ),
    ):
        np.asarray(kernel(VECTOR[:32]))


@pytest.mark.parametrize("kind", [SimApi, LateApi])
@on_sim
def test_a_module_is_loaded_once_and_unloaded_behind_its_last_launch(device, kind):
    (own,) = gpu_devices(f"cuda_user_modules_{kind.__name__}", kind())
    driver, api = own.driver, own.driver.api

    def entries():
        return sorted(built.entry for built in driver.loaded_kernels())

    def programs(count):
        kernel = gf.raw_kernel(two_memories, out=lambda x: x, grid=(1, 32, 256))
        steps = [gf.jit(lambda x, k=k: kernel(x + k)) for k in range(count)]
        for step in steps:
            step(VECTOR[:32])  # it may still be queued
        assert entries().count("two_memories") == 1
        assert len(api.loaded) == len(entries())

    with gf.default_device(own):
        programs(3)
        collect_garbage(60)
        api.activate()
        driver._kernels.unload_unused()  # a late device has an event behind the launches
        driver.synchronize()
        driver._kernels.unload_unused()
        assert not entries() and not api.loaded


@on_sim
def test_planted_modules_that_are_unloaded_too_early_are_found(device):
    (late,) = gpu_devices("cuda_user_early", LateApi())
    late.driver.api.is_done = lambda event: True  # whether the stream has come to it, or not
    with gf.default_device(late):
        x = gf.device_put(VECTOR[:32], late)
        late.driver.synchronize()
        kernel = gf.raw_kernel(two_memories, out=lambda x: x, grid=(1, 32, 256))
        gf.jit(lambda x: kernel(x))(x)
        collect_garbage(60)
        late.driver._kernels.unload_unused()
        with pytest.raises(AssertionError, match="was unloaded before it ran"):
            late.driver.synchronize()


@on_sim
def test_dtypes_that_numba_lacks():
    said = _message(lambda: _of(past_the_end)(jnp.ones(3, jnp.bfloat16)))
    assert "bfloat16" in said and "x.view(jnp.uint16)" in said


@on_sim
def test_prints_are_refused():
    def chatty(x, out):
        print(x[0])

    assert "vprintf" in _message(lambda: _of(chatty)(VECTOR))


@on_sim
def test_other_kernels_go_on_after_a_mistake(device):
    _message(lambda: _of(past_the_end)(VECTOR))
    np.testing.assert_array_equal(STENCIL(FIELD), smoothed(FIELD))


@pytest.fixture
def eight(monkeypatch):
    monkeypatch.setattr(config, "environment", replace(config.environment, sim_devices=8))
    devices.cache_clear()
    local_devices.cache_clear()
    yield devices("cuda_sim")
    monkeypatch.undo()
    devices.cache_clear()
    local_devices.cache_clear()


@on_sim
def test_on_eight_devices(eight):
    stack = RNG.standard_normal((8, 5, 6)).astype(np.float32)
    want = np.stack([2 * smoothed(x) for x in stack])
    mapped = gf.pmap(lambda x: 2 * STENCIL(x), devices=eight)
    np.testing.assert_allclose(mapped(stack), want, rtol=1e-6)
