"""scipy.signal, fft, ndimage, interpolate and spatial in float64 against SciPy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.fft
import scipy.interpolate
import scipy.ndimage
import scipy.signal
import scipy.spatial.transform as truth

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.scipy import fft, interpolate, ndimage, signal
from gpuflow.scipy.cluster.vq import vq
from gpuflow.scipy.spatial import transform


@pytest.fixture(autouse=True)
def wide_dtypes():
    with gf.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def compare(got, want, tolerance=1e-10):
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            compare(one, other, tolerance)
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)


# --- convolution ---------------------------------------------------------------------------

SHAPES = [
    ((7,), (3,)),
    ((7,), (4,)),
    ((3,), (7,)),
    ((5, 6), (3, 2)),
    ((5, 6), (4, 4)),
    ((3, 2), (5, 6)),
]


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_convolution(mode, first, second):
    x, real = numbers(*first), numbers(*second, seed=1)
    for y in (real, real + 1j * numbers(*second, seed=2)):
        for method in ("direct", "fft"):
            compare(signal.convolve(x, y, mode, method), scipy.signal.convolve(x, y, mode))
        if mode != "valid" or len(first) == 1:
            compare(signal.correlate(x, y, mode), scipy.signal.correlate(x, y, mode))
        if len(first) == 2:
            compare(signal.convolve2d(x, y, mode), scipy.signal.convolve2d(x, y, mode))
            compare(signal.correlate2d(x, y, mode), scipy.signal.correlate2d(x, y, mode))


def test_fftconvolve_along_some_axes():
    x, y = numbers(3, 8), numbers(3, 5)
    for mode in ("full", "same", "valid"):
        want = scipy.signal.fftconvolve(x, y, mode, axes=1)
        compare(signal.fftconvolve(x, y, mode, axes=1), want)


# --- spectra -------------------------------------------------------------------------------

CUTS = [
    {"nperseg": 64},
    {"nperseg": 63, "noverlap": 20, "nfft": 100},
    {"nperseg": 64, "detrend": "linear"},
    {"window": "hamming", "nperseg": 32},
    {"window": np.hanning(40), "nperseg": 40},
]
REAL = numbers(2, 300)
COMPLEX = REAL + 1j * numbers(2, 300, seed=1)


@pytest.mark.parametrize("x", [REAL, COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_spectra(x, cut):
    compare(signal.stft(x, 10.0, **cut), scipy.signal.stft(x, 10.0, **cut))
    compare(signal.welch(x, 10.0, **cut), scipy.signal.welch(x, 10.0, **cut))
    other = x[::-1, :200]
    for more in ({}, {"average": "median"}, {"scaling": "spectrum"}):
        want = scipy.signal.csd(x, other, 10.0, **cut, **more)
        compare(signal.csd(x, other, 10.0, **cut, **more), want)


@pytest.mark.parametrize("boundary", ["zeros", "even", "odd", "constant", None])
@pytest.mark.parametrize("padded", [False, True])
def test_boundaries(boundary, padded):
    options = {"nperseg": 64, "boundary": boundary, "padded": padded}
    compare(signal.stft(REAL, **options), scipy.signal.stft(REAL, **options))
    compare(signal.stft(REAL.T, axis=0, **options), scipy.signal.stft(REAL.T, axis=0, **options))


@pytest.mark.parametrize("cut", [{"nperseg": 64}, {"nperseg": 63, "noverlap": 40}])
def test_istft(cut):
    transforms = scipy.signal.stft(REAL, 10.0, **cut)[2]
    times, back = signal.istft(transforms, 10.0, **cut)
    want = scipy.signal.istft(transforms, 10.0, **cut)[1]
    compare(back, want)
    compare(back[:, :300], REAL)
    # SciPy counts as many times as there are signals.
    compare(times, np.arange(want.shape[-1]) / 10.0)
    turned = transforms.transpose(2, 0, 1)
    want = scipy.signal.istft(turned, 10.0, time_axis=0, freq_axis=2, **cut)[1]
    compare(signal.istft(turned, 10.0, time_axis=0, freq_axis=2, **cut)[1], want)


def test_spectra_have_gradients():
    x = numbers(40)

    def loss(x):
        back = signal.istft(signal.stft(x, nperseg=8)[2], nperseg=8)[1]
        return jnp.sum(jnp.sin(back)) + jnp.sum(jnp.log(signal.welch(x, nperseg=8)[1]))

    slopes = gf.jit(gf.grad(loss))(x)
    step = 1e-6 * np.eye(40)[7]
    want = (loss(x + step) - loss(x - step)) / 2e-6
    assert float(slopes[7]) == pytest.approx(float(want), rel=1e-5)


@pytest.mark.parametrize("kind", ["constant", "linear"])
@pytest.mark.parametrize("axis", [0, 1])
def test_detrend(kind, axis):
    x = numbers(20, 50).cumsum(1)
    compare(signal.detrend(x, axis, kind), scipy.signal.detrend(x, axis, kind))
    compare(signal.detrend(x, axis, kind, [3, 11]), scipy.signal.detrend(x, axis, kind, [3, 11]))


# --- cosine transforms ---------------------------------------------------------------------


@pytest.mark.parametrize("norm", [None, "backward", "ortho"])
@pytest.mark.parametrize("name", ["dct", "idct"])
def test_cosine_transforms(name, norm):
    x = numbers(4, 5, 6)
    for size in (None, 1, 3, 8):
        want = getattr(scipy.fft, name)(x, n=size, axis=1, norm=norm)
        compare(getattr(fft, name)(x, n=size, axis=1, norm=norm), want)
    axes = [{}, {"axes": (0, 2)}, {"s": (3, 7)}, {"axes": (1,)}, {"s": (3, 7), "axes": (2, 0)}]
    for options in axes:
        want = getattr(scipy.fft, f"{name}n")(x, norm=norm, **options)
        compare(getattr(fft, f"{name}n")(x, norm=norm, **options), want)


def test_cosine_transforms_invert_each_other():
    x = numbers(3, 7) + 1j * numbers(3, 7, seed=1)
    compare(fft.idct(fft.dct(x)), x)
    compare(fft.dctn(fft.idctn(x, norm="ortho"), norm="ortho"), x)


# --- places --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["constant", "nearest", "wrap", "mirror", "reflect"])
@pytest.mark.parametrize("order", [0, 1])
def test_map_coordinates(mode, order):
    x = numbers(5, 7)
    places = list(np.random.default_rng(3).uniform(-9, 15, (2, 40)))
    name = {"wrap": "grid-wrap", "constant": "grid-constant"}.get(mode, mode)
    want = scipy.ndimage.map_coordinates(x, places, order=order, mode=name, cval=2.5)
    compare(ndimage.map_coordinates(x, places, order, mode, 2.5), want)
    many = gf.vmap(lambda x: ndimage.map_coordinates(x, places, order, mode, 2.5))
    compare(many(np.stack([x, x]))[1], want)


@pytest.mark.parametrize("method", ["linear", "nearest"])
@pytest.mark.parametrize("fill", [np.nan, None, 3.0])
def test_interpolator(method, fill):
    grid = np.sort(numbers(5)), np.sort(numbers(7))
    values = numbers(5, 7, 2)
    points = np.random.default_rng(0).uniform(-2, 2, (30, 2))
    ours = interpolate.RegularGridInterpolator(grid, values, method, fill_value=fill)
    theirs = scipy.interpolate.RegularGridInterpolator(
        grid, values, method, bounds_error=False, fill_value=fill
    )
    compare(ours(points), theirs(points))
    compare(gf.jit(lambda f, x: f(x))(ours, points), theirs(points))


def test_interpolator_is_a_tree_with_gradients():
    grid = (np.arange(4.0),)

    def loss(values, x):
        return jnp.sum(interpolate.RegularGridInterpolator(grid, values)(x) ** 2)

    slopes = gf.grad(loss, (0, 1))(np.array([1.0, 3.0, 2.0, 5.0]), np.array([0.25, 2.5]))
    compare(slopes, (np.array([2.25, 0.75, 3.5, 3.5]), np.array([6.0, 21.0])))


def test_vq_of_one_feature_under_jit():
    x = np.array([-1.3, 0.2, 0.5, 1.7])
    compare(gf.jit(vq)(x, x[:2])[0], [0, 1, 1, 1])


# --- rotations -----------------------------------------------------------------------------

SEQUENCES = ["xyz", "XYZ", "zxz", "ZYZ", "yxy", "yzx", "ZXY"]


def rotations(count):
    quat = numbers(count, 4)
    return transform.Rotation.from_quat(quat), truth.Rotation.from_quat(quat)


@pytest.mark.parametrize("name", ["as_matrix", "as_rotvec", "as_mrp", "as_quat", "magnitude"])
def test_forms_of_rotations(name):
    ours, theirs = rotations(6)
    compare(getattr(ours, name)(), getattr(theirs, name)())
    compare(getattr(ours[2], name)(), getattr(theirs[2], name)())


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_euler_angles(sequence):
    ours, theirs = rotations(6)
    compare(ours.as_euler(sequence), theirs.as_euler(sequence))
    angles = 100 * numbers(6, 3, seed=1)
    want = truth.Rotation.from_euler(sequence, angles, degrees=True).as_matrix()
    compare(transform.Rotation.from_euler(sequence, angles, True).as_matrix(), want)


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_locked_angles_give_the_same_rotation(sequence):
    middle = [0.0, np.pi / 2, np.pi, -np.pi / 2]
    locked = truth.Rotation.from_euler(sequence, [[0.3, angle, 0.2] for angle in middle])
    angles = transform.Rotation(jnp.asarray(locked.as_quat())).as_euler(sequence)
    back = transform.Rotation.from_euler(sequence, angles).as_matrix()
    compare(back, locked.as_matrix(), 1e-6)


def test_rotations_from_other_forms():
    ours, theirs = rotations(6)
    vectors = 3 * numbers(6, 3)
    compare(transform.Rotation.from_matrix(theirs.as_matrix()).as_matrix(), theirs.as_matrix())
    for name in ("from_rotvec", "from_mrp"):
        for scale in (1.0, 1e-5):
            want = getattr(truth.Rotation, name)(scale * vectors).as_quat(canonical=True)
            result = getattr(transform.Rotation, name)(scale * vectors)
            compare(result.as_quat(canonical=True), want)
    compare((ours[::2] * ours[1::2]).as_matrix(), (theirs[::2] * theirs[1::2]).as_matrix())
    for inverse in (False, True):
        compare(ours.apply(vectors, inverse), theirs.apply(vectors, inverse))
    compare(ours.mean().as_matrix(), theirs.mean().as_matrix())
    weights = np.arange(1.0, 7.0)
    compare(ours.mean(weights).as_matrix(), theirs.mean(weights).as_matrix())


def test_gradients_of_no_rotation_are_finite():
    def turned(vector):
        return transform.Rotation.from_rotvec(vector).apply(jnp.array([1.0, 2.0, 3.0]))

    want = np.array([[0.0, 3.0, -2.0], [-3.0, 0.0, 1.0], [2.0, -1.0, 0.0]])
    compare(gf.jacobian(turned)(jnp.zeros(3)), want)
    back = gf.jacobian(lambda v: transform.Rotation.from_rotvec(v).as_rotvec())(jnp.zeros(3))
    compare(back, np.eye(3))


def test_slerp():
    ours, theirs = rotations(6)
    times = np.arange(6.0)
    for at in (np.array([0.0, 0.5, 2.2, 5.0]), 1.5):
        want = truth.Slerp(times, theirs)(at).as_matrix()
        compare(transform.Slerp.init(times, ours)(at).as_matrix(), want)
