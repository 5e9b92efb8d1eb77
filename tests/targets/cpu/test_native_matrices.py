"""Compiled decompositions of small matrices, in loops and outside, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from native_programs import in_scan, in_while, is_native

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.lax import linalg
from gpuflow.targets.cpu.library import matrices, qr
from gpuflow.targets.cpu.library.blas import private_blas

needs_blas = pytest.mark.skipif(private_blas() is None, reason="NumPy came without OpenBLAS")
DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
SQUARES = [(1, 1), (2, 2, 9, 9), (65, 65), (4, 0, 0)]
OTHERS = [(7, 7), (8, 3), (2, 3, 4, 6), (1, 10), (2, 0, 3), (150, 140)]
AROUND = [lambda function: function, in_scan, in_while]
NAN, INF = np.nan, np.inf


def numbers(shape, dtype):
    random = np.random.default_rng(sum(shape))
    x = random.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * random.standard_normal(shape)
    return x.astype(dtype)


def positive(shape, dtype):
    x = numbers(shape, dtype)
    return x @ x.conj().swapaxes(-1, -2) + np.eye(shape[-1], dtype=dtype) * max(shape[-1], 1)


def adjoint(x):
    return x.conj().swapaxes(-1, -2)


def results(function, x):
    """The results in a scan, and of an operand that does not lie in order, in float64."""
    turned = np.ascontiguousarray(x.swapaxes(-1, -2))
    for outs in (
        gf.jit(in_scan(function))(x),
        gf.jit(lambda x: function(x.swapaxes(-1, -2)))(turned),
    ):
        yield [_wide(np.asarray(out)) for out in gf.tree.leaves(outs)]


def _wide(x):
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def close(found, wanted, dtype, scale=1.0):
    """Equal up to some hundred roundings of the largest element."""
    assert found.shape == wanted.shape
    size = max(abs(wanted).max(), scale) if wanted.size else 1
    limit = 300 * np.finfo(dtype).eps * size
    np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARES)
def test_cholesky(shape, dtype):
    with gf.enable_x64(True):
        a = positive(shape, dtype)
        wanted = np.linalg.cholesky(_wide(a))
        for (factor,) in results(jnp.linalg.cholesky, a):
            close(factor, wanted if a.size else factor, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", OTHERS)
@pytest.mark.parametrize("full", [False, True])
def test_qr(shape, dtype, full):
    with gf.enable_x64(True):
        a = numbers(shape, dtype)
        wide = _wide(a)
        for q, r in results(lambda x: linalg.qr(x, full_matrices=full), a):
            close(q @ r, wide, dtype)
            inner = q.shape[-1]
            assert inner == (shape[-2] if full else min(shape[-2:]))
            products = adjoint(q) @ q
            close(products, np.broadcast_to(np.eye(inner), products.shape), dtype)
            np.testing.assert_array_equal(r, np.triu(r))
            if a.size:  # of which sign a column is does not depend on the library
                close(r[..., 0, 0], np.linalg.qr(wide)[1][..., 0, 0], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", OTHERS)
@pytest.mark.parametrize("full", [False, True])
def test_svd(shape, dtype, full):
    with gf.enable_x64(True):
        a = numbers(shape, dtype)
        wide, count = _wide(a), min(shape[-2:])
        values = np.linalg.svd(wide, compute_uv=False)
        for u, s, vh in results(lambda x: linalg.svd(x, full_matrices=full), a):
            close(s, values, dtype)
            close(u[..., :count] * s[..., None, :] @ vh[..., :count, :], wide, dtype)
            for vectors in (adjoint(u) @ u, vh @ adjoint(vh)):
                close(vectors, np.broadcast_to(np.eye(vectors.shape[-1]), vectors.shape), dtype)
        for (s,) in results(lambda x: linalg.svd(x, compute_uv=False), a):
            close(s, values, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARES)
@pytest.mark.parametrize("lower", [False, True])
def test_eigh(shape, dtype, lower):
    """Of one triangle: there is nan in the other one."""
    with gf.enable_x64(True):
        a = positive(shape, dtype)
        wide = _wide(a)
        other = ~(np.tril if lower else np.triu)(np.ones(shape[-2:], bool))
        a = np.where(other, dtype(NAN), a)
        values = np.linalg.eigvalsh(wide)
        options = {"lower": lower, "symmetrize_input": False}
        for around in (AROUND[0], in_scan):
            vectors, found = map(
                np.asarray, gf.jit(around(lambda x: tuple(linalg.eigh(x, **options))))(a)
            )
            close(found.astype(np.float64), values, dtype)
            close(_wide(vectors) * values[..., None, :] @ adjoint(_wide(vectors)), wide, dtype)
        alone = gf.jit(in_scan(lambda x: jnp.linalg.eigvalsh(x, UPLO="L" if lower else "U")))
        close(np.asarray(alone(wide.astype(dtype))).astype(np.float64), values, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARES)
def test_eig(shape, dtype):
    with gf.enable_x64(True):
        a = numbers(shape, dtype)
        wide = _wide(a)
        for values, vectors in results(lambda x: tuple(jnp.linalg.eig(x)), a):
            assert values.dtype.kind == "c" and vectors.dtype.kind == "c"
            close(wide @ vectors, vectors * values[..., None, :], dtype, scale=10)
            close((abs(vectors) ** 2).sum(-2), np.ones(values.shape), dtype)
        for (values,) in results(jnp.linalg.eigvals, a):
            close(values.sum(-1), np.trace(wide, axis1=-2, axis2=-1).astype(complex), dtype, 10)


def test_matrices_that_have_no_factor_are_nan_alone():
    a = np.tile(4 * np.eye(3, dtype=np.float32), (5, 1, 1))
    a[1, 2, 2], a[2, 0, 0], a[3, 1, 1] = -1, NAN, INF
    for around in AROUND:
        out = np.asarray(gf.jit(around(jnp.linalg.cholesky))(a))
        np.testing.assert_array_equal(out[[0, 4]], np.tile(2 * np.eye(3), (2, 1, 1)))
        lower = np.tril(np.ones((3, 3), bool))
        assert np.isnan(out[1:3, lower]).all() and not np.isfinite(out[3, lower]).all()
        assert (out[:, ~lower] == 0).all()


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_matrices_that_are_not_finite_are_nan_alone(value, dtype):
    with gf.enable_x64(True):
        a = positive((3, 6, 6), dtype)
        a[1, 4, 2] = value if np.dtype(dtype).kind == "f" else complex(0, value)
        for function in (jnp.linalg.eig, jnp.linalg.eigh, jnp.linalg.svd, jnp.linalg.eigvals):
            for around in (AROUND[0], in_while):
                outs = gf.jit(around(lambda x, f=function: tuple(gf.tree.leaves(f(x)))))(a)
                for out in map(np.asarray, outs):
                    assert np.isnan(out[1]).all() and np.isfinite(out[[0, 2]]).all()


def test_zeros_of_both_signs():
    a = np.diag([-0.0, 0.0, -0.0]).astype(np.float32)
    for function in (jnp.linalg.eigvalsh, lambda x: jnp.linalg.svd(x, compute_uv=False)):
        np.testing.assert_array_equal(np.asarray(gf.jit(in_scan(function))(a)), np.zeros(3))
    q, r = gf.jit(in_scan(lambda x: tuple(jnp.linalg.qr(x))))(a)
    np.testing.assert_array_equal(abs(np.asarray(q)), np.eye(3))
    np.testing.assert_array_equal(np.asarray(r), np.zeros((3, 3)))


@needs_blas
def test_what_is_native(monkeypatch):
    a = positive((8, 8), np.float32)
    for name in ("cholesky", "qr", "svd", "eigh", "eigvalsh", "eig", "eigvals", "inv", "det"):
        function = getattr(jnp.linalg, name)
        for around in (in_scan, in_while):
            assert is_native(around(lambda x, f=function: tuple(gf.tree.leaves(f(x)))), a), name
    large = positive((matrices.MAX_ROWS + 1,) * 2, np.float32)
    assert not is_native(linalg.cholesky, large) and not is_native(linalg.cholesky, a[:0, :0])
    assert is_native(linalg.qr, large)
    assert not is_native(linalg.qr, np.zeros((qr.MAX_ELEMENTS + 1, 3), np.float32))
    assert not is_native(lambda x: linalg.eig(x, compute_left_eigenvectors=True), a)
    assert not is_native(lambda x: linalg.eigh(x, subset_by_index=(0, 3)), a)
    monkeypatch.setattr(matrices, "find_loop", lambda ufunc, types: None)
    monkeypatch.setattr(qr, "private_blas", lambda: None)
    assert not is_native(linalg.cholesky, a) and not is_native(linalg.qr, a)


def test_solvers_in_a_loop():
    """A Gauss-Newton step by each decomposition."""
    a, b = numbers((12, 5), np.float64), numbers((12,), np.float64)
    wanted = scipy.linalg.lstsq(a, b)[0]

    def by_qr(a):
        q, r = jnp.linalg.qr(a)
        return gf.scipy.linalg.solve_triangular(r, q.T @ b)

    def by_cholesky(a):
        return gf.scipy.linalg.cho_solve(gf.scipy.linalg.cho_factor(a.T @ a), a.T @ b)

    with gf.enable_x64(True):
        for function in (by_qr, by_cholesky, lambda a: jnp.linalg.lstsq(a, b)[0]):
            found = np.asarray(gf.jit(in_scan(function))(a))
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
