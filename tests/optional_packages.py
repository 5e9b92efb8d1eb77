"""Tests of what not every environment holds: one mark for each, and one sentence for a skip.

    @pytest.mark.cuda_toolchain                 builds CUDA kernels, which needs no GPU
    @pytest.mark.jax_libraries("flax", "yaml")  imports libraries that are written for JAX

``.ci/run`` runs these by their marks, in an environment that holds the packages. A program that a
test starts in a process of its own is of the same kind as the test. Where another machine built the
kernels (GPUFLOW_KERNEL_VERSIONS), tests of CUDA run without the toolchain.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from gpuflow.base.config import config
from gpuflow.targets.cuda.codegen.toolchain import toolchain_fault

_LIBRARIES = "pip install --no-deps -r tests/requirements-libraries.txt"


def skip_without_packages(items: list[pytest.Item]) -> None:
    """Skip each marked test whose packages are not there, with the command that installs them."""
    may_build = not config.environment.kernel_versions
    for item in items:
        if may_build and item.get_closest_marker("cuda_toolchain") and toolchain_fault():
            item.add_marker(pytest.mark.skip(reason=toolchain_fault()))
        libraries = item.get_closest_marker("jax_libraries")
        missing = [name for name in libraries.args if not find_spec(name)] if libraries else []
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}: {_LIBRARIES}"))
