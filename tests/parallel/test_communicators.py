"""One suite for all communicators between processes (communicator_suite.py), in real processes."""

import importlib.util
import sys
from pathlib import Path

import pytest
from process_groups import finish, mpiexec, run_group, start

SUITE = Path(__file__).with_name("communicator_suite.py")
HAS_MPI = importlib.util.find_spec("mpi4py") is not None and mpiexec() is not None


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sockets(size):
    for rank, ended in enumerate(run_group(SUITE, size)):
        assert ended.status == 0, ended.output
        assert f"SocketCommunicator {rank} of {size} passed" in ended.output


@pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec")
@pytest.mark.parametrize("size", [2, 3])
def test_mpi(size):
    command = [mpiexec(), "-n", str(size), sys.executable, str(SUITE), "mpi"]
    (ended,) = finish([start(command)])
    assert ended.status == 0, ended.output
    for rank in range(size):
        assert f"MpiCommunicator {rank} of {size} passed" in ended.output


@pytest.mark.parametrize("size", [2, 3])
def test_nccl_against_a_library_that_stands_for_it(size):
    for rank, ended in enumerate(run_group(SUITE.with_name("fake_nccl.py"), size)):
        assert ended.status == 0, ended.output
        assert f"NcclCommunicator {rank} of {size} passed" in ended.output
