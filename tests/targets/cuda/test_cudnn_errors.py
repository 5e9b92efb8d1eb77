"""What cuDNN's binding says where the library is missing, lacks something or refuses."""

import ctypes
import re
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from fake_cudnn import BAD_PARAM, EXECUTION_FAILED, NOT_INITIALIZED, NOT_SUPPORTED, FakeCudnn

from gpuflow.base.garbage import collect_garbage
from gpuflow.targets.cuda.dnn import cudnn
from gpuflow.targets.cuda.dnn.calls import DATA, FILTER, FORWARD
from gpuflow.targets.cuda.dnn.convolutions import CudnnConvolutions
from gpuflow.targets.cuda.dnn.descriptors import Descriptors
from gpuflow.targets.cuda.dnn.trial import small_call
from gpuflow.targets.cuda.driver.faults import StatusError

CALL = small_call(FORWARD, np.dtype(np.float32), False, True)


@pytest.fixture
def fake():
    return FakeCudnn(None)  # nothing is run


# --- finding and opening it ----------------------------------------------------------------


@pytest.fixture
def nothing_installed(monkeypatch):
    """Neither packages of CUDA nor libraries of the system."""
    monkeypatch.setitem(sys.modules, "cuda", None)

    def missing(name, *arguments, **settings):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)


def test_a_missing_library(nothing_installed):
    with pytest.raises(OSError, match=(
        r'\[cudnn\] libcudnn\.so\.9 must be installed; it was not found\. Fix: pip install '
        r'"\S+\[cudnn\]", or nvidia-cudnn-cu12 where CUDA or CuPy is of version 12\.'
    )):  # fmt: skip
        cudnn.find_cudnn()


@pytest.mark.parametrize("fails", [False, True])
def test_the_pathfinder_is_asked_first(fails, nothing_installed, monkeypatch):
    asked = []

    def load(name):
        asked.append(name)
        if fails:
            raise RuntimeError("no such library")
        return SimpleNamespace(abs_path=f"/lib/{name}")

    package = ModuleType("cuda")
    package.pathfinder = SimpleNamespace(load_nvidia_dynamic_lib=load)
    monkeypatch.setitem(sys.modules, "cuda", package)
    if fails:
        with pytest.raises(OSError, match="must be installed"):
            cudnn.find_cudnn()
    else:
        assert cudnn.find_cudnn() == "/lib/cudnn"
    assert asked == ["cublasLt", "cudnn"]


def test_a_file_that_cannot_be_loaded(nothing_installed):
    with pytest.raises(OSError, match=r"lib/cudnn: cannot open"):
        cudnn.open_cudnn("lib/cudnn")


def _library(number, names):
    functions = {name: _Function() for name in names}
    version = _Function(number)
    return SimpleNamespace(cudnnGetVersion=version, **functions)


class _Function:
    def __init__(self, result=0):
        self._result = result

    def __call__(self, *given):
        return self._result


@pytest.mark.parametrize("number, version", [
    (7605, (7, 6, 5)), (8907, (8, 9, 7)), (90100, (9, 1, 0)), (92801, (9, 28, 1)),
])  # fmt: skip
def test_versions(number, version):
    assert cudnn.version_of(_library(number, ())) == version


def test_another_version(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda path: _library(8907, cudnn.SIGNATURES))
    with pytest.raises(cudnn.OtherVersion, match=(
        r"\[cudnn\] lib/cudnn must be cuDNN 9, whose interface is known here; got 8\.9\.7\. Fix: "
        r'pip install "\S+\[cudnn\]", or set GPUFLOW_CUDNN=0\.'
    )):  # fmt: skip
        cudnn.open_cudnn("lib/cudnn")
    assert issubclass(cudnn.OtherVersion, OSError)  # which leaves it unused


def test_a_library_without_a_function_is_not_used(monkeypatch, recwarn):
    names = [name for name in cudnn.SIGNATURES if name != "cudnnConvolutionBackwardFilter"]
    monkeypatch.setattr(ctypes, "CDLL", lambda path: _library(90100, names))
    with pytest.raises(AttributeError, match="cudnnConvolutionBackwardFilter"):
        cudnn.open_cudnn("lib/cudnn")
    convolutions = CudnnConvolutions(lambda: cudnn.open_cudnn("lib/cudnn"), nullcontext)
    assert convolutions.choose(CALL, True) is None and not list(recwarn)


# --- statuses ------------------------------------------------------------------------------


@pytest.mark.parametrize("status, is_refused", [
    (0, False), (NOT_INITIALIZED, False), (1999, False), (BAD_PARAM, True), (NOT_SUPPORTED, True),
    (3999, True), (4000, False), (EXECUTION_FAILED, False),
])  # fmt: skip
def test_refusals(status, is_refused):
    assert cudnn.is_refusal(status) is is_refused


def test_a_status_says_what_the_library_adds(fake, monkeypatch):
    assert cudnn.status_text(fake, BAD_PARAM) == "CUDNN_STATUS_BAD_PARAM (2000): because"
    monkeypatch.setattr(FakeCudnn, "cudnnGetLastErrorString", lambda self, place, count: None)
    assert cudnn.status_text(fake, BAD_PARAM) == "CUDNN_STATUS_BAD_PARAM (2000)"


def test_a_failed_call(fake):
    fake.statuses["cudnnSetStream"] = EXECUTION_FAILED
    with pytest.raises(cudnn.CudnnError) as failure:
        cudnn.checked(fake, CALL, "cudnnSetStream", 1, 2)
    assert str(failure.value) == (
        f"[cudnn] cudnnSetStream must succeed for a {CALL}; got "
        "CUDNN_STATUS_EXECUTION_FAILED (5000): because. Fix: set GPUFLOW_CUDNN=0, which leaves "
        "it to gpuflow's own kernels, and report it; gpuflow doctor checks the library."
    )
    assert failure.value.status == EXECUTION_FAILED and isinstance(failure.value, StatusError)
    fake.statuses.clear()
    assert cudnn.checked(fake, CALL, "cudnnCreate", ctypes.byref(ctypes.c_void_p())) is None


def test_calls_are_told_apart_in_errors():
    """Each attribute of a call is in the text."""
    call = small_call(DATA, np.dtype(np.float16), True, False)
    assert str(call) == (
        "data convolution of x float16[2, 8, 7, 6], w float16[16, 8, 3, 3], "
        "y float16[2, 16, 4, 3], packed with channels last, strides [2, 2], padding [1, 1], "
        "dilation [1, 1], groups 1"
    )


# --- descriptors and calls -----------------------------------------------------------------

MADE = [name for name in cudnn.SIGNATURES if "Descriptor" in name and "Destroy" not in name
        and "Backend" not in name]  # fmt: skip
MADE += ["cudnnSetConvolutionGroupCount", "cudnnSetConvolutionMathType"]


@pytest.mark.parametrize("name", MADE)
def test_descriptors_that_are_refused_are_given_back(name, fake):
    fake.statuses[name] = BAD_PARAM
    with pytest.raises(cudnn.CudnnError, match=rf"\] {name} must succeed .* \(2000\)"):
        Descriptors(fake, CALL, cudnn.DEFAULT_MATH, "xwy")
    collect_garbage()
    assert fake.alive == 0


def test_a_description_that_is_refused_later(fake):
    made = Descriptors(fake, CALL, cudnn.DEFAULT_MATH, "xwy")
    fake.statuses["cudnnSetConvolutionMathType"] = NOT_SUPPORTED
    with pytest.raises(cudnn.CudnnError, match="cudnnSetConvolutionMathType"):
        made.set_math(cudnn.FMA_MATH)


@pytest.mark.parametrize("kind", [FORWARD, DATA, FILTER])
def test_what_another_device_refuses(kind, fake):
    """A choice of one device is bound on others of its model."""
    call = small_call(kind, np.dtype(np.float32), False, True)
    library = CudnnConvolutions(lambda: fake, nullcontext)
    chosen = library.choose(call, True)
    fake.statuses["cudnnSetConvolutionNdDescriptor"] = NOT_SUPPORTED
    text = rf"cudnnSetConvolutionNdDescriptor must succeed for a {re.escape(str(call))}"
    with pytest.raises(cudnn.CudnnError, match=text):
        library.bind(chosen, 7)


def test_a_stream_that_is_refused(fake):
    library = CudnnConvolutions(lambda: fake, nullcontext)
    run = library.bind(library.choose(CALL, True), 7)
    fake.statuses["cudnnSetStream"] = BAD_PARAM
    with pytest.raises(cudnn.CudnnError, match="cudnnSetStream must succeed"):
        run(0x1000, 0x2000, 0x3000, 0x4000)
    assert not fake.calls


def test_a_library_that_is_gone(fake):
    chosen = CudnnConvolutions(lambda: fake, nullcontext).choose(CALL, True)

    def load():
        raise OSError("no such file")

    with pytest.raises(RuntimeError, match=(
        r"\[cudnn\] the library with which a program was made must be there; it is not\. Fix: "
        r"call the function again after clear_caches\(\)\."
    )):  # fmt: skip
        CudnnConvolutions(load, nullcontext).bind(chosen, 7)
