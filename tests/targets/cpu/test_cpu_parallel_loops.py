"""Loops with independent iterations on several threads, each with memory of its own."""

import threading

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.targets.cpu.runtime.native import steps
from gpuflow.targets.cpu.runtime.native.pool import pool
from gpuflow.targets.cpu.runtime.native.program_writer import Code

RNG = np.random.default_rng(0)
MATRICES = RNG.standard_normal((33, 40, 40)).astype(np.float32)
several = pytest.mark.skipif(pool().threads == 1, reason="needs two threads")


@pytest.fixture
def counted(monkeypatch):
    """How many threads took the loops that are written from here on."""
    counts = []
    write = Code.parallel_loop

    def parallel_loop(code, length, bodies, table):
        counts.append(len(bodies))
        write(code, length, bodies, table)

    monkeypatch.setattr(Code, "parallel_loop", parallel_loop)
    gf.clear_caches()
    return counts


def product(x):
    y = jnp.tanh(x @ x.T * 0.1)
    return y @ y, y.sum(0)


def with_loop(x):
    return lax.while_loop(lambda s: jnp.abs(s).max() > 0.5, lambda s: s @ s.T * 0.01, x)


def with_branch(x):
    return lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x @ x.T, x)


def nested(x):
    return lax.map(lambda row: jnp.outer(row, row) @ x, x)


@several
@pytest.mark.parametrize("body", [product, with_loop, with_branch, nested, jnp.linalg.inv])
def test_threads_do_not_show(body, counted, monkeypatch):
    together = gf.jit(lambda x: lax.map(body, x))(MATRICES)
    threads = list(counted)
    monkeypatch.setattr(steps, "_MAX_ARENA_BYTES", -1)
    gf.clear_caches()
    alone = gf.jit(lambda x: lax.map(body, x))(MATRICES)
    assert threads == [pool().threads] == counted
    for mine, theirs in zip(*map(gf.tree_util.tree_leaves, (together, alone)), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    each = np.stack([np.asarray(gf.tree_util.tree_leaves(body(x))[0]) for x in MATRICES])
    first = gf.tree_util.tree_leaves(together)[0]
    np.testing.assert_allclose(first, each, rtol=1e-4, atol=1e-4)


@several
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [2 * pool().threads, 33])
def test_results_and_elements_keep_their_order(reverse, length, counted):
    def step(carry, k):
        return carry, (MATRICES[0] @ MATRICES[0].T * k, k)

    _, (stack, numbers) = gf.jit(lambda k: lax.scan(step, None, k, reverse=reverse))(
        np.arange(length, dtype=np.float32)
    )
    np.testing.assert_array_equal(numbers, np.arange(length))
    want = np.arange(length)[:, None, None] * (MATRICES[0] @ MATRICES[0].T)
    np.testing.assert_allclose(stack, want, rtol=1e-4, atol=1e-4)


def test_few_turns_and_little_work_stay_on_one_thread(counted):
    gf.jit(lambda x: lax.map(product, x))(MATRICES[:1])
    small = MATRICES[:, :2, :17]
    gf.jit(lambda x: lax.map(lambda y: jnp.sort(y, axis=1) @ y.T, x))(small)
    gf.jit(lambda x: lax.scan(lambda c, y: (c @ y * 0.1, c.sum()), jnp.eye(40), x))(MATRICES)
    assert counted == []


@several
def test_calls_from_several_threads(counted):
    run = gf.jit(lambda x: lax.map(with_loop, x))
    want = {1: np.asarray(run(MATRICES)), -1: np.asarray(run(-MATRICES))}
    results, sign = [None] * 6, np.float32([1, -1, 1, -1, 1, -1])

    def call(k):
        for _ in range(20):
            results[k] = np.asarray(run(MATRICES * sign[k]))

    threads = [threading.Thread(target=call, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted
    for result, k in zip(results, sign, strict=True):
        np.testing.assert_array_equal(result, want[int(k)])
