"""Multivariate distributions, density estimates and functions of samples, against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import random
from gpuflow.scipy import stats

RNG = np.random.default_rng(5)


def test_multinomial():
    p = np.array([0.2, 0.3, 0.5])
    x = np.array([[1, 2, 3], [0, 0, 6], [2, 2, 2], [1, 1, 1], [-1, 3, 4]])
    want = scipy.stats.multinomial.logpmf(x, 6, p)
    np.testing.assert_allclose(stats.multinomial.logpmf(x, 6, p), want, rtol=1e-6)
    np.testing.assert_allclose(stats.multinomial.pmf(x[0], 6, p), np.exp(want[0]), rtol=1e-6)
    third = np.float32(1 / 3)  # of each outcome
    want = scipy.stats.multinomial.logpmf(x, 6, [1 / 3] * 3)
    for one in (third, np.array([third]), np.full((len(x), 1), third)):
        np.testing.assert_allclose(stats.multinomial.logpmf(x, 6, one), want, rtol=1e-5)
    many = np.array([200_000, 300_000, 500_000])
    want = scipy.stats.multinomial.logpmf(many, 1_000_000, p)
    np.testing.assert_allclose(stats.multinomial.logpmf(many, 1_000_000, p), want, rtol=1e-5)
    with pytest.raises(ValueError, match=r"must be of integer type; got x.dtype=float32"):
        stats.multinomial.logpmf(np.array([1.0, 2.0]), 3, p[:2])


def test_dirichlet():
    alpha = np.array([2.0, 0.5, 3.0])
    x = RNG.dirichlet(alpha, 4).T
    want = [scipy.stats.dirichlet.logpdf(column / column.sum(), alpha) for column in x.T]
    np.testing.assert_allclose(stats.dirichlet.logpdf(x, alpha), want, rtol=1e-5)
    np.testing.assert_allclose(stats.dirichlet.logpdf(x[:2], alpha), want, rtol=1e-5)
    np.testing.assert_allclose(stats.dirichlet.pdf(x, alpha), np.exp(want), rtol=1e-5)
    assert float(stats.dirichlet.logpdf(np.array([0.5, 0.6, 0.1]), alpha)) == -np.inf
    with pytest.raises(ValueError, match="`alpha` must be one-dimensional"):
        stats.dirichlet.logpdf(x, alpha[None])
    with pytest.raises(ValueError, match="as many entries as `alpha` or one entry fewer"):
        stats.dirichlet.logpdf(x[:1], alpha)


def test_multivariate_normal():
    a = RNG.normal(size=(3, 3))
    cov, mean, x = a @ a.T + np.eye(3), RNG.normal(size=3), RNG.normal(size=(4, 5, 3))
    want = scipy.stats.multivariate_normal.logpdf(x, mean, cov)
    np.testing.assert_allclose(stats.multivariate_normal.logpdf(x, mean, cov), want, rtol=1e-5)
    np.testing.assert_allclose(stats.multivariate_normal.pdf(x, mean, cov), np.exp(want), rtol=1e-5)
    want = scipy.stats.multivariate_normal.logpdf(x, mean, 2 * np.eye(3))
    np.testing.assert_allclose(stats.multivariate_normal.logpdf(x, mean, 2.0), want, rtol=1e-5)
    want = scipy.stats.norm.logpdf(1, 2, 3**0.5)
    np.testing.assert_allclose(stats.multivariate_normal.logpdf(1.0, 2.0, 3.0), want, rtol=1e-6)
    with gpuflow.enable_x64(True):
        slope = gpuflow.grad(lambda m: stats.multivariate_normal.logpdf(x[0, 0], m, cov))(mean)
    np.testing.assert_allclose(slope, np.linalg.solve(cov, x[0, 0] - mean), rtol=1e-9)
    batch = stats.multivariate_normal.logpdf(x[0], np.zeros((5, 3)), np.stack([cov] * 5))
    assert batch.shape == (5,)
    with pytest.raises(ValueError, match="incompatible shapes; got mean"):
        stats.multivariate_normal.logpdf(x, mean, np.eye(2))
    with pytest.raises(NotImplementedError, match="allow_singular must be None"):
        stats.multivariate_normal.logpdf(x, mean, cov, allow_singular=True)


# --- density estimates ----------------------------------------------------------------------

SAMPLE, WEIGHTS = RNG.normal(size=(2, 40)), RNG.uniform(size=40)


@pytest.mark.parametrize(
    "arguments",
    [(), ("silverman",), (0.3,), (None, WEIGHTS), (lambda estimate: 0.5 + 0 * estimate.neff,)],
)
def test_density_estimates(arguments):
    x, mean, cov = RNG.normal(size=(2, 6)), np.array([0.1, -0.2]), np.eye(2) * 0.5
    theirs = scipy.stats.gaussian_kde(SAMPLE, *arguments)
    with gpuflow.enable_x64(True):
        ours = stats.gaussian_kde(SAMPLE, *arguments)
        for got, want in (
            (ours(x), theirs(x)),
            (ours.pdf(x), theirs.pdf(x)),
            (ours.logpdf(x), theirs.logpdf(x)),
            (ours.integrate_gaussian(mean, cov), theirs.integrate_gaussian(mean, cov)),
            (ours.integrate_kde(ours), theirs.integrate_kde(theirs)),
            (ours.covariance, theirs.covariance),
            (gpuflow.jit(lambda k, x: k.evaluate(x))(ours, x), theirs(x)),
        ):
            np.testing.assert_allclose(got, want, rtol=1e-10)


def test_density_estimates_of_one_dimension():
    with gpuflow.enable_x64(True):
        ours, theirs = (kind(SAMPLE[0]) for kind in (stats.gaussian_kde, scipy.stats.gaussian_kde))
        np.testing.assert_allclose(
            ours.integrate_box_1d(-1.0, 0.5), theirs.integrate_box_1d(-1, 0.5), rtol=1e-12
        )
    assert (ours.d, ours.n) == (1, 40)
    drawn = stats.gaussian_kde(SAMPLE).resample(random.key(0), (500,))
    assert drawn.shape == (2, 500)
    assert np.all(np.abs(np.mean(drawn, 1) - SAMPLE.mean(1)) < 0.3)


def test_errors_of_density_estimates():
    estimate = stats.gaussian_kde(SAMPLE)
    for call, error, text in (
        (lambda: stats.gaussian_kde(1j * SAMPLE), NotImplementedError, "dataset must be real"),
        (lambda: stats.gaussian_kde(jnp.ones(1)), ValueError, "should have multiple elements"),
        (lambda: stats.gaussian_kde(SAMPLE, "other"), ValueError, "should be 'scott'"),
        (lambda: stats.gaussian_kde(SAMPLE, None, WEIGHTS[:3]), ValueError, "of length 40"),
        (lambda: stats.gaussian_kde(SAMPLE, None, WEIGHTS[None]), ValueError, "one-dimensional"),
        (lambda: estimate(np.ones((3, 4))), ValueError, "points have dimension 3"),
        (lambda: estimate.integrate_box_1d(0.0, 1.0), ValueError, "only handles 1D pdfs"),
        (lambda: estimate.integrate_gaussian(np.ones(3), 1.0), ValueError, "mean does not have"),
        (lambda: estimate.integrate_kde(stats.gaussian_kde(SAMPLE[0])), ValueError, "same dim"),
        (lambda: estimate.integrate_box(0, 1), NotImplementedError, "only 1D box"),
        (estimate.set_bandwidth, NotImplementedError, "not supported"),
        (lambda: setattr(estimate, "neff", 1), AttributeError, "must not be changed"),
    ):
        with pytest.raises(error, match=text):
            call()


# --- mode, rankdata, sem --------------------------------------------------------------------

VALUES = RNG.integers(0, 5, size=(6, 7))


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_functions_of_samples(axis):
    result, want = stats.mode(jnp.asarray(VALUES), axis), scipy.stats.mode(VALUES, axis)
    np.testing.assert_array_equal(result.mode, want.mode)
    np.testing.assert_array_equal(result.count, want.count)
    kept = stats.mode(VALUES, axis, keepdims=True)
    assert kept.mode.shape == scipy.stats.mode(VALUES, axis, keepdims=True).mode.shape
    for method in ("average", "min", "max", "dense", "ordinal"):
        ranks = stats.rankdata(VALUES, method, axis=axis)
        want = scipy.stats.rankdata(VALUES, method, axis=axis)
        np.testing.assert_array_equal(ranks, want)
        assert ranks.dtype == np.float32
    x = RNG.normal(size=(6, 7))
    np.testing.assert_allclose(stats.sem(x, axis), scipy.stats.sem(x, axis), rtol=1e-5)
    x[0, 0] = np.nan
    want = scipy.stats.sem(x, axis, nan_policy="omit")
    np.testing.assert_allclose(stats.sem(x, axis, nan_policy="omit"), want, rtol=1e-5)


def test_edges_of_samples():
    assert np.all(np.isnan(stats.rankdata(jnp.array([1.0, np.nan, 2.0]))))
    rows = stats.rankdata(jnp.array([[1.0, np.nan], [2.0, 1.0]]), axis=1)
    np.testing.assert_array_equal(rows, [[np.nan, np.nan], [2, 1]])
    empty = stats.mode(jnp.zeros((0, 2)))
    assert np.all(np.isnan(empty.mode)) and empty.count.shape == (2,)
    assert stats.rankdata(jnp.zeros(0)).shape == (0,)
    compiled = gpuflow.jit(lambda x: (stats.mode(x), stats.rankdata(x)))(jnp.arange(3.0))
    assert float(compiled[0].mode) == 0.0


def test_errors_of_samples():
    x = jnp.ones(3)
    for call, error, text in (
        (lambda: stats.mode(x, nan_policy="x"), ValueError, "nan_policy must be one of"),
        (lambda: stats.mode(x, nan_policy="omit"), NotImplementedError, "'omit' is not implem"),
        (lambda: stats.rankdata(x, nan_policy="raise"), NotImplementedError, "'raise'"),
        (lambda: stats.rankdata(x, "other"), ValueError, "unknown method 'other'"),
        (lambda: stats.sem(x, nan_policy="raise"), ValueError, "got 'raise'"),
        (lambda: stats.mode([1, 2]), TypeError, "operands must be arrays"),
    ):
        with pytest.raises(error, match=text):
            call()
