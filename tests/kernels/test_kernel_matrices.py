"""Decompositions of small matrices by handwritten kernels, in the PTX interpreter."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import on_gpu

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

pytestmark = requires_cuda_tools

RNG = np.random.default_rng(17)
# Backward errors of the algorithms are some units of rounding for each row.
EPSILON = {"float32": 1.2e-7, "float64": 2.3e-16}


def matrices(count, rows, columns, dtype="float32"):
    return RNG.normal(size=(count, rows, columns)).astype(dtype)


def assert_near(got, want, rows, scale=1.0):
    dtype = str(got.dtype)
    tolerance = 40 * rows * EPSILON[dtype] * scale
    want = np.broadcast_to(want, got.shape)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("rows, columns", [(5, 5), (31, 31), (32, 32), (7, 12), (12, 7)])
def test_lu(rows, columns):
    a = matrices(5, rows, columns)
    a[1, :, 2] = 0
    factors, pivots, order = on_gpu(lax.linalg.lu, a)
    want = lax.linalg.lu(a)
    np.testing.assert_array_equal(pivots, np.asarray(want[1]))
    np.testing.assert_array_equal(order, np.asarray(want[2]))
    size = min(rows, columns)
    lower = np.tril(factors.astype(np.float64), -1)[..., :size] + np.eye(rows, size)
    product = lower @ np.triu(factors.astype(np.float64))[:, :size]
    assert_near(np.take_along_axis(a, order[..., None], 1), product, rows, 4)


def test_cholesky_of_what_is_not_positive_is_nan():
    x = matrices(3, 9, 9)
    a = x @ x.transpose(0, 2, 1) + 9 * np.eye(9, dtype=np.float32)
    a[1, 4, 4] = -1
    result = on_gpu(lambda a: lax.linalg.cholesky(a), a)
    assert np.isnan(result[1][np.tril_indices(9)]).all()
    for k in (0, 2):
        factor = result[k].astype(np.float64)
        assert_near(a[k], factor @ factor.T, 9, 20)


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower, transpose_a, unit", [(True, False, False), (False, True, True)])
def test_triangular_solve(left_side, lower, transpose_a, unit):
    size, sides = 11, 33
    a = matrices(3, size, size) / size + 2 * np.eye(size, dtype=np.float32)
    b = matrices(3, size, sides)
    b = b if left_side else np.ascontiguousarray(b.transpose(0, 2, 1))
    how = {
        "left_side": left_side,
        "lower": lower,
        "transpose_a": transpose_a,
        "unit_diagonal": unit,
    }
    x = on_gpu(lambda a, b: lax.linalg.triangular_solve(a, b, **how), a, b).astype(np.float64)
    triangle = (np.tril if lower else np.triu)(a.astype(np.float64))
    if unit:
        triangle[:, range(size), range(size)] = 1
    triangle = triangle.transpose(0, 2, 1) if transpose_a else triangle
    assert_near(b, triangle @ x if left_side else x @ triangle, size, 10)


def test_solve():
    a, b = matrices(9, 16, 16), matrices(9, 16, 3)
    x = on_gpu(jnp.linalg.solve, a, b).astype(np.float64)
    assert_near(b, a @ x, 16, 100)


@pytest.mark.parametrize(
    "rows, columns, full",
    [(1, 1, True), (8, 5, True), (5, 8, False), (31, 17, False), (32, 32, True)],
)
def test_qr(rows, columns, full):
    a = matrices(3, rows, columns)
    a[1] *= 1e-25  # its squares vanish in float32
    mode = "complete" if full else "reduced"
    q, r = on_gpu(lambda a: tuple(jnp.linalg.qr(a, mode)), a)
    inner = rows if full else min(rows, columns)
    assert q.shape == (3, rows, inner) and r.shape == (3, inner, columns)
    wide = q.astype(np.float64)
    assert_near(np.float32(wide.transpose(0, 2, 1) @ wide), np.eye(inner), rows)
    for k, scale in enumerate((10, 1e-24, 10)):
        assert_near(a[k], wide[k] @ r[k].astype(np.float64), rows, scale)
    np.testing.assert_array_equal(np.tril(r, -1), 0)
    want = np.linalg.qr(a.astype(np.float64), mode)[1]  # signs are LAPACK's
    assert_near(r[0], want[0], rows, 10)


@pytest.mark.parametrize(
    "size, dtype", [(1, "float32"), (2, "float32"), (9, "float32"), (32, "float32"), (8, "float64")]
)
def test_eigenvalues(size, dtype):
    with gf.enable_x64():
        a = matrices(5, size, size, dtype)
        a = a + a.transpose(0, 2, 1)
        a[1] = np.eye(size)
        a[2] *= 1e-30
        a[3, 0, 0] = np.nan
        vectors, values = on_gpu(lambda a: lax.linalg.eigh(a, symmetrize_input=False), a)
    assert np.isnan(values[3]).all() and np.isnan(vectors[3]).all()
    for k, scale in ((0, 10), (1, 1), (2, 1e-29), (4, 10)):
        assert_near(values[k], np.linalg.eigvalsh(a[k].astype(np.float64)), size, scale)
        wide = vectors[k].astype(np.float64)
        assert_near((wide.T @ wide).astype(dtype), np.eye(size), size)
        assert_near(a[k], wide * values[k].astype(np.float64) @ wide.T, size, scale)


def test_one_triangle_and_some_eigenvalues():
    a = matrices(2, 6, 6)
    symmetric = np.triu(a) + np.triu(a, 1).transpose(0, 2, 1)
    a[:, 4, 1] = np.nan
    vectors, values = on_gpu(
        lambda a: lax.linalg.eigh(a, lower=False, symmetrize_input=False, subset_by_index=(1, 4)), a
    )
    assert vectors.shape == (2, 6, 3)
    assert_near(values, np.linalg.eigvalsh(symmetric.astype(np.float64))[:, 1:4], 6, 10)
