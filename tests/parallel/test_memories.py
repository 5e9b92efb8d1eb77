"""Programs over several memories: processes, and simulated GPUs of one process."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from process_groups import ROOT, finish, mpiexec, run_group, start

PROGRAM = Path(__file__).with_name("memories_program.py")
EXAMPLE = ROOT / "docs" / "examples" / "data_parallel.py"


def results(folder, size, *names, **values):
    """What rank 0 of a group stores."""
    path = folder / "results.npz"
    ended = run_group(PROGRAM, size, str(path), *names, **values)
    for rank, one in enumerate(ended):
        assert one.status == 0 and f"rank {rank} of {size} passed" in one.output, one.output
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def one_memory(tmp_path_factory):
    """The results of four virtual devices, which equal JAX 0.10.2's to 1e-5."""
    return results(tmp_path_factory.mktemp("one"), 1, GPUFLOW_CPU_DEVICES="4")


def check_same(found, expected):
    assert found and set(found) <= set(expected)
    for name, value in found.items():
        # Sums of a few float32 in another order.
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=2e-6, err_msg=name)


@requires_cuda_tools
def test_processes_of_simulated_devices(one_memory, tmp_path):
    """Two GPUs in each of two processes: threads meet in each, and the first ones between."""
    values = {"GPUFLOW_PLATFORM": "cuda_sim", "GPUFLOW_SIM_DEVICES": "2"}
    check_same(results(tmp_path, 2, "collectives", "arrays", **values), one_memory)


@pytest.mark.parametrize(
    ("size", "devices", "checked"), [(2, "2", "1"), (4, "1", "0")], ids=["2 of 2", "4 of 1"]
)
def test_processes(size, devices, checked, one_memory, tmp_path):
    values = {"GPUFLOW_CPU_DEVICES": devices, "GPUFLOW_CHECK": checked}
    result = results(tmp_path, size, **values)
    assert set(result) == set(one_memory)
    check_same(result, one_memory)


HAS_MPI = importlib.util.find_spec("mpi4py") is not None and mpiexec() is not None
NEEDS_MPI = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec")


@pytest.mark.parametrize(
    "options",
    [("-n", "4"), pytest.param(("--mpi", "-n", "2"), marks=NEEDS_MPI)],
    ids=["4 by the launcher", "2 over MPI"],
)
def test_the_launcher(options, one_memory, tmp_path):
    path = tmp_path / "results.npz"
    command = [sys.executable, "-m", "gpuflow.cli.main", "launch", *options, str(PROGRAM)]
    command += ["0", "0", "0", str(path), "network", "gradients"]
    (ended,) = finish([start(command, {"GPUFLOW_CPU_DEVICES": str(4 // int(options[-1]))})])
    assert ended.status == 0, ended.output
    with np.load(path) as arrays:
        check_same(dict(arrays), one_memory)


@requires_cuda_tools
@pytest.mark.parametrize("names", [("collectives",), ("network", "arrays")], ids=str)
def test_simulated_devices(names, one_memory, tmp_path):
    """Four GPUs of one process: a thread for each, whose collectives meet."""
    values = {"GPUFLOW_PLATFORM": "cuda_sim", "GPUFLOW_SIM_DEVICES": "4"}
    check_same(results(tmp_path, 1, *names, **values), one_memory)


@pytest.mark.parametrize(
    ("size", "values"),
    [
        (1, {"GPUFLOW_CPU_DEVICES": "8"}),
        (4, {"GPUFLOW_CPU_DEVICES": "2"}),
        pytest.param(
            2,
            {"GPUFLOW_PLATFORM": "cuda_sim", "GPUFLOW_SIM_DEVICES": "4"},
            marks=requires_cuda_tools,
        ),
    ],
    ids=["8 virtual", "4 processes of 2", "2 processes of 4 simulated"],
)
def test_a_data_and_tensor_parallel_network(size, values):
    """On 4 x 2 devices it trains with the losses of one device, and all of it is partitioned."""
    for rank, one in enumerate(run_group(PROGRAM.with_name("network_program.py"), size, **values)):
        assert one.status == 0 and f"rank {rank} of {size} passed" in one.output, one.output


@requires_cuda_tools
def test_the_example_on_two_simulated_devices(tmp_path):
    losses = []
    for platform, count in [("cpu", "GPUFLOW_CPU_DEVICES"), ("cuda_sim", "GPUFLOW_SIM_DEVICES")]:
        path = tmp_path / platform
        # With as_jax the variable counts; by default GPUs round products to TF32.
        command = [sys.executable, "-m", "gpuflow.as_jax", str(EXAMPLE), "--steps", "3"]
        values = {"GPUFLOW_PLATFORM": platform, count: "2"}
        values["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
        (ended,) = finish([start([*command, "--losses", str(path)], values)])
        assert ended.status == 0 and "2 devices" in ended.output, ended.output
        losses.append(np.loadtxt(path))
    np.testing.assert_allclose(*losses, rtol=1e-5)
