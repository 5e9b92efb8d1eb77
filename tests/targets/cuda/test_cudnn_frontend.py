"""cuDNN's frontend: finding it, its version, and plans of cuDNN itself without a GPU."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from gpuflow.targets.cuda.library.dnn import frontend


@pytest.fixture
def nothing_installed(monkeypatch):
    """Neither packages of CUDA nor libraries of the system."""
    monkeypatch.setitem(sys.modules, "cuda", None)

    def missing(name, *arguments, **settings):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)


def test_a_missing_library(nothing_installed):
    with pytest.raises(
        OSError,
        match=(
            r"\[cudnn\] libcudnn\.so\.9 must be installed; it was not found\. Fix: pip install "
            r'"\S+\[cudnn\]", or nvidia-cudnn-cu12 where CUDA or CuPy is of version 12\.'
        ),
    ):
        frontend.find_cudnn()


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
            frontend.find_cudnn()
    else:
        assert frontend.find_cudnn() == "/lib/cudnn"
    assert asked == ["cublasLt", "cudnn"]


def _library(number):
    return SimpleNamespace(cudnnGetVersion=_Function(number))


class _Function:
    def __init__(self, result=0):
        self._result = result

    def __call__(self, *given):
        return self._result


@pytest.mark.parametrize(
    "number, version",
    [
        (7605, (7, 6, 5)),
        (8907, (8, 9, 7)),
        (90100, (9, 1, 0)),
        (92801, (9, 28, 1)),
    ],
)
def test_versions(number, version):
    assert frontend.version_of(_library(number)) == version


def test_the_frontend_is_the_package(monkeypatch):
    package = ModuleType("cudnn")
    package.backend_version = lambda: 90100
    monkeypatch.setitem(sys.modules, "cudnn", package)
    monkeypatch.setattr(frontend, "find_cudnn", lambda: "lib/cudnn")
    monkeypatch.setattr(ctypes, "CDLL", lambda path: _library(90100))
    assert frontend.load_frontend() is package


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
# The frontend asks CUDA's runtime for the compute capability; at 360 the struct has its major part.
_RUNTIME = """
#include <string.h>
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceProperties(char *p, int device) {
    memset(p, 0, 1000); *(int *)(p + 360) = 9; return 0;
}
int cudaGetDeviceProperties_v2(char *p, int device) { return cudaGetDeviceProperties(p, device); }
const char *cudaGetErrorString(int error) { return "an error"; }
"""
_CHILD = """
import itertools, json, sys
import numpy as np
from gpuflow.base.dtypes import bfloat16
from gpuflow.targets.cuda.library.dnn.calls import AttentionCall, ConvolutionCall
from gpuflow.targets.cuda.library.dnn.frontend import (
    DATA_TYPE_NAMES,
    MAX_WORKSPACE,
    build_execution_plan,
    load_frontend,
)
from gpuflow.targets.cuda.library.dnn.graphs import graph_of
from gpuflow.targets.cuda.library.dnn.trials import TRIALS
library = load_frontend()
device = library.create_device_properties(sys.argv[1])
calls = []
for dtype, kind, last, reduced in itertools.product(
    DATA_TYPE_NAMES, ("forward", "data", "filter"), (False, True), (False, True)
):
    if reduced and dtype != np.float32:
        continue
    one = ConvolutionCall(kind, (8, 64, 28, 28), (128, 32, 3, 3), (8, 128, 14, 14), last,
                          ((0, 1), (1, 1)), (2, 2), (1, 1), 2, dtype, reduced)
    volume = ConvolutionCall(kind, (2, 16, 9, 8, 7), (24, 16, 3, 2, 1), (2, 24, 9, 8, 7), last,
                             ((1, 1), (0, 1), (0, 0)), (1, 1, 1), (1, 1, 1), 1, dtype, reduced)
    for call in (one, volume):
        calls += [call, *TRIALS[ConvolutionCall].small_calls(call)]
for (dtype, group, size), causal, gradient in itertools.product(
    ((np.dtype(np.float16), 1, 64), (bfloat16, 2, 128)), (False, True), (False, True)
):
    one = AttentionCall(2, 256, 256, 2 * group, 2, size, 0.125, causal, dtype, gradient)
    calls += [one, *TRIALS[AttentionCall].small_calls(one)]
for call in calls:
    try:
        graph = graph_of(library, call, True, device_property=device)
        count = build_execution_plan(library, graph, call, True)
        assert 0 <= count <= MAX_WORKSPACE
        print(json.dumps(["", type(call).__name__]))
    except Exception as error:
        print(json.dumps([f"{call}: {error}"[:300], type(call).__name__]))
"""


def test_cudnn_makes_plans_of_its_graphs(tmp_path):
    """Also for the calls of the trials. What the plans compute is not known without a GPU."""
    try:
        frontend.load_frontend()
    except OSError as error:
        pytest.skip(str(error))
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    driver = "\n".join(
        [
            *[f"int {name}() {{ return 100; }}" for name in _FAIL.split()],
            *[f"int {name}() {{ return 0; }}" for name in _SUCCEED.split()],
            "int cuDriverGetVersion(int *p) { *p = 13000; return 0; }",
            *[
                f"int {name}(void **p) {{ static int x[64]; *p = x; return 0; }}"
                for name in ("cuLibraryGetKernel", "cuLibraryLoadData")
            ],
        ]
    )
    for name, source in (("libcuda.so.1", driver), ("libcudart.so.13", _RUNTIME)):
        file = tmp_path / f"{name}.c"
        file.write_text(source)
        command = ["gcc", "-w", "-shared", "-fPIC", str(file), "-o", str(tmp_path / name)]
        subprocess.run(command, check=True)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("LD_LIBRARY_PATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(_H100)],
        text=True,
        capture_output=True,
        check=True,
        env={**os.environ, "LD_LIBRARY_PATH": paths},
    )
    plans = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(plans) == 5 * 3 * 2 * 6 + 2 * 2 * 2 * 3
    refused = [text for text, _ in plans if text]
    assert not refused, refused
