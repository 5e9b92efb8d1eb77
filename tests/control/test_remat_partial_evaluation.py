"""Policies of checkpoint look into loops, branches and other checkpointed functions.

The numbers of products are JAX 0.10.2's for the same programs. A scan under ``checkpoint_dots``
once was computed again as a whole, with 9 products in its backward pass in place of 6.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.ad_checkpoint import checkpoint_name

# Kernels that hold whole loops have tests of their own, and take long to build.
pytestmark = pytest.mark.usefixtures("loops_of_steps")

policies = gf.checkpoint_policies
POLICIES = {
    "none": None,
    "dots": policies.checkpoint_dots,
    "no batch": policies.dots_with_no_batch_dims_saveable,
    "everything": policies.everything_saveable,
}
RNG = np.random.RandomState(0)
X = RNG.randn(2, 3).astype(np.float32)
W = RNG.randn(4, 3, 3).astype(np.float32) / 2


def layer(x, w):
    return jnp.sin(jnp.sin(x @ w) @ w)


def scanned(x, ws):
    return lax.scan(lambda x, w: (layer(x, w) @ w, None), x, ws)[0].sum()


def reversed_scan(x, ws):
    return lax.scan(lambda x, w: (layer(x, w), x), x, ws, reverse=True)[1].sum()


def nested_scan(x, ws):
    def outer(x, _):
        return lax.scan(lambda x, w: (layer(x, w) @ w, None), x, ws)

    return lax.scan(outer, x, None, length=3)[0].sum()


def branch(x, ws):
    return lax.cond(x[0, 0] > 0, lambda x: layer(x, ws[0]).sum(), lambda x: x.sum(), x)


def both_branches(x, ws):
    """The branches store products of different shapes, and different numbers of them."""
    return lax.cond(
        x[0, 0] > 100,
        lambda x: layer(x, ws[0]).sum(),
        lambda x: jnp.sin(jnp.sin(jnp.sin(x.T @ x) @ ws[1]) @ ws[2]).sum(),
        x,
    )


def scan_of_branch(x, ws):
    def body(x, w):
        return lax.cond(x[0, 0] > 0, lambda x: layer(x, w) @ w, lambda x: x, x), None

    return lax.scan(body, x, ws)[0].sum()


def loop(x, ws):
    return lax.fori_loop(0, 4, lambda k, x: layer(x, jnp.asarray(ws)[k]), x).sum()


def mapped(x, ws):
    return lax.map(lambda w: layer(x, w), ws).sum()


def jitted(x, ws):
    return jnp.sin(gf.jit(layer)(x, ws[0]) @ ws[1]).sum()


def inner_checkpoint(x, ws):
    return jnp.sin(gf.checkpoint(layer)(x, ws[0]) @ ws[1]).sum()


def scan_of_checkpoint(x, ws):
    block = gf.checkpoint(lambda x, w: (layer(x, w), None))
    return lax.scan(block, x, ws)[0].sum()


# The products of the whole gradient, without a policy and with one that stores them.
PROGRAMS = {
    scanned: (12, 9),
    nested_scan: (12, 9),
    branch: (8, 6),
    scan_of_branch: (12, 9),
    loop: (8, 6),
    mapped: (8, 6),
    jitted: (12, 9),
    inner_checkpoint: (14, 9),
    scan_of_checkpoint: (10, 6),
}


def products(jaxpr):
    count = 0
    for eqn in jaxpr.eqns:
        count += eqn.primitive.name == "dot_general"
        for program in eqn.primitive.subjaxprs(eqn.params) if eqn.primitive.subjaxprs else ():
            count += products(program.jaxpr)
    return count


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_products_are_stored_where_the_policy_says_so(program, policy):
    kept = gf.checkpoint(program, policy=POLICIES[policy])
    gradient = gf.grad(kept, (0, 1))
    assert products(gf.make_jaxpr(gradient)(X, W).jaxpr) == PROGRAMS[program][policy != "none"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "program", [*PROGRAMS, reversed_scan, both_branches], ids=lambda f: f.__name__
)
def test_gradients_are_the_same(program, policy):
    kept = gf.checkpoint(program, policy=POLICIES[policy])
    # The same operations, which the compiler may fuse in another order.
    close = partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-5)
    want = gf.value_and_grad(program, (0, 1))(X, W)
    for got in (
        gf.value_and_grad(kept, (0, 1))(X, W),
        gf.jit(gf.value_and_grad(kept, (0, 1)))(X, W),
        gf.value_and_grad(gf.jit(kept), (0, 1))(X, W),
    ):
        gf.tree.map(close, got, want)
    xs = np.stack([X, -X, X * 2])
    several = gf.vmap(gf.grad(kept), (0, None))(xs, W)
    gf.tree.map(close, several, np.stack([gf.grad(program)(x, W) for x in xs]))
    total = gf.grad(lambda x: gf.vmap(kept, (0, None))(x, W).sum())(xs)
    gf.tree.map(close, total, several)


@pytest.mark.parametrize("program", [scanned, branch], ids=lambda f: f.__name__)
def test_second_derivatives(program):
    kept = gf.checkpoint(program, policy=policies.checkpoint_dots)

    def twice(f):
        return gf.grad(lambda x: (gf.grad(f)(x, W) ** 2).sum())(X)

    np.testing.assert_allclose(twice(kept), twice(program), rtol=1e-3, atol=1e-4)


def test_what_runs_has_fewer_products():
    """Floating-point operations of the compiled gradient, in which a product is most of all."""

    def flops(policy):
        gradient = gf.value_and_grad(gf.checkpoint(scanned, policy=policy), (0, 1))
        x, ws = np.ones((64, 64), "f"), np.ones((4, 64, 64), "f")
        return gf.jit(gradient).lower(x, ws).compile().cost_analysis()["flops"]

    ratio = flops(policies.checkpoint_dots) / flops(None)
    assert abs(ratio - 9 / 12) < 0.02


def test_names_inside_of_a_loop_are_stored():
    def named(x, ws):
        def body(x, w):
            return jnp.sin(checkpoint_name(x @ w, "kept") @ w), None

        return lax.scan(body, x, ws)[0].sum()

    for names, count in ((("kept",), 7), (("other",), 8)):
        policy = policies.save_only_these_names(*names)
        gradient = gf.grad(gf.checkpoint(named, policy=policy), (0, 1))
        assert products(gf.make_jaxpr(gradient)(X, W).jaxpr) == count


def test_an_inner_policy_is_kept_inside():
    """What only the inner function stores is computed again for it, once."""

    def program(x, ws):
        inner = gf.checkpoint(layer, policy=policies.checkpoint_dots)
        return jnp.sin(inner(x, ws[0]) @ ws[1]).sum()

    never = policies.save_only_these_names("nothing")
    kept = gf.checkpoint(program, policy=never)
    np.testing.assert_allclose(gf.grad(kept)(X, W), gf.grad(program)(X, W), rtol=2e-4, atol=1e-5)
