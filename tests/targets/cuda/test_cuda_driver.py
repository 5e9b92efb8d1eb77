"""The driver of GPUs on a simulated one that works as late as it may."""

import re
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import LateApi, gpu_devices
from test_cuda_sim import PROGRAMS, _check_same

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.garbage import collect_garbage
from gpuflow.targets.cuda.runtime.driver.device_memory import LARGE, in_units
from gpuflow.targets.cuda.runtime.driver.driver import GpuDriver
from gpuflow.targets.cuda.runtime.driver.faults import GpuFault, StatusError, fault
from gpuflow.targets.cuda.runtime.driver.graphs import (
    BufferAccess,
    RecordableCall,
    RecordedLaunches,
)
from gpuflow.targets.cuda.runtime.program.library_calls import LibraryCall

pytestmark = requires_cuda_tools

X = np.random.default_rng(0).normal(size=(8, 24)).astype(np.float32)
BIG = np.random.default_rng(1).normal(size=(1 << 21) + 3).astype(np.float32)  # several pieces


@pytest.fixture(scope="module")
def late():
    """A device of its own platform."""
    return gpu_devices("cuda_late", LateApi())[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_late_work_gives_the_same_values(name, late):
    function, *args = PROGRAMS[name]
    want = gf.jit(function)(*args)
    with gf.default_device(late):
        step = gf.jit(function)
        first, again = step(*args), step(*args)
        third = step(*gf.tree.map(jnp.asarray, tuple(args)))
    for got in (again, first, third):
        _check_same(got, want)


def test_calls_return_before_the_work_is_done(late):
    api = late.driver.api
    x = gf.device_put(X, late)
    double = gf.jit(lambda v: jnp.sin(v) * 2)
    double(x).block_until_ready()
    before = dict(api.log)
    y = double(x)
    assert api.queues[late.driver.compute]
    assert api.log["launch"] == before["launch"] + 1
    assert api.log["synchronize"] == before["synchronize"]
    y.block_until_ready()
    assert not api.queues[late.driver.compute]


def test_values_are_looked_at_only_while_checks_are_on(late):
    """They were from the first time on that debug_nans was set: each op waited for the device."""
    api, x = late.driver.api, gf.device_put(X, late)
    with gf.debug_nans(True):
        x + x
    copied = api.log["copy_out"]
    x * x
    assert api.log["copy_out"] == copied


def test_ops_one_by_one_are_programs(late):
    with gf.default_device(late):
        x = jnp.asarray(X)
        got = jnp.sort(jnp.tanh(x) @ X.T, axis=0)[1:] * 2
        half = (x.astype(jnp.bfloat16) + 1).astype(jnp.float32)
    _check_same(got, np.float32(np.sort(np.tanh(X) @ X.T, axis=0)[1:] * 2))
    np.testing.assert_allclose(half, X + 1, rtol=2e-2, atol=2e-2)


def test_large_arrays_go_through_pinned_memory_and_back(late):
    api = late.driver.api
    source = BIG.copy()
    before = api.log["copy_in"]
    x = gf.device_put(source, late)
    source[:] = 0  # the caller may overwrite what it has passed
    y = gf.jit(lambda v: v + 1)(x)
    assert api.log["copy_in"] >= before + 2
    np.testing.assert_array_equal(y, BIG + 1)
    np.testing.assert_array_equal(x, BIG)


def test_memory_of_copies_is_not_reused_before_kernels_have_read_it(late):
    double = gf.jit(lambda v: v * 2)
    results = []
    for number in range(4):
        x = gf.device_put(BIG + number, late)
        results.append(double(x))
        del x  # its memory may go to the next copy only when the kernel has run
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, (BIG + number) * 2)


def test_temporaries_may_be_freed_while_kernels_run(late):
    with gf.default_device(late):
        total = jnp.zeros(X.shape)
        for _ in range(6):
            total = jnp.cos(total @ X.T) @ X * 0.01
    want = np.zeros_like(X)
    for _ in range(6):
        want = np.cos(want @ X.T) @ X * 0.01
    np.testing.assert_allclose(total, want, rtol=1e-5, atol=1e-5)


def test_donation_reuses_memory_and_spares_what_others_hold(late):
    step = gf.jit(lambda v: v * 2 + 1, donate_argnums=0)
    x = gf.device_put(X, late)
    place = x.data.address
    assert step(x).data.address == place
    x = gf.device_put(X, late)
    kept = x.data
    y = step(x)
    np.testing.assert_array_equal(late.driver.to_host(kept), X)
    np.testing.assert_allclose(y, X * 2 + 1, rtol=1e-6)


def test_scalars_are_copied_once(late):
    add = gf.jit(lambda v, s: v + s)
    x = gf.device_put(X, late)
    add(x, 2.5)
    before = late.driver.api.log["copy_in"]
    for _ in range(3):
        add(x, 2.5)
    assert late.driver.api.log["copy_in"] == before


def test_tables_of_segments_are_copied_when_an_address_changed(late):
    def scale(parts):
        return [p * 2 + 1 for p in parts]

    step, api = gf.jit(scale), late.driver.api
    parts = [gf.device_put(X[k:], late) for k in range(4)]
    first = step(parts)
    again = step(parts)
    for k in range(4):
        np.testing.assert_allclose(first[k], X[k:] * 2 + 1, rtol=1e-6)
        np.testing.assert_allclose(again[k], X[k:] * 2 + 1, rtol=1e-6)
    del first, again
    assert api.log["launch"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16, np.complex64])
@pytest.mark.parametrize("spec", ["ij,jk->ik", "ji,kj->ik", "bij,bkj->bik", "abij,abjk->abik"])
def test_products_are_one_gemm(dtype, spec, late):
    rng = np.random.default_rng(2)
    sizes = dict(zip("abijk", (2, 3, 4, 5, 6), strict=True))
    left, right = spec.split("->")[0].split(",")
    a, b = (rng.normal(size=[sizes[c] for c in side]).astype(np.float32) for side in (left, right))
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    before = late.driver.api.log["gemm"]
    got = gf.jit(lambda x, y: jnp.einsum(spec, x, y))(
        gf.device_put(a, late), gf.device_put(b, late)
    )
    assert late.driver.api.log["gemm"] > before
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    want = np.einsum(spec, a.astype(wide), b.astype(wide))
    tolerance = 1e-2 if a.dtype.itemsize == 2 else 1e-5
    np.testing.assert_allclose(
        np.asarray(got).astype(wide), want, rtol=tolerance, atol=3 * tolerance
    )


def test_halves_are_added_in_float32(late):
    ones = gf.device_put(np.ones((1, 4096), np.float16), late)
    got = gf.jit(lambda v: v @ v.T)(ones)
    assert float(got[0, 0]) == 4096.0


def test_what_the_array_module_cannot_do_runs_on_the_host(late, monkeypatch):
    def refuse(data):
        raise TypeError("no such dtype here")

    monkeypatch.setattr(late.driver.api, "view", refuse)
    try:
        with pytest.warns(UserWarning, match=r"\[fft.*on the host.*no such dtype.*pip install"):
            got = gf.jit(lambda v: jnp.fft.rfft(v, axis=1))(gf.device_put(X, late))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once is enough
            gf.jit(lambda v: jnp.fft.rfft(v * 2, axis=1))(gf.device_put(X, late))
        np.testing.assert_allclose(got, np.fft.rfft(X, axis=1), rtol=1e-4, atol=1e-4)
        (why,) = [why for name, why in late.driver.host_calls.items() if "fft" in name]
        assert "no such dtype" in why
    finally:
        late.driver.host_calls.clear()


# Operations for which no routine of CuPy's is called, with operands beyond our own kernels.
A = np.random.default_rng(3).normal(size=(40, 40)).astype(np.float32)
ON_HOST = {
    "eig": (lax.linalg.eig, A),
    "schur": (lax.linalg.schur, A),
    "hessenberg": (lax.linalg.hessenberg, A),
    "tridiagonal": (lax.linalg.tridiagonal, A @ A.T),
    "tridiagonal_solve": (
        lambda *v: lax.linalg.tridiagonal_solve(*v, perturb_singular=True),
        A[0],
        A[1] + 4,
        A[2],
        A,
    ),
    "qr": (lambda a: lax.linalg.qr(a, pivoting=True), A),
}


@pytest.mark.parametrize("name", ON_HOST)
def test_what_no_routine_is_called_for_says_that_it_runs_on_the_host(name, late, monkeypatch):
    function, *args = ON_HOST[name]
    want = gf.jit(function)(*args)
    others = SimpleNamespace(ascontiguousarray=np.ascontiguousarray)  # not NumPy
    monkeypatch.setattr(late.driver.api, "xp", others)
    try:
        with pytest.warns(UserWarning, match=rf"\[{name}\(.*on the host.*no routine"):
            got = gf.jit(function)(*[gf.device_put(x, late) for x in args])
        _check_same(got, want)
        assert [call.partition("(")[0] for call in late.driver.host_calls] == [name]
    finally:
        late.driver.host_calls.clear()


class _Other:
    """NumPy by another name."""

    def __getattr__(self, name):
        return getattr(np, name)


def test_a_call_for_the_host_leaves_the_others_of_its_op(late, monkeypatch):
    """`qr` with pivoting does not move what the library can do."""
    monkeypatch.setattr(late.driver.api, "xp", _Other())
    x = gf.device_put(A, late)
    through = []
    monkeypatch.setattr(
        LibraryCall,
        "_through_host",
        lambda call, *arrays, keep=LibraryCall._through_host: (
            through.append(call._name),
            keep(call, *arrays),
        ),
    )
    pivoted = gf.jit(partial(lax.linalg.qr, pivoting=True))
    try:
        with pytest.warns(UserWarning) as seen:
            pivoted(x)
            pivoted(x)
        (first,) = (str(one.message) for one in seen)
        assert re.match(r"\[qr\(float32\) with pivoting\] .*host each time.*no routine", first)
        assert "Fix: keep such calls out of what is to be fast." in first
        assert through == ["qr(float32)"] * 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            q, r = gf.jit(lax.linalg.qr)(x)
            np.testing.assert_allclose(q @ r, A, atol=1e-4)
        assert len(through) == 2
    finally:
        late.driver.host_calls.clear()


def test_a_library_that_finds_no_memory_gets_what_the_pools_keep(late, monkeypatch):
    api = late.driver.api
    view, given = api.view, []
    needs = [2]

    def full(data):
        if len(given) < needs[0]:
            raise RuntimeError("CUFFT_ALLOC_FAILED")
        return view(data)

    monkeypatch.setattr(api, "view", full)
    monkeypatch.setattr(api, "free_library_memory", lambda: given.append(1))
    step = gf.jit(lambda v: jnp.fft.rfft(v, axis=1))
    with pytest.raises(MemoryError, match=r"fft.*workspace memory.*CUFFT_ALLOC_FAILED"):
        step(gf.device_put(X, late))
    got = step(gf.device_put(X, late))
    np.testing.assert_allclose(got, np.fft.rfft(X, axis=1), rtol=1e-4, atol=1e-4)
    assert len(given) == 2 and not late.driver.host_calls


@pytest.mark.parametrize("says_little", [False, True])
def test_a_fault_is_one_error_wherever_it_comes_out(says_little, late, monkeypatch):
    """A library says a number only; CUDA says what it means when it is asked."""

    def fail(*_):
        raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure")

    def fail_shortly(*_):
        raise StatusError("[cublas] gemm must succeed; got status 13")

    def my_step(v):
        return jnp.fft.rfft(v @ v.T).real + 1

    api, x = late.driver.api, gf.device_put(X, late)
    step = gf.jit(my_step)
    step(x).block_until_ready()
    with monkeypatch.context() as patch:
        patch.setattr(api, "view", fail_shortly if says_little else fail)
        patch.setattr(api, "synchronize", fail)
        with pytest.raises(GpuFault, match=r"FAILED[\s\S]*my_step[\s\S]*context is lost") as seen:
            step(x)
    assert str(seen.value).count("context is lost") == 1
    assert not late.driver.host_calls
    with monkeypatch.context() as patch:
        patch.setattr(api, "copy_in", fail)
        with pytest.raises(GpuFault, match="LAUNCH_FAILED"):
            gf.device_put(X + 1, late)
    step(x).block_until_ready()


def test_peak_memory_is_counted(late):
    memory = late.driver.memory
    collect_garbage()
    before = memory.used
    x = gf.device_put(BIG, late)
    assert memory.used == before + BIG.nbytes and memory.peak >= memory.used
    del x
    assert memory.used == before
    assert set(late.driver.memory_stats()) >= {"bytes_in_use", "peak_bytes_in_use", "bytes_limit"}


def _small_device(capacity):
    return GpuDriver(LateApi(capacity))


def test_out_of_memory_tries_again_without_what_is_kept():
    driver = _small_device(40 << 20)
    arena = driver.acquire(_Named())
    arena.reserve(30 << 20)
    driver.release(arena)
    del arena
    assert driver.empty((30 << 20,), np.dtype(np.uint8)).nbytes == 30 << 20


def test_out_of_memory_takes_back_what_another_stream_reads():
    """The last block that waited was held by a name while its pool was emptied."""
    driver = _small_device(40 << 20)
    data = driver.from_host(np.zeros(30 << 20, np.uint8))
    del data  # waits for kernels, in the pool of copies
    assert driver.empty((30 << 20,), np.dtype(np.uint8)).nbytes == 30 << 20


def test_what_is_put_on_a_device_is_copied_once():
    """It was copied to the default device, and there once more: twice the memory of the array."""
    devices = gpu_devices("cuda_put_once", LateApi(), LateApi())
    logs = [dict(device.driver.api.log) for device in devices]
    memory = devices[1].driver.memory
    before, x = memory.count, gf.device_put(X, devices[1])
    assert memory.count == before + 1
    logs[1]["copy_in"] = logs[1].get("copy_in", 0) + 1
    assert [dict(device.driver.api.log) for device in devices] == logs
    np.testing.assert_array_equal(x, X)
    y = gf.device_put(x, devices[1])  # an Array is copied: the other one may be donated
    assert y.data.address != x.data.address
    cpu = gf.device_put(X, gf.devices("cpu")[0])
    assert gf.device_put(cpu, devices[1]).data.block is not x.data.block


class _Named:
    summary = "a program"


def test_out_of_memory_names_the_largest_arrays():
    driver = _small_device(4 * LARGE)
    large = driver.empty((LARGE // 4, 2), np.dtype(np.float32))
    with pytest.raises(MemoryError) as caught:
        driver.empty((LARGE,), np.dtype(np.float64))
    text = str(caught.value)
    assert "must have room for 128 MiB" in text and "Fix:" in text
    assert f"32 MiB: float32[{LARGE // 4},2], made at {__file__}" in text
    del large
    assert driver.empty((LARGE, 2), np.dtype(np.uint8)).nbytes == 2 * LARGE


def test_memory_is_taken_at_the_start_if_asked_for():
    api = LateApi(64 << 20)
    driver = GpuDriver(api, preallocate=0.5)
    assert api.memory.used >= 32 << 20
    assert driver.memory.used < 1 << 20


def test_a_fault_names_the_programs_that_may_have_failed(late, monkeypatch):
    def fail(stream):
        raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    def my_step(v):
        return jnp.tanh(v) + 1

    step = gf.jit(my_step)
    y = step(gf.device_put(X, late))
    y.block_until_ready()
    y = step(gf.device_put(X, late))
    with monkeypatch.context() as patch:
        patch.setattr(late.driver.api, "synchronize", fail)
        with pytest.raises(GpuFault, match=r"my_step[\s\S]*Fix: set GPUFLOW_CHECK=1"):
            y.block_until_ready()
    y.block_until_ready()


def test_texts_of_faults():
    error = RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: illegal")
    assert "in kernel k1." in str(fault(error, ["k1"], exactly=True))
    assert isinstance(fault(error, ["a", "b"]), GpuFault)
    other = fault(RuntimeError("CUDA_ERROR_INVALID_VALUE"), ["k1"], exactly=True)
    assert not isinstance(other, GpuFault)
    assert in_units(3 << 29) == "1.5 GiB" and in_units(7) == "7 bytes"


def test_explain_names_the_sources_that_are_launched(late):
    with gf.default_device(late):
        found = gf.explain(lambda a, b: [jnp.tanh(a) + 1, jnp.tanh(b) + 1], X, X[1:])
    (line,) = [line for line in found.text.splitlines() if "source" in line]
    source = Path(line.split()[-1]).expanduser()
    assert "cuda." in source.read_text()


def test_explain_shows_the_driver_of_a_gpu(late):
    with gf.default_device(late):
        text = str(gf.explain(lambda a: jnp.tanh(a) + 1, X, stage="driver"))
    assert text.startswith("def driver(operands, device=None):\n")
    assert " = operands[0].address\n" in text and "  # map_tanh_add\n" in text


def test_the_size_of_code_is_that_of_the_kernels_that_are_launched(late):
    step = gf.jit(lambda a, b: [jnp.sin(a) + 1, jnp.sin(b) + 1])
    with gf.default_device(late):
        analysis = step.lower(X, X[1:]).compile().memory_analysis()
    assert analysis.generated_code_size_in_bytes > 0


def _steps(x, parts):
    for k in range(4):
        x = jnp.sin(x + (x.sum() if k % 2 else x.max()) * 0.01) @ jnp.eye(x.shape[1])
    return x, [p * x.sum() + 1 for p in parts]


def test_launches_are_recorded_and_replayed(late):
    api, step = late.driver.api, gf.jit(_steps)
    parts = [X[k:] for k in range(3)]
    want = gf.jit(_steps)(X, parts)
    given = [gf.device_put(value, late) for value in (X, *parts)]
    before = dict(api.log)
    results = [step(given[0], given[1:]) for _ in range(3)]
    assert api.log["record"] == before.get("record", 0) + 1
    launches = api.log["launch"]
    for _ in range(4):  # outputs go to the memory of those that are dropped
        results = [*results[1:], step(given[0], given[1:])]
    assert api.log["replay"] > before.get("replay", 0)
    assert api.log["launch"] - launches <= 3 * 20
    for result in results:
        _check_same(result, want)
    bits = [np.asarray(result[0]).tobytes() for result in results]
    assert len(set(bits)) == 1


def test_replays_with_other_addresses_have_their_own_tables(late):
    step = gf.jit(_steps)
    parts = [X[k:] for k in range(3)]
    kept = []
    for number in range(8):
        given = [gf.device_put(value + number % 2, late) for value in (X, *parts)]
        kept.append((number % 2, given, step(given[0], given[1:])))
    wants = [gf.jit(_steps)(X + n, [p + n for p in parts]) for n in (0, 1)]
    for number, _, got in kept:
        _check_same(got, wants[number])


def test_donated_steps_replay_in_place(late):
    def train(w):
        for _ in range(3):
            w = w - 0.1 * jnp.tanh(w @ jnp.eye(w.shape[1]) + w.mean())
        return w

    step, plain = gf.jit(train, donate_argnums=0), gf.jit(train)
    w, want = gf.device_put(X, late), X
    before = late.driver.api.log["replay"]
    for _ in range(6):
        w, want = step(w), plain(want)
    assert late.driver.api.log["replay"] >= before + 3
    np.testing.assert_allclose(w, want, rtol=1e-4, atol=1e-4)


def test_addresses_that_never_come_again_stop_the_recording():
    calls = []
    api = LateApi()
    one = RecordableCall(
        lambda place, stream=1: api._enqueue(stream, lambda: calls.append(place)), ((0, 0),)
    )
    device = SimpleNamespace(api=api, compute=1)
    recorded = RecordedLaunches(device, one.run, [one], [BufferAccess(4)])
    for number in range(100):
        recorded(number)
    api.synchronize(1)
    assert calls == list(range(100))
    assert api.log["record"] == 16
    for _ in range(3):
        recorded(99)  # recordings that nobody replayed earn no others
    assert api.log["record"] == 16
