"""The GPU section of `gpuflow doctor`: one check for each component, with its fix.

Tests: tests/cli/test_doctor_gpu.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.cli import doctor_checks
from gpuflow.cli.doctor_checks import Trouble, cuda_major, first_nonempty
from gpuflow.cli.doctor_needs import (
    cudnn_command,
    driver_command,
    extra,
    libraries_command,
    nccl_command,
)
from gpuflow.targets.platforms import seems_to_have_gpu


@record
class Finding:
    """The result of one check.

    Attributes:
        name: of the component.
        text: the version, or the problem.
        fix: the solution; "" for none.
        is_needed: whether GPU programs need it.
    """

    name: str
    text: str
    fix: str = ""
    is_needed: bool = True

    @property
    def report(self) -> str:
        """Line of the report; it begins with MISSING if the GPU needs the component."""
        return f"{self.text}. Fix: {self.fix}" if self.fix else self.text


@record
class Check:
    """A check of one component.

    Attributes:
        name: of the component.
        probe: returns its version, or raises.
        fix: the solution if it raises an error without one, by the major version of CUDA.
        is_needed: whether GPU programs need it.
        after: the components that it requires.
    """

    name: str
    probe: Callable[[], str]
    fix: Callable[[int], str]
    is_needed: bool = True
    after: tuple[str, ...] = ()


def findings() -> list[Finding]:
    """Run all checks; those that require a failed component are skipped."""
    report: list[Finding] = []
    absent: set[str] = set()
    for check in CHECKS:
        missing = [name for name in check.after if name in absent]
        if missing:
            text = f"skipped (requires {', '.join(missing)})"
            finding = Finding(check.name, text, "", check.is_needed)
        else:
            finding = _finding_of(check)
        if missing or finding.fix:
            absent.add(check.name)
        report.append(finding)
    return report


def wants_gpu() -> bool:
    """Whether GPU programs should work here: the user asked for them, or there is a GPU."""
    return config.environment.platform in ("cuda", "gpu") or seems_to_have_gpu()


def _finding_of(check: Check) -> Finding:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy's, about components with their own checks
            return Finding(check.name, check.probe(), "", check.is_needed)
    except Trouble as trouble:
        fix = trouble.fix or check.fix(cuda_major())
        return Finding(check.name, str(trouble), fix, check.is_needed)
    except Exception as error:
        first, _, advice = first_nonempty(str(error)).partition(". Fix: ")
        fix = advice.rstrip(".") or check.fix(cuda_major())
        return Finding(check.name, f"{type(error).__name__}: {first}", fix, check.is_needed)


def _look(cuda: int) -> str:
    del cuda
    return "check nvidia-smi and CUDA_VISIBLE_DEVICES"


def _report(cuda: int) -> str:
    return f"{extra(cuda)} again; if that does not help, report the problem with this output"


_READY = ("CUDA driver", "CuPy", "CUDA runtime", "GPUs")

CHECKS: tuple[Check, ...] = (
    Check("GPU", doctor_checks.check_gpu, _look, False),
    Check("CUDA driver", doctor_checks.check_driver, driver_command),
    Check("CuPy", doctor_checks.check_cupy, extra),
    Check("CUDA runtime", doctor_checks.check_runtime, extra, after=("CuPy",)),
    Check("GPUs", doctor_checks.check_devices, _look, after=_READY[:3]),
    Check("numba-cuda", doctor_checks.check_numba_cuda, extra),
    Check("Numba pair", doctor_checks.check_numba_pair, extra, after=("numba-cuda",)),
    Check("cuda-core", doctor_checks.check_cuda_core, extra),
    Check("NVVM", doctor_checks.check_nvvm, extra),
    Check("nvJitLink", doctor_checks.check_nvjitlink, extra),
    Check("NVRTC", doctor_checks.check_nvrtc, libraries_command, False),
    Check("cuBLAS", doctor_checks.check_cublas, libraries_command),
    # Without these, such calls run on the host, and programs cannot use several GPUs.
    Check("cuFFT", doctor_checks.check_cufft, libraries_command, False, ("CuPy",)),
    Check("cuSOLVER", doctor_checks.check_cusolver, libraries_command, False, ("CuPy",)),
    Check("cuDNN", doctor_checks.check_cudnn, cudnn_command, False),
    Check("NCCL", doctor_checks.check_nccl, nccl_command, False, ("CuPy",)),
    *(
        Check(f"try: {name}", partial(doctor_checks.check_trial, name), _report, needed, after)
        for name, needed, after in (
            ("matrix product", True, _READY),
            ("FFT", True, _READY),
            ("Cholesky solve", True, _READY),
            ("NCCL all-reduce", False, (*_READY, "NCCL")),
        )
    ),
    # Last: it makes a context, which a trial could not where a process has the GPU for itself.
    Check("GPU memory", doctor_checks.check_memory, _look, after=("GPUs",)),
)
