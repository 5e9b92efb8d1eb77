"""Draws of steps that read and write at computed places, sort, and contract."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from fuzzing.maker import Maker, Type
from fuzzing.running import make_index
from hypothesis import strategies as st

# The reference of general gathers and scatters visits elements one by one.
MAX_VISITED = 300


def _is_index(t: Type) -> bool:
    return t.is_integer and len(t.shape) <= 2 and t.size <= 40


def row_gather(m: Maker) -> None:
    k = m.find(lambda t: bool(t.shape) and t.shape[0] > 0)
    index = m.find(lambda t: t.is_integer)
    if k is None or index is None:
        return
    shape = [*m.types[index].shape, *m.types[k].shape[1:]]
    if prod(shape) <= m.options.most_elements and len(shape) <= 4:
        t, mode = m.types[k], m.pick(["clip", "fill", "zero"])
        m.add("row_gather", [k, index], shape, t.dtype, True, t.bound, mode=mode)


def dynamic_slice(m: Maker) -> None:
    k = m.find(lambda t: bool(t.shape))
    if k is None:
        return
    t = m.types[k]
    starts = [m.exact_scalar("int32") for _ in t.shape]
    sizes = [m.pick([size, size // 2, min(size, 1), max(size - 1, 0)]) for size in t.shape]
    m.add("dynamic_slice", [k, *starts], sizes, t.dtype, True, t.bound, sizes=sizes)


def dynamic_update_slice(m: Maker) -> None:
    k = m.find(lambda t: bool(t.shape))
    if k is None:
        return
    t = m.types[k]
    starts = [m.exact_scalar("int32") for _ in t.shape]
    sizes = tuple(m.pick([size, size // 2, min(size, 1)]) for size in t.shape)
    update = m.match(Type(sizes, t.dtype, False, 1e3))
    bound = max(t.bound, m.types[update].bound)
    m.add("dynamic_update_slice", [k, update, *starts], t.shape, t.dtype, True, bound)


# --- gather and scatter in general ---------------------------------------------------------


class Windows:
    """Which dimensions of a value are indexed, paired with the indices', dropped or kept."""

    def __init__(self, m: Maker, shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
        dims = m.draw(st.permutations(range(len(shape))))
        self.mapped = list(dims[: m.pick([1, 1, 2])])
        pairs = [
            (d, b)
            for d in dims
            if d not in self.mapped
            for b, n in enumerate(batch)
            if shape[d] == n
        ]
        self.pairs = [m.pick(pairs)] if pairs and m.chance() else []
        paired = [d for d, _ in self.pairs]
        self.sizes, self.dropped = [], []
        for d, size in enumerate(shape):
            whole = d not in self.mapped and m.pick([True, True, False])
            own = size if whole else m.pick([min(size, 1), size // 2, max(size - 1, 0)])
            if d in paired:
                own = min(size, 1)
            elif own == 1 and m.chance():
                self.dropped.append(d)
            self.sizes.append(own)
        gone = {*paired, *self.dropped}
        self.kept = [own for d, own in enumerate(self.sizes) if d not in gone]
        rank = len(batch) + len(self.kept)
        self.offsets = sorted(m.draw(st.permutations(range(rank)))[: len(self.kept)])
        rest, inside = iter(batch), iter(self.kept)
        self.shape = [next(inside if d in self.offsets else rest) for d in range(rank)]
        self.visited = prod(self.shape)

    def numbers(self) -> list[list[int]]:
        """The dimension numbers, in the order that gather and scatter share."""
        return [
            self.offsets,
            self.dropped,
            self.mapped,
            [d for d, _ in self.pairs],
            [b for _, b in self.pairs],
        ]


def _windows(m: Maker) -> tuple[int, list[int], Windows] | None:
    """A value, index values of one shape and windows."""
    k, index = m.find(lambda t: 0 < len(t.shape) <= 3), m.find(_is_index)
    if k is None or index is None:
        return None
    batch = m.types[index].shape
    windows = Windows(m, m.types[k].shape, batch)
    if windows.visited > MAX_VISITED or len(windows.shape) > 4:
        return None
    dtype = m.types[index].dtype
    others = [m.find(lambda t: t.dtype == dtype and t.shape == batch) for _ in windows.mapped[1:]]
    return k, [index, *[other for other in others if other is not None]], windows


def gather(m: Maker) -> None:
    drawn = _windows(m)
    if drawn is None:
        return
    k, indices, windows = drawn
    t, mode = m.types[k], m.pick(["drop", "clip", "fill"])
    fill = m.pick([None, 0, 1]) if mode != "clip" else None
    m.add(
        "gather",
        [k, *indices],
        windows.shape,
        t.dtype,
        True,
        max(t.bound, 1),
        numbers=windows.numbers(),
        sizes=windows.sizes,
        mode=mode,
        fill=fill,
    )


def _scatter_kinds(m: Maker, t: Type) -> list[str]:
    """Ways to combine; products have no derivative where places repeat."""
    if t.dtype == "bool":
        return ["set"]
    if t.is_integer:
        return ["set", "add", "mul", "min", "max"]
    if t.is_complex or m.options.smooth or m.options.reverse:
        return ["set", "add", "add"]
    return ["set", "add", "add", "min", "max"]


def _scatter_bound(kind: str, t: Type, u: Type) -> float:
    return t.bound + u.bound * max(u.size, 1) if kind == "add" else max(t.bound, u.bound)


def scatter(m: Maker) -> None:
    drawn = _windows(m)
    if drawn is None:
        return
    k, indices, windows = drawn
    t = m.types[k]
    kind = m.pick(_scatter_kinds(m, t))
    update = m.match(Type(tuple(windows.shape), t.dtype, False, 1e3))
    exact = kind != "add" or t.is_integer
    bound = _scatter_bound(kind, t, m.types[update])
    m.add(
        "scatter",
        [k, update, *indices],
        t.shape,
        t.dtype,
        exact,
        bound,
        kind=kind,
        numbers=windows.numbers(),
        mode=m.pick([None, "clip", "drop"]),
    )


# --- indices as users write them -----------------------------------------------------------


def _index(m: Maker, shape: tuple[int, ...]) -> tuple[list[Any], list[int]]:
    """Entries for leading dimensions, and the values that they use."""
    entries: list[Any] = []
    used: list[int] = []
    for size in shape[: m.pick(range(1, len(shape) + 1))]:
        if m.pick([False] * 5 + [True]):
            entries.append(["none"])
        kind = m.pick(["slice", "int", "array", "array"])
        partner = _index_partner(m, used) if size and kind == "array" else None
        if partner is not None:
            used.append(partner)
            entries.append(["array", len(used) - 1])
        elif kind == "int" and size:
            entries.append(["int", m.pick([0, -1, size // 2])])
        else:
            step = m.pick([None, 1, 2, -1, -2])
            entries.append(["slice", m.pick([None, 0, 1, -2]), m.pick([None, size, -1, 3]), step])
    return entries, used


def _index_partner(m: Maker, used: list[int]) -> int | None:
    shapes = [m.types[k].shape for k in used]

    def fits(t: Type) -> bool:
        return _is_index(t) and all(not t.shape or not s or t.shape == s for s in shapes)

    return m.find(fits)


def _indexed(m: Maker) -> tuple[int, list[Any], list[int], tuple[int, ...]] | None:
    k = m.find(lambda t: 0 < len(t.shape) <= 3)
    if k is None:
        return None
    shape = m.types[k].shape
    entries, used = _index(m, shape)
    arrays = [np.zeros(m.types[u].shape, np.int64) for u in used]
    result = np.empty(shape, bool)[make_index(entries, arrays)].shape
    if prod(result) > m.options.most_elements or len(result) > 4:
        return None
    return k, entries, used, result


def get_at(m: Maker) -> None:
    drawn = _indexed(m)
    if drawn is None:
        return
    k, entries, used, shape = drawn
    t, mode = m.types[k], m.pick([None, "clip", "fill"])
    fill = m.pick([None, 0, 1]) if mode == "fill" else None
    m.add(
        "get_at",
        [k, *used],
        shape,
        t.dtype,
        True,
        max(t.bound, 1),
        index=entries,
        mode=mode,
        fill=fill,
    )


def update_at(m: Maker) -> None:
    drawn = _indexed(m)
    if drawn is None:
        return
    k, entries, used, shape = drawn
    t = m.types[k]
    kind = m.pick(_scatter_kinds(m, t))
    own = shape[m.pick([0, 0, 0, *range(len(shape) + 1)]) :]
    update = m.match(Type(own, t.dtype, False, 1e3))
    exact = kind != "add" or t.is_integer
    bound = (
        t.bound + m.types[update].bound * max(prod(shape), 1)
        if kind == "add"
        else max(t.bound, m.types[update].bound)
    )
    m.add(
        "update_at",
        [k, update, *used],
        t.shape,
        t.dtype,
        exact,
        bound,
        index=entries,
        kind={"mul": "multiply"}.get(kind, kind),
        mode=m.pick([None, "clip", "drop"]),
    )


# --- sorting -------------------------------------------------------------------------------


def sort(m: Maker) -> None:
    smooth = m.options.smooth
    k = m.find(lambda t: bool(t.shape) and (t.exact or not (smooth or t.is_complex)))
    if k is None:
        return
    t = m.types[k]
    axis = m.pick(range(len(t.shape)))
    if not t.exact or m.pick([True, False, False]):
        m.add_many("sort", [k], [t], axis=axis, keys=1)
        return
    if m.chance():
        m.add("argsort", [k], t.shape, "int32", True, t.size, axis=axis)
        return
    args = [k, *m.some(0, 2, lambda u: u.shape == t.shape)]
    # Elements move with the keys, so those need to be exact, and no more.
    keys = 1
    while keys < len(args) and m.types[args[keys]].exact and m.chance():
        keys += 1
    m.add_many("sort", args, [m.types[a] for a in args], axis=axis, keys=keys)


def top_k(m: Maker) -> None:
    k = m.find(lambda t: t.exact and bool(t.shape) and not t.is_complex)
    if k is None:
        return
    t = m.types[k]
    axis = m.pick(range(len(t.shape)))
    count = m.pick([t.shape[axis], t.shape[axis] // 2, min(t.shape[axis], 1)])
    shape = (*t.shape[:axis], count, *t.shape[axis + 1 :])
    types = [Type(shape, t.dtype, True, t.bound), Type(shape, "int32", True, 4000)]
    m.add_many("top_k", [k], types, k=count, axis=axis)


# --- contractions --------------------------------------------------------------------------


def contract(m: Maker) -> None:
    """A dot_general that contracts and goes over any pairs of dimensions of equal size."""
    k = m.find(lambda t: (t.is_float or t.is_complex or t.is_integer) and bool(t.shape))
    if k is None:
        return
    t = m.types[k]
    other = m.find(lambda u: u.dtype == t.dtype and bool(set(t.shape) & set(u.shape)))
    assert other is not None
    u = m.types[other]
    pairs = [(a, b) for a, n in enumerate(t.shape) for b, size in enumerate(u.shape) if n == size]
    sides: list[list[tuple[int, int]]] = [[], []]
    for chosen in [sides[0]] + [m.pick(sides) for _ in range(2)]:
        taken = [*sides[0], *sides[1]]
        free = [
            (a, b)
            for a, b in pairs
            if a not in [p for p, _ in taken] and b not in [q for _, q in taken]
        ]
        if free and (not taken or m.chance()):
            chosen.append(m.pick(free))
    contracted, batch = [[[a for a, _ in side], [b for _, b in side]] for side in sides]
    gone = [*contracted[0], *batch[0]], [*contracted[1], *batch[1]]
    shape = [t.shape[a] for a in batch[0]]
    shape += [n for a, n in enumerate(t.shape) if a not in gone[0]]
    shape += [n for b, n in enumerate(u.shape) if b not in gone[1]]
    if prod(shape) <= m.options.most_elements and len(shape) <= 4:
        count = prod(t.shape[a] for a in contracted[0])
        bound = t.bound * u.bound * max(count, 1)
        m.add("dot", [k, other], shape, t.dtype, t.is_integer, bound, axes=contracted, batch=batch)


DRAWS = (
    row_gather,
    gather,
    gather,
    scatter,
    scatter,
    get_at,
    get_at,
    update_at,
    update_at,
    dynamic_slice,
    dynamic_update_slice,
    sort,
    sort,
    top_k,
    contract,
    contract,
)
SHORT_DRAWS = (row_gather, contract)  # what programs without control flow had from the start
