"""ormqr against the Q that householder_product makes, and qdwh against what it promises."""

import numpy as np
import pytest
from rule_checks import check_derivatives, check_vmap, random_array

import gpuflow as gf
from gpuflow import lax
from gpuflow.lax import linalg
from gpuflow.ops.linalg import eigh, svd

DTYPES = ("float32", "complex64")
FLAGS = [(left, transpose) for left in (True, False) for transpose in (False, True)]


def matrix(shape, dtype="float32", seed=0):
    return random_array(np.random.default_rng(seed), shape, dtype)


def whole_q(a, taus):
    """All columns of Q."""
    rows, columns = a.shape[-2:]
    wide = np.concatenate([a, np.zeros((*a.shape[:-1], rows - columns), a.dtype)], -1)
    return np.asarray(linalg.householder_product(wide, taus))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left, transpose", FLAGS)
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_ormqr(dtype, left, transpose, batch):
    a, taus = map(np.asarray, linalg.geqrf(matrix((*batch, 5, 3), dtype)))
    c = matrix((*batch, 5, 2) if left else (*batch, 2, 5), dtype, 1)
    q = whole_q(a, taus)
    q = q.conj().swapaxes(-1, -2) if transpose else q
    for call in (lambda f: f, gf.jit):
        got = call(lambda c: linalg.ormqr(a, taus, c, left=left, transpose=transpose))(c)
        np.testing.assert_allclose(got, q @ c if left else c @ q, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left, transpose", FLAGS)
def test_derivatives_of_ormqr(dtype, left, transpose):
    a, taus = map(np.asarray, linalg.geqrf(matrix((4, 3), dtype)))
    c = matrix((4, 2) if left else (2, 4), dtype, 1)

    def product(c):
        return linalg.ormqr(a, taus, c, left=left, transpose=transpose)

    check_derivatives(product, [c])
    check_vmap(product, [c], tolerance=1e-5)


def test_vmap_of_ormqr_over_reflectors():
    stack = np.stack([matrix((4, 3), seed=k) for k in range(2)])
    a, taus = linalg.geqrf(stack)
    c = matrix((4, 2), seed=3)
    mapped = gf.vmap(linalg.ormqr, in_axes=(0, 0, None))(a, taus, c)
    for k in range(2):
        want = linalg.ormqr(a[k], taus[k], c)
        np.testing.assert_allclose(mapped[k], want, rtol=1e-6, atol=1e-6)


def test_ormqr_without_reflectors():
    c = matrix((3, 2))
    np.testing.assert_array_equal(linalg.ormqr(matrix((3, 2)), np.zeros(0, np.float32), c), c)
    assert linalg.ormqr(matrix((3, 2)), matrix((2,)), matrix((3, 0))).shape == (3, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (7, 3), (1, 1)])
def test_qdwh(dtype, shape):
    x = matrix(shape, dtype)
    for call in (linalg.qdwh, gf.jit(linalg.qdwh)):
        u, h, count, converged = map(np.asarray, call(x))
        np.testing.assert_allclose(u @ h, x, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(u.conj().T @ u, np.eye(shape[1]), atol=2e-5)
        np.testing.assert_array_equal(h, h.conj().T)
        assert np.linalg.eigvalsh(h).min() > 0 and converged and 0 < count <= 10


def test_qdwh_stops_early_and_takes_parts():
    x = matrix((6, 4))
    assert not linalg.qdwh(x, max_iterations=2)[3]
    u, h = linalg.qdwh(x, dynamic_shape=(5, np.int32(3)))[:2]
    small_u, small_h = linalg.qdwh(x[:5, :3])[:2]
    np.testing.assert_allclose(np.asarray(u)[:5, :3], small_u, atol=1e-5)
    np.testing.assert_allclose(np.asarray(h)[:3, :3], small_h, atol=1e-5)
    assert not np.asarray(u)[5:].any() and not np.asarray(h)[3:].any()


def test_algorithms_that_lapack_has():
    x = np.diag(np.array([3, 1], np.float32))
    for algorithm in ("DEFAULT", "QR", "DIVIDE_AND_CONQUER"):
        _, values, _ = linalg.svd(x, algorithm=linalg.SvdAlgorithm[algorithm])
        np.testing.assert_allclose(values, [3, 1])
    _, values = linalg.eigh(x, implementation=linalg.EighImplementation.QR)
    np.testing.assert_allclose(values, [1, 3])
    assert len(linalg.eig(x, implementation=linalg.EigImplementation.LAPACK)) == 3


def test_primitives_of_linalg():
    assert linalg.lu_pivots_to_permutation_p.name == "lu_pivots_to_permutation"
    assert linalg.ormqr_p is lax.ormqr_p
    assert {"qr_p", "ormqr_p"} <= set(dir(linalg)) and "add_p" not in dir(linalg)


EYE = np.eye(3, dtype=np.float32)
ERRORS = {
    r"^\[ormqr\] c must have as many rows": (
        ValueError,
        lambda: linalg.ormqr(EYE, EYE[0], EYE[:2]),
    ),
    r"^\[ormqr\] c must have as many columns": (
        ValueError,
        lambda: linalg.ormqr(EYE, EYE[0], EYE[:, :2], left=False),
    ),
    r"^\[ormqr\] there must not be more factors": (
        ValueError,
        lambda: linalg.ormqr(EYE[:, :2], EYE[0], EYE),
    ),
    r"^\[ormqr\] reflectors and factors are a packed form": (
        NotImplementedError,
        lambda: gf.jvp(lambda a: linalg.ormqr(a, EYE[0], EYE), (EYE,), (EYE,)),
    ),
    r"^\[qdwh\] the operand must be one matrix": (TypeError, lambda: linalg.qdwh(EYE[None])),
    r"^\[qdwh\] there must not be fewer rows": (ValueError, lambda: linalg.qdwh(EYE[:2])),
    r"^\[svd\] algorithm must be None or one of": (
        NotImplementedError,
        lambda: linalg.svd(EYE, algorithm=linalg.SvdAlgorithm.POLAR),
    ),
    r"^\[eigh\] implementation must be": (
        NotImplementedError,
        lambda: linalg.eigh(EYE, implementation=linalg.EighImplementation.JACOBI),
    ),
    r"^\[eig\] implementation must be": (
        ValueError,
        lambda: linalg.eig(EYE, implementation=linalg.EigImplementation.MAGMA),
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    error, call = ERRORS[message]
    with pytest.raises(error, match=message) as caught:
        call()
    assert "Fix:" in str(caught.value)


def test_missing_names():
    with pytest.raises(AttributeError, match=r"\[gpuflow.lax.linalg\].*ormq_p.*lax.linalg.ormqr_p"):
        _ = linalg.ormq_p
    with pytest.raises(AttributeError, match=r"lax.linalg.cholesky"):
        _ = linalg.choleski


# --- modules of arrays that are not NumPy ---


class Other:
    """NumPy by another name, whose factorizations do not fail, as CuPy's."""

    def __init__(self):
        self.linalg = self

    def __getattr__(self, name):
        return getattr(np, name)

    def svd(self, a, full_matrices, compute_uv):
        return np.linalg.svd(np.nan_to_num(a), full_matrices, compute_uv)

    def eigh(self, a, side):
        return np.linalg.eigh(np.nan_to_num(a), side)


def _damaged(value):
    """Three positive definite matrices, of which the second has one wrong element."""
    x = np.random.default_rng(0).normal(size=(3, 5, 5)).astype(np.float32)
    a = x @ x.swapaxes(-1, -2) + np.eye(5, dtype=np.float32)
    a[1, 2, 2] = value
    return a


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_gives_nan_on_devices_too(value):
    a = _damaged(value)
    options = {"full_matrices": False, "compute_uv": True, "subset_by_index": None}
    outs = svd.svd_p.impl(Other(), a, **options)
    options = {"lower": True, "sort_eigenvalues": True, "subset_by_index": None}
    outs += eigh.eigh_p.impl(Other(), a, compute_vectors=True, **options)
    for out in outs:
        assert out.dtype == np.float32
        assert np.isnan(out[1]).all() and np.isfinite(out[::2]).all()
