"""Run by test_mismatches.py under mpiexec: the last rank does something else than the others."""

import numpy as np
from mpi4py import MPI

from gpuflow.base.errors import CommunicationError
from gpuflow.parallel.collectives.mpi import MpiCommunicator

X = np.ones(6, np.float32)
CASES = [
    # What most ranks do, what the last one does, and what the errors name.
    (lambda c: c.all_reduce(X, "sum"), lambda c: c.all_reduce(X.view("int32"), "sum"), "int32[6]"),
    (lambda c: c.all_reduce(X, "sum"), lambda c: c.all_reduce(X, "max"), "(max)"),
    (lambda c: c.all_gather(X), lambda c: c.all_gather(X[:3]), "float32[3]"),
    (lambda c: c.broadcast(X, 0), lambda c: c.broadcast(X, 1), "(from 1)"),
    (lambda c: c.barrier(), lambda c: c.all_reduce(X, "sum"), "all_reduce"),
]


def main():
    world = MpiCommunicator(MPI.COMM_WORLD, 30)
    for most, other, name in CASES:
        try:
            (other if world.rank == world.size - 1 else most)(world)
        except CommunicationError as error:
            assert "on rank 0 and" in str(error) and name in str(error), error
        else:
            raise AssertionError(f"nothing was raised: {name}")
        # An error of all ranks leaves the communicator as it was.
        assert world.all_reduce(X, "sum").tolist() == [world.size] * 6
    print(f"rank {world.rank} agrees")


if __name__ == "__main__":
    main()
