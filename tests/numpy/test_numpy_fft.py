"""jnp.fft against NumPy in float64: lengths, axes, norms; derivatives; errors."""

from __future__ import annotations

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp

fft = jnp.fft
NORMS = [None, "backward", "ortho", "forward"]
OF_REAL = ("rfft", "ihfft", "rfft2", "rfftn")


@pytest.fixture(autouse=True)
def wide_dtypes():
    with gf.enable_x64(True):
        yield


def signal(shape, name="fft", seed=0):
    random = np.random.default_rng([seed, *shape])
    values = random.standard_normal(shape)
    return values if name in OF_REAL else values + 1j * random.standard_normal(shape)


def compare(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12 * np.abs(want).max(initial=1.0))


def check(name, x, *args):
    compare(getattr(fft, name)(x, *args), getattr(np.fft, name)(x, *args))


@together(by="name", size=60)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("n", [None, 1, 3, 4, 9])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_axis(name, n, axis, norm):
    check(name, signal((4, 5, 3), name), n, axis, norm)


AXES = [(None, None), (None, (0, 2)), ((3, 7), (1, -1)), ((3, 7, 4), (2, 0, 1)), ((2, 3, 5), None)]


@together(by="name")
@pytest.mark.filterwarnings("ignore:`axes` should not be `None`")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("s, axes", AXES, ids=str)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes(name, s, axes, norm):
    check(name, signal((4, 5, 6), name), s, axes, norm)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@pytest.mark.parametrize("rank", [4, 5, 7])
def test_more_than_three_axes(name, rank):
    check(name, signal((3, 2, 4, 2, 3, 2, 2)[:rank], name))


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2"])
def test_two_axes(name):
    check(name, signal((2, 4, 6), name))
    check(name, signal((2, 4, 6), name), (3, 5), (0, 1), "ortho")


@pytest.mark.filterwarnings("ignore:`axes` should not be `None`")
def test_two_axes_without_axes():
    check("fft2", signal((4, 5, 6)), None, None)
    check("irfft2", signal((4, 5, 6)), (3, 7), None)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies(n):
    compare(fft.fftfreq(n, 0.5), np.fft.fftfreq(n, 0.5))
    compare(fft.rfftfreq(n, 0.5), np.fft.rfftfreq(n, 0.5))
    assert fft.fftfreq(n, dtype=jnp.float32).dtype == np.float32
    with gf.enable_x64(False):
        assert fft.rfftfreq(n).dtype == np.float32


def test_frequencies_are_one_kernel():
    program = gf.jit(lambda d: fft.fftfreq(64, d))
    assert [step.kind for step in gf.explain(program, 0.5).steps] == ["kernel"]
    with gf.enable_x64(False):  # counted in whole numbers: float32 has no odd ones from 2**24 on
        last = fft.fftfreq(2**25 + 1, 1 / (2**25 + 1))[2**24]
        assert last == np.float32(2**24)


@pytest.mark.parametrize("axes", [None, 1, (0, 2), -1])
@pytest.mark.parametrize("shape", [(4, 5, 3), (1, 2, 7)])
def test_shifts(shape, axes):
    x = signal(shape)
    compare(fft.fftshift(x, axes), np.fft.fftshift(x, axes))
    compare(fft.ifftshift(x, axes), np.fft.ifftshift(x, axes))
    compare(fft.ifftshift(fft.fftshift(x, axes), axes), x)


def test_dtypes():
    x = np.ones(4, np.float32)
    assert fft.fft(x).dtype == fft.rfft(x).dtype == np.complex64
    assert fft.irfft(fft.rfft(x)).dtype == np.float32
    assert fft.fft(x, norm="ortho").dtype == np.complex64
    with gf.enable_x64(False):
        assert fft.fft(np.arange(4)).dtype == fft.rfft(np.ones(4, bool)).dtype == np.complex64


FUNCTIONS = {
    "fft": lambda x: fft.fft(x, 5, norm="ortho"),
    "ifftn": lambda x: fft.ifftn(x),
    "rfft even": lambda x: fft.rfft(x.real),
    "rfft odd": lambda x: fft.rfft(x.real, 5),
    "rfftn": lambda x: fft.rfftn(x.real, (3, 7)),
    "irfft even": lambda x: fft.irfft(x),
    "irfft odd": lambda x: fft.irfft(x, 7, norm="forward"),
    "irfftn": lambda x: fft.irfftn(x, (3, 7)),
    "hfft": lambda x: fft.hfft(x),
    "ihfft": lambda x: fft.ihfft(x.real),
    "fftshift": lambda x: fft.fftshift(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    """Linear functions are their own jvp; vjp is the adjoint without conjugation."""
    function, x, t = FUNCTIONS[name], signal((4, 6)), signal((4, 6), seed=1)
    out, tangent = gf.jvp(function, (jnp.asarray(x),), (t,))
    compare(tangent, function(jnp.asarray(t)))
    cotangent = signal(out.shape, seed=2)
    cotangent = cotangent if out.dtype.kind == "c" else cotangent.real
    (pulled,) = gf.vjp(function, jnp.asarray(x))[1](cotangent)
    left = np.sum(cotangent * np.asarray(tangent)).real
    assert np.sum(np.asarray(pulled) * t).real == pytest.approx(left, rel=1e-10)


def test_vmap_and_jit():
    x = signal((3, 4, 5))
    want = np.stack([np.fft.fft2(part) for part in np.moveaxis(x, 1, 0)])
    compare(gf.jit(gf.vmap(fft.fft2, in_axes=1))(x), want)


X = np.ones((2, 4))
ERRORS = {
    r"\[fft\] norm must be": lambda: fft.fft(X, norm="max"),
    r"\[fft\] lengths must be positive": lambda: fft.fft(X, 0),
    r"\[fft\] axis must be an int": lambda: fft.fft(X, axis=(0, 1)),
    r"\[fft\] RFFT takes real": lambda: fft.rfft(X + 1j),
    r"\[fftn\] axes must differ": lambda: fft.fftn(X, axes=(0, -2)),
    r"\[fftn\] there must be a length": lambda: fft.fftn(X, (2, 3), (0,)),
    r"\[fft2\] there must be two axes": lambda: fft.fft2(X, axes=(0,)),
    r"\[fft\] operands must be arrays": lambda: fft.fft([1.0, 2.0]),
    r"\[fftfreq\] n must be an int": lambda: fft.fftfreq([4]),
    r"fft\] the name must be one that exists": lambda: fft.fftt,
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises((TypeError, ValueError, AttributeError), match=message) as caught:
        ERRORS[message]()
    assert "Fix:" in str(caught.value)
