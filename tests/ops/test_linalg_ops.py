"""The matrix ops: what a decomposition multiplies to, derivatives, degenerate matrices, errors.

Ops whose operands must be symmetric or come from another op are checked here with the functions
of the sweep; the others are in the sweep too.
"""

from __future__ import annotations

import numpy as np
import pytest
from op_sweep import difference_quotient, jvp, pairing, random_array, vjp, vmap, x64
from together import together

import gpuflow as gf
import gpuflow.lax.linalg
from gpuflow import lax

linalg = lax.linalg
DTYPES = [np.dtype(name) for name in ("float32", "float64", "complex64", "complex128")]
EPS = {dtype: float(np.finfo(dtype).eps) for dtype in DTYPES}


@pytest.fixture(autouse=True)
def wide_dtypes():
    with x64():
        yield


def matrix(shape, dtype=np.float64, seed=0):
    random = np.random.default_rng([seed, *shape])
    return random_array(random, shape, np.dtype(dtype), -1.0, 1.0)


def adjoint(x):
    return np.asarray(x).swapaxes(-1, -2).conj()


def positive(shape, dtype=np.float64, seed=0):
    x = matrix(shape, dtype, seed)
    return x @ adjoint(x) + np.eye(shape[-1], dtype=dtype)


def hermitian(shape, dtype=np.float64, seed=0):
    x = matrix(shape, dtype, seed)
    return (x + adjoint(x)) / 2


def close(got, want, dtype=np.float64, factor=100.0):
    """Up to ``factor`` roundings of the largest element: what backward stability promises."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    tolerance = factor * EPS[np.dtype(dtype)] * max(1.0, float(np.abs(want).max(initial=0.0)))
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


def is_unitary(q, dtype):
    q = np.asarray(q)
    size = q.shape[-1]
    close(adjoint(q) @ q, np.broadcast_to(np.eye(size), (*q.shape[:-2], size, size)), dtype)


BATCHES = [(), (2,), (0,), (2, 3)]
# Below and above the size from which on another library computes, and one single element.
SIZES = [1, 4, 65]


def test_the_namespace_is_a_module():
    assert gpuflow.lax.linalg is linalg is gf.lax.linalg
    with pytest.raises(AttributeError, match=r"linalg\] the name must be one that exists.*svd"):
        linalg.svdd  # noqa: B018


# --- reconstruction ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_symmetric_decompositions(size, batch, dtype):
    a = positive((*batch, size, size), dtype)
    factor = np.asarray(linalg.cholesky(a))
    assert factor.dtype == dtype and not np.triu(factor, 1).any()
    close(factor @ adjoint(factor), a, dtype)
    h = hermitian((*batch, size, size), dtype)
    vectors, values = map(np.asarray, linalg.eigh(h))
    assert values.dtype == h.real.dtype and (np.diff(values) >= 0).all()
    is_unitary(vectors, dtype)
    close(vectors * values[..., None, :] @ adjoint(vectors), h, dtype)


@together(size=8)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (5, 3), (3, 5), (70, 65), (0, 2), (2, 0)])
def test_rectangular_decompositions(shape, batch, dtype):
    a = matrix((*batch, *shape), dtype)
    for full in (True, False):
        q, r = map(np.asarray, linalg.qr(a, full_matrices=full))
        is_unitary(q, dtype)
        assert not np.tril(r, -1).any()
        close(q @ r, a, dtype)
        q, r, order = map(np.asarray, linalg.qr(a, pivoting=True, full_matrices=full))
        is_unitary(q, dtype)
        close(q @ r, np.take_along_axis(a, order[..., None, :].astype(int), -1), dtype)
        falling = np.abs(np.einsum("...ii->...i", r[..., : min(shape), : min(shape)]))
        assert (np.diff(falling) <= 1e-6).all()
        u, s, vh = map(np.asarray, linalg.svd(a, full_matrices=full))
        is_unitary(u, dtype)
        is_unitary(adjoint(vh), dtype)
        assert (s >= 0).all() and (np.diff(s) <= 0).all()
        rank = min(shape)
        close(u[..., :rank] * s[..., None, :] @ vh[..., :rank, :], a, dtype)
        close(linalg.svd(a, compute_uv=False), s, dtype)


@together(size=20)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", [(), (2,), (0,), (60,)], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (5, 3), (3, 5), (0, 2)])
def test_lu(shape, batch, dtype):
    """Small matrices of large batches are eliminated all at once."""
    a = matrix((*batch, *shape), dtype)
    factors, pivots, permutation = map(np.asarray, linalg.lu(a))
    size = min(shape)
    lower = np.tril(factors[..., :size], -1) + np.eye(shape[0], size)
    close(
        lower @ np.triu(factors[..., :size, :]),
        np.take_along_axis(a, permutation[..., None].astype(int), -2),
        dtype,
    )
    assert (np.abs(lower) <= 1.0 + 1e-5).all() or dtype.kind == "c"
    again = linalg.lu_pivots_to_permutation(pivots, shape[0])
    np.testing.assert_array_equal(again, permutation)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_general_eigenvectors(size, batch, dtype):
    a = matrix((*batch, size, size), dtype)
    values, left, right = map(np.asarray, linalg.eig(a))
    factor = 3000.0  # eigenvalues of general matrices may be sensitive
    close(a @ right, right * values[..., None, :], dtype, factor)
    close(adjoint(left) @ a, values[..., :, None] * adjoint(left), dtype, factor)
    for vectors in (left, right):
        close(np.linalg.norm(vectors, axis=-2), np.ones((*batch, size)), dtype)
        largest = np.take_along_axis(vectors, np.abs(vectors).argmax(-2)[..., None, :], -2)
        close(largest.imag, np.zeros(largest.shape), dtype)
    alone = linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]
    order = np.sort_complex(np.asarray(alone).round(2))
    np.testing.assert_allclose(order, np.sort_complex(values.round(2)), atol=0.03)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_unitary_forms(size, batch, dtype):
    a = matrix((*batch, size, size), dtype)
    form, vectors = map(np.asarray, linalg.schur(a))
    is_unitary(vectors, dtype)
    close(vectors @ form @ adjoint(vectors), a, dtype, 1000.0)
    assert not np.tril(form, -1 if dtype.kind == "c" else -2).any()
    np.testing.assert_array_equal(linalg.schur(a, compute_schur_vectors=False)[0], form)
    form, taus = map(np.asarray, linalg.hessenberg(a))
    q = reflections(form, taus)
    close(q @ np.triu(form, -1) @ adjoint(q), a, dtype, 1000.0)
    h = hermitian((*batch, size, size), dtype)
    form, diagonal, beside, taus = map(np.asarray, linalg.tridiagonal(h))
    q = reflections(form, taus)
    band = np.einsum("...i,ij->...ij", diagonal, np.eye(size)).astype(dtype)
    place = np.arange(size - 1)
    band[..., place + 1, place] = band[..., place, place + 1] = beside
    close(q @ band @ adjoint(q), h, dtype, 1000.0)


def reflections(form, taus):
    """The unitary matrix of a form whose vectors start below the first subdiagonal."""
    size = form.shape[-1]
    q = np.broadcast_to(np.eye(size), form.shape).astype(form.dtype)
    if size > 1:
        q[..., 1:, 1:] = linalg.householder_product(form[..., 1:, :-1], taus)
    return q


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 5, 3), (0, 3, 2)])
def test_householder_product(shape, dtype):
    a = matrix(shape, dtype)
    reflectors, taus = linalg.geqrf(a)
    q = np.asarray(linalg.householder_product(reflectors, taus))
    close(q @ np.triu(np.asarray(reflectors)[..., : shape[-1], :]), a, dtype)


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_cholesky_update(batch):
    a, w = positive((*batch, 4, 4)), matrix((*batch, 4))
    factor = adjoint(linalg.cholesky(a))
    updated = np.asarray(linalg.cholesky_update(factor, w))
    close(adjoint(updated) @ updated, a + w[..., :, None] * w[..., None, :])
    np.testing.assert_array_equal(linalg.cholesky_update(factor, np.zeros_like(w)), factor)


def test_symmetric_product():
    a, c = matrix((2, 3, 4)), hermitian((2, 3, 3))
    want = 2 * a @ adjoint(a) + 0.5 * c
    for flag in (False, True):
        close(linalg.symmetric_product(a, c, alpha=2, beta=0.5, symmetrize_output=flag), want)


@pytest.mark.parametrize("subset", [(0, 2), (1, 4), (2, 2)])
def test_subsets(subset):
    h, a = hermitian((4, 4)), matrix((5, 4))
    chosen = slice(*subset)
    for part, whole in zip(linalg.eigh(h, subset_by_index=subset), linalg.eigh(h)):
        np.testing.assert_array_equal(part, np.asarray(whole)[..., chosen])
    u, s, vh = linalg.svd(a, full_matrices=False)
    result = linalg.svd(a, full_matrices=False, subset_by_index=subset)
    wanted = np.asarray(u)[:, chosen], np.asarray(s)[chosen], np.asarray(vh)[chosen]
    for part, whole in zip(result, wanted):
        np.testing.assert_array_equal(part, whole)


def test_eigh_reads_one_triangle():
    h = hermitian((4, 4), np.complex128)
    for lower in (True, False):
        spoiled = np.where(
            np.tri(4, k=-1, dtype=bool).T if lower else np.tri(4, k=-1, dtype=bool), np.nan, h
        )
        values = linalg.eigh(spoiled, lower=lower, symmetrize_input=False)[1]
        close(values, np.linalg.eigvalsh(h))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eigenvalues_by_the_public_function(dtype, monkeypatch):
    a = matrix((5, 3, 3), dtype)

    def values():
        result = linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)
        return np.asarray(result[0])

    first = values()
    monkeypatch.setattr("gpuflow.ops.linalg.eig._LOOP", None)
    close(values(), first, dtype)


# --- derivatives and vmap ------------------------------------------------------------------

FUNCTIONS = {
    "cholesky": lambda x: [linalg.cholesky(x @ hermite(x) + np.eye(3))],
    "cholesky of its triangle": lambda x: [
        linalg.cholesky(x @ hermite(x) + np.eye(3), symmetrize_input=False)
    ],
    "cholesky_update": lambda x: [linalg.cholesky_update(upper(x.real) + 3 * np.eye(3), x.real[0])],
    "eigh values": lambda x: [linalg.eigh(x + hermite(x))[1]],
    "eigh projections": lambda x: [abs(linalg.eigh(x + hermite(x))[0]) ** 2],
    "eigh of its triangle": lambda x: [linalg.eigh(x + hermite(x), symmetrize_input=False)[1]],
    "svd projections": lambda x: [abs(part) ** 2 for part in linalg.svd(x, full_matrices=False)],
    "wide svd": lambda x: [abs(part) ** 2 for part in linalg.svd(x[:2], full_matrices=False)],
    "tall svd": lambda x: [abs(part) ** 2 for part in linalg.svd(x[:, :2], full_matrices=False)],
    "symmetric_product": lambda x: [
        linalg.symmetric_product(gf.numpy.real(x), gf.numpy.real(x + x.T), beta=0.5)
    ],
    "eigenvalues": lambda x: [
        linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]
    ],
    "eigenvectors": lambda x: [
        without_phase(vectors) for vectors in linalg.eig(x, enable_eigvec_derivs=True)[1:]
    ],
}


def without_phase(vectors):
    """Products of the components of each vector, which its sign and phase leave as they are."""
    return vectors[:, None, :] * vectors.conj()[None, :, :]


def hermite(x):
    return x.conj().swapaxes(0, 1)


def upper(x):
    return lax.mul(x, np.triu(np.ones((3, 3))))


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name, dtype):
    """jvp against central differences, vjp against jvp, and both again for the derivative."""

    def function(x):
        return FUNCTIONS[name](gf.numpy.asarray(x))

    x = matrix((3, 3), dtype, seed=4)
    along = [matrix((3, 3), dtype, seed=5)]
    check_first_order(function, [x])
    check_first_order(lambda y: jvp(function, [y], along), [x])


def check_first_order(function, primals):
    tangents = [matrix(x.shape, x.dtype, seed=7) for x in primals]
    result = jvp(function, primals, tangents)
    # Truncation and rounding of central differences balance near the cube root of eps.
    for got, want in zip(result, difference_quotient(function, primals, tangents, 6e-6)):
        scale = max(1.0, float(np.abs(want).max(initial=0.0)))
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7 * scale)
    cotangents = [matrix(np.shape(t), np.asarray(t).dtype, seed=8) for t in result]
    left = pairing(cotangents, result)
    right = pairing(vjp(function, primals, cotangents), tangents)
    np.testing.assert_allclose(right, left, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap(name):
    def function(x):
        return FUNCTIONS[name](gf.numpy.asarray(x))

    x = np.stack([matrix((3, 3), seed=k) for k in range(4)], axis=1)
    outs = vmap(function, [x], [1])
    for lane in range(4):
        for out, want in zip(outs, function(x[:, lane])):
            close(np.asarray(out)[lane], want, factor=1e4)


@pytest.mark.parametrize("name", ["cholesky", "eigh values", "eigenvalues"])
def test_jit(name):
    def function(x):
        return FUNCTIONS[name](x)[0]

    x = matrix((3, 3))
    close(gf.jit(function)(x), function(gf.numpy.asarray(x)))


def test_derivatives_that_do_not_exist():
    a = matrix((4, 3))
    with pytest.raises(NotImplementedError, match=r"^\[svd\] derivatives of full.*Fix:"):
        jvp(lambda x: list(linalg.svd(x)), [a], [a])
    with pytest.raises(NotImplementedError, match=r"^\[eig\] derivatives of eigenvectors.*Fix:"):
        jvp(lambda x: linalg.eig(x), [a[:3]], [a[:3]])
    with pytest.raises(NotImplementedError, match=r"^\[eigh\] derivatives need all.*Fix:"):
        jvp(lambda x: list(linalg.eigh(x, subset_by_index=(0, 1))), [a[:3]], [a[:3]])


def test_triangular_solve_of_one_matrix_is_one_call():
    """Mapped right-hand sides of one matrix are columns of one system."""
    a, b = np.tril(matrix((3, 3))) + 2 * np.eye(3), matrix((5, 3, 2))
    for left in (True, False):
        rhs = b if left else b.swapaxes(1, 2)

        def solve(x, left=left):
            return linalg.triangular_solve(a, x, left_side=left, lower=True)

        jaxpr = gf.make_jaxpr(gf.vmap(solve))(rhs)
        (eqn,) = [e for e in jaxpr.eqns if e.primitive.name == "triangular_solve"]
        assert [v.aval.ndim for v in eqn.inputs] == [2, 2]
        for lane, out in enumerate(np.asarray(gf.vmap(solve)(rhs))):
            close(out, solve(rhs[lane]))


# --- degenerate matrices -------------------------------------------------------------------


def test_failures_give_nan_for_their_matrix_only():
    good = positive((3, 3))
    for bad in (-np.eye(3), np.full((3, 3), np.nan), np.zeros((3, 3))):
        factors = np.asarray(linalg.cholesky(np.stack([good, bad, good])))
        close(factors[0], np.linalg.cholesky(good))
        close(factors[2], factors[0])
        assert np.isnan(factors[1][np.tri(3, dtype=bool)]).all()
        assert not np.triu(factors[1], 1).any()


@pytest.mark.parametrize("size", [3, 65])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["eig", "eigh", "svd", "schur"])
def test_what_is_not_finite_gives_nan(name, value, size):
    good = hermitian((size, size))
    bad = good.copy()
    bad[0, 0] = value
    function = getattr(linalg, name)
    for out, want in zip(function(np.stack([bad, good])), function(good)):
        assert np.isnan(np.asarray(out)[0]).all()
        close(np.asarray(out)[1], want)


def test_what_is_not_finite_never_raises():
    bad = np.full((3, 3), np.nan)
    for name in ("qr", "lu", "geqrf", "hessenberg", "tridiagonal"):
        outs = getattr(linalg, name)(bad)
        assert any(np.isnan(np.asarray(out)).any() for out in outs if out.dtype.kind == "f")


def test_no_convergence_gives_nan(monkeypatch):
    """LAPACK seldom gives up, so NumPy is made to refuse one matrix of a batch."""
    real = np.linalg.eigh

    def refusing(a, side):
        if (a[..., 0, 0] == 7).any():
            raise np.linalg.LinAlgError("Eigenvalues did not converge")
        return real(a, side)

    monkeypatch.setattr(np.linalg, "eigh", refusing)
    a = np.stack([np.eye(2), 7 * np.eye(2)])
    # With a subset NumPy is called; its loop, which native programs call, says nan by itself.
    vectors, values = map(np.asarray, linalg.eigh(a, subset_by_index=(0, 2)))
    np.testing.assert_array_equal(values[0], [1, 1])
    assert np.isnan(values[1]).all() and np.isnan(vectors[1]).all()


@pytest.mark.parametrize("batch", [(), (40,)], ids=str)
def test_singular_triangular_matrices_divide_by_zero(batch):
    a = np.broadcast_to(np.array([[1.0, 0.0], [2.0, 0.0]]), (*batch, 2, 2))
    b = np.broadcast_to(np.array([[1.0], [5.0]]), (*batch, 2, 1))
    result = np.asarray(linalg.triangular_solve(a, b, left_side=True, lower=True))
    np.testing.assert_array_equal(result, np.broadcast_to([[1.0], [np.inf]], b.shape))


def test_singular_matrices_have_lu():
    a = np.array([[1.0, 2.0], [2.0, 4.0]])
    factors, _, permutation = linalg.lu(a)
    np.testing.assert_array_equal(factors, [[2.0, 4.0], [0.5, 0.0]])
    np.testing.assert_array_equal(permutation, [1, 0])
    many = np.asarray(linalg.lu(np.broadcast_to(a, (50, 2, 2)))[0])
    np.testing.assert_array_equal(many, np.broadcast_to(factors, (50, 2, 2)))


def test_singular_tridiagonal_matrices_give_nan():
    zero = np.zeros(3)
    assert np.isnan(np.asarray(linalg.tridiagonal_solve(zero, zero, zero, np.ones((3, 1))))).all()


# --- errors --------------------------------------------------------------------------------

SQUARE = ["cholesky", "eigh", "eig", "schur", "hessenberg", "tridiagonal"]


@pytest.mark.parametrize("name", SQUARE)
def test_square_matrices_only(name):
    with pytest.raises(ValueError, match=rf"^\[{name}\] the matrix must be square; got .*Fix:"):
        getattr(linalg, name)(np.ones((2, 3)))


@pytest.mark.parametrize("name", [*SQUARE, "svd", "qr", "lu", "geqrf"])
def test_operands_are_float_matrices(name):
    # With symmetrize_input, which is the default, integers become floats.
    params = {"symmetrize_input": False} if name in ("cholesky", "eigh") else {}
    with pytest.raises(TypeError, match=rf"^\[{name}\] the operand must be float32.*Fix:"):
        getattr(linalg, name)(np.ones((2, 2), np.int32), **params)
    with pytest.raises(TypeError, match=rf"^\[{name}\] the operand must have at least 2.*Fix:"):
        getattr(linalg, name)(np.ones(2))


ERRORS = {
    r"^\[triangular_solve\] the matrix must be square": lambda: linalg.triangular_solve(
        np.ones((2, 3)), np.ones((2, 3))
    ),
    r"^\[triangular_solve\] the matrix and the right-hand": lambda: linalg.triangular_solve(
        np.ones((2, 2)), np.ones((3, 4)), left_side=True
    ),
    r"^\[triangular_solve\] operands must have equal batch": lambda: linalg.triangular_solve(
        np.ones((4, 2, 2)), np.ones((3, 2, 2))
    ),
    r"^\[triangular_solve\] operands must have one dtype": lambda: linalg.triangular_solve(
        np.ones((2, 2)), np.ones((2, 2), np.float32)
    ),
    r"^\[tridiagonal_solve\] the diagonals": lambda: linalg.tridiagonal_solve(
        np.ones(2), np.ones(3), np.ones(3), np.ones((3, 1))
    ),
    r"^\[householder_product\] there must be at least": lambda: linalg.householder_product(
        np.ones((2, 3)), np.ones(2)
    ),
    r"^\[householder_product\] there must not be more": lambda: linalg.householder_product(
        np.ones((3, 2)), np.ones(3)
    ),
    r"^\[lu_pivots_to_permutation\] permutation_size": lambda: linalg.lu_pivots_to_permutation(
        np.zeros(3, np.int32), 2
    ),
    r"^\[lu_pivots_to_permutation\] the operand": lambda: linalg.lu_pivots_to_permutation(
        np.zeros(3), 3
    ),
    r"^\[cholesky_update\] there must be": lambda: linalg.cholesky_update(
        np.ones((2, 2)), np.ones(3)
    ),
    r"^\[cholesky_update\] matrices must be real": lambda: linalg.cholesky_update(
        np.ones((2, 2), complex), np.ones(2, complex)
    ),
    r"^\[symmetric_product\] shapes must": lambda: linalg.symmetric_product(
        np.ones((2, 3)), np.ones((3, 3))
    ),
    r"^\[svd\] subset_by_index must": lambda: linalg.svd(
        np.ones((2, 2)), full_matrices=False, subset_by_index=(1, 3)
    ),
    r"^\[svd\] subset_by_index needs": lambda: linalg.svd(np.ones((2, 2)), subset_by_index=(0, 1)),
    r"^\[eigh\] subset_by_index must": lambda: linalg.eigh(np.ones((2, 2)), subset_by_index=(2, 1)),
    r"^\[schur\] sort_eig_vals must": lambda: linalg.schur(np.ones((2, 2)), sort_eig_vals=True),
    r"^\[tridiagonal\] matrices must not be empty": lambda: linalg.tridiagonal(np.ones((0, 0))),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=message) as caught:
        ERRORS[message]()
    assert "Fix:" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("mode", [lambda f: f, gf.jit], ids=["eager", "jit"])
def test_perturbed_tridiagonal_solve(dtype, mode):
    """Singular systems have a finite solution, which solves them where there is one."""
    rng = np.random.default_rng(5)

    def solve(*operands):
        return mode(lambda *v: linalg.tridiagonal_solve(*v, perturb_singular=True))(*operands)

    with gf.enable_x64(dtype == np.float64):
        for size in (1, 2, 3, 7):
            low, middle, high = rng.integers(-3, 4, (3, size)).astype(dtype)
            low[0] = high[-1] = 0
            matrix = np.diag(middle) + np.diag(low[1:], -1) + np.diag(high[:-1], 1)
            matrix[0] = 0  # singular: its first row is 0
            middle[0] = 0
            if size > 1:
                high[0] = 0
            right = matrix @ rng.integers(-3, 4, (size, 2)).astype(dtype)
            got = np.asarray(solve(low, middle, high, right))
            assert np.isfinite(got).all()
            # The solution may be as large as a rounding error divided by another.
            scale = np.abs(matrix).max() * max(np.abs(got).max(), 1) + np.abs(right).max()
            error = 50 * np.finfo(dtype).eps * scale
            np.testing.assert_allclose(matrix @ got, right, atol=error)
        regular = solve(
            *(np.array(v, dtype) for v in ([0, 1, 1], [2, 2, 2], [1, 1, 0])), np.ones((3, 1), dtype)
        )
        np.testing.assert_allclose(regular, [[0.5], [0], [0.5]], atol=1e-6)  # by hand


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("name", ["eigh", "svd", "qr", "cholesky", "lu"])
def test_eager_decompositions_are_those_of_jit(name, dtype):
    """Signs of vectors are LAPACK's choice: float32 was decomposed in float64 outside of jit."""
    random = np.random.default_rng(3)
    decompose = getattr(linalg, name)
    for size in (3, 5, 17, 40):
        a = random.normal(size=(2, size, size)).astype(dtype)
        if dtype == np.complex64:
            a = a + 1j * random.normal(size=a.shape).astype(np.float32)
        if name in ("eigh", "cholesky"):
            a = a @ np.conj(a.swapaxes(1, 2)) + np.eye(size, dtype=dtype)
        eager, jitted = gf.tree.leaves(decompose(a)), gf.tree.leaves(gf.jit(decompose)(a))
        for one, other in zip(eager, jitted, strict=True):  # jit writes out those of 3
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
