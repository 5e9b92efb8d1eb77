"""Special functions against mpmath in 40 digits.

The bounds are in units of eps of the dtype, about twice what was measured. Where a function passes
through 0 by cancellation (Ci, bessel_jn), and where a logarithm is exponentiated, they are wider.
"""

from __future__ import annotations

from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest
from together import together

import gpuflow
import gpuflow.numpy as jnp
from gpuflow.scipy import special

RNG = np.random.default_rng(7)
ANY = np.concatenate(
    [RNG.normal(size=40), RNG.normal(size=20) * 10, 10.0 ** RNG.uniform(-12, 1.5, 20), [0.5, 1, 2]]
)
POSITIVE = np.abs(ANY)
UNIT = np.concatenate([RNG.uniform(0, 1, 40), 10.0 ** RNG.uniform(-30, 0, 20), [0.135, 0.136]])
SMALL = ANY[np.abs(ANY) < 9]


def _grid(*columns):
    return [axis.ravel() for axis in np.meshgrid(*map(np.array, columns))]


def _log_gamma_quotient(a, b):
    return mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)


def _owens_t(h, a):
    def density(t):
        return mp.exp(-h * h * (1 + t * t) / 2) / (1 + t * t)

    return mp.quad(density, [0, a / 2, a]) / (2 * mp.pi)


@dataclass(frozen=True)
class Case:
    """A function, its truth, arguments, and bounds in eps of float32 and float64."""

    name: str
    truth: object
    arguments: list
    bounds: tuple


CASES = [
    Case("erf", mp.erf, [ANY], (3, 4)),
    Case("erfc", mp.erfc, [SMALL], (20, 20)),
    Case("erfcx", lambda x: mp.exp(x * x) * mp.erfc(x), [ANY[ANY > -9]], (6, 6)),
    Case("dawsn", lambda x: mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x), [ANY], (6, 6)),
    Case("ndtr", mp.ncdf, [ANY[np.abs(ANY) < 12.5]], (5, 6)),
    Case("log_ndtr", lambda x: mp.log(mp.ncdf(x)), [ANY[ANY < 12]], (8, 8)),
    Case("ndtri", lambda p: mp.sqrt(2) * mp.erfinv(2 * p - 1), [UNIT], (5, 6)),
    Case("owens_t", _owens_t, _grid([0.0, 0.3, 1.0, 2.5, 6.0], [0.2, 1.0, 3.0]), (20, 30)),
    Case("expi", mp.ei, [np.concatenate([ANY, [0.3725, 0.37250741, 11.9, 12.1, 39, 41]])], (6, 10)),
    Case("exp1", mp.e1, [POSITIVE], (5, 6)),
    Case("expn", mp.expint, _grid([0, 1, 2, 3, 10, 60, 5001.0], [0.01, 0.9, 1.1, 5, 30]), (9, 20)),
    Case("sici", lambda x: (mp.si(x), mp.ci(x)), [POSITIVE[POSITIVE < 3.2]], (5, 10)),
    Case("fresnel", lambda x: (mp.fresnels(x), mp.fresnelc(x)), [ANY], (6, 8)),
    Case("spence", lambda x: mp.re(mp.polylog(2, 1 - x)), [POSITIVE], (5, 6)),
    Case("i0", lambda x: mp.besseli(0, x), [ANY], (8, 8)),
    Case("i1", lambda x: mp.besseli(1, x), [ANY], (8, 8)),
    Case("i0e", lambda x: mp.exp(-abs(x)) * mp.besseli(0, x), [ANY], (5, 6)),
    Case("i1e", lambda x: mp.exp(-abs(x)) * mp.besseli(1, x), [ANY], (5, 8)),
    Case("gamma", mp.gamma, [np.concatenate([SMALL, [11.5, 20.25, 33, -7.5]])], (10, 10)),
    Case("gammaln", mp.loggamma, [POSITIVE + 2.5], (4, 6)),
    Case("digamma", mp.digamma, [POSITIVE + 2], (4, 6)),
    Case("beta", mp.beta, _grid([0.01, 0.7, 3, 12], [0.3, 5, 15]), (20, 20)),
    Case(
        "betaln", _log_gamma_quotient,
        _grid([1e-3, 0.5, 3, 7.9, 20, 1e5], [1e-5, 1.5, 9, 1e3, 1e6]), (8, 20),
    ),
    Case("comb", mp.binomial, _grid([5, 30, 100, 1000.0], [0, 1, 5, 20.0]), (6, 6)),
    Case("poch", mp.rf, _grid([-5, -2.5, 0.5, 3, 10], [-1.5, 0, 1, 2.5, 4]), (20, 20)),
    # Operands whose sum has not all digits of the lesser one.
    Case("poch", mp.rf, _grid([30.5, 2000.25, 9e4], [-3.5, 0.25, 4.0]), (60, 400)),
    Case("comb", mp.binomial, _grid([40.5, 90.25], [0.5, 27.0, 33.75]), (100, 150)),
    Case("beta", mp.beta, _grid([-20.5, -17.25], [-18.375, 3.5, 30.0, 22.125]), (400, 400)),
    Case("logit", lambda p: mp.log(p / (1 - p)), [0.5 + RNG.uniform(-1e-3, 1e-3, 40)], (5, 6)),
    Case("factorial", mp.factorial, [np.array([0, 0.5, 1, 2, 5, 9.25, 10, 12])], (6, 8)),
    Case("zeta", mp.zeta, _grid([1.5, 2, 3.3, 9], [0.2, 1, 5.5]), (6, 10)),
    Case("gammainc", lambda a, x: mp.gammainc(a, 0, x, regularized=True),
         _grid([0.3, 1, 4, 30], [0.2, 2, 20]), (10, 60)),
    Case("gammaincc", lambda a, x: mp.gammainc(a, x, regularized=True),
         _grid([0.3, 1, 4, 30], [0.2, 2, 20]), (10, 60)),
    Case("betainc", lambda a, b, x: mp.betainc(a, b, 0, x, regularized=True),
         _grid([0.5, 3, 10], [0.4, 5], [0.1, 0.5, 0.9]), (10, 60)),
    Case("hyp1f1", mp.hyp1f1, _grid([-2, -1.2, 0.5, 3], [0.6, 2.5], [-60, -3, 0.5, 6, 80]),
         (400, 400)),
    Case("hyp2f1", mp.hyp2f1,
         _grid([-2, 0.3, 1, 2.5], [0.7, 1], [1.9, 3, 4.5], [-40, -0.7, 0.3, 0.93, 0.999]),
         (100, 150)),
    Case("xlogy", lambda x, y: x * mp.log(y), [POSITIVE, POSITIVE[::-1]], (4, 5)),
    Case("xlog1py", lambda x, y: x * mp.log1p(y), [POSITIVE, POSITIVE[::-1]], (4, 5)),
    Case("entr", lambda x: -x * mp.log(x), [POSITIVE], (4, 5)),
    Case("rel_entr", lambda p, q: p * mp.log(p / q), [POSITIVE, POSITIVE * 1.001], (5, 6)),
    Case("kl_div", lambda p, q: p * mp.log(p / q) - p + q, [POSITIVE, POSITIVE * 1.001], (8, 8)),
    Case("logit", lambda p: mp.log(p / (1 - p)), [UNIT], (5, 6)),
    Case("boxcox", lambda x, m: (x**m - 1) / m, [POSITIVE[:40] + 2, UNIT[:40]], (8, 10)),
    Case("boxcox1p", lambda x, m: ((1 + x) ** m - 1) / m, [POSITIVE[:40], UNIT[:40]], (8, 10)),
]  # fmt: skip


def _true_values(case, arguments):
    with mp.workdps(60):
        operands = zip(*map(np.ravel, arguments), strict=True)
        rows = [case.truth(*map(mp.mpf, row)) for row in operands]
    columns = list(zip(*rows, strict=True)) if isinstance(rows[0], tuple) else [rows]
    return [np.array([float(value) for value in column]) for column in columns]


@together(size=11)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values(case, dtype):
    wide = dtype is np.float64
    arguments = [np.asarray(column, dtype) for column in case.arguments]
    with gpuflow.enable_x64(wide):
        got = getattr(special, case.name)(*map(jnp.asarray, arguments))
        got = [np.asarray(part) for part in (got if isinstance(got, tuple) else (got,))]
    exact = [column.astype(np.float64) for column in arguments]
    limits = np.finfo(dtype)
    for part, want in zip(got, _true_values(case, exact), strict=True):
        assert part.dtype == dtype
        normal = (np.abs(want) > limits.tiny) & (np.abs(want) < limits.max)
        np.testing.assert_allclose(
            part[normal].astype(np.float64), want[normal], rtol=case.bounds[wide] * limits.eps
        )


def test_cosine_integral_beyond_its_first_root():
    """An absolute error of two eps is what the difference of two terms leaves."""
    x = np.linspace(3.2, 60, 50, dtype=np.float32)
    want = [float(mp.ci(mp.mpf(float(v)))) for v in x]
    np.testing.assert_allclose(special.sici(x)[1], want, atol=2e-7, rtol=1e-6)


def test_bessel_functions_of_all_orders():
    x = np.concatenate([np.linspace(-20, 20, 41), [1e-30, 0.2, 0.3]]).astype(np.float32)
    got = np.asarray(special.bessel_jn(x, v=5))
    want = [[float(mp.besselj(k, mp.mpf(float(v)))) for v in x] for k in range(6)]
    assert got.shape == (6, 44)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-7)


def test_bessel_functions_of_many_iterations():
    got = special.bessel_jn(jnp.float32(60.0), v=2, n_iter=100)
    np.testing.assert_allclose(got, [float(mp.besselj(k, 60)) for k in range(3)], rtol=2e-4)


def test_spherical_harmonics():
    n = np.array([0, 1, 2, 3, 5, 20, 20])
    m = np.array([0, -1, 1, 3, -4, 20, -19])
    theta, phi = RNG.uniform(0.2, 3, 7), RNG.uniform(0, 6, 7)
    want = [complex(mp.spherharm(int(k), int(j), t, p)) for k, j, t, p in zip(n, m, theta, phi)]
    with gpuflow.enable_x64(True):
        got = special.sph_harm_y(n, m, theta, phi)
        np.testing.assert_allclose(got, want, rtol=1e-13)
        traced = gpuflow.jit(lambda n: special.sph_harm_y(n, m, theta, phi, n_max=20))(n)
        np.testing.assert_allclose(traced, want, rtol=1e-13)


def test_associated_legendre_functions():
    """By their definition: derivatives of Legendre polynomials."""
    z, top = np.array([-1.0, -0.7, 0.0, 0.3, 0.999, 1.0]), 12
    want = np.zeros((top + 1, top + 1, len(z)))
    norm = np.zeros((top + 1, top + 1))
    for order in range(top + 1):
        for degree in range(order, top + 1):
            derivative = np.polynomial.Legendre.basis(degree).deriv(order)(z)
            want[order, degree] = (-1) ** order * (1 - z * z) ** (order / 2) * derivative
            ratio = mp.factorial(degree - order) / mp.factorial(degree + order)
            norm[order, degree] = mp.sqrt((2 * degree + 1) / (4 * mp.pi) * ratio)
    with gpuflow.enable_x64(True):
        got = special.lpmn_values(top, top, z, False)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12 * np.abs(want).max())
        got = special.lpmn_values(top, top, z, True)
        np.testing.assert_allclose(got, want * norm[:, :, None], rtol=1e-13, atol=1e-14)
    got = gpuflow.jit(lambda z: special.lpmn_values(3, 3, z, True))(np.float32([0.3, -0.7]))
    np.testing.assert_allclose(got[2, 3], [0.27900204062461853, -0.3648488521575928], 1e-6)  # JAX
    quadratic = lambda z: special.lpmn_values(2, 2, z, False)[0, 2].sum()  # noqa: E731
    slope = gpuflow.grad(quadratic)(np.float32([0.5]))
    np.testing.assert_allclose(slope, [1.5], rtol=1e-6)  # (3 z**2 - 1) / 2
    np.testing.assert_allclose(special.lpmn_values(0, 0, np.float32([0.5]), False), 1.0, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "bound"), [(np.complex64, 3e-5), (np.complex128, 2e-13)])
def test_complex_functions(dtype, bound):
    z = ((RNG.normal(size=60) + 1j * RNG.normal(size=60)) * 3).astype(dtype)
    exact = [mp.mpc(complex(v)) for v in z]
    with gpuflow.enable_x64(dtype is np.complex128):
        for name, truth in (
            ("gamma", mp.gamma),
            ("loggamma", mp.loggamma),
            ("wofz", lambda z: mp.exp(-z * z) * mp.erfc(-1j * z)),
            ("erfcx", lambda z: mp.exp(z * z) * mp.erfc(z)),
        ):
            got = np.asarray(getattr(special, name)(jnp.asarray(z)))
            want = np.array([complex(truth(v)) for v in exact])
            assert got.dtype == dtype
            fits = np.abs(want) < np.finfo(dtype).max
            np.testing.assert_allclose(got[fits], want[fits], rtol=bound, atol=bound, err_msg=name)


def test_derivatives_of_wofz():
    """They are differences of numbers near 1, which cancel for large ``z``."""
    z = np.concatenate([RNG.normal(size=60) * 4 + 1j * RNG.uniform(0, 12, 60), [0, 1e-8j, 5, 5j]])
    z = np.concatenate([z, RNG.normal(size=60) + 1j * RNG.normal(size=60)])
    wofz = lambda z: mp.exp(-z * z) * mp.erfc(-1j * z)  # noqa: E731
    with gpuflow.enable_x64(True):
        once = gpuflow.grad(special.wofz, holomorphic=True)
        _, tangent = gpuflow.jvp(special.wofz, (jnp.asarray(z),), (jnp.full(z.shape, 1j),))
        for function, order in ((once, 1), (gpuflow.grad(once, holomorphic=True), 2)):
            got = np.asarray(gpuflow.vmap(function)(jnp.asarray(z)))
            want = np.array([complex(mp.diff(wofz, mp.mpc(complex(v)), order)) for v in z])
            bound = 1e-14 * (1 + np.abs(z)) ** (2 * order)
            assert (np.abs(got - want) <= bound * np.abs(want)).all()
            if order == 1:
                assert (np.abs(tangent - 1j * want) <= bound * np.abs(want)).all()


def test_bernoulli_numbers():
    with gpuflow.enable_x64(True):
        got = np.asarray(special.bernoulli(60))
    want = [float(mp.bernoulli(k)) if k != 1 else -0.5 for k in range(61)]
    np.testing.assert_allclose(got, want, rtol=1e-13)
    for n in range(3):
        np.testing.assert_allclose(special.bernoulli(n), want[: n + 1], rtol=1e-6)


@pytest.mark.parametrize("dtype, top", [(np.complex64, 36), (np.complex128, 300)])
def test_loggamma_far_from_zero(dtype, top):
    """Products of two arguments overflow there; the result does not."""
    sizes = np.array([900.0, 999, 1000, 1001, 1e5, 1e9, 1e20, 10.0**top])
    directions = np.exp(1j * np.array([0, 0.4, -1.2, 1.57, 2.0, -3.0]))
    z = (sizes[:, None] * directions).ravel().astype(dtype)
    with gpuflow.enable_x64(dtype is np.complex128):
        got = np.asarray(special.loggamma(jnp.asarray(z)))
    want = np.array([complex(mp.loggamma(mp.mpc(complex(v)))) for v in z])
    assert got.dtype == dtype
    assert np.max(np.abs(got / want - 1)) < 8 * np.finfo(dtype).eps


def test_multigammaln_and_polygamma():
    a = np.array([2.5, 4.0, 10.0], np.float32)
    want = [float(3 * mp.log(mp.pi) / 2 + sum(mp.loggamma(v - k / 2) for k in range(3))) for v in a]
    np.testing.assert_allclose(special.multigammaln(a, 3), want, rtol=1e-6)
    n, x = np.array([0, 1, 2, 5]), np.array([0.3, 1.0, 4.0, 9.0], np.float32)
    want = [float(mp.polygamma(int(k), mp.mpf(float(v)))) for k, v in zip(n, x)]
    np.testing.assert_allclose(special.polygamma(n, x), want, rtol=1e-6)


def test_repetitions_and_exact_integers():
    """Whole results are whole, which logarithms would not give."""
    n = np.arange(1, 13)
    assert np.array_equal(special.factorial(n), [float(mp.factorial(int(k))) for k in n])
    assert float(special.comb(20, 10)) == 184756.0
    assert float(special.comb(4, 3, repetition=True)) == 20.0


def test_tails_keep_their_sign():
    """log_ndtr goes to 0 from below; a large order of poch that float32 cannot add counts."""
    assert np.signbit(special.log_ndtr(jnp.float32(np.inf)))
    assert float(special.log_ndtr(jnp.float32(9.0))) < 0.0
    assert np.isposinf(special.poch(jnp.float32(2.0), jnp.float32(np.inf)))
    assert float(special.beta(jnp.float32(0.5), jnp.float32(-1.5))) == 0.0


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_logarithms_of_ratios_beyond_the_range(dtype):
    """p / q is infinite or 0, the logarithm of it is not."""
    info = np.finfo(dtype)
    p, q = np.array([5.0, info.tiny], dtype), np.array([info.tiny, info.max / 2], dtype)
    wide_p, wide_q = p.astype(np.float64), q.astype(np.float64)
    want = np.log(wide_p) - np.log(wide_q)
    for function, of_both in ((special.rel_entr, 0.0), (special.kl_div, wide_q - wide_p)):
        np.testing.assert_allclose(function(p, q), wide_p * want + of_both, rtol=4 * info.eps)
        slope = gpuflow.vmap(gpuflow.grad(function))(p, q)
        extra = 1.0 if function is special.rel_entr else 0.0
        np.testing.assert_allclose(slope, want + extra, rtol=4 * info.eps)
