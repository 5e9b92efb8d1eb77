"""Initializers: properties of what they draw, defaults, errors. Values: test_nn_values.py."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import nn
from gpuflow.nn import initializers

KEY = gpuflow.random.key(0)
MODES = {"fan_in": 3 * 40, "fan_out": 3 * 90, "fan_avg": 3 * 65, "fan_geo_avg": 3 * 60}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_variance(mode, distribution, dtype):
    init = initializers.variance_scaling(1.7, mode, distribution)
    out = np.asarray(init(KEY, (3, 40, 90), jnp.dtype(dtype)))
    # 10800 numbers: their mean square is known to about 1.5 percent.
    np.testing.assert_allclose(np.mean(np.abs(out) ** 2), 1.7 / MODES[mode], rtol=0.05)
    assert abs(out.mean()) < 0.03 * np.abs(out).max()


@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 3), (2, 3, 5)])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_orthogonal(shape, dtype):
    out = np.asarray(initializers.orthogonal(2.0)(KEY, shape, jnp.dtype(dtype)))
    matrix = out.reshape(-1, shape[-1])
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(matrix @ matrix.conj().T, 4 * np.eye(len(matrix)), atol=5e-6)


def test_delta_orthogonal_keeps_norms():
    out = np.array(initializers.delta_orthogonal()(KEY, (3, 3, 2, 5)))
    np.testing.assert_allclose(out[1, 1] @ out[1, 1].T, np.eye(2), atol=1e-6)
    out[1, 1] = 0
    assert not out.any()


def test_defaults_and_the_protocol():
    assert initializers.normal()(KEY, (2,)).dtype == np.float32
    assert initializers.normal(dtype=jnp.bfloat16)(KEY, (2,)).dtype == jnp.bfloat16
    assert initializers.normal(dtype=jnp.bfloat16)(KEY, (2,), np.float32).dtype == np.float32
    assert nn.initializers is initializers
    for init in (initializers.zeros, initializers.constant(3), initializers.he_normal()):
        assert isinstance(init, initializers.Initializer)
    assert initializers.xavier_normal is initializers.glorot_normal


def test_under_jit_and_vmap():
    init = initializers.lecun_normal()
    keys = gpuflow.random.split(KEY, 3)
    many = gpuflow.jit(gpuflow.vmap(lambda key: init(key, (4, 5))))(keys)
    # Compiled and eager logarithms may differ in the last place.
    np.testing.assert_allclose(np.asarray(many[1]), np.asarray(init(keys[1], (4, 5))), rtol=2e-6)


def test_empty_arrays():
    assert initializers.orthogonal()(KEY, (0, 3)).shape == (0, 3)
    assert initializers.he_normal()(KEY, (0, 3)).shape == (0, 3)


def test_errors():
    with pytest.raises(ValueError, match=r"\[variance_scaling\] mode must be one of 'fan_in'"):
        initializers.variance_scaling(1.0, "fan", "normal")
    with pytest.raises(ValueError, match=r"distribution must be one of .*got 'cauchy'"):
        initializers.variance_scaling(1.0, "fan_in", "cauchy")
    with pytest.raises(ValueError, match=r"arrays must have 2 axes or more"):
        initializers.he_normal()(KEY, (3,))
    with pytest.raises(ValueError, match=r"must be axes of shape \(3, 4\)"):
        initializers.he_normal(in_axis=2)(KEY, (3, 4))
    with pytest.raises(ValueError, match=r"\[orthogonal\] the shape must have 2 axes"):
        initializers.orthogonal()(KEY, (3,))
    with pytest.raises(ValueError, match=r"\[delta_orthogonal\] the shape must have 3 to 5 axes"):
        initializers.delta_orthogonal()(KEY, (3, 5, 2))
    with pytest.raises(TypeError, match=r"out_sharding must be a NamedSharding"):
        initializers.zeros(KEY, (3,), out_sharding="x")
    with pytest.raises(TypeError, match=r"dtype must be a dtype"):
        initializers.normal()(KEY, (3,), "words")
