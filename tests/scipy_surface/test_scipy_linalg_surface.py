"""scipy.linalg in float64 against SciPy, with derivatives and batches."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg as truth

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.scipy import linalg


@pytest.fixture(autouse=True)
def wide_dtypes():
    with gf.enable_x64(True):
        yield


def matrix(*shape, dtype=np.float64, seed=0):
    random = np.random.default_rng([seed, *shape])
    values = random.normal(size=shape)
    return values + 1j * random.normal(size=shape) if dtype == np.complex128 else values


def compare(got, want, tolerance=1e-10):
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            compare(one, other, tolerance)
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)


def slope(function, x, direction, step=1e-6):
    return (function(x + step * direction) - function(x - step * direction)) / (2 * step)


A, B, C = matrix(5, 5), matrix(4, 4), matrix(5, 4)
Z = matrix(5, 5, dtype=np.complex128)


# --- functions of matrices -----------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e-3, 0.1, 1.0, 5.0, 40.0])
def test_expm(scale):
    for x in (A, Z):
        compare(linalg.expm(scale * x), truth.expm(scale * x), 1e-11)


def test_expm_of_batches_scales_each_matrix_by_itself():
    scales = np.array([1e-3, 30.0, 1.0])[:, None, None]
    want = np.stack([truth.expm(x) for x in scales * A])
    for got, each in zip(linalg.expm(scales * A), want, strict=True):
        compare(got, each, 1e-11)
    compare(gf.vmap(linalg.expm)(scales * A), want, 1e-11)


def test_expm_of_too_large_norms_is_nan():
    assert np.isnan(linalg.expm(1e8 * A)).all()
    assert np.isnan(linalg.expm(A * np.nan)).all()
    compare(linalg.expm(np.zeros((0, 0))), np.zeros((0, 0)))


@pytest.mark.parametrize("scale", [0.0, 0.1, 20.0])
def test_gradient_of_expm(scale):
    x, direction, weights = scale * A, matrix(5, 5, seed=1), matrix(5, 5, seed=2)

    def loss(x):
        return jnp.sum(weights * linalg.expm(x))

    got = float(jnp.sum(gf.grad(loss)(x) * direction))
    want = float(np.sum(weights * truth.expm_frechet(x, direction, compute_expm=False)))
    assert got == pytest.approx(want, rel=1e-9)
    compare(linalg.expm_frechet(x, direction), truth.expm_frechet(x, direction), 1e-9)


@pytest.mark.parametrize("x", [A, Z, A @ A.T, np.triu(A) ** 2, np.eye(3), np.zeros((2, 2))])
def test_sqrtm(x):
    root = np.asarray(linalg.sqrtm(x))
    compare(root @ root, x, 1e-9)
    assert (np.linalg.eigvals(root).real >= -1e-7).all()


def test_sqrtm_of_a_matrix_without_a_root():
    assert not np.isfinite(linalg.sqrtm(np.array([[0.0, 1.0], [0.0, 0.0]]))).all()


def test_funm():
    compare(linalg.funm(A, jnp.sin), truth.funm(A, np.sin), 1e-8)
    value, error = linalg.funm(Z, jnp.exp, disp=False)
    compare(value, truth.expm(Z), 1e-8)
    assert 0 < float(error) < 1e-10


def test_sylvester():
    for a, b, c in ((A, B, C), (Z, B, C), (A, Z[:4, :4], C)):
        for method in ("schur", "eigen"):
            x = np.asarray(linalg.solve_sylvester(a, b, c, method=method))
            compare(a @ x + x @ b, c + 0 * x, 1e-9)
    compare(linalg.solve_sylvester(A, B, C), truth.solve_sylvester(A, B, C), 1e-9)
    assert np.isnan(linalg.solve_sylvester(np.eye(2), -np.eye(2), np.eye(2))).all()
    many = linalg.solve_sylvester(np.stack([A, 2 * A]), B, C)
    compare(many[1], truth.solve_sylvester(2 * A, B, C), 1e-9)


# --- decompositions ------------------------------------------------------------------------


def test_real_to_complex_schur():
    form, vectors = truth.schur(A)
    compare(linalg.rsf2csf(form, vectors), truth.rsf2csf(form, vectors))
    got, basis = (np.asarray(x) for x in linalg.rsf2csf(*linalg.schur(A)))
    compare(basis @ got @ basis.conj().T, A)
    compare(np.tril(got, -1), np.zeros_like(got))


def test_polar():
    for side in ("right", "left"):
        for method in ("qdwh", "svd"):
            compare(linalg.polar(A, side, method=method), truth.polar(A, side))
    compare(linalg.polar(C, method="qdwh"), truth.polar(C))
    compare(linalg.polar(np.stack([C, 2 * C]))[0][1], truth.polar(C)[0])


@pytest.mark.parametrize("x", [A, C, C.T, Z, np.stack([C, C + 1])])
def test_lu(x):
    p, lower, upper = (np.asarray(part) for part in linalg.lu(x))
    compare(p @ lower @ upper, x)
    compare(linalg.lu(x, permute_l=True)[0], p @ lower)
    if x.ndim == 2:
        compare((p, lower, upper), truth.lu(x))


@pytest.mark.parametrize("mode", ["full", "economic", "r"])
@pytest.mark.parametrize("pivoting", [False, True])
def test_qr(mode, pivoting):
    compare(linalg.qr(C, mode=mode, pivoting=pivoting), truth.qr(C, mode=mode, pivoting=pivoting))


@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize("conjugate", [False, True])
def test_qr_multiply(pivoting, conjugate):
    for mode, c in (("right", matrix(3, 5)), ("left", matrix(4, 2)), ("left", matrix(4))):
        want = truth.qr_multiply(Z[:, :4], c, mode, pivoting, conjugate)
        compare(linalg.qr_multiply(Z[:, :4], c, mode, pivoting, conjugate), want)


def test_hessenberg():
    for x in (A, Z, A[:1, :1], A[:2, :2]):
        compare(linalg.hessenberg(x, calc_q=True), truth.hessenberg(x, calc_q=True))
    h, q = (np.asarray(part) for part in linalg.hessenberg(np.stack([A, A.T]), calc_q=True))
    compare(q @ h @ q.swapaxes(1, 2), np.stack([A, A.T]))


@pytest.mark.parametrize("size", [1, 2, 7])
def test_tridiagonal(size):
    d, e = matrix(size), matrix(size - 1)
    values, vectors = linalg.eigh_tridiagonal(d, e)
    compare(values, truth.eigvalsh_tridiagonal(d, e))
    full = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    compare(full @ np.asarray(vectors), np.asarray(vectors) * np.asarray(values))
    some = linalg.eigh_tridiagonal(d, e, select="i", select_range=(0, size // 2))[0]
    compare(some, values[: size // 2 + 1])
    slopes = gf.grad(lambda d: linalg.eigh_tridiagonal(d, e, eigvals_only=True)[0])(d)
    compare(slopes, np.asarray(vectors)[:, 0] ** 2)


# --- systems -------------------------------------------------------------------------------


@pytest.mark.parametrize("lower", [False, True])
def test_positive_systems_and_their_gradients(lower):
    p = Z @ Z.conj().T + np.eye(5)
    b = matrix(5, 2)
    compare(linalg.solve(p, b, assume_a="pos", lower=lower), np.linalg.solve(p, b), 1e-9)
    compare(linalg.cho_solve(linalg.cho_factor(p, lower), b), np.linalg.solve(p, b), 1e-9)
    real = p.real

    def loss(solve):
        return lambda p, b: jnp.sum(jnp.sin(solve(p, b)))

    got = gf.grad(loss(lambda p, b: linalg.solve(p, b, assume_a="pos")), (0, 1))(real, b)
    compare(got, gf.grad(loss(jnp.linalg.solve), (0, 1))(real, b), 1e-8)


@pytest.mark.parametrize("trans", [0, 1, 2])
def test_factored_systems(trans):
    a = [Z, Z.T, Z.conj().T][trans]
    for b in (matrix(5), matrix(5, 3)):
        compare(linalg.lu_solve(linalg.lu_factor(Z), b, trans), np.linalg.solve(a, b), 1e-9)


def test_batches_of_vectors_warn():
    with pytest.warns(FutureWarning, match=r"\[solve_triangular\] b must have a last axis"):
        got = linalg.solve_triangular(np.stack([A, 2 * A]), np.ones((2, 5)))
    compare(got[1], truth.solve_triangular(2 * A, np.ones(5)), 1e-8)


# --- constants -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 9])
@pytest.mark.parametrize("name", ["hilbert", "invhilbert", "invpascal", "helmert"])
def test_named_matrices_are_rounded_once(name, size):
    np.testing.assert_allclose(
        getattr(linalg, name)(size), getattr(truth, name)(size), rtol=4e-16, atol=1e-15
    )


def test_large_dft_keeps_its_digits():
    """Products of indices are reduced as integers."""
    size = 1021
    turns = np.arange(size, dtype=np.int64)[-1] * np.arange(size) % size
    np.testing.assert_allclose(
        np.asarray(linalg.dft(size))[-1], np.exp(-2j * np.pi * turns / size), atol=1e-15
    )


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("count", [1, 3, 6, 9])
def test_convolution_matrix(mode, count):
    v, other = matrix(6), matrix(count, seed=3)
    compare(linalg.convolution_matrix(v, count, mode), truth.convolution_matrix(v, count, mode))
    compare(linalg.convolution_matrix(v, count, mode) @ other, np.convolve(v, other, mode))
