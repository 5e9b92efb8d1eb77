"""Resizing: JAX's values, properties of the weights, gradients, errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from together import together

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import image as images

ROWS = json.loads((Path(__file__).parent / "data" / "image_values.json").read_text())
SMOOTH = ["linear", "cubic", "cubic-pytorch", "lanczos3", "lanczos5", "area"]


def image(shape, dtype=np.float32):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32).astype(dtype)


@together(size=23)
@pytest.mark.parametrize(("name", "arguments", "want"), ROWS)
def test_values_of_jax(name, arguments, want):
    if name == "resize":
        old, new, method, antialias = arguments
        out = images.resize(image(old), new, method, antialias)
    else:
        old, new, axes, scale, shift, method, antialias = arguments
        scale, shift = np.float32(scale), np.float32(shift)
        out = images.scale_and_translate(image(old), new, axes, scale, shift, method, antialias)
    assert out.shape == tuple(new)
    assert out.dtype == np.float32
    # JAX makes its weights in float32: places near the edge of a kernel differ by some units.
    np.testing.assert_allclose(np.ravel(out), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", SMOOTH)
@pytest.mark.parametrize("sizes", [(1, 1), (3, 17), (12, 5)])
def test_a_constant_image_stays_constant(method, sizes):
    out = images.resize(np.ones((4, 6), np.float32), sizes, method)
    np.testing.assert_allclose(np.asarray(out), np.ones(sizes), rtol=1e-6)


def test_shrinking_by_two_in_area_is_the_mean_of_blocks():
    x = image((6, 8))
    want = x.reshape(3, 2, 4, 2).mean((1, 3))
    np.testing.assert_allclose(
        np.asarray(images.resize(x, (3, 4), "area")), want, rtol=2e-6, atol=1e-7
    )


def test_growing_linearly_is_interpolation():
    x = image((9,))
    places = np.clip((np.arange(27) + 0.5) / 3 - 0.5, 0, 8)
    want = np.interp(places, np.arange(9), x)
    np.testing.assert_allclose(np.asarray(images.resize(x, (27,), "linear")), want, atol=1e-6)


@pytest.mark.parametrize(("old", "new"), [(7, 3), (3, 7), (10, 4), (5, 1), (5, 0)])
def test_nearest_takes_the_covering_pixel(old, new):
    x = np.arange(old)
    want = [int((k + 0.5) * old / new) for k in range(new)]
    out = images.resize(x, (new,), "nearest")
    assert out.dtype == np.int32
    np.testing.assert_array_equal(np.asarray(out), want)


def test_nearest_along_several_axes():
    x = image((4, 5, 6, 7))
    for new in [(4, 3, 6, 9), (2, 9, 6, 3), (8, 10, 3, 7), (4, 5, 6, 7), (1, 1, 1, 1)]:
        want = x
        for axis, size in enumerate(new):
            old = x.shape[axis]
            want = np.take(want, [int((k + 0.5) * old / size) for k in range(size)], axis)
        np.testing.assert_array_equal(np.asarray(images.resize(x, new, "nearest")), want)


def test_dtypes():
    assert images.resize(image((3, 4), int), (6, 8), "linear").dtype == np.float32
    assert images.resize(jnp.ones((3, 4), jnp.bfloat16), (6, 8), "cubic").dtype == jnp.bfloat16
    with gpuflow.enable_x64():
        assert images.resize(np.ones((3, 4)), (6, 8), "linear").dtype == np.float64


@pytest.mark.parametrize("method", ["nearest", *SMOOTH])
def test_gradient_is_the_transpose(method):
    x, y = image((5, 4)), image((3, 9))

    def total(v):
        return jnp.sum(images.resize(v, (3, 9), method) * y)

    gradient = np.asarray(gpuflow.jit(gpuflow.grad(total))(x))
    np.testing.assert_allclose((gradient * x).sum(), total(x), rtol=1e-5)


@pytest.mark.parametrize("method", SMOOTH)
@pytest.mark.parametrize("antialias", [True, False])
def test_gradients_of_scale_and_translation(method, antialias):
    with gpuflow.enable_x64():
        x = np.random.default_rng(1).normal(size=(7, 6))
        start = np.array([0.83, 1.21, 0.37, -0.42])

        def total(numbers):
            out = images.scale_and_translate(
                x, (5, 7), (0, 1), numbers[:2], numbers[2:], method, antialias
            )
            return jnp.sum(jnp.sin(out))

        got = np.asarray(gpuflow.grad(total)(start))
        step = 1e-6
        want = [
            (float(total(start + e)) - float(total(start - e))) / (2 * step)
            for e in np.eye(4) * step
        ]
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-7)
        compiled = gpuflow.jit(total)(jnp.asarray(start))
        np.testing.assert_allclose(float(compiled), float(total(start)), rtol=1e-12)


def test_under_vmap():
    x = image((3, 5, 4))
    out = gpuflow.vmap(lambda v: images.resize(v, (8, 2), "cubic"))(x)
    np.testing.assert_allclose(
        np.asarray(out), images.resize(x, (3, 8, 2), "cubic"), rtol=1e-5, atol=1e-6
    )


def test_errors():
    x = image((3, 4))
    with pytest.raises(ValueError, match=r"\[resize\] method must be one of .*'linear'"):
        images.resize(x, (3, 8), "sharp")
    with pytest.raises(ValueError, match=r"\[resize\] shape must have a size for each axis"):
        images.resize(x, (3, 8, 1), "linear")
    with pytest.raises(ValueError, match=r"must hold a pixel"):
        images.resize(np.zeros((0, 3), np.float32), (2, 3), "linear")
    two = np.ones(2, np.float32)
    with pytest.raises(ValueError, match=r"\[scale_and_translate\] method must not be 'nearest'"):
        images.scale_and_translate(x, (3, 4), (0, 1), two, two, "nearest")
    with pytest.raises(ValueError, match=r"must hold a number for each axis of spatial_dims"):
        images.scale_and_translate(x, (3, 4), (0,), two, two, "linear")
    with pytest.raises(AttributeError, match=r"image.resize"):
        images.resiz  # noqa: B018
