"""What every communicator must do, run by each process of a group: ``check_all(communicator)``.

Started as a script: ``communicator_suite.py rank size port`` over sockets, or under mpiexec with
``communicator_suite.py mpi``.
"""

import sys

import ml_dtypes
import numpy as np

from gpuflow.core.communicator import Across, communicator_of, serving
from gpuflow.parallel.collectives.checked import CheckedCommunicator

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
COMPLEX = [np.complex64, np.complex128]
SHAPES = [(), (0,), (1,), (3, 0, 2), (7, 13), (10007,), (1 << 20,)]


def values(rank, shape, dtype):
    """Numbers that differ by rank, small enough that sums are exact in float32."""
    generator = np.random.default_rng(100 + rank)
    numbers = generator.integers(-5, 6, shape)
    if np.dtype(dtype) in map(np.dtype, COMPLEX):
        return (numbers + 1j * generator.integers(-5, 6, shape)).astype(dtype)
    return np.asarray(numbers).astype(dtype)


def same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.shape)
    assert got.flags.c_contiguous and got.flags.writeable
    assert got.tobytes() == np.ascontiguousarray(want).tobytes(), (got, want)


def check_reductions(c):
    ranks = range(c.size)
    for dtype in [*INTEGERS, *FLOATS, *COMPLEX]:
        for shape in SHAPES if dtype in (np.float32, np.float16) else SHAPES[:-1]:
            all_of = [values(r, shape, dtype) for r in ranks]
            wide = np.float32 if np.dtype(dtype).itemsize == 2 and dtype in FLOATS else dtype
            total = np.sum([a.astype(wide) for a in all_of], axis=0, dtype=wide).astype(dtype)
            same(c.all_reduce(all_of[c.rank], "sum"), np.asarray(total))
            if dtype not in COMPLEX:
                stacked = np.stack([a.astype(wide) for a in all_of])
                same(c.all_reduce(all_of[c.rank], "max"), np.asarray(stacked.max(0)).astype(dtype))
                same(c.all_reduce(all_of[c.rank], "min"), np.asarray(stacked.min(0)).astype(dtype))
    flags = np.arange(9) % (c.rank + 2) == 0
    every = np.stack([np.arange(9) % (r + 2) == 0 for r in ranks])
    same(c.all_reduce(flags, "max"), every.any(0))
    same(c.all_reduce(flags, "min"), every.all(0))


def check_short_sums(c, rounds):
    """Many small 16-bit terms: in float32 they count, in the dtype itself they may be lost.

    With ``rounds`` each of the ``size - 1`` additions may round to the dtype, in any order.
    """
    for dtype in (np.float16, ml_dtypes.bfloat16):
        values = np.full(5, 256 if c.rank == 0 else 0.75, dtype)
        total, half = np.float32(256 + 0.75 * (c.size - 1)), float(ml_dtypes.finfo(dtype).eps) / 2
        for got in (c.all_reduce(values, "sum"), c.reduce_scatter(np.stack([values] * c.size))):
            if rounds:
                assert got.dtype == values.dtype
                apart = np.abs(got.astype(np.float32) - total).max()
                assert apart <= max(c.size - 1, 0) * half * total * (1 + half) ** c.size
            else:
                same(got, np.full(5, total).astype(dtype))
        # Alike on all ranks whatever was rounded.
        mixed = np.random.default_rng(c.rank).standard_normal(1003).astype(dtype)
        result = c.all_reduce(mixed, "sum")
        assert all(row.tobytes() == result.tobytes() for row in c.all_gather(result))


def check_bits(c, device):
    """Sums of anything have equal bits on all ranks, and the same each time; nan is kept."""
    x = np.random.default_rng(c.rank).standard_normal(100_003).astype(np.float32)
    first, second = c.all_reduce(x, "sum"), c.all_reduce(x, "sum")
    assert first.tobytes() == second.tobytes()
    rows = c.all_gather(first)
    assert all(row.tobytes() == first.tobytes() for row in rows)
    want = np.sum(
        [
            np.random.default_rng(r).standard_normal(100_003).astype(np.float32)
            for r in range(c.size)
        ],
        axis=0,
    )
    np.testing.assert_allclose(first, want, rtol=1e-5, atol=1e-5)
    for count in (3, 20_000):
        y = np.zeros(count, np.float32)
        y[1] = np.nan if c.rank == c.size - 1 else 0
        assert np.isnan(c.all_reduce(y, "max")[1]) and np.isnan(c.all_reduce(y, "min")[1])
    for dtype, count in ((np.float32, 7), (np.float32, 20_000), (ml_dtypes.bfloat16, 20_000)):
        out = device(np.full(count, 99, dtype))
        assert c.all_reduce(np.ones(count, dtype), "sum", out) is out
        same(out, np.full(count, c.size, dtype))


def check_moves(c):
    for dtype in (np.float32, ml_dtypes.bfloat16, np.uint8, np.complex128, bool):
        for shape in SHAPES if dtype is np.float32 else SHAPES[:-1]:
            all_of = [values(r, shape, dtype) for r in range(c.size)]
            data = all_of[c.rank]
            same(c.all_gather(data), np.stack(all_of))
            for root in {0, c.size - 1}:
                same(c.broadcast(data, root), all_of[root])
            around = [(r, (r + 1) % c.size) for r in range(c.size)]
            same(c.permute(data, around), all_of[c.rank - 1])
            first = all_of[-1] if c.rank == 0 else np.zeros(shape, dtype)
            same(c.permute(data, [(c.size - 1, 0)]), first)
            parts = [values(r, (c.size, *shape), dtype) for r in range(c.size)]
            same(c.all_to_all(parts[c.rank]), np.stack([p[c.rank] for p in parts]))
            if dtype in (np.float32, np.complex128):
                total = np.sum(parts, axis=0, dtype=dtype)
                same(c.reduce_scatter(parts[c.rank]), np.asarray(total[c.rank]))
    c.barrier()


def check_strides(c):
    """Operands need not be row-major, and are not changed."""
    base = np.arange(24.0, dtype=np.float32).reshape(4, 6) * (c.rank + 1)
    for view in (base.T, base[::2, ::-1], np.broadcast_to(base[:, :1], (4, 5))):
        before = view.copy()
        scale = sum(r + 1 for r in range(c.size)) / (c.rank + 1)
        np.testing.assert_allclose(c.all_reduce(view, "sum"), view * np.float32(scale), rtol=1e-6)
        np.testing.assert_array_equal(c.all_gather(view)[c.rank], before)
        np.testing.assert_array_equal(c.broadcast(view, 0) * (c.rank + 1), before)
        np.testing.assert_array_equal(view, before)


def check_groups(c):
    if c.size == 1:
        return
    apart = tuple((r,) for r in range(c.size))
    assert c.split(apart).size == 1 and c.split(apart).rank == 0
    turned = (tuple(reversed(range(c.size))),)
    back = c.split(turned)
    assert back.rank == c.size - 1 - c.rank and c.split(turned) is back
    same(back.all_gather(np.array(c.rank)), np.arange(c.size)[::-1].copy())
    halves = (tuple(range(0, c.size, 2)), tuple(range(1, c.size, 2)))
    half = c.split(halves)
    want = np.array(sum(halves[c.rank % 2]))
    same(half.all_reduce(np.array(c.rank), "sum"), want)


def check_products(c):
    """Two parts of an axis that lie between memories are one row-major axis."""
    if c.size != 4:
        return
    parts = [Across("i", "test", ((0, 1), (2, 3))), Across("i", "test", ((0, 2), (1, 3)))]
    with serving("test", c):
        columns, rows = communicator_of("psum", parts[:1]), communicator_of("psum", parts[1:])
        product = communicator_of("psum", [parts[1], parts[0]])
        turned = communicator_of("psum", parts)
    assert (columns.size, rows.size, product.size, turned.size) == (2, 2, 4, 4)
    assert product is c  # one call for both axes
    assert turned.rank == (0, 2, 1, 3)[c.rank]
    check_moves(turned)
    x = np.arange(5.0) + c.rank
    same(turned.all_reduce(x, "sum"), 4 * np.arange(5.0) + 6)


def check_all(c, device=np.asarray, rounds=False):
    """All of it.

    Args:
        c: the communicator.
        device: makes a NumPy array one of the communicator's own.
        rounds: whether sums of 16-bit floats are made in their dtype.
    """
    check_bits(c, device)
    check_short_sums(c, rounds)
    for check in (check_reductions, check_moves, check_strides, check_groups, check_products):
        check(c)
    checked = CheckedCommunicator(c)
    check_strides(checked)
    check_groups(checked)


def check_begun(c):
    """Sums in a thread: in order, between other collectives, and in groups that share it."""
    arrays = [np.full(n, c.rank + 1.0, np.float32) for n in (1, 100_003, 7, 50_000)]
    outs = [np.empty_like(x) for x in arrays]
    halves = c.split((tuple(range(c.size // 2)), tuple(range(c.size // 2, c.size))))
    for x, out in zip(arrays, outs, strict=True):
        c.begin(x, "sum", out)
    part = np.empty_like(arrays[2])
    halves.begin(arrays[2], "max", part)
    total = c.size * (c.size + 1) / 2
    c.end(outs[2])
    assert (outs[2] == total).all()
    same(c.all_gather(np.float32([c.rank])).reshape(-1), np.arange(c.size, dtype=np.float32))
    halves.end(part)
    assert (part == (c.size if c.rank >= c.size // 2 else c.size // 2)).all()
    for k in (3, 0, 1):
        c.end(outs[k])
        assert (outs[k] == total).all()


def main():
    from gpuflow.parallel.processes import distributed

    if sys.argv[1] == "mpi":
        distributed.initialize(collective_timeout=30)
    else:
        rank, size, port = map(int, sys.argv[1:4])
        distributed.initialize(
            f"127.0.0.1:{port}", size, rank, initialization_timeout=30, collective_timeout=20
        )
    world = distributed.world()
    check_all(world)
    check_begun(world)
    print(f"{type(world.inner).__name__} {world.rank} of {world.size} passed")


if __name__ == "__main__":
    main()
