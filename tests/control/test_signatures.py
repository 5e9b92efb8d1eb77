"""A jitted function remembers the signatures used last, and gives their memory back."""

import tracemalloc
import weakref

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.garbage import collect_garbage
from gpuflow.control import programs, signatures


@pytest.fixture
def few(monkeypatch):
    """Functions made then remember 16 signatures."""
    monkeypatch.setattr(signatures, "MAX_SIGNATURES", 16)
    monkeypatch.setattr(signatures, "_AGE", 2)


def counted():
    """A jitted function, and the sizes for which it was traced."""
    traced = []

    @gf.jit
    def f(x):
        traced.append(x.shape[0])
        return x + 1

    return f, traced


@pytest.mark.parametrize("kind", [jnp.ones, lambda n: np.ones(n, np.float32)])
def test_the_number_of_signatures_is_bounded(few, kind):
    """It grew by 10 kB a shape, without end."""
    f, traced = counted()
    for size in range(1, 100):
        assert f(kind(size)).shape == (size,)
        assert f._cache_size() <= 16
        assert sum(len(form.entries) for form in f._forms) <= 16
    assert traced == list(range(1, 100))
    f(kind(99))
    f(kind(1))
    assert traced[-1] == 1 and len(traced) == 100


def test_what_is_in_use_stays_though_short_ways_leave_no_trace(few):
    f, traced = counted()
    used = jnp.ones(1000)
    for size in range(1, 200):
        f(used)
        f(jnp.ones(size))
    assert traced.count(1000) == 1 and len(traced) == 200


def test_static_arguments_are_bounded_too(few):
    f = gf.jit(lambda x, k: x * k, static_argnums=1)
    for k in range(100):
        assert f(2.0, k) == 2.0 * k
        assert f._cache_size() <= 16


def test_bodies_of_loops_are_bounded(monkeypatch):
    monkeypatch.setattr(programs, "_MAX_PROGRAMS", 8)
    body, condition = (lambda s: s + 1), (lambda s: s[0] < 3)
    for size in range(1, 50):
        np.testing.assert_array_equal(
            lax.while_loop(condition, body, np.zeros(size, np.float32)), np.full(size, 3)
        )
        assert len(programs._programs[body]) <= 8
    owner = weakref.ref(body)
    del body
    collect_garbage()
    assert owner() is None


def entries_of(f):
    return [weakref.ref(known.entry.jaxpr.jaxpr) for known in f._signatures._values.values()]


@pytest.mark.parametrize("how", ["del", "clear_caches", "clear_cache"])
def test_what_is_forgotten_is_freed(how):
    f, _ = counted()
    for size in range(1, 30):
        f(jnp.ones(size))
    kept, function = entries_of(f), weakref.ref(f)
    assert len(kept) == 29 and all(one() is not None for one in kept)
    if how == "del":
        del f
    elif how == "clear_cache":
        f.clear_cache()
    else:
        gf.clear_caches()
    collect_garbage()
    assert all(one() is None for one in kept)
    assert (function() is None) == (how == "del")


def test_a_thousand_shapes_and_back():
    """Deleting a function gives back what its signatures took, but for some small tables."""

    def grow(function, sizes):
        for size in sizes:
            function(jnp.ones(size))

    grow(gf.jit(lambda x: jnp.sin(x).sum() + x[0]), range(5, 30))
    collect_garbage()
    tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        f = gf.jit(lambda x: jnp.sin(x).sum() + x[0])
        grow(f, range(1000, 1300))
        collect_garbage()
        full = tracemalloc.get_traced_memory()[0] - before
        del f
        collect_garbage()
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # 12 kB each while it lives; interned types and tables of at most 4096 rows stay.
    assert full > 300 * 4000 and left < 0.35 * full
