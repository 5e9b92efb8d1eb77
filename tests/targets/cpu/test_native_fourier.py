"""Compiled Fourier transforms in native programs: of all kinds and dimensions, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from native_programs import in_scan, in_while, is_native

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.targets.cpu.library import fourier_loops
from gpuflow.targets.cpu.library.fourier_loops import MAX_ELEMENTS

LINES = [(1,), (2,), (101,), (5, 8), (300, 100), (2, 0, 4)]
SEVERAL = [(4, 1), (1, 6), (2, 3, 4, 6), (64, 65), (0, 4)]
# Kinds of loops: none, and those of native programs.
AROUND = [lambda function: function, in_scan]


def numbers(shape, dtype):
    random = np.random.default_rng(len(shape))
    x = random.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * random.standard_normal(shape)
    return x.astype(dtype)


def check(name, x, **options):
    """A transform in and outside of loops; errors are relative to the largest element."""
    single = x.dtype in (np.float32, np.complex64)
    wide = x.astype(np.float64 if x.dtype.kind == "f" else np.complex128)
    wanted = getattr(np.fft, name)(wide, **options) if x.size else None
    for around in AROUND:
        found = np.asarray(gf.jit(around(lambda x: getattr(jnp.fft, name)(x, **options)))(x))
        if wanted is None:
            assert found.size == 0 or not found.any()
            continue
        assert found.shape == wanted.shape
        assert found.dtype == wanted.astype(np.result_type(found.dtype)).dtype
        limit = (1e-6 if single else 2e-15) * np.log2(wide.size + 2) * max(abs(wanted).max(), 1e-9)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", LINES)
def test_lines(shape, wide):
    with gf.enable_x64(wide):
        real, whole = (np.float64, np.complex128) if wide else (np.float32, np.complex64)
        check("rfft", numbers(shape, real))
        check("fft", numbers(shape, whole))
        check("ifft", numbers(shape, whole))
        for length in (2 * shape[-1] - 2, 2 * shape[-1] - 1):
            if length > 0:
                check("irfft", numbers(shape, whole), n=length)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", SEVERAL)
def test_several_dimensions(shape, wide):
    with gf.enable_x64(wide):
        real, whole = (np.float64, np.complex128) if wide else (np.float32, np.complex64)
        axes = tuple(range(max(len(shape) - 3, 0), len(shape)))
        check("rfftn", numbers(shape, real), axes=axes)
        check("fftn", numbers(shape, whole), axes=axes)
        check("ifftn", numbers(shape, whole), axes=axes)
        if shape[-1] > 1:
            check("irfftn", numbers(shape, whole), axes=axes)
        check("rfft", numbers(shape, real), axis=0)


def test_operands_that_do_not_lie_in_order():
    x = numbers((6, 8, 10), np.complex64)
    changes = [lambda x: x[::-1, :, ::-2], lambda x: x[1:3, 2:], lambda x: x.swapaxes(0, 2)]
    for change in changes:
        for name in ("fft", "ifft", "ifft2", "irfft", "irfft2", "fftn", "irfftn"):
            found = gf.jit(lambda x, c=change, n=name: getattr(jnp.fft, n)(c(x)))(x)
            wanted = getattr(np.fft, name)(change(x).astype(np.complex128))
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=2e-5)


def test_the_operand_stays():
    x = jnp.asarray(numbers((4, 6), np.complex64))
    before = np.array(x)
    for name in ("fft2", "ifft2", "irfft2"):
        gf.jit(getattr(jnp.fft, name))(x)
    np.testing.assert_array_equal(np.asarray(x), before)


def test_nan_and_infinities_stay_in_their_line():
    x = numbers((3, 12), np.float32)
    x[1, 4], x[2, 0] = np.nan, np.inf
    out = np.asarray(gf.jit(in_scan(jnp.fft.rfft))(x))
    np.testing.assert_allclose(out[0], np.fft.rfft(x[0].astype(np.float64)), atol=1e-5)
    assert np.isnan(out[1]).all() and not np.isfinite(out[2]).any()


def test_imaginary_parts_of_numbers_that_are_their_own_mirror():
    x = numbers((5,), np.complex64)
    without = x.copy()
    without[[0, -1]] = without[[0, -1]].real
    for value in (x, without):
        out = np.asarray(gf.jit(in_scan(lambda x: jnp.fft.irfft(x, 8)))(value))
        np.testing.assert_allclose(out, np.fft.irfft(x.astype(np.complex128), 8), atol=1e-6)


def test_gradient():
    x, weights = numbers((6, 9), np.float32), numbers((6, 5), np.complex64)

    def loss(x):
        return (jnp.fft.rfft2(x) * weights).real.sum()

    gradient = np.asarray(gf.jit(gf.grad(loss))(x))
    wanted = [
        (np.fft.rfft2(one.reshape(6, 9)) * weights.astype(np.complex128)).real.sum()
        for one in np.eye(54)
    ]
    np.testing.assert_allclose(gradient.reshape(-1), wanted, atol=2e-5)


def test_what_is_native(monkeypatch):
    x, spectrum = numbers((8, 8), np.float32), numbers((8, 5), np.complex64)
    for name in ("rfft", "fft", "rfft2", "fft2", "ifft2", "ihfft"):
        assert is_native(in_scan(getattr(jnp.fft, name)), x)
        assert is_native(in_while(getattr(jnp.fft, name)), x)
    for name in ("irfft", "irfft2", "hfft"):
        assert is_native(in_scan(getattr(jnp.fft, name)), spectrum)
    assert is_native(jnp.fft.rfft2, np.zeros((2, MAX_ELEMENTS), np.float32))
    # A line of odd length that is alone is NumPy's, unless it is long or NumPy has no such loop.
    assert is_native(jnp.fft.rfft, x[0, :7])
    assert not is_native(jnp.fft.rfft, np.zeros(MAX_ELEMENTS + 1, np.float32))
    monkeypatch.setattr(fourier_loops, "find_loop", lambda ufunc, types: None)
    assert not is_native(jnp.fft.rfft, x[0, :7])
    assert is_native(jnp.fft.rfft, x)


def test_outside_of_jit_the_numbers_are_those_of_jit():
    """A call of one op is the same native program, so that bits do not depend on jit."""
    x = numbers((6, 40), np.complex64)
    for kind, operand in (("FFT", x), ("IFFT", x), ("RFFT", x.real.copy()), ("IRFFT", x[:, :21])):
        single = gf.lax.fft(jnp.asarray(operand), kind, (40,))
        compiled = gf.jit(lambda x, k=kind: gf.lax.fft(x, k, (40,)))(operand)
        np.testing.assert_array_equal(np.asarray(single), np.asarray(compiled))
