"""Collectives of GPUs in a trace of the profiler: a row of their own, beside the steps."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from test_nccl_streams import single, total, two

import gpuflow as gf
from gpuflow.core.communicator import PROCESSES, serving
from gpuflow.targets.cuda_sim.driver import SimApi

__all__ = ["two"]  # a fixture
pytestmark = requires_cuda_tools
# More than 64 KiB: smaller sums are joined.
X = np.random.default_rng(0).standard_normal((136, 136)).astype(np.float32) / 12


def rows_of(folder):
    (path,) = folder.glob("plugins/profile/*/*.trace.json.gz")
    (plane,) = gf.profiler.ProfileData.from_file(path).planes
    return {line.name: list(line.events) for line in plane.lines}


def backward(x):
    """Products, the sum of the first beside the others, and a sum at once."""
    first = x @ x
    begun = total(first)
    second = first @ x @ x
    return begun * 2, total(second)


@pytest.fixture
def traced(two, tmp_path):
    """A program on a late GPU whose side stream runs as soon as it may; its rows in a trace."""
    where = two.devices[0]
    api = where.driver.api
    api.activate()
    comm, _ = single(where)
    x = gf.device_put(X, where)

    def give(stream, work):
        def run():
            api._run(comm._side.address)
            work()

        SimApi._enqueue(api, stream, run)

    api._enqueue = give
    with serving(PROCESSES, comm):
        step = gf.jit(backward)
        for _ in range(3):
            want = gf.tree.map(np.asarray, step(x))
        with gf.profiler.trace(tmp_path):
            got = step(x)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not where.driver.side_work
    return rows_of(tmp_path), step, x, comm, where


def test_collectives_have_a_row_and_overlap_the_steps_beside_them(traced):
    rows, *_ = traced
    first, second = rows["collectives"]
    assert first.name == second.name == "all_reduce"
    assert dict(first.stats)["bytes"] == X.nbytes and dict(first.stats)["axis"] == "processes"
    steps = [*rows["kernels"], *rows["libraries"]]
    beside = [
        step
        for step in steps
        if step.name == "dot_general"
        and step.start_ns < first.end_ns
        and first.start_ns < step.end_ns
    ]
    assert beside, [(step.name, step.start_ns, step.end_ns) for step in [first, *steps]]
    assert first.end_ns <= second.start_ns + 1000  # microseconds in the file


def test_without_a_trace_nothing_is_timed(traced, monkeypatch):
    _, step, x, comm, where = traced

    def timed_event(stream):
        raise AssertionError("timed without a trace")

    monkeypatch.setattr(where.driver.api, "timed_event", timed_event)
    with serving(PROCESSES, comm):
        gf.tree.map(np.asarray, step(x))
    assert not where.driver.side_work


def test_work_of_an_old_trace_is_not_shown(traced, tmp_path):
    _, step, x, comm, where = traced
    where.driver.side_work.append(type("Old", (), {"recording": object()})())
    with serving(PROCESSES, comm), gf.profiler.trace(tmp_path / "second"):
        step(x)
    assert len(rows_of(tmp_path / "second")["collectives"]) == 2 and not where.driver.side_work
