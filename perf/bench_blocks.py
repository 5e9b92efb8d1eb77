"""Kernels by tiles beside what gpuflow generates for the same: both in turn, in one process.

usage: python perf/bench_blocks.py [--rounds 15]

The kernels are those of docs/kernels.md, with the parameters that tuning chooses. Results are
compared before anything is timed. Times are the least of all rounds, in ms: of the clock, and of
the processor on all threads, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

MAX_RATIO = 1.3  # what a kernel may take of the generated one's time


def row_parameters(*columns: int) -> list[dict[str, int]]:
    return [{"rows": rows, "columns": count} for rows in (1, 2, 8) for count in columns]


@gf.kernel.block(
    out=lambda x, rows: x,
    tile=lambda x, rows: (rows, None),
    autotune=[{"rows": rows} for rows in (1, 4, 8, 16)],
)
def softmax_of_tiles(b: Any, x: Any, rows: int) -> Any:
    """A softmax of rows that a block holds as a whole."""
    values = b.load(x)
    e = jnp.exp(values - values.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@gf.kernel.block(
    out=lambda x, rows, columns: x,
    tile=lambda x, rows, columns: (rows, None),
    autotune=row_parameters(1024, 2048, 2500, 5000),
)
def softmax(b: Any, x: Any, rows: int, columns: int) -> Any:
    """A softmax of rows that are read piece by piece."""

    whole_pieces = x.shape[1] % columns == 0 and x.shape[0] % rows == 0
    fill = None if whole_pieces else -jnp.inf

    def step(carry: Any, j: Any) -> Any:
        most, total = carry
        piece = b.load(x, (b.start[0], j * columns), (rows, columns), fill=fill)
        new = jnp.maximum(most, piece.max(1))
        e = jnp.exp(piece - new[:, None])
        return (new, total * jnp.exp(most - new) + e.sum(1)), (e, new)

    start = (jnp.full(rows, -1e30), jnp.zeros(rows))
    (most, total), (e, then) = lax.scan(step, start, jnp.arange(-(-x.shape[1] // columns)))
    scaled = e * (jnp.exp(then - most) / total)[:, :, None]
    return scaled.transpose(1, 0, 2).reshape(rows, -1)[:, : x.shape[1]]


@gf.kernel.block(
    out=lambda q, k, v, causal, rows, keys: q,
    tile=lambda q, k, v, causal, rows, keys: (rows, None),
    autotune=[{"rows": rows, "keys": keys} for rows in (64, 128) for keys in (128, 256, 512)],
)
def attention(b: Any, q: Any, k: Any, v: Any, causal: bool, rows: int, keys: int) -> Any:
    """Attention of one head, whose scores are never there as a whole."""
    n, depth = k.shape
    scaled = b.load(q) * depth**-0.5
    row = b.start[0] + jnp.arange(rows)[:, None]

    def step(j: Any, carry: Any) -> Any:
        most, total, acc = carry
        at = (j * keys, 0)
        column = j * keys + jnp.arange(keys)
        seen = (column < n) & (column <= row) if causal else column < n
        logits = jnp.where(seen, b.dot(scaled, b.load(k, at, (keys, None)).T), -jnp.inf)
        new = jnp.maximum(most, logits.max(1, keepdims=True))
        p, keep = jnp.exp(logits - new), jnp.exp(most - new)
        acc = b.dot(p.astype(v.dtype), b.load(v, at, (keys, None)), acc * keep)
        return new, total * keep + p.sum(1, keepdims=True), acc

    start = (jnp.full((rows, 1), -1e30), jnp.zeros((rows, 1)), jnp.zeros((rows, depth)))
    count = -(-n // keys)
    if causal:
        count = jnp.minimum(count, (b.start[0] + rows - 1) // keys + 1)
    _, total, acc = lax.fori_loop(0, count, step, start)
    return (acc / total).astype(q.dtype)


def _generated_attention(causal: bool) -> Callable[..., Any]:
    def run(q: Any, k: Any, v: Any) -> Any:
        return gf.nn.dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=causal)

    return gf.jit(lambda *args: run(*args)[:, 0])


def rows() -> list[tuple[str, Callable[..., Any], Callable[..., Any], list[Any], str]]:
    """Name, kernel, generated, arguments, parameters that were chosen."""
    rng = np.random.default_rng(0)
    found = []
    plain = gf.jit(lambda x: gf.nn.softmax(x, axis=-1))
    for shape in ((4096, 2048), (512, 20_000)):
        x = jnp.array(rng.standard_normal(shape), jnp.float32)
        for kernel, how in ((softmax_of_tiles, "whole rows"), (softmax, "online")):
            name, chosen = f"softmax of {shape[0]} x {shape[1]}, {how}", str(kernel.tuned(x))
            found.append((name, kernel, plain, [x], chosen))
        if shape[1] == 2048:  # that tuning takes whole rows says nothing of pieces
            parts = {"rows": 1, "columns": 1024}
            pieces = lambda x, parts=parts: softmax(x, **parts)  # noqa: E731
            name = f"softmax of {shape[0]} x {shape[1]}, online, two pieces"
            found.append((name, pieces, plain, [x], f"{parts}, given"))
    for causal in (False, True):
        q, k, v = jnp.array(rng.standard_normal((3, 2048, 64)), jnp.float32)
        kernel = lambda *args, causal=causal: attention(*args, causal=causal)  # noqa: E731
        name = f"{'causal ' * causal}attention, 2048 x 64"
        chosen = str(attention.tuned(q, k, v, causal=causal))
        found.append((name, kernel, _generated_attention(causal), [q, k, v], chosen))
    return found


def once(function: Callable[..., Any], args: list[Any]) -> tuple[float, float]:
    clock, processor = time.perf_counter(), time.process_time()
    function(*args).block_until_ready()
    return 1e3 * (time.perf_counter() - clock), 1e3 * (time.process_time() - processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print("| | kernel: clock, processor | generated | ratios | goal | parameters |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, kernel, generated, args, chosen in rows():
        np.testing.assert_allclose(kernel(*args), generated(*args), rtol=1e-4, atol=1e-6)
        once(kernel, args), once(generated, args)
        times = np.array([(once(kernel, args), once(generated, args)) for _ in range(rounds)])
        (mine, my_work), (theirs, their_work) = times.min(0)
        print(
            f"| {name} | {mine:.2f}, {my_work:.2f} | {theirs:.2f}, {their_work:.2f} | "
            f"{mine / theirs:.2f}, {my_work / their_work:.2f} | {MAX_RATIO} | {chosen} |"
        )


if __name__ == "__main__":
    main()
