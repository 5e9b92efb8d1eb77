"""``jax.experimental.array_serialization.tensorstore_impl``: arrays in stores of tensorstore.

Each process writes its shards, one process for each index range, and reads those that
its devices need. The layout on disk is JAX's: checkpoints of either are read by both.

Tests: tests/test_as_jax_serialization.py.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import tree
from gpuflow.base.caches import cache
from gpuflow.base.dtypes import canonicalize
from gpuflow.base.installation import pip_install
from gpuflow.core.sharding import Sharding
from gpuflow.experimental.layout import Format
from gpuflow.parallel.placement import make_array_from_callback
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import process

_DEFAULT_BASE_DRIVER = "file"
_TS_ARRAY_DRIVER = "zarr3"
_PROCESS_DIR_FORMAT = "process_{}"
_MAX_BYTES = 2 * 1024**3  # of one file


def tensorstore() -> Any:
    """The package tensorstore.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        import tensorstore
    except ImportError as error:
        raise ImportError(
            "[array_serialization] checkpoints in JAX's layout need tensorstore; it was not found. "
            f"Fix: {pip_install('checkpoint')}, or gpuflow.checkpointing.save."
        ) from error
    return tensorstore


@cache
def _context() -> Any:
    memory = {"total_bytes_limit": 10_000_000_000}
    return tensorstore().Context(
        {
            "file_io_concurrency": {"limit": 128},
            "data_copy_concurrency": {"limit": 128},
            "cache_pool": memory,
            "cache_pool#remote": memory,
        }
    )


def __getattr__(name: str) -> Any:
    if name == "_TS_CONTEXT":
        return _context()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _LimitInFlightBytes:
    """Limit of the bytes that reads hold at a time; a larger read waits for all others."""

    def __init__(self, host_memory_bytes_limit: int) -> None:
        self._limit, self._in_use = host_memory_bytes_limit, 0
        self._changed = asyncio.Condition()

    async def wait_for_bytes(self, requested_bytes: int) -> None:
        """Wait until the bytes are available, and take them."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._in_use + requested_bytes <= max(self._limit, requested_bytes)
            )
            self._in_use += requested_bytes

    async def release_bytes(self, requested_bytes: int) -> None:
        """Return the bytes."""
        async with self._changed:
            self._in_use -= requested_bytes
            self._changed.notify_all()


# --- specs ---------------------------------------------------------------------------------


def _chunk(shape: Sequence[int], dtype: Any) -> list[int]:
    """Chunk sizes that divide the shard, at most 2 GB in all unless there are no divisors."""
    sizes = [max(size, 1) for size in shape]
    while np.prod(sizes, dtype=np.int64) * np.dtype(dtype).itemsize > 1.1 * _MAX_BYTES:
        divisors = [(_least_divisor(size), axis) for axis, size in enumerate(sizes) if size > 1]
        if not divisors:
            break
        divisor, axis = min(divisors)
        sizes[axis] //= divisor
    return sizes


def _least_divisor(size: int) -> int:
    return next((k for k in range(2, int(size**0.5) + 1) if size % k == 0), size)


def _get_tensorstore_metadata(arr: Any, driver: str = _TS_ARRAY_DRIVER) -> dict[str, Any]:
    """Shape, chunks and dtype of an array, as a driver of tensorstore has them."""
    shape = tuple(arr.shape)
    local = arr.sharding.shard_shape(shape) if isinstance(arr, Array) else shape
    if driver == "zarr3":
        grid = {"name": "regular", "configuration": {"chunk_shape": _chunk(local, arr.dtype)}}
        dtype = np.dtype(arr.dtype).name
        return {"codecs": [], "shape": shape, "data_type": dtype, "chunk_grid": grid}
    if driver == "zarr":
        chunks = [max(size, 1) for size in local]
        return {"compressor": {"id": "zstd"}, "shape": shape, "chunks": chunks}
    raise ValueError(
        f"[array_serialization] the driver must be zarr or zarr3; got {driver!r}. Fix: "
        "driver='zarr'."
    )


def _store(path: str) -> dict[str, Any]:
    """The spec of a path: a folder, or a bucket of a cloud."""
    match = re.fullmatch(r"(gs|s3)://([^/]*)/(.*)", path, re.DOTALL)
    if match is not None:
        driver = {"gs": "gcs", "s3": "s3"}[match[1]]
        return {"driver": driver, "bucket": match[2], "path": match[3]}
    if path.startswith(("gs://", "s3://")):
        raise ValueError(
            f"[array_serialization] a path in a cloud must have a bucket and a name; got {path}. "
            "Fix: gs://bucket/name."
        )
    return {"driver": _DEFAULT_BASE_DRIVER, "path": path}


def get_tensorstore_spec(
    ckpt_path: str | os.PathLike[str],
    ocdbt: bool = True,
    process_idx: int | None = None,
    arr: Any = None,
    driver: str = _TS_ARRAY_DRIVER,
) -> dict[str, Any]:
    """The spec of tensorstore for an array at a path.

    Args:
        ckpt_path: a path of a file, or ``gs://`` or ``s3://``.
        ocdbt: whether the arrays of a folder are in one store, under the last name of the path.
        process_idx: a process, for a separate folder.
        arr: an array, for metadata.
        driver: the layout of arrays: ``zarr3`` or ``zarr``.

    Raises:
        ValueError: with ``ocdbt``, if the path is not absolute.
    """
    path = re.sub(r"^(gs|s3):/", r"\1://", os.path.normpath(os.fspath(ckpt_path)))
    if process_idx is not None:
        folder, name = os.path.split(path)
        path = os.path.join(folder, _PROCESS_DIR_FORMAT.format(process_idx), name)
    if not ocdbt:
        store = _store(path)
    else:
        folder, key = os.path.split(path)
        base = _store(folder)
        if "bucket" not in base and not os.path.isabs(folder):
            raise ValueError(
                f"[array_serialization] the path of a checkpoint must be absolute; got {path}. "
                "Fix: os.path.abspath(path)."
            )
        store = {"driver": "ocdbt", "base": base, "path": key}
    spec = {"driver": driver, "kvstore": store}
    if arr is not None:
        spec["metadata"] = _get_tensorstore_metadata(arr, driver)
    return spec


def _has_metadata(spec: Any) -> bool:
    return isinstance(spec, dict) and (
        "metadata" in spec or any(_has_metadata(item) for item in spec.values())
    )


# --- writing -------------------------------------------------------------------------------


async def async_serialize(
    arr_inp: Any,
    tensorstore_spec: dict[str, Any],
    commit_future: list[Any] | None = None,
    context: Any = None,
    chunk_layout: Any = None,
    primary_host: int | None = None,
    replica_id: int = 0,
    transaction: Any = None,
) -> list[Any]:
    """Write this process's shards of an array.

    Args:
        arr_inp: an Array; in a group of processes one with shards in several.
        tensorstore_spec: where; metadata are added if there are none.
        commit_future: receives the future to wait for; None waits immediately.
        context, chunk_layout, transaction: of tensorstore.
        primary_host: the process that creates the array; None: each.
        replica_id: which of equal shards is written.

    Raises:
        ValueError: if each of several processes would write a separate array.
    """
    if process.count > 1 and arr_inp.is_fully_addressable:
        raise ValueError(
            "[async_serialize] an array of several processes must be distributed over all of them; "
            f"got an array of this process only for {tensorstore_spec['kvstore']}. Fix: "
            "multihost_utils.host_local_array_to_global_array."
        )
    store = tensorstore()
    if not _has_metadata(tensorstore_spec):
        driver = tensorstore_spec["driver"]
        tensorstore_spec["metadata"] = _get_tensorstore_metadata(arr_inp, driver)
    if tensorstore_spec["driver"] == "zarr" and "dtype" not in tensorstore_spec:
        tensorstore_spec["dtype"] = np.dtype(arr_inp.dtype).name
    options = {
        "open": True,
        "context": context or _context(),
        "chunk_layout": chunk_layout,
        "transaction": transaction,
    }
    if primary_host is None or process.index == primary_host:
        created = store.open(store.Spec(tensorstore_spec), create=True, **options)
        if commit_future is None:
            await created
        else:
            commit_future.append(created)
    target = await store.open(store.Spec(tensorstore_spec), assume_metadata=True, **options)

    async def write(shard: Any) -> None:
        written = target[shard.index].write(np.asarray(shard.data))
        if commit_future is None:
            await written.commit
        else:
            commit_future.append(written.commit)
            await written.copy

    ours = [shard for shard in arr_inp.addressable_shards if shard.replica_id == replica_id]
    return await asyncio.gather(*map(write, ours))


def run_serialization(arrays: Any, tensorstore_specs: Any) -> None:
    """Write a tree of arrays, and wait for it."""
    _run_all(async_serialize, arrays, tensorstore_specs)


def _run_all(function: Any, first: Any, *others: Any) -> list[Any]:
    """The results of an async function for the leaves of trees, of which the others are deeper."""
    leaves, structure = tree.flatten(first)
    columns = [leaves, *(structure.flatten_up_to(other) for other in others)]

    async def run() -> list[Any]:
        return await asyncio.gather(*(function(*row) for row in zip(*columns, strict=True)))

    return asyncio.run(run())


# --- reading -------------------------------------------------------------------------------


async def async_deserialize(
    in_type: Any,
    tensorstore_spec: Any,
    global_shape: Sequence[int] | None = None,
    dtype: Any = None,
    byte_limiter: _LimitInFlightBytes | None = None,
    context: Any = None,
    chunk_layout: Any = None,
    assume_metadata: bool = False,
) -> Any:
    """Read the shards of an array that this process's devices need.

    Args:
        in_type: a Sharding, a Format, or a ShapeDtypeStruct with a sharding.
        tensorstore_spec: where it is.
        global_shape: the shape of the result, by default the stored one; more elements are 0.
        dtype: the dtype of the result, by default the stored one.
        byte_limiter: how much is read at a time.
        context, chunk_layout: of tensorstore.
        assume_metadata: whether the spec's metadata hold without a look at the stored ones.

    Returns:
        An Array.

    Raises:
        TypeError: if there is no sharding.
    """
    sharding = in_type if isinstance(in_type, Sharding) else getattr(in_type, "sharding", None)
    if not isinstance(sharding, Sharding):
        raise TypeError(
            "[async_deserialize] the type must be a Sharding, or have one; got "
            f"{in_type!r}. Fix: SingleDeviceSharding(jax.devices()[0])."
        )
    if dtype is None and not isinstance(in_type, Sharding | Format):
        dtype = in_type.dtype
    store = tensorstore()
    source = await store.open(
        tensorstore_spec,
        open=True,
        assume_metadata=assume_metadata,
        context=context or _context(),
        chunk_layout=chunk_layout,
    )
    shape = tuple(source.shape if global_shape is None else global_shape)
    stored = source.dtype.numpy_dtype
    target_dtype = canonicalize(np.dtype(stored if dtype is None else dtype))

    async def read(index: tuple[slice, ...]) -> np.ndarray:
        requested = store.IndexTransform(input_shape=shape)[index].domain
        stored_domain = source.domain.intersect(requested)
        size = int(np.prod(stored_domain.shape, dtype=np.int64)) * stored.itemsize
        if byte_limiter is not None:
            await byte_limiter.wait_for_bytes(size)
        try:
            data = np.zeros(sharding.shard_shape(shape), stored)
            shifted = store.array(data)[store.d[:].translate_to[requested.origin]]
            await shifted[stored_domain].write(source[stored_domain])
        finally:
            if byte_limiter is not None:
                await byte_limiter.release_bytes(size)
        return data.astype(target_dtype)

    indices = {_bounds(i): i for i in sharding.addressable_devices_indices_map(shape).values()}
    shards = dict(zip(indices, await asyncio.gather(*map(read, indices.values())), strict=True))
    return make_array_from_callback(shape, sharding, lambda index: shards[_bounds(index)])


def _bounds(index: tuple[slice, ...]) -> tuple[Any, ...]:
    return tuple((bounds.start or 0, bounds.stop) for bounds in index)


def run_deserialization(
    shardings: Any,
    tensorstore_specs: Any,
    global_shapes: Any = None,
    dtypes: Any = None,
    concurrent_gb: int = 32,
) -> list[Any]:
    """Read a list of arrays."""
    specs = list(tensorstore_specs)

    async def run() -> list[Any]:
        limiter = _LimitInFlightBytes(concurrent_gb * 10**9)
        shapes = global_shapes or [None] * len(specs)
        rows = zip(list(shardings), specs, shapes, dtypes or [None] * len(specs), strict=True)
        return await asyncio.gather(*(async_deserialize(*row, limiter) for row in rows))

    return asyncio.run(run())
