"""Attention by a library: which calls it gets, and its trial."""

import contextlib
import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from fake_cudnn import FakeFrontend
from late_gpu import LateApi, gpu_devices, shifted

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import nn
from gpuflow.base.dtypes import bfloat16
from gpuflow.core.blocks import Attention
from gpuflow.targets.cuda.library.cudnn_attention import call_of
from gpuflow.targets.cuda.library.dnn.attention_trial import small_arrays, small_call
from gpuflow.targets.cuda.library.dnn.calls import AttentionCall
from gpuflow.targets.cuda.library.dnn.cudnn import Cudnn
from gpuflow.targets.cuda.library.dnn.self_check import CheckedLibrary
from gpuflow.targets.cuda.library.dnn.trials import TRIALS

HALF = np.dtype(np.float16)
WHAT = Attention(2, 6, 8, 4, 2, 16, 0.25, True, None, None, None, False, False, False)
CALL = AttentionCall(2, 6, 8, 4, 2, 16, 0.25, True, HALF)


def _library(api, **wrong):
    """A library on a device that is wrong about something, perhaps."""
    fake = FakeFrontend(api)
    for name, value in wrong.items():
        setattr(fake, name, value)
    return fake, Cudnn(lambda: fake, nullcontext)


def _tried(api, **wrong):
    fake, library = _library(api, **wrong)
    return fake, CheckedLibrary(library, api, TRIALS)


def _install(monkeypatch, api, library):
    for name in ("dnn_library", "planning_library"):
        monkeypatch.setattr(api, name, library)


@pytest.fixture
def device():
    (found,) = gpu_devices("late_cudnn_attention", LateApi())
    return found


# --- which calls ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [HALF, bfloat16])
def test_what_means_the_same_is_taken(dtype):
    assert call_of(WHAT, dtype) == replace(CALL, dtype=dtype)
    assert call_of(replace(WHAT, causal=False), dtype) == replace(CALL, causal=False, dtype=dtype)
    assert call_of(replace(WHAT, gradient=True), dtype) == replace(CALL, gradient=True, dtype=dtype)


@pytest.mark.parametrize(
    "change",
    [
        {"bias": (1, 1, 6, 8)},
        {"mask": (1, 1, 6, 8)},
        {"window": (1, 1)},
        {"query_lengths": True},
        {"key_lengths": True},
        {"size": 20},
        {"batch": 1 << 30},
    ],
    ids=str,
)
def test_what_means_something_else_is_not(change):
    assert call_of(replace(WHAT, **change), HALF) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_floats_are_ours(dtype):
    assert call_of(WHAT, np.dtype(dtype)) is None


@requires_cuda_tools
@pytest.mark.parametrize("mask, takes", [("right", True), ("strict", False)])
def test_attention_on_the_device(mask, takes, device, monkeypatch):
    """By the library where its trials are right, and by our kernels elsewhere."""
    fake, tried = _tried(device.driver.api, mask=mask)
    _install(monkeypatch, device.driver.api, tried)
    rng = np.random.default_rng(3)
    q, k, v, ct = (rng.integers(-4, 5, (1, n, 2, 16)) / 4 for n in (6, 8, 8, 6))

    def call(q, k, v, ct):
        attend = lambda *x: nn.dot_product_attention(*x, is_causal=True)  # noqa: E731
        out, pull = gf.vjp(attend, q, k, v)
        return (out, *pull(ct))

    with gf.default_device(device):
        operands = [jnp.asarray(x, jnp.float16) for x in (q, k, v, ct)]
        warned = pytest.warns(UserWarning, match="got others for causal")
        with contextlib.nullcontext() if takes else warned:
            got = [np.asarray(x, np.float64) for x in gf.jit(call)(*operands)]
    with gf.default_device(gf.devices("cpu")[0]):
        wants = [np.asarray(x) for x in call(*[jnp.asarray(x, jnp.float32) for x in (q, k, v, ct)])]
    for one, want in zip(got, wants, strict=True):
        np.testing.assert_allclose(one, want, atol=1e-2)
    made = [(kind, dims[1][2]) for kind, _, _, dims in fake.calls]
    assert (("causal attention", 6) in made) is takes
    assert (("gradients of causal attention", 6) in made) is takes
    assert set(fake.deterministic) == {"gradients of causal attention"}


@requires_cuda_tools
@pytest.mark.parametrize("mask", ["right", "strict", None])
def test_explain_says_what_makes_attention_and_why(mask, device, monkeypatch):
    api = device.driver.api
    if mask is not None:
        _install(monkeypatch, api, _tried(api, mask=mask)[1])

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
    fake, tried = _tried(device.driver.api)
    _install(monkeypatch, device.driver.api, tried)
    rng = np.random.default_rng(5)
    arrays = [rng.integers(-4, 5, (1, n, 2, 16)).astype(np.float16) / 4 for n in (6, 8, 8)]

    def attend(q, k, v):
        step = lambda *x: nn.dot_product_attention(*x, is_causal=True)  # noqa: E731
        out, pull = gf.vjp(step, q, k, v)
        return (out, *pull(out))

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
    made = {kind for kind, _, _, dims in fake.calls if dims[1][2] == 6}
    assert ("causal attention" in made) is not any(shifts)
    assert ("gradients of causal attention" in made) is not any(shifts)


# --- the trial -----------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_the_trial_of_a_right_library(causal, group, gradient, device, recwarn):
    fake, tried = _tried(device.driver.api)
    call = replace(CALL, causal=causal, heads=2 * group, gradient=gradient)
    assert tried.plan_call(call, True).call == call
    kind = ("gradients of " if gradient else "") + ("causal " if causal else "") + "attention"
    lengths = [(kind, dims[1][2] > dims[2][2]) for kind, _, _, dims in fake.calls]
    assert sorted(lengths) == [(kind, False), (kind, True)]
    tried.plan_call(replace(call, queries=17), True)
    assert len(fake.calls) == 2 and not recwarn.list


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask": "strict"},
        {"mask": "from the end"},
        {"mask": "none"},
        {"base": 2},
    ],
    ids=str,
)
def test_the_trial_of_a_wrong_library(wrong, device):
    _, tried = _tried(device.driver.api, **wrong)
    with pytest.warns(UserWarning, match="on small arrays; got others for causal attention"):
        assert tried.plan_call(CALL, True) is None
    assert tried.plan_call(CALL, True) is None


@pytest.mark.parametrize("wrong", [{"slope": 1.2}, {"slope": 0.8}, {"uses_out": False}], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size, heads", [(16, 4), (64, 2), (96, 2)])
def test_the_trial_of_wrong_gradients(size, heads, causal, wrong, device):
    _, tried = _tried(device.driver.api, **wrong)
    call = replace(CALL, gradient=True, size=size, heads=heads, causal=causal)
    with pytest.warns(UserWarning, match="got others for gradients of"):
        assert tried.plan_call(call, True) is None
    assert tried.plan_call(replace(call, gradient=False), True) is not None


def test_a_trial_that_cannot_run(device):
    fake, tried = _tried(device.driver.api)
    fake.failing["execute"] = RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
    with pytest.warns(UserWarning, match="must run; got CUDNN_STATUS_EXECUTION_FAILED"):
        assert tried.plan_call(CALL, True) is None


def test_what_a_trial_cannot_show_is_not_taken(device):
    """A library that refuses the small calls says nothing of how it masks."""
    _, library = _library(device.driver.api)
    choose = library.plan_call
    library.plan_call = lambda call, same: choose(call, same) if call == CALL else None
    assert CheckedLibrary(library, device.driver.api, TRIALS).plan_call(CALL, True) is None


def test_small_arrays_tell_masks_apart():
    call = small_call((72, 40), HALF, 16, 2, True)
    _, _, (out, sums) = small_arrays(call)
    assert out.shape == (2, 72, 4, 16) and sums.shape == (2, 4, 72)
    _, _, (plain, _) = small_arrays(replace(call, causal=False))
    assert abs(out - plain).max() > 0.1
