"""GPUs that are broken, missing or full: what is said; the process goes on, or ends well."""

import gc
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import LateApi, gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.config import config
from gpuflow.base.garbage import collect_garbage
from gpuflow.targets.cuda.runtime.driver.driver import GpuDriver
from gpuflow.targets.cuda.runtime.driver.faults import GpuFault
from gpuflow.targets.cuda.runtime.driver.graphs import RecordedLaunches

X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
TESTS = Path(__file__).parents[2]


def run(program, *folders, **values):
    """A process that ends well; what it said, and its warnings."""
    paths = [*map(str, folders), str(TESTS), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **values}
    for name in ("GPUFLOW_PLATFORM", "JAX_PLATFORMS"):
        if name not in values:
            environment.pop(name, None)
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


# --- no GPU that can be used ---------------------------------------------------------------

SEEMS_TO_HAVE_ONE = """
import sys
import gpuflow.targets.platforms as platforms
platforms.GPU_SIGNS = ("/",)
assert "cupy" not in sys.modules
import gpuflow as gf
print(gf.devices()[0].platform, float(gf.numpy.ones(3).sum()), gf.devices()[0].platform)
"""
CUPY = """
from types import SimpleNamespace
def getDeviceCount():
    {body}
cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=getDeviceCount))
"""
BROKEN = {
    "no CuPy": (
        "raise ModuleNotFoundError('no module of this name')",
        r'[cuda13]"',
    ),
    "a wheel of another CUDA": (
        "raise ImportError('libcudart.so.12: cannot open')",
        "got ImportError: libcudart.so.12",
    ),
    "an old driver": (
        CUPY.format(body="raise RuntimeError('cudaErrorInsufficientDriver: too old')"),
        "install a driver for CUDA 13 (580 or newer); gpuflow doctor prints details",
    ),
    "no driver": (
        CUPY.format(body="raise RuntimeError('cudaErrorSystemDriverMismatch')"),
        "CUDA's driver must work; got cudaErrorSystemDriverMismatch",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_gpu_that_cannot_be_used_is_one_warning_and_the_cpu(name, tmp_path):
    text, said = BROKEN[name]
    (tmp_path / "cupy.py").write_text(text)
    out, errors = run(SEEMS_TO_HAVE_ONE, tmp_path)
    assert out.split() == ["cpu", "3.0", "cpu"]
    assert errors.count("UserWarning: gpuflow uses the CPU, though this machine seems") == 1
    assert said in errors and "Fix: " in errors and "GPUFLOW_PLATFORM=cpu turns" in errors


def test_a_machine_whose_cuda_shows_no_gpu_says_nothing(tmp_path):
    (tmp_path / "cupy.py").write_text(CUPY.format(body="return 0"))
    out, errors = run(SEEMS_TO_HAVE_ONE, tmp_path)
    assert out.split()[0] == "cpu" and "Warning" not in errors


ASKS_FOR_ONE = """
import gpuflow.targets.platforms as platforms
platforms.GPU_SIGNS = ({sign!r},)
import gpuflow as gf
try:
    gf.devices({platform})
except RuntimeError as error:
    print(error)
"""


def test_a_gpu_that_is_asked_for_is_an_error(tmp_path):
    (tmp_path / "cupy.py").write_text(CUPY.format(body="return 0"))
    program = ASKS_FOR_ONE.format(sign="/", platform="")
    out, _ = run(program, tmp_path, GPUFLOW_PLATFORM="cuda")
    assert "[cuda] there must be a GPU; CUDA shows none. Fix: check nvidia-smi" in out


@pytest.mark.parametrize("body", [BROKEN["no CuPy"][0], CUPY.format(body="return 0")])
def test_a_gpu_that_is_asked_for_where_there_is_none(body, tmp_path):
    """To install CuPy, or to look at nvidia-smi, would be no help on this machine."""
    (tmp_path / "cupy.py").write_text(body)
    out, _ = run(ASKS_FOR_ONE.format(sign="/nowhere", platform='"gpu"'), tmp_path)
    assert out.startswith("[cuda] the machine must have an NVIDIA GPU; found none of ")
    assert 'Fix: leave the platform out, or pass "cpu", to use the CPU.' in out
    assert "gpuflow doctor" in out and "pip install" not in out


# --- kernels that fail ---------------------------------------------------------------------

ILLEGAL = "cudaErrorIllegalAddress: an illegal memory access was encountered"


@requires_cuda_tools
def test_with_checks_a_fault_names_the_kernel_and_the_function(monkeypatch):
    checked = replace(config.environment, check=True)
    monkeypatch.setattr(config, "environment", checked)
    (where,) = gpu_devices("cuda_late_checked", LateApi())
    x = gf.device_put(X, where)

    def my_step(v):
        return jnp.tanh(v) + 1

    def fail(stream):
        raise RuntimeError(ILLEGAL)

    step = gf.jit(my_step)
    step(x).block_until_ready()
    monkeypatch.setattr(where.driver.api, "synchronize", fail)
    with pytest.raises(GpuFault, match=r"in kernel \w+ of .*my_step.*Fix: report the kernel"):
        step(x)


AFTER_A_FAULT = """
import numpy as np
from late_gpu import LateApi, gpu_devices
import gpuflow as gf, gpuflow.numpy as jnp
from gpuflow.targets.cuda.runtime.driver.faults import GpuFault

class Broken(LateApi):
    \"\"\"After a fault CUDA refuses everything.\"\"\"
    broken = False
    def _refuse(self):
        if self.broken:
            raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access")
    def event(self, stream):
        self._refuse()
        return super().event(stream)
    def synchronize(self, stream):
        self._refuse()
        super().synchronize(stream)
    def is_done(self, event):
        self._refuse()
        return super().is_done(event)

api = Broken()
(where,) = gpu_devices("cuda_late_broken", api)
step = gf.jit(lambda v: jnp.sin(v @ v.T) + 1)
kept = [gf.device_put(np.ones((200, 200), np.float32), where) for _ in range(3)]  # guarded
result = step(kept[0])
api.broken = True
for wait in (result.block_until_ready, lambda: np.asarray(result)):
    try:
        wait()
    except GpuFault as error:
        print("named" if "this process cannot use the GPU any more" in str(error) else error)
del kept[0]
print(float(jnp.asarray(np.ones(3, np.float32)).sum()))
"""


@requires_cuda_tools
def test_a_process_ends_well_after_a_fault():
    out, errors = run(AFTER_A_FAULT, GPUFLOW_PLATFORM="cpu")
    assert out.split() == ["named", "named", "3.0"]
    assert not errors  # nor is an exception ignored while arrays die


# --- memory --------------------------------------------------------------------------------


def test_a_share_that_is_not_free_is_an_error_that_says_so():
    class Busy(LateApi):
        @property
        def memory_bytes(self):
            return 4 * self.memory.capacity  # the rest is another process's

        @memory_bytes.setter
        def memory_bytes(self, value):
            del value

    with pytest.raises(MemoryError) as caught:
        GpuDriver(Busy(64 << 20), preallocate=0.5)
    text = str(caught.value)
    assert "allocated at the start, 0.5 or 128 MiB; got " in text and "free of 256 MiB" in text
    assert "Fix: " in text and "GPUFLOW_PREALLOCATE" in text


@requires_cuda_tools
def test_out_of_memory_gives_recordings_and_idle_arenas_back():
    (where,) = gpu_devices("cuda_late_small", LateApi(64 << 20))
    x = gf.device_put(np.ones((64, 64), np.float32), where)
    step = gf.jit(lambda v: [(jnp.sin(v @ v + k) @ v).sum(0) for k in range(4)])
    for _ in range(4):
        step(x)
    where.driver.synchronize()
    recorded = [
        weakref.ref(one)
        for one in gc.get_objects()
        if type(one) is RecordedLaunches and one._api is where.driver.api
    ]
    assert recorded and where.driver._idle
    arenas = [weakref.ref(arena) for arena in where.driver._idle]
    used = where.driver.memory.used
    free = where.driver.api.memory.capacity - where.driver.api.memory.used
    big = where.driver.empty((free + 1024,), np.dtype(np.uint8))  # more than is free as it is
    assert big.nbytes > free and where.driver.memory.used < used + big.nbytes
    collect_garbage()
    assert not any(one() for one in recorded) and not any(one() for one in arenas)
    del big
    np.testing.assert_array_equal(np.asarray(step(x)[0]), np.asarray(step(x)[0]))
