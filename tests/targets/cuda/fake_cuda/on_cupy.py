"""Programs on real CuPy over the stand-in for CUDA; ``test_on_cupy.py`` runs this file.

A device is as late as it may be (FAKE_CUDA_LATE=1), so what gpuflow forgets to wait for is wrong
here each time.
"""

import sys
import threading
from pathlib import Path

import cupy
import cupy_backends.cuda
import numpy as np
import pytest
import stand_in
import stand_in_cupy
from stand_in_cupy import HANDLES

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.garbage import collect_garbage
from gpuflow.ops.linalg.common import not_finite_as_nan
from gpuflow.targets.cuda.runtime.driver import on_cupy
from gpuflow.targets.cuda.runtime.driver.api import LibraryWork

# Products run on the stand-in for cuBLAS, whether or not the real one is installed.
on_cupy.find_cublas = lambda: str(Path(stand_in.kernels.library).parent / "libcublas.so")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(33, 65)).astype(np.float32)
BIG = RNG.normal(size=(1 << 22) + 5).astype(np.float32)  # several pinned pieces
DEVICES = gf.devices("cuda")
(CPU, *_) = gf.devices("cpu")


def counted():
    return stand_in.kernels.counts()


@pytest.fixture
def full():
    """The device refuses memory in this test, or a launch."""


@pytest.fixture(autouse=True)
def nothing_is_refused(request):
    """CUDA would have taken every call, and all kernels stayed in bounds."""
    before = counted()["refusals"]
    yield
    for device in DEVICES:
        device.driver.synchronize()
    assert "full" in request.fixturenames or counted()["refusals"] == before
    assert not stand_in.kernels.errors and not stand_in.kernels.unknown


def on_cpu(function, *args):
    with gf.default_device(CPU):
        return gf.jit(function)(*args)


def test_calls_return_before_the_work_is_done():
    x = gf.device_put(X)
    double = gf.jit(lambda v: jnp.sin(v) * 2)
    double(x).block_until_ready()
    before = counted()["launches"]
    y = double(x)
    assert counted()["launches"] == before
    np.testing.assert_allclose(y, np.sin(X) * 2, rtol=1e-5, atol=1e-6)
    assert counted()["launches"] == before + 1


def test_training_with_donation():
    def loss(params, x, y):
        for w, b in params[:-1]:
            x = jnp.tanh(x @ w + b)
        w, b = params[-1]
        return jnp.mean((x @ w + b - y) ** 2)

    def step(params, x, y):
        value, gradient = gf.value_and_grad(loss)(params, x, y)
        return value, gf.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    def train(device):
        with gf.default_device(device):
            keys = gf.random.split(gf.random.key(0), 3)
            sizes = (8, 16, 16, 4)
            params = [
                (gf.random.normal(key, (m, n)) / 4, jnp.zeros(n))
                for key, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
            ]
            run, losses = gf.jit(step, donate_argnums=0), []
            x, y = jnp.asarray(X[:32, :8]), jnp.asarray(X[:32, 8:12])
            for _ in range(6):
                value, params = run(params, x, y)
                losses.append(float(value))
            return losses

    got = train(DEVICES[0])
    np.testing.assert_allclose(got, train(CPU), rtol=1e-5)
    assert got[-1] < got[0]


def rows(v):
    for _ in range(5):
        v = jnp.cumsum(v * 1.5 - v.sum(0)) * 0.01 + jnp.sort(v)
    return v


def test_recorded_launches_are_replayed_and_changed():
    data = [gf.device_put(X[k, :50]) for k in range(8)]
    step, before = gf.jit(rows), counted()
    kept = [step(data[k % 2 if k < 8 else k - 8]) for k in range(16)]  # kept: all are elsewhere
    after = counted()
    assert after["recordings"] > before["recordings"]
    assert after["replays"] > before["replays"]
    for k, got in enumerate(kept):
        want = on_cpu(rows, X[k % 2 if k < 8 else k - 8, :50])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_nodes_get_new_parameters():
    def work(v):
        total = v.sum()  # most launches do not touch what is allocated for each call
        for _ in range(6):
            total = jnp.sort(jnp.tanh(v * total), axis=0).sum() * 0.01
        return v + total

    x, step, before = gf.device_put(X[:5, :7]), gf.jit(work), counted()["changes"]
    kept = [step(x) for _ in range(12)]
    assert counted()["changes"] > before
    want = on_cpu(work, X[:5, :7])
    for got in kept:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_flags_of_loops_come_through_pinned_memory():
    def function(x, n):
        def body(s):
            i, x, y = s
            return i + 1, x.at[i].set(y), 0.5 * y + x[i + 1]

        return lax.while_loop(lambda s: s[0] < n, body, (0, x, jnp.float32(1)))

    run, x = gf.jit(function), gf.device_put(X[0])
    for turns in (0, 1, 2, 9, 9, 10):
        made, wanted = run(x, turns), on_cpu(function, X[0], turns)
        for one, other in zip(made, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    np.testing.assert_array_equal(x, X[0])


def test_large_copies_go_through_pinned_memory_and_keep_their_order():
    double = gf.jit(lambda v: v[-1000:] * 2)  # of the last piece, which nobody waits for
    results = []
    for number in range(4):
        source = BIG + number
        x = gf.device_put(source, DEVICES[0])
        source[:] = 0
        results.append(double(x))
        del x
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, (BIG[-1000:] + number) * 2)
    y = gf.device_put(BIG, DEVICES[0])
    np.testing.assert_array_equal(np.asarray(y), BIG)
    assert counted()["pinned"] >= 4 << 22


def test_random_numbers_sorts_and_views():
    def work(v):
        k = gf.random.key(3)
        return (
            gf.random.uniform(k, (7,)),
            gf.random.permutation(k, 10),
            jnp.argsort(v, axis=1),
            lax.top_k(v, 3),
            v.T[::2, ::-1],
            jnp.linalg.inv(v[:4, :4]),
        )

    got = gf.tree.leaves(work(gf.device_put(X)))
    for a, b in zip(got, gf.tree.leaves(on_cpu(work, X)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_strided_copies_and_library_calls_are_cupys():
    driver = DEVICES[0].driver
    stand_in.kernels.names.clear()
    got = lax.cumprod(gf.device_put(X.astype(np.complex64)), axis=1)
    np.testing.assert_allclose(got, np.cumprod(X.astype(np.complex64), axis=1), rtol=1e-3)
    assert any(name.startswith("cupy") for name in stand_in.kernels.names)
    assert not any("cumprod" in name for name in driver.host_calls)


def test_calls_that_cupy_cannot_make_run_on_the_host():
    driver, value = DEVICES[0].driver, X.astype(np.complex64)
    got = gf.jit(jnp.fft.fft)(gf.device_put(value))
    np.testing.assert_allclose(got, np.fft.fft(value), rtol=1e-4, atol=1e-4)
    try:
        import cupy.cuda.cufft  # noqa: F401
    except ImportError:  # the kernels that it brings cannot run here
        assert "ImportError" in driver.host_calls["fft(complex64)"]


def test_memory_that_other_streams_had_is_found(full):
    """Each stream has a pool; what one keeps for reuse must not make another one fail."""
    driver = DEVICES[0].driver
    share = driver.api.memory_bytes * 3 // 5
    collect_garbage()
    x = gf.device_put(np.zeros(share // 4, np.float32), DEVICES[0])  # in the copies' pool
    assert stand_in.kernels.used() >= share
    del x
    collect_garbage()
    block = driver.empty((share,), np.dtype(np.uint8))
    assert driver.memory.used >= share
    with pytest.raises(MemoryError, match=r"must have room for[\s\S]*made at[\s\S]*Fix:"):
        driver.empty((share,), np.dtype(np.uint8))
    del block
    assert float(jnp.ones(5).sum()) == 5


def test_arrays_that_die_in_other_threads():
    """Their memory waits for an event, which a thread without a context marks."""
    for _ in range(3):
        box = [gf.device_put(BIG, DEVICES[-1])]
        total = gf.jit(lambda v: v[:3].sum())(box[0])
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
        y = gf.device_put(BIG * 0, DEVICES[-1])  # might have the memory
        np.testing.assert_allclose(total, BIG[:3].sum(), rtol=1e-5)
        del y


def test_devices_work_in_turn():
    step = gf.jit(lambda v: (jnp.tanh(v + v.sum(0)), jnp.sort(v, axis=1)))
    operands = [gf.device_put(X + k, device) for k, device in enumerate(DEVICES)]
    for _ in range(4):
        results = [step(x) for x in operands]
    for k, (device, got) in enumerate(zip(DEVICES, results, strict=True)):
        assert all(leaf.device == device for leaf in got)
        np.testing.assert_allclose(got[0], np.tanh(X + k + (X + k).sum(0)), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(got[1], np.sort(X + k, axis=1))
    moved = gf.device_put(results[0][0], DEVICES[-1])
    np.testing.assert_array_equal(moved, results[0][0])


def test_arrays_move_from_gpu_to_gpu_without_waiting():
    if len(DEVICES) == 1:
        return
    double, moved, before = gf.jit(lambda v: jnp.sin(v) * 2), [], counted()["launches"]
    for k in range(4):
        x = double(gf.device_put(X + k, DEVICES[k % 2]))  # it waits to be run
        moved.append(gf.device_put(x, DEVICES[1 - k % 2]))
        del x  # its memory is the next one's
    assert counted()["launches"] == before
    for k, y in enumerate(moved):
        assert y.device == DEVICES[1 - k % 2]
        np.testing.assert_allclose(y, np.sin(X + k) * 2, rtol=1e-4, atol=1e-5)


def test_threads_have_a_device_each():
    step, results = gf.jit(lambda v: jnp.tanh(v + 1).sum()), {}

    def work(number):
        x = gf.device_put(X + number, DEVICES[number % len(DEVICES)])
        results[number] = [step(x).item() for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        want = np.tanh(X.astype(np.float64) + number + 1).sum()
        np.testing.assert_allclose(results[number], [want] * 5, rtol=1e-5)


def test_the_users_cupy_is_left_alone():
    stream = cupy.cuda.get_current_stream()
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    lax.cumprod(gf.device_put(X.astype(np.complex64)), axis=0).block_until_ready()
    collect_garbage()
    assert cupy.cuda.get_current_stream() == stream
    assert pool.used_bytes() == before
    assert float(cupy.arange(6, dtype=cupy.float32).sum()) == 15


# --- modules, shared memory and graphs ---

REVERSED = """
extern "C" __global__ void reversed_twice(const float* x, float* out) {
  __shared__ float fixed[1024];
  extern __shared__ float dynamic[];
  int t = threadIdx.x;
  fixed[t] = x[t];
  __syncthreads();
  dynamic[t] = fixed[31 - t];
  __syncthreads();
  out[t] = dynamic[t];
}"""


def reversing(shared_bytes):
    return gf.raw_kernel(REVERSED, out=lambda x: x, grid=(1, 32, shared_bytes))


@pytest.mark.parametrize("kilobytes", [(44, 4), (46, 8), (8, 223)])
def test_static_and_dynamic_shared_memory_share_a_limit(kilobytes):
    """4 KB static: CUDA refuses 45 KB dynamic, if the driver has not asked for it."""
    kernels = [reversing(count << 10) for count in kilobytes]
    step = gf.jit(lambda x: [kernel(x) for kernel in kernels])  # one function, two limits
    for _ in range(2):
        for got in step(gf.device_put(X[0, :32])):
            np.testing.assert_array_equal(got, X[0, 31::-1])


def test_planted_launches_without_the_attribute_are_refused(full, monkeypatch):
    """The old rule: to ask only if the dynamic part alone is more than 48 KB."""
    x, allow = gf.device_put(X[0, :32]), on_cupy.CupyApi.allow_shared

    def planted(api, kernel, count):
        if count > 48 << 10:
            allow(api, kernel, count)

    monkeypatch.setattr(on_cupy.CupyApi, "allow_shared", planted)
    collect_garbage()
    DEVICES[0].driver.synchronize()
    DEVICES[0].driver.free_unused()
    with pytest.raises(cupy.cuda.driver.CUDADriverError, match="INVALID_VALUE"):
        reversing(45 << 10)(x).block_until_ready()


def test_modules_are_shared_and_unloaded_when_nothing_launches_them():
    def modules():
        collect_garbage()
        for _ in range(2):  # the first one has an event marked behind the launches
            for device in DEVICES:
                device.driver.free_unused()
                device.driver.synchronize()
        return counted()["modules"]

    def programs():
        kernel, x = reversing(1 << 10), gf.device_put(X[0, :32])
        steps = [gf.jit(lambda v, k=k: kernel(v * k)) for k in range(3)]
        results = [step(x) for step in steps]
        loaded = [built.entry for built in DEVICES[0].driver.loaded_kernels()]
        assert loaded.count("reversed_twice") == 1
        return results

    before = modules()
    results = programs()
    during = counted()["modules"]
    assert during > before
    for k, got in enumerate(results):
        np.testing.assert_array_equal(got, X[0, 31::-1] * k)
    assert modules() < during


def test_a_capture_that_fails_leaves_no_graph():
    api, before = DEVICES[0].driver.api, counted()["graphs"]
    api.activate()

    def work(stream):
        api.clear(block.address, 8, stream)
        raise ValueError("the library refuses")

    block = DEVICES[0].driver.empty((8,), np.dtype(np.uint8))
    assert api.record(DEVICES[0].driver.compute, [LibraryWork(work)]) is None
    collect_garbage()
    assert counted()["graphs"] == before


# --- arrays of CuPy ---


@pytest.fixture
def first():
    """CuPy's current device is the first one."""
    with cupy.cuda.Device(0):
        yield


def test_cupy_reads_our_memory(first):
    x = gf.jit(lambda v: jnp.tanh(v) * 2)(gf.device_put(X, DEVICES[0]))  # it waits to be run
    with cupy.cuda.Stream(non_blocking=True):
        by_dlpack, by_interface = cupy.from_dlpack(x), cupy.asarray(x)
        results = [(view + 1).get() for view in (by_dlpack, by_interface)]
    for view, got in zip((by_dlpack, by_interface), results, strict=True):
        assert view.data.ptr == x.data.address
        np.testing.assert_allclose(got, np.tanh(X) * 2 + 1, rtol=1e-5, atol=1e-6)
    assert x.__dlpack_device__() == (2, 0)
    np.testing.assert_array_equal(np.from_dlpack(x, device="cpu"), x)
    del x
    np.testing.assert_allclose(by_dlpack.get(), np.tanh(X) * 2, rtol=1e-5, atol=1e-6)


def test_memory_that_cupy_reads_is_not_donated(first):
    x = gf.device_put(X + 1, DEVICES[0])
    view = cupy.from_dlpack(x)
    gf.jit(lambda v: v * 0, donate_argnums=0)(x).block_until_ready()
    np.testing.assert_array_equal(view.get(), X + 1)


def test_we_read_cupys_memory(first):
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    with cupy.cuda.Stream(non_blocking=True):
        theirs = cupy.asarray(X) * 2
        ours = jnp.from_dlpack(theirs)  # from now on CuPy's work on it waits for nobody
        address = theirs.data.ptr
        del theirs
        double = gf.jit(lambda v: v * 2, donate_argnums=0)
        results = [double(ours + k) for k in range(3)]
        assert ours.data.address == address and ours.device == DEVICES[0]
        total = gf.jit(lambda v: v * 0, donate_argnums=0)(ours)
        del ours
        other = cupy.zeros_like(cupy.asarray(X))  # must not get the memory yet
    for k, got in enumerate(results):
        np.testing.assert_array_equal(got, (X * 2 + k) * 2)
    np.testing.assert_array_equal(total, X * 0)
    del other
    jnp.ones(3).block_until_ready()
    gf.device_put(BIG[:9], DEVICES[0]) + 1  # an allocation looks after what waits
    assert pool.used_bytes() == before


def test_what_cannot_be_shared_is_copied(first):
    theirs = cupy.asarray(X)
    with pytest.raises(ValueError, match=r"\[from_dlpack\] the memory cannot be shared.*row-maj"):
        jnp.from_dlpack(theirs.T, copy=False)
    wide = cupy.asarray(X.astype(np.float64))
    for given, want in ((theirs.T, X.T), (theirs[::2], X[::2]), (wide, X), (theirs[:0], X[:0])):
        got = jnp.from_dlpack(given)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want)
    copies = jnp.from_dlpack(theirs, copy=True), jnp.asarray(theirs), jnp.array(theirs)
    theirs[...] = 0
    for got in copies:
        np.testing.assert_array_equal(got, X)
    assert not hasattr(jnp.zeros(2, jnp.bfloat16), "__cuda_array_interface__")
    with gf.default_device(CPU):
        assert not hasattr(jnp.zeros(2), "__cuda_array_interface__")
        assert jnp.zeros(2).__dlpack_device__() == (1, 0)
    there = jnp.from_dlpack(theirs, device=DEVICES[-1])
    assert there.device == DEVICES[-1]


# --- matrices that are not finite ---


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_matrices_that_are_not_finite_are_nan_and_no_others(first, dtype):
    a = cupy.ones((3, 4, 4), dtype)
    a[1, 2, 2] = np.nan
    found = not_finite_as_nan(cupy, lambda x: [x * 2, x[..., 0].real], a)
    assert [out.dtype for out in found] == [dtype, np.float32]
    for out in found:
        assert np.isnan(out[1].get()).all() and np.isfinite(out[::2].get()).all()


# --- routines of CUDA's libraries, which a stand-in runs as late as it may ---


@pytest.fixture
def calls(monkeypatch):
    """What was called; the work is done when the stream comes to it."""
    made = []

    def enqueue(work):
        cupy.cuda.get_current_stream().launch_host_func(lambda _: work(), None)

    libraries = {name: stand_in_cupy.Library(name, made, enqueue) for name in HANDLES}
    bindings = stand_in_cupy.Bindings(libraries)
    # An import of the package gives the attribute, where there is one.
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", bindings)
    monkeypatch.setattr(cupy_backends.cuda, "libs", bindings, raising=False)
    for name, number in HANDLES.items():
        monkeypatch.setattr(cupy.cuda.device, f"get_{name}_handle", lambda number=number: number)
    return made


def symmetric(shape, dtype):
    x = RNG.normal(size=shape) + 1j * RNG.normal(size=shape)
    x = (x if np.dtype(dtype).kind == "c" else x.real).astype(dtype)
    return x @ x.conj().swapaxes(-1, -2) + 9 * np.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_decompositions_stay_on_the_device(dtype, calls):
    a, driver = symmetric((3, 35, 35), dtype), DEVICES[0].driver
    bad = a.copy()
    bad[1, 4, 4] = -1
    before = dict(driver.host_calls)

    def work(a, bad):
        reflectors, taus = lax.linalg.geqrf(a[0, :, :4])
        return (
            lax.linalg.lu(a),
            lax.linalg.lu(a[0, :, :33]),
            lax.linalg.cholesky(bad),
            lax.linalg.cholesky(a[2]),
            lax.linalg.householder_product(reflectors, taus),
            lax.linalg.ormqr(reflectors, taus, a[1], transpose=True),
            lax.linalg.tridiagonal_solve(a[0, 0], a[0, 1] + 99, a[0, 2], a[1]),
        )

    got = gf.tree.leaves(gf.jit(work)(gf.device_put(a), gf.device_put(bad)))
    for one, other in zip(got, gf.tree.leaves(on_cpu(work, a, bad)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    plain = [name.lstrip("sc") for name in calls]
    unitary = "un" if dtype == np.complex64 else "or"
    assert sorted(plain) == sorted(
        [
            "getrfBatched",
            "getrf",
            "potrfBatched",
            "potrf",
            "geqrf",
            f"{unitary}gqr",
            f"{unitary}mqr",
            "gtsv2",
        ]
    )
    assert driver.host_calls == before
