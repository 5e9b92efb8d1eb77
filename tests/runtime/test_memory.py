"""The pool never hands out memory of living arrays; arenas grow and nest; donation in place."""

import itertools
import os
import signal
import sys
import threading

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.garbage import collect_garbage
from gpuflow.ops.effects.callbacks import debug_callback
from gpuflow.runtime import memory
from gpuflow.runtime.memory import (
    MIN_POOLED,
    Arena,
    Arenas,
    address,
    aligned_bytes,
    allocate,
    free_cached_memory,
)

BIG = MIN_POOLED // 4 * 3  # float32 elements: a pooled size


def _new(count=BIG):
    return allocate((count,), np.dtype("f"), count * 4)


def _range(array):
    return address(array), address(array) + array.nbytes


def test_address():
    for array in (np.empty(3), np.empty((2, 3))[:, 1], np.empty(0), aligned_bytes(100)):
        assert address(array) == array.ctypes.data
    assert all(address(aligned_bytes(n)) % 64 == 0 for n in (1, 63, 4096))


def test_freed_blocks_are_reused():
    free_cached_memory()
    first = _new()
    place = address(first)
    del first
    second = _new()
    assert address(second) == place
    assert address(_new()) != place


def test_views_keep_the_block():
    free_cached_memory()
    array = _new()
    array[:] = 1
    views = [array[5:], array.reshape(2, -1).T, array.view(np.int32), memoryview(array)]
    place = address(array)
    del array
    while views:
        other = _new()
        assert address(other) != place
        del other
        views.pop()
    collect_garbage()
    assert address(_new()) == place


def test_a_numpy_view_outlives_its_array():
    x = gf.jit(lambda v: v + 1)(np.zeros(BIG, "f"))
    view = np.asarray(x)
    x.delete()
    del x
    for _ in range(3):
        gf.jit(lambda v: v + 1)(np.full(BIG, 7, "f"))
    np.testing.assert_array_equal(view, np.ones(BIG))


def test_random_lifetimes_never_overlap():
    """Properties: living blocks are disjoint and hold what was written to them."""
    rng = np.random.default_rng(3)
    living = []
    for step in range(400):
        if living and rng.random() < 0.5:
            living.pop(rng.integers(len(living)))
        else:
            array = _new(BIG + 1024 * int(rng.integers(3)))
            array[:] = step
            living.append((array, step))
        ranges = sorted(_range(array) for array, _ in living)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    assert all((array == step).all() for array, step in living)


def test_threads_get_different_blocks():
    failures = []

    def work(number):
        for _ in range(200):
            array = _new()
            array[:] = number
            if not (array == number).all():
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_collection_inside_the_pool_does_not_deadlock():
    """A block in a reference cycle may die while this very thread holds the pool's lock."""
    cycle = [_new()]
    cycle.append(cycle)
    del cycle
    with memory._pool._lock:
        collect_garbage()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_a_lock_of_a_lost_thread():
    """A process forked while another of its threads was in the pool; one child in sixty hung."""
    locked, done = threading.Event(), threading.Event()

    def hold():
        with memory._pool._lock:
            locked.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        _new()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert status == 0


@pytest.mark.parametrize("bound", [BIG * 4, 0])
def test_an_interrupt_at_any_line_leaves_a_usable_pool(monkeypatch, bound):
    """A block that was in one table alone made a later result a KeyError."""
    monkeypatch.setattr(memory, "MAX_POOLED_BYTES", bound)

    def interrupt_at(line):
        """Calls of the pool, of which the line of that number, over all of them, is cut off."""
        left = [line]

        def trace(frame, event, _):
            if frame.f_code.co_filename != memory.__file__:
                return None
            if event == "line":
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt
            return trace

        pool = memory._Pool()
        blocks = [pool.acquire(4096) for _ in range(3)]
        sys.settrace(trace)
        try:
            pool.release(blocks.pop())
            pool.release(blocks.pop())
            blocks.append(pool.acquire(4096))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        for _ in range(2):
            first, second = pool.acquire(4096), pool.acquire(4096)
            assert not np.shares_memory(first, second)
            pool.release(first)
            pool.release(second)
        return left[0] > 0

    line = 1
    while not interrupt_at(line):
        line += 1
    assert line > 20


def test_the_pool_is_bounded(monkeypatch):
    free_cached_memory()
    monkeypatch.setattr(memory, "MAX_POOLED_BYTES", BIG * 4 + 8192)
    arrays = [_new() for _ in range(3)]
    del arrays
    assert memory._pool.held <= BIG * 4 + 8192


# --- arenas --------------------------------------------------------------------------------


def test_an_arena_grows_and_says_so():
    arena = Arena()
    arena.reserve(100)
    first, generation = arena.memory, arena.generation
    arena.reserve(50)
    assert arena.memory is first and arena.generation == generation
    arena.reserve(1000)
    assert arena.generation == generation + 1 and arena.memory.nbytes >= 1000
    assert address(arena.memory) % 64 == 0
    assert arena.array(64, (2, 3), "f").shape == (2, 3)


def test_nested_use_gets_another_arena():
    arenas = Arenas()
    outer = arenas.acquire()
    inner = arenas.acquire()
    assert inner is not outer
    arenas.release(inner)
    assert arenas.acquire() is inner
    arenas.release(inner)
    arenas.release(outer)
    assert arenas.acquire() is outer


def test_host_function_may_wait_for_a_call_in_another_thread():
    # Once all plans ran under one lock, and this never came to an end.
    inner = gf.jit(lambda x: jnp.exp(x) @ x)
    seen = []

    def wait_for_another_thread(value):
        thread = threading.Thread(target=lambda: seen.append(np.asarray(inner(value))))
        thread.start()
        thread.join(timeout=60)

    @gf.jit
    def outer(x):
        debug_callback(wait_for_another_thread, x * 2)
        return x + 1

    x = np.eye(3, dtype=np.float32)
    np.testing.assert_array_equal(outer(x), x + 1)
    np.testing.assert_allclose(seen[0], np.exp(2 * x) @ (2 * x), rtol=1e-6)


def test_pool_drops_what_lay_unused_longest(monkeypatch):
    # Sizes that never come back once filled the pool for good.
    monkeypatch.setattr(memory, "MAX_POOLED_BYTES", 3 * 4096)
    pool = memory._Pool()
    for count in (4096, 8192, 4096):
        pool.release(np.empty(count, np.uint8))
    assert pool.held == 3 * 4096
    kept = pool.acquire(8192)
    assert kept.nbytes == 8192 and pool.held == 4096


def _with_temporary(x, w):
    """exp(x) @ w needs exp(x) in memory."""
    return jnp.dot(jnp.exp(x), w)


def test_a_program_survives_the_growth_of_its_arena():
    """Addresses of temporaries are part of a driver; another program may move the arena."""
    f, g = gf.jit(_with_temporary), gf.jit(_with_temporary)
    small, large = np.ones((4, 4), "f"), np.ones((300, 300), "f")
    want = np.full((4, 4), 4 * np.e)
    np.testing.assert_allclose(f(small, small), want, rtol=1e-5)
    np.testing.assert_allclose(g(large, large), np.full((300, 300), 300 * np.e), rtol=1e-5)
    for _ in range(2):
        np.testing.assert_allclose(f(small, small), want, rtol=1e-5)


def test_calls_inside_callbacks_leave_the_outer_temporaries_alone():
    seen = []
    inner = gf.jit(_with_temporary)

    def host(value):
        big = np.zeros((350, 350), "f")
        seen.append((float(value.sum()), float(inner(big, big).sum())))

    def outer(x):
        y = jnp.exp(x)
        debug_callback(host, y)
        return jnp.dot(y, x)

    x = np.ones((5, 5), "f")
    f = gf.jit(outer)
    for _ in range(2):
        np.testing.assert_allclose(f(x), np.full((5, 5), 5 * np.e), rtol=1e-5)
    np.testing.assert_allclose(seen, [(25 * np.e, 0.0)] * 2, rtol=1e-5)


# --- donation in place ---------------------------------------------------------------------

_step = gf.jit(lambda x: x * 2 + 1, donate_argnums=0)


@pytest.mark.parametrize("count", [5, BIG])
def test_donated_memory_is_taken(count):
    x = jnp.arange(count) * 1.0
    place = address(x.data)
    y = _step(x)
    assert x.is_deleted()
    assert address(y.data) == place
    np.testing.assert_array_equal(y, np.arange(count, dtype="f") * 2 + 1)


@pytest.mark.parametrize("count", [5, BIG])
@pytest.mark.parametrize(
    "share",
    [
        lambda x: np.asarray(x),
        lambda x: np.asarray(x)[1:3],
        lambda x: gf.jit(lambda v: v)(x),
        lambda x: memoryview(np.asarray(x)),
        lambda x: gf.jit(lambda v: (v, v))(x)[1],
    ],
    ids=["numpy", "slice", "identity", "memoryview", "twice"],
)
def test_memory_that_others_see_is_not_overwritten(count, share):
    x = jnp.arange(count) * 1.0
    other = share(x)
    before = np.array(other)
    y = _step(x)
    np.testing.assert_array_equal(np.array(other), before)
    np.testing.assert_array_equal(y, np.arange(count, dtype="f") * 2 + 1)


@pytest.mark.parametrize("count", [5, BIG])
def test_equal_outputs_may_be_donated_one_by_one(count):
    a, b = gf.jit(lambda x: (x + 1, x + 1))(np.zeros(count, "f"))
    _step(a)
    np.testing.assert_array_equal(b, np.ones(count))


def test_donated_arrays_are_gone_when_the_host_raises():
    """The first kernel had overwritten x when the callback raised, and x stayed usable."""

    def fail(value):
        raise ValueError("from the host")

    def f(x):
        y = x * 2 + 1
        debug_callback(fail, jnp.sum(y))
        return y

    x = jnp.arange(5.0) * 1
    with pytest.raises(ValueError, match="from the host"):
        gf.jit(f, donate_argnums=0)(x)
    assert x.is_deleted()


def test_residuals_of_donated_values():
    x = jnp.arange(5.0) * 1
    y, pull = gf.vjp(lambda v: jnp.exp(v), x)
    before = np.array(y)
    _step(x)
    np.testing.assert_allclose(pull(np.ones(5, "f"))[0], before, rtol=1e-6)


def test_a_numpy_operand_is_never_overwritten():
    x = np.arange(5, dtype="f")
    _step(x)
    np.testing.assert_array_equal(x, np.arange(5))
