"""stax: shapes, parameters and outputs of JAX's, stored; and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import example_library_cases as cases
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.example_libraries import stax

STORED = json.loads((Path(__file__).parent / "data" / "example_libraries.json").read_text())


@pytest.fixture(scope="module")
def results():
    return cases.network_results(stax, gf.random, gf.tree.leaves)


@pytest.mark.parametrize("name", STORED["networks"])
def test_networks_are_those_of_jax(name, results):
    stored, result = STORED["networks"][name], results[name]
    # JAX's pooling layers say 0 for a batch of -1.
    assert [size or -1 for size in result["shape"]] == [size or -1 for size in stored["shape"]]
    # Bits of keys are JAX's; normal numbers and sums differ in the last place.
    np.testing.assert_allclose(result["sums"], stored["sums"], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(result["outputs"], stored["outputs"], rtol=2e-5, atol=2e-6)


def test_a_network_trains_under_jit_and_vmap():
    init, apply = stax.serial(stax.Dense(16), stax.Relu, stax.Dense(1))
    shape, params = init(gf.random.PRNGKey(0), (-1, 2))
    assert shape == (-1, 1)
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    y = x[:, :1] * x[:, 1:]

    def loss(params):
        return jnp.mean((apply(params, x) - y) ** 2)

    @gf.jit
    def step(params):
        value, grads = gf.value_and_grad(loss)(params)
        return gf.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    losses = []
    for _ in range(100):
        params, value = step(params)
        losses.append(float(value))
    assert losses[-1] < 0.3 * losses[0]
    single = gf.vmap(lambda row: apply(params, row))(jnp.asarray(x))
    np.testing.assert_allclose(single, apply(params, x), rtol=1e-5, atol=1e-6)


def test_average_pooling_counts_what_lies_inside():
    _, apply = stax.AvgPool((2, 2), padding="SAME")
    ones = jnp.ones((1, 3, 3, 2))
    np.testing.assert_array_equal(apply((), ones), ones)


def test_complex_parameters():
    weights = gf.nn.initializers.glorot_normal(dtype=jnp.complex64)
    init, apply = stax.Dense(3, weights, gf.nn.initializers.zeros)
    _, params = init(gf.random.PRNGKey(0), (-1, 2))
    assert apply(params, jnp.ones((4, 2))).dtype == jnp.complex64


def test_an_empty_network_is_the_identity():
    init, apply = stax.serial()
    assert init(gf.random.PRNGKey(0), (3, 2)) == ((3, 2), [])
    assert apply([], 5.0) == 5.0


def test_dropout_without_a_key():
    _, apply = stax.Dropout(0.5)
    with pytest.raises(ValueError, match=r"\[Dropout\] the layer must be given a random key"):
        apply((), jnp.ones(3))


def test_unknown_names_are_explained():
    with pytest.raises(AttributeError, match=r"\[gpuflow.example_libraries.stax\].*stax.Dense"):
        stax.Densee  # noqa: B018
