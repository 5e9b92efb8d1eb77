"""Walking through arrays: lazily, over one copy on the host."""

from __future__ import annotations

import random as python_random
import time

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, random
from gpuflow.errors import DeletedArrayError

ROWS = {
    "numbers": lambda: jnp.arange(7.0),
    "integers": lambda: jnp.arange(7, dtype="int8"),
    "truths": lambda: jnp.arange(5) > 2,
    "complex": lambda: jnp.arange(3) * 1j,
    "bfloat16": lambda: jnp.arange(4, dtype="bfloat16"),
    "weak": lambda: lax.full((3,), 2.0),
    "matrix": lambda: jnp.arange(6.0).reshape(2, 3),
    "transposed": lambda: jnp.arange(6.0).reshape(2, 3).T,
    "empty rows": lambda: jnp.zeros((3, 0)),
    "no rows": lambda: jnp.zeros((0, 3)),
    "keys": lambda: random.split(random.key(0), 3),
    "placed": lambda: gf.device_put(jnp.arange(3.0), gf.devices()[0]),
}


def _same(a, b):
    assert type(a) is type(b) and a.aval == b.aval and a.devices() == b.devices()
    assert a.committed == b.committed
    if hasattr(a.dtype, "storage") and a.dtype == random.key(0).dtype:
        a, b = random.key_data(a), random.key_data(b)
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ROWS)
def test_elements_are_what_indexing_gives(name):
    x = ROWS[name]()
    expected = [x[k] for k in range(len(x))]
    for elements, wanted in ((list(x), expected), (list(reversed(x)), expected[::-1])):
        assert len(elements) == len(wanted)
        for a, b in zip(elements, wanted, strict=True):
            _same(a, b)


def test_what_python_does_with_iterables():
    x = jnp.array([3.0, 1.0, 2.0])
    assert [float(v) for v in sorted(x)] == [1, 2, 3]
    assert (float(min(x)), float(max(x)), float(sum(x))) == (1, 3, 6)
    a, *rest = x
    assert float(a) == 3 and len(rest) == 2
    assert [(k, float(v)) for k, v in enumerate(x)] == [(0, 3), (1, 1), (2, 2)]
    assert 2 in x and 5 not in x
    assert float(python_random.Random(0).choice(x)) in (1, 2, 3)
    np.testing.assert_array_equal(np.array(list(x)), [3, 1, 2])
    np.testing.assert_array_equal(jnp.stack(list(x)), [3, 1, 2])
    assert dict(zip("abc", map(float, x), strict=True)) == {"a": 3, "b": 1, "c": 2}


def test_elements_have_memory_of_their_own():
    x = jnp.arange(4.0)
    kept = list(x)
    gf.jit(lambda x: x * 0, donate_argnums=0)(x)
    np.testing.assert_array_equal(jnp.stack(kept), [0, 1, 2, 3])
    # An element that is donated takes nothing from its neighbours.
    gf.jit(lambda v: v + 10, donate_argnums=0)(kept[1])
    assert [float(kept[k]) for k in (0, 2, 3)] == [0, 2, 3]


def test_an_array_that_is_deleted_meanwhile():
    x = jnp.arange(4.0)
    rest = iter(x)
    next(rest)
    x.delete()
    with pytest.raises(DeletedArrayError):
        next(rest)


def test_traced_arrays_unroll():
    x = jnp.arange(6.0).reshape(3, 2)
    expected = x[0] + 2 * x[1] + 4 * x[2]

    def weighted(x):
        return sum(2**k * row for k, row in enumerate(x))

    np.testing.assert_array_equal(gf.jit(weighted)(x), expected)
    np.testing.assert_array_equal(gf.vmap(weighted)(x[None])[0], expected)
    np.testing.assert_array_equal(gf.jit(lambda x: next(reversed(x)))(x), x[2])
    slopes = gf.grad(lambda x: weighted(x).sum())(x)
    np.testing.assert_array_equal(slopes, np.repeat([[1], [2], [4]], 2, axis=1))
    # Rows that nobody asks for are not traced.
    jaxpr = gf.make_jaxpr(lambda x: next(iter(x)))(jnp.ones(1000))
    assert len(jaxpr.jaxpr.eqns) <= 3


@pytest.mark.parametrize("walk", [iter, reversed])
def test_numbers_are_not_walked_through(walk):
    with pytest.raises(TypeError, match=r"must have an axis; got shape \(\)\. Fix: float"):
        walk(jnp.asarray(1.0))


def _seconds(function):
    begin = time.process_time()
    function()
    return time.process_time() - begin


def test_an_element_costs_less_than_adding_two():
    # It cost 80 to 200 us; an eager addition of two numbers takes a few.
    x = jnp.arange(20_000.0)
    a = jnp.asarray(1.0)
    for _ in range(4):  # a machine with other work needs several tries
        pairs = [
            (_seconds(lambda: list(x)), _seconds(lambda: [a + a for _ in range(20_000)]))
            for _ in range(3)
        ]
        walk, adds = (min(times) for times in zip(*pairs, strict=True))
        if walk < adds:
            break
    assert walk < adds


def test_the_first_element_does_not_wait_for_the_others():
    long, short = jnp.zeros(1_000_000), jnp.zeros(10)
    for _ in range(4):
        pairs = [
            (_seconds(lambda: next(iter(long))), _seconds(lambda: list(short))) for _ in range(9)
        ]
        first, ten = (min(times) for times in zip(*pairs, strict=True))
        if first < 3 * ten:
            break
    assert first < 3 * ten


def test_names_of_primitives_are_looked_up_once():
    # Each look-up of lax.squeeze_p made a table of all primitives.
    assert lax.squeeze_p is lax.squeeze_p
    with pytest.raises(AttributeError, match="squeeze_p"):
        lax.squeze_p  # noqa: B018
    for _ in range(4):
        pairs = [
            (
                _seconds(lambda: [lax.squeeze_p for _ in range(1000)]),
                _seconds(lambda: [dict.fromkeys(range(100)) for _ in range(1000)]),
            )
            for _ in range(5)
        ]
        names, tables = (min(times) for times in zip(*pairs, strict=True))
        if names < tables:
            break
    assert names < tables
