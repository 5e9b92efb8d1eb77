"""smap: shard_map along one axis. The numbers are those of jax 0.10.2 on CPU devices."""

from __future__ import annotations

import numpy as np
import pytest
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

A = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.fixture(autouse=True)
def mesh():
    with gf.set_mesh(gf.make_mesh((2, 2), ("x", "y"))):
        yield


def test_blocks_along_one_axis():
    f = gf.smap(lambda x: x * 2 + lax.axis_index("x"), in_axes=0, out_axes=0, axis_name="x")
    expected = [[0, 2], [4, 6], [9, 11], [13, 15]]
    np.testing.assert_array_equal(f(A), expected)
    np.testing.assert_array_equal(gf.jit(f)(A), expected)
    summed = gf.smap(lambda x: lax.psum(x, "x"), in_axes=0, out_axes=None, axis_name="x")
    np.testing.assert_array_equal(summed(A), [[4, 6], [8, 10]])


def test_axes_of_each_argument():
    @gf.smap(in_axes=({"a": 0, "b": None}, None), out_axes=0, axis_name="x")
    def f(tree, y):
        assert tree["a"].shape == (2, 2) and tree["b"].shape == (4, 2) and y.shape == (2,)
        return tree["a"] + y

    np.testing.assert_array_equal(f({"a": A, "b": A}, jnp.ones(2)), A + 1)


def test_one_inside_another():
    def inner(x):
        cut = gf.smap(lambda z: z * 10 + lax.axis_index("y"), in_axes=1, out_axes=1, axis_name="y")
        return cut(x) + lax.axis_index("x")

    f = gf.smap(inner, in_axes=0, out_axes=0, axis_name="x")
    expected = [[0, 11], [20, 31], [41, 52], [61, 72]]
    np.testing.assert_array_equal(gf.jit(f)(A), expected)


def test_errors():
    def f(x):
        return x

    cases = [
        ({"in_axes": 0, "axis_name": ("x",)}, TypeError, "axis_name must be one name"),
        ({"axis_name": "x"}, TypeError, "in_axes must be given"),
        ({"in_axes": "x", "axis_name": "x"}, TypeError, "in_axes must be an int, None or a tuple"),
        ({"in_axes": ("x",), "axis_name": "x"}, TypeError, "in_axes must hold ints and None"),
        ({"in_axes": -1, "axis_name": "x"}, ValueError, "in_axes must count from the front"),
    ]
    for keywords, error, message in cases:
        with pytest.raises(error, match=rf"\[smap\] {message}"):
            gf.smap(f, out_axes=0, **keywords)
