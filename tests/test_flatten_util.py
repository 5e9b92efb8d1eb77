"""ravel_pytree: a tree as one vector, and back."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.flatten_util import ravel_pytree

TREE = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": (np.float32(7), None), "n": 3}


def test_round_trip_promotes_and_restores():
    flat, unravel = ravel_pytree(TREE)
    assert flat.shape == (8,) and flat.dtype == np.float32
    np.testing.assert_array_equal(flat, [7, 3, 0, 1, 2, 3, 4, 5])
    back = unravel(flat * 2)
    assert back["n"].dtype == np.int32 and back["n"] == 6
    np.testing.assert_array_equal(back["w"], 2 * TREE["w"])
    assert back["b"][1] is None


def test_under_transformations():
    def f(params):
        flat, unravel = ravel_pytree(params)
        return jnp.sum(unravel(flat**2)["w"])

    tree = {"w": jnp.arange(3.0), "b": jnp.ones(2)}
    for g in (gf.grad(f), gf.jit(gf.grad(f))):
        np.testing.assert_array_equal(g(tree)["w"], [0, 2, 4])
    rows = gf.vmap(lambda t: ravel_pytree(t)[0])({"w": jnp.ones((4, 3)), "b": jnp.zeros((4, 2))})
    assert rows.shape == (4, 5)


def test_edges():
    flat, unravel = ravel_pytree({})
    assert flat.shape == (0,) and unravel(flat) == {}
    flat, unravel = ravel_pytree(jnp.zeros((0, 3)))
    assert unravel(flat).shape == (0, 3)
    half = ravel_pytree([jnp.ones(2, jnp.bfloat16)])[0]
    assert half.dtype == jnp.bfloat16


def test_refusals():
    flat, unravel = ravel_pytree(TREE)
    with pytest.raises(ValueError, match="length of the tree"):
        unravel(flat[:-1])
    with pytest.raises(TypeError, match="dtype of the tree"):
        unravel(flat.astype(jnp.int32))
    with pytest.raises(TypeError):
        ravel_pytree({"a": "text"})
