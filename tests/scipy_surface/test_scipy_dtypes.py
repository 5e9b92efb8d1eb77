"""Which dtypes functions of scipy, linalg and nn take, what they give, and that values are right.

The table of all result types is tests/data/surface_dtypes.json; here are values beside them, and
what each refusal says.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import scipy.fft
import scipy.stats

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import nn
from gpuflow.scipy import fft, linalg, optimize, signal, special, stats
from gpuflow.scipy.sparse import linalg as sparse
from gpuflow.scipy.spatial.transform import Rotation

NARROW = ("float16", "bfloat16")
X = jnp.asarray([0.25, 0.5, 0.75])
MATRIX = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]], np.float32)
INTEGERS = MATRIX.astype(np.int32)

REFUSED = {
    "sigmoid of integers": (TypeError, r"\[logistic\]", lambda: nn.sigmoid(np.arange(3))),
    "silu of a number": (TypeError, r"\[logistic\]", lambda: nn.silu(1)),
    "glu of integers": (TypeError, r"\[logistic\]", lambda: nn.glu(np.arange(4))),
    "softmax of bools": (TypeError, r"\[softmax\]", lambda: nn.softmax(X > 0)),
    "log_softmax of bools": (TypeError, r"\[log_softmax\]", lambda: nn.log_softmax(X > 0)),
    "one_hot of bools": (TypeError, r"\[one_hot\]", lambda: nn.one_hot(X > 0, 2)),
    "schur of integers": (TypeError, r"\[schur\]", lambda: linalg.schur(INTEGERS)),
    "hessenberg of integers": (TypeError, r"\[hessenberg\]", lambda: linalg.hessenberg(INTEGERS)),
    "polar of integers": (TypeError, r"\[polar\]", lambda: linalg.polar(INTEGERS)),
    "funm of integers": (TypeError, r"\[funm\]", lambda: linalg.funm(INTEGERS, jnp.sin)),
    "expm_frechet of integers": (
        TypeError, r"\[expm_frechet\]", lambda: linalg.expm_frechet(INTEGERS, INTEGERS)
    ),
    "expm_frechet of two dtypes": (
        TypeError, r"\[expm_frechet\]", lambda: linalg.expm_frechet(MATRIX, INTEGERS)
    ),
    "expm of 16 bits": (
        TypeError, r"\[expm\]", lambda: linalg.expm(MATRIX.astype(np.float16))
    ),
    "pivots of 8 bits": (
        TypeError, r"\[lu_pivots_to_permutation\]",
        lambda: gf.lax.linalg.lu_pivots_to_permutation(np.arange(3, dtype=np.uint8), 3),
    ),
    "cg of integers": (TypeError, r"\[cg\] b must", lambda: sparse.cg(MATRIX, np.arange(3))),
    "cg that drops imaginary parts": (
        TypeError, r"\[cg\] A must", lambda: sparse.cg(MATRIX + 0j, np.ones(3, np.float32))
    ),
    "gmres that drops imaginary parts": (
        TypeError, r"\[gmres\] A must", lambda: sparse.gmres(MATRIX + 0j, np.ones(3, np.float32))
    ),
    "a preconditioner of another dtype": (
        TypeError, r"\[bicgstab\] M must",
        lambda: sparse.bicgstab(MATRIX, np.ones(3, np.float32), M=lambda x: x * np.complex64(1)),
    ),
    "a start of another dtype": (
        TypeError, r"\[bicgstab\] x0 must",
        lambda: sparse.bicgstab(MATRIX, np.ones(3, np.float32), np.ones(3, np.complex64)),
    ),
    "symmetric_product of integers": (
        TypeError, r"\[symmetric_product\] operands",
        lambda: gf.lax.linalg.symmetric_product(INTEGERS, INTEGERS),
    ),
    "symmetric_product of complex numbers": (
        TypeError, r"\[symmetric_product\] operands",
        lambda: gf.lax.linalg.symmetric_product(MATRIX + 0j, MATRIX + 0j),
    ),
    "welch of 16 bits": (
        ValueError, r"\[welch\]", lambda: signal.welch(np.ones(8, np.float16), nperseg=4)
    ),
    "a harmonic of 16 bits": (
        TypeError, r"\[sph_harm_y\]",
        lambda: special.sph_harm_y(1, 0, np.ones(1, np.float16), np.ones(1, np.float16)),
    ),
    "a harmonic of a complex angle": (
        TypeError, r"\[sph_harm_y\]",
        lambda: special.sph_harm_y(1, 0, np.ones(1, np.complex64), np.ones(1, np.float32)),
    ),
    "a rotation of complex numbers": (
        TypeError, r"\[Rotation\]", lambda: Rotation.from_matrix(np.eye(3) + 0j)
    ),
    "a rotation of bools": (
        TypeError, r"\[Rotation\]", lambda: Rotation.from_matrix(np.eye(3, dtype=bool))
    ),
    "a quantile of integers": (TypeError, r"\[ndtri\]", lambda: stats.norm.ppf(np.arange(2))),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_to_write(name):
    error, start, call = REFUSED[name]
    with pytest.raises(error, match=rf"^{start}.*Fix:"):
        call()


# --- linear algebra ------------------------------------------------------------------------


def test_pinv_has_a_bound_for_each_matrix():
    """The bounds' shape and the batch's broadcast; 0.3 leaves out the smaller singular values."""
    with gf.enable_x64(True):
        batch = np.stack([MATRIX, 2 * MATRIX + 1]).astype(np.float64)
        bounds = np.array([[1e-9, 0.3], [0.3, 1e-9], [0.5, 0.5]])
        got = jnp.linalg.pinv(batch, rtol=bounds)
        assert got.shape == (3, 2, 3, 3)
        for place in np.ndindex(3, 2):
            want = np.linalg.pinv(batch[place[1]], rcond=bounds[place])
            np.testing.assert_allclose(got[place], want, rtol=1e-9, atol=1e-12)
        complex_bound = jnp.linalg.pinv(batch[0], rtol=np.complex128(0.3))
        np.testing.assert_allclose(complex_bound, got[0, 0] * 0 + got[1, 0], rtol=1e-12)


def test_derivative_of_pinv_with_bounds():
    """As that of each matrix alone."""
    with gf.enable_x64(True):
        direction = np.arange(9.0).reshape(3, 3)
        bounds = np.array([1e-9, 0.3])

        def tangent(bound):
            function = lambda a: jnp.linalg.pinv(a, rtol=bound)  # noqa: E731
            return gf.jvp(function, (MATRIX.astype(np.float64),), (direction,))[1]

        got = tangent(bounds)
        for k, bound in enumerate(bounds):
            np.testing.assert_allclose(got[k], tangent(bound), rtol=1e-9, atol=1e-9)


def test_ranks_of_bounds_are_the_users():
    with gf.numpy_rank_promotion("raise"):
        jnp.linalg.pinv(MATRIX, rtol=1e-3)
        with pytest.raises(ValueError, match=r"^\[pinv\] operands must have one rank.*Fix:"):
            jnp.linalg.pinv(MATRIX, rtol=np.array([[1e-3]]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool"])
@pytest.mark.parametrize("order", [1, 2, 3, np.inf, -np.inf])
def test_vector_norms_of_integers_are_floats(dtype, order):
    """Squares of 100 do not fit int8, and roots are no integers."""
    x = np.array([100, 3, 1]).astype(dtype)
    for wide in (False, True):
        with gf.enable_x64(wide):
            got = jnp.linalg.vector_norm(x, ord=order)
            assert got.dtype == (np.float64 if wide else np.float32)
            want = np.linalg.norm(x.astype(np.float64), order)
            np.testing.assert_allclose(got, want, rtol=1e-6)


# --- nn ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64", "int8"])
def test_one_hot_places_are_exact(dtype):
    """bfloat16 does not hold 257, int8 not 128: no place but the right one is marked."""
    dtype = getattr(ml_dtypes, dtype, dtype)
    places = np.array([0, 3, 2.5, 100, -1]).astype(dtype)
    got = nn.one_hot(places, 300)
    want = places[:, None].astype(complex) == np.arange(300)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)
    if np.dtype(dtype).itemsize == 2:
        assert nn.one_hot(np.array(256).astype(dtype), 300).sum() == 1


def test_softmax_of_integers_with_a_mask():
    x, mask = np.array([1, 2, 3], np.int8), np.array([True, False, True])
    for wide in (False, True):
        with gf.enable_x64(wide):
            for function in (nn.softmax, nn.log_softmax):
                got = function(x, where=mask)
                assert got.dtype == (np.float64 if wide else np.float32)
                want = function(x.astype(got.dtype), where=mask)
                np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(nn.softmax(mask, where=mask), [0.5, 0, 0.5])


# --- transforms, samples, distributions ----------------------------------------------------


@pytest.mark.parametrize("dtype", NARROW)
def test_cosine_transforms_of_narrow_floats_are_float32(dtype):
    x = MATRIX.astype(getattr(ml_dtypes, dtype, dtype))
    for own, reference in ((fft.dct, scipy.fft.dct), (fft.idctn, scipy.fft.idctn)):
        got = own(x)
        assert got.dtype == np.float32
        # Nothing is rounded to 16 bits on the way.
        np.testing.assert_allclose(got, reference(x.astype(np.float64)), rtol=1e-5, atol=1e-5)


def test_counts_of_a_mode_are_default_integers():
    a = np.array([[1, 2], [1, 3], [2, 3]], np.float32)
    for wide, dtype in ((False, np.int32), (True, np.int64)):
        with gf.enable_x64(wide):
            result = stats.mode(a)
            assert result.count.dtype == dtype
            np.testing.assert_array_equal(result.mode, [1, 3])
            np.testing.assert_array_equal(result.count, [2, 2])


@pytest.mark.parametrize("policy", ["propagate", "omit"])
def test_the_standard_error_has_the_dtype_of_the_samples(policy):
    a = np.array([1 + 2j, 3, 2 - 1j], np.complex64)
    got = stats.sem(a, nan_policy=policy)
    assert got.dtype == np.complex64
    want = np.std(a.astype(np.complex128), ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_quantiles_of_the_normal_distribution_are_default_floats():
    for wide, dtype in ((False, np.float32), (True, np.float64)):
        with gf.enable_x64(wide):
            got = stats.norm.ppf(np.array([0.25, 0.9], np.float32), 1, 2)
            assert got.dtype == dtype
            want = scipy.stats.norm.ppf(np.array([0.25, 0.9], np.float32).astype(float), 1, 2)
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_weak_distributions():
    """Vectors of integers and a number: most give strong floats, as JAX does, scalars weak ones."""
    counts = np.array([1, 2, 0], np.int8)
    for strong in (
        stats.nbinom.logpmf(counts, 5, 0.3),
        stats.bernoulli.pmf(counts, 0.3),
        stats.geom.logpmf(counts, 0.3),
        stats.uniform.cdf(0.5),
        stats.norm.pdf(X > 0, 0, 1),
        special.rel_entr(X > 0, 1),
        special.kl_div(X > 0, 1.0),
    ):
        assert not strong.weak_type and strong.dtype == np.float32
    for weak in (
        stats.poisson.logpmf(counts, 0.3),
        stats.binom.pmf(counts, 5, 0.3),
        stats.norm.pdf(0.5),
        stats.expon.cdf(X > 0),
        stats.bernoulli.pmf(1, 0.3),
        special.rel_entr(0.5, X > 0),
    ):
        assert weak.weak_type


def test_counts_may_be_bools():
    got = stats.multinomial.logpmf(np.array([True, False, True]), 2, np.array([0.5, 0.25, 0.25]))
    np.testing.assert_allclose(got, np.log(2 * 0.5 * 0.25), rtol=1e-6)


def test_harmonics_have_the_default_precision():
    angle = np.array([0.5], np.float32)
    with gf.enable_x64(True):
        got = special.sph_harm_y(1, 0, angle, angle)
    assert got.dtype == np.complex128
    want = np.sqrt(3 / (4 * np.pi)) * np.cos(angle.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["int8", "int32", "float32"])
def test_rotations_of_integers_are_float32(dtype):
    with gf.enable_x64(True):
        turn = Rotation.from_quat(np.ones(4, dtype))
        assert turn.as_matrix().dtype == np.float32
        want = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]])
        np.testing.assert_allclose(turn.as_matrix(), want, atol=1e-6)


# --- iterations in bfloat16 ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("method", ["batched", "incremental"])
def test_gmres_of_narrow_floats(dtype, method):
    matrix = MATRIX.astype(getattr(ml_dtypes, dtype, dtype))
    right = np.array([1, 2, 3]).astype(matrix.dtype)
    x, info = sparse.gmres(matrix, right, solve_method=method)
    assert str(x.dtype) == dtype and int(info) == 0
    residual = MATRIX @ np.asarray(x).astype(np.float32) - right.astype(np.float32)
    # Rounding x moves the product by up to |A| |x| eps: 5 here.
    assert np.abs(residual).max() < 5 * float(ml_dtypes.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("method", ["BFGS", "l-bfgs-experimental-do-not-rely-on-this"])
def test_minima_in_narrow_floats(dtype, method):
    start = jnp.arange(1, 4).astype(dtype)
    result = optimize.minimize(lambda u: jnp.sum((u - 1) ** 2), start, method=method)
    assert str(result.x.dtype) == dtype
    # Where the slope is below the tolerance of 1e-5 the nearest number is 1 itself.
    np.testing.assert_array_equal(result.x.astype("float32"), np.ones(3))
