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
    "polygamma": (lax.polygamma, lambda m, x: special.polygamma(m.astype(int), x),
                  (np.array([0.0, 1, 2, 3, 0, 1, 2, 5]), POINTS)),
    "zeta": (lax.zeta, special.zeta, (np.array([1.1, 2, 3, 5, 8, 1.5, 4, 9]), POINTS)),
    "igamma": (lax.igamma, special.gammainc, (A, X)),
    "igammac": (lax.igammac, special.gammaincc, (A, X)),
    "betainc": (lax.betainc, special.betainc, (A, X, np.linspace(0.01, 0.99, A.size))),
}  # fmt: skip


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
        ("lgamma", (2.3,), 0), ("digamma", (2.3,), 0), ("polygamma", (2.0, 1.7), 1),
        ("zeta", (2.5, 1.7), 1), ("igamma", (2.3, 1.4), 1), ("igammac", (2.3, 1.4), 1),
        ("igamma_grad_a", (2.3, 1.4), 1), ("betainc", (2.3, 1.4, 0.3), 2),
        ("bessel_i0e", (-1.3,), 0), ("bessel_i1e", (-1.3,), 0),
    ],
)  # fmt: skip
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
        (ValueError, "derivatives by a", lambda: gf.grad(lax.betainc)(1.0, 2.0, 0.5)),
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
