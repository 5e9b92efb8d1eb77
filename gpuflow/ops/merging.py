"""Many small arrays in one call: what goes between memories costs more to start than to send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.core.aval import aval_of
from gpuflow.ops.axes import reshape
from gpuflow.ops.joining import concatenate
from gpuflow.ops.layout import slice_in_dim

# Larger arrays have a call of their own: to copy them would cost more than a call.
SMALL_BYTES = 1 << 16


def in_buckets(arrays: Sequence[Any], call: Callable[[Any], Any]) -> list[Any]:
    """``call`` of each array, which works element by element; small ones of a dtype share one."""
    buckets: dict[Any, list[int]] = {}
    for k, array in enumerate(arrays):
        aval = aval_of(array)
        # A large array is a bucket of its own.
        key = aval.dtype if aval.nbytes <= SMALL_BYTES else k
        buckets.setdefault(key, []).append(k)
    results: list[Any] = [None] * len(arrays)
    for members in buckets.values():
        if len(members) == 1:
            results[members[0]] = call(arrays[members[0]])
            continue
        flat = [reshape(arrays[k], (aval_of(arrays[k]).size,)) for k in members]
        joined, start = call(concatenate(flat, 0)), 0
        for k in members:
            aval = aval_of(arrays[k])
            part = slice_in_dim(joined, start, start + aval.size)
            results[k], start = reshape(part, aval.shape), start + aval.size
    return results
