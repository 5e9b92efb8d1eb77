"""Each of two processes saves its parts of sharded arrays; run by test_groups.py.

``group_program.py rank size port folder``
"""

import sys
from pathlib import Path

import numpy as np

import gpuflow as gf
from gpuflow import NamedSharding, P, checkpointing
from gpuflow.checkpointing import files, saving
from gpuflow.errors import CheckpointError
from gpuflow.experimental import multihost_utils

X = np.arange(32, dtype=np.float32).reshape(8, 4)


def main():
    rank, size, port = map(int, sys.argv[1:4])
    folder = Path(sys.argv[4])
    gf.distributed.initialize(f"127.0.0.1:{port}", size, rank, collective_timeout=30)
    mesh = gf.make_mesh((2, 2), ("x", "y"))
    rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "y"))
    whole = NamedSharding(mesh, P())

    def tree(k):
        sharded = {"rows": gf.device_put(X + k, rows), "columns": gf.device_put(X * k, columns)}
        return {**sharded, "whole": gf.device_put(X - k, whole), "host": X, "step": k}

    def check_same(got, k):
        for name, value in {"rows": X + k, "columns": X * k, "whole": X - k, "host": X}.items():
            here = got[name]
            if isinstance(here, gf.Array) and not here.is_fully_addressable:
                here = multihost_utils.process_allgather(here, tiled=True)
            np.testing.assert_array_equal(here, value)
        assert got["step"] == k

    # All save, and read what they need, through other shardings too.
    checkpointing.save(folder / "c", tree(1))
    check_same(checkpointing.restore(folder / "c", like=tree(0)), 1)
    check_same(checkpointing.restore(folder / "c"), 1)
    turned = {"rows": columns, "columns": rows, "whole": rows, "host": None, "step": None}
    check_same(checkpointing.restore(folder / "c", sharding=turned), 1)

    # Steps, in other threads.
    with checkpointing.Manager(folder / "run", keep=2) as manager:
        for step in range(5):
            manager.save(step, tree(step))
    multihost_utils.sync_global_devices("saved")
    assert manager.latest_step() == 4
    check_same(manager.restore(like=tree(0)), 4)

    # One that fails stops the others, and the earlier checkpoint stays.
    before = files.write_arrays
    if rank == 1:
        files.write_arrays = lambda *arguments: 1 / 0
    try:
        checkpointing.save_async(folder / "c", tree(2)).wait()
    except (CheckpointError, ZeroDivisionError) as error:
        text = str(error)
        assert rank == 1 or "got process 1: ZeroDivisionError: division by zero. Fix" in text, text
    else:
        raise AssertionError("it cannot have worked")
    files.write_arrays = before
    multihost_utils.sync_global_devices("failed")
    check_same(checkpointing.restore(folder / "c", like=tree(0)), 1)
    checkpointing.save(folder / "c", tree(3))
    check_same(checkpointing.restore(folder / "c", like=tree(0)), 3)
    saving.wait_for_last()
    multihost_utils.sync_global_devices("read")

    # What all have needs nobody else.
    if rank == 0:
        checkpointing.save(folder / "alone", {"x": X})
    print(f"rank {rank} of {size} passed")


if __name__ == "__main__":
    main()
