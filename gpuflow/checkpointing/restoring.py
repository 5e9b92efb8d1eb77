"""Restoring: a tree from the files of a checkpoint, with every checksum compared.

Tests: tests/checkpointing/test_round_trips.py, tests/checkpointing/test_shards.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.checkpointing import leaves, reading, structure
from gpuflow.control.stages import ShapeDtypeStruct
from gpuflow.core.aval import ShapedArray
from gpuflow.core.sharding import Index, Sharding, SingleDeviceSharding
from gpuflow.core.trace import Tracer
from gpuflow.parallel.placement import as_sharding, make_array_from_callback, put
from gpuflow.runtime.array import Array, from_numpy


def restore(path: str | os.PathLike[str], like: Any = None, *, sharding: Any = None) -> Any:
    """Restore a saved pytree.

    Args:
        path: path of the checkpoint.
        like: a pytree of the same structure, with leaves of the same shapes and dtypes. Its
            containers are used in the result, registered classes and namedtuples included. Its
            leaves determine the types: a NumPy array gives a NumPy array, an Array or a
            ``ShapeDtypeStruct`` gives an Array with its sharding. Without it, containers must be
            dicts, lists, tuples, deques and None, and leaves are restored with their types.
        sharding: a Device or Sharding for all arrays, or a tree prefix of them; None uses the
            shardings of ``like``, or the default device. Each process reads only the data that it
            needs.

    Returns:
        The pytree; arrays keep their dtype, including 64-bit ones without ``enable_x64``.

    Raises:
        FileNotFoundError: if there is no complete checkpoint.
        CheckpointError: if a file is damaged (a checksum differs, a field is missing or invalid) or
            unreadable, such as a FIFO (then it is an OSError too).
        ValueError: if the path is empty, or ``like`` differs in structure, shape or dtype (the
            message contains the path and both sides), or the containers require ``like``.

    Example:
        >>> import tempfile
        >>> import gpuflow as gf, gpuflow.numpy as jnp
        >>> from gpuflow import checkpointing
        >>> path = tempfile.mkdtemp() + "/model"
        >>> checkpointing.save(path, (jnp.ones(2), gf.random.key(3)))
        >>> w, key = checkpointing.restore(path, like=(jnp.zeros(2), gf.random.key(0)))
        >>> gf.random.key_data(key)
        Array([0, 3], dtype=uint32)
    """
    content, opened = reading.open_checkpoint(reading.path_of("restore", path))
    try:
        return _restored(content, opened, like, sharding)
    finally:
        reading.close_all(opened)


_NO_LIKE = object()


def _restored(
    content: dict[str, Any], opened: Sequence[reading.ArrayFile], like: Any, sharding: Any
) -> Any:
    description, records = content["tree"], content["leaves"]
    likes = [_NO_LIKE] * len(records)
    if like is not None:
        described, pairs = structure.described(like, "restore")
        different = structure.difference(description, described)
        check(
            not different,
            lambda: (
                f"[restore] like must have the structure of the checkpoint; got, {different}. "
                "Fix: give a tree as it was saved."
            ),
            ValueError,
        )
        likes = [leaf for _, leaf in pairs]
        for path, saved, leaf in zip(content["paths"], records, likes, strict=True):
            _check_leaf(path, saved, leaf)
        shape = like
    else:
        shape = structure.rebuilt(description, range(len(records)))
    requested = tree.broadcast_prefix(sharding, shape, "restore")
    shardings = [as_sharding(target, "restore") for target in requested]
    triples = zip(records, likes, shardings, strict=True)
    values = [_value(saved, leaf, target, opened) for saved, leaf, target in triples]
    if like is not None:
        return tree.unflatten(tree.structure(like), values)
    return structure.rebuilt(description, values)


def _check_leaf(path: str, saved: dict[str, Any], leaf: Any) -> None:
    """Check that a leaf of ``like`` matches the saved leaf.

    Raises:
        ValueError: it has another shape or dtype, or is of another kind.
    """
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        expected = {"kind": "array", "dtype": leaves.name_of(leaf.dtype), "shape": list(leaf.shape)}
    else:
        expected = {"kind": type(leaf).__name__}
    same = saved["kind"] == expected["kind"]
    if not leaves.is_scalar(saved):
        same = all(saved[name] == expected.get(name) for name in ("dtype", "shape"))
    shown = leaves.type_text(expected) if "shape" in expected else f"a Python {expected['kind']}"
    check(
        same,
        lambda: (
            "[restore] leaves of like must have the shapes and dtypes of the checkpoint; got "
            f"{leaves.type_text(saved)} in the checkpoint and {shown} in like at "
            f"{path or 'the top'}. Fix: pass a tree of the saved types, and convert the restored "
            "arrays."
        ),
        ValueError,
    )


def _value(
    saved: dict[str, Any], like: Any, target: Any, opened: Sequence[reading.ArrayFile]
) -> Any:
    """A leaf."""
    if leaves.is_scalar(saved):
        return leaves.scalar(saved)
    shape = tuple(saved["shape"])
    read = _reader(saved, opened)
    as_numpy = isinstance(like, np.ndarray | np.generic) or (
        like is _NO_LIKE and saved["kind"] != "array"
    )
    if as_numpy:
        values = read(leaves.whole_of(shape))
        is_scalar = (
            saved["kind"] == "numpy scalar"
            if like is _NO_LIKE
            else not (isinstance(like, np.ndarray))
        )
        return values[()] if is_scalar else values
    aval = ShapedArray(shape, leaves.dtype_of(saved["dtype"]), saved.get("weak", False))
    where = target if target is not None else _sharding_of(like)
    if isinstance(where, Sharding) and not isinstance(where, SingleDeviceSharding):
        return _sharded(aval, where, read)
    array = from_numpy(read(leaves.whole_of(shape)), aval)
    return array if where is None else put(array, where)


def _sharding_of(like: Any) -> Any:
    """The sharding of a leaf of ``like`` if it is committed, else None."""
    if isinstance(like, Tracer):
        return None
    if isinstance(like, ShapeDtypeStruct):
        return as_sharding(like.sharding, "restore")
    if isinstance(like, Array):
        single = isinstance(like.sharding, SingleDeviceSharding)
        return like.sharding if not single or like.device.is_committed else None
    return None


def _sharded(
    aval: ShapedArray, where: Sharding, read: Callable[[leaves.Bounds], np.ndarray]
) -> Array:
    """An array with a sharding; of plain dtypes, only the shards of this process are read."""
    where.shard_shape(aval.shape)
    if dtypes.is_extended(aval.dtype) or aval.weak_type:
        return put(from_numpy(read(leaves.whole_of(aval.shape)), aval), where)

    def shard(index: Index) -> np.ndarray:
        return read(leaves.bounds_of(index, aval.shape))

    with config.override("enable_x64", True):  # the dtype stays
        return make_array_from_callback(aval.shape, where, shard, aval.dtype)


def _reader(
    saved: dict[str, Any], opened: Sequence[reading.ArrayFile]
) -> Callable[[leaves.Bounds], np.ndarray]:
    """Return a reader of slices of a saved array, from its chunks."""
    name, entries = saved["dtype"], saved.get("pieces", [])
    cached: dict[int, np.ndarray] = {}

    def chunk(index: int) -> np.ndarray:
        if index not in cached:
            entry = entries[index]
            shape = tuple(end - begin for begin, end in entry["bounds"])
            dtype, in_file = leaves.in_file(name, shape)
            raw = opened[entry["file"]].read(entry["name"], dtype, in_file, entry["crc32"])
            cached[index] = leaves.from_file(raw, name)
        return cached[index]

    def read(bounds: leaves.Bounds) -> np.ndarray:
        for index, entry in enumerate(entries):
            if [list(pair) for pair in bounds] == entry["bounds"]:
                return chunk(index)
        shape = tuple(end - begin for begin, end in bounds)
        result = np.zeros(shape, leaves.storage_of(saved))
        for index, entry in enumerate(entries):
            overlap = [
                (max(a, b), min(c, d))
                for (a, c), (b, d) in zip(bounds, entry["bounds"], strict=True)
            ]
            if all(begin < end for begin, end in overlap):
                target = _shifted(overlap, [begin for begin, _ in bounds])
                source = _shifted(overlap, [begin for begin, _ in entry["bounds"]])
                result[target] = chunk(index)[source]
        return result

    return read


def _shifted(bounds: list[tuple[int, int]], starts: list[int]) -> Index:
    pairs = zip(bounds, starts, strict=True)
    return tuple(slice(begin - start, end - start) for (begin, end), start in pairs)
