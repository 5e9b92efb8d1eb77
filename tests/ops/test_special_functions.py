"""Special functions: accuracy, special values, derivatives by each operand, refusals."""

import mpmath
import numpy as np
import pytest
from scipy import special

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

POINTS = np.array([0.1, 0.5, 1.0, 1.5, 3.0, 7.5, 20.0, 90.0])
A, X = (v.ravel() for v in np.meshgrid([0.05, 0.7, 2.0, 11.0, 80.0], [0.02, 0.9, 3.0, 12.0, 75.0]))

ACCURACY = {
    "lgamma": (lax.lgamma, special.gammaln, (POINTS,)),
    "digamma": (lax.digamma, special.digamma, (POINTS,)),
    "bessel_i0e": (lax.bessel_i0e, special.i0e, (POINTS - 20,)),
    "bessel_i1e": (lax.bessel_i1e, special.i1e, (POINTS - 20,)),
    "polygamma": (
        lax.polygamma,
        lambda m, x: special.polygamma(m.astype(int), x),
        (np.array([0.0, 1, 2, 3, 0, 1, 2, 5]), POINTS),
    ),
    "zeta": (lax.zeta, special.zeta, (np.array([1.1, 2, 3, 5, 8, 1.5, 4, 9]), POINTS)),
    "igamma": (lax.igamma, special.gammainc, (A, X)),
    "igammac": (lax.igammac, special.gammaincc, (A, X)),
    "betainc": (lax.betainc, special.betainc, (A, X, np.linspace(0.01, 0.99, A.size))),
}


@pytest.mark.parametrize("name", ACCURACY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_accuracy(name, dtype):
    function, reference, args = ACCURACY[name]
    with gf.enable_x64():
        args = [np.asarray(x, dtype) for x in args]
        want = reference(*[x.astype(np.float64) for x in args])
        eps = np.finfo(dtype).eps
        for call in (function, gf.jit(function)):
            got = np.asarray(call(*args))
            assert got.dtype == dtype
            # 64 units in the last place: SciPy's float32 loops and the C library's lgamma.
            np.testing.assert_allclose(got, want, rtol=64 * eps, atol=4 * eps)


def test_special_values():
    x = np.array([0.0, -0.0, -1.0, -2.0, np.inf, -np.inf, np.nan, 1e-40, 3e38], np.float32)
    for call in (lax.lgamma, gf.jit(lax.lgamma)):
        got = np.asarray(call(x))
        assert np.isposinf(got[:6]).all() and np.isnan(got[6])
        np.testing.assert_allclose(got[7], 92.1034, rtol=1e-4)
    for call in (lax.erf_inv, gf.jit(lax.erf_inv)):
        # The eager one lost the sign of zero.
        assert np.signbit(np.asarray(call(np.array([0.0, -0.0], np.float32)))).tolist() == [0, 1]
    assert np.isposinf(lax.igammac(jnp.float32(2), jnp.float32(0)) - 1 + np.inf)
    assert lax.igamma(2.0, np.inf) == 1 and lax.igamma(2.0, 0.0) == 0
    assert np.isnan(lax.igamma(-1.0, 1.0)) and np.isnan(lax.polygamma(0.5, 1.0))
    assert lax.bessel_i0e(0.0) == 1 and lax.bessel_i1e(0.0) == 0
    assert lax.betainc(2.0, 3.0, 0.0) == 0 and lax.betainc(2.0, 3.0, 1.0) == 1


@pytest.mark.parametrize("a", [0.05, 0.7, 2.0, 11.0, 80.0])
def test_derivative_of_igamma_by_its_parameter(a):
    with gf.enable_x64():
        for x in (0.02, 0.9, 3.0, 12.0, 75.0):
            with mpmath.workdps(60):
                slope = mpmath.diff(
                    lambda p, x=x: mpmath.gammainc(p, 0, x, regularized=True), mpmath.mpf(a)
                )
                density = mpmath.mpf(x) ** (a - 1) * mpmath.exp(-x) / mpmath.gamma(a)
                want, moved = float(slope), float(-slope / density)
            np.testing.assert_allclose(gf.grad(lax.igamma)(a, x), want, rtol=1e-7, atol=1e-300)
            np.testing.assert_allclose(gf.grad(lax.igammac)(a, x), -want, rtol=1e-7, atol=1e-300)
            if density > 1e-250:
                np.testing.assert_allclose(lax.random_gamma_grad(a, x), moved, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "args", "operand"),
    [
        ("lgamma", (2.3,), 0),
        ("digamma", (2.3,), 0),
        ("polygamma", (2.0, 1.7), 1),
        ("zeta", (2.5, 1.7), 1),
        ("igamma", (2.3, 1.4), 1),
        ("igammac", (2.3, 1.4), 1),
        ("igamma_grad_a", (2.3, 1.4), 1),
        ("betainc", (2.3, 1.4, 0.3), 2),
        ("bessel_i0e", (-1.3,), 0),
        ("bessel_i1e", (-1.3,), 0),
    ],
)
def test_derivatives(name, args, operand):
    function = getattr(lax, name)
    with gf.enable_x64():

        def along(x):
            return function(*args[:operand], x, *args[operand + 1 :])

        step = 1e-5
        want = (along(args[operand] + step) - along(args[operand] - step)) / (2 * step)
        for derivative in (gf.grad(along), gf.jit(gf.grad(along)), gf.jacfwd(along)):
            np.testing.assert_allclose(derivative(args[operand]), want, rtol=1e-7)
        if name not in ("bessel_i1e", "igamma_grad_a"):
            slope = gf.grad(along)
            second = (slope(args[operand] + step) - slope(args[operand] - step)) / (2 * step)
            np.testing.assert_allclose(gf.grad(slope)(args[operand]), second, rtol=1e-6)


def test_derivative_of_bessel_i1e_at_zero():
    assert gf.grad(lax.bessel_i1e)(0.0) == 0.5


def test_refusals():
    cases = [
        (TypeError, "real float", lambda: lax.lgamma(jnp.arange(3))),
        (TypeError, "one dtype", lambda: lax.igamma(jnp.ones(2), jnp.ones(2, jnp.float16))),
        (ValueError, "derivatives by a", lambda: gf.grad(gf.grad(lax.betainc))(1.0, 2.0, 0.5)),
        (ValueError, "derivatives by m", lambda: gf.grad(lax.polygamma)(1.0, 2.0)),
        (ValueError, "derivatives by x", lambda: gf.grad(lax.zeta)(3.0, 2.0)),
    ]
    for error, pattern, call in cases:
        with pytest.raises(error, match=pattern) as caught:
            call()
        assert "Fix:" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["i0e", "i1e"])
def test_kernels_of_bessel_functions(name, dtype):
    """Near and far from 0, where the series change, and at the ends."""
    generator = np.random.default_rng(5)
    tiny, largest = np.finfo(dtype).tiny, np.finfo(dtype).max
    ends = [0.0, -0.0, 8.0, -8.0, np.nextafter(dtype(8), 9), tiny, largest, np.inf, -np.inf, np.nan]
    x = np.concatenate([generator.uniform(-40, 40, 20000), np.geomspace(1e-6, 1e9, 99), ends])
    x = x.astype(dtype)
    with gf.enable_x64(dtype is np.float64):
        got = np.asarray(gf.jit(getattr(lax, f"bessel_{name}"))(x))
    want = getattr(special, name)(x.astype(np.float64))
    assert got.dtype == dtype
    # Near 8 the terms of the first series cancel: some 14 units in the last place.
    np.testing.assert_allclose(got, want, rtol=16 * np.finfo(dtype).eps, atol=tiny)
    np.testing.assert_array_equal(np.signbit(got[-10:-8]), [False, False])


def _igamma(a, x):
    return float(mpmath.gammainc(a, 0, x, regularized=True))


def _igammac(a, x):
    return float(mpmath.gammainc(a, x, regularized=True))


def _slope_by_a(a, x):
    """Of the lesser function, by a difference in many digits."""
    step = mpmath.mpf(10) ** -20 * a
    lower = x < a
    ends = (0, x) if lower else (x, mpmath.inf)
    high, low = (mpmath.gammainc(b, *ends, regularized=True) for b in (a + step, a - step))
    slope = (high - low) / (2 * step)
    return slope if lower else -slope


def _density(a, x):
    return mpmath.exp((a - 1) * mpmath.log(x) - x - mpmath.loggamma(a))


def test_incomplete_gamma_in_kernels():
    """All of its formulas, in both tails: float32 results are those of float64, rounded."""
    pairs = [
        (1e-6, 0.3), (1e-20, 0.9), (1e-3, 5.0), (0.3, 1.4), (0.5, 1.6), (3.0, 0.1), (2.0, 2.9),
        (4.0, 5.1), (15.0, 1.0), (19.0, 21.0), (18.0, 60.0), (25.0, 24.0), (25.0, 60.0),
        (40.0, 12.0), (40.0, 20.1), (100.0, 149.0), (300.0, 310.0), (1000.0, 900.0),
    ]  # fmt: skip
    a, x = np.array(pairs, np.float32).T
    with mpmath.workdps(60):
        exact = [(mpmath.mpf(float(p)), mpmath.mpf(float(q))) for p, q in zip(a, x)]
        slopes = [_slope_by_a(p, q) for p, q in exact]
        moves = [float(-s / _density(p, q)) for s, (p, q) in zip(slopes, exact)]
        lower, upper = ([f(p, q) for p, q in exact] for f in (_igamma, _igammac))
    wanted = [
        (lax.igamma, lower),
        (lax.igammac, upper),
        (lax.igamma_grad_a, [float(s) for s in slopes]),
        (lax.random_gamma_grad, moves),
    ]
    for function, want in wanted:
        got = np.asarray(gf.jit(function)(a, x))
        np.testing.assert_allclose(got, want, rtol=1.2e-7, atol=1e-44, err_msg=str(function))


def test_random_gamma_grad_far_above_the_median():
    """SciPy's functions are 0 and 1 there; what was left had the wrong sign."""
    a, x = np.array([84.6, 2.0, 30.0], np.float32), np.array([1000.0, 900.0, 1200.0], np.float32)
    with mpmath.workdps(60):
        exact = [(mpmath.mpf(float(p)), mpmath.mpf(float(q))) for p, q in zip(a, x)]
        want = [float(-_slope_by_a(p, q) / _density(p, q)) for p, q in exact]
    np.testing.assert_allclose(gf.jit(lax.random_gamma_grad)(a, x), want, rtol=1.2e-7)
    # Outside of kernels it is the first terms of a series.
    np.testing.assert_allclose(lax.random_gamma_grad(a, x), want, rtol=1e-3)


def test_incomplete_gamma_of_very_large_operands():
    """A sample moves as the order does; the library's asymptotic series ends at some 1e6."""
    a = np.array([1e8, 1e8, 2.0**31, 3e38], np.float32)
    x = np.array([99980000.0, 1e8, 2.0**31, 3e38], np.float32)
    for call in (lax.random_gamma_grad, gf.jit(lax.random_gamma_grad)):
        np.testing.assert_allclose(call(a, x), [0.9999, 1, 1, 1], rtol=1e-6)
    got = np.asarray(gf.jit(lax.igamma)(a, x))
    np.testing.assert_allclose(got[1:], [0.5, 0.5, 0.5], rtol=1e-4)
    np.testing.assert_allclose(got[0], float(mpmath.ncdf(-2)), rtol=1e-3)


def test_zeta_left_of_zero_and_far_away():
    s = np.array([2, 3, 4, 9, 2, 1.5, np.inf, np.inf, 1e30, 2.0], np.float32)
    q = np.array([-0.5, -1.25, -30.7, -2.5, -1000.25, -0.5, 2.0, 0.5, 3.0, np.inf], np.float32)
    with mpmath.workdps(40):
        want = [
            float(
                mpmath.nsum(lambda k, q=q, s=s: (mpmath.mpf(float(q)) + k) ** -int(s), [0, 2000])
                + mpmath.zeta(int(s), mpmath.mpf(float(q)) + 2001)
            )
            for s, q in zip(s[:5], q[:5])
        ]
    for call in (lax.zeta, gf.jit(lax.zeta)):
        got = np.asarray(call(s, q))
        np.testing.assert_allclose(got[:5], want, rtol=2e-6)
        np.testing.assert_array_equal(got[5:], [np.nan, 0, np.inf, 0, 0])


def test_polygamma_of_high_orders():
    """The factorial overflows long before its product with a zeta function does."""
    m, x = np.array([[40.0, 100.0, 150.0, 3.0], [40.0, 90.0, 60.0, -2.75]], np.float32)
    want = [float(mpmath.polygamma(int(k), mpmath.mpf(float(v)))) for k, v in zip(m, x)]
    for call in (lax.polygamma, gf.jit(lax.polygamma)):
        np.testing.assert_allclose(call(m, x), want, rtol=1e-6)


@pytest.mark.parametrize("x", [1e-8, 0.3, 0.9])
def test_derivatives_of_betainc_by_its_parameters(x):
    """Both modes, below and above the mean, against mpmath."""
    a, b = np.meshgrid([1e-3, 0.3, 1.0, 40.0, 200.0], [1e-2, 1.0, 7.0])
    a, b = a.ravel(), b.ravel()

    def regularized(p, q):
        return mpmath.betainc(p, q, 0, mpmath.mpf(x), regularized=True)

    with mpmath.workdps(60):
        want = [
            (
                mpmath.diff(lambda p, q=q: regularized(p, q), p),
                mpmath.diff(lambda q, p=p: regularized(p, q), q),
            )
            for p, q in zip(map(mpmath.mpf, a), map(mpmath.mpf, b), strict=True)
        ]
    want = np.array(want, float)
    with gf.enable_x64():
        for k, ones in enumerate(((np.ones_like(a), 0 * a), (0 * a, np.ones_like(a)))):
            forward = gf.jvp(lambda a, b: lax.betainc(a, b, x), (a, b), ones)[1]
            reverse = gf.grad(lambda a, b: lax.betainc(a, b, x).sum(), k)(a, b)
            for got in (forward, reverse):
                # Differences of polygamma functions lose a few digits of small parameters.
                np.testing.assert_allclose(got, want[:, k], rtol=1e-9, atol=1e-30)
    got = gf.jit(gf.grad(lambda a: lax.betainc(a, b.astype("f"), x).sum()))(a.astype("f"))
    # float32 rounds x and b, and a power of 200 multiplies what was lost.
    np.testing.assert_allclose(got, want[:, 0], rtol=1e-4, atol=1e-30)


def test_betainc_of_large_parameters_has_derivatives():
    """Where the fraction is cut off, and beyond: as differences of SciPy's values."""
    with gf.enable_x64():
        for a, b, x, step in ((9e5, 8e5, 0.53, 5.0), (2e6, 3e6, 0.4001, 50.0)):
            want = [
                (special.betainc(a + step, b, x) - special.betainc(a - step, b, x)) / (2 * step),
                (special.betainc(a, b + step, x) - special.betainc(a, b - step, x)) / (2 * step),
            ]
            np.testing.assert_allclose(gf.grad(lax.betainc, (0, 1))(a, b, x), want, rtol=1e-4)


def test_derivatives_at_the_ends():
    """The limits of densities at 0, 1 and infinity; parameters have no say there."""
    with gf.enable_x64():
        by_x = gf.grad(lax.igamma, 1)
        assert [by_x(a, 0.0).item() for a in (0.5, 1.0, 2.0)] == [np.inf, 1, 0]
        assert [by_x(a, np.inf).item() for a in (0.5, 1.0, 2.0)] == [0, 0, 0]
        assert [gf.grad(lax.igammac, 1)(a, 0.0).item() for a in (0.5, 1.0)] == [-np.inf, -1]
        assert [gf.grad(lax.igamma)(2.0, x).item() for x in (0.0, np.inf)] == [0, 0]
        density = gf.grad(lax.betainc, 2)
        got = [density(1.0, 3.0, 0.0), density(3.0, 1.0, 1.0), density(2.0, 3.0, 0.0)]
        np.testing.assert_allclose(got, [3, 3, 0], rtol=1e-14)
        assert [gf.grad(lax.betainc, k)(2.0, 3.0, x) for k in (0, 1) for x in (0.0, 1.0)] == [0] * 4


def test_distributions_have_derivatives_by_the_parameters_of_betainc():
    with gf.enable_x64():
        for function, at in (
            (lambda b: gf.scipy.stats.beta.cdf(0.3, 2.0, b), 3.0),
            (lambda a: gf.scipy.stats.beta.logsf(0.3, a, 4.0), 3.0),
        ):
            want = (function(at + 1e-5) - function(at - 1e-5)) / 2e-5
            np.testing.assert_allclose(gf.grad(function)(at), want, rtol=1e-8)
