"""Every distribution against what JAX draws: integers exactly, floats to 1e-5."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats
from together import together

import gpuflow as gf
from gpuflow.base.errors import TypePromotionError

FILE = Path(__file__).parent.parent / "data" / "random_distributions.json"
ROWS = json.loads(FILE.read_text(encoding="utf-8"))


def _arrays(args):
    return [np.asarray(x, np.float32) if isinstance(x, list) else x for x in args]


@together(size=10)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[2]}-{row[1]}-{row[0]}")
def test_values(row):
    layout, number, name, args, kwargs, dtype, shape, values = row
    with gf.config.override("threefry_partitionable", layout):
        out = getattr(gf.random, name)(gf.random.key(number), *_arrays(args), **kwargs)
    got = np.asarray(out)
    assert (str(got.dtype), list(got.shape)) == (dtype, shape)
    want = np.array([np.nan if v is None else v for v in values])
    flat = np.concatenate([got.real.ravel(), got.imag.ravel()]) if got.dtype.kind == "c" else got
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(flat.ravel(), want)
    else:
        np.testing.assert_allclose(flat.ravel(), want, rtol=1e-5, atol=1e-6)


# --- statistics ----------------------------------------------------------------------------

COUNT = 20_000
KS = {
    "gamma": ((2.5,), stats.gamma(2.5)),
    "beta": ((0.5, 2.0), stats.beta(0.5, 2)),
    "chisquare": ((3.0,), stats.chi2(3)),
    "f": ((3.0, 7.0), stats.f(3, 7)),
    "t": ((4.0,), stats.t(4)),
    "pareto": ((3.0,), stats.pareto(3)),
    "rayleigh": ((2.0,), stats.rayleigh(scale=2)),
    "maxwell": ((), stats.maxwell()),
    "weibull_min": ((2.0, 1.5), stats.weibull_min(1.5, scale=2)),
    "wald": ((2.0,), stats.invgauss(2.0)),
    "lognormal": ((0.7,), stats.lognorm(0.7)),
    "triangular": ((0.0, 0.25, 1.0), stats.triang(0.25)),
    "generalized_normal": ((1.5,), stats.gennorm(1.5)),
    "normal": ((), stats.norm()),
    "exponential": ((), stats.expon()),
    "laplace": ((), stats.laplace()),
    "cauchy": ((), stats.cauchy()),
    "logistic": ((), stats.logistic()),
    "gumbel": ((), stats.gumbel_r()),
}


@pytest.mark.parametrize("name", KS)
def test_distribution_functions(name):
    """Kolmogorov and Smirnov's statistic is below 1.95 / sqrt(n) with probability 0.999."""
    args, law = KS[name]
    sample = np.asarray(getattr(gf.random, name)(gf.random.key(1), *args, shape=(COUNT,)))
    assert stats.kstest(sample, law.cdf).statistic < 1.95 / COUNT**0.5


@pytest.mark.parametrize(
    ("name", "args", "mean", "variance"),
    [
        ("poisson", (4.0,), 4, 4),
        ("poisson", (60.0,), 60, 60),
        ("geometric", (0.2,), 5, 20),
        ("binomial", (12.0, 0.3), 3.6, 2.52),
        ("binomial", (400.0, 0.7), 280, 84),
    ],
)
def test_moments_of_counts(name, args, mean, variance):
    sample = np.asarray(getattr(gf.random, name)(gf.random.key(2), *args, shape=(COUNT,)), float)
    assert abs(sample.mean() - mean) < 5 * (variance / COUNT) ** 0.5
    # The fourth moment of these is below 30 variances squared.
    assert abs(sample.var() - variance) < 5 * variance * (30 / COUNT) ** 0.5
    assert (sample == np.floor(sample)).all()


@pytest.mark.parametrize("mean", [1e-3, 0.1, 9.9, 10.1, 1e2, 1e4, 1e6, 1e7, 1e8, 1e9])
def test_poisson_of_any_mean(mean):
    """At 1e7 the variance was 0.79 of its value: the logarithms cancelled in float32."""
    sample = np.asarray(gf.random.poisson(gf.random.key(4), mean, (COUNT,)), float)
    assert abs(sample.mean() - mean) < 4 * (mean / COUNT) ** 0.5
    # The variance of the variance, from the fourth central moment 3 mean**2 + mean.
    assert abs(sample.var() - mean) < 4 * ((2 * mean**2 + mean) / COUNT) ** 0.5


@pytest.mark.parametrize(
    ("count", "p"),
    [
        (50, 0.5),
        (1000, 0.25),
        (1e5, 0.125),
        (1e7, 0.5),
        (1e7, 2**-20),
        (1e9, 0.5),
        (1e9, 2**-10),
        (1e9, 1 - 2**-10),
        (1e9, 2**-33),
    ],
)
def test_binomial_of_any_count(count, p):
    """At 1e9 the variance was 1.4 times its value, and the mean was off."""
    sample = np.asarray(gf.random.binomial(gf.random.key(4), count, p, (COUNT,)), float)
    mean, variance = count * p, count * p * (1 - p)
    assert abs(sample.mean() - mean) < 4 * (variance / COUNT) ** 0.5
    fourth = 2 * variance**2 + variance
    assert abs(sample.var() - variance) < 4 * (fourth / COUNT) ** 0.5


@pytest.mark.parametrize(
    ("name", "args", "law"),
    [
        ("wald", (1e3,), stats.invgauss(1e3)),
        ("wald", (1e7,), stats.invgauss(1e7)),
        ("wald", (1e-3,), stats.invgauss(1e-3)),
        # Nearly uniform; |x|**p underflows in the distribution function of SciPy.
        ("generalized_normal", (1e3,), stats.uniform(-1, 2)),
        ("generalized_normal", (1e5,), stats.uniform(-1, 2)),
        ("generalized_normal", (0.25,), stats.gennorm(0.25)),
        ("gamma", (1e6,), stats.gamma(1e6)),
        ("gamma", (0.1,), stats.gamma(0.1)),
        ("loggamma", (1e-3,), stats.loggamma(1e-3)),
        ("t", (1e6,), stats.t(1e6)),
        ("beta", (1e4, 1e4), stats.beta(1e4, 1e4)),
        ("pareto", (1e4,), stats.pareto(1e4)),
    ],
)
def test_extreme_parameters(name, args, law):
    """Large means of wald gave negative numbers, large powers of generalized_normal zeros."""
    sample = np.asarray(getattr(gf.random, name)(gf.random.key(5), *args, (COUNT,)), float)
    assert np.isfinite(sample).all()
    assert stats.kstest(sample, law.cdf).statistic < 1.95 / COUNT**0.5


def test_large_samples_are_the_same_as_parts_of_programs():
    """Eagerly drawn large samples are compiled; small ones are not."""
    key = gf.random.key(3)
    for name in ("normal", "exponential", "uniform"):
        large = getattr(gf.random, name)(key, (1 << 16,))
        traced = gf.jit(lambda k, name=name: getattr(gf.random, name)(k, (1 << 16,)))(key)
        np.testing.assert_array_equal(large, traced)


# --- transformations -----------------------------------------------------------------------


def test_samplers_under_jit_and_vmap():
    keys = gf.random.split(gf.random.key(4), 3)
    rates = np.array([0.5, 3.0, 40.0], np.float32)
    for draw in (gf.random.gamma, gf.random.poisson, lambda k, a: gf.random.beta(k, a, 1.0)):
        want = [draw(key, rate) for key, rate in zip(keys, rates, strict=True)]
        np.testing.assert_allclose(gf.vmap(draw)(keys, rates), np.stack(want), rtol=1e-6)
        np.testing.assert_allclose(gf.jit(gf.vmap(draw))(keys, rates), np.stack(want), rtol=1e-6)


def test_gamma_is_differentiable_in_its_parameter():
    """At a fixed value of the distribution function, by differences of its inverse."""
    alphas = np.array([0.3, 1.0, 4.0, 30.0], np.float32)
    key = gf.random.key(5)
    sample = np.asarray(gf.random.gamma(key, alphas), float)
    exact = alphas.astype(float)
    quantile = special.gammainc(exact, sample)
    step = 1e-4
    high, low = (special.gammaincinv(exact + s, quantile) for s in (step, -step))
    slopes = gf.grad(lambda a: gf.random.gamma(key, a).sum())(alphas)
    np.testing.assert_allclose(slopes, (high - low) / (2 * step), rtol=1e-5)
    logs = gf.grad(lambda a: gf.random.loggamma(key, a).sum())(alphas)
    np.testing.assert_allclose(logs, (high - low) / (2 * step) / sample, rtol=1e-5)


def test_edges():
    key = gf.random.key(6)
    assert gf.random.gamma(key, np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert gf.random.poisson(key, 0.0) == 0
    assert gf.random.poisson(key, np.float32(2), (0,)).shape == (0,)
    assert np.isnan(gf.random.binomial(key, 5.0, np.nan))
    # JAX draws for ever.
    counts = np.array([np.inf, 1e30, 100.0, 3.0])
    drawn = np.asarray(gf.random.binomial(key, counts, 0.5))
    assert drawn[0] == np.inf and np.all((drawn[1:] >= 0) & (drawn[1:] <= counts[1:]))
    assert gf.random.multinomial(key, 7.0, np.array([0.2, 0.8])).sum() == 7
    for dtype in (int, "uint8", np.float16):
        counts = gf.random.multinomial(key, 7, np.array([0.2, 0.8]), dtype=dtype)
        assert counts.dtype == (np.int32 if dtype is int else dtype) and counts.sum() == 7
    q = gf.random.orthogonal(key, 4, (2,))
    np.testing.assert_allclose(q @ q.mT, np.tile(np.eye(4), (2, 1, 1)), atol=1e-5)
    points = gf.random.ball(key, 3, shape=(50,))
    assert (np.linalg.norm(points, axis=1) <= 1).all()
    np.testing.assert_allclose(gf.random.dirichlet(key, np.ones(4), (3,)).sum(-1), 1, rtol=1e-5)


def test_refusals():
    key = gf.random.key(7)
    cases = [
        (ValueError, "float dtype", lambda: gf.random.gamma(key, 1.0, dtype=np.int32)),
        (ValueError, "integer dtype", lambda: gf.random.poisson(key, 1.0, dtype=np.float32)),
        (ValueError, "broadcast", lambda: gf.random.gamma(key, np.ones(3), (2,))),
        (ValueError, "must have an axis", lambda: gf.random.dirichlet(key, 1.0)),
        (
            ValueError,
            "method",
            lambda: gf.random.multivariate_normal(key, np.zeros(2), np.eye(2), method="lu"),
        ),
        (ValueError, "cov", lambda: gf.random.multivariate_normal(key, np.zeros(3), np.eye(2))),
        (ValueError, "single one", lambda: gf.random.gamma(gf.random.split(key), 1.0)),
        (TypeError, "int", lambda: gf.random.orthogonal(key, 2.5)),
        (ValueError, "mode", lambda: gf.random.gumbel(key, mode="finest")),
        (ValueError, "mode", lambda: gf.random.bernoulli(key, mode="highest")),
        (
            ValueError,
            "category for each draw",
            lambda: gf.random.categorical(key, np.zeros(2, np.float32), shape=(3,), replace=False),
        ),
    ]
    for error, pattern, call in cases:
        with pytest.raises(error, match=pattern) as caught:
            call()
        assert "Fix:" in str(caught.value)


PARAMETERS = {
    "beta": lambda key, v: gf.random.beta(key, v, 1.0),
    "chisquare": gf.random.chisquare,
    "f": lambda key, v: gf.random.f(key, 2.0, v),
    "lognormal": gf.random.lognormal,
    "pareto": gf.random.pareto,
    "rayleigh": gf.random.rayleigh,
    "t": gf.random.t,
    "triangular": lambda key, v: gf.random.triangular(key, 0.0, v, 2.0),
    "wald": gf.random.wald,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_must_fit_the_samples(name):
    """Complex ones lost a part, and float64 was rounded, silently."""
    key, draw = gf.random.key(8), PARAMETERS[name]
    with pytest.raises(TypePromotionError, match=f"\\[{name}\\] parameters must fit .* Fix:"):
        draw(key, np.complex64(1))
    with gf.numpy_dtype_promotion("strict"), pytest.raises(TypePromotionError, match="strict"):
        draw(key, np.ones(2, np.int32))
    assert draw(key, np.ones(2, np.int32)).dtype == np.float32


def test_the_dtype_of_parameters_where_it_decides():
    key = gf.random.key(9)
    assert gf.random.weibull_min(key, np.complex64(1), 1.0).dtype == np.complex64
    assert gf.random.double_sided_maxwell(key, 0, np.complex64(1)).dtype == np.complex64
    with gf.enable_x64(True):
        mean, covariance = np.zeros(2, np.float32), np.eye(2, dtype=np.float32)
        assert gf.random.multivariate_normal(key, mean, covariance).dtype == np.float32
    with pytest.raises(ValueError, match="p must be real"):
        gf.random.geometric(key, np.complex64(0.5))
