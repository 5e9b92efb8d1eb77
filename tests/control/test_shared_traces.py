"""What is jitted twice is traced once, unless what it reads from outside is something else."""

import weakref

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.garbage import collect_garbage

X = jnp.arange(3.0)
SCALE = 2.0


def counted(function):
    """A function of this form, each with a counter of its own."""

    def f(x):
        f.calls += 1
        return function(x)

    f.calls = 0
    return f


def test_two_jits_of_a_function_share_its_trace():
    f = counted(lambda x: jnp.sin(x) * 2)
    np.testing.assert_array_equal(gf.jit(f)(X), gf.jit(f)(X))
    gf.jit(f).lower(X).compile()
    gf.vmap(gf.jit(f))(X[None])  # mapped by rules
    assert f.calls == 1
    gf.jit(f)(X.astype(jnp.int32))
    assert f.calls == 2


def test_shapes_are_found_once():
    f = counted(lambda x: jnp.outer(x, x))
    for _ in range(2):
        assert gf.eval_shape(f, X).shape == (3, 3)
        assert gf.eval_shape(f, x=X[:2]).shape == (2, 2)
    assert f.calls == 2


def test_structures_without_a_hash_have_shapes_too():
    unhashable = type("Unhashable", (), {"__hash__": None})
    gf.tree_util.register_pytree_node(
        unhashable, lambda node: ((X,), [1]), lambda aux, children: unhashable()
    )
    for _ in range(2):
        assert gf.eval_shape(lambda node: X * 2, unhashable()).shape == (3,)


def test_other_options_share_it_too():
    f = counted(lambda x: x * 3)
    gf.jit(f)(X)
    taken = X + 1
    np.testing.assert_array_equal(gf.jit(f, donate_argnums=0)(taken), 3 * (np.arange(3) + 1))
    assert f.calls == 1 and taken.is_deleted()
    np.testing.assert_array_equal(gf.jit(f)(X), 3 * np.arange(3))
    assert gf.jit(f, inline=True)(X)[2] == 6 and f.calls == 1


def test_static_arguments_are_a_part_of_what_is_shared():
    calls = []

    def f(x, n):
        calls.append(n)
        return x * n

    for n in (2, 3, 2, 2.0, True):
        assert gf.jit(f, static_argnums=1)(X, n)[2] == 2 * n
        assert gf.jit(f, static_argnames="n")(X, n=n)[2] == 2 * n
    gf.jit(f)(X, 2)
    assert len(calls) == 9  # once for each of four and for each way to pass them, and traced


def test_another_global_closure_or_default_is_traced_again(monkeypatch):
    def scaled(x):
        return x * SCALE

    def inside(x):
        return gf.vmap(lambda y: y * SCALE)(x)

    shift = 1.0

    def shifted(x, by=10.0):
        return x + shift + by

    for f in (scaled, inside):
        assert gf.jit(f)(X)[2] == 4
    assert gf.jit(shifted)(X)[0] == 11
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    shift = 2.0
    for f in (scaled, inside):
        assert gf.jit(f)(X)[2] == 10
    assert gf.jit(shifted)(X)[0] == 12
    shifted.__defaults__ = (20.0,)
    assert gf.jit(shifted)(X)[0] == 22


def test_what_is_gone_is_not_the_same_as_none():
    chosen = type("Chosen", (), {"by": 2.0})()

    def f(x):
        return x * (1.0 if chosen is None else chosen.by)

    assert gf.jit(f)(X)[2] == 4
    chosen = None
    collect_garbage()
    assert gf.jit(f)(X)[2] == 2


def test_numpy_arrays_may_have_been_written_to():
    weights = np.ones(3, np.float32)

    def f(x):
        return x + weights

    assert gf.jit(f)(X)[0] == 1
    weights[:] = 7
    assert gf.jit(f)(X)[0] == 7


def test_methods_and_objects_are_traced_for_each_jit():
    class Scaled:
        by = 2.0

        def __call__(self, x):
            return x * self.by

    scaled = Scaled()
    for by in (2.0, 3.0):
        scaled.by = by
        assert gf.jit(scaled)(X)[2] == 2 * by
        assert gf.jit(scaled.__call__)(X)[2] == 2 * by


def test_traced_values_are_not_kept():
    def outer(y):
        def inner(x):
            return x * y

        return gf.jit(inner)(y) + gf.jit(inner)(2 * y)

    np.testing.assert_array_equal(gf.jit(outer)(X), 3 * np.arange(3) ** 2)
    np.testing.assert_allclose(gf.grad(lambda y: outer(y).sum())(X), 6 * np.arange(3))


@pytest.mark.parametrize(
    "clear", [lambda f: gf.clear_caches(), lambda f: gf.jit(f).clear_cache()], ids=["all", "one"]
)
def test_caches_can_be_cleared(clear):
    f = counted(lambda x: x + 1)
    gf.jit(f)(X)
    clear(f)
    gf.jit(f)(X)
    assert f.calls == 2


def test_functions_that_name_themselves_die():
    def make():
        array = jnp.arange(1000.0)

        def f(x, depth=1):
            return x + array[:3] if depth == 0 else f(x, 0)

        gf.jit(f)(X)
        return weakref.ref(f), weakref.ref(array)

    refs = make()
    collect_garbage()
    assert [ref() for ref in refs] == [None, None]
