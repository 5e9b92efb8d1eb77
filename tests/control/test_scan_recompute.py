"""What the backward loop of a scan computes again, and what is stacked for it."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
from gpuflow import lax
from gpuflow import numpy as jnp

N, TURNS = 4, 7


def stacks(body, *operands):
    """The types of what the first scan of a gradient stacks for the second one."""

    def loss(*operands):
        (carry, ys) = lax.scan(lambda c, x: body(c, x, *operands[2:]), *operands[:2])
        return sum(leaf.sum() for leaf in gf.tree.leaves((carry, ys)))

    arguments = tuple(range(len(operands)))
    scans = [
        eqn
        for eqn in gf.make_jaxpr(gf.grad(loss, arguments))(*operands).eqns
        if eqn.primitive.name == "scan"
    ]
    read = {atom for atom in scans[1].inputs if not hasattr(atom, "val")}
    return [str(var.aval) for var in scans[0].outputs if var in read]


def numbers(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape), jnp.float32)


def cubes(c, x):
    y = c * c * x
    z = y * c + (c - x) * y
    return z * z * 1e-3, None


def test_products_follow_from_the_carry():
    assert stacks(cubes, numbers(N), numbers(TURNS, N)) == [f"f32[{TURNS},{N}]"]


def test_series_are_stacked_and_what_follows_from_them_is_not():
    def body(c, x):
        wave = jnp.sin(c)  # whose derivative reads a cosine
        return wave * wave * c * x + wave * x * c, None

    # The sine, the cosine and the carry.
    assert stacks(body, numbers(N), numbers(TURNS, N)) == [f"f32[{TURNS},{N}]"] * 3


def test_products_of_matrices_are_no_work_to_do_twice():
    def body(c, x, w):
        made = c @ w
        return made * made * x * c, None

    # The product, and the carry, which its weights' derivative reads.
    found = stacks(body, numbers(N), numbers(TURNS, N), numbers(N, N))
    assert found == [f"f32[{TURNS},{N}]"] * 2


def test_a_large_carry_is_not_stacked_in_place_of_a_small_residual():
    def body(c, x):
        part = c[:2] * x
        return c.at[:2].set(0.5 * part * part), None

    large, small = 1000, 2
    found = stacks(body, numbers(large), numbers(TURNS, small))
    assert found and all("1000" not in aval for aval in found)


def test_long_chains_are_stacked():
    """Where computing again takes longer than reading."""

    def body(c, x):
        chain = c
        for _ in range(40):
            chain = chain + x * 1e-3
        return c * chain, None

    found = stacks(body, numbers(N), numbers(TURNS, N))
    assert found == [f"f32[{TURNS},{N}]"] * 2
    jaxpr = str(
        gf.make_jaxpr(gf.grad(lambda c: lax.scan(body, c, numbers(TURNS, N))[0].sum()))(numbers(N))
    )
    # Forty in the evaluation, none in the loop back.
    assert jaxpr.count("= add ") < 50


@pytest.mark.parametrize("reverse", [False, True])
def test_derivatives_are_those_of_the_unrolled_loop(reverse):
    def body(c, x, p):
        y = c * p[0] + x
        z = y * c * p[1] - jnp.sin(y) * c
        return 0.3 * z + 0.5 * c, y * z

    def scanned(c, xs, p):
        carry, ys = lax.scan(lambda c, x: body(c, x, p), c, xs, reverse=reverse)
        return (carry**2).sum() + (ys * carry).sum()

    def written(c, xs, p):
        ys = {}
        for k in reversed(range(TURNS)) if reverse else range(TURNS):
            c, ys[k] = body(c, xs[k], p)
        return (c**2).sum() + (jnp.stack([ys[k] for k in range(TURNS)]) * c).sum()

    with gf.enable_x64():
        operands = [
            jnp.asarray(np.random.default_rng(k).uniform(0.5, 1.5, shape))
            for k, shape in enumerate([(N,), (TURNS, N), (2,)])
        ]
        got = gf.jit(gf.grad(scanned, (0, 1, 2)))(*operands)
        want = gf.grad(written, (0, 1, 2))(*operands)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        second = gf.jit(gf.jacfwd(gf.grad(scanned, 2), 2))(*operands)
        again = gf.jacrev(gf.grad(written, 2), 2)(*operands)
        np.testing.assert_allclose(second, again, rtol=1e-11)
        np.testing.assert_allclose(gf.jacrev(gf.grad(scanned, 2), 2)(*operands), again, rtol=1e-11)
