"""Fourier transforms of several rows at once, against NumPy in float64 and its longer floats."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import scipy.fft
from guarded_memory import guarded, needs_guards

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.runtime.memory import address
from gpuflow.targets.cpu.library import fourier_rows
from gpuflow.targets.cpu.library.fourier_lengths import (
    MAX_LENGTH,
    bluestein_length,
    memory_length,
    radices,
    split_shape,
)
from gpuflow.targets.cpu.library.fourier_passes import MAX_RADIX, RADICES, lanes_of, roots
from gpuflow.targets.cpu.library.fourier_rows import FROM_REAL, TO_REAL, lane_rows
from gpuflow.targets.cpu.library.fourier_writer import FourierWriter, RowLayout, RowTransforms
from gpuflow.targets.cpu.runtime.native.program_writer import Code, callable_program, fixed
from gpuflow.targets.cpu.runtime.native.services import native_services

# Powers of two, all other factors with passes of their own, sums over pairs, and chirps.
LENGTHS = [1 << 12, 1 << 13, 1 << 15, 3 << 12, 14400, 64 * 125, 7 * 1024, 5000, 4095, 37 * 127]
LENGTHS += [4099, 2 * 2053, 131, 131 * 257]


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


@pytest.mark.parametrize("length", [1 << 12, 1 << 15, 14400, 37 * 127, 4099])
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


@pytest.mark.parametrize("lines", [1, 3, 4, 8, 33])
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
    for length in [*range(1, 500), *LENGTHS, 1 << 20, 999_999]:
        factors = radices(length)
        assert factors is None or prod(factors) == length
        assert (factors is None) == (bluestein_length(length) is not None)
        assert factors is None or all(r in RADICES or r <= MAX_RADIX for r in factors)
    assert radices(1000) == (8, 5, 5, 5)
    assert [radices(n) for n in (2, 10, 12, 14, 30)] == [(2,), (10,), (4, 3), (2, 7), (10, 3)]
    assert radices(1) == () and radices(131) is None


def test_chirps_have_room():
    """A convolution of a line with a chirp that goes on both sides does not meet itself."""
    for length in (131, 997, 4099, 16381):
        total = bluestein_length(length)
        assert total >= 2 * length - 1 and radices(total) is not None
        assert memory_length(length) == total
    assert bluestein_length(1000) is None and memory_length(1000) == 1000


def test_split():
    assert split_shape(1000, 100, "float32") == (1000, 1)
    for length in (1000, 65536, 1 << 20, 999_999):
        rows, columns = split_shape(length, 1, "float32")
        assert rows * columns == length and columns > 1
    assert split_shape(1_000_003, 1, "float32") is None
    assert memory_length(4099) <= MAX_LENGTH < memory_length(1_000_003)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_lane_has_its_line(dtype):
    assert sorted(lane_rows(dtype)) == list(range(lanes_of(dtype)))


@pytest.mark.parametrize("radix", [*RADICES, 11, 37, 127])
@pytest.mark.parametrize("wide", [False, True])
def test_each_radix(radix, wide):
    """First, between and last: with roots, with several elements side by side."""
    real, whole = (np.float64, np.complex128) if wide else (np.float32, np.complex64)
    limit = 1e-15 if wide else 3e-7
    for length in (radix, radix * radix, 3 * radix * 4):
        x = numbers((9, length), whole)
        wide_x = x.astype(np.complex128)
        with gf.enable_x64(wide):
            out = np.asarray(gf.jit(jnp.fft.fft)(x))
            across = np.asarray(gf.jit(lambda x: jnp.fft.ifft2(x))(x.T.copy()))
            half = np.asarray(gf.jit(jnp.fft.rfft)(np.ascontiguousarray(x.real).astype(real)))
            back = np.asarray(gf.jit(lambda x, n=length: jnp.fft.irfft(x, n))(half))
        assert error(out, np.fft.fft(wide_x)) < limit
        assert error(across, np.fft.ifft2(wide_x.T)) < limit
        assert error(half, np.fft.rfft(wide_x.real)) < limit
        assert error(back, wide_x.real) < limit


@pytest.mark.parametrize("lines", [1, 3, 4, 8, 9])
@pytest.mark.parametrize("length", [30, 31, 262, 4096, 9999, 10_000])
def test_lines_do_not_see_each_other(lines, length):
    """Results are those of the line alone, whatever is in the others."""
    x = numbers((lines, length)).real.copy()
    plain = np.asarray(gf.jit(jnp.fft.rfft)(x))
    x[-1, 3] = np.inf
    out = np.asarray(gf.jit(jnp.fft.rfft)(x))
    np.testing.assert_array_equal(out[:-1], plain[:-1])
    assert not np.isfinite(out[-1]).any()


def test_threads_change_nothing():
    """Each block of lines is one thread's, whichever it is; here one that is split and one not."""
    for shape in ((300, 500), (1 << 18,)):
        x = numbers(shape)
        first = np.asarray(gf.jit(jnp.fft.fftn)(x))
        for _ in range(5):
            np.testing.assert_array_equal(np.asarray(gf.jit(jnp.fft.fftn)(x)), first)


@pytest.mark.parametrize("order", [1, 2, 3, 5, 8, 16, 4096, 14400])
def test_roots(order):
    powers = np.arange(-order, 2 * order)
    re, im = roots(powers, order)
    angle = np.asarray(powers % order, np.longdouble) * 2 * np.arctan2(np.longdouble(0), -1) / order
    np.testing.assert_allclose(re, np.cos(angle), rtol=0, atol=3e-16)
    np.testing.assert_allclose(im, -np.sin(angle), rtol=0, atol=3e-16)
    assert roots(0, order) == (1, 0)


@needs_guards
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_nothing_is_read_or_written_outside(dtype, by_columns, at_end):
    """Both arrays end, or begin, where memory does."""
    for lines, length in ((1, 1), (3, 2), (5, 3), (8, 5), (9, 131), (17, 30)):
        x = numbers((lines, length), dtype)
        stored = x.T.copy() if by_columns else x
        source, target = guarded(stored, at_end), guarded(np.zeros_like(stored), at_end)
        code = Code()
        writer = FourierWriter(
            "float32" if dtype == np.complex64 else "float64", native_services(), code
        )
        steps = stored.strides[::-1] if not by_columns else stored.strides
        sides = [RowLayout(fixed(address(one)), *steps) for one in (source, target)]
        writer.transform(RowTransforms(length, lines), *sides)
        call, kept = callable_program(code, 0, native_services().runtime)
        call()
        del kept
        found = target.T if by_columns else target
        assert error(found, np.fft.fft(x.astype(np.complex128))) < 4e-7


@needs_guards
@pytest.mark.parametrize("at_end", [False, True])
def test_long_real_lines_stay_inside(at_end):
    length = 3000
    x = numbers((2, length)).real.copy()
    source = guarded(x, at_end)
    target = guarded(np.zeros((2, length // 2 + 1), np.complex64), at_end)
    work = guarded(np.zeros((2, length // 2), np.complex64), at_end)
    back = guarded(np.zeros_like(x), at_end)
    code = Code()
    writer = FourierWriter("float32", native_services(), code)
    there = RowLayout(fixed(address(source)), 8, length * 4)
    half = RowLayout(fixed(address(target)), 8, target.strides[0])
    shape = split_shape(length // 2, 1, "float32")
    writer.transform_long(
        shape,
        RowTransforms(length // 2, 2, kind=FROM_REAL, real_length=length),
        there,
        half,
        fixed(address(work)),
    )
    inverse = RowTransforms(length // 2, 2, 1, TO_REAL, (True, True), 1 / length, length)
    again = RowLayout(fixed(address(back)), 8, length * 4)
    writer.transform_long(shape, inverse, half, again, fixed(address(work)))
    call, kept = callable_program(code, 0, native_services().runtime)
    call()
    del kept
    assert error(target, np.fft.rfft(x.astype(np.float64))) < 4e-7
    assert error(back, x) < 4e-7


@pytest.mark.parametrize("dtype, size", [("float32", 8), ("float64", 16)])
def test_which_blocks_are_whole_columns_or_rows(dtype, size):
    lanes = lanes_of(dtype)

    def fits(element, line, lines, count):
        return fourier_rows.are_columns_or_rows(dtype, element, line, lines, count)

    assert fits(9 * size, size, 3 * lanes, 2)
    assert not fits(9 * size, size, 3 * lanes + 1, 2)  # the last block of columns has few
    assert not fits(9 * size, 2 * size, 3 * lanes, 2)
    assert fits(size, 9 * size, 1, lanes)
    assert fits(size, 9 * size, 3 * lanes + 1, lanes // 2)
    assert not fits(size, 9 * size, 3, lanes // 2 - 1)
    assert not fits(2 * size, 9 * size, 3, lanes)


@pytest.mark.parametrize("shape", [(32, 64), (33, 64), (64, 33), (48, 3, 64)])
@pytest.mark.parametrize("axis", [0, -1])
def test_the_functions_that_are_built_are_those_that_are_called(shape, axis, monkeypatch):
    asked, make = [], fourier_rows.rows_function.__wrapped__

    def rows_function(*arguments):
        asked.append(arguments)
        return make(*arguments)

    x = numbers(shape)
    monkeypatch.setattr(fourier_rows, "rows_function", rows_function)
    gf.clear_caches()
    result = np.asarray(gf.jit(lambda x: jnp.fft.fft(x, axis=axis))(x))
    assert error(result, np.fft.fft(x, axis=axis)) < 1e-6
    assert len(set(asked)) == 1
