"""What a script does that a launcher starts: initialize without arguments, and exchange values."""

import sys

import numpy as np

import gpuflow as gf
from gpuflow.experimental import multihost_utils


def refused(call, error, text):
    try:
        call()
    except error as caught:
        assert text in str(caught), caught
    else:
        raise AssertionError(f"nothing was raised: {text}")


def main():
    assert not gf.distributed.is_initialized()
    gf.distributed.initialize(*sys.argv[1:])
    rank, size = gf.process_index(), gf.process_count()
    assert gf.distributed.is_initialized()
    refused(gf.distributed.initialize, RuntimeError, "must be called once")
    other = gf.devices()[-1 if rank == 0 else 0]
    assert not other.is_local and gf.local_devices() == [gf.devices()[rank]]
    refused(lambda: gf.device_put(1.0, other), ValueError, "device must belong to this process")

    tree = {"a": np.arange(3) + rank, "b": np.float32(rank)}
    rows = multihost_utils.process_allgather(tree)
    assert rows["a"].tolist() == [[k, k + 1, k + 2] for k in range(size)]
    assert rows["b"].tolist() == list(range(size))
    flat = multihost_utils.process_allgather(np.full((2, 2), rank), tiled=True)
    assert flat.shape == (2 * size, 2)
    sent = multihost_utils.broadcast_one_to_all(tree)
    assert sent["a"].tolist() == [0, 1, 2]
    sent = multihost_utils.broadcast_one_to_all(tree, is_source=rank == size - 1)
    assert sent["b"] == size - 1
    multihost_utils.sync_global_devices("here")
    multihost_utils.assert_equal({"x": np.ones(3)})
    refused(lambda: multihost_utils.assert_equal(np.float32(rank), "why"), AssertionError, "why")
    refused(lambda: multihost_utils.sync_global_devices(f"place {rank}"), AssertionError, "'place")
    refused(
        lambda: multihost_utils.broadcast_one_to_all(tree, is_source=True),
        ValueError,
        "one process must be the source",
    )
    gf.distributed.shutdown()
    assert not gf.distributed.is_initialized() and gf.process_count() == 1
    print(f"rank {rank} of {size} has left")


if __name__ == "__main__":
    main()
