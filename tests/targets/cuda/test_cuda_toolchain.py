"""The check of the packages that build CUDA kernels: what it accepts, what it says else."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import cuda_zoo
import pytest
from cuda_harness import requires_cuda_tools

from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.targets.cuda.codegen import toolchain
from gpuflow.targets.cuda.codegen.build import build_cuda
from gpuflow.targets.cuda.codegen.cached_builds import compile_cuda
from gpuflow.targets.cuda.codegen.toolchain import (
    INSTALL,
    CudaToolchainError,
    load_linker,
    load_numba_cuda,
    pair_fault,
    toolchain_fault,
)

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = {"numba": "0.68.1", "numba-cuda": "0.30.4", "cuda-core": "1.2.2"}


@pytest.fixture
def installed(monkeypatch):
    """Versions of an imagined environment, which may be changed."""
    versions = dict(VERSIONS)
    monkeypatch.setattr(toolchain, "version_of", lambda name: versions.get(name, "none"))
    monkeypatch.setattr(toolchain, "_library_fault", lambda: "")
    toolchain_fault.cache_clear()
    yield versions
    toolchain_fault.cache_clear()


def test_the_pinned_pair_is_accepted(installed):
    assert toolchain_fault() == ""


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        # A fresh `pip install .`: Numba's own old module `numba.cuda` can be imported.
        ({"numba-cuda": "none", "cuda-core": "none"}, "got numba 0.68.1 without numba-cuda"),
        ({"numba-cuda": "0.24.0"}, "got numba 0.68.1 with numba-cuda 0.24.0: not known to work"),
        ({"numba": "0.70.0"}, "got numba 0.70.0 with numba-cuda 0.30.4: not known to work"),
        ({"cuda-core": "none"}, "got no cuda-core"),
    ],
)
def test_what_is_missing_is_said_with_the_command_that_installs_it(installed, changes, found):
    installed.update(changes)
    assert found in toolchain_fault() and INSTALL in toolchain_fault()
    for load in (load_numba_cuda, load_linker):
        with pytest.raises(CudaToolchainError, match=r"^\[cuda build\].*Fix: pip install") as error:
            load()
        assert str(error.value) == toolchain_fault()


def test_libraries_that_are_not_there(installed, monkeypatch):
    monkeypatch.setattr(toolchain, "_library_fault", lambda: "no nvvm: not found")
    toolchain_fault.cache_clear()
    assert "got no nvvm: not found. Fix: " in toolchain_fault()


@requires_cuda_tools
def test_libraries_are_looked_for_by_name(monkeypatch):
    assert toolchain._library_fault() == ""
    monkeypatch.setattr(toolchain, "_LIBRARIES", ("nvvm", "nosuch"))
    assert toolchain._library_fault().startswith("no nosuch: ")


def test_both_ways_to_build_refuse_before_they_compile(installed):
    del installed["numba-cuda"]
    with pytest.raises(CudaToolchainError, match="without numba-cuda"):
        build_cuda("def k():\n    pass\n", "k", (), (9, 0))
    with pytest.raises(CudaToolchainError, match="without numba-cuda"):
        compile_cuda(cuda_zoo.scaled_tanh(), KernelCache(None))


def test_one_pin():
    """pyproject's extras, the command of the error, the pair of the check and the pages agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    *_, numba_cuda, numba = project["optional-dependencies"]["cuda13"]
    assert f'pip install "{numba}" "{numba_cuda}"' == INSTALL
    for page in ("CONTRIBUTING.md", ".ci/run"):
        assert f'"{numba_cuda}"' in (ROOT / page).read_text(), page
    numba, numba_cuda = (text.partition(">=")[2].partition(",")[0] for text in (numba, numba_cuda))
    assert pair_fault(numba, numba_cuda) == ""


@requires_cuda_tools
def test_numpy_without_a_name_that_numba_cuda_takes_from_it():
    """NumPy 2.5 has no row_stack, at which numba-cuda 0.30 fails; pip installs the two together."""
    program = """
import numpy as np
if vars(np).pop("row_stack", None):
    np.__all__.remove("row_stack")
import cuda_zoo
from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.targets.cuda.codegen.cached_builds import compile_cuda
assert compile_cuda(cuda_zoo.scaled_tanh(), KernelCache(None)).built.cubin
assert not hasattr(np, "row_stack")
"""
    folders = [str(ROOT), str(Path(cuda_zoo.__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)
