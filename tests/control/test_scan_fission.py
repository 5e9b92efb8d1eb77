"""What leaves a scan: fixed equations, products of xs, and sums of products."""

import numpy as np
import pytest
from control_interpreter import interpret

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.passes.program import dce, inline, simplify
from gpuflow.core.jaxpr import ClosedJaxpr, check_jaxpr

WEIGHTS = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
XS = np.random.default_rng(1).normal(size=(5, 2, 6)).astype(np.float32)


def _simplified(function, *args):
    """The program of a function before and after simplification."""
    before = gf.make_jaxpr(function)(*args)
    inlined = ClosedJaxpr(inline(before.jaxpr), before.consts)
    after = ClosedJaxpr(dce(simplify(inlined.jaxpr)), before.consts)
    check_jaxpr(after.jaxpr)
    return inlined, after


def _names(jaxpr):
    return [eqn.primitive.name for eqn in jaxpr.eqns]


def _scan(closed):
    (eqn,) = [eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == "scan"]
    return eqn


def _recurrence(w, u, xs, transform=jnp.exp):
    def step(h, x):
        h = jnp.tanh(h @ w.T + x @ transform(u))
        return h, h

    return jnp.sum(lax.scan(step, jnp.zeros((2, 6)), xs)[1] ** 2)


def _check_same(before, after, *args, rtol=1e-5):
    for a, b in zip(interpret(before, *args), interpret(after, *args), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=1e-5)


def test_products_of_xs_are_made_before_the_loop():
    before, after = _simplified(_recurrence, WEIGHTS, WEIGHTS, XS)
    assert _names(_scan(before).params["jaxpr"].jaxpr).count("dot_general") == 2
    assert _names(_scan(after).params["jaxpr"].jaxpr).count("dot_general") == 1
    assert _names(after.jaxpr).count("dot_general") == 1
    _check_same(before, after, WEIGHTS, WEIGHTS, XS)


def test_fixed_equations_move_in_front():
    _, after = _simplified(_recurrence, WEIGHTS, WEIGHTS, XS)
    assert "exp" in _names(after.jaxpr)
    assert "exp" not in _names(_scan(after).params["jaxpr"].jaxpr)


def test_cheap_fixed_equations_stay():
    """A transposed weight is a view: nothing is gained by storing it."""
    _, after = _simplified(
        lambda w, xs: lax.scan(lambda h, x: (h * w.T[0] + x, None), jnp.zeros((2, 6)), xs)[0],
        WEIGHTS,
        XS,
    )
    assert "transpose" not in _names(after.jaxpr)


def test_cotangents_of_weights_become_one_contraction():
    gradient = gf.grad(lambda w, u, xs: _recurrence(w, u, xs, jnp.asarray), argnums=(0, 1))
    before, after = _simplified(gradient, WEIGHTS, WEIGHTS, XS)
    backward = [e for e in after.jaxpr.eqns if e.primitive.name == "scan"][-1]
    # What is left in the loop is the product that carries the cotangent back.
    assert _names(backward.params["jaxpr"].jaxpr).count("dot_general") == 1
    assert backward.params["num_carry"] == 1
    contractions = [e for e in after.jaxpr.eqns if e.primitive.name == "dot_general"]
    joined = [e for e in contractions if len(e.params["dimension_numbers"][0][0]) == 2]
    assert len(joined) == 2  # over time and batch
    _check_same(before, after, WEIGHTS, WEIGHTS, XS, rtol=1e-4)


def test_what_would_take_much_memory_stays():
    """lax.map goes one by one because the results together are too large."""

    def wide(x):
        return jnp.sum(jnp.outer(x, x) @ jnp.ones((6, 100)))

    _, after = _simplified(lambda xs: lax.map(wide, xs), XS[:, 0])
    assert "dot_general" in _names(_scan(after).params["jaxpr"].jaxpr)


def test_carries_that_are_passed_on_are_constants():
    def step(carry, x):
        h, w, n = carry
        return (h @ w + x, w, n), None

    def run(h, w, xs):
        return lax.scan(step, (h, w, 3), xs)[0]

    before, after = _simplified(run, XS[0], WEIGHTS, XS)
    assert _scan(after).params["num_carry"] == 1
    _check_same(before, after, XS[0], WEIGHTS, XS)


def test_sums_that_something_else_reads_stay():
    def step(total, x):
        total = total + x.T @ x
        return total, jnp.sum(total)

    before, after = _simplified(lambda xs: lax.scan(step, jnp.zeros((6, 6)), xs), XS)
    assert _scan(after).params["num_carry"] == 1
    _check_same(before, after, XS)


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_compiled_gradients_agree_with_an_unrolled_loop(length, reverse):
    xs = XS[:length]

    def unrolled(w, u, xs):
        h, total = jnp.zeros((2, 6)), 0.0
        for k in reversed(range(length)) if reverse else range(length):
            h = jnp.tanh(h @ w.T + xs[k] @ jnp.exp(u))
            total += jnp.sum(h**2)
        return total

    def looped(w, u, xs):
        def step(h, x):
            h = jnp.tanh(h @ w.T + x @ jnp.exp(u))
            return h, h

        _, hs = lax.scan(step, jnp.zeros((2, 6)), xs, reverse=reverse)
        return jnp.sum(hs**2)

    got = gf.jit(gf.grad(looped, argnums=(0, 1, 2)))(WEIGHTS, WEIGHTS, xs)
    want = gf.grad(lambda *args: unrolled(*args) + 0.0 * jnp.sum(args[0]), argnums=(0, 1, 2))(
        WEIGHTS, WEIGHTS, xs
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)


def test_products_of_updated_xs_stay_in_the_loop():
    """An update in place is made by the compiler and has no rule for all elements at once."""

    def step(h, x):
        row = x.at[jnp.array([0])].add(1.0)
        return jnp.tanh(h + row @ row.T), h

    h, ys = gf.jit(lambda xs: lax.scan(step, jnp.zeros((2, 2)), xs))(XS)
    want, wanted = np.zeros((2, 2)), []
    for x in XS.astype(np.float64):
        wanted.append(want)
        row = np.add(x, [[1], [0]])
        want = np.tanh(want + row @ row.T)
    np.testing.assert_allclose(h, want, atol=1e-6)
    np.testing.assert_allclose(ys, np.stack(wanted), atol=1e-6)
