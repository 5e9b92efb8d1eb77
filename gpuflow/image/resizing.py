"""Resizing and translation of images: each axis is multiplied by a weight matrix.

Tests: tests/test_image.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_items, as_member, as_truth, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import Tracer
from gpuflow.image.weights import ResizeMethod, weight_matrix
from gpuflow.numpy.promotion import check_arraylike, check_strict, convert, promote_dtypes_inexact
from gpuflow.numpy.shaping import as_shape


def resize(
    image: Any,
    shape: Sequence[int],
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = lax.Precision.HIGHEST,
) -> Any:
    """Resize ``image`` to another shape.

    Args:
        image: array.
        shape: size of each axis; axes with an unchanged size are not resampled.
        method: a ``ResizeMethod`` or its name, such as ``"nearest"``, ``"linear"``, ``"cubic"``,
            ``"cubic-pytorch"``, ``"lanczos3"``, ``"lanczos5"`` or ``"area"``.
        antialias: whether to smooth axes before they shrink; not for ``"nearest"``.
        precision: precision of the products.

    Returns:
        An array of the image's dtype; integers are converted to floats, unless the method is
        ``"nearest"``.

    Raises:
        ValueError: if the method is unknown, or the number of axes does not match.

    Example:
        >>> gf.image.resize(jnp.array([[0.0, 4.0]]), (1, 4), "linear")
        Array([[0., 1., 3., 4.]], dtype=float32)
    """
    (image,) = check_arraylike("resize", image)
    sizes, method = _checked("resize", image, shape, method)
    old = aval_of(image).shape
    axes = [k for k in range(len(old)) if old[k] != sizes[k]]
    check(
        all(old[k] > 0 or sizes[k] == 0 for k in axes),
        lambda: (
            f"[resize] axes must hold a pixel; got {aval_of(image)} for {sizes}. Fix: keep the "
            "size of axes of size 0."
        ),
        ValueError,
    )
    if method is ResizeMethod.NEAREST:
        return _nearest(jnp.asarray(image), sizes, axes)
    (image,) = promote_dtypes_inexact(image)
    smooth = as_truth("resize", "antialias", antialias)
    matrices = []
    for k in axes:
        scale = sizes[k] / old[k] if sizes[k] else 1.0
        matrices.append(weight_matrix(np, (old[k], sizes[k]), scale, 0.0, method, smooth))
    return _apply(image, axes, matrices, precision)


def scale_and_translate(
    image: Any,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: Any,
    translation: Any,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = lax.Precision.HIGHEST,
) -> Any:
    """Resample ``image`` with ``x`` mapped to ``x * scale + translation``.

    Pixels of the result that are outside of the image are 0.

    Args:
        image: array.
        shape: shape of the result.
        spatial_dims: the K axes to resample.
        scale, translation: f[K]; they may be traced and differentiated.
        method: as for ``resize``, except ``"nearest"``.
        antialias, precision: as for ``resize``.

    Returns:
        An array of the image's dtype; integers are converted to floats.

    Raises:
        ValueError: if the method is unknown, or numbers of axes differ.

    Example:
        >>> one = jnp.ones(1)
        >>> gf.image.scale_and_translate(jnp.arange(4.0), (4,), (0,), one, one, "linear")
        Array([0., 0., 1., 2.], dtype=float32)
    """
    image, scale, translation = check_arraylike("scale_and_translate", image, scale, translation)
    sizes, method = _checked("scale_and_translate", image, shape, method)
    check(
        method is not ResizeMethod.NEAREST,
        lambda: "[scale_and_translate] method must not be 'nearest'; got it. Fix: method='linear'.",
        ValueError,
    )
    old = aval_of(image).shape
    dims = as_items("scale_and_translate", "spatial_dims", spatial_dims)
    axes = [canonicalize_axis(k, len(old), "scale_and_translate") for k in dims]
    shapes = (aval_of(scale).shape, aval_of(translation).shape)
    check(
        len(set(axes)) == len(axes) and shapes == ((len(axes),), (len(axes),)),
        lambda: (
            "[scale_and_translate] scale and translation must hold a number for each axis of "
            f"spatial_dims; got {spatial_dims}, {aval_of(scale)} and {aval_of(translation)}. "
            "Fix: scale=jnp.ones(len(spatial_dims))."
        ),
        ValueError,
    )
    (image,) = promote_dtypes_inexact(image)
    check_strict(scale, translation)
    smooth = as_truth("scale_and_translate", "antialias", antialias)
    traced = isinstance(scale, Tracer) or isinstance(translation, Tracer)
    xp = jnp if traced else np
    if traced:
        # In the dtype of the positions from which weights are computed.
        work = dtypes.default_float()
        scale, translation = (lax.convert_element_type(v, work) for v in (scale, translation))
    else:
        scale, translation = np.asarray(scale, float), np.asarray(translation, float)
    with np.errstate(all="ignore"):  # a scale of 0 gives nan, without a warning
        matrices = [
            weight_matrix(xp, (old[k], sizes[k]), scale[i], translation[i], method, smooth)
            for i, k in enumerate(axes)
        ]
    return _apply(image, axes, matrices, precision)


def _nearest(image: Any, sizes: Sequence[int], axes: Sequence[int]) -> Any:
    """Nearest pixels: those that cover the new centers; adjacent axes share a gather."""
    while axes:
        first, count = axes[0], 1
        while count < len(axes) and axes[count] == first + count:
            count += 1
        indices = []
        for k in axes[:count]:
            # (index + 0.5) * old / new, without rounding
            covered = (2 * np.arange(sizes[k]) + 1) * image.shape[k] // (2 * max(sizes[k], 1))
            indices.append(covered.astype(np.int32))
        index = (*[slice(None)] * first, *np.ix_(*indices))
        image = image.at[index].get(mode="promise_in_bounds")
        axes = axes[count:]
    return image


def _checked(
    name: str, image: Any, shape: Any, method: str | ResizeMethod
) -> tuple[tuple[int, ...], ResizeMethod]:
    sizes = as_shape(name, shape)
    check(
        len(sizes) == aval_of(image).ndim and min(sizes, default=0) >= 0,
        lambda: (
            f"[{name}] shape must have a size for each axis of the image; got {sizes} for "
            f"{aval_of(image)}. Fix: keep the sizes of batch and channels in shape."
        ),
        ValueError,
    )
    if isinstance(method, str):
        return sizes, ResizeMethod.from_string(method)
    return sizes, as_member(name, "method", method, ResizeMethod)


def _apply(image: Any, axes: Sequence[int], matrices: Sequence[Any], precision: Any) -> Any:
    """Multiply each of ``axes`` by its matrix; axes that shrink come first."""
    dtype = aval_of(image).dtype
    for axis, matrix in sorted(zip(axes, matrices, strict=True), key=_growth):
        image = _times(image, axis, convert(jnp.asarray(matrix), dtype), precision)
    return jnp.asarray(image)


def _times(image: Any, axis: int, weights: Any, precision: Any) -> Any:
    """``image`` with ``axis`` multiplied by ``weights``.

    Preceding axes are merged for one matrix product, which avoids transposes.
    """
    shape = aval_of(image).shape
    size = aval_of(weights).shape[1]
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    result = (*shape[:axis], size, *shape[axis + 1 :])
    if after == 1:
        rows = jnp.reshape(image, (before, shape[axis]))
        out = lax.dot_general(rows, weights, (((1,), (0,)), ((), ())), precision)
        return jnp.reshape(out, result)
    blocks = jnp.reshape(image, (before, shape[axis], after))
    many = jnp.broadcast_to(weights, (before, *aval_of(weights).shape))
    out = lax.dot_general(many, blocks, (((1,), (1,)), ((0,), (0,))), precision)
    return jnp.reshape(out, result)


def _growth(pair: tuple[int, Any]) -> float:
    before, after = pair[1].shape
    return after / max(before, 1)
