"""Long Fourier transforms as kernels, against NumPy in float64 and its longer floats."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import scipy.fft

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.core.aval import ShapedArray
from gpuflow.core.views import View, contiguous
from gpuflow.kir.verify import verify
from gpuflow.ops.fft.passes import LONGEST, MOST_LINES, SHORTEST, fft_launches, radices, roots

# Powers of two of all kinds of passes, other factors, and what the library does.
LENGTHS = [1 << 12, 1 << 13, 1 << 14, 1 << 15, 3 << 12, 14400, 64 * 81, 64 * 125, 4099, 5000, 4095]


def numbers(shape, dtype=np.complex64):
    random = np.random.default_rng(prod(shape))
    return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)


def error(found, wanted):
    """Root mean square, relative."""
    return float(np.sqrt((abs(found - wanted) ** 2).mean() / (abs(wanted) ** 2).mean()))


@pytest.mark.parametrize("length", LENGTHS)
def test_single_precision(length):
    """No less exact than SciPy in the same type."""
    x = numbers((length,))
    wanted = np.fft.fft(x.astype(np.complex128))
    out = gf.jit(jnp.fft.fft)(x)
    assert out.dtype == np.complex64
    assert error(np.asarray(out), wanted) < max(1.1 * error(scipy.fft.fft(x), wanted), 1e-7)
    back = gf.jit(jnp.fft.ifft)(out)
    assert error(np.asarray(back), x) < 5e-7


@pytest.mark.parametrize("length", [1 << 12, 1 << 15, 14400, 4099])
def test_double_precision(length):
    x = numbers((length,), np.complex128)
    wanted = scipy.fft.fft(x.astype(np.clongdouble))
    with gf.enable_x64(True):
        out = np.asarray(gf.jit(jnp.fft.fft)(x))
        back = np.asarray(gf.jit(jnp.fft.ifft)(out))
    assert out.dtype == np.complex128
    # Where the platform has no longer floats, the wanted ones are as exact as these.
    assert error(out, wanted) < max(1.1 * error(scipy.fft.fft(x), wanted), 5e-16)
    assert error(back, x) < 1e-15


@pytest.mark.parametrize("lines", [1, 3, MOST_LINES, MOST_LINES + 1])
def test_several_lines(lines):
    x = numbers((lines, 4096))
    for function, wanted in ((jnp.fft.fft, np.fft.fft), (jnp.fft.ifft, np.fft.ifft)):
        out = np.asarray(gf.jit(function)(x))
        assert error(out, wanted(x.astype(np.complex128))) < 2e-7


def test_operands_that_do_not_lie_in_order():
    x = numbers((4, 4096))
    for change in (lambda x: x[::-1, ::-1], lambda x: x[1:3], lambda x: x.reshape(4096, 4).T):
        out = np.asarray(gf.jit(lambda x, change=change: jnp.fft.fft(change(x)))(x))
        assert error(out, np.fft.fft(change(x).astype(np.complex128))) < 2e-7


def test_other_axis_batches_and_gradient():
    x, weights = numbers((4096, 2)), numbers((4096, 2))[::-1].copy()
    out = np.asarray(gf.jit(lambda x: jnp.fft.fft(x, axis=0))(x))
    assert error(out, np.fft.fft(x.astype(np.complex128), axis=0)) < 2e-7
    mapped = np.asarray(gf.jit(gf.vmap(jnp.fft.fft, 1, 1))(x))
    np.testing.assert_array_equal(mapped, out)

    def loss(x):
        return (jnp.fft.fft(x, axis=0) * weights).real.sum()

    gradient = np.asarray(gf.jit(gf.grad(loss))(x))
    assert error(gradient, np.fft.fft(weights.astype(np.complex128), axis=0)) < 2e-7


def test_impulses():
    """A transform of an impulse is a wave of size 1; that of ones is an impulse."""
    x = np.zeros(4096, np.complex64)
    x[5] = 1
    wave = np.asarray(gf.jit(jnp.fft.fft)(x))
    np.testing.assert_allclose(wave, np.exp(-2j * np.pi * 5 * np.arange(4096) / 4096), atol=3e-7)
    out = np.asarray(gf.jit(jnp.fft.fft)(np.ones(4096, np.complex64)))
    np.testing.assert_array_equal(out, np.where(np.arange(4096) == 0, 4096, 0))


def test_nan_spreads():
    x = numbers((4096,))
    x[7] = np.nan
    assert np.isnan(np.asarray(gf.jit(jnp.fft.fft)(x))).all()


def test_radices():
    for length in [*LENGTHS, LONGEST, 2 * LONGEST, SHORTEST // 2, 7 << 12]:
        factors = radices(length)
        if factors is not None:
            assert prod(factors) == length and SHORTEST <= length <= LONGEST
    assert radices(1 << 16) == (8, 8, 8, 16, 8)
    assert [radices(n) for n in (4099, 5000, 7 << 12, 2 * LONGEST, 2048)] == [None] * 5


@pytest.mark.parametrize("order", [1, 2, 3, 5, 8, 16, 4096, 14400])
def test_roots(order):
    powers = np.arange(-order, 2 * order)
    re, im = roots(powers, order)
    angle = np.asarray(powers % order, np.longdouble) * 2 * np.arctan2(np.longdouble(0), -1) / order
    np.testing.assert_allclose(re, np.cos(angle), rtol=0, atol=3e-16)
    np.testing.assert_allclose(im, -np.sin(angle), rtol=0, atol=3e-16)
    assert roots(0, order) == (1, 0)


def test_kernels_keep_the_rules():
    for length in (1 << 12, 1 << 14, 14400):
        for inverse in (False, True):
            out = ShapedArray((2, length), np.dtype(np.complex64))
            launches = fft_launches([contiguous(out.shape)], [out], length, inverse)
            for launch in launches.launches:
                verify(launch.kernel)
    apart = View((2, 4096), (1, 2), 0, (False, False))
    out = ShapedArray((2, 4096), np.dtype(np.complex64))
    assert fft_launches([apart], [out], 4096, False) is None
