"""Attention by a library: which calls it gets, its trial, and plans of cuDNN without a GPU."""

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import LateApi, gpu_devices, shifted

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import nn
from gpuflow.base.dtypes import bfloat16
from gpuflow.core.blocks import Attention
from gpuflow.targets.cuda.dnn import cudnn, graphs
from gpuflow.targets.cuda.dnn.attention import MOST_WORKSPACE, CudnnAttention
from gpuflow.targets.cuda.dnn.attention_calls import AttentionCall, ChosenAttention
from gpuflow.targets.cuda.dnn.attention_trial import TriedAttention, small_arrays, small_call
from gpuflow.targets.cuda.providers.library_attention import call_of

HALF = np.dtype(np.float16)
WHAT = Attention(2, 6, 8, 4, 2, 16, 0.25, True, None, None, None, False, False, False)
CALL = AttentionCall(2, 6, 8, 4, 2, 16, 0.25, True, HALF)
MASKS = {
    "right": lambda t, s: np.tri(t, s, dtype=bool),
    "strict": lambda t, s: np.tri(t, s, -1, dtype=bool) | (np.arange(s) == 0),
    "from the end": lambda t, s: np.tri(t, s, s - t, dtype=bool) | (np.arange(s) == 0),
    "none": lambda t, s: np.ones((t, s), bool),
}


class NumpyAttention:
    """A library that takes every call, in NumPy on the memory of a simulated GPU."""

    def __init__(self, api, mask="right", base=np.e):
        self.api, self.mask, self.base, self.calls = api, MASKS[mask], base, []

    def choose(self, call, deterministic):
        assert deterministic
        return ChosenAttention(call, 0, 640)

    def why_not(self, call, deterministic):
        return "it does not take this"

    def version(self):
        return "9.28.1"

    def bind(self, chosen, stream):
        call = chosen.call

        def attend(query, key, value, out, sums, workspace, recorded=stream):
            self.calls.append(call)
            self.api._give(recorded, lambda: self._work(call, query, key, value, out, sums,
                                                        workspace))  # fmt: skip

        return attend

    def _array(self, place, shape, dtype, writes=False):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.ndarray(shape, dtype, self.api.memory.view(place, count, writes=writes))

    def _work(self, call, query, key, value, out, sums, workspace):
        self.api.memory.view(workspace, 640)[:] = 0xFF
        rows = (call.batch, call.queries, call.heads, call.size)
        columns = (call.batch, call.keys, call.key_heads, call.size)
        q = self._array(query, rows, call.dtype).astype(np.float64)
        k, v = (
            np.repeat(self._array(place, columns, call.dtype).astype(np.float64),
                      call.heads // call.key_heads, axis=2)
            for place in (key, value)
        )  # fmt: skip
        scores = np.einsum("btnd,bsnd->bnts", q, k) * call.scale
        if call.causal:
            scores = np.where(self.mask(call.queries, call.keys), scores, -np.inf)
        weights = np.exp(scores)
        total = weights.sum(-1, keepdims=True)
        mixed = np.einsum("bnts,bsnd->btnd", weights / total, v)
        self._array(out, rows, call.dtype, True)[...] = mixed
        logs = np.log(total[..., 0]) / np.log(self.base)
        self._array(sums, logs.shape, np.float32, True)[...] = logs


@pytest.fixture
def device():
    (found,) = gpu_devices("late_cudnn_attention", LateApi())
    return found


# --- which calls ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [HALF, bfloat16])
def test_what_means_the_same_is_taken(dtype):
    assert call_of(WHAT, dtype) == replace(CALL, dtype=dtype)
    assert call_of(replace(WHAT, causal=False), dtype) == replace(CALL, causal=False, dtype=dtype)


@pytest.mark.parametrize("change", [
    {"gradient": True}, {"bias": (1, 1, 6, 8)}, {"mask": (1, 1, 6, 8)}, {"window": (1, 1)},
    {"query_lengths": True}, {"key_lengths": True}, {"size": 20}, {"batch": 1 << 30},
], ids=str)  # fmt: skip
def test_what_means_something_else_is_not(change):
    assert call_of(replace(WHAT, **change), HALF) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_floats_are_ours(dtype):
    assert call_of(WHAT, np.dtype(dtype)) is None


@requires_cuda_tools
@pytest.mark.parametrize("mask, takes", [("right", True), ("strict", False)])
def test_attention_on_the_device(mask, takes, device, monkeypatch):
    """By the library where its trial is right, with gradients by our kernels; else by ours."""
    library = NumpyAttention(device.driver.api, mask)
    tried = TriedAttention(library, device.driver.api)
    for name in ("attentions", "attention_chooser"):
        monkeypatch.setattr(device.driver.api, name, tried)
    rng = np.random.default_rng(3)
    q, k, v, ct = (
        rng.integers(-4, 5, (1, n, 2, 16)) / 4 for n in (6, 8, 8, 6)
    )

    def call(q, k, v, ct):
        attend = lambda *x: nn.dot_product_attention(*x, is_causal=True)  # noqa: E731
        out, pull = gf.vjp(attend, q, k, v)
        return (out, *pull(ct))

    with gf.default_device(device):
        operands = [jnp.asarray(x, jnp.float16) for x in (q, k, v, ct)]
        with contextlib.nullcontext() if takes else pytest.warns(UserWarning, match="small causal"):
            got = [np.asarray(x, np.float64) for x in gf.jit(call)(*operands)]
    with gf.default_device(gf.devices("cpu")[0]):
        wants = [np.asarray(x) for x in call(*[jnp.asarray(x, jnp.float32) for x in (q, k, v, ct)])]
    for one, want in zip(got, wants, strict=True):
        np.testing.assert_allclose(one, want, atol=1e-2)
    assert (AttentionCall(1, 6, 8, 2, 2, 16, 0.25, True, HALF) in library.calls) is takes


@requires_cuda_tools
@pytest.mark.parametrize("mask", ["right", "strict", None])
def test_explain_says_what_makes_attention_and_why(mask, device, monkeypatch):
    api = device.driver.api
    if mask is not None:
        tried = TriedAttention(NumpyAttention(api, mask), api)
        for name in ("attentions", "attention_chooser"):
            monkeypatch.setattr(api, name, tried)

    def made_by(dtype, **options):
        attend = lambda x: nn.dot_product_attention(x, x, x, is_causal=True, **options)  # noqa: E731
        with gf.default_device(device), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the wrong one
            text = gf.explain(attend, jnp.zeros((1, 6, 2, 16), dtype)).text
        text = " ".join(text.split())
        return text.partition("made by ")[2].partition(" stores")[0]

    ours = "kernels of ours; not cuDNN: "
    if mask is None:
        reason = "it is not in use: GPUFLOW_CUDNN=0, or a simulated GPU"
        assert made_by(jnp.float16) == ours + reason
        return
    wrong = "it was wrong about a small call of this kind, which was compared with NumPy"
    assert made_by(jnp.float16) == ("cuDNN 9.28.1" if mask == "right" else ours + wrong)
    assert made_by(jnp.float32) == ours + "it takes float16 and bfloat16"
    windowed = made_by(jnp.float16, local_window_size=2)
    assert windowed == ours + "it is not used with a bias, a mask, a window or lengths"


@requires_cuda_tools
@pytest.mark.parametrize("shifts", [(0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 3)])
def test_arrays_between_vectors_are_ours(shifts, device, monkeypatch):
    """Where arrays of other libraries begin is known when a program runs."""
    library = NumpyAttention(device.driver.api)
    tried = TriedAttention(library, device.driver.api)
    for name in ("attentions", "attention_chooser"):
        monkeypatch.setattr(device.driver.api, name, tried)
    rng = np.random.default_rng(5)
    arrays = [rng.integers(-4, 5, (1, n, 2, 16)).astype(np.float16) / 4 for n in (6, 8, 8)]

    def attend(q, k, v):
        step = lambda *x: nn.dot_product_attention(*x, is_causal=True)  # noqa: E731
        out, pull = gf.vjp(step, q, k, v)
        return (out, *pull(out))

    call = AttentionCall(1, 6, 8, 2, 2, 16, 0.25, True, HALF)
    with gf.default_device(device):
        operands = [
            shifted(device, one, "float16", count)
            for one, count in zip(arrays, shifts, strict=True)
        ]
        step = gf.jit(attend)
        results = [[np.asarray(x, np.float64) for x in step(*operands)] for _ in range(6)]
    with gf.default_device(gf.devices("cpu")[0]):
        wants = [np.asarray(x) for x in attend(*[jnp.asarray(x, jnp.float32) for x in arrays])]
    for got in results:
        for one, want in zip(got, wants, strict=True):
            np.testing.assert_allclose(one, want, atol=1e-2)
    assert (call in library.calls) is not any(shifts)


# --- the trial -----------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_the_trial_of_a_right_library(causal, group, device, recwarn):
    library = NumpyAttention(device.driver.api)
    tried = TriedAttention(library, device.driver.api)
    call = replace(CALL, causal=causal, heads=2 * group)
    assert tried.choose(call, True).call == call
    assert {(one.queries > one.keys, one.causal) for one in library.calls} == {
        (False, causal), (True, causal)
    }  # fmt: skip
    tried.choose(replace(call, queries=17), True)
    assert len(library.calls) == 2 and not recwarn.list


@pytest.mark.parametrize("wrong", [
    {"mask": "strict"}, {"mask": "from the end"}, {"mask": "none"}, {"base": 2},
], ids=str)  # fmt: skip
def test_the_trial_of_a_wrong_library(wrong, device):
    tried = TriedAttention(NumpyAttention(device.driver.api, **wrong), device.driver.api)
    with pytest.warns(UserWarning, match="must equal NumPy's for a small causal attention"):
        assert tried.choose(CALL, True) is None
    assert tried.choose(CALL, True) is None


def test_a_trial_that_cannot_run(device):
    class Fails(NumpyAttention):
        def bind(self, chosen, stream):
            raise cudnn.CudnnError(Recorder(), "cudnnBackendExecute", chosen.call, 5000)

    tried = TriedAttention(Fails(device.driver.api), device.driver.api)
    with pytest.warns(UserWarning, match="cudnnBackendExecute must succeed"):
        assert tried.choose(CALL, True) is None


def test_what_a_trial_cannot_show_is_not_taken(device):
    """A library that refuses the small calls says nothing of how it masks."""

    class RefusesSmallOnes(NumpyAttention):
        def choose(self, call, deterministic):
            return super().choose(call, deterministic) if call == CALL else None

    assert TriedAttention(RefusesSmallOnes(device.driver.api), device).choose(CALL, True) is None


def test_small_arrays_tell_masks_apart():
    call = small_call((72, 40), HALF, 16, 2, True)
    _, (out, sums) = small_arrays(call)
    assert out.shape == (2, 72, 4, 16) and sums.shape == (2, 4, 72)
    _, (plain, _) = small_arrays(replace(call, causal=False))
    assert abs(out - plain).max() > 0.1


# --- cuDNN's functions ---------------------------------------------------------------------


class Recorder:
    """cuDNN's graph functions: they keep what they are told. Two plans; the first one's may vary.

    Attributes:
        statuses: what a function returns in place of 0.
        ran: attributes of the packs of each execution, with the stream.
    """

    version = 92100

    def __init__(self, workspace=512):
        self.kinds, self.told, self.dead = {}, {}, set()
        self.statuses, self.ran, self.stream, self.workspace = {}, [], None, workspace
        self.cudnnGetVersion = lambda: self.version
        self.configs = []

    def __getattr__(self, name):
        if not name.startswith("cudnn"):
            raise AttributeError(name)
        answer = lambda *arguments: getattr(self, f"_{name}")(*arguments)  # noqa: E731
        return lambda *arguments: self.statuses.get(name, 0) or answer(*arguments)

    def cudnnGetErrorString(self, status):
        return {3000: b"CUDNN_STATUS_NOT_SUPPORTED", 5000: b"CUDNN_STATUS_EXECUTION_FAILED"}[status]

    def cudnnGetLastErrorString(self, place, count):
        ctypes.memmove(place, b"because\0", 8)

    def _cudnnCreate(self, place):
        place._obj.value = 77
        return 0

    def _cudnnSetStream(self, handle, stream):
        self.stream = stream
        return 0

    def _cudnnBackendCreateDescriptor(self, kind, place):
        place._obj.value = 1000 + len(self.kinds)
        self.kinds[place._obj.value], self.told[place._obj.value] = kind, {}
        return 0

    def _cudnnBackendDestroyDescriptor(self, one):
        assert one not in self.dead
        self.dead.add(one)
        return 0

    def _cudnnBackendSetAttribute(self, one, name, kind, count, place):
        self.told[one][name] = list((graphs._VALUES[kind] * count).from_address(place))
        return 0

    def _cudnnBackendFinalize(self, one):
        return 0

    def _cudnnBackendGetAttribute(self, one, name, kind, most, count, place):
        values = (graphs._VALUES[kind] * most).from_address(place)
        found = 1
        if name == graphs.HEURISTIC_RESULTS:
            found, self.configs = 2, list(values)[:2]
        elif name == graphs.CONFIG_ENGINE:
            self.told[values[0]]["config"] = one
        elif name == graphs.ENGINE_NUMERICAL_NOTES:
            values[0] = 4 if self.told[one]["config"] == self.configs[0] else 0
        else:
            assert name == graphs.PLAN_WORKSPACE
            values[0] = self.workspace
        ctypes.c_int64.from_address(count).value = found
        return 0

    def _cudnnBackendExecute(self, handle, plan, pack):
        assert handle == 77 and plan not in self.dead and pack not in self.dead
        self.ran.append((self.stream, self.told[plan][graphs.PLAN_CONFIG], dict(self.told[pack])))
        return 0


def _library(fake):
    # ctypes would set the result's type on the function.
    fake.cudnnGetVersion = type("V", (), {"__call__": lambda self: fake.version})()
    return CudnnAttention(lambda: fake, nullcontext)


@pytest.mark.parametrize("causal", [False, True])
def test_a_plan_is_run_on_addresses_and_scalars(causal):
    fake = Recorder()
    library, call = _library(fake), replace(CALL, causal=causal)
    chosen = library.choose(call, True)
    assert chosen == ChosenAttention(call, 1, 512)  # the first one varies between runs
    assert library.choose(call, False).rank == 0
    run = library.bind(chosen, 7)
    run(16, 32, 48, 64, 80, 96)
    run(16, 32, 48, 64, 80, 96, 9)
    (stream, config, told), (recorded, _, _) = fake.ran
    assert (stream, recorded) == (7, 9) and config == [fake.configs[1]]
    assert told[graphs.PACK_WORKSPACE] == [96]
    assert told[graphs.PACK_IDS] == list(range(1, 7 + causal))
    *places, scale = told[graphs.PACK_POINTERS][:6]
    assert places == [16, 32, 48, 64, 80]
    assert ctypes.c_float.from_address(scale).value == call.scale
    if causal:
        fill = ctypes.c_float.from_address(told[graphs.PACK_POINTERS][6]).value
        assert fill < -1e38
    masks = [one for one, kind in fake.kinds.items() if kind == graphs.BAND_MASK]
    assert bool(masks) is causal


def test_what_cudnn_refuses_or_is_too_old_for():
    fake = Recorder()
    fake.version = 92000
    assert _refused(fake) == "its attention is used from version 9.21.0 on; got 9.20.0"
    fake = Recorder()
    fake.statuses["cudnnBackendFinalize"] = 3000
    assert "CUDNN_STATUS_NOT_SUPPORTED (3000): because" in _refused(fake)
    assert _refused(Recorder(MOST_WORKSPACE + 1)).startswith("none of its plans may be taken for")
    assert _library(Recorder()).version() == "9.21.0"


def test_a_library_that_is_not_there_says_so():
    def missing():
        raise OSError("[cudnn] libcudnn.so.9 must be installed; it was not found.")

    library = CudnnAttention(missing, nullcontext)
    assert library.choose(CALL, True) is None
    assert "must be installed" in library.why_not(CALL, True)


def _refused(fake):
    library = _library(fake)
    assert library.choose(CALL, True) is None
    return library.why_not(CALL, True)


def test_errors():
    fake = Recorder()
    library = _library(fake)
    chosen = library.choose(CALL, True)
    run = library.bind(chosen, 7)
    with pytest.raises(ValueError, match=r"must begin at multiples of 16 bytes for cuDNN.*0x18"):
        run(16, 24, 48, 64, 80, 96)
    fake.statuses["cudnnBackendExecute"] = 5000
    with pytest.raises(cudnn.CudnnError, match=r"cudnnBackendExecute.*causal attention.*because"):
        run(16, 32, 48, 64, 80, 96)
    fake.workspace = 513
    with pytest.raises(RuntimeError, match=r"at most 512 bytes.*got 513"):
        library.bind(chosen, 7)
    fake = Recorder()
    fake.statuses["cudnnBackendFinalize"] = 5000
    with pytest.warns(UserWarning, match="EXECUTION_FAILED.*own kernels"):
        assert _library(fake).choose(CALL, True) is None


def test_no_library(recwarn):
    def load():
        raise OSError("not there")

    assert CudnnAttention(load, nullcontext).choose(CALL, True) is None and not recwarn.list


# --- cuDNN itself, told of another device ----------------------------------------------------

_H100 = {
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536, "multiProcessorCount": 132, "smCountOrigin": 0, "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024, "oversizedSharedMemoryPerBlock": 0,
    "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
    "totalGlobalMem": 85000000000, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
    "memoryBusWidth": 5120, "l2CacheSize": 52428800, "cudaDeviceId": 0, "deviceVer": 900,
    "driverVer": 13000, "deviceName": "NVIDIA H100 80GB HBM3",
}  # fmt: skip
# The driver's functions that cuDNN's engines are linked with; those that load kernels succeed.
_FAIL = (
    "cuCtxGetCurrent cuCtxGetLimit cuCtxPopCurrent cuCtxPushCurrent cuDeviceGet cuDeviceGetCount "
    "cuGetErrorName cuGetErrorString cuLaunchCooperativeKernel cuLaunchKernel cuLaunchKernelEx "
    "cuLibraryLoadFromFile cuLinkAddData cuLinkComplete cuLinkCreate cuLinkDestroy "
    "cuModuleGetFunction cuModuleLoadData cuModuleUnload cuOccupancyMaxPotentialClusterSize "
    "cuStreamGetCtx cuTensorMapEncodeIm2col cuTensorMapEncodeTiled"
)
_SUCCEED = "cuKernelGetAttribute cuKernelGetFunction cuKernelSetAttribute cuLibraryUnload"
_CHILD = """
import ctypes, json, sys
import numpy as np
from gpuflow.base.dtypes import bfloat16
from gpuflow.targets.cuda.dnn import cudnn, graphs
from gpuflow.targets.cuda.dnn.attention import AttentionGraph
from gpuflow.targets.cuda.dnn.attention_calls import AttentionCall
library = cudnn.open_cudnn(cudnn.find_cudnn())
text = [bytes([one]) for one in sys.argv[1].encode() + b"\\0"]
def properties(graph):
    kind = graphs.DEVICE_PROPERTIES
    return graph.finalized(kind, (graphs.PROPERTIES_JSON, graphs.CHAR, *text))
for case in json.loads(sys.argv[2]):
    *numbers, causal, name = case
    dtype = bfloat16 if name == "bfloat16" else np.dtype(name)
    call = AttentionCall(*numbers, 0.125, causal, dtype)
    try:
        chosen = AttentionGraph(library, call, properties).chosen(True)
        print(json.dumps(chosen and [chosen.rank, chosen.workspace_bytes]))
    except cudnn.CudnnError as error:
        print(json.dumps(str(error)))
"""


def test_cudnn_makes_plans_of_what_it_is_told(tmp_path):
    """Also for the calls of the trial. What the plans compute is not known without a GPU."""
    try:
        version = cudnn.version_of(cudnn.open_cudnn(cudnn.find_cudnn()))
    except OSError:
        pytest.skip("cuDNN is not installed: pip install nvidia-cudnn-cu13")
    if shutil.which("gcc") is None or version < (9, 21, 0):
        pytest.skip("needs gcc and cuDNN 9.21 or newer")
    source = tmp_path / "cuda.c"
    source.write_text("\n".join([
        *[f"int {name}() {{ return 100; }}" for name in _FAIL.split()],
        *[f"int {name}() {{ return 0; }}" for name in _SUCCEED.split()],
        "int cuDriverGetVersion(int *p) { *p = 13000; return 0; }",
        *[f"int {name}(void **p) {{ static int x[64]; *p = x; return 0; }}"
          for name in ("cuLibraryGetKernel", "cuLibraryLoadData")],
    ]))  # fmt: skip
    place = str(tmp_path / "libcuda.so.1")
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", str(source), "-o", place], check=True)
    cases = [
        [2, *lengths, 2 * group, 2, size, causal, dtype]
        for lengths in ((72, 40), (40, 72), (256, 256))
        for group in (1, 2)
        for size in (16, 64, 128)
        for causal in (False, True)
        for dtype in ("float16", "bfloat16")
    ]
    paths = os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(_H100), json.dumps(cases)], text=True,
        capture_output=True, check=True, env={**os.environ, "LD_LIBRARY_PATH": paths},
    )  # fmt: skip
    plans = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(plans) == len(cases)
    for case, plan in zip(cases, plans, strict=True):
        assert isinstance(plan, list), (case, plan)
        assert 0 <= plan[1] <= MOST_WORKSPACE
