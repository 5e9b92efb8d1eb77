"""``jax.experimental.array_serialization.serialization``: arrays in files, in the background.

Tests: tests/test_as_jax_serialization.py.
"""

from __future__ import annotations

import abc
import asyncio
import functools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.as_jax.internals import tensorstore_impl
from gpuflow.base import tree
from gpuflow.experimental.multihost_utils import sync_global_devices
from gpuflow.runtime.device import process

# The layout that checkpoints of flax have had from the start.
get_tensorstore_spec = functools.partial(
    tensorstore_impl.get_tensorstore_spec, driver="zarr", ocdbt=False
)
_get_metadata = functools.partial(tensorstore_impl._get_tensorstore_metadata, driver="zarr")


class BarrierTimeoutError(Exception):
    """A process did not finish writing in time."""


def is_remote_storage(tspec: dict[str, Any] | str) -> bool:
    """Whether a spec, or a path, is in a cloud."""
    if isinstance(tspec, str):
        return re.match(r"(gs|s3)://", tspec) is not None
    for key in ("base", "kvstore"):
        if key in tspec:
            return is_remote_storage(tspec[key])
    return tspec.get("driver") in ("gcs", "s3")


class GlobalAsyncCheckpointManagerBase(abc.ABC):
    """Base class of writers of checkpoint arrays in the background."""

    @abc.abstractmethod
    def check_for_errors(self) -> None:
        """Raise the error of a background write."""

    @abc.abstractmethod
    def wait_until_finished(self) -> None:
        """Wait until all is written."""

    @abc.abstractmethod
    def serialize(
        self, arrays: Any, tensorstore_specs: Any, *, on_commit_callback: Callable[[], None]
    ) -> None:
        """Write arrays."""

    @abc.abstractmethod
    def deserialize(
        self,
        shardings: Sequence[Any],
        tensorstore_specs: Sequence[Any],
        global_shapes: Sequence[Any] | None = None,
        dtypes: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Read arrays."""


class AsyncManager:
    """A thread that waits for writes, and then calls a function.

    Args:
        timeout_secs: accepted; a process that does not come ends the group by the timeout of
            collectives.
    """

    def __init__(self, timeout_secs: float = 300) -> None:
        self._timeout_secs = timeout_secs
        self._commit_futures: Sequence[Any] = ()
        self._thread: threading.Thread | None = None
        self._exception: Exception | None = None
        self._on_commit: Callable[[], None] | None = None

    def _add_futures(self, futures: Sequence[Any]) -> None:
        self._commit_futures = futures

    def _start_async_commit(self, on_commit_callback: Callable[[], None] | None) -> None:
        self._on_commit = on_commit_callback
        self._thread = threading.Thread(target=self._commit)
        self._thread.start()

    def _commit(self) -> None:
        try:
            for future in self._commit_futures:
                future.result()
            if process.count == 1 and self._on_commit is not None:
                self._on_commit()
        except Exception as error:
            self._exception = error

    def check_for_errors(self) -> None:
        """Raise the error of a background write, once."""
        error, self._exception = self._exception, None
        if error is not None:
            raise error

    def wait_until_finished(self) -> None:
        """Wait until all is written; in a group of processes, by all of them.

        Process 0 of a group calls the function of ``serialize`` here.
        """
        if self._thread is None:
            self.check_for_errors()
            return
        self._thread.join()
        self._thread = None
        self.check_for_errors()
        if process.count > 1:
            sync_global_devices("array_serialization written")
            if process.index == 0 and self._on_commit is not None:
                self._on_commit()
            sync_global_devices("array_serialization committed")


class GlobalAsyncCheckpointManager(AsyncManager, GlobalAsyncCheckpointManagerBase):
    """Writes arrays by tensorstore in the background, and reads them."""

    def serialize(
        self,
        arrays: Any,
        tensorstore_specs: Any,
        *,
        on_commit_callback: Callable[[], None] | None = None,
        transaction: Any = None,
    ) -> None:
        """Write arrays; they are copied when this returns.

        Args:
            arrays: a tree of Arrays.
            tensorstore_specs: a tree of specs, as of ``get_tensorstore_spec``.
            on_commit_callback: called when all is written, by process 0.
            transaction: of tensorstore.

        Raises:
            ImportError: if tensorstore is not installed.
        """
        self.wait_until_finished()
        futures: list[Any] = []
        leaves, structure = tree.flatten(arrays)
        specs = structure.flatten_up_to(tensorstore_specs)

        async def run() -> None:
            writes = [
                tensorstore_impl.async_serialize(
                    array, spec, commit_future=futures, transaction=transaction
                )
                for array, spec in zip(leaves, specs, strict=True)
            ]
            await asyncio.gather(*writes)

        asyncio.run(run())
        self._add_futures(futures)
        self._start_async_commit(on_commit_callback)

    def serialize_with_paths(
        self,
        arrays: Sequence[Any],
        paths: Sequence[str],
        *,
        on_commit_callback: Callable[[], None] | None = None,
        transaction: Any = None,
    ) -> None:
        """``serialize`` to paths."""
        specs = tree.tree_map(get_tensorstore_spec, paths)
        self.serialize(
            arrays, specs, on_commit_callback=on_commit_callback, transaction=transaction
        )

    def deserialize(
        self,
        shardings: Sequence[Any],
        tensorstore_specs: Sequence[Any],
        global_shapes: Sequence[Any] | None = None,
        dtypes: Sequence[Any] | None = None,
        concurrent_gb: int = 32,
    ) -> list[Any]:
        """Read arrays.

        Args:
            shardings: the layout of each array, Shardings or Formats.
            tensorstore_specs: their specs.
            global_shapes, dtypes: other shapes and dtypes than the stored ones.
            concurrent_gb: gigabytes that are read at a time.

        Raises:
            ImportError: if tensorstore is not installed.
        """
        self.wait_until_finished()
        return tensorstore_impl.run_deserialization(
            shardings, tensorstore_specs, global_shapes, dtypes, concurrent_gb
        )

    def deserialize_with_paths(
        self,
        shardings: Sequence[Any],
        paths: Sequence[str],
        global_shapes: Sequence[Any] | None = None,
        dtypes: Sequence[Any] | None = None,
        concurrent_gb: int = 32,
    ) -> list[Any]:
        """``deserialize`` from paths."""
        specs = tree.tree_map(get_tensorstore_spec, paths)
        return self.deserialize(shardings, specs, global_shapes, dtypes, concurrent_gb)
