"""Values of JAX: attention, initializers, the activations that numpy/ does not cover."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import nn
from gpuflow.nn import initializers

VALUES = json.loads((Path(__file__).parents[1] / "data" / "nn_values.json").read_text())


def operand(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def attention_options(options):
    arguments = dict(options)
    if "bias" in arguments:
        arguments["bias"] = operand(arguments["bias"], 3)
    if "mask" in arguments:
        arguments["mask"] = operand(arguments["mask"], 4) > 0
    for name in arguments:
        if name.endswith("lengths"):
            arguments[name] = jnp.array(arguments[name], jnp.int32)
    if isinstance(arguments.get("local_window_size"), list):
        arguments["local_window_size"] = tuple(arguments["local_window_size"])
    return arguments


@pytest.mark.parametrize(("query", "key", "options", "want", "sums"), VALUES["attention"])
@pytest.mark.parametrize("compiled", [False, True])
def test_attention(query, key, options, want, sums, compiled):
    arguments = attention_options(options)

    def function(*arrays):
        return nn.dot_product_attention(*arrays, **arguments, return_residual=True)

    arrays = [operand(shape, seed) for seed, shape in enumerate((query, key, key))]
    out, residual = (gpuflow.jit(function) if compiled else function)(*arrays)
    assert (out.shape, residual.shape) == (tuple(query), tuple(query[:-1]))
    np.testing.assert_allclose(np.ravel(out), want, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(np.ravel(residual), sums, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("dtype", "name", "options", "shape", "want"), VALUES["initializers"])
def test_initializers(dtype, name, options, shape, want):
    initializer = getattr(initializers, name)
    init = initializer if options is None else initializer(**options)
    out = init(gpuflow.random.key(3), shape, jnp.dtype(dtype))
    assert (out.shape, str(out.dtype)) == (tuple(shape), dtype)
    wide = np.asarray(out).astype(np.complex64 if dtype == "complex64" else np.float32)
    got = np.stack([wide.real.ravel(), wide.imag.ravel()]).ravel()
    # The bits drawn are JAX's; logarithms and roots of them may differ by a unit or two, and so
    # do products of a Householder's reflectors.
    tolerance = 8e-3 if dtype == "bfloat16" else 4e-6 if "orthogonal" in name else 5e-7
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance / 4)


@pytest.mark.parametrize("name", ["uniform", "glorot_uniform", "he_uniform"])
def test_uniform_initializers_are_equal_bit_for_bit(name):
    compared = 0
    for dtype, other, options, shape, want in VALUES["initializers"]:
        if other == name and dtype == "float32":
            init = getattr(initializers, name)(**options)
            out = np.ravel(init(gpuflow.random.key(3), shape))
            np.testing.assert_array_equal(out, np.float32(want[: out.size]))
            compared += 1
    assert compared


@pytest.mark.parametrize(("name", "x", "want", "slope"), VALUES["activations"])
def test_activations(name, x, want, slope):
    function = getattr(nn, name)
    x = np.asarray(x, np.float32)
    np.testing.assert_allclose(np.ravel(function(x)), want, rtol=4e-6, atol=1e-6)
    got = gpuflow.jit(gpuflow.grad(lambda v: jnp.sum(function(v))))(x)
    np.testing.assert_allclose(np.asarray(got), slope, rtol=4e-6, atol=1e-6)


def test_log1mexp_at_both_ends():
    x = np.array([1e-20, 1e-7, 0.5, 1.0, 50.0, 90.0], np.float32)
    wide = x.astype(np.float64)
    small, large = np.log(-np.expm1(-wide[:3])), np.log1p(-np.exp(-wide[3:]))
    want = np.concatenate([small, large])
    # The last result is subnormal in float32.
    np.testing.assert_allclose(np.asarray(nn.log1mexp(x)), want, rtol=3e-6, atol=2e-39)
    assert float(nn.log1mexp(0.0)) == -np.inf
