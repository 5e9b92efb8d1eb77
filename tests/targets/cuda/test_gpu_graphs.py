"""Graphs of launches: what is recorded, replayed and changed, and that bits stay the same."""

import ctypes
from array import array
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import LateApi, gpu_devices
from test_cuda_sim import PROGRAMS

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.config import config
from gpuflow.base.garbage import collect_garbage
from gpuflow.targets.cuda.runtime.driver import graphs
from gpuflow.targets.cuda.runtime.driver.api import LibraryWork, LoadedKernel
from gpuflow.targets.cuda.runtime.driver.graph_api import (
    _SIGNATURES,
    LaunchGraph,
    NodeParameters,
    bind_driver_launch,
    load_graph_calls,
)
from gpuflow.targets.cuda_sim.driver import SimApi

X = np.random.default_rng(0).normal(size=(8, 24)).astype(np.float32)


@pytest.fixture(scope="module")
def late():
    return gpu_devices("cuda_late_graphs", LateApi())[0]


@pytest.fixture(scope="module")
def early():
    return gpu_devices("cuda_early_graphs", SimApi())[0]


def _chain(x, count):
    """Launches that do not fuse."""
    for k in range(count):
        x = jnp.sin(x + x.sum(k % 2, keepdims=True) * 0.01) @ jnp.eye(x.shape[1])
    return x


def _split(x):
    x = jnp.fft.fft(_chain(x, 3), axis=1).real * 0.1
    return jnp.fft.fft(_chain(x, 2), axis=0).real, _chain(x, 1)


@requires_cuda_tools
def test_runs_of_launches_between_library_calls_are_recorded(late):
    api, x = late.driver.api, gf.device_put(X, late)
    step = gf.jit(_split)
    want = [np.asarray(out) for out in gf.jit(_split)(X)]
    before = dict(api.log)
    for _ in range(6):
        outs = step(x)
        for got, expected in zip(outs, want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
    recorded = api.log["record"] - before.get("record", 0)
    assert recorded >= 2  # before the first transform, and between the two
    assert api.log["replay"] - before.get("replay", 0) >= 2 * 4


def _bits(name, device):
    function, *args = PROGRAMS[name]
    with gf.default_device(device):
        step = gf.jit(function)
        results = [step(*gf.tree.map(jnp.asarray, tuple(args))) for _ in range(5)]
    return [[np.asarray(leaf).tobytes() for leaf in gf.tree.leaves(got)] for got in results]


@requires_cuda_tools
@pytest.mark.parametrize(
    "name", ["training step", "recurrence", "several sums", "loop in the middle", "updates"]
)
@pytest.mark.parametrize("where", ["late", "early"])
def test_bits_are_those_without_graphs(name, where, request, monkeypatch):
    device = request.getfixturevalue(where)
    with_graphs = _bits(name, device)
    monkeypatch.setattr(config, "environment", replace(config.environment, cuda_graphs=False))
    device.driver._forget_idle()  # programs are printed again
    gf.clear_caches()
    before = device.driver.api.log["record"] if where == "late" else 0
    without = _bits(name, device)
    assert with_graphs == without and all(bits == without[0] for bits in without)
    if where == "late":
        assert device.driver.api.log["record"] == before


@requires_cuda_tools
def test_launches_get_new_addresses_where_few_of_them_change(late):
    api = late.driver.api

    def work(x):
        return jnp.tanh(_chain(jnp.cos(x), 6))  # products know no changes: their places are fixed

    step = gf.jit(work)
    want = [np.asarray(gf.jit(work)(X + k)) for k in range(12)]
    kept = []
    before = dict(api.log)
    for k in range(12):
        x = gf.device_put(X + k, late)
        kept.append((x, step(x)))  # nothing is freed, so that no address comes again
    for (_, got), expected in zip(kept, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
    assert api.log["record"] - before.get("record", 0) == 4
    assert api.log["change"] > before.get("change", 0)
    assert api.log["replay"] - before.get("replay", 0) == 10
    # What was changed is right for its old addresses too, when they come again.
    np.testing.assert_array_equal(step(kept[2][0]), kept[2][1])


# --- recording stops ---

W = np.random.default_rng(1).normal(size=(24, 24)).astype(np.float32) / 5


def _counts(api, before):
    return {name: api.log[name] - before.get(name, 0) for name in ("record", "replay", "change")}


def _layers(x, w):
    for _ in range(3):
        x = jnp.tanh(x @ w) + x.sum(0)
    return x


@requires_cuda_tools
def test_a_batch_that_a_product_reads_is_copied_where_its_address_keeps_changing(late):
    """A changed address cost a recording each, and never stopped; a product cannot be changed."""
    api, step, w = late.driver.api, gf.jit(lambda x, w: _layers(x, w).sum()), gf.device_put(W, late)
    want = [np.asarray(gf.jit(_layers)(X + k, W)).sum(dtype=np.float64) for k in range(40)]
    before, kept = dict(api.log), []
    for k in range(40):
        x = gf.device_put(X + k, late)
        kept.append((x, step(x, w)))
    for (_, got), expected in zip(kept, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4)
    counts = _counts(api, before)
    assert counts["record"] <= 5
    assert counts["replay"] >= 36


@requires_cuda_tools
def test_a_result_that_a_product_writes_is_copied_too(late):
    def work(x, w):
        y = _layers(x, w)
        return y @ w  # the product writes what is allocated for each call

    api, step = late.driver.api, gf.jit(work)
    x, w, kept = gf.device_put(X, late), gf.device_put(W, late), []
    before = dict(api.log)
    for _ in range(20):
        kept.append(step(x, w))
    want = np.asarray(gf.jit(work)(X, W))
    for got in kept:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    counts = _counts(api, before)
    assert counts["record"] <= 5 and counts["replay"] >= 16


@requires_cuda_tools
def test_recording_stops_where_nothing_can_be_changed_or_copied(late, monkeypatch):
    monkeypatch.setattr(graphs, "_MAX_COPIED_BYTES", 0)
    api, step, w = late.driver.api, gf.jit(_layers), gf.device_put(W, late)
    before, kept = dict(api.log), []
    for k in range(60):
        x = gf.device_put(X + k, late)
        kept.append((x, step(x, w)))
    counts = _counts(api, before)
    assert counts["record"] <= 16  # and those that nobody replayed earn no others
    np.testing.assert_allclose(kept[-1][1], gf.jit(_layers)(X + 59, W), rtol=1e-4, atol=1e-4)


@requires_cuda_tools
def test_the_steps_of_a_loop_are_not_recorded_one_by_one(late, monkeypatch):
    """A loop of 60 steps made 60 recordings in each call: a recording counted as a replay."""
    by_python = replace(config.environment, block_programs=False)
    monkeypatch.setattr(config, "environment", by_python)

    def body(carry, x):
        for _ in range(3):
            carry = jnp.tanh(carry @ jnp.asarray(W) + x @ jnp.asarray(W))
        return carry, carry.sum(0)

    xs = np.random.default_rng(2).normal(size=(60, 8, 24)).astype(np.float32)
    run = gf.jit(lambda c, xs: gf.lax.scan(body, c, xs))
    want = run(X, xs)
    api, x, given = late.driver.api, gf.device_put(X, late), gf.device_put(xs, late)
    recorded = []
    for _ in range(6):
        before = dict(api.log)
        got = run(x, given)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
        recorded.append(_counts(api, before))
    assert recorded[0]["record"] <= 5 and recorded[0]["replay"] >= 56
    # One more than the steps: three products and the copy of the start, which lie in front.
    assert sum(counts["record"] for counts in recorded) <= 8
    assert recorded[-1] == {"record": 0, "replay": 61, "change": recorded[-1]["change"]}
    assert recorded[-1]["change"] <= 3 * 60  # of the kernels that touch the state and the sums


@requires_cuda_tools
def test_tables_of_changed_recordings_are_brought_up_to_date(late):
    def work(x, parts):
        return _chain(x, 6), [p * x.sum() + 1 for p in parts]

    step, kept = gf.jit(work), []
    for k in range(10):
        given = [gf.device_put(value + k, late) for value in (X, X[1:], X[2:])]
        kept.append((given, step(given[0], given[1:])))
    for k, (_, (_, scaled)) in enumerate(kept):
        for number, got in enumerate(scaled):
            want = (X[number + 1 :] + k) * (X + np.float32(k)).sum() + 1
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


class FakeCuda:
    """The driver's calls for graphs, which keep what they were told.

    ``graphs`` are those that nobody has destroyed.
    """

    def __init__(self, fails=""):
        self.nodes, self.captured, self.told, self.fails = [], [], [], fails
        self.capturing, self.graphs = False, set()

    def __getattr__(self, name):
        def call(*given):
            assert len(given) == len(_SIGNATURES[name])
            self.told.append(name)
            return 700 if name == self.fails else getattr(self, f"_{name}", lambda *_: 0)(*given)

        if name not in _SIGNATURES:
            raise AttributeError(name)
        return call

    def _cuGraphCreate(self, place, flags):
        assert flags == 0
        place._obj.value = 100
        self.graphs.add(100)
        return 0

    def _cuGraphDestroy(self, graph):
        self.graphs.remove(graph.value)
        return 0

    def _add(self, place, graph, before, count, node):
        assert graph.value == 100
        assert before[0] == (1000 + len(self.nodes) - 1 if self.nodes else None)
        assert count == (1 if self.nodes else 0)
        place._obj.value = 1000 + len(self.nodes)
        self.nodes.append(node)
        return 0

    def _cuGraphAddKernelNode_v2(self, place, graph, before, count, node):
        assert not self.capturing
        return self._add(place, graph, before, count, node._obj)

    def _cuGraphAddChildGraphNode(self, place, graph, before, count, part):
        return self._add(place, graph, before, count, part.value)

    def _cuStreamBeginCapture_v2(self, stream, mode):
        assert (stream, mode) == (9, 2)
        self.capturing = True
        return 0

    def _cuStreamEndCapture(self, stream, place):
        assert stream == 9
        self.capturing = False
        place._obj.value = 300
        self.graphs.add(300)
        return 0

    def _cuGraphInstantiateWithFlags(self, place, graph, flags):
        assert graph.value == 100 and flags == 0
        place._obj.value = 200
        return 0

    def _cuGraphLaunch(self, graph, stream):
        assert (graph.value, stream) == (200, 7)
        return 0

    def _cuGraphExecKernelNodeSetParams_v2(self, graph, node, place):
        assert graph.value == 200
        self.changed = node, place._obj
        return 0

    def launch(self, *given):
        raise AssertionError("a kernel is a node, and is not captured")

    def multiply(self, stream):
        assert self.capturing
        self.captured.append(stream)


def _words(*numbers):
    return array("q", numbers)


def test_kernels_are_nodes_and_only_a_librarys_calls_are_captured():
    cuda = FakeCuda()
    words = _words(5, 6)
    launch = bind_driver_launch(cuda.launch, LoadedKernel(42, None), (3,), (128, 2), words, 7)
    graph = LaunchGraph(cuda, 7, 9, [launch, LibraryWork(cuda.multiply), launch], nullcontext())
    first, product, last = cuda.nodes
    assert (first.func, first.gridDimX, first.gridDimY, first.blockDimY) == (42, 3, 1, 2)
    assert (product, cuda.captured, last.func) == (300, [9], 42)
    assert cuda.told.count("cuStreamBeginCapture_v2") == 1
    assert cuda.told.count("cuGraphDestroy") == 1  # of what was captured: the node is a copy
    graph()
    assert cuda.told[-1] == "cuGraphLaunch"
    words[1] = 8
    other = bind_driver_launch(cuda.launch, LoadedKernel(43, None), (4, 5), (64,), words, 7)
    assert graph.change_launch(2, other)
    node, told = cuda.changed
    assert node == 1002
    assert (told.func, told.gridDimX, told.gridDimY, told.gridDimZ) == (43, 4, 5, 1)
    assert (told.blockDimX, told.blockDimY, told.sharedMemBytes) == (64, 1, 0)
    pointers = ctypes.cast(told.kernelParams, ctypes.POINTER(ctypes.c_void_p))
    assert ctypes.c_longlong.from_address(pointers[1]).value == 8
    assert not graph.change_launch(1, other)  # the nodes of a library's call are not known
    assert not graph.change_launch(0, lambda: None)
    del graph
    assert cuda.told[-2:] == ["cuGraphExecDestroy", "cuGraphDestroy"]


CALLS = [
    "cuGraphCreate",
    "cuGraphAddKernelNode_v2",
    "cuGraphAddChildGraphNode",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
]


@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_recorded_is_an_error(name):
    cuda = FakeCuda(name)
    launch = bind_driver_launch(cuda.launch, LoadedKernel(42, None), (3,), (128,), _words(5), 7)
    with pytest.raises(RuntimeError, match=r"\[cuda graph\] .* status 700 .*Fix:"):
        LaunchGraph(cuda, 7, 9, [launch, LibraryWork(cuda.multiply)], nullcontext())
    collect_garbage()
    assert not cuda.graphs


def test_a_capture_ends_when_its_work_fails():
    cuda = FakeCuda()

    def fail(stream):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        LaunchGraph(cuda, 7, 9, [LibraryWork(fail)], nullcontext())
    collect_garbage()
    assert not cuda.capturing and not cuda.graphs


def test_parameters_of_a_node_are_laid_out_as_cuda_says():
    offsets = {name: getattr(NodeParameters, name).offset for name, _ in NodeParameters._fields_}
    assert offsets["kernelParams"] == 40 and offsets["ctx"] == 64
    assert ctypes.sizeof(NodeParameters) == 72


def test_a_library_that_is_none_of_cuda():
    with pytest.raises((OSError, AttributeError)):
        load_graph_calls("libm.so.6")
