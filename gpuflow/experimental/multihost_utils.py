"""Values that several processes exchange outside of any program; each call is for all of them.

In a single process they do what a group of one would.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.core.communicator import Communicator
from gpuflow.parallel.partition.whole_programs import whole_of_parts
from gpuflow.parallel.processes.distributed import is_initialized, world
from gpuflow.runtime.parted import PartedArray

__all__ = ["assert_equal", "broadcast_one_to_all", "process_allgather", "sync_global_devices"]


def _world() -> Communicator | None:
    return world() if is_initialized() else None


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """The arrays of all processes, as NumPy arrays on each.

    Of an array with parts in several processes it is the whole one, whatever ``tiled`` says.

    Args:
        in_tree: arrays of one shape on all processes, or a tree of them.
        tiled: concatenate along the first dimension instead of stacking along a new one.

    Raises:
        ValueError: ``tiled`` with an array without dimensions.
    """
    group = _world()

    def one(leaf: Any) -> np.ndarray:
        if type(leaf) is PartedArray:
            return np.asarray(whole_of_parts(leaf))
        array = np.asarray(leaf)
        check(
            not tiled or array.ndim > 0,
            lambda: (
                "[process_allgather] tiled=True needs arrays with a dimension; got a scalar. "
                "Fix: leave tiled out."
            ),
            ValueError,
        )
        rows = array[None] if group is None else np.asarray(group.all_gather(array))
        return rows.reshape((-1, *array.shape[1:])) if tiled and array.size else (
            np.concatenate(list(rows)) if tiled else rows
        )  # fmt: skip

    return tree.tree_map(one, in_tree)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """The arrays of one process, as NumPy arrays on each.

    Args:
        in_tree: arrays of one shape on all processes, or a tree of them.
        is_source: whether this process is the one; by default process 0.

    Raises:
        ValueError: not exactly one process is the source.
    """
    group = _world()
    if group is None:
        return tree.tree_map(np.asarray, in_tree)
    root = 0
    if is_source is not None:
        flags = np.asarray(group.all_gather(np.asarray(bool(is_source))))
        check(
            int(flags.sum()) == 1,
            lambda: (
                f"[broadcast_one_to_all] one process must be the source; got {int(flags.sum())}. "
                "Fix: is_source=process_index() == 0."
            ),
            ValueError,
        )
        root = int(np.argmax(flags))
    return tree.tree_map(lambda leaf: group.broadcast(np.asarray(leaf), root), in_tree)


def sync_global_devices(name: str) -> None:
    """Wait until all processes are here.

    Raises:
        AssertionError: they are at places of other names.
    """
    if _world() is not None:
        assert_equal(np.uint32(zlib.crc32(name.encode())), f"sync_global_devices name {name!r}")


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Check that all processes have equal values.

    Raises:
        AssertionError: they differ.
    """
    group = _world()
    if group is None:
        return
    for leaf in tree.leaves(in_tree):
        rows = np.asarray(group.all_gather(np.asarray(leaf)))
        bad = [k for k in range(len(rows)) if rows[k].tobytes() != rows[0].tobytes()]
        if bad:
            raise AssertionError(
                f"[assert_equal] all processes must have equal values; got {rows[0]} on process 0 "
                f"and {rows[bad[0]]} on process {bad[0]}. {fail_message}"
            )


def reached_preemption_sync_point(step_id: int) -> bool:
    """Whether the scheduler announced the end of a process, and all have come to this step.

    Args:
        step_id: the number of the step.

    Returns:
        False: no such notice is listened for.

    Example:
        >>> from gpuflow.experimental import multihost_utils
        >>> multihost_utils.reached_preemption_sync_point(3)
        False
    """
    del step_id
    return False
