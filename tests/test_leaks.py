"""checking_leaks: every transformation says that a tracer outlives it; what is clean is silent."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.experimental.checkify import checkify


@pytest.fixture(autouse=True, scope="module")
def small_heap():
    """Every check collects garbage: what other tests left is not to be looked through each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


TRANSFORMS = {
    "jit": lambda f: gf.jit(f)(1.0),
    "grad": lambda f: gf.grad(f)(1.0),
    "jvp": lambda f: gf.jvp(f, (1.0,), (1.0,)),
    "linearize": lambda f: gf.linearize(f, 1.0),
    "hessian": lambda f: gf.hessian(f)(1.0),
    "vmap": lambda f: gf.vmap(f)(jnp.ones(2)),
    "pmap": lambda f: gf.pmap(f)(jnp.ones(1)),
    "checkpoint": lambda f: gf.checkpoint(f)(1.0),
    "make_jaxpr": lambda f: gf.make_jaxpr(f)(1.0),
    "eval_shape": lambda f: gf.eval_shape(f, 1.0),
    "scan": lambda f: lax.scan(lambda c, x: (f(c), x), 1.0, jnp.ones(3)),
    "while_loop": lambda f: lax.while_loop(lambda c: c < 3, lambda c: f(c) + 3, 1.0),
    "cond": lambda f: lax.cond(jnp.array(True), f, lambda x: x, 1.0),
    "checkify": lambda f: checkify(f)(jnp.ones(())),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("leaks", ["argument", "result"])
def test_leaks_are_found(transform, leaks):
    kept = []

    def f(x):
        y = jnp.sin(x)
        kept.append(x if leaks == "argument" else y)
        return y

    with (
        gf.checking_leaks(),
        pytest.raises(gf.errors.UnexpectedTracerError, match=r"outlive it; got .*Fix: return"),
    ):
        TRANSFORMS[transform](f)
    TRANSFORMS[transform](f)  # without the check nothing is said


def test_the_origin_is_named():
    kept = []

    def f(weights):
        kept.append(jnp.sin(weights))
        return weights

    with (
        gf.checking_leaks(),
        pytest.raises(
            gf.errors.UnexpectedTracerError,
            match=(
                r"made at .*test_leaks\.py:\d+.* from the argument weights of f, which is still"
            ),
        ),
    ):
        gf.jit(f)(1.0)


def scanned(x):
    return lax.scan(lambda c, y: (jnp.sin(c) * y, c), x, jnp.arange(3.0))[0]


product = gf.custom_jvp(lambda x, y: x * y)
product.defjvp(lambda p, t: (product(*p), p[0] * t[1] + p[1] * t[0]))
other = gf.custom_vjp(lambda x, y: x * y)
other.defvjp(lambda x, y: (other(x, y), (x, y)), lambda r, g: (r[1] * g, r[0] * g))


def in_a_cycle(x):
    """A tracer that nobody can reach any more, until the garbage collector runs."""
    cycle = [x]
    cycle.append(cycle)
    return x * 2


CLEAN = {
    "scan": scanned,
    "jit": gf.jit(scanned),
    "cond": lambda x: lax.cond(x > 0, scanned, jnp.cos, x),
    "checkpoint": gf.checkpoint(scanned),
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda i, c: c * x, x),
    "custom_jvp": lambda x: product(x, jnp.sin(x)),
    "custom_vjp": lambda x: other(x, jnp.sin(x)),
    "linearize": lambda x: gf.linearize(scanned, x)[1](1.0),
    "vjp": lambda x: gf.vjp(scanned, x)[1](1.0)[0],
    "cycle": in_a_cycle,
    "ref": lambda x: gf.freeze(gf.new_ref(x)) * x,
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_clean_stays_silent(name):
    f = CLEAN[name]
    with gf.checking_leaks():
        gf.jit(f)(0.5)
        gf.jit(gf.grad(f))(0.5)
        gf.jacrev(gf.jacrev(f))(0.5)
        gf.vmap(gf.grad(f))(jnp.ones(2))
        gf.grad(lambda x: gf.vmap(f)(x).sum())(jnp.ones(2))


def test_a_checkpointed_function_holds_no_tracers():
    """Its cache of functions for static arguments held the arguments of the first call."""
    f = gf.checkpoint(lambda x, n: x * n, static_argnums=1)
    with gf.checking_leaks():
        np.testing.assert_array_equal(gf.jit(lambda x: f(x, 2))(3.0), 6.0)
