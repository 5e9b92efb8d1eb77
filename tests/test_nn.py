"""Neural network functions: derivatives at the edges, extreme values, masks. Values: numpy/."""

from __future__ import annotations

import numpy as np
import pytest
from together import together

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import nn
from gpuflow.scipy import special

ACTIVATIONS = [
    nn.relu, nn.relu6, nn.sigmoid, nn.silu, nn.tanh, nn.softplus, nn.log_sigmoid, nn.soft_sign,
    nn.mish, nn.gelu, nn.leaky_relu, nn.elu, nn.celu, nn.selu, nn.hard_sigmoid, nn.hard_tanh,
    nn.softmax, nn.log_softmax, nn.standardize, nn.hard_silu, nn.identity, nn.squareplus,
    nn.sparse_plus, nn.sparse_sigmoid,
]  # fmt: skip


@pytest.mark.parametrize("function", ACTIVATIONS, ids=lambda f: f.__name__)
def test_gradient_against_differences(function):
    with gpuflow.enable_x64():
        x = np.random.default_rng(0).uniform(-4, 4, (3, 5))
        direction = np.random.default_rng(1).normal(size=x.shape)

        def total(v):
            return jnp.sum(jnp.sin(function(v) * 1.3))

        gradient = np.asarray(gpuflow.jit(gpuflow.grad(total))(jnp.asarray(x)))
        step = 1e-6
        difference = float(total(x + step * direction) - total(x - step * direction)) / (2 * step)
    # Central differences in float64 are good to about 1e-9 of the largest term.
    np.testing.assert_allclose((gradient * direction).sum(), difference, rtol=1e-6, atol=1e-8)


@together(size=18)
@pytest.mark.parametrize("function", ACTIVATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype_is_kept_and_jit_agrees(function, dtype):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), dtype)
    out = function(x)
    assert out.dtype == x.dtype
    tolerance = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 4e-6}[dtype]
    eager, compiled = (np.asarray(v, dtype=np.float32) for v in (out, gpuflow.jit(function)(x)))
    np.testing.assert_allclose(compiled, eager, rtol=tolerance, atol=tolerance)


def test_relu_has_no_slope_at_zero():
    assert float(gpuflow.grad(nn.relu)(0.0)) == 0.0
    assert float(gpuflow.grad(lambda v: jnp.maximum(v, 0.0))(0.0)) == 0.5


def test_softmax_of_large_values():
    out = nn.softmax(jnp.array([1e30, 1e30, -1e30]))
    np.testing.assert_array_equal(np.asarray(out), [0.5, 0.5, 0.0])
    np.testing.assert_allclose(np.asarray(nn.log_softmax(jnp.array([1000.0, 0.0]))), [0.0, -1000.0])


def test_masked_softmax_ignores_what_is_masked():
    x, mask = jnp.array([[1.0, 2.0, jnp.inf]]), jnp.array([[True, True, False]])
    out = np.asarray(nn.softmax(x, where=mask))
    np.testing.assert_allclose(out[:, :2], np.asarray(nn.softmax(x[:, :2])), rtol=1e-6)
    assert out[0, 2] == 0


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)])
def test_logsumexp_against_a_sum_in_float64(axis):
    x = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32) * 5
    want = np.log(np.exp(x.astype(np.float64)).sum(axis=axis))
    np.testing.assert_allclose(np.asarray(nn.logsumexp(x, axis)), want, rtol=2e-6)


def test_logsumexp_of_infinities():
    assert float(nn.logsumexp(jnp.array([-jnp.inf, -jnp.inf]))) == -np.inf
    assert float(nn.logsumexp(jnp.array([jnp.inf, 1.0]))) == np.inf
    out, sign = special.logsumexp(jnp.array([0.0, 1.0]), b=jnp.array([1.0, -1.0]), return_sign=True)
    np.testing.assert_allclose(float(out), np.log(np.e - 1), rtol=1e-6)
    assert float(sign) == -1


def test_logsumexp_gradient_is_softmax():
    x = jnp.array([0.5, -1.0, 2.0])
    got = gpuflow.grad(nn.logsumexp)(x)
    np.testing.assert_allclose(np.asarray(got), np.asarray(nn.softmax(x)), rtol=1e-6)


def test_one_hot_rows_are_unit_vectors():
    out = nn.one_hot(jnp.array([[0, 2], [5, -1]]), 3)
    want = np.zeros((2, 2, 3), np.float32)
    want[0, 0, 0] = want[0, 1, 2] = 1
    np.testing.assert_array_equal(np.asarray(out), want)


@pytest.mark.parametrize("name", ["erf", "erfc", "erfinv", "expit", "logit"])
def test_special_functions_against_scipy(name):
    scipy_special = pytest.importorskip("scipy.special")
    x = np.random.default_rng(5).uniform(0.05, 0.95, 40).astype(np.float32)
    want = getattr(scipy_special, name)(x.astype(np.float64))
    np.testing.assert_allclose(np.asarray(getattr(special, name)(x)), want, rtol=4e-6, atol=1e-7)


def test_xlogy_at_zero():
    gradient = gpuflow.grad(special.xlogy)(0.0, 0.0)
    assert float(special.xlogy(0.0, 0.0)) == 0
    assert float(gradient) == -np.inf  # log(0), as in JAX
