"""The distributions against SciPy: values, edges of the support, impossible parameters, tails."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
import scipy.stats
from together import together

import gpuflow
import gpuflow.numpy as jnp
from gpuflow.scipy import stats

DATA = Path(__file__).parents[1] / "data" / "scipy_signatures.json"
RNG = np.random.default_rng(3)
EDGES = np.array([0, 1, -1, 2, np.inf, -np.inf, np.nan, 30, -30])
POINTS = np.concatenate(
    [RNG.normal(size=30) * 3, RNG.uniform(0, 1, 15), 10.0 ** RNG.uniform(-6, 2, 10), EDGES]
)
COUNTS = np.array([0, 1, 2, 3, 5, 10, 50, 100, 1000, -1, 1.5, np.nan])
PROBABILITIES = np.array([0, 1e-30, 1e-6, 0.1, 0.3, 0.5, 0.7, 0.9, 1, -0.1, 1.1, np.nan])
PLACES = [(), (0.5, 2.0), (0.0, -1.0), (0.0, 0.0)]

# Shape parameters, the last ones impossible.
CONTINUOUS = {
    "beta": [(2.0, 3.0), (0.5, 0.5), (1, 1), (300.0, 40.0), (-1, 2.0)],
    "cauchy": [()],
    "chi2": [(3.0,), (1.0,), (2.0,), (100.0,), (0.0,)],
    "expon": [()],
    "gamma": [(2.5,), (0.3,), (1.0,), (500.0,), (-1,)],
    "gennorm": [(1.5,), (-1,)],
    "gumbel_l": [()],
    "gumbel_r": [()],
    "laplace": [()],
    "logistic": [()],
    "norm": [()],
    "pareto": [(2.5,), (-1,)],
    "t": [(3.0,), (1e6,), (np.inf,), (-1,)],
    "truncnorm": [(-1.0, 2.0), (3.0, 4.0), (-12.0, -9.0), (-np.inf, 1.0), (2.0, 1.0)],
    "uniform": [()],
    "vonmises": [(1.5,), (300.0,), (-1,)],
    "wrapcauchy": [(0.5,), (1.5,)],
}
DISCRETE = {
    "bernoulli": [(0.3,), (0.0,), (1.0,), (1.5,)],
    "betabinom": [(10, 2.0, 3.0), (1000, 0.5, 20.0), (5, -1, 2.0)],
    "binom": [(10, 0.3), (1000, 0.05), (5, 0.0), (5, 1.0), (5, 1.5), (-1, 0.5)],
    "geom": [(0.3,), (1.0,), (1e-4,), (0.0,), (1.5,)],
    "nbinom": [(3.0, 0.4), (2.5, 1.0), (100.0, 0.5), (-1, 0.4)],
    "poisson": [(3.0,), (0.0,), (800.0,), (-1,)],
}
WITHOUT_PLACE = ("gennorm", "vonmises", "wrapcauchy")


def _functions(name):
    prefix = f"stats.{name}."
    listed = json.loads(DATA.read_text())["functions"]
    return [full.removeprefix(prefix) for full in listed if full.startswith(prefix)]


CASES = [
    (name, function)
    for name in (*CONTINUOUS, *DISCRETE)
    for function in _functions(name)
    if function != "entropy"
]


def _arguments(name, function):
    if function in ("ppf", "isf"):
        return PROBABILITIES
    return COUNTS if name in DISCRETE else POINTS


def _compare(got, want, dtype, function):
    """To 300 eps in float32 and 1e-11 in float64, logarithms near 0 absolutely.

    Ours are better than that; densities in far tails are exponentials, and SciPy's logarithms
    end where its probabilities underflow.
    """
    got = np.asarray(got)
    assert got.dtype == dtype
    narrow = want.astype(dtype)
    ended = np.isinf(narrow) & (got < -80) & function.startswith("log")
    bound = 4e-5 if dtype == np.float32 else 1e-11
    scale = 0.01 if function.startswith("log") else 0.0
    np.testing.assert_allclose(
        got[~ended].astype(np.float64),
        narrow[~ended].astype(np.float64),
        rtol=bound,
        atol=bound * scale + 1e-307 if dtype == np.float64 else bound * scale + 1e-37,
    )


def _fixed_scipy(name, function, x, want):
    """SciPy's answer, or the limit where it has nan for infinities or its own convention."""
    infinite = np.isinf(x) & np.isnan(want) & ~np.all(np.isnan(want)) & (name != "vonmises")
    if function in ("pdf", "pmf"):
        want = np.where(infinite, 0.0, want)
    if function in ("logpdf", "logpmf"):
        want = np.where(infinite, -np.inf, want)
    if name == "bernoulli" and function == "ppf":
        # The ends of SciPy's support: -1 and 1, whatever p is. JAX has the least k.
        want = np.where(want == -1.0, 0.0, want)
        # SciPy 1.16 has the end of its support for probabilities p above 1 as well.
        want = np.where(np.all(np.isnan(want[1:])), np.nan, want)
        want = np.where((want == 1.0) & (x == 1.0) & np.all(np.nan_to_num(want[:-4]) == 0), 0, want)
    return want


@together(size=6)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "function"), CASES)
def test_values(name, function, dtype):
    ours = getattr(import_module(f"gpuflow.scipy.stats.{name}"), function)
    theirs = getattr(getattr(scipy.stats, name), function)
    places = PLACES if name in CONTINUOUS and name not in WITHOUT_PLACE else [()]
    x = _arguments(name, function).astype(dtype)
    for shapes in CONTINUOUS.get(name) or DISCRETE[name]:
        shapes = [float(dtype(shape)) for shape in shapes]
        for place in places:
            with gpuflow.enable_x64(dtype is np.float64):
                got = ours(jnp.asarray(x), *[jnp.asarray(v, dtype) for v in shapes], *place)
            with np.errstate(all="ignore"):
                want = theirs(x.astype(np.float64), *shapes, *place)
                want = _fixed_scipy(name, function, x, np.asarray(want))
                loc, scale = place or (0.0, 1.0)
                standard = (x.astype(np.float64) - loc) / scale
                if name == "beta" and 300.0 in shapes:
                    # 1 - x of a float32 near 1 is what it is.
                    keep = ~((standard > 0) & (standard < 0.3) & (function != "sf"))
                    got, want = np.asarray(got)[keep], want[keep]
                _compare(got, want, dtype, function)


def test_tails_of_logarithms():
    """Where the probability itself is 0 in both precisions."""
    with mp.workdps(40):
        gamma_upper = mp.log(mp.gammainc(500, 5000, regularized=True))
        gamma_lower = mp.log(mp.gammainc(500, 0, 10, regularized=True))
        beta_lower = mp.log(mp.betainc(300, 40, 0, mp.mpf("0.01"), regularized=True))
        beta_upper = mp.log(mp.betainc(40, 300, 0, mp.mpf("0.01"), regularized=True))
    for got, want in (
        (stats.gamma.logsf(5000.0, 500.0), gamma_upper),
        (stats.gamma.logcdf(10.0, 500.0), gamma_lower),
        (stats.beta.logcdf(0.01, 300.0, 40.0), beta_lower),
        (stats.beta.logsf(0.99, 300.0, 40.0), beta_upper),
        (stats.norm.logcdf(-1e4), -5e7 - 10.1292789),
        (stats.cauchy.logcdf(-1e20), -20 * np.log(10) - np.log(np.pi)),
        (stats.expon.logcdf(1e-20), -20 * np.log(10)),
        (stats.gumbel_r.logsf(300.0), -300.0),
        (stats.gumbel_l.logcdf(-300.0), -300.0),
        (stats.truncnorm.logcdf(31.0, 30.0, 40.0), np.log1p(-np.exp(-30.531))),
        (stats.t.logpdf(1e30, 3.0), -4 * 30 * np.log(10) + np.log(6 * 3**0.5 / np.pi)),
    ):
        np.testing.assert_allclose(got, float(want), rtol=2e-6, atol=1e-15)


def test_large_parameters_in_float32():
    """Differences of gammaln would be wrong in the second digit."""
    k, n, p = np.float32(500_000), np.float32(1_000_000), np.float32(0.5)
    for got, want in (
        (stats.binom.logpmf(k, n, p), scipy.stats.binom.logpmf(500_000, 1_000_000, 0.5)),
        (stats.poisson.logpmf(n, n), scipy.stats.poisson.logpmf(1_000_000, 1e6)),
        (stats.nbinom.logpmf(k, k, p), scipy.stats.nbinom.logpmf(500_000, 500_000, 0.5)),
        (stats.beta.logpdf(p, k, k), scipy.stats.beta.logpdf(0.5, 5e5, 5e5)),
        (stats.gamma.logpdf(k, k), scipy.stats.gamma.logpdf(5e5, 5e5)),
        (stats.t.logpdf(1.0, n), scipy.stats.t.logpdf(1.0, 1e6)),
    ):
        np.testing.assert_allclose(got, want, rtol=3e-6)


DERIVATIVES = [
    ("norm.logpdf", (0.7, 0.1, 1.3)), ("norm.logcdf", (-9.0, 0.1, 1.3)),
    ("norm.sf", (0.7, 0.1, 1.3)), ("norm.ppf", (0.2, 0.1, 1.3)),
    ("cauchy.logcdf", (3.0, 0.1, 2.0)), ("cauchy.isf", (0.9, 0.1, 2.0)),
    ("expon.logcdf", (0.7, 0.1, 1.3)), ("gamma.logpdf", (2.0, 15.0, 0.1, 1.3)),
    ("gamma.cdf", (2.0, 1.5, 0.1, 1.3)), ("gamma.logsf", (2.0, 1.5, 0.1, 1.3)),
    ("beta.logpdf", (0.4, 12.0, 3.0, 0.1, 1.3)), ("t.logpdf", (0.5, 4.0, 0.1, 1.2)),
    ("pareto.logcdf", (3.0, 2.0, 0.1, 1.2)), ("truncnorm.logpdf", (0.5, -1.0, 2.0, 0.1, 1.2)),
    ("truncnorm.logcdf", (0.5, -1.0, 2.0, 0.1, 1.2)), ("gumbel_r.logsf", (0.5, 0.1, 1.2)),
    ("gumbel_l.logcdf", (-30.0, 0.1, 1.2)), ("vonmises.logpdf", (0.5, 2.0)),
    ("wrapcauchy.logpdf", (0.5, 0.4)), ("gennorm.logpdf", (0.5, 1.4)),
    ("logistic.logpdf", (0.5, 0.1, 1.2)), ("laplace.cdf", (0.5, 0.1, 1.2)),
    ("chi2.logpdf", (0.5, 3.0, 0.1, 1.2)), ("binom.logpmf", (3, 10, 0.4)),
    ("poisson.logpmf", (3, 2.5)), ("poisson.entropy", (2.5,)), ("nbinom.logpmf", (3, 2.5, 0.4)),
    ("geom.logpmf", (3, 0.4)), ("bernoulli.logpmf", (1, 0.4)),
    ("betabinom.logpmf", (3, 10, 2.5, 1.4)),
]  # fmt: skip


def _function(name):
    module, _, function = name.partition(".")
    return getattr(import_module(f"gpuflow.scipy.stats.{module}"), function)


@pytest.mark.parametrize(("name", "operands"), DERIVATIVES)
def test_derivatives(name, operands):
    function = _function(name)
    with gpuflow.enable_x64(True):
        for position, x in enumerate(operands):
            if isinstance(x, int):
                continue
            step = 1e-3 * max(abs(x), 0.1)

            def at(offset, position=position, x=x):
                moved = (*operands[:position], x + offset, *operands[position + 1 :])
                return float(function(*moved))

            quotient = (8 * (at(step) - at(-step)) - at(2 * step) + at(-2 * step)) / (12 * step)
            got = gpuflow.grad(function, argnums=position)(*operands)
            np.testing.assert_allclose(got, quotient, rtol=3e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("gamma.logpdf", (-1.0, 2.0)),
        ("beta.logpdf", (-1.0, 2.0, 3.0)),
        ("expon.logcdf", (-1.0,)),
        ("pareto.logcdf", (0.5, 2.0)),
        ("truncnorm.logcdf", (-3.0, -1.0, 2.0)),
        ("chi2.logcdf", (-1.0, 2.0)),
        ("pareto.logpdf", (0.5, 2.0)),
        ("uniform.logpdf", (2.0,)),
    ],
)
def test_derivatives_outside_of_the_support_are_0(name, operands):
    function = _function(name)
    assert float(function(*operands)) == -np.inf
    assert float(gpuflow.grad(function)(*operands)) == 0.0


def test_shapes_dtypes_and_transformations():
    x = np.linspace(0.1, 0.9, 6, dtype=np.float32).reshape(2, 3)
    for name in ("norm.logpdf", "gamma.logcdf", "beta.sf", "t.logpdf", "binom.pmf", "poisson.cdf"):
        function = _function(name)
        shapes = {"norm": (), "beta": (2.0, 3.0), "binom": (5, 0.3)}.get(name.split(".")[0], (2.0,))
        want = function(x, *shapes)
        compiled = gpuflow.jit(lambda x, f=function, s=shapes: f(x, *s))
        np.testing.assert_allclose(compiled(x), want, rtol=2e-6)
        mapped = gpuflow.vmap(lambda row, f=function, s=shapes: f(row, *s))
        np.testing.assert_allclose(mapped(x), want, rtol=2e-6)
        assert function(x[:0], *shapes).shape == (0, 3)
        assert function(jnp.asarray(1), *shapes).dtype == np.float32
    assert stats.gamma.logpdf(jnp.bfloat16(0.5), 2.0).dtype == jnp.bfloat16


def test_entropy_of_poisson():
    mean = np.array([0, 1e-3, 0.5, 3, 9.9, 50, 99, 100, 1000.0])
    with gpuflow.enable_x64(True):
        got = stats.poisson.entropy(mean)
    np.testing.assert_allclose(got, scipy.stats.poisson.entropy(mean), rtol=2e-11)
    assert np.isnan(stats.poisson.entropy(-1.0))
    assert stats.poisson.entropy(np.ones(3, np.float32), np.zeros((2, 1))).shape == (2, 3)


def test_densities_whose_parameters_are_far_from_the_point():
    """Their ratio is beyond the range of float32: these were nan."""
    x, a = np.float32([1e-30, 1e-35, 1e-25]), np.float32([1e30, 1e10, 1e25])
    wide = (x.astype(np.float64), a.astype(np.float64))
    np.testing.assert_allclose(stats.gamma.logpdf(x, a), scipy.stats.gamma.logpdf(*wide), rtol=1e-6)
    want = [float((b - 1) * mp.log(v)) for v, b in zip(*wide, strict=True)]
    np.testing.assert_allclose(stats.beta.logpdf(x, a, np.float32(1)), want, rtol=1e-6)
