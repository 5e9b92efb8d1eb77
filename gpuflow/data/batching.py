"""Batches: rows of the arrays of a tree, in order or shuffled by a key.

Tests: tests/test_data.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuflow import random
from gpuflow.base import tree
from gpuflow.base.arguments import known_index
from gpuflow.base.errors import check
from gpuflow.data.foreign import imported
from gpuflow.runtime.array import Array


class Batches:
    """An iterable over batches; each iteration starts from the beginning.

    Attributes:
        per_epoch: number of batches in an epoch.
        epochs: number of epochs; None for infinitely many.
        start: index of the first batch of an iteration.
    """

    def __init__(
        self,
        leaves: list[Any],
        structure: tree.TreeDef,
        size: int,
        key: Any,
        drop_last: bool,
        epochs: int | None,
        start: int,
    ) -> None:
        self._leaves, self._structure, self._size, self._key = leaves, structure, size, key
        self._rows = leaves[0].shape[0]
        self.per_epoch = self._rows // size if drop_last else -(-self._rows // size)
        self.epochs, self.start = epochs, start

    def __len__(self) -> int:
        if self.epochs is None:
            raise TypeError(
                "[batches] without an end there is no length; got epochs=None. "
                "Fix: per_epoch is the number of batches of one."
            )
        return max(self.epochs * self.per_epoch - self.start, 0)

    def __iter__(self) -> Iterator[Any]:
        if self.per_epoch == 0:
            return
        epoch, first = divmod(self.start, self.per_epoch)
        while self.epochs is None or epoch < self.epochs:
            order = self._order(epoch)
            for k in range(first, self.per_epoch):
                begin, end = k * self._size, min((k + 1) * self._size, self._rows)
                rows = slice(begin, end) if order is None else order[begin:end]
                batch = [_rows_of(leaf, rows) for leaf in self._leaves]
                yield tree.unflatten(self._structure, batch)
            epoch, first = epoch + 1, 0

    def _order(self, epoch: int) -> np.ndarray | None:
        """The rows of an epoch; None: as they are."""
        if self._key is None:
            return None
        return np.asarray(random.permutation(random.fold_in(self._key, epoch), self._rows))


def _rows_of(leaf: Any, rows: Any) -> Any:
    """Rows of an array, as an array of its kind with memory of its own."""
    if isinstance(leaf, np.ndarray):
        return leaf[rows].copy() if isinstance(rows, slice) else np.take(leaf, rows, axis=0)
    if type(leaf) is Array:
        data, aval, device = leaf.data, leaf.aval, leaf.device
        if isinstance(data, np.ndarray):  # without a program for each batch
            host = _rows_of(data, rows)
            return Array(device.driver.from_host(host), aval.update(shape=host.shape), device)
    return _take_rows(leaf, rows)


def _take_rows(leaf: Any, rows: Any) -> Any:
    """Rows of an array, by its own index."""
    return leaf[rows]


def batches(
    arrays: Any,
    batch_size: int,
    *,
    key: Any = None,
    drop_last: bool = False,
    epochs: int | None = 1,
    start: int = 0,
) -> Batches:
    """Iterate over batches of rows of arrays.

    Args:
        arrays: a pytree of arrays ``[rows, ...]`` of any dtypes: from NumPy, gpuflow (random keys
            too), or another library with ``__dlpack__`` or ``__array__``.
        batch_size: number of rows of a batch.
        key: a random key for shuffling: epoch ``e`` has the order
            ``random.permutation(random.fold_in(key, e), rows)``. None keeps the order of rows.
        drop_last: whether to drop a last batch that is shorter than the others.
        epochs: number of epochs; None iterates forever.
        start: number of batches to skip, over all epochs. Use it to resume a run: it then gets the
            remaining batches of the original run.

    Returns:
        A Batches: an iterable of pytrees like ``arrays``, with ``len``. The same arguments give the
        same batches. Arrays of NumPy and other libraries give NumPy arrays, copies; gpuflow's give
        gpuflow arrays, on their device.

    Raises:
        ValueError: if there are no arrays, leading dimensions are missing or differ, a count is
            out of range, or no batch has enough rows with epochs=None.

    Example:
        >>> import numpy as np
        >>> from gpuflow import data
        >>> arrays = {"x": np.arange(10).reshape(5, 2), "y": np.arange(5)}
        >>> [batch["y"].tolist() for batch in data.batches(arrays, 2)]
        [[0, 1], [2, 3], [4]]
        >>> len(data.batches(arrays, 2, drop_last=True, epochs=3))
        6
    """
    leaves, structure = tree.flatten(arrays)
    leaves = [imported(leaf) for leaf in leaves]
    lengths = [getattr(leaf, "shape", ())[:1] for leaf in leaves]
    check(
        bool(lengths) and lengths[0] != () and len(set(lengths)) == 1,
        lambda: (
            f"[batches] arrays must have the same number of rows; got "
            f"{_listed(tree.paths(arrays), leaves)}. Fix: x.reshape(rows, ...)."
        ),
        ValueError,
    )
    batch_size, start = _count("batch_size", batch_size, 1), _count("start", start, 0)
    if epochs is not None:
        epochs = _count("epochs", epochs, 0)
    result = Batches(leaves, structure, batch_size, key, drop_last, epochs, start)
    check(
        epochs is not None or result.per_epoch > 0,
        lambda: (
            f"[batches] arrays must have enough rows for a batch with epochs=None; got "
            f"{lengths[0][0]} rows for batch_size={batch_size}, drop_last={drop_last}. "
            "Fix: a smaller batch_size, or drop_last=False for arrays with rows."
        ),
        ValueError,
    )
    return result


def _count(name: str, value: Any, least: int) -> int:
    """An argument that must be an integer, of any library, and not smaller."""
    integer = None if isinstance(value, bool) else known_index(value)
    check(
        isinstance(integer, int) and integer >= least,
        lambda: (
            f"[batches] {name} must be an integer of at least {least}; got {value!r}. "
            f"Fix: {name}={max(least, 32 if name == 'batch_size' else least)}."
        ),
        ValueError,
    )
    return integer


def _listed(paths: list[str], leaves: list[Any]) -> str:
    """The shapes of arrays with their paths."""
    pairs = zip(paths, leaves, strict=True)
    described = [
        f"{getattr(leaf, 'shape', type(leaf).__name__)} at {path or 'the top'}"
        for path, leaf in pairs
    ]
    return ", ".join(described) or "none"
