"""check_grads accepts right derivatives and finds wrong ones; errors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import test_util

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


@gpuflow.custom_jvp
def wrong(x):
    return jnp.sin(x)


@wrong.defjvp
def _wrong_jvp(primals, tangents):
    return jnp.sin(primals[0]), tangents[0] * 1.1


@gpuflow.custom_jvp
def wrong_at_second_order(x):
    return jnp.sin(x)


@wrong_at_second_order.defjvp
def _second_jvp(primals, tangents):
    return jnp.sin(primals[0]), tangents[0] * gpuflow.lax.stop_gradient(jnp.cos(primals[0]))


@pytest.mark.parametrize("modes", ["fwd", "rev", ["fwd", "rev"]])
def test_right_derivatives_pass(modes):
    test_util.check_grads(
        lambda x, y: {"a": jnp.sin(x) * y["b"]},
        (X, {"b": X + 2}),
        2,
        modes,
        eps=1e-2,
        atol=1e-2,
        rtol=1e-2,
    )


def test_other_dtypes():
    with gpuflow.enable_x64():
        test_util.check_grads(jnp.tanh, (X.astype(np.float64),), 3)
        z = X.astype(np.complex128) * (1 + 2j)
        test_util.check_grads(lambda v: v * v, (z,), 2)
        test_util.check_grads(lambda v, n: v * n, (X.astype(np.float64), np.arange(4)), 1)
        test_util.check_grads(lambda v: jnp.sin(v) ** 2, (0.3,), 2)


@pytest.mark.parametrize("mode", ["fwd", "rev"])
def test_wrong_derivatives_fail(mode):
    with pytest.raises(AssertionError, match="JVP tangent" if mode == "fwd" else "VJP cotangent"):
        test_util.check_grads(wrong, (X,), 1, mode)
    with gpuflow.enable_x64():
        x = X.astype(np.float64)
        test_util.check_grads(wrong_at_second_order, (x,), 1, mode)
        with pytest.raises(AssertionError, match=" of "):
            test_util.check_grads(wrong_at_second_order, (x,), 2, mode)


def test_single_checks():
    test_util.check_jvp(jnp.sin, partial(gpuflow.jvp, jnp.sin), (X,), eps=1e-2, atol=1e-2)
    test_util.check_vjp(
        jnp.sin, partial(gpuflow.vjp, jnp.sin), (X,), eps=1e-2, atol=1e-2, rtol={np.float32: 1e-2}
    )
    with pytest.raises(AssertionError, match="mine primal"):
        test_util.check_jvp(jnp.cos, partial(gpuflow.jvp, jnp.sin), (X,), err_msg="mine")


def test_an_unknown_mode():
    with pytest.raises(ValueError, match=r"\[check_grads\] modes must be 'fwd' or 'rev'"):
        test_util.check_grads(jnp.sin, (X,), 1, "forward")
