"""Draws of steps that move elements without looking at them."""

from __future__ import annotations

from math import prod

from fuzzing.maker import Maker, Type
from hypothesis import strategies as st


def broadcast(m: Maker) -> None:
    k = m.find(lambda t: len(t.shape) < 4)
    if k is None:
        return
    shape, dims = [], []
    for size in m.types[k].shape:
        if len(m.types[k].shape) < 3 and m.chance():
            shape.append(m.pick(m.sizes))
        dims.append(len(shape))
        shape.append(m.pick(m.sizes) if size == 1 else size)
    if len(shape) < 3:
        shape.append(m.pick(m.sizes))
    m.layout("broadcast_in_dim", k, shape, shape=shape, broadcast_dimensions=dims)


def reshape(m: Maker) -> None:
    k = m.find()
    assert k is not None
    shape = list(m.types[k].shape)
    way = m.pick(["flat", "merge", "split", "one"])
    if way == "flat":
        shape = [prod(shape)]
    elif way == "merge" and len(shape) > 1:
        d = m.pick(range(len(shape) - 1))
        shape[d : d + 2] = [shape[d] * shape[d + 1]]
    elif way == "split" and shape:
        d = m.pick(range(len(shape)))
        parts = [n for n in (2, 3, 5) if shape[d] % n == 0]
        if parts:
            n = m.pick(parts)
            shape[d : d + 1] = [n, shape[d] // n]
    else:
        shape.insert(m.pick(range(len(shape) + 1)), 1)
    if len(shape) <= 4:
        m.layout("reshape", k, shape, new_sizes=shape)


def transpose(m: Maker) -> None:
    k = m.find(lambda t: len(t.shape) > 1)
    if k is not None:
        shape = m.types[k].shape
        order = m.draw(st.permutations(range(len(shape))))
        m.layout("transpose", k, [shape[d] for d in order], permutation=list(order))


def squeeze(m: Maker) -> None:
    k = m.find(lambda t: 1 in t.shape)
    if k is not None:
        shape = list(m.types[k].shape)
        d = m.pick([d for d, size in enumerate(shape) if size == 1])
        m.layout("squeeze", k, shape[:d] + shape[d + 1 :], dimensions=[d])


def slice_(m: Maker) -> None:
    k = m.find(lambda t: bool(t.shape))
    if k is None:
        return
    starts, limits, steps = [], [], []
    for size in m.types[k].shape:
        start = m.pick([0, 0, min(1, size), size // 2])
        starts.append(start)
        limits.append(m.pick([size, size, max(start, size - 1), min(size, start + 2)]))
        steps.append(m.pick([1, 1, 2, 3]))
    shape = [-(-(b - a) // s) for a, b, s in zip(starts, limits, steps, strict=True)]
    m.layout("slice", k, shape, start_indices=starts, limit_indices=limits, strides=steps)


def rev(m: Maker) -> None:
    k = m.find(lambda t: bool(t.shape))
    if k is not None:
        shape = m.types[k].shape
        m.layout("rev", k, shape, dimensions=m.axes(len(shape)))


def pad(m: Maker) -> None:
    k = m.find(lambda t: bool(t.shape))
    if k is None:
        return
    config, shape = [], []
    for size in m.types[k].shape:
        low, high = m.pick([0, 1, 2, -1]), m.pick([0, 1, -1])
        interior = m.pick([0, 0, 2])
        new = low + high + size + max(size - 1, 0) * interior
        if new < 0:
            low, high, interior, new = 0, 0, 0, size
        config.append([low, high, interior])
        shape.append(new)
    value = True if m.types[k].dtype == "bool" else m.pick([0, 1, 2])
    m.layout("pad", k, shape, value=value, config=config)


def concatenate(m: Maker) -> None:
    k = m.find(lambda t: bool(t.shape))
    if k is None:
        return
    t = m.types[k]
    d = m.pick(range(len(t.shape)))

    def fits(u: Type) -> bool:
        same = [e for e in range(len(t.shape)) if e != d]
        return (
            u.dtype == t.dtype
            and len(u.shape) == len(t.shape)
            and all(u.shape[e] == t.shape[e] for e in same)
        )

    parts = [k, *m.some(1, 2, fits)]
    shape = list(t.shape)
    shape[d] = sum(m.types[p].shape[d] for p in parts)
    bound = max(m.types[p].bound for p in parts)
    if prod(shape) <= m.options.most_elements:
        m.add("concatenate", parts, shape, t.dtype, True, bound, dimension=d)


def iota(m: Maker) -> None:
    shape = [m.pick(m.sizes) for _ in range(m.pick([1, 2]))]
    dtype = m.pick(["int32", "float64" if m.options.smooth else "float32"])
    dimension = m.pick(range(len(shape)))
    m.add("iota", [], shape, dtype, True, 33, dtype=dtype, shape=shape, dimension=dimension)


DRAWS = (
    broadcast,
    broadcast,
    reshape,
    reshape,
    transpose,
    squeeze,
    slice_,
    rev,
    pad,
    concatenate,
    iota,
)
