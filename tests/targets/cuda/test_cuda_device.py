"""The CUDA platform on a real GPU. Skipped where there is none.

With ``KERNEL_TESTS=cuda_sim`` the tests run on the simulated GPU, which builds their
kernels (perf/prebuild.py does so).
"""

import itertools
import os
import threading
from dataclasses import replace

import numpy as np
import pytest
from test_cuda_sim import PROGRAMS, _check_same

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, profiler
from gpuflow.base.config import config
from gpuflow.base.garbage import collect_garbage
from gpuflow.targets.platforms import seems_to_have_gpu

PLATFORM = os.environ.get("KERNEL_TESTS", "cuda")


def _devices():
    if PLATFORM == "cuda" and not seems_to_have_gpu():
        return ()
    try:
        return gf.devices(PLATFORM)
    except RuntimeError:
        return ()


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _devices(), reason="there is no GPU that CUDA and CuPy can use"),
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(33, 65)).astype(np.float32)
BIG = RNG.normal(size=(1 << 22) + 5).astype(np.float32)


@pytest.fixture
def device():
    return _devices()[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gpu_computes_what_the_cpu_computes(name, device):
    function, *args = PROGRAMS[name]
    (cpu, *_) = gf.devices("cpu")
    with gf.default_device(cpu):
        want = gf.jit(function)(*args)
    with gf.default_device(device):
        step = gf.jit(function)
        results = [step(*args) for _ in range(4)]  # graphs replay the later ones
    for got in results:
        assert all(leaf.device == device for leaf in gf.tree.leaves(got))
        _check_same(got, want)


@pytest.mark.parametrize("size", [0, 1, 31, 33, 1025, 65537])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "float64"])
def test_awkward_sizes(size, dtype, device):
    x = (RNG.normal(size=size) * 8).astype(dtype)

    def function(v):
        return v * 2 + 1, (v + 1)[1:], v.sum(), jnp.flip(v)

    with gf.enable_x64(True):
        (cpu, *_) = gf.devices("cpu")
        want = gf.jit(function)(gf.device_put(x, cpu))
        got = gf.jit(function)(gf.device_put(x, device))
    for a, b in zip(got, want, strict=True):
        a, b = (np.asarray(v).astype(np.float64) for v in (a, b))
        scale = np.abs(b).max(initial=1.0)
        tolerance = 2e-2 if dtype.endswith("16") else 1e-5
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


def test_eager_ops(device):
    with gf.default_device(device):
        x = jnp.asarray(X)
        got = jnp.sort(jnp.tanh(x) @ X.T, axis=0)[1:] * 2
    want = np.float32(np.sort(np.tanh(X) @ X.T, axis=0)[1:] * 2)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("spec", ["ij,jk->ik", "ji,kj->ik", "bij,bkj->bik", "abij,abjk->abik"])
def test_products(dtype, spec, device):
    sizes = dict(zip("abijk", (3, 5, 17, 33, 65), strict=True))
    left, right = spec.split("->")[0].split(",")
    a, b = (RNG.normal(size=[sizes[c] for c in side]).astype(dtype) for side in (left, right))
    with gf.enable_x64(True):
        got = gf.jit(lambda x, y: jnp.einsum(spec, x, y))(
            gf.device_put(a, device), gf.device_put(b, device)
        )
    assert got.dtype == a.dtype
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    want = np.einsum(spec, a.astype(wide), b.astype(wide))
    tolerance = {2: 1e-2, 4: 1e-5, 8: 1e-5 if a.dtype.kind == "c" else 1e-12}[a.dtype.itemsize]
    error = np.linalg.norm(np.asarray(got).astype(wide) - want) / np.linalg.norm(want)
    assert error < tolerance


def test_float32_means_float32_where_that_is_asked_for(device):
    a = RNG.normal(size=(512, 512)).astype(np.float32)
    x = gf.device_put(a, device)
    want = a.astype(np.float64) @ a.astype(np.float64)

    def error(precision):
        got = np.asarray(gf.jit(lambda v: jnp.matmul(v, v, precision=precision))(x))
        return np.linalg.norm(got - want) / np.linalg.norm(want)

    assert error(None) < 1e-5 and error(lax.Precision.HIGHEST) < 1e-5  # conftest.py: "highest"
    for rounded in (lax.Precision.DEFAULT, lax.Precision.HIGH):
        assert 1e-5 < error(rounded) < 1e-2
    with gf.default_matmul_precision(None):
        assert 1e-5 < error(None) < 1e-2


def test_large_copies_keep_their_order(device):
    double = gf.jit(lambda v: v * 2)
    results = []
    for number in range(8):
        source = BIG + number
        x = gf.device_put(source, device)
        source[:] = 0
        results.append(double(x))
        del x
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, (BIG + number) * 2)


def test_donation(device):
    step = gf.jit(lambda v: v * 2 + 1, donate_argnums=0)
    x = gf.device_put(BIG, device)
    place = x.data.address
    for _ in range(3):
        x = step(x)
    assert x.data.address == place
    np.testing.assert_allclose(x, ((BIG * 2 + 1) * 2 + 1) * 2 + 1, rtol=1e-6)


def test_full_sums_are_the_same_every_time(device):
    x = gf.device_put(BIG, device)
    total = gf.jit(lambda v: v.sum())
    first = np.asarray(total(x)).tobytes()
    assert all(np.asarray(total(x)).tobytes() == first for _ in range(20))


def test_threads_share_a_device(device):
    step = gf.jit(lambda v: jnp.tanh(v @ v.T).sum())
    results, want = {}, step(gf.device_put(X, device)).item()

    def work(number):
        x = gf.device_put(X, device)
        results[number] = [step(x).item() for _ in range(20)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(value == want for values in results.values() for value in values)


def test_memory_is_counted_and_goes_back(device):
    collect_garbage()
    memory = device.driver.memory
    x = gf.device_put(BIG, device)
    x.block_until_ready()
    used = memory.used
    for _ in range(10):
        y = gf.jit(lambda v: v + 1)(x)
        del y
    collect_garbage()
    assert memory.used <= used + BIG.nbytes and memory.peak >= 2 * BIG.nbytes


def test_out_of_memory_names_arrays_and_leaves_the_gpu_usable(device):
    kept = gf.device_put(np.zeros(1 << 23, np.float32), device)
    with pytest.raises(MemoryError, match=r"must have room for[\s\S]*made at[\s\S]*Fix:"):
        device.driver.empty((1 << 44,), np.dtype(np.uint8))
    assert float((kept + 1).sum()) == float(1 << 23)


def _layers(act):
    def loss(params, x):
        for w, b in params[:-1]:
            x = act(x @ w + b)
        w, b = params[-1]
        return jnp.mean((x @ w + b) ** 2)

    return gf.value_and_grad(loss)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("act", [gf.nn.relu, gf.nn.gelu], ids=["relu", "gelu"])
def test_products_with_epilogues(act, dtype, device):
    sizes = (64, 128, 128, 32)
    params = [
        ((RNG.normal(size=(a, b)) / a**0.5).astype(dtype), np.zeros(b, dtype))
        for a, b in itertools.pairwise(sizes)
    ]
    x = RNG.normal(size=(48, 64)).astype(dtype)
    x[::3] = 0  # with biases of 0, what goes into the activation is 0
    wide = [(w.astype(np.float32), b.astype(np.float32)) for w, b in params]
    with gf.default_device(gf.devices("cpu")[0]):
        want = gf.jit(_layers(act))(wide, x.astype(np.float32))
    with gf.default_device(device):
        step = gf.jit(_layers(act))
        results = [step(params, x) for _ in range(4)]
    tolerance = 1e-4 if dtype == "float32" else 5e-2
    for a, b in zip(gf.tree.leaves(results[-1]), gf.tree.leaves(want), strict=True):
        a, b = np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64)
        assert np.linalg.norm(a - b) <= tolerance * (np.linalg.norm(b) + 1e-3)
    for result in results[1:]:
        for a, b in zip(gf.tree.leaves(result), gf.tree.leaves(results[0]), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_graphs_between_library_calls_have_the_same_bits(device, monkeypatch):
    def work(x):
        for k in range(4):
            x = jnp.sin(x + x.sum(k % 2, keepdims=True) * 0.01) @ jnp.eye(x.shape[1])
        return jnp.tanh(jnp.sort(x, axis=1) + 1)

    step, kept = gf.jit(work), []
    for k in range(12):  # nothing is freed, so that recordings get new parameters
        x = gf.device_put(X + k, device)
        kept.append((x, step(x)))
    monkeypatch.setattr(config, "environment", replace(config.environment, cuda_graphs=False))
    gf.clear_caches()
    plain = gf.jit(work)
    for x, got in kept:
        assert np.asarray(got).tobytes() == np.asarray(plain(x)).tobytes()


def test_steps_are_timed_by_events(device, tmp_path):
    step = gf.jit(lambda v: jnp.sin(v @ v.T).sum(0))
    x = gf.device_put(X, device)
    step(x)
    with profiler.trace(tmp_path):
        step(x)
    (path,) = tmp_path.glob("plugins/profile/*/*.trace.json.gz")
    (plane,) = profiler.ProfileData.from_file(path).planes
    rows = {line.name: [event.name for event in line.events] for line in plane.lines}
    assert rows["kernels"] and "dot_general" in rows["libraries"]
    assert set(device.memory_stats()) >= {"num_allocs", "bytes_in_use", "bytes_limit"}
