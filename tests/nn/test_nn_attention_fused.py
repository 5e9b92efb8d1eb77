"""Derivatives and mapping of fused attention, with its ops run by NumPy on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import nn
from gpuflow.nn import attention_fused

RNG = np.random.default_rng(0)
QUERY, KEY, VALUE, MOVED = (
    RNG.normal(size=shape).astype(np.float32)
    for shape in ((2, 5, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16), (2, 5, 4, 16))
)
BIAS = RNG.normal(size=(4, 5, 7)).astype(np.float32)
EXTRAS = {
    "mask": RNG.random((2, 1, 5, 7)) < 0.8,
    "is_causal": True,
    "local_window_size": (4, 2),
    "query_seq_lengths": np.array([5, 3], np.int32),
    "key_value_seq_lengths": np.array([0, 6], np.int32),
}


def attend(query, key, value, bias=None):
    return nn.dot_product_attention(query, key, value, bias, **EXTRAS)


def total(*xs):
    return jnp.sum(jnp.sin(attend(*xs)))


def slopes(*xs):
    return gf.grad(total, argnums=(0, 1, 2))(*xs)


def both(monkeypatch, function, *xs):
    """The results by the composition, and by the ops that GPUs have kernels for."""
    want = function(*xs)
    monkeypatch.setattr(attention_fused, "_has_kernels", lambda: True)
    assert "attention[" in str(gf.make_jaxpr(function)(*xs))
    return gf.tree.leaves(want), gf.tree.leaves(function(*xs))


CASES = {
    "the result": (attend, (QUERY, KEY, VALUE, BIAS)),
    "gradients": (slopes, (QUERY, KEY, VALUE, BIAS)),
    "of one operand": (gf.grad(total, argnums=1), (QUERY, KEY, VALUE)),
    "of the bias": (gf.grad(total, argnums=3), (QUERY, KEY, VALUE, BIAS)),
    "of all": (gf.grad(total, argnums=(0, 3)), (QUERY, KEY, VALUE, BIAS)),
    "forward mode": (
        lambda *xs: gf.jvp(attend, xs, (MOVED, KEY, VALUE, BIAS)),
        (QUERY, KEY, VALUE, BIAS),
    ),
    "second order": (
        gf.grad(lambda q, *xs: sum(jnp.sum(x**2) for x in slopes(q, *xs)), argnums=(0, 2)),
        (QUERY, KEY, VALUE),
    ),
    "second order with a bias": (
        gf.grad(lambda *xs: jnp.sum(slopes(*xs)[1] ** 3), argnums=(1, 3)),
        (QUERY, KEY, VALUE, BIAS),
    ),
    "mapped": (
        gf.vmap(slopes, in_axes=(None, 1, 0)),
        (QUERY, np.stack([KEY, 2 * KEY], 1), np.stack([VALUE, VALUE + 1])),
    ),
    "mapped over the bias": (
        gf.vmap(attend, in_axes=(None, None, None, 0)),
        (QUERY, KEY, VALUE, np.stack([BIAS] * 3)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_ops_and_composition_agree(monkeypatch, case):
    function, xs = CASES[case]
    want, got = both(monkeypatch, function, *xs)
    for mine, own in zip(got, want, strict=True):
        # Both are float32; products of products grow in second order.
        np.testing.assert_allclose(mine, own, rtol=2e-4, atol=2e-5 * max(np.abs(own).max(), 1))


def test_the_scale_may_be_an_array_of_the_program():
    """Kernels take a number, so that attention is a composition then."""

    def function(scale):
        return jnp.sum(nn.dot_product_attention(QUERY, KEY, VALUE, scale=scale))

    assert np.isfinite(float(gf.jit(gf.grad(function))(np.float32(0.3))))
