"""Objects that say with ``__jax_array__`` which array they are."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, nn


class Boxed:
    """Holds an array, and has no other way to tell it."""

    def __init__(self, value):
        self.value = jnp.asarray(value)

    def __jax_array__(self):
        return self.value


class Opaque:
    """Has no array to tell."""


V = np.array([1.0, 2.0, 3.0], np.float32)
M = np.array([[2.0, 1.0], [0.5, 3.0]], np.float32)

OPERATORS = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a // b,
    lambda a, b: a % b,
    lambda a, b: a**b,
    lambda a, b: a @ b,
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a >= b,
]


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_take_them_on_both_sides(operator):
    x = jnp.asarray(V[::-1].copy())
    np.testing.assert_array_equal(operator(x, Boxed(V)), operator(x, jnp.asarray(V)))
    np.testing.assert_array_equal(operator(Boxed(V), x), operator(jnp.asarray(V), x))


FUNCTIONS = {
    "add": (lambda v: jnp.add(v, 1), V + 1),
    "add to": (lambda v: jnp.add(1, v), V + 1),
    "multiply": (lambda v: jnp.multiply(v, v), V * V),
    "sin": (jnp.sin, np.sin(V)),
    "sum": (jnp.sum, 6.0),
    "mean": (jnp.mean, 2.0),
    "var": (jnp.var, V.var()),
    "max": (jnp.max, 3.0),
    "argmax": (jnp.argmax, 2),
    "cumsum": (jnp.cumsum, V.cumsum()),
    "dot": (lambda v: jnp.dot(v, v), 14.0),
    "matmul": (lambda v: jnp.matmul(v, V), 14.0),
    "einsum": (lambda v: jnp.einsum("i,j", v, V), np.outer(V, V)),
    "where": (lambda v: jnp.where(V > 1, v, 0), [0, 2, 3]),
    "clip": (lambda v: jnp.clip(v, Boxed(1.5), 2.5), [1.5, 2, 2.5]),
    "concatenate": (lambda v: jnp.concatenate([v, V]), [*V, *V]),
    "stack": (lambda v: jnp.stack([v, v]), [V, V]),
    "split": (lambda v: jnp.split(v, 3)[1], [2]),
    "asarray": (jnp.asarray, V),
    "asarray of a list": (lambda v: jnp.asarray([v, V]), [V, V]),
    "array of lists": (lambda v: jnp.array([[v], [v]]), [[V], [V]]),
    "reshape": (lambda v: jnp.reshape(v, (3, 1)), V[:, None]),
    "ravel": (jnp.ravel, V),
    "transpose": (jnp.transpose, V),
    "expand_dims": (lambda v: jnp.expand_dims(v, 0), V[None]),
    "moveaxis": (lambda v: jnp.moveaxis(v, 0, 0), V),
    "flip": (jnp.flip, V[::-1]),
    "broadcast_to": (lambda v: jnp.broadcast_to(v, (2, 3)), [V, V]),
    "atleast_2d": (jnp.atleast_2d, V[None]),
    "zeros_like": (jnp.zeros_like, np.zeros(3)),
    "full_like": (lambda v: jnp.full_like(v, Boxed(4.0)), np.full(3, 4.0)),
    "sort": (lambda v: jnp.sort(v, descending=True), V[::-1]),
    "take": (lambda v: jnp.take(v, Boxed(1)), 2.0),
    "tile": (lambda v: jnp.tile(v, 2), [*V, *V]),
    "diag": (jnp.diag, np.diag(V)),
    "triu": (lambda v: jnp.triu(Boxed(M)), np.triu(M)),
    "astype": (lambda v: jnp.astype(v, int), [1, 2, 3]),
    "power": (lambda v: jnp.power(v, 2), V**2),
    "isclose": (lambda v: jnp.isclose(v, V), [True] * 3),
    "logical_not": (jnp.logical_not, [False] * 3),
    "solve": (lambda v: jnp.linalg.solve(Boxed(M), Boxed(V[:2])), np.linalg.solve(M, V[:2])),
    "fft": (jnp.fft.fft, np.fft.fft(V)),
    "relu": (nn.relu, V),
    "softmax": (nn.softmax, np.exp(V) / np.exp(V).sum()),
    "at.set": (lambda v: jnp.zeros(3).at[:].set(v), V),
    "at.add": (lambda v: jnp.ones(3).at[1].add(Boxed(2.0)), [1, 3, 1]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_arrays_take_them(name):
    function, expected = FUNCTIONS[name]
    # float32 arithmetic of a few operations
    np.testing.assert_allclose(function(Boxed(V)), expected, rtol=1e-5, atol=1e-6)


def test_the_array_may_be_traced():
    def f(x):
        box = Boxed(x)
        return jnp.sum(jnp.sin(box)) + (x * box).sum() + (box @ x)

    expected = np.cos(V) + 4 * V
    np.testing.assert_allclose(gf.grad(f)(jnp.asarray(V)), expected, rtol=1e-6)
    np.testing.assert_allclose(gf.jit(gf.grad(f))(V), expected, rtol=1e-6)
    rows = gf.vmap(lambda x: jnp.multiply(Boxed(x), 2) + Boxed(x))(jnp.asarray(M))
    np.testing.assert_allclose(rows, 3 * M)


def test_objects_whose_attributes_are_those_of_the_array():
    """Variables of flax.nnx are such: they have an aval, and are no array nevertheless."""

    class Proxy(Boxed):
        def __getattr__(self, name):
            return getattr(self.__dict__["value"], name)

    def f(x):
        return jnp.sin(Proxy(x)) + jnp.add(Proxy(x), Proxy(x))

    np.testing.assert_allclose(f(V), np.sin(V) + 2 * V, rtol=1e-6)
    np.testing.assert_allclose(gf.jit(f)(V), np.sin(V) + 2 * V, rtol=1e-6)


def test_sizes_are_asked_of_them():
    assert jnp.shape(Boxed(M)) == (2, 2) and jnp.ndim(Boxed(M)) == 2 and jnp.size(Boxed(M)) == 4


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match=r"\[add\] operands must be arrays or numbers; got Opaque"):
        jnp.add(Boxed(V), Opaque())
    with pytest.raises(TypeError, match="unsupported operand type"):
        jnp.asarray(V) + Opaque()
    with pytest.raises(TypeError, match=r"\[array\] operands must be arrays or num.*Opaque"):
        jnp.asarray([Boxed(1.0), Opaque()])


TRANSFORMED = {
    "jit": lambda box: gf.jit(lambda x: x + 1)(box),
    "grad": lambda box: gf.grad(lambda x: jnp.sum(x))(box),
    "vmap": lambda box: gf.vmap(lambda x: x + 1)(box),
    "jvp": lambda box: gf.jvp(jnp.sin, (box,), (box,)),
    "vjp": lambda box: gf.vjp(jnp.sin, box),
    "make_jaxpr": lambda box: gf.make_jaxpr(jnp.sin)(box),
    "result of jit": lambda box: gf.jit(lambda x: box)(1.0),
    "checkpoint": lambda box: gf.checkpoint(jnp.sin)(box),
    "scan": lambda box: lax.scan(lambda c, x: (c, x), 0.0, box),
    "carry": lambda box: lax.fori_loop(0, 3, lambda i, c: c + 1, box),
    "while_loop": lambda box: lax.while_loop(lambda c: False, lambda c: c, box),
    "cond": lambda box: lax.cond(True, lambda c: c, lambda c: c, box),
    "lax.add": lambda box: lax.add(box, box),
    "lax.sin": lambda box: lax.sin(box),
    "device_put": gf.device_put,
    "typeof": gf.typeof,
    "index": lambda box: jnp.arange(3)[box],
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_and_lax_refuse_them(name):
    """As JAX 0.10 does, where it is a ValueError."""
    with pytest.raises((TypeError, IndexError), match="Boxed"):
        TRANSFORMED[name](Boxed(V))
