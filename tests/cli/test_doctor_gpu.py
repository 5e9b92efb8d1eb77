"""`gpuflow doctor` on machines whose GPU software is broken in one place each."""

import argparse
import re
from types import SimpleNamespace

import pytest

from gpuflow.cli import doctor, doctor_gpu

H200 = {"name": b"NVIDIA H200", "major": 9, "minor": 0}


class _Driver:
    """libcuda, as far as doctor asks."""

    def __init__(self, number=13000, status=0):
        self.number, self.status = number, status

    def cuDriverGetVersion(self, place):  # CUDA's name
        place._obj.value = self.number
        return self.status


def _runtime(**changes):
    functions = {
        "runtimeGetVersion": lambda: 13020,
        "getDeviceCount": lambda: 1,
        "getDeviceProperties": lambda number: H200,
        "memGetInfo": lambda: (100 << 30, 141 << 30),
    }
    return SimpleNamespace(**{**functions, **changes})


@pytest.fixture
def healthy(monkeypatch):
    """A machine on which all is well; the values may be changed."""
    modules = {
        "cupy": SimpleNamespace(__version__="14.2.0", cuda=SimpleNamespace(runtime=_runtime())),
        "cuda.bindings.nvvm": SimpleNamespace(version=lambda: (2, 0)),
        "cuda.bindings.nvjitlink": SimpleNamespace(version=lambda: (13, 5)),
        "cuda.bindings.nvrtc": SimpleNamespace(nvrtcVersion=lambda: (0, 13, 5)),
        "cuda.pathfinder": SimpleNamespace(
            load_nvidia_dynamic_lib=lambda name: SimpleNamespace(abs_path=f"/lib/{name}.so")
        ),
    }
    versions = {"numba": "0.68.1", "numba-cuda": "0.30.4"}
    machine = SimpleNamespace(modules=modules, versions=versions, driver=_Driver(), has_gpu=True)

    def load(name):
        if name not in modules:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return modules[name]

    def open_library(name):
        if machine.driver is None:
            raise OSError(f"{name}: cannot open shared object file")
        return machine.driver

    monkeypatch.setattr(doctor_gpu, "load", load)
    monkeypatch.setattr(doctor_gpu, "version", versions.__getitem__)
    monkeypatch.setattr(doctor_gpu, "open_library", open_library)
    monkeypatch.setattr(doctor_gpu, "seems_to_have_gpu", lambda: machine.has_gpu)
    monkeypatch.setattr(doctor_gpu, "find_cublas", lambda: "/lib/libcublas.so.13")
    return machine


def _lines(verbose=False):
    return dict(doctor.gpu(verbose))


def test_a_healthy_machine_misses_nothing(healthy, capsys):
    lines = _lines()
    assert lines["CUDA driver"] == "runs CUDA up to 13.0"
    assert lines["GPUs"] == "NVIDIA H200 (compute capability 9.0)"
    assert lines["GPU memory"] == "100 GiB free of 141 GiB"
    assert lines["NVVM"] == "2.0" and lines["nvJitLink"] == "13.5" and lines["NVRTC"] == "13.5"
    assert not any("MISSING" in text or "Fix" in text for text in lines.values())
    assert doctor.run(argparse.Namespace(cuda=False, verbose=False)) == 0
    assert "Numba pair" in capsys.readouterr().out


def _break_no_driver(machine):
    machine.driver = None


def _break_old_driver(machine):
    machine.driver = _Driver(12040)


def _break_cupy(machine):
    del machine.modules["cupy"]


def _break_devices(machine):
    machine.modules["cupy"].cuda.runtime = _runtime(getDeviceCount=lambda: 0)


def _break_old_device(machine):
    old = {"name": b"Tesla T4", "major": 7, "minor": 5}
    machine.modules["cupy"].cuda.runtime = _runtime(getDeviceProperties=lambda number: old)


def _break_memory(machine):
    machine.modules["cupy"].cuda.runtime = _runtime(memGetInfo=lambda: (1 << 20, 80 << 30))


def _break_nvvm(machine):
    del machine.modules["cuda.bindings.nvvm"]


def _break_nvjitlink(machine):
    del machine.modules["cuda.bindings.nvjitlink"]


def _break_pair(machine):
    machine.versions["numba-cuda"] = "0.29.0"


BROKEN = {
    "CUDA driver": (_break_no_driver, "install NVIDIA's driver"),
    "CUDA driver ": (_break_old_driver, r"too old: it runs CUDA up to 12\.4"),
    "CuPy": (_break_cupy, r"pip install \"gpuflow\[cuda13\]\""),
    "GPUs": (_break_devices, "CUDA_VISIBLE_DEVICES"),
    "GPUs ": (_break_old_device, r"Tesla T4 .* too old"),
    "GPU memory": (_break_memory, "1 MiB free of 80 GiB"),
    "NVVM": (_break_nvvm, "pip install nvidia-nvvm"),
    "nvJitLink": (_break_nvjitlink, "pip install nvidia-nvjitlink"),
    "Numba pair": (_break_pair, "not known to work together"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_missing_and_says_what_to_do(name, healthy, capsys):
    break_it, pattern = BROKEN[name]
    break_it(healthy)
    line = _lines()[name.strip()]
    assert line.startswith("MISSING: ") and "Fix: " in line and re.search(pattern, line)
    assert doctor.run(argparse.Namespace(cuda=False, verbose=False)) == 1
    capsys.readouterr()


def test_cublas_that_is_not_there(healthy, monkeypatch):
    def nowhere():
        raise OSError("none was found")

    monkeypatch.setattr(doctor_gpu, "find_cublas", nowhere)
    assert "pip install nvidia-cublas" in _lines()["cuBLAS"]


def test_nothing_is_missing_on_a_machine_without_a_gpu(healthy):
    healthy.has_gpu = False
    _break_no_driver(healthy)
    _break_cupy(healthy)
    lines = _lines(verbose=True)
    assert not any("MISSING" in text for text in lines.values())
    assert "Fix: " in lines["CUDA driver"]


def test_a_machine_without_a_gpu_reads_as_fine(healthy, capsys):
    healthy.has_gpu = False
    _break_no_driver(healthy)
    _break_cupy(healthy)
    (line,) = _lines().values()
    assert line.startswith("none found: programs run on the CPU")
    assert doctor.run(argparse.Namespace(cuda=False, verbose=False)) == 0
    out = capsys.readouterr().out
    assert "Error" not in out and "Fix" not in out and "MISSING" not in out


def test_a_gpu_that_is_asked_for_is_looked_for(healthy, monkeypatch):
    healthy.has_gpu = False
    _break_cupy(healthy)
    monkeypatch.setattr(doctor, "wants_gpu", lambda: True)
    assert _lines()["CuPy"].startswith("MISSING: ")


def test_optional_pieces_are_never_missing(healthy):
    del healthy.modules["cuda.pathfinder"]
    assert "several GPUs" in _lines()["NCCL"] and "MISSING" not in _lines()["NCCL"]


def test_an_error_that_says_what_to_do_is_not_told_twice():
    def check():
        raise OSError("[cublas] a library must be installed; got none. Fix: pip install it.")

    found = doctor_gpu._found("cuBLAS", check, "pip install nvidia-cublas", True)
    assert found.line.count("Fix:") == 1 and found.line.endswith("got none. Fix: pip install it")
