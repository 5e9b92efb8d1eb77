"""Convolutions by cuDNN on the simulated GPU, with a library that does in NumPy what cuDNN does."""

import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import fake_cudnn
import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from fake_cudnn import FakeFrontend, NotSupported, install
from late_gpu import LateApi, gpu_devices, shifted

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.config import config
from gpuflow.base.garbage import collect_garbage
from gpuflow.targets.cuda.library.dnn import frontend
from gpuflow.targets.cuda.library.dnn.calls import DATA, FILTER, FORWARD, ConvolutionCall
from gpuflow.targets.cuda.library.dnn.cudnn import Cudnn
from gpuflow.targets.cuda.library.dnn.self_check import CheckedLibrary
from gpuflow.targets.cuda.library.dnn.trials import TRIALS
from gpuflow.targets.cuda.runtime.driver.faults import StatusError

FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")
LAST_PACKED = ("NHWC", "OHWI", "NHWC")
# Batch, channels, outputs, image, taps, strides, padding, dilation, groups.
CASES = {
    "1x1": (2, 5, 7, (4, 3), (1, 1), (1, 1), (0, 0), (1, 1), 1),
    "1x1, strides 2": (2, 4, 3, (5, 6), (1, 1), (2, 2), (0, 0), (1, 1), 1),
    "3x3": (2, 3, 5, (7, 6), (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "strides 2": (2, 3, 4, (8, 7), (3, 3), (2, 2), (1, 1), (1, 1), 1),
    "dilation 2": (1, 3, 4, (9, 8), (3, 2), (1, 1), (2, 1), (2, 2), 1),
    "strides and dilation": (3, 2, 3, (11, 9), (3, 3), (3, 2), (2, 2), (2, 2), 1),
    "groups": (2, 6, 9, (5, 5), (3, 3), (1, 1), (1, 1), (1, 1), 3),
    "depthwise": (2, 5, 5, (6, 5), (3, 3), (2, 1), (1, 1), (1, 1), 5),
    "depthwise, two each": (1, 3, 6, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1), 3),
    "no padding": (1, 3, 2, (5, 4), (2, 3), (1, 1), (0, 0), (1, 1), 1),
}
TOLERANCES = {"float32": 1e-5, "float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.fixture
def device():
    (found,) = gpu_devices("late_cudnn", LateApi())
    return found


@pytest.fixture
def fake(monkeypatch, device):
    return install(monkeypatch, device)


def _operands(case, layout, seed=0):
    batch, channels, outputs, image, taps, *_, groups = CASES[case]
    rng = np.random.default_rng(seed)
    x, w = (batch, channels, *image), (outputs, channels // groups, *taps)
    return [
        np.transpose(rng.normal(size=shape), [plain.index(letter) for letter in spec]).copy()
        for shape, plain, spec in zip((x, w), FIRST, layout, strict=False)
    ]


def _convolve(case, layout, precision=None):
    *_, strides, padding, dilation, groups = CASES[case]
    pads = [(p, p) for p in padding]

    def call(x, w):
        return lax.conv_general_dilated(
            x, w, strides, pads, (1, 1), dilation, layout, groups, precision=precision
        )

    return call


def _and_gradients(convolve):
    def call(x, w, ct):
        out, pull = gf.vjp(convolve, x, w)
        return (out, *pull(ct))

    return call


def _wanted(call, *operands):
    """In float64, by NumPy."""
    with gf.enable_x64(), gf.default_device(gf.devices("cpu")[0]):
        return [np.asarray(one) for one in gf.tree.leaves(call(*map(jnp.asarray, operands)))]


def _results(call, device, dtype, *operands):
    """Of ``jit`` on the device, and what the operands are there."""
    with gf.enable_x64(dtype == "float64"), gf.default_device(device):
        given = [jnp.asarray(one, dtype) for one in operands]
        got = gf.tree.leaves(gf.jit(call)(*given))
        return [np.asarray(one, np.float64) for one in (*got, *given)], len(got)


def _compare(call, device, dtype, *operands):
    """With what NumPy gives in float64 for the operands as they are in ``dtype``."""
    found, count = _results(call, device, dtype, *operands)
    for one, want in zip(found[:count], _wanted(call, *found[count:]), strict=True):
        scale = max(np.abs(want).max(initial=0), 1)
        np.testing.assert_allclose(one / scale, want / scale, atol=TOLERANCES[dtype])


def _kinds(fake):
    return sorted(kind for kind, *_ in fake.calls)


def _check(case, layout, dtype, device):
    convolve = _convolve(case, layout)
    x, w = _operands(case, layout)
    shape = gf.eval_shape(convolve, x, w).shape
    ct = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float64)
    _compare(_and_gradients(convolve), device, dtype, x, w, ct)


@requires_cuda_tools
@pytest.mark.parametrize("layout", [FIRST, LAST, LAST_PACKED], ids=["first", "last", "packed"])
@pytest.mark.parametrize("case", CASES)
def test_convolutions_and_both_gradients(case, layout, device, fake):
    _check(case, layout, "float32", device)
    assert _kinds(fake) == sorted((FORWARD, DATA, FILTER))


@requires_cuda_tools
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_dtypes(dtype, device, fake):
    _check("strides 2", LAST, dtype, device)
    assert _kinds(fake) == sorted((FORWARD, DATA, FILTER))


@requires_cuda_tools
@pytest.mark.parametrize("space", [1, 3])
def test_one_and_three_dimensions_of_space(space, device, fake):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, *[5, 6, 7][:space])), rng.normal(size=(4, 3, *[3, 2, 3][:space]))
    call = lambda x, w: lax.conv_general_dilated(x, w, [2] * space, [(1, 1)] * space)  # noqa: E731
    ct = rng.normal(size=gf.eval_shape(call, x, w).shape)
    _compare(_and_gradients(call), device, "float32", x, w, ct)
    assert _kinds(fake) == sorted((FORWARD, DATA, FILTER))
    assert all(len(dims["x"]) == max(space, 2) + 2 for *_, dims in fake.calls)


@requires_cuda_tools
def test_transposed_convolutions_are_gradients(device, fake):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 4, 5, 3)), rng.normal(size=(3, 3, 3, 4))
    call = lambda x, w: lax.conv_transpose(  # noqa: E731
        x, w, (2, 2), [(1, 1), (1, 1)], dimension_numbers=LAST
    )
    _compare(call, device, "float32", x, w)
    assert _kinds(fake) == [DATA]


@requires_cuda_tools
def test_mapped_filters_are_groups(device, fake):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 2, 4, 6, 5)), rng.normal(size=(3, 5, 4, 3, 3))
    one = lambda x, w: lax.conv(x, w, (1, 1), "SAME")  # noqa: E731
    x = x.swapaxes(0, 1)  # the mapped dimension beside the channels: one array of groups
    _compare(gf.vmap(one, (1, 0), 1), device, "float32", x, w)
    assert [call[-1]["x"] for call in fake.calls] == [(2, 12, 6, 5)]


# Image, taps, strides, padding, dilation, with other zeros behind than in front.
MARGINS = {
    "SAME, strides 2": ((6, 8), (3, 3), (2, 2), "SAME", (1, 1)),
    "SAME, 7 x 7": ((8, 8), (7, 7), (2, 2), "SAME", (1, 1)),
    "even taps": ((5, 7), (2, 4), (1, 1), "SAME", (1, 1)),
    "more in front": ((6, 5), (3, 3), (2, 1), [(2, 0), (1, 1)], (1, 1)),
    "cut behind, less than a step": ((9, 7), (3, 2), (1, 2), [(0, 1), (0, -1)], (1, 1)),
    "dilation": ((8, 8), (3, 3), (1, 2), [(1, 2), (3, 0)], (2, 2)),
}


@requires_cuda_tools
@pytest.mark.parametrize("layout", [FIRST, LAST], ids=["first", "last"])
@pytest.mark.parametrize("name", MARGINS)
def test_padding_may_differ_in_front_and_behind(name, layout, device, fake):
    image, taps, strides, padding, dilation = MARGINS[name]
    rng = np.random.default_rng(0)
    x, w = (
        np.transpose(rng.normal(size=shape), [plain.index(letter) for letter in spec]).copy()
        for shape, plain, spec in zip(((2, 3, *image), (96, 3, *taps)), FIRST, layout, strict=False)
    )
    call = lambda x, w: lax.conv_general_dilated(  # noqa: E731
        x, w, strides, padding, (1, 1), dilation, layout
    )
    ct = rng.integers(-3, 4, gf.eval_shape(call, x, w).shape).astype(np.float64)
    _compare(_and_gradients(call), device, "float32", x, w, ct)
    assert _kinds(fake) == sorted((FORWARD, DATA, FILTER))
    assert all(dims["x"] == (2, 3, *image) for *_, dims in fake.calls)


@requires_cuda_tools
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_padding_of_other_dtypes_and_a_volume(dtype, device, fake):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 2, 4, 6, 4)), rng.normal(size=(48, 2, 3, 3, 3))
    call = lambda x, w: lax.conv(x, w, (2, 2, 2), "SAME")  # noqa: E731
    _compare(call, device, dtype, x, w)
    assert [call[-1]["x"] for call in fake.calls] == [(2, 2, 4, 6, 4)]


@requires_cuda_tools
@pytest.mark.parametrize("padding", [[(-1, 1), (0, 0)], [(1, -1), (0, 0)]])
def test_what_cuts_its_image_is_the_gradient_of_another(padding, device, fake):
    call = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), padding)  # noqa: E731
    _compare(call, device, "float32", X, W)
    assert _kinds(fake) == [DATA]


# --- what falls back -----------------------------------------------------------------------

X, W = (np.random.default_rng(2).normal(size=shape) for shape in ((2, 4, 6, 5), (3, 4, 3, 3)))
OWN = {
    "negative padding": lambda x, w: lax.conv_general_dilated(x, w, (2, 1), [(-1, -1), (-1, -1)]),
    "holes and strides": lambda x, w: lax.conv_general_dilated(
        x, w, (2, 2), [(1, 1), (1, 1)], (2, 2)
    ),
    "an order of its own": lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "VALID", dimension_numbers=("HNWC", "OIHW", "NCHW")
    ),
    "a view that is not packed": lambda x, w: lax.conv(x[:, :, ::2], w, (1, 1), "VALID"),
    "a view between vectors": lambda x, w: lax.conv(
        x.ravel()[1:181].reshape(1, 4, 9, 5), w, (1, 1), "VALID"
    ),
    "a wider result": lambda x, w: lax.conv_general_dilated(
        x.astype(jnp.bfloat16),
        w.astype(jnp.bfloat16),
        (1, 1),
        "VALID",
        preferred_element_type=jnp.float32,
    ),
    "integers": lambda x, w: lax.conv(
        (x * 4).astype(jnp.int32), (w * 4).astype(jnp.int32), (1, 1), "VALID"
    ),
}


@requires_cuda_tools
@pytest.mark.parametrize("name", OWN)
def test_what_cudnn_does_not_take_is_ours(name, device, fake):
    x, w = X, W
    if name == "an order of its own":
        w = np.random.default_rng(0).normal(size=(3, 5, 2, 2))
    dtype = "bfloat16" if name == "a wider result" else "float32"
    if name == "integers":
        x, w = np.round(x), np.round(w)
    _compare(OWN[name], device, dtype, x, w)
    assert not fake.calls


@requires_cuda_tools
def test_a_refused_call_is_ours(device, fake):
    for kind in (FORWARD, DATA):
        fake.failing[kind] = NotSupported("it is not supported")
    _check("3x3", FIRST, "float32", device)
    assert _kinds(fake) == [FILTER]


@requires_cuda_tools
def test_without_the_library_nothing_is_said(device, monkeypatch, recwarn):
    asked = []

    def load():
        asked.append(None)
        raise OSError("[cudnn] libcudnn.so.9 must be installed")

    library = Cudnn(load, nullcontext)
    for name in ("dnn_library", "planning_library"):
        monkeypatch.setattr(device.driver.api, name, library)
    _check("1x1", FIRST, "float32", device)
    assert len(asked) == 1 and not list(recwarn)


# --- what it is asked for ------------------------------------------------------------------


@requires_cuda_tools
@pytest.mark.parametrize("precision, wanted", [("default", "tensor cores"), ("highest", "exact")])
def test_precision_and_determinism_choose_the_plan(precision, wanted, device, fake):
    x, w = _operands("3x3", FIRST)
    _compare(_convolve("3x3", FIRST, precision), device, "float32", x, w)
    ((_, plan, *_),) = fake.calls
    assert plan == wanted


@requires_cuda_tools
def test_atomic_sums_allow_any_plan(device, fake):
    x, w = _operands("3x3", FIRST)
    before = config.trace_context().atomic_sums
    config.update("atomic_sums", True)
    try:
        _compare(_convolve("3x3", FIRST, "default"), device, "float32", x, w)
    finally:
        config.update("atomic_sums", before)
    assert [plan for _, plan, *_ in fake.calls] == ["varies"]


@requires_cuda_tools
def test_stream_and_workspace_are_the_programs(device, fake):
    case, layout = "3x3", LAST
    convolve, operands = _convolve(case, layout, "default"), _operands(case, layout)
    step = gf.jit(lambda x, w: convolve(jnp.tanh(x), w) + 1)
    with gf.default_device(device):
        given = [jnp.asarray(one, np.float32) for one in operands]
        for _ in range(3):
            np.asarray(step(*given))
    assert {call[2] for call in fake.calls} == {device.driver.compute}
    # It is as large as cuDNN said, and where the arena is, each time.
    assert len(set(fake.workspaces)) == 1 and len(fake.workspaces) == 3
    ((place, count),) = set(fake.workspaces)
    assert count == 1000
    arenas = device.driver._idle
    assert any(
        arena.memory.address <= place <= arena.memory.address + arena.memory.nbytes - count
        for arena in arenas
    )


@requires_cuda_tools
def test_graphs_hold_its_calls(device, fake):
    convolve = _convolve("groups", FIRST)
    x, w = _operands("groups", FIRST)

    def work(x, w):
        for _ in range(2):
            x = jnp.tanh(x + x.sum(1, keepdims=True))
            x = x + convolve(x, w).sum(1, keepdims=True) * 0.1
        return x

    step, api = gf.jit(work), device.driver.api
    with gf.default_device(device):
        given = [jnp.asarray(one, np.float32) for one in (x, w)]
        results = [np.asarray(step(*given)) for _ in range(6)]
    assert api.log["record"] >= 1 and api.log["replay"] >= 3
    # A replay does not call the library again: two calls that ran, and one that was recorded.
    assert len(fake.calls) <= 2 * 4
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    (want,) = _wanted(work, *[np.float32(one) for one in (x, w)])
    np.testing.assert_allclose(results[0], want, rtol=1e-4, atol=1e-4)


def _call(kind=FORWARD, **changes):
    sizes = {
        "x": (1, 2, 4, 4),
        "w": (3, 2, 3, 3),
        "y": (1, 3, 2, 2),
        "channels_last": False,
        "padding": ((0, 0), (0, 0)),
        "strides": (1, 1),
        "dilation": (1, 1),
        "groups": 1,
        "dtype": np.dtype(np.float32),
        "reduced": True,
    }
    return ConvolutionCall(kind, **{**sizes, **changes})


def _library(device):
    fake = FakeFrontend(device.driver.api)
    return fake, Cudnn(lambda: fake, nullcontext)


def test_each_call_is_given_to_the_stream_that_it_is_for(device):
    fake, library = _library(device)
    bound, captured = -7, -9  # no streams of the device, or another test would run what they hold
    run = library.bind(library.plan_call(_call(), True), bound)
    for stream in (None, captured, None):
        run(0x1000, 0x2000, 0x3000, 0x4000, *([] if stream is None else [stream]))
    assert [call[2] for call in fake.calls] == [bound, captured, bound]


def test_equal_calls_share_a_plan(device):
    fake, library = _library(device)
    made = []
    pygraph = fake.pygraph
    fake.pygraph = lambda **options: made.append(None) or pygraph(**options)
    chosen = library.plan_call(_call(), True)
    runs = [library.bind(chosen, 7) for _ in range(3)]
    assert library.plan_call(_call(), True) is chosen and len(made) == 1
    for size in range(5, 45):  # plans that nobody uses are forgotten
        library.plan_call(_call(x=(1, 2, size, 4), y=(1, 3, size - 2, 2)), True)
    assert len(made) == 41 and len(library._execution_plans) <= 34
    library.bind(chosen, 7)
    assert len(made) == 41
    del runs
    for size in range(45, 85):
        library.plan_call(_call(x=(1, 2, size, 4), y=(1, 3, size - 2, 2)), True)
    collect_garbage()
    library.bind(chosen, 7)
    assert len(made) == 82


def test_a_plan_of_another_device_must_not_need_more(device):
    fake, library = _library(device)
    chosen = library.plan_call(_call(), True)
    library.bind(chosen, 7)
    fake.more = 8
    other = Cudnn(lambda: fake, nullcontext)
    with pytest.raises(RuntimeError, match=r"at most 1000 bytes, as .* got 1008\. Fix: set"):
        other.bind(chosen, 7)
    fake.failing["build_plans"] = NotSupported("no engine has it")
    other = Cudnn(lambda: fake, nullcontext)
    with pytest.raises(StatusError, match=r"\[cudnn\] forward convolution .*got no engine has it"):
        other.bind(chosen, 7)


def test_devices_of_one_model_have_one_plan(monkeypatch):
    first, second = gpu_devices("late_cudnns", LateApi(), LateApi())
    fakes = [install(monkeypatch, one) for one in (first, second)]
    assert first.driver.target is not second.driver.target
    monkeypatch.setattr(second.driver.api, "planning_library", first.driver.api.planning_library)
    assert first.driver.target is second.driver.target
    assert fakes[0] is not fakes[1]


@requires_cuda_tools
def test_explain_says_what_makes_a_convolution_and_why(device, fake):
    def made_by(dtype="float32", case="3x3"):
        operands = [jnp.asarray(one, dtype) for one in _operands(case, FIRST)]
        with gf.default_device(device):
            text = " ".join(gf.explain(_convolve(case, FIRST), *operands).text.split())
        return text.partition("made by ")[2].partition(" stores")[0]

    assert made_by() == "cuDNN 9.28.1"
    assert made_by("int32") == (
        "kernels of ours; not cuDNN: it has no such dtypes, layout, padding or alignment"
    )
    fake.failing["check_support"] = NotSupported("no engine has it")
    refused = made_by(case="1x1, strides 2")
    assert refused.startswith("kernels of ours; not cuDNN: no engine has it")


# --- errors --------------------------------------------------------------------------------


@requires_cuda_tools
def test_a_call_that_fails_is_an_error(device, fake):
    fake.failing["execute"] = RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
    with pytest.raises(
        StatusError,
        match=(
            r"\[cudnn\] forward convolution "
            r"of x float32\[2, 3, 7, 6\], w float32\[5, 3, 3, 3\], y float32\[2, 5, 7, 6\].*must "
            r"run; "
            r"got CUDNN_STATUS_EXECUTION_FAILED\. Fix: set GPUFLOW_CUDNN=0"
        ),
    ):
        _results(_convolve("3x3", FIRST), device, "float32", *_operands("3x3", FIRST))


@pytest.mark.parametrize("name", ["create_handle", "validate", "build_plans"])
def test_a_library_that_does_not_work_is_not_used(name, device):
    fake, library = _library(device)
    fake.failing[name] = RuntimeError("CUDNN_STATUS_NOT_INITIALIZED")
    assert library.plan_call(_call(), True) is None
    assert library.why_not(_call(), True) == "CUDNN_STATUS_NOT_INITIALIZED"


def test_a_fault_of_a_kernel_is_no_refusal(device):
    fake, library = _library(device)
    fake.failing["create_handle"] = RuntimeError("cudaErrorIllegalAddress")
    with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"):
        library.plan_call(_call(), True)


def test_a_library_that_is_gone(device):
    _, library = _library(device)
    chosen = library.plan_call(_call(), True)

    def load():
        raise OSError

    with pytest.raises(RuntimeError, match=r"must be installed; got OSError\. Fix: call"):
        Cudnn(load, nullcontext).bind(chosen, 7)


def test_places_between_vectors_are_an_error(device):
    fake, library = _library(device)
    run = library.bind(library.plan_call(_call(), True), 7)
    with pytest.raises(ValueError, match=r"must begin at multiples of 16 bytes for cuDNN; got 0x1"):
        run(0x1004, 0x2000, 0x3000, 0x4000)
    assert not fake.calls


@pytest.mark.parametrize("number, text", [(8907, "8.9.7"), (100200, "10.2.0")])
def test_other_versions_are_refused(number, text, monkeypatch, device):
    library = SimpleNamespace(cudnnGetVersion=_Version(number))
    monkeypatch.setattr(frontend, "find_cudnn", lambda: "lib/cudnn")
    monkeypatch.setattr(frontend.ctypes, "CDLL", lambda path: library)
    convolutions = Cudnn(frontend.load_frontend, nullcontext)
    with pytest.warns(UserWarning, match=rf"lib/cudnn must be cuDNN 9;.*got {text}\. Fix: pip"):
        assert convolutions.plan_call(_call(), True) is None
    assert convolutions.plan_call(_call(reduced=False), True) is None  # and once is enough


def test_without_the_frontend_the_library_is_not_used(monkeypatch, device, recwarn):
    library = SimpleNamespace(cudnnGetVersion=_Version(92801))
    monkeypatch.setattr(frontend, "find_cudnn", lambda: "lib/cudnn")
    monkeypatch.setattr(frontend.ctypes, "CDLL", lambda path: library)
    monkeypatch.setitem(sys.modules, "cudnn", None)
    convolutions = Cudnn(frontend.load_frontend, nullcontext)
    assert convolutions.plan_call(_call(), True) is None and not recwarn.list
    reason = convolutions.why_not(_call(), True)
    assert re.search(r"nvidia-cudnn-frontend must be importable; got .*Fix: pip", reason)

    class Broken:
        def backend_version(self):
            raise RuntimeError("Unable to find symbol cudnnGetVersion")

    monkeypatch.setitem(sys.modules, "cudnn", Broken())
    convolutions = Cudnn(frontend.load_frontend, nullcontext)
    assert convolutions.plan_call(_call(), True) is None and not recwarn.list
    assert "RuntimeError: Unable to find symbol" in convolutions.why_not(_call(), True)


def test_two_versions_of_the_library(monkeypatch, device):
    library = SimpleNamespace(cudnnGetVersion=_Version(92801))
    monkeypatch.setattr(frontend, "find_cudnn", lambda: "lib/cudnn")
    monkeypatch.setattr(frontend.ctypes, "CDLL", lambda path: library)
    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace(backend_version=lambda: 91002))
    with pytest.warns(UserWarning, match=r"of version 9\.28\.1, and .* has loaded 9\.10\.2"):
        assert Cudnn(frontend.load_frontend, nullcontext).plan_call(_call(), True) is None


def test_another_version_of_the_frontend_is_told(device):
    fake, library = _library(device)
    fake.failing["validate"] = TypeError("an unexpected argument")
    with pytest.warns(UserWarning, match=r"of a version from 1\.18 to 1\.28; got TypeError: an"):
        assert library.plan_call(_call(), True) is None


class _Version:
    def __init__(self, number):
        self._number = number

    def __call__(self):
        return self._number


# --- small calls before the first one ------------------------------------------------------


@pytest.mark.parametrize("kind", [FORWARD, DATA, FILTER])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("last", [False, True])
def test_what_is_right_is_used(kind, dtype, last, device, recwarn):
    fake, library = _library(device)
    tried = CheckedLibrary(library, device.driver.api, TRIALS)
    call = _call(kind, dtype=np.dtype(dtype), channels_last=last)
    for _ in range(2):  # one trial
        assert tried.plan_call(call, True) == library.plan_call(call, True) is not None
    assert len(fake.calls) == 2 and {call[0] for call in fake.calls} == {kind}
    assert not recwarn.list
    tried.plan_call(_call(kind, dtype=np.dtype(dtype), channels_last=not last), True)
    assert len(fake.calls) == 4
    tried.plan_call(call, False)  # it may be another plan
    assert len(fake.calls) == 6


WRONG = {
    "taps from the other end": {"mode": lambda how: 0},
    "zeros behind in front": {"pads": lambda how: [pair[::-1] for pair in how["pads"]]},
    "no dilation": {"gaps": lambda how: [1] * len(how["gaps"])},
    "one group": {"groups": lambda how: 1},
}


@pytest.mark.parametrize(
    "name, kind",
    [
        (name, kind)
        for name in WRONG
        for kind in (FORWARD, DATA, FILTER)
        if (name, kind) != ("one group", FILTER)  # its filters are the result
    ],
)
def test_what_is_wrong_is_not_used(name, kind, device, monkeypatch):
    """Sizes and most of a result would look right."""
    _, library = _library(device)
    right = fake_cudnn.computed

    def wrong(wanted, how, views):
        changed = {**how, **{key: change(how) for key, change in WRONG[name].items()}}
        if changed["groups"] != how["groups"]:  # the filters of the first one, again and again
            views = {**views, "w": np.tile(views["w"][:1], (len(views["w"]), *[1] * 3))}
            changed = how
        return right(wanted, changed, views)

    monkeypatch.setattr(fake_cudnn, "computed", wrong)
    tried = CheckedLibrary(library, device.driver.api, TRIALS)
    text = rf"got others for {kind} convolution .* Fix: install a cuDNN"
    with pytest.warns(UserWarning, match=text):
        assert tried.plan_call(_call(kind), True) is None
    assert tried.plan_call(_call(kind), True) is None  # in silence


def test_a_fault_in_a_trial_is_no_refusal(device):
    fake, library = _library(device)
    fake.failing["execute"] = RuntimeError("cudaErrorIllegalAddress")
    tried = CheckedLibrary(library, device.driver.api, TRIALS)
    with pytest.raises(StatusError, match="cudaErrorIllegalAddress"):
        tried.plan_call(_call(), True)


def test_nothing_was_wrong_where_another_reason_holds(device):
    _, library = _library(device)
    tried = CheckedLibrary(library, device.driver.api, TRIALS)
    assert tried.plan_call(_call(), True) is not None
    assert tried.why_not(_call(), True) == ""


def test_a_library_that_is_not_there_is_not_tried(device):
    def load():
        raise OSError("no such file")

    tried = CheckedLibrary(Cudnn(load, nullcontext), device.driver.api, TRIALS)
    assert tried.plan_call(_call(), True) is None


# Batch, channels, outputs, image, taps, strides, padding, groups, layout. Gradients of filters with
# channels last are copied into another order behind the call.
PLAIN_CASES = {
    "first": (2, 3, 5, (7, 6), (3, 3), (1, 1), [(1, 1), (1, 1)], 1, FIRST),
    "groups": (2, 6, 9, (5, 5), (3, 3), (1, 1), [(1, 1), (1, 1)], 3, LAST_PACKED),
    "filters in another order": (2, 4, 6, (5, 7), (2, 3), (2, 1), [(0, 0), (1, 1)], 1, LAST),
    "margins": (2, 3, 96, (6, 8), (3, 3), (2, 2), "SAME", 1, FIRST),
    "margins, filters in another order": (2, 3, 96, (6, 8), (3, 3), (2, 2), "SAME", 1, LAST),
}


@requires_cuda_tools
@pytest.mark.parametrize("shifts", [(0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 3)])
@pytest.mark.parametrize("name", PLAIN_CASES)
def test_arrays_between_vectors_are_ours(name, shifts, device, fake):
    """They come from other libraries; where they begin is known when a program runs."""
    batch, channels, outputs, image, taps, strides, padding, groups, layout = PLAIN_CASES[name]

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, strides, padding, (1, 1), (1, 1), layout, groups)

    call, rng = _and_gradients(convolve), np.random.default_rng(0)
    shapes = (batch, channels, *image), (outputs, channels // groups, *taps)
    x, w = (
        np.transpose(rng.normal(size=shape), [plain.index(letter) for letter in spec]).copy()
        for shape, plain, spec in zip(shapes, FIRST, layout, strict=False)
    )
    ct = rng.normal(size=gf.eval_shape(convolve, x, w).shape)
    operands, step = [one.astype(np.float32) for one in (x, w, ct)], gf.jit(call)
    with gf.default_device(device):
        pairs = zip(operands, shifts, strict=True)
        given = [shifted(device, one, "float32", count) for one, count in pairs]
        got = [np.asarray(one) for one in step(*given)]
        kinds = _kinds(fake)
        for _ in range(5):
            for one, first in zip(step(*given), got, strict=True):
                assert np.asarray(one).tobytes() == first.tobytes()
    by_library = {FORWARD, DATA, FILTER}
    # What is copied for a call begins where it must.
    is_copied = {"x": False, "w": "another order" in name, "ct": False}
    uses = {"x": {FORWARD, FILTER}, "w": {FORWARD, DATA}, "ct": {DATA, FILTER}}
    for operand, shift in zip(uses, shifts, strict=True):
        if shift and not is_copied[operand]:
            by_library -= uses[operand]
    assert kinds == sorted(by_library)
    for one, want in zip(got, _wanted(call, *operands), strict=True):
        scale = max(np.abs(want).max(initial=0), 1)
        np.testing.assert_allclose(one / scale, want / scale, atol=TOLERANCES["float32"])


@requires_cuda_tools
def test_recorded_calls_are_for_aligned_arrays_alone(device, fake):
    """A recording would hold our kernels only in part, so such calls are launched each time."""
    convolve = _convolve("groups", FIRST)
    x, w = (one.astype(np.float32) for one in _operands("groups", FIRST))

    def work(x, w):
        for _ in range(2):
            x = x + convolve(jnp.tanh(x + x.sum(1, keepdims=True)), w).sum(1, keepdims=True) * 0.1
        return x

    step, api, results = gf.jit(work), device.driver.api, []
    with gf.default_device(device):
        for count in (1, 0):
            before, calls = api.log["record"], len(fake.calls)
            given = [shifted(device, x, "float32", 0), shifted(device, w, "float32", count)]
            results += [np.asarray(step(*given)) for _ in range(6)]
            assert (api.log["record"] > before) == (count == 0)
            assert (len(fake.calls) > calls) == (count == 0)
    (want,) = _wanted(work, x, w)
    for result in results:
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-4)
