"""`gpuflow doctor` on machines whose GPU software is broken in one place each."""

import argparse
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda_tools import requires_cuda_tools

from gpuflow.base.config import config
from gpuflow.cli import doctor, doctor_checks, doctor_gpu, doctor_needs, doctor_trials

H200 = {"name": b"NVIDIA H200", "major": 9, "minor": 0}


class _Driver:
    """libcuda, as far as doctor asks."""

    def __init__(self, number=13000, status=0):
        self.number, self.status = number, status

    def cuDriverGetVersion(self, place):  # CUDA's name
        place._obj.value = self.number
        return self.status


class _CuBlas:
    def cublasGetProperty(self, part, place):  # NVIDIA's name
        place._obj.value = (13, 1, 0)[part]
        return 0


class _CuDnn:
    def __init__(self, number=92801):
        self.number = number

    @property
    def cudnnGetVersion(self):  # NVIDIA's name
        return _Answer(self.number)


class _Answer:
    """A function of ctypes."""

    def __init__(self, number):
        self.number = number

    def __call__(self):
        return self.number


def _runtime(**changes):
    functions = {
        "runtimeGetVersion": lambda: 13020,
        "getDeviceCount": lambda: 1,
        "getDeviceProperties": lambda number: H200,
        "memGetInfo": lambda: (100 << 30, 141 << 30),
    }
    return SimpleNamespace(**{**functions, **changes})


class _CupyCuda:
    """cupy.cuda, which loads a library when it is asked for."""

    def __init__(self):
        self.runtime, self.absent = _runtime(), set()

    def _of(self, name, **functions):
        if name in self.absent:
            raise ImportError(f"lib{name}.so.12: cannot open shared object file")
        return SimpleNamespace(**functions)

    @property
    def cufft(self):
        return self._of("cufft", getVersion=lambda: 12103)

    @property
    def cusolver(self):
        return self._of("cusolver", _getVersion=lambda: (12, 0, 4))


@pytest.fixture
def healthy(monkeypatch):
    """A machine on which all is well; the values may be changed."""
    modules = {
        "cupy": SimpleNamespace(__version__="14.2.0", cuda=_CupyCuda()),
        "cupy.cuda.nccl": SimpleNamespace(available=True, get_version=lambda: 22707),
        "cuda.bindings.nvvm": SimpleNamespace(version=lambda: (2, 0)),
        "cuda.bindings.nvjitlink": SimpleNamespace(version=lambda: (13, 5)),
        "cuda.bindings.nvrtc": SimpleNamespace(nvrtcVersion=lambda: (0, 13, 5)),
        "cudnn": SimpleNamespace(),
    }
    versions = {
        "cupy-cuda13x": "14.2.0",
        "numba": "0.68.1",
        "numba-cuda": "0.30.4",
        "cuda-core": "1.2.2",
    }
    machine = SimpleNamespace(
        modules=modules,
        versions=versions,
        driver=_Driver(),
        has_gpu=True,
        on_bus=True,
        programs=dict.fromkeys(doctor_trials.TRIALS, "print('right, on the device')"),
    )

    def load(name):
        if name not in modules:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return modules[name]

    def open_library(name):
        if "cublas" in name:
            return _CuBlas()
        if "cudnn" in name:
            return _CuDnn()
        if machine.driver is None:
            raise OSError(f"{name}: cannot open shared object file")
        return machine.driver

    checks = {
        "load": load,
        "is_importable": modules.__contains__,
        "version_of": lambda name: versions.get(name, "none"),
        "open_library": open_library,
        "seems_to_have_gpu": lambda: machine.has_gpu,
        "is_on_bus": lambda: machine.on_bus,
        "find_cublas": lambda: "/lib/libcublas.so.13",
        "find_cudnn": lambda: "/lib/libcudnn.so.9",
        "trial_command": lambda name: [sys.executable, "-S", "-c", machine.programs[name]],
    }
    for name, function in checks.items():
        monkeypatch.setattr(doctor_checks, name, function)
    monkeypatch.setattr(doctor_gpu, "seems_to_have_gpu", lambda: machine.has_gpu)
    monkeypatch.setattr(doctor, "is_on_bus", lambda: machine.on_bus)
    return machine


def _lines(verbose=False):
    return dict(doctor.gpu(verbose))


def test_a_healthy_machine_misses_nothing(healthy, capsys):
    lines = _lines()
    assert lines["CUDA driver"] == "runs CUDA up to 13.0 (needed: 13.0, of driver 580)"
    assert lines["CuPy"] == "cupy-cuda13x 14.2.0 (needed: >=14,<15)"
    assert lines["CUDA runtime"] == "13.2"
    assert lines["numba-cuda"] == "0.30.4 (needed: >=0.30.4,<0.31)"
    assert lines["GPUs"] == "NVIDIA H200 (compute capability 9.0)"
    assert lines["GPU memory"] == "100 GiB free of 141 GiB"
    assert lines["NVVM"] == "2.0" and lines["nvJitLink"] == "13.5" and lines["NVRTC"] == "13.5"
    assert lines["cuBLAS"] == "13.1.0 (needed: 13), /lib/libcublas.so.13"
    assert (lines["cuFFT"], lines["cuSOLVER"]) == ("12.1.3", "12.0.4")
    assert lines["cuDNN"] == "9.28.1 (needed: 9), /lib/libcudnn.so.9"
    assert lines["NCCL"] == "2.27.7 (needed: >=2.27.7)"
    for name in doctor_trials.TRIALS:
        assert lines[f"try: {name}"] == "right, on the device"
    assert not any("MISSING" in text or "Fix" in text for text in lines.values())
    assert doctor.run(argparse.Namespace(cuda=False, verbose=False)) == 0
    assert "Numba pair" in capsys.readouterr().out


def _error(name):
    def raises():
        raise RuntimeError(f"{name}: what CUDA says of it\n  and more")

    return raises


def _break_no_driver(machine):
    machine.driver = None


def _break_unloaded_driver(machine):
    machine.driver, machine.has_gpu = None, False


def _break_no_gpu(machine):
    machine.driver, machine.has_gpu, machine.on_bus = None, False, False


def _break_dumb_driver(machine):
    machine.driver = _Driver(status=999)


def _break_old_driver(machine):
    machine.driver = _Driver(12040)


def _break_very_old_driver(machine):
    machine.driver = _Driver(11080)


def _break_cupy(machine):
    del machine.modules["cupy"], machine.versions["cupy-cuda13x"]


def _break_cupy_for_old_driver(machine):
    _break_cupy(machine)
    _break_old_driver(machine)


def _break_import_of_cupy(machine):
    del machine.modules["cupy"]


def _break_version_of_cupy(machine):
    machine.versions["cupy-cuda13x"] = "13.6.0"


def _break_two_cupys(machine):
    machine.versions["cupy-cuda12x"] = "14.2.0"


def _break_runtime(machine):
    """Installed for CUDA 12 by its name, with the files of another one."""
    machine.driver = _Driver(12040)
    machine.versions["cupy-cuda12x"] = machine.versions.pop("cupy-cuda13x")


def _break_linker(machine):
    _break_runtime(machine)
    machine.modules["cupy"].cuda.runtime = _runtime(runtimeGetVersion=lambda: 12090)


def _break_devices(machine):
    machine.modules["cupy"].cuda.runtime = _runtime(getDeviceCount=lambda: 0)


def _break_hidden_devices(machine):
    machine.modules["cupy"].cuda.runtime = _runtime(getDeviceCount=_error("cudaErrorNoDevice"))


def _break_fabric(machine):
    count = _error("cudaErrorSystemNotReady")
    machine.modules["cupy"].cuda.runtime = _runtime(getDeviceCount=count)


def _break_unknown_error(machine):
    machine.modules["cupy"].cuda.runtime = _runtime(getDeviceCount=_error("cudaErrorUnknown"))


def _break_old_device(machine):
    old = {"name": b"Tesla T4", "major": 7, "minor": 5}
    machine.modules["cupy"].cuda.runtime = _runtime(getDeviceProperties=lambda number: old)


def _break_memory(machine):
    machine.modules["cupy"].cuda.runtime = _runtime(memGetInfo=lambda: (1 << 20, 80 << 30))


def _break_numba_cuda(machine):
    del machine.versions["numba-cuda"]


def _break_version_of_numba_cuda(machine):
    machine.versions["numba-cuda"] = "0.29.0"


def _break_pair(machine):
    machine.versions["numba"] = "0.67.0"


def _break_cuda_core(machine):
    del machine.versions["cuda-core"]


def _break_nvvm(machine):
    del machine.modules["cuda.bindings.nvvm"]


def _break_nvjitlink(machine):
    del machine.modules["cuda.bindings.nvjitlink"]


def _break_product(machine):
    machine.programs["matrix product"] = "print('wrong: it differs'); raise SystemExit(1)"


def _break_transform(machine):
    machine.programs["FFT"] = "import os; os.kill(os.getpid(), 11)"


def _break_solve(machine):
    machine.programs["Cholesky solve"] = "raise ValueError('no such thing')"


EXTRA = r"Fix: pip install \"\S*\[cuda13\]\""
EXTRA_12 = r"pip install \"\S*\[cuda12\]\""
BROKEN = (
    (_break_no_driver, "CUDA driver", r"libcuda.so.1 is not found.*install NVIDIA's driver, 580"),
    (_break_unloaded_driver, "CUDA driver", "install NVIDIA's driver, 580 or newer"),
    (_break_no_gpu, "CUDA driver", "none, and no GPU.*GPUFLOW_PLATFORM=cpu"),
    (_break_dumb_driver, "CUDA driver", "does not answer"),
    (_break_old_driver, "CUDA driver", r"too old: .* 12\.4; needed: 13\.0.*580.*" + EXTRA_12),
    (_break_very_old_driver, "CUDA driver", r"11\.8; needed: 13\.0. Fix: [^,]*, 580 or newer$"),
    (_break_cupy, "CuPy", "is not installed; needed: cupy-cuda13x>=14,<15. " + EXTRA),
    (_break_cupy_for_old_driver, "CuPy", "needed: cupy-cuda12x.*Fix: " + EXTRA_12),
    (_break_import_of_cupy, "CuPy", "ModuleNotFoundError: No module named 'cupy'. " + EXTRA),
    (_break_version_of_cupy, "CuPy", r"13\.6\.0 does not fit; needed: >=14,<15. " + EXTRA),
    (_break_two_cupys, "CuPy", "overwrite each other.*pip uninstall -y cupy-cuda13x cupy-cuda12x"),
    (_break_runtime, "CUDA runtime", r"13\.2 does not fit the driver.* 12\.4.*" + EXTRA_12),
    (_break_linker, "nvJitLink", r"13\.5 does not fit the driver.* 12\.4.*" + EXTRA_12),
    (_break_devices, "GPUs", "CUDA shows no GPU.*CUDA_VISIBLE_DEVICES"),
    (_break_hidden_devices, "GPUs", "CUDA shows no GPU.*CUDA_VISIBLE_DEVICES"),
    (_break_fabric, "GPUs", "nvidia-fabricmanager"),
    (_break_unknown_error, "GPUs", "cudaErrorUnknown: what CUDA says of it. Fix: check nvidia-smi"),
    (_break_old_device, "GPUs", r"Tesla T4 .* too old; needed: 8\.0"),
    (_break_memory, "GPU memory", "1 MiB free of 80 GiB"),
    (_break_numba_cuda, "numba-cuda", r"is not installed; needed: >=0\.30\.4,<0\.31. " + EXTRA),
    (_break_version_of_numba_cuda, "numba-cuda", r"0\.29\.0 does not fit; needed: .*" + EXTRA),
    (_break_pair, "Numba pair", "numba 0.67.0 with .* not known to work together.*" + EXTRA),
    (_break_cuda_core, "cuda-core", "is not installed. " + EXTRA),
    (_break_nvvm, "NVVM", EXTRA),
    (_break_nvjitlink, "nvJitLink", EXTRA),
    (_break_product, "try: matrix product", "wrong: it differs. Fix: "),
    (_break_transform, "try: FFT", r"crashed \(SIGSEGV\). Fix: "),
    (_break_solve, "try: Cholesky solve", "ValueError: no such thing. Fix: "),
)


@pytest.mark.parametrize(
    "break_it, name, pattern", BROKEN, ids=[row[0].__name__.removeprefix("_") for row in BROKEN]
)
def test_what_is_broken_is_missing_and_says_what_to_do(
    break_it, name, pattern, healthy, monkeypatch, capsys
):
    monkeypatch.setattr(doctor, "wants_gpu", lambda: True)  # GPUFLOW_PLATFORM=cuda
    break_it(healthy)
    line = _lines()[name]
    assert line.startswith("MISSING: ") and "Fix: " in line and re.search(pattern, line), line
    assert doctor.run(argparse.Namespace(cuda=False, verbose=False)) == 1
    out = capsys.readouterr().out
    assert "Traceback" not in out and line in out


def test_what_hangs_on_something_missing_is_not_looked_at(healthy):
    _break_cupy(healthy)
    lines = _lines()
    for name in ("CUDA runtime", "GPUs", "cuFFT", "cuSOLVER", "NCCL"):
        assert lines[name].startswith("skipped (requires "), name
    assert all(lines[f"try: {name}"].startswith("skipped") for name in doctor_trials.TRIALS)
    assert [name for name, line in lines.items() if line.startswith("MISSING")] == ["CuPy"]


def test_a_trial_that_hangs(healthy, monkeypatch):
    monkeypatch.setattr(doctor_checks, "TRIAL_SECONDS", 0.2)
    healthy.programs["FFT"] = "import time; time.sleep(60)"
    line = doctor_gpu._finding_of(next(c for c in doctor_gpu.CHECKS if c.name == "try: FFT")).report
    assert line.startswith("did not end within 0.2 s. Fix: ")


def test_libraries_that_are_not_there(healthy, monkeypatch):
    def nowhere():
        raise OSError("none was found")

    monkeypatch.setattr(doctor_checks, "find_cublas", nowhere)
    healthy.modules["cupy"].cuda.absent = {"cufft", "cusolver"}
    healthy.modules["cupy.cuda.nccl"].available = False
    lines, ctk = _lines(), 'Fix: pip install "cupy-cuda13x[ctk]>=14,<15"'
    assert lines["cuBLAS"].startswith("MISSING: ")
    for name in ("cuBLAS", "cuFFT", "cuSOLVER"):
        assert "run on the host" in lines[name] and lines[name].endswith(ctk)
    assert lines["NCCL"].endswith('Fix: pip install "nvidia-nccl-cu13>=2.27.7"')
    # Programs of one GPU are right without these.
    assert not any("MISSING" in lines[name] for name in ("cuFFT", "cuSOLVER", "NCCL"))
    assert lines["try: NCCL all-reduce"] == "skipped (requires NCCL)"


def test_cudnn_is_not_needed(healthy, monkeypatch):
    def nowhere():
        raise OSError("none was found")

    instead = "convolutions and attention use gpuflow's kernels"
    library = "(needed: 9), /lib/libcudnn.so.9"
    fix = 'Fix: pip install "nvidia-cudnn-cu13>=9,<10" "nvidia-cudnn-frontend>=1.18,<1.29"'
    monkeypatch.setattr(config, "environment", replace(config.environment, cudnn=False))
    assert _lines()["cuDNN"] == f"9.28.1 {library}; GPUFLOW_CUDNN=0: {instead}"
    del healthy.modules["cudnn"]
    line = doctor_gpu._finding_of(next(c for c in doctor_gpu.CHECKS if c.name == "cuDNN")).report
    assert line == f"9.28.1 {library}, without nvidia-cudnn-frontend: {instead}. {fix}"
    monkeypatch.setattr(doctor_checks, "open_library", lambda name: _CuDnn(8907))
    line = doctor_gpu._finding_of(next(c for c in doctor_gpu.CHECKS if c.name == "cuDNN")).report
    assert line == f"8.9.7 {library}: {instead}. {fix}"
    monkeypatch.setattr(doctor_checks, "find_cudnn", nowhere)
    line = doctor_gpu._finding_of(next(c for c in doctor_gpu.CHECKS if c.name == "cuDNN")).report
    assert line == f"is not found: {instead}. {fix}"
    assert "MISSING" not in line


def test_an_old_nccl(healthy):
    healthy.modules["cupy.cuda.nccl"].get_version = lambda: 22203
    assert _lines()["NCCL"].startswith("2.22.3 is too old; needed: >=2.27.7. Fix: pip install")


def test_commands_are_for_the_cuda_of_cupy(healthy):
    healthy.driver = _Driver(12080)
    healthy.versions["cupy-cuda12x"] = healthy.versions.pop("cupy-cuda13x")
    cuda = healthy.modules["cupy"].cuda
    cuda.runtime, cuda.absent = _runtime(runtimeGetVersion=lambda: 12090), {"cufft"}
    healthy.modules["cuda.bindings.nvjitlink"].version = lambda: (12, 9)
    lines = _lines()
    assert lines["CUDA driver"] == "runs CUDA up to 12.8 (needed: 12.0, of driver 525)"
    assert lines["cuFFT"].endswith('Fix: pip install "cupy-cuda12x[ctk]>=14,<15"')
    assert not any("MISSING" in line for line in lines.values())


def test_a_call_on_the_host_is_said_and_is_no_failure(healthy):
    healthy.programs["FFT"] = "print('right, but on the host: fft(complex64): ImportError')"
    assert _lines()["try: FFT"] == "right, but on the host: fft(complex64): ImportError"


def test_nothing_is_missing_on_a_machine_without_a_gpu(healthy):
    _break_no_gpu(healthy)
    _break_cupy(healthy)
    lines = _lines(verbose=True)
    assert not any("MISSING" in text for text in lines.values())
    assert lines["GPU"].startswith("none: found none of /dev/nvidia0")
    assert "Fix: " in lines["CUDA driver"]


def test_a_gpu_without_a_driver_is_told_from_no_gpu(healthy):
    _break_unloaded_driver(healthy)
    (line,) = _lines().values()
    assert line.startswith("an NVIDIA GPU without a driver: programs run on the CPU")
    assert _lines(verbose=True)["GPU"] == (
        "NVIDIA's GPU is on the PCI bus, but has no driver. "
        "Fix: install NVIDIA's driver, 580 or newer"
    )


def test_a_machine_without_a_gpu_reads_as_fine(healthy, capsys):
    _break_no_gpu(healthy)
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


def test_an_error_that_says_what_to_do_is_not_told_twice():
    def check():
        raise OSError("[cublas] a library must be installed; got none. Fix: pip install it.")

    finding = doctor_gpu._finding_of(doctor_gpu.Check("cuBLAS", check, doctor_needs.extra))
    assert finding.report.count("Fix:") == 1
    assert finding.report.endswith("got none. Fix: pip install it")


# --- versions ---


@pytest.mark.parametrize(
    "version, needed, fit",
    [
        ("14.2.0", ">=14,<15", True),
        ("14", ">=14,<15", True),
        ("13.6", ">=14,<15", False),
        ("15.0.0", ">=14,<15", False),
        ("0.30.4", ">=0.30.4,<0.31", True),
        ("0.31.0", ">=0.30.4,<0.31", False),
        ("0.30.3.post1", ">=0.30.4,<0.31", False),
        ("2.27.10", ">=2.27.7", True),
        ("14.2.0rc1", ">=14,<15", True),
    ],
)
def test_ranges_of_versions(version, needed, fit):
    assert doctor_needs.fits(version, needed) == fit


def test_what_is_needed_is_what_the_extras_install():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    needed = {}
    for line in (*extras["cuda13"], *extras["cuda12"], *extras["cudnn"]):
        package, limits = re.fullmatch(r"([\w-]+)(?:\[\w+\])?(.*)", line).groups()
        needed[package] = limits
    assert needed == doctor_needs.NEEDED


# --- trials ---


def test_each_trial_is_a_line_of_the_report():
    lines = [c.name.removeprefix("try: ") for c in doctor_gpu.CHECKS if c.name[:4] == "try:"]
    assert lines == list(doctor_trials.TRIALS)


@requires_cuda_tools
@pytest.mark.parametrize("name", ["matrix product", "FFT", "Cholesky solve"])
def test_trials_run_on_the_simulator(name, capsys):
    assert doctor_trials.main([name, "cuda_sim"]) == 0
    assert capsys.readouterr().out == "right, on the device\n"


@requires_cuda_tools
def test_a_trial_says_what_is_wrong(monkeypatch, capsys):
    def wrong(device):
        return doctor_trials._inputs()

    monkeypatch.setitem(doctor_trials.TRIALS, "FFT", wrong)
    assert doctor_trials.main(["FFT", "cuda_sim"]) == 1
    assert capsys.readouterr().out.startswith("wrong: it differs from NumPy by ")


def test_a_trial_without_a_gpu_is_one_line(monkeypatch, capsys):
    def nothing(*platform):
        raise RuntimeError("[cuda] there must be a GPU; CUDA shows none.\nAnd more.")

    monkeypatch.setattr(doctor_trials.gf, "devices", nothing)
    assert doctor_trials.main(["FFT"]) == 1
    out = capsys.readouterr().out
    assert out == "failed: RuntimeError: [cuda] there must be a GPU; CUDA shows none.\n"
