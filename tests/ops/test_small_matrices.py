"""Batches of small matrices under jit: as exact as LAPACK, and without a call of it."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.ops.linalg import eig

SIZES = [1, 2, 3, 4]


def matrices(*shape, dtype=np.float64, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


@pytest.fixture(autouse=True)
def wide_dtypes():
    with gf.enable_x64(True):
        yield


def calls_a_library(function, *operands):
    return "library" in gf.jit(function).lower(*operands).compile().as_text()


# --- lu ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, n, n) for n in SIZES] + [(2, 3, 3, 4), (5, 4, 2), (1, 3, 3)])
def test_lu_is_that_of_lapack(shape):
    a = matrices(*shape)
    a[0] = np.round(a[0])  # equal pivots: the first of them is taken
    got, want = gf.jit(lax.linalg.lu)(a), lax.linalg.lu(a)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    assert not calls_a_library(lax.linalg.lu, a)


def test_lu_of_singular_matrices():
    a = np.zeros((3, 3, 3))
    a[1] = 1.0
    a[2, 0, 2] = a[2, 1, 0] = 2.0
    for got, want in zip(gf.jit(lax.linalg.lu)(a), lax.linalg.lu(a), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_nan_stays_in_its_matrix():
    a = matrices(4, 3, 3)
    a[1, 2, 0], a[2, 0, 0] = np.nan, np.inf
    out = np.asarray(gf.jit(jnp.linalg.inv)(a))
    np.testing.assert_allclose(out[[0, 3]], np.linalg.inv(a[[0, 3]]), rtol=1e-9)
    assert np.isnan(out[1]).any()


@pytest.mark.parametrize("size", SIZES)
def test_systems_of_hard_matrices(size):
    """Small pivots need exchanges; the residual is that of LAPACK, up to a small factor."""
    a, b = matrices(50, size, size, seed=1), matrices(50, size, 2, seed=2)
    a[:, 0, 0] *= 1e-9
    x = np.asarray(gf.jit(jnp.linalg.solve)(a, b))
    assert np.abs(a @ x - b).max() <= 10 * np.abs(a @ np.linalg.solve(a, b) - b).max() + 1e-14
    np.testing.assert_allclose(
        gf.jit(jnp.linalg.inv)(a) @ a, np.eye(size)[None].repeat(50, 0), atol=1e-6
    )


@pytest.mark.parametrize(
    "function", [jnp.linalg.inv, jnp.linalg.det, lambda a: lax.linalg.lu(a)[0]]
)
def test_gradients_are_those_without_a_batch(function):
    a = matrices(5, 4, 4)

    def loss(a):
        return jnp.sum(jnp.sin(function(a)))

    got = gf.jit(gf.grad(loss))(a)
    for k in range(5):
        np.testing.assert_allclose(got[k], gf.grad(loss)(a[k]), rtol=1e-8, atol=1e-10)


# --- cholesky ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_cholesky(size):
    a = matrices(6, size, size)
    a = a @ a.swapaxes(1, 2) + np.eye(size)
    a[3, size - 1, size - 1] = -1.0
    got = np.asarray(gf.jit(jnp.linalg.cholesky)(a))
    kept = [0, 1, 2, 4, 5]
    np.testing.assert_allclose(got[kept], np.linalg.cholesky(a[kept]), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(np.isnan(got[3]), np.tri(size, dtype=bool))
    assert not calls_a_library(jnp.linalg.cholesky, a)


# --- triangular ----------------------------------------------------------------------------


@pytest.mark.parametrize("left_side", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("unit_diagonal", [False, True])
def test_triangular_solve(left_side, lower, transpose_a, unit_diagonal):
    options = dict(
        left_side=left_side, lower=lower, transpose_a=transpose_a, unit_diagonal=unit_diagonal
    )
    a = matrices(2, 3, 7, 7) + 5 * np.eye(7)
    b = matrices(2, 3, 7, 2) if left_side else matrices(2, 3, 2, 7)

    def solve(a, b):
        return lax.linalg.triangular_solve(a, b, **options)

    np.testing.assert_allclose(gf.jit(solve)(a, b), solve(a, b), rtol=1e-12, atol=1e-14)
    assert not calls_a_library(solve, a, b)


def test_singular_triangles_divide_by_zero():
    a = np.triu(np.ones((2, 2, 2)))
    a[0, 1, 1] = 0.0
    b = np.ones((2, 2, 1))

    def solve(a, b):
        return lax.linalg.triangular_solve(a, b, left_side=True)

    np.testing.assert_array_equal(gf.jit(solve)(a, b), solve(a, b))


# --- products ------------------------------------------------------------------------------

PRODUCTS = {
    "bij,bjk->bik": ((6, 3, 2), (6, 2, 4)),
    "bji,bjk->bik": ((6, 3, 2), (6, 3, 4)),
    "bij,bj->bi": ((6, 3, 4), (6, 4)),
    "bi,bi->b": ((6, 3), (6, 3)),
    "bi,bj->bij": ((6, 3), (6, 2)),
    "abij,bajk->abik": ((2, 3, 4, 4), (3, 2, 4, 4)),
    "ibj,kjb->bik": ((3, 5, 2), (4, 2, 5)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("equation", PRODUCTS)
def test_products(equation, dtype):
    x, y = (matrices(*shape, dtype=dtype) for shape in PRODUCTS[equation])

    def product(x, y):
        return jnp.einsum(equation, x, y)

    got = gf.jit(product)(x, y)
    assert got.dtype == dtype
    wide = np.einsum(equation, x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(got, wide, rtol=1e-5 if dtype == np.float32 else 1e-12, atol=1e-6)
    assert not calls_a_library(product, x, y)
    slopes = gf.jit(gf.grad(lambda x: jnp.sum(product(x, y) ** 2)))(x)
    np.testing.assert_allclose(slopes, gf.grad(lambda x: jnp.sum(product(x, y) ** 2))(x), rtol=1e-4)


def test_larger_ones_stay_library_calls():
    a = matrices(6, 5, 5)
    assert calls_a_library(jnp.matmul, a, a)
    assert calls_a_library(lax.linalg.lu, a)
    assert calls_a_library(jnp.matmul, a[0, :2, :2], a[0, :2, :2])
    small = a[:, :2, :2] + 0j
    np.testing.assert_allclose(gf.jit(jnp.matmul)(small, small), small @ small, rtol=1e-12)


def test_empty_batches():
    a = np.zeros((0, 3, 3))
    assert gf.jit(jnp.linalg.inv)(a).shape == (0, 3, 3)
    assert gf.jit(jnp.matmul)(a, a).shape == (0, 3, 3)
    assert gf.jit(jnp.linalg.eigvals)(a.astype(np.float32)).shape == (0, 3)


# --- eigenvalues ---------------------------------------------------------------------------


def eigenvalues(a):
    return np.asarray(gf.jit(jnp.linalg.eigvals)(np.asarray(a, np.float32)))


def distance(got, want):
    """The largest distance of eigenvalues, in the order that makes it least, of one matrix."""
    return min(np.abs(got[list(p)] - want).max() for p in permutations(range(len(got))))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("scale", [1.0, 1e-18, 1e18])
def test_eigenvalues(size, scale):
    a = (scale * matrices(200, size, size)).astype(np.float32)
    a[:50] = a[:50] + a[:50].swapaxes(1, 2)
    got = eigenvalues(a)
    assert got.dtype == np.complex64
    assert not got[:50].imag.any()  # of symmetric matrices they are real
    for own, matrix in zip(got, a, strict=True):
        want = np.linalg.eigvals(matrix.astype(np.float64))
        # Made in float64 and rounded once, though 64 bits are not enabled.
        assert distance(own, want) <= 6.1e-8 * np.abs(want).max()


def test_multiple_eigenvalues():
    jordan = np.eye(3) * 2 + np.eye(3, k=1)
    small = np.diag([1e-6, 1, 1])
    a = np.stack([np.zeros((3, 3)), np.eye(3) * 2, np.diag([1, 1, 3]), jordan, small])
    got = np.sort_complex(eigenvalues(a))
    np.testing.assert_array_equal(got[0], 0)
    np.testing.assert_allclose(got[1], 2)
    np.testing.assert_allclose(got[2], [1, 1, 3], rtol=1e-6)
    # LAPACK is off by the cube root of float32's precision here, 5e-3.
    np.testing.assert_allclose(got[3], 2, atol=1e-4)
    np.testing.assert_allclose(got[4], [1e-6, 1, 1], atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("size", [2, 3])
def test_eigenvalues_of_inf_and_nan(size):
    a = np.stack([np.eye(size)] * 4)
    a[1, 0, 0], a[2, 0, 1], a[3, 1, 0] = np.nan, np.inf, -np.inf
    got = eigenvalues(a)
    np.testing.assert_allclose(got[0], 1)
    assert np.isnan(got[1:].real).all() and np.isnan(got[1:].imag).all()


def test_eigenvalues_call_no_lapack(monkeypatch):
    def refuse(*args):
        raise AssertionError("LAPACK was called")

    monkeypatch.setattr(eig, "_eigenvalues", refuse)
    assert eigenvalues(np.ones((4, 3, 3))).shape == (4, 3)


def test_eigenvalues_of_rotations():
    angle = np.linspace(0.1, 3.0, 9)
    c, s = np.cos(angle), np.sin(angle)
    a = np.stack([np.stack([c, -s], -1), np.stack([s, c], -1)], -2)
    got = eigenvalues(a)
    np.testing.assert_allclose(got[:, 0], np.exp(1j * angle), rtol=1e-6)
    np.testing.assert_array_equal(got[:, 1], got[:, 0].conj())
