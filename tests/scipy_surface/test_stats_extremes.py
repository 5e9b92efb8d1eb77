"""Distributions at the ends of their domains, against mpmath with 60 digits.

Arguments next to 0 and 1, cut-offs and parameters from the least to the largest numbers: sums and
differences there lose all digits of a small part, where the result depends on that part alone.
"""

import itertools

import numpy as np
import pytest
from mpmath import mp, mpf

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.scipy import stats

INF = np.inf
DTYPES = [np.dtype(np.float32), np.dtype(np.float64)]
DIGITS = 60
# The tolerance is that of logarithms of up to several hundred, whose exponential is taken.
TOLERANCES = {"float32": 2e-3, "float64": 1e-6}
_ROUNDINGS = {"float32": 1e-5, "float64": 1e-11}


def _log(x):
    return mp.log(x) if x > 0 else -mp.inf


def _tails(lower=None, upper=None):
    """cdf, sf, logcdf and logsf from the lesser of two complements."""
    if lower is None:
        sf, cdf, logsf, logcdf = _tails(upper).values()
    else:
        cdf, sf, logcdf, logsf = lower, 1 - lower, _log(lower), mp.log1p(-lower)
    return {"cdf": cdf, "sf": sf, "logcdf": logcdf, "logsf": logsf}


def _beta_fraction(a, b, x):
    """The lower tail below the mean, by the fraction DLMF 8.17.22 from its last term."""
    tail = mpf(1)
    for m in range(3000 if a * b * x > 1 else 120, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        tail = 1 + odd / (1 + even / tail)
    log_beta = mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)
    return mp.exp(a * mp.log(x) + b * mp.log1p(-x) - log_beta) / (a * tail)


def _beta(x, a, b):
    log_beta = mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)
    logpdf = (a - 1) * mp.log(x) + (b - 1) * mp.log1p(-x) - log_beta
    if x < (a + 1) / (a + b + 2):
        tails = _tails(_beta_fraction(a, b, x))
    else:
        tails = _tails(upper=_beta_fraction(b, a, 1 - x))
    return {"logpdf": logpdf, "pdf": mp.exp(logpdf), **tails}


def _normal_mass(a, b):
    root = mp.sqrt(2)
    if a > 3 or b < -3:
        a, b = (a, b) if a > 3 else (-b, -a)
        return (mp.erfc(a / root) - mp.erfc(min(b, mpf(100)) / root)) / 2
    return (mp.erf(b / root) - mp.erf(a / root)) / 2


def _truncnorm(x, a, b):
    whole = _normal_mass(a, b)
    logpdf = -x * x / 2 - mp.log(2 * mp.pi) / 2 - mp.log(whole)
    lower, upper = _normal_mass(a, x) / whole, _normal_mass(x, b) / whole
    tails = _tails(lower) if lower < upper else _tails(upper=upper)
    return {"logpdf": logpdf, "pdf": mp.exp(logpdf), **tails}


def _t(x, df):
    log = mp.loggamma((df + 1) / 2) - mp.loggamma(df / 2) - mp.log(df * mp.pi) / 2
    log -= (df + 1) / 2 * mp.log1p(x * x / df)
    return {"logpdf": log, "pdf": mp.exp(log)}


def _betabinom(k, n, a, b):
    def log_beta(a, b):
        return mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)

    log = -log_beta(k + 1, n - k + 1) - mp.log(n + 1) + log_beta(k + a, n - k + b) - log_beta(a, b)
    return {"logpmf": log, "pmf": mp.exp(log)}


def _nbinom(k, n, p):
    log = mp.loggamma(k + n) - mp.loggamma(k + 1) - mp.loggamma(n)
    log += n * mp.log(p) + k * mp.log1p(-p)
    return {"logpmf": log, "pmf": mp.exp(log)}


def _cases(name, dtype):
    info = np.finfo(dtype)
    tiny, eps, big = float(info.tiny), float(info.eps), float(info.max)
    if name == "beta":
        places = [tiny, 1e-20, eps, 0.5, 1 - eps]
        parameters = [1e-20, 1e-3, 2, 1e3, 1e8]
        return _beta, itertools.product(places, parameters, parameters)
    if name == "truncnorm":
        cuts = [-INF, -big, -20, -3, -1e-3, -1e-20, -tiny, 0, tiny, 1e-20, 1e-3, 1, 5, 20, big, INF]
        triples = itertools.product(cuts[1:-1], cuts, cuts)
        return _truncnorm, [v for v in triples if v[1] < v[0] < v[2] and abs(v[0]) < 1e3]
    if name == "t":
        return _t, itertools.product([0, 1e-20, 1.5, -30, 1e15], [1e-8, 1, 1e8, 1e15, 1e30, big])
    if name == "nbinom":
        return _nbinom, itertools.product([0, 2, 1000], [1e-20, 1, 1e8], [1e-10, 0.5, 1 - eps])
    counts = [(0, 1), (1, 30), (30, 30), (10, 100), (500, 1000)]
    parameters = [1e-20, 0.5, 1e3, 1e5, 1e8]
    cases = itertools.product(counts, parameters, parameters)
    return _betabinom, [(*pair, a, b) for pair, a, b in cases]


def _is_right(got, want, dtype):
    info = np.finfo(dtype)
    if abs(want) > float(info.max):
        return np.isinf(got) and got * want > 0
    error = abs(mpf(float(got)) - want) if np.isfinite(got) else mp.inf
    return error <= TOLERANCES[dtype.name] * abs(want) + 4 * mpf(float(info.tiny))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["beta", "truncnorm", "t", "nbinom", "betabinom"])
def test_ends_of_domains(name, dtype):
    exact, cases = _cases(name, dtype)
    rows = [tuple(map(dtype.type, case)) for case in cases]
    # Gamma functions of large arguments, and sums of a large and the least number, cancel.
    digits = 700 if name == "t" else DIGITS
    with mp.workdps(digits):
        wanted = [exact(*[mpf(float(v)) for v in row]) for row in rows]
    operands = [np.array(column) for column in zip(*rows, strict=True)]
    wrong = []
    with gf.enable_x64(dtype == np.float64):
        for function in wanted[0]:
            got = np.asarray(gf.jit(getattr(getattr(stats, name), function))(*operands))
            assert got.dtype == dtype
            # A density is 1 by chance where large logarithms cancel.
            absolute = _ROUNDINGS[dtype.name] if function in ("logpdf", "logpmf") else 0.0
            wrong += [
                f"{function}{row}: got {value}, want {mp.nstr(want[function], 8)}"
                for row, value, want in zip(rows, got, wanted, strict=True)
                if abs(want[function]) > absolute and not _is_right(value, want[function], dtype)
            ]
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:12])


def _gamma_lower(a, x):
    term = total = 1 / a
    for n in range(1, 100_000):
        term *= x / (a + n)
        total += term
        if term < total * mpf(10) ** -20:
            break
    return mp.exp(a * mp.log(x) - x - mp.loggamma(a)) * total


@pytest.mark.parametrize("deviations", [-5, -12, -25, -60])
@pytest.mark.parametrize("a", [1e4, 1e6, 1e8])
def test_lower_tail_of_a_large_gamma_distribution(a, deviations):
    """The libraries' series for a large order ends before it has converged."""
    x = a + deviations * np.sqrt(a)
    with mp.workdps(40):
        want = mp.log(_gamma_lower(mpf(a), mpf(x)))
    for dtype, tolerance in ((np.float64, 1e-5), (np.float32, 2e-4)):
        with gf.enable_x64(dtype == np.float64):
            for call in (lambda f: f, gf.jit):
                got = call(stats.gamma.logcdf)(dtype(x), dtype(a))
                if dtype(x) == x:
                    np.testing.assert_allclose(got, float(want), rtol=tolerance)
                if want > -600 and dtype == np.float64:
                    lower = call(lax.igamma)(dtype(a), dtype(x))
                    np.testing.assert_allclose(lower, float(mp.exp(want)), rtol=1e-9)
                    upper = call(lax.igammac)(dtype(a), dtype(x))
                    np.testing.assert_allclose(upper, 1 - float(mp.exp(want)), rtol=1e-15)


def test_derivatives_of_the_complement_are_those_of_the_function():
    for x in (1e-12, 0.01, 0.6, 0.999):
        for k in range(3):
            upper, lower = (gf.grad(f, k)(x, 1.3, 2.4) for f in (stats.beta.sf, stats.beta.cdf))
            np.testing.assert_allclose(upper, -lower, rtol=1e-6)


def test_narrow_intervals_have_derivatives():
    """The mass between close cut-offs is a series; its derivatives are the densities."""
    with gf.enable_x64(True):
        a, b, x = 0.2, 0.2 + 1e-9, 0.2 + 4e-10
        slope = gf.grad(stats.truncnorm.cdf)(x, a, b)
        np.testing.assert_allclose(slope, stats.truncnorm.pdf(x, a, b), rtol=1e-6)
        assert jnp.isfinite(jnp.array(gf.grad(stats.truncnorm.logpdf, (1, 2))(x, a, b))).all()


@pytest.mark.parametrize("size", [0.5, 3, 12, 1e3, 1e5, 1e6])
def test_dirichlet_of_large_parameters(size):
    """Differences of gamma functions lose all digits of float32."""
    alpha = np.float32([size, 2 * size, 0.25 * size])
    x = np.float32([0.25, 0.6875, 0.0625])  # exactly 1 together
    near = np.float32([5 / 16, 9 / 16, 1 / 8])
    for place in (x, near):
        with mp.workdps(DIGITS):
            exact = [mpf(float(v)) for v in alpha]
            want = mp.loggamma(sum(exact)) - sum(map(mp.loggamma, exact))
            want += sum((a - 1) * mp.log(mpf(float(v))) for a, v in zip(exact, place, strict=True))
        got = stats.dirichlet.logpdf(place, alpha)
        np.testing.assert_allclose(got, float(want), rtol=1e-5, atol=1e-5)
        slopes = gf.grad(stats.dirichlet.logpdf, (0, 1))(place, alpha)
        assert all(jnp.isfinite(slope).all() for slope in slopes)
