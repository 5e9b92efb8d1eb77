"""Reductions over segments against loops; derivatives; what lies outside; errors."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import ops

FAMILIES = {
    "segment_sum": (np.add, 0),
    "segment_prod": (np.multiply, 1),
    "segment_max": (np.maximum, -np.inf),
    "segment_min": (np.minimum, np.inf),
}
IDS = np.array([2, 0, 2, 5, -1, 0, 7, 2])


def looped(name, data, ids, count):
    ufunc, neutral = FAMILIES[name]
    if data.dtype.kind == "i" and np.isinf(neutral):
        neutral = np.iinfo(data.dtype).min if neutral < 0 else np.iinfo(data.dtype).max
    out = np.full((count, *data.shape[1:]), neutral, data.dtype)
    for row, k in zip(data, ids, strict=True):
        if 0 <= k < count:
            out[k] = ufunc(out[k], row)
    return out


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("rest", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bucket_size", [None, 3])
def test_against_a_loop(name, dtype, rest, bucket_size):
    data = (np.random.default_rng(0).normal(size=(8, *rest)) * 5).astype(dtype)
    function = getattr(ops, name)
    want = looped(name, data, IDS, 6)
    for run in (function, gpuflow.jit(function, static_argnames=("num_segments", "bucket_size"))):
        out = run(data, IDS, num_segments=6, bucket_size=bucket_size)
        assert out.dtype == data.dtype
        np.testing.assert_allclose(np.asarray(out), want, rtol=1e-6)


def test_the_number_of_segments_is_found():
    np.testing.assert_array_equal(
        np.asarray(ops.segment_sum(np.arange(5), np.array([0, 0, 1, 1, 2]))), [1, 5, 4]
    )
    assert ops.segment_sum(np.zeros((0, 3), np.float32), np.zeros(0, int)).shape == (0, 3)


def test_one_row_stands_for_all():
    np.testing.assert_array_equal(np.asarray(ops.segment_sum(1, np.array([0, 2, 2]), 3)), [1, 0, 2])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32"])
def test_narrow_ids(dtype):
    out = ops.segment_sum(np.ones(3, np.float32), np.array([0, 100, 100], dtype), 300)
    assert out.shape == (300,)
    assert float(out[100]) == 2


def test_modes():
    data, ids = np.arange(1.0, 4.0, dtype=np.float32), np.array([0, 9, -9])
    np.testing.assert_array_equal(np.asarray(ops.segment_sum(data, ids, 2)), [1, 0])
    np.testing.assert_array_equal(np.asarray(ops.segment_sum(data, ids, 2, mode="clip")), [4, 2])


def test_gradients_and_vmap():
    data = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(6, 2)).astype(np.float32)
    gradient = gpuflow.grad(lambda x: jnp.sum(ops.segment_sum(x, IDS, 6) * weights))(data)
    inside = (IDS >= 0) & (IDS < 6)
    want = np.where(inside[:, None], weights[np.where(inside, IDS, 0)], 0)
    np.testing.assert_array_equal(np.asarray(gradient), want)
    top = gpuflow.grad(
        lambda x: jnp.sum(
            jnp.where(jnp.isfinite(ops.segment_max(x, IDS, 6)), ops.segment_max(x, IDS, 6), 0)
        )
    )(data)
    assert np.asarray(top).sum() == 6  # three segments have rows, of two columns
    columns = gpuflow.vmap(lambda x: ops.segment_sum(x, IDS, 6), 1, 1)(data)
    np.testing.assert_allclose(
        np.asarray(columns), np.asarray(ops.segment_sum(data, IDS, 6)), rtol=1e-6
    )


def test_buckets_are_more_exact():
    data = np.full(1 << 16, 0.1, np.float32)
    ids = np.zeros(1 << 16, np.int32)
    exact = float(np.float32(0.1)) * (1 << 16)
    plain, split = ops.segment_sum(data, ids, 1), ops.segment_sum(data, ids, 1, bucket_size=256)
    assert abs(float(split[0]) - exact) <= abs(float(plain[0]) - exact)


def test_errors():
    data, ids = np.ones(3, np.float32), np.array([0, 1, 1])
    with pytest.raises(TypeError, match=r"\[segment_sum\] operands must be arrays; got list"):
        ops.segment_sum([1.0, 2.0, 3.0], ids)
    with pytest.raises(TypeError, match=r"\[segment_max\] segment_ids must be integers; got f32"):
        ops.segment_max(data, data)
    with pytest.raises(ValueError, match=r"segment_ids must have one axis, and data as many rows"):
        ops.segment_sum(data, ids[:2])
    with pytest.raises(ValueError, match=r"num_segments must not be negative; got -1"):
        ops.segment_sum(data, ids, -1)
    with pytest.raises(ValueError, match=r"bucket_size must be positive"):
        ops.segment_sum(data, ids, 2, bucket_size=0)
    with pytest.raises(ValueError, match=r"mode must be"):
        ops.segment_sum(data, ids, 2, mode="wrap")
    with pytest.raises(TypeError, match=r"\[segment_sum\] the number of segments must be known"):
        gpuflow.jit(ops.segment_sum)(data, ids)
    with pytest.raises(TypeError, match=r"num_segments must be a Python int"):
        gpuflow.jit(ops.segment_sum)(data, ids, 2)


def test_products_have_derivatives_where_factors_are_zero():
    """Products of the other rows, with no, one and two zeros in a segment; two left out."""
    ids = jnp.array([2, 0, 2, 2, 1, 0, 5, -1])
    data = jnp.array([2.0, 0.0, 3.0, 0.0, 7.0, 0.0, 4.0, 5.0])

    def function(data):
        return (ops.segment_prod(data, ids, 4) * jnp.arange(1.0, 5)).sum()

    want = [0, 0, 0, 18, 2, 0, 0, 0]
    for derivative in (gpuflow.grad, gpuflow.jacfwd, lambda f: gpuflow.jit(gpuflow.grad(f))):
        np.testing.assert_array_equal(derivative(function)(data), want)
    np.testing.assert_array_equal(gpuflow.hessian(function)(data)[2], [0, 0, 0, 6, 0, 0, 0, 0])
    many = gpuflow.vmap(gpuflow.grad(function))(jnp.stack([data, data + 1]))
    np.testing.assert_array_equal(many[0], want)
    assert gpuflow.grad(function)(jnp.zeros(8)).tolist() == [0, 0, 0, 0, 2, 0, 0, 0]


def test_repeated_factors_of_rows_and_windows():
    """x.at[i].multiply(y) with rows, scalars and slices, against differences."""
    x = np.array([[2.0, 3.0], [0.0, 5.0], [7.0, 1.0]])
    rows = np.array([[0.0, 5.0], [2.0, 0.0], [1.0, 3.0], [4.0, 0.5]])
    weights = np.arange(1.0, 7).reshape(3, 2)
    places = (jnp.array([0, 0, 1, -1]), jnp.array([[0], [0], [1], [0]]))
    with gpuflow.enable_x64():
        for index, y in ((places[0], rows), (places[1], rows[:, None]), (np.s_[1:], rows[:2])):

            def function(x, y, index=index):
                return (jnp.asarray(x).at[index].multiply(y) * weights).sum()

            by_x, by_y = gpuflow.grad(function, (0, 1))(x, y)
            for got, at, call in (
                (by_x, x, lambda v, y=y: function(v, y)),
                (by_y, y, lambda v: function(x, v)),
            ):
                want = np.zeros_like(at)
                for k in np.ndindex(at.shape):
                    step = np.zeros_like(at)
                    step[k] = 1e-5
                    want[k] = (call(at + step) - call(at - step)) / 2e-5
                np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-7)
