"""Linear algebra of dtypes that no library takes: narrow floats, integers, weak types.

JAX traces programs with such matrices; those of 16 bits it cannot compile. Here they are computed
in float32 and each result is rounded once, with derivatives of the float32 steps.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.scipy import linalg as scipy_linalg

NARROW = ("float16", "bfloat16", "float8_e4m3fn")
linalg = lax.linalg


def narrow_matrix(dtype, seed=0, size=4):
    """A matrix whose elements every dtype holds exactly, far from singular."""
    drawn = np.random.default_rng(seed).integers(-3, 4, (size, size))
    return (drawn / 2 + 4 * np.eye(size)).astype(getattr(ml_dtypes, dtype, dtype))


def definite_matrix(dtype, seed=0):
    a = narrow_matrix("float32", seed)
    return ((np.round(a + a.T) + 6 * np.eye(4)) / 2).astype(getattr(ml_dtypes, dtype, dtype))


# Functions of one matrix, and what NumPy makes of it in float64.
GENERAL = {
    "inv": (jnp.linalg.inv, np.linalg.inv),
    "det": (jnp.linalg.det, np.linalg.det),
    "det of 3 x 3": (lambda a: jnp.linalg.det(a[:3, :3]), lambda a: np.linalg.det(a[:3, :3])),
    "logabsdet": (lambda a: jnp.linalg.slogdet(a)[1], lambda a: np.linalg.slogdet(a)[1]),
    "logabsdet by qr": (
        lambda a: jnp.linalg.slogdet(a, method="qr")[1],
        lambda a: np.linalg.slogdet(a)[1],
    ),
    "svdvals": (jnp.linalg.svdvals, lambda a: np.linalg.svd(a, compute_uv=False)),
    "cond": (jnp.linalg.cond, np.linalg.cond),
    "cond 1": (lambda a: jnp.linalg.cond(a, 1), lambda a: np.linalg.cond(a, 1)),
    "nuclear norm": (lambda a: jnp.linalg.norm(a, "nuc"), lambda a: np.linalg.norm(a, "nuc")),
    "solve": (
        lambda a: jnp.linalg.solve(a, a[:, :2].T.reshape(4, 2)),
        lambda a: np.linalg.solve(a, a[:, :2].T.reshape(4, 2)),
    ),
    "lstsq": (
        lambda a: jnp.linalg.lstsq(a[:, :2], a[:, 2])[0],
        lambda a: np.linalg.lstsq(a[:, :2], a[:, 2], rcond=None)[0],
    ),
    "residuals": (
        lambda a: jnp.linalg.lstsq(a[:, :2], a[:, 2:])[1],
        lambda a: np.linalg.lstsq(a[:, :2], a[:, 2:], rcond=None)[1],
    ),
    "lu_solve": (
        lambda a: scipy_linalg.lu_solve((a, np.arange(4)), a[0]),
        lambda a: np.linalg.solve((np.tril(a, -1) + np.eye(4)) @ np.triu(a), a[0]),
    ),
    "triangular_solve": (
        lambda a: linalg.triangular_solve(a, a[:2], lower=True),
        lambda a: np.linalg.solve(np.tril(a).T, a[:2].T).T,
    ),
    "tridiagonal_solve": (
        lambda a: linalg.tridiagonal_solve(a[0], a[0] + 9, a[1], a[:, :2]),
        lambda a: np.linalg.solve(
            np.diag(a[0] + 9) + np.diag(a[0][1:], -1) + np.diag(a[1][:-1], 1), a[:, :2]
        ),
    ),
}
DEFINITE = {
    "cholesky": (linalg.cholesky, np.linalg.cholesky),
    "jnp.linalg.cholesky": (jnp.linalg.cholesky, np.linalg.cholesky),
    "eigvalsh": (jnp.linalg.eigvalsh, np.linalg.eigvalsh),
    "eigh": (lambda a: linalg.eigh(a)[1], np.linalg.eigvalsh),
    "solve positive": (
        lambda a: scipy_linalg.solve(a, a[0], assume_a="pos"),
        lambda a: np.linalg.solve(a, a[0]),
    ),
    "cho_solve": (
        lambda a: scipy_linalg.cho_solve((jnp.tril(a), True), a[0]),
        lambda a: np.linalg.solve(np.tril(a) @ np.tril(a).T, a[0]),
    ),
    "pinv": (lambda a: jnp.linalg.pinv(a, rtol=1e-3), lambda a: np.linalg.pinv(a, rcond=1e-3)),
    "hermitian pinv": (
        lambda a: jnp.linalg.pinv(a, rtol=1e-3, hermitian=True),
        lambda a: np.linalg.pinv(a, rcond=1e-3),
    ),
    "polar": (lambda a: scipy_linalg.polar(a)[1], lambda a: a),
    "polar by svd": (lambda a: scipy_linalg.polar(a, method="svd")[1], lambda a: a),
}
CASES = {
    **{name: (*pair, narrow_matrix) for name, pair in GENERAL.items()},
    **{name: (*pair, definite_matrix) for name, pair in DEFINITE.items()},
}


def check_rounded_once(got, want, dtype):
    """Half a unit in the last place of ``dtype``, and what float32 loses with such matrices.

    Their condition numbers are below 30, so that this is less than 1e-5 of the largest element.
    """
    assert str(got.dtype) == dtype
    scale = np.abs(want).max()
    least = float(ml_dtypes.finfo(dtype).smallest_subnormal) / 2
    bound = float(ml_dtypes.finfo(dtype).eps) / 2 * np.abs(want) + 1e-5 * scale + least
    error = np.abs(np.asarray(got).astype(np.float64) - want)
    assert (error <= bound).all(), (error / bound).max()


@together(size=15)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", CASES)
def test_narrow_matrices_are_rounded_once(name, dtype):
    function, reference, make = CASES[name]
    a = make(dtype)
    want = reference(a.astype(np.float64))
    for call in (function, gf.jit(function)):
        check_rounded_once(call(jnp.asarray(a)), want, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in CASES if "polar" not in name])
def test_gradients_are_those_of_float32(name, dtype):
    """Of a sum with weights, so that no symmetry hides an error."""
    function, _, make = CASES[name]
    a = make(dtype)
    shape = gf.eval_shape(function, jnp.asarray(a)).shape
    weights = np.random.default_rng(1).integers(1, 4, shape)

    def total(x):
        return (function(x).astype("float32") * weights.astype("float32")).sum()

    def steps_in_float32(x):
        return (function(x) * weights.astype("float32")).sum()

    got = gf.grad(total)(jnp.asarray(a))
    want = gf.grad(steps_in_float32)(jnp.asarray(a.astype("float32")))
    assert str(got.dtype) == dtype
    # What a case does before and after is rounded too: up to three roundings of the largest.
    bound = 3 * float(ml_dtypes.finfo(dtype).eps) * np.abs(want).max()
    np.testing.assert_allclose(np.asarray(got).astype("float32"), want, atol=bound, rtol=0)


DECOMPOSITIONS = {
    "qr": lambda a: (lambda q, r: q @ r)(*linalg.qr(a)),
    "svd": lambda a: (lambda u, s, vh: (u * s) @ vh)(*linalg.svd(a)),
    "schur": lambda a: (lambda t, v: v @ t @ v.T)(*linalg.schur(a)),
    "hessenberg": lambda a: (lambda h, q: q @ h @ q.T)(*scipy_linalg.hessenberg(a, calc_q=True)),
    "lu": lambda a: (lambda p, low, up: p @ low @ up)(*scipy_linalg.lu(a)),
    "qdwh": lambda a: (lambda u, h, *_: u @ h)(*linalg.qdwh(a)),
    "geqrf": lambda a: (lambda f, t: linalg.householder_product(f, t) @ jnp.triu(f))(
        *linalg.geqrf(a)
    ),
    "ormqr": lambda a: (lambda f, t: linalg.ormqr(f, t, jnp.triu(f)))(*linalg.geqrf(a)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_decompositions_multiply_to_the_matrix(name, dtype):
    a = narrow_matrix(dtype)
    for call in (DECOMPOSITIONS[name], gf.jit(DECOMPOSITIONS[name])):
        got = call(jnp.asarray(a))
        assert str(got.dtype) == dtype
        # Three factors of norm up to 9 and two products of length 4, each rounded.
        bound = 8 * float(ml_dtypes.finfo(dtype).eps) * np.abs(a.astype("float64")).max()
        np.testing.assert_allclose(
            np.asarray(got).astype("float64"), a.astype("float64"), atol=bound, rtol=0
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_eigenvalues_of_narrow_matrices_are_complex64(dtype):
    a = narrow_matrix(dtype)
    got = np.sort_complex(np.asarray(jnp.linalg.eigvals(jnp.asarray(a))))
    assert got.dtype == np.complex64
    want = np.sort_complex(np.linalg.eigvals(a.astype(np.float64)))
    # Nothing is rounded to 16 bits; float32 and condition numbers below 30.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_narrow_operands_of_two_dtypes_are_refused():
    a = jnp.asarray(narrow_matrix("float16"))
    with pytest.raises(TypeError, match=r"^\[triangular_solve\] .*Fix:"):
        linalg.triangular_solve(a, a.astype("float32"))
    with pytest.raises(TypeError, match=r"^\[triangular_solve\] .*Fix:"):
        linalg.triangular_solve(a, a.astype("bfloat16"))


# --- integers and weak types ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("wide", [False, True])
def test_the_mean_with_the_adjoint_makes_floats_of_integers(dtype, wide):
    """Sums that the integers' dtype does not hold: 100 + 100 of int8."""
    values = np.array([[100, 7], [3, 100]]).astype(dtype)
    with gf.enable_x64(wide):
        a = jnp.asarray(values)
        want = "float64" if wide and dtype in ("int64", "bool") else "float32"
        factor, (vectors, eigenvalues) = linalg.cholesky(a + 0), linalg.eigh(a)
        assert str(vectors.dtype) == str(eigenvalues.dtype) == want
        mean = (values.astype(np.float64) + values.T.astype(np.float64)) / 2
        if dtype != "bool":
            assert str(factor.dtype) == want
            np.testing.assert_allclose(factor, np.linalg.cholesky(mean), rtol=1e-5)
        np.testing.assert_allclose(eigenvalues, np.linalg.eigvalsh(mean), rtol=1e-5, atol=1e-6)


WEAK = {
    "cholesky": linalg.cholesky,
    "eigh": linalg.eigh,
    "eig": linalg.eig,
    "lu": linalg.lu,
    "qr": linalg.qr,
    "svd": linalg.svd,
    "schur": linalg.schur,
    "hessenberg": linalg.hessenberg,
    "tridiagonal": linalg.tridiagonal,
    "solve": lambda a: jnp.linalg.solve(a, a),
    "triangular_solve": lambda a: linalg.triangular_solve(a, a),
    "cond": jnp.linalg.cond,
    "cholesky of bools": lambda a: linalg.cholesky(a > 0),
}


@pytest.mark.parametrize("name", WEAK)
def test_results_of_weak_matrices_are_weak(name):
    a = jnp.asarray(2.0).reshape(1, 1)
    for call in (WEAK[name], gf.jit(WEAK[name])):
        assert all(leaf.weak_type for leaf in gf.tree.leaves(call(a)))


@pytest.mark.parametrize("name", ["inv", "det", "pinv"])
def test_results_that_begin_with_an_identity_or_product_are_not_weak(name):
    a = jnp.asarray(2.0).reshape(1, 1)
    assert not getattr(jnp.linalg, name)(a).weak_type
    strong = a.astype("float32")
    assert not jnp.linalg.solve(a, strong).weak_type
    assert not linalg.cholesky(strong).weak_type


def test_the_number_of_steps_of_qdwh_is_weak():
    count = linalg.qdwh(np.eye(2, dtype=np.float32))[2]
    assert count.weak_type and str(count.dtype) == "int32"
