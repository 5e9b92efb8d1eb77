"""Rows of a trace and statistics of memory, on simulated GPUs."""

import itertools

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import LateApi, gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import profiler
from gpuflow.base.garbage import collect_garbage

pytestmark = requires_cuda_tools
X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
KEYS = {
    "num_allocs",
    "bytes_in_use",
    "peak_bytes_in_use",
    "largest_alloc_size",
    "bytes_limit",
}


@pytest.fixture(scope="module")
def late():
    return gpu_devices("cuda_late_marks", LateApi())[0]


@pytest.fixture(params=["late", "sim"])
def device(request):
    return request.getfixturevalue("late") if request.param == "late" else gf.devices("cuda_sim")[0]


@gf.jit
def program(x):
    """Kernels, products, a loop with a library call in it, a copy and a host function."""
    y = jnp.sin(x) @ x.T
    for _ in range(3):
        y = jnp.cos(y) @ y
    loop = gf.lax.while_loop(
        lambda c: c.sum() < 1e3, lambda c: abs(jnp.fft.fft(c * 2 + 1, axis=1)), abs(x)
    )
    host = gf.pure_callback(lambda v: np.asarray(v) * 2, gf.ShapeDtypeStruct((8, 6), "float32"), x)
    return gf.nn.softmax(y), loop, host, x[::2]


def _rows(folder):
    (path,) = folder.glob("plugins/profile/*/*.trace.json.gz")
    (plane,) = profiler.ProfileData.from_file(path).planes
    return {line.name: list(line.events) for line in plane.lines}


def test_steps_of_gpu_programs_are_on_rows_of_their_kind(device, tmp_path):
    x = gf.device_put(X, device)
    for _ in range(4):  # it is replayed by now
        want = gf.tree.map(np.asarray, program(x))
    with profiler.trace(tmp_path):
        got = program(x)
        copied = np.asarray(gf.device_put(X, device))
    rows = _rows(tmp_path)
    names = {row: [event.name for event in events] for row, events in rows.items()}
    assert any(name.startswith("map_sin") for name in names["kernels"])
    assert names["libraries"].count("dot_general") == 4 and "fft" in names["libraries"]
    assert "while" in names["loops"][0] and names["host functions"] == ["pure_callback"]
    assert {"to the device", "to the host", "copy"} <= set(names["copies"])
    sine = next(event for event in rows["kernels"] if event.name.startswith("map_sin"))
    details = dict(sine.stats)
    assert details["ops"].startswith("sin") and details["bytes"] >= 2 * X.nbytes
    assert all(event.start_ns <= event.end_ns for event in rows["kernels"])
    np.testing.assert_array_equal(copied, X)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)  # and the same bits as without a trace


def test_steps_do_not_wait_for_each_other_and_nothing_is_recorded(late, tmp_path):
    api, x = late.driver.api, gf.device_put(X, late)
    step = gf.jit(lambda v: [jnp.sin(v @ (v.T @ v) + v.sum(0, keepdims=True)) @ v.T for _ in "ab"])
    for _ in range(4):
        step(x)
    before = api.log.copy()
    with profiler.trace(tmp_path):
        for _ in range(4):
            step(x)
    assert api.log["replay"] == before.get("replay", 0)
    assert api.log["synchronize"] - before["synchronize"] == 2 * 4
    steps = sorted(
        (event.start_ns, event.end_ns)
        for row in ("kernels", "libraries")
        for event in _rows(tmp_path)[row]
    )
    for (_, end), (start, _) in itertools.pairwise(steps):
        assert end <= start + 1000  # microseconds in the file
    step(x)
    before = api.log.copy()
    for _ in range(3):
        step(x)
    assert api.log["synchronize"] == before["synchronize"]


def test_statistics_of_a_gpus_memory(device):
    collect_garbage()
    before = device.memory_stats()
    assert set(before) == KEYS
    x = gf.device_put(np.zeros(1 << 20, np.float32), device)
    stats = device.memory_stats()
    assert stats["bytes_in_use"] == before["bytes_in_use"] + x.nbytes
    assert stats["peak_bytes_in_use"] >= stats["bytes_in_use"]
    assert stats["num_allocs"] > before["num_allocs"]
    assert x.nbytes <= stats["largest_alloc_size"] <= stats["bytes_limit"]
    del x
    assert device.memory_stats()["bytes_in_use"] == before["bytes_in_use"]


def test_statistics_of_the_cpus_memory():
    (cpu, *_) = gf.devices("cpu")
    before = cpu.memory_stats()
    x = gf.jit(lambda v: v + 1)(gf.device_put(np.zeros(1 << 22, np.float32), cpu))
    x.block_until_ready()
    stats = cpu.memory_stats()
    assert set(stats) == KEYS and all(type(value) is int for value in stats.values())
    assert stats["num_allocs"] > before["num_allocs"]
    assert stats["largest_alloc_size"] >= x.nbytes
    assert 0 < stats["bytes_in_use"] <= stats["peak_bytes_in_use"]
