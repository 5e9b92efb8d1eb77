"""jet gives derivatives of functions along curves, compared with Cauchy's integral in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.experimental.jet import jet

ORDER = 4
# Of x(t) = 0.6 + 0.5 t + ..., which is its own Taylor polynomial.
CURVE = [np.array([0.6, 0.4]), *(np.array(c) for c in ([0.5, -0.3], [0.2, 0.4], [-0.6, 0.1]))]
CURVE.append(np.array([0.3, -0.2]))
OTHER = [np.array([1.3, 1.1]), *(np.array(c) for c in ([-0.2, 0.6], [0.3, 0.2], [0.1, -0.5]))]
OTHER.append(np.array([0.2, 0.4]))


@pytest.fixture(autouse=True)
def _in_float64():
    with gf.enable_x64(True):
        yield


def at(curve, t):
    """The curve at a complex number."""
    return sum(c * t**k / math.factorial(k) for k, c in enumerate(curve))


def by_cauchy(function, *curves, radius=0.2, count=64):
    """The derivatives at 0 of ``function`` along curves, by values on a circle."""
    ts = radius * np.exp(2j * np.pi * np.arange(count) / count)
    values = np.stack([function(*(at(curve, t) for curve in curves)) for t in ts])
    terms = np.fft.fft(values, axis=0) / count
    return [math.factorial(k) * terms[k].real / radius**k for k in range(ORDER + 1)]


def found(function, *curves):
    value, series = jet(function, [c[0] for c in curves], [c[1:] for c in curves])
    return [value, *series]


def agree(got, wanted, tolerance=1e-10):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        (jnp.exp, np.exp), (jnp.log, np.log), (jnp.sin, np.sin), (jnp.cos, np.cos),
        (jnp.tan, np.tan), (jnp.tanh, np.tanh), (jnp.sinh, np.sinh), (jnp.cosh, np.cosh),
        (jnp.sqrt, np.sqrt), (lax.rsqrt, lambda x: x**-0.5), (jnp.expm1, np.expm1),
        (jnp.log1p, np.log1p), (jnp.arcsinh, np.arcsinh), (jnp.arctan, np.arctan),
        (jnp.arcsin, np.arcsin), (jnp.arctanh, np.arctanh), (jnp.cbrt, lambda x: x ** (1 / 3)),
        (gf.nn.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        (gf.nn.softplus, lambda x: np.log(1 + np.exp(x))),
        (gf.nn.softmax, lambda x: np.exp(x) / np.exp(x).sum()),
        (lambda x: x**3, lambda x: x**3), (lambda x: x**-2, lambda x: x**-2.0),
        (lambda x: -x[::-1] * 2 + 1, lambda x: -x[::-1] * 2 + 1),
        (jnp.cumprod, np.cumprod), (jnp.prod, np.prod), (jnp.sum, np.sum),
        (jnp.sort, lambda x: x[::-1]),
    ],
)  # fmt: skip
def test_derivatives_of_one_argument(ours, numpys):
    agree(found(ours, CURVE), by_cauchy(numpys, CURVE))


@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        (jnp.multiply, np.multiply),
        (jnp.divide, np.divide),
        (jnp.power, np.power),
        (jnp.dot, np.dot),
        (jnp.outer, np.outer),
        (jnp.subtract, np.subtract),
        (jnp.maximum, lambda x, y: y),
        (lambda x, y: jnp.where(x < y, x, y), lambda x, y: x),
        (
            lambda x, y: jnp.tanh(jnp.outer(x, y) @ jnp.sin(x)),
            lambda x, y: np.tanh(np.outer(x, y) @ np.sin(x)),
        ),
        (
            lambda x, y: jnp.convolve(x, y),
            lambda x, y: np.array([x[0] * y[0], x[0] * y[1] + x[1] * y[0], x[1] * y[1]]),
        ),
        (
            lambda x, y: jnp.linalg.solve(jnp.outer(x, x) + jnp.eye(2), y),
            lambda x, y: np.linalg.solve(np.outer(x, x) + np.eye(2), y),
        ),
    ],
)
def test_derivatives_of_two_arguments(ours, numpys):
    agree(found(ours, CURVE, OTHER), by_cauchy(numpys, CURVE, OTHER))


def test_loops_and_branches():
    def looped(x):
        x, _ = lax.scan(lambda c, _: (jnp.sin(c) * c, None), x, None, length=3)
        x = lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * c[1]), (0, x))[1]
        return lax.cond(x[0] > 5, jnp.exp, jnp.cos, x)

    def plain(x):
        for _ in range(3):
            x = np.sin(x) * x
        return np.cos(x**4)

    agree(found(looped, CURVE), by_cauchy(plain, CURVE))


def test_functions_under_jit_vmap_and_grad():
    inner = gf.jit(gf.vmap(gf.grad(lambda x: jnp.sin(x) * x)))
    wanted = by_cauchy(lambda x: np.cos(x) * x + np.sin(x), CURVE)
    agree(found(inner, CURVE), wanted)
    agree(gf.jit(lambda *c: found(inner, c))(*CURVE), wanted)
    agree(gf.vmap(lambda *c: found(lambda x: jnp.cos(x) * x + jnp.sin(x), c))(*CURVE), wanted)


def test_jet_is_differentiated():
    def third(x):
        return jet(jnp.sin, (x,), ((1.0, 0.0, 0.0),))[1][2]

    np.testing.assert_allclose(gf.grad(third)(0.3), math.sin(0.3), rtol=1e-12)


def test_rules_of_users():
    @gf.custom_jvp
    def twice(x):
        return 2.0 * x

    twice.defjvp(lambda x, t: (twice(x[0]), 5.0 * jnp.cos(x[0]) * t[0]))
    _, (first, second) = jet(twice, (0.3,), ((1.0, 0.0),))
    agree([first, second], [5 * math.cos(0.3), -5 * math.sin(0.3)])

    @gf.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, ct: (ct * 0,))
    agree(jet(cube, (2.0,), ((1.0, 0.0),))[1], [12.0, 12.0])
    agree(jet(gf.checkpoint(jnp.exp), (0.0,), ((1.0, 0.0),))[1], [1.0, 1.0])


def test_trees_constants_and_integers_come_back():
    def function(x):
        return {"a": x * x, "b": (jnp.argmax(x), 3.0, jnp.floor(x))}

    value, series = jet(function, (CURVE[0],), (CURVE[1:3],))
    assert int(value["b"][0]) == 0 and float(value["b"][1]) == 3.0
    agree(series["a"], [2 * CURVE[0] * CURVE[1], 2 * CURVE[1] ** 2 + 2 * CURVE[0] * CURVE[2]])
    assert series["b"][0][0].dtype == value["b"][0].dtype
    agree(series["b"][1], [0.0, 0.0])
    agree(series["b"][2], [[0.0, 0.0], [0.0, 0.0]])


def test_coefficients_in_place_of_derivatives():
    value, series = jet(jnp.exp, (0.0,), ([1.0, 0.0, 0.0],), factorial_scaled=False)
    agree([value, *series], [1.0, 1.0, 1 / 2, 1 / 6])


def test_work_grows_as_a_power_of_the_order():
    # The cube of the order at most; nested jvp doubles the program with each one.
    def count(function, order):
        terms = [1.0] + [0.0] * (order - 1)
        program = gf.make_jaxpr(lambda x: jet(function, (x,), (terms,)))(0.3)
        return len(program.jaxpr.eqns)

    for function in (jnp.tanh, lambda x: jnp.sin(x) / (1 + x * x), lambda x: jnp.exp(x) ** 2.5):
        assert count(function, 10) < 16 * count(function, 4)


def test_effects_happen_once(capsys):
    def function(x):
        gf.debug.print("here {}", x)
        return x * x

    jet(function, (2.0,), ((1.0, 0.0),))
    gf.effects_barrier()
    assert capsys.readouterr().out == "here 2.0\n"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: jet(jnp.add, (1.0, 2.0), ((1.0,), (1.0, 0.0))), r"got \[1, 2\]"),
        (lambda: jet(jnp.add, (1.0, 2.0), ((1.0,),)), "each of 2 arguments"),
        (lambda: jet(jnp.sin, ([1.0],), ((1.0,),)), "must be an array; got list"),
        (lambda: jet(jnp.sin, (1.0,), ((jnp.ones(2),),)), "derivative 1 of argument 0"),
    ],
)
def test_wrong_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_integers_are_no_curves():
    with pytest.raises(TypeError, match="must be of floats; got i"):
        jet(jnp.sin, (1,), ((1.0,),))
