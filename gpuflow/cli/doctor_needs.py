"""The versions that GPU programs need, and pip's commands for them, for `gpuflow doctor`.

Tests: tests/cli/test_doctor_gpu.py.
"""

from __future__ import annotations

import re

from gpuflow.base.installation import pip_install

# Of pyproject.toml, which is not there where gpuflow is installed.
NEEDED = {
    "cupy-cuda13x": ">=14,<15",
    "cupy-cuda12x": ">=14,<15",
    "numba": ">=0.68.1,<0.69",
    "numba-cuda": ">=0.30.4,<0.31",
    "nvidia-nccl-cu13": ">=2.27.7",
    "nvidia-nccl-cu12": ">=2.27.7",
    "nvidia-cudnn-cu13": ">=9,<10",
    "nvidia-cudnn-frontend": ">=1.18,<1.29",
}
DRIVERS = {13: "580", 12: "525"}  # the oldest one, by the major version of CUDA
_PACKAGES = {13: "cupy-cuda13x", 12: "cupy-cuda12x"}


def extra(cuda: int) -> str:
    """The command that installs all that GPU programs need.

    Args:
        cuda: the major version of CUDA, here and below.
    """
    return pip_install(f"cuda{cuda}")


def driver_command(cuda: int) -> str:
    """Return the command that installs a driver for this CUDA version."""
    return f"install NVIDIA's driver, {DRIVERS[cuda]} or newer"


def libraries_command(cuda: int) -> str:
    """The command that installs cuBLAS, cuFFT and cuSOLVER."""
    package = _PACKAGES[cuda]
    return f'pip install "{package}[ctk]{NEEDED[package]}"'


def nccl_command(cuda: int) -> str:
    """The command that installs NCCL."""
    package = f"nvidia-nccl-cu{cuda}"
    return f'pip install "{package}{NEEDED[package]}"'


def cudnn_command(cuda: int) -> str:
    """The command that installs cuDNN."""
    library = f"nvidia-cudnn-cu{cuda}{NEEDED['nvidia-cudnn-cu13']}"
    package = f"nvidia-cudnn-frontend{NEEDED['nvidia-cudnn-frontend']}"
    return f'pip install "{library}" "{package}"'


def fits(version: str, needed: str) -> bool:
    """Whether a version is in a range such as ``>=14,<15``; only its first three numbers count."""
    numbers = _numbers(version)
    for limit in needed.split(","):
        sign, bound = limit[:2].rstrip("0123456789"), _numbers(limit)
        if numbers < bound if sign == ">=" else numbers >= bound:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", text)[:3]]
    return tuple(numbers + [0] * (3 - len(numbers)))
