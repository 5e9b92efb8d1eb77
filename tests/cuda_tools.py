"""Marks tests that compile for CUDA, which needs wheels but no GPU."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

import pytest


def _missing() -> list[str]:
    missing = []
    for name in ("numba-cuda", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink"):
        try:
            distribution(name)
        except PackageNotFoundError:
            missing.append(name)
    return missing


requires_cuda_tools = pytest.mark.skipif(
    bool(_missing()), reason=f"compiling for CUDA needs the wheels {', '.join(_missing())}"
)
