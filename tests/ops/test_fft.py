"""Fourier transforms of lax; values and derivatives are in the sweep, edge cases here."""

from __future__ import annotations

import numpy as np
import pytest
from op_sweep import x64

import gpuflow as gf
from gpuflow import lax
from gpuflow.core.primitive import registry

TYPES = ["FFT", "IFFT", "RFFT", "IRFFT"]


def signal(shape, dtype=np.float32, seed=0):
    random = np.random.default_rng([seed, *shape])
    values = random.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * random.standard_normal(shape)
    return values.astype(dtype)


@pytest.mark.parametrize("name", TYPES)
def test_types_by_name(name):
    x = signal((4,), np.float32 if name == "RFFT" else np.complex64)
    lengths = (6,) if name == "IRFFT" else (4,)
    want = lax.fft(x, lax.FftType[name], lengths)
    for given in (name, name.lower()):
        np.testing.assert_array_equal(lax.fft(x, given, lengths), want)
    assert str(lax.FftType[name]) == name


@pytest.mark.parametrize("name", TYPES)
def test_single_precision_stays(name):
    x = signal((4,), np.float32 if name == "RFFT" else np.complex64)
    lengths = (6,) if name == "IRFFT" else (4,)
    assert lax.fft(x, name, lengths).dtype == (np.float32 if name == "IRFFT" else np.complex64)


def test_operands_become_complex():
    assert lax.fft(np.arange(3, dtype=np.int32), "fft", (3,)).dtype == np.complex64
    assert lax.fft(np.ones(3, bool), "rfft", (3,)).dtype == np.complex64
    assert lax.fft(np.ones(3, np.float32), "ifft", ()).dtype == np.complex64
    with x64():
        assert lax.fft(np.arange(3), "fft", (3,)).dtype == np.complex128
        assert lax.fft(np.ones(3, np.float32), "fft", (3,)).dtype == np.complex64


@pytest.mark.parametrize("shape, lengths", [((0, 3), (3,)), ((3, 0), (0,)), ((2, 0, 4), (0, 4))])
@pytest.mark.parametrize("name", ["FFT", "IFFT", "RFFT"])
def test_no_elements(name, shape, lengths):
    x = signal(shape, np.float32 if name == "RFFT" else np.complex64)
    out = lax.fft(x, name, lengths)
    last = lengths[-1] // 2 + 1 if name == "RFFT" else lengths[-1]
    assert out.shape == (*shape[:-1], last) and not np.asarray(out).any()


def test_what_is_not_finite_spreads():
    x = signal((8,), np.complex64)
    x[3] = np.nan
    assert np.isnan(np.asarray(lax.fft(x, "fft", (8,)))).all()


def test_imaginary_parts_of_own_mirrors_do_not_matter():
    """The first and the middle element of half a spectrum count as real."""
    x = signal((5,), np.complex64)
    y = x.copy()
    y[[0, 4]] = y[[0, 4]].real
    np.testing.assert_array_equal(lax.fft(x, "irfft", (8,)), lax.fft(y, "irfft", (8,)))


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_inverses(length):
    with x64():
        x, z = signal((3, length), np.float64), signal((3, length), np.complex128)
        lengths = (3, length)
        back = lax.fft(lax.fft(z, "fft", lengths), "ifft", lengths)
        np.testing.assert_allclose(back, z, atol=1e-13)
        back = lax.fft(lax.fft(x, "rfft", lengths), "irfft", lengths)
        np.testing.assert_allclose(back, x, atol=1e-13)


@pytest.mark.parametrize("name", TYPES)
def test_vmap_and_jit(name):
    x = signal((4, 3, 5), np.float32 if name == "RFFT" else np.complex64)
    lengths = (3, 8) if name == "IRFFT" else (3, 5)

    def function(x):
        return lax.fft(x, name, lengths)

    want = np.asarray(function(x))
    for axis in (0, 1, 2):
        got = gf.jit(gf.vmap(function, in_axes=axis))(np.moveaxis(x, 0, axis))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_flops_grow_like_n_log_n():
    lower = registry()["fft"].lower
    aval = gf.numpy.ones((4, 8), np.complex64).aval
    assert lower.flops([aval], [aval], {"fft_lengths": (8,)}) == 5 * 32 * 3


ERRORS = {
    r"\[fft\] RFFT takes real numbers": lambda: lax.fft(signal((4,), np.complex64), "rfft", (4,)),
    r"\[fft\] fft_type must be an FftType or str": lambda: lax.fft(signal((4,)), 1.5, (4,)),
    r"\[fft\] fft_type must be one of": lambda: lax.fft(signal((4,)), "dct", (4,)),
    r"\[fft\] fft_lengths must name": lambda: lax.fft(signal((4,)), "fft", (4, 4)),
    r"\[fft\] fft_lengths must name one to three": lambda: lax.fft(
        signal((1, 1, 1, 1)), "fft", (1, 1, 1, 1)
    ),
    r"\[fft\] the last dimensions of the operand must be \(5,\)": lambda: lax.fft(
        signal((4,)), "fft", (5,)
    ),
    r"\[fft\] the last dimensions of the operand must be \(5,\) for IRFFT": lambda: lax.fft(
        signal((4,)), "irfft", (8,)
    ),
    r"\[fft\] the operand must be float32 or float64 for RFFT": lambda: lax.fft(
        signal((4,), np.float16), "rfft", (4,)
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        ERRORS[message]()
    assert "Fix:" in str(caught.value)
