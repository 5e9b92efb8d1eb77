"""Axes, shapes and numbers as programs write them, for functions of jnp."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow.numpy as jnp


@pytest.mark.parametrize(
    "axes", [range(2), np.array([0, 1]), jnp.array([0, 1]), (0, 1)], ids=lambda a: type(a).__name__
)
def test_several_axes_as_a_range_or_an_array(axes):
    x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    both = (0, 1)
    for name in ("sum", "mean", "max", "std", "any", "flip", "median"):
        np.testing.assert_allclose(
            getattr(jnp, name)(x, axis=axes), getattr(np, name)(x, axis=both), rtol=1e-6
        )
    assert jnp.expand_dims(x, axes).shape == (1, 1, 2, 3, 4)
    assert jnp.squeeze(np.ones((1, 1, 3)), axes).shape == (3,)
    assert jnp.moveaxis(x, axes, range(1, 3)).shape == (4, 2, 3)
    np.testing.assert_allclose(jnp.linalg.norm(x, axis=axes), np.linalg.norm(x, axis=both), 1e-6)
    assert jnp.sum(x, axis=np.array(1)).shape == (2, 4)


def test_split_at_an_array_of_one_place():
    x = np.arange(6.0)
    for places in (np.array([4]), jnp.array([4])):
        assert [part.shape for part in jnp.split(x, places)] == [(4,), (2,)]
        assert [part.shape for part in jnp.array_split(x, places)] == [(4,), (2,)]
    assert [part.shape for part in jnp.split(x, np.array(3))] == [(2,)] * 3


def test_none_has_no_axes():
    assert jnp.shape(None) == () and jnp.ndim(None) == 0 and jnp.size(None) == 1


def test_numbers_are_constant_polynomials():
    line = np.array([1.0, 3.0], np.float32)
    for name in ("polyadd", "polysub", "polymul"):
        for pair in ((2.0, line), (line, 2.0)):
            expected = getattr(np, name)(*pair)
            np.testing.assert_array_equal(getattr(jnp, name)(*pair), expected)
    np.testing.assert_array_equal(jnp.polydiv(line, 2.0)[0], np.polydiv(line, 2.0)[0])
    np.testing.assert_array_equal(jnp.polyval(2.0, line), [2.0, 2.0])
    np.testing.assert_array_equal(jnp.polyint(2.0), [2.0, 0.0])
    assert jnp.polyder(2.0).shape == (0,)
