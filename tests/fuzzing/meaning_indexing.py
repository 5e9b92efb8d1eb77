"""What reading, writing, sorting and contracting mean, element by element, in NumPy alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from fuzzing.programs import FLOATS
from fuzzing.running import make_index


def filling(dtype: Any) -> Any:
    """What reads outside of an array give by default."""
    if dtype.name in FLOATS or dtype.kind in "fc":
        return np.nan
    if dtype.kind == "b":
        return True
    bounds = np.iinfo(dtype)
    return bounds.min if dtype.kind == "i" else bounds.max


def _combined(kind: str, old: Any, new: Any) -> Any:
    functions: dict[str, Callable[..., Any]] = {
        "set": lambda a, b: b,
        "add": np.add,
        "mul": np.multiply,
        "multiply": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
    }
    return functions[kind](old, new)


def _row_gather(x: Any, indices: Any, dtype: Any, mode: str) -> Any:
    out = np.empty((*indices.shape, *x.shape[1:]), x.dtype)
    for place in np.ndindex(indices.shape):
        row = indices[place]
        if 0 <= row < len(x) or mode == "clip":
            out[place] = x[min(max(row, 0), len(x) - 1)]
        else:
            out[place] = 0 if mode == "zero" else filling(dtype)
    return out


# --- gather and scatter --------------------------------------------------------------------


def _visits(shape: Any, indices: Any, numbers: Any, sizes: Any, mode: Any) -> Any:
    """For each element of the windows: its place in the result, and in the array or None."""
    offsets, dropped, mapped, paired, partners = numbers
    batch = indices[0].shape
    kept = [d for d in range(len(shape)) if d not in (*dropped, *paired)]
    rank = len(batch) + len(kept)
    rest = [d for d in range(rank) if d not in offsets]
    for vector in np.ndindex(batch):
        start, inside = [0] * len(shape), True
        for d, numbers_of in zip(mapped, indices, strict=True):
            start[d] = int(numbers_of[vector])
            room = shape[d] - sizes[d]
            inside = inside and 0 <= start[d] <= room
            start[d] = min(max(start[d], 0), room)
        for d, b in zip(paired, partners, strict=True):
            start[d] = vector[b]
        for within in np.ndindex(*[sizes[d] for d in kept]):
            result, place = [0] * rank, list(start)
            for d, k in zip(rest, vector, strict=True):
                result[d] = k
            for d, own, k in zip(offsets, kept, within, strict=True):
                result[d] = k
                place[own] += k
            seen = inside or mode == "clip"
            yield tuple(result), tuple(place) if seen else None


def _result_shape(batch: Any, numbers: Any, sizes: Any) -> list[int]:
    offsets, dropped, _, paired, _ = numbers
    kept = iter([n for d, n in enumerate(sizes) if d not in (*dropped, *paired)])
    rest = iter(batch)
    rank = len(batch) + len(offsets)
    return [next(kept if d in offsets else rest) for d in range(rank)]


def _gather(
    x: Any, *indices: Any, dtype: Any, numbers: Any, sizes: Any, mode: Any, fill: Any
) -> Any:
    value = filling(dtype) if fill is None else fill
    out = np.full(_result_shape(indices[0].shape, numbers, sizes), value, x.dtype)
    if 0 in x.shape or any(not n and d in numbers[3] for d, n in enumerate(sizes)):
        return out
    for result, place in _visits(x.shape, indices, numbers, sizes, mode):
        if place is not None:
            out[result] = x[place]
    return out


def _scatter(
    x: Any, updates: Any, *indices: Any, kind: str, numbers: Any, mode: Any, dtype: Any
) -> Any:
    del dtype
    offsets, dropped, _, paired, _ = numbers
    kept = iter([updates.shape[d] for d in offsets])
    sizes = [min(n, 1) if d in (*dropped, *paired) else next(kept) for d, n in enumerate(x.shape)]
    out = x.copy()
    if out.size == 0:
        return out
    for result, place in _visits(x.shape, indices, numbers, sizes, mode):
        if place is not None:
            out[place] = _combined(kind, out[place], updates[result])
    return out


# --- x[...] --------------------------------------------------------------------------------


def _positions(shape: Any, index: Any, arrays: Any, clip: bool) -> Any:
    """The flat position of every element of ``x[index]``; -1 for those outside."""
    indexed = _array_dims(index)
    numbers = np.arange(prod(shape)).reshape(shape)
    # One more place behind the end of each dimension that arrays index stands for all outside.
    numbers = np.pad(
        numbers, [(0, int(d in indexed)) for d in range(len(shape))], constant_values=-1
    )
    arrays = list(arrays)
    for d, k in indexed.items():
        wrapped = np.where(arrays[k] < 0, arrays[k] + shape[d], arrays[k])
        outside = (wrapped < 0) | (wrapped >= shape[d])
        held = np.clip(wrapped, 0, shape[d] - 1)
        arrays[k] = held if clip else np.where(outside, shape[d], held)
    return numbers[make_index(index, arrays)]


def _dims(index: Any) -> list[int]:
    """The dimension of the array that each entry is about, or the next one for a new axis."""
    dims, d = [], 0
    for kind, *_ in index:
        dims.append(d)
        d += kind != "none"
    return dims


def _array_dims(index: Any) -> dict[int, int]:
    return {
        d: entry[1] for entry, d in zip(index, _dims(index), strict=True) if entry[0] == "array"
    }


def _get_at(x: Any, *arrays: Any, dtype: Any, index: Any, mode: Any, fill: Any) -> Any:
    positions = _positions(x.shape, index, arrays, mode != "fill")
    value = filling(dtype) if fill is None else fill
    return np.append(x.ravel(), np.asarray(value, x.dtype))[positions]


def _update_at(
    x: Any, update: Any, *arrays: Any, dtype: Any, index: Any, kind: str, mode: Any
) -> Any:
    del dtype
    positions = _positions(x.shape, index, arrays, mode == "clip")
    out = x.ravel().copy()
    updates = np.broadcast_to(update, positions.shape)
    for place, new in zip(positions.ravel(), updates.ravel(), strict=True):
        if place >= 0:
            out[place] = _combined(kind, out[place], new)
    return out.reshape(x.shape)


def _starts(shape: Any, starts: Any, sizes: Any) -> tuple[slice, ...]:
    """Windows that stay inside; negative starts count from the end."""
    places = []
    for size, start, own in zip(shape, map(int, starts), sizes, strict=True):
        start = start + size if start < 0 else start
        start = min(max(start, 0), size - own)
        places.append(slice(start, start + own))
    return tuple(places)


def _dynamic_slice(x: Any, *starts: Any, sizes: Any, dtype: Any) -> Any:
    del dtype
    return x[_starts(x.shape, starts, sizes)]


def _dynamic_update_slice(x: Any, update: Any, *starts: Any, dtype: Any) -> Any:
    del dtype
    out = x.copy()
    out[_starts(x.shape, starts, update.shape)] = update
    return out


# --- sorting and contracting ---------------------------------------------------------------


def _rank(x: Any) -> tuple[Any, ...]:
    """What a number is sorted by: nan is last."""
    parts = [x.real, x.imag] if isinstance(x, complex) else [x]
    return tuple((part != part, 0 if part != part else part) for part in parts)


def _total_rank(x: Any) -> tuple[Any, ...]:
    """The order in which -0.0 is below 0.0 and nan goes by its sign."""
    negative = bool(np.signbit(x)) if isinstance(x, float) else False
    if x != x:
        return (-1 if negative else 1, 0, 0)
    return (0, x, not negative)


def _sort(*xs: Any, axis: int, keys: int, dtype: Any) -> list[Any]:
    del dtype
    moved = [np.moveaxis(x, axis, -1) for x in xs]
    outs = [np.empty(x.shape, x.dtype) for x in moved]
    for row in np.ndindex(moved[0].shape[:-1]):
        ranks = list(zip(*[[_rank(v) for v in x[row].tolist()] for x in moved[:keys]]))
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        for x, out in zip(moved, outs, strict=True):
            out[row] = x[row][order]
    return [np.moveaxis(out, -1, axis) for out in outs]


def _argsort(x: Any, axis: int, dtype: Any) -> Any:
    line = [-1 if d == axis else 1 for d in range(x.ndim)]
    numbers = np.broadcast_to(np.arange(x.shape[axis]).reshape(line), x.shape)
    return _sort(x, numbers, axis=axis, keys=1, dtype=dtype)[1]


def _top_k(x: Any, k: int, axis: int, dtype: Any) -> list[Any]:
    del dtype
    moved = np.moveaxis(x, axis, -1)
    shape = (*moved.shape[:-1], k)
    values, places = np.empty(shape, x.dtype), np.empty(shape, np.int64)
    for row in np.ndindex(shape[:-1]):
        ranks = [_total_rank(v) for v in moved[row].tolist()]
        order = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)
        # Sorting in reverse keeps the order of equal elements too.
        places[row] = order[:k]
        values[row] = moved[row][order[:k]]
    return [np.moveaxis(values, -1, axis), np.moveaxis(places, -1, axis)]


def _dot(x: Any, y: Any, axes: Sequence[Any], batch: Sequence[Any], dtype: Any) -> Any:
    del dtype
    x_names = [f"x{d}" for d in range(x.ndim)]
    y_names = [f"y{d}" for d in range(y.ndim)]
    for a, b in (*zip(*axes), *zip(*batch)):
        y_names[b] = x_names[a]
    summed = [x_names[a] for a in axes[0]]
    first = [x_names[a] for a in batch[0]]
    rest = [n for n in (*x_names, *y_names) if n not in summed and n not in first]
    numbers = {name: k for k, name in enumerate(dict.fromkeys((*x_names, *y_names)))}
    return np.einsum(
        x,
        [numbers[n] for n in x_names],
        y,
        [numbers[n] for n in y_names],
        [numbers[n] for n in (*first, *rest)],
    )


INDEXING: dict[str, Callable[..., Any]] = {
    "row_gather": _row_gather,
    "gather": _gather,
    "scatter": _scatter,
    "get_at": _get_at,
    "update_at": _update_at,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "sort": _sort,
    "argsort": _argsort,
    "top_k": _top_k,
    "dot": _dot,
}
