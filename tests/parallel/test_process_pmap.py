"""pmap over processes, and the data-parallel example: the same numbers wherever devices are."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from process_groups import ROOT, finish, mpiexec, run_group, start

PROGRAM = Path(__file__).with_name("pmap_program.py")
EXAMPLE = ROOT / "docs" / "examples" / "data_parallel.py"


@pytest.mark.parametrize("checked", ["0", "1"])
def test_two_processes_of_two_devices(checked):
    ended = run_group(PROGRAM, 2, GPUFLOW_CPU_DEVICES="2", GPUFLOW_CHECK=checked)
    for rank, one in enumerate(ended):
        assert one.status == 0 and f"rank {rank} of 2 passed" in one.output, one.output


@requires_cuda_tools
def test_two_processes_of_two_simulated_devices():
    """Four memories: an axis goes over the processes, and then over the memories of each."""
    values = {"GPUFLOW_PLATFORM": "cuda_sim", "GPUFLOW_SIM_DEVICES": "2"}
    ended = run_group(PROGRAM, 2, "moved", "slope", **values)
    for rank, one in enumerate(ended):
        assert one.status == 0 and f"rank {rank} of 2 passed" in one.output, one.output


LAUNCH = ["-m", "gpuflow.cli.main", "launch"]


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    return losses(tmp_path_factory.mktemp("losses") / "one", [])


def losses(path, launcher, **values):
    command = [sys.executable, *launcher, str(EXAMPLE), "--losses", str(path)]
    (ended,) = finish([start(command, values)])
    assert ended.status == 0, ended.output
    return np.loadtxt(path)


@pytest.mark.parametrize(
    ("launcher", "devices"),
    [([], "4"), ([*LAUNCH, "-n", "4"], "1"), ([*LAUNCH, "-n", "2"], "2")],
    ids=["4 virtual", "4 processes", "2 processes of 2"],
)
def test_training_is_the_same_on_any_devices(launcher, devices, one_device, tmp_path):
    result = losses(tmp_path / "losses", launcher, GPUFLOW_CPU_DEVICES=devices)
    assert len(result) == 50 and result[-1] < 0.7 * result[0]
    # Sums of 64 examples in another order: a few roundings of float32, over 50 steps.
    np.testing.assert_allclose(result, one_device, rtol=1e-5)


HAS_MPI = importlib.util.find_spec("mpi4py") is not None and mpiexec() is not None


@pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec")
def test_training_over_mpi(one_device, tmp_path):
    result = losses(tmp_path / "losses", [*LAUNCH, "--mpi", "-n", "2"])
    np.testing.assert_allclose(result, one_device, rtol=1e-5)
