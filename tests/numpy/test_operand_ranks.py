"""Functions of two arrays with an axis, whose operands differ in rank: against NumPy.

A negative axis is the same place from the end in both, another one is not: vecdot took the axis of
the product.
"""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp

SHAPES = [((2, 3), (2,)), ((3, 2), (3, 2)), ((2,), (2, 4)), ((3, 1, 4), (3, 4)), ((2, 3), (2, 1))]
GENERATOR = np.random.default_rng(0)


def numbers(shape):
    return GENERATOR.integers(-5, 5, shape).astype(np.float32)


@pytest.mark.parametrize("name", ["vecdot", "linalg.vecdot"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_vecdot(name, shapes):
    module = jnp.linalg if name.startswith("linalg") else jnp
    x, y = numbers(shapes[0]), numbers(shapes[1])
    for axis in (0, -1):
        if x.shape[axis] != y.shape[axis]:
            continue
        want = np.sum(np.moveaxis(x, axis, -1) * np.moveaxis(y, axis, -1), -1)
        for run in (module.vecdot, gpuflow.jit(module.vecdot, static_argnames="axis")):
            np.testing.assert_array_equal(np.asarray(run(x, y, axis=axis)), want)


def test_the_example():
    x, y = jnp.arange(4.0).reshape(2, 2), jnp.array([1.0, 10.0])
    assert jnp.vecdot(x, y, axis=0).tolist() == [20, 31]


def test_trapezoid():
    y, x = numbers((3, 4)), np.array([0.0, 1.0, 3.0], np.float32)
    for axis, places in ((0, x), (1, np.arange(4, dtype=np.float32) ** 2)):
        got = jnp.trapezoid(y, places, axis=axis)
        np.testing.assert_allclose(got, np.trapezoid(y, places, axis=axis), rtol=1e-6)


@pytest.mark.parametrize("places", [[], [3], [-1, 0], [4, 2, -5], list(range(10))])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_delete_of_traced_positions(places, dtype):
    x = np.arange(1000.0, dtype="f").reshape(10, 100)
    if dtype == "uint8":
        places = [k % 10 for k in places]
    at = np.array(places, dtype)
    expected = np.delete(x, at.astype(int), 0)
    delete = lambda x, at: jnp.delete(x, at, 0, assume_unique_indices=True)  # noqa: E731
    np.testing.assert_array_equal(delete(x, at), expected)
    np.testing.assert_array_equal(gpuflow.jit(delete)(x, at), expected)
    # More positions than the dtype counts.
    flat = jnp.delete(jnp.asarray(x), at, assume_unique_indices=True)
    np.testing.assert_array_equal(flat, np.delete(x, at.astype(int)))


def test_append_insert_delete():
    x = numbers((2, 3))
    np.testing.assert_array_equal(jnp.append(x, numbers((1, 3)) * 0, 0), np.append(x, [[0] * 3], 0))
    for axis in (0, 1, -1):
        got = jnp.insert(x, 1, np.float32(7), axis=axis)
        np.testing.assert_array_equal(got, np.insert(x, 1, 7, axis=axis))


def test_cross():
    x, y = numbers((3, 4)), numbers((3,))
    got = jnp.cross(x, y, axisa=0, axisb=0)
    np.testing.assert_array_equal(got, np.cross(x, y, axisa=0, axisb=0))
    got = jnp.cross(x, y, axisa=0, axisb=0, axisc=0)
    np.testing.assert_array_equal(got, np.cross(x, y, axisa=0, axisb=0, axisc=0))


def test_step_of_linspace():
    """Its shape is that of the ends; where there is no distance it is one nan, as in JAX."""
    ends = np.zeros((2, 1), np.float32), np.ones(2, np.float32)
    for count, endpoint, shape in (
        (4, True, (2, 2)),
        (1, False, (2, 2)),
        (1, True, ()),
        (0, True, ()),
    ):
        numbers_, step = jnp.linspace(*ends, count, endpoint=endpoint, retstep=True)
        assert numbers_.shape == (count, 2, 2) and step.shape == shape
        assert bool(jnp.isnan(step).all()) == (shape == ())


def test_variance_of_infinities():
    """The distance of infinity to an infinite mean is nan, and is no missing number."""
    for values in ([1, np.inf, np.nan], [np.inf, -np.inf, np.nan], [np.inf, np.inf], [-np.inf, 3]):
        x = np.array(values, np.float32)
        for name in ("nanvar", "nanstd"):
            assert np.isnan(getattr(jnp, name)(x))
            assert np.isnan(gpuflow.jit(getattr(jnp, name))(x))


def test_hermitian_functions_read_the_hermitian_part():
    """pinv(hermitian=True) had a derivative of the whole matrix, tridiagonal a complex diagonal."""
    x, t = (numbers((3, 3)) + 1j * numbers((3, 3)) for _ in range(2))
    x = (x + 9 * np.eye(3)).astype(np.complex64)

    def part(v):
        return (v + v.conj().T) / 2

    def inverse(v):
        return jnp.linalg.pinv(v, hermitian=True)

    got = gpuflow.jvp(inverse, (x,), (t.astype(np.complex64),))
    want = gpuflow.jvp(inverse, (part(x),), (part(t).astype(np.complex64),))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    form, diagonal, *_ = gpuflow.lax.linalg.tridiagonal(np.array([[2 + 1j]], np.complex64))
    assert form.tolist() == [[2]] and diagonal.tolist() == [2]


def test_refusals_of_numbers_that_do_not_fit():
    """Integers had a reciprocal of 0, and rounding to 1.5 decimals gave some number."""
    with pytest.raises(TypeError, match="reciprocal"):
        gpuflow.lax.reciprocal(jnp.arange(3))
    with pytest.raises(TypeError):
        jnp.round(jnp.ones(2), decimals=1.5)
