"""Resampling methods and their weight matrices.

The pixel at index ``k`` of an axis covers ``k`` to ``k + 1``, and its center is at ``k + 0.5``.

Tests: tests/test_image.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np


class ResizeMethod(enum.Enum):
    """Interpolation methods between pixels.

    ``NEAREST``: the nearest pixel. ``LINEAR``: linear. ``LANCZOS3``, ``LANCZOS5``: windowed sinc
    functions of radius 3 and 5. ``CUBIC``: Keys' cubics. ``CUBIC_PYTORCH``: the same with
    antialiasing, and as in PyTorch without. ``AREA``: means over the area of the new pixel.
    """

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4
    CUBIC_PYTORCH = 5
    AREA = 6

    @staticmethod
    def from_string(s: str) -> ResizeMethod:
        """The method of a name such as ``"bilinear"``.

        Raises:
            ValueError: if no method has the name.
        """
        method = _NAMES.get(s)
        if method is None:
            raise ValueError(
                f"[resize] method must be one of {', '.join(map(repr, _NAMES))}; got {s!r}. "
                "Fix: method='linear'."
            )
        return method


_NAMES = {
    "nearest": ResizeMethod.NEAREST,
    **dict.fromkeys(("linear", "bilinear", "trilinear", "triangle"), ResizeMethod.LINEAR),
    "lanczos3": ResizeMethod.LANCZOS3,
    "lanczos5": ResizeMethod.LANCZOS5,
    **dict.fromkeys(("cubic", "bicubic", "tricubic"), ResizeMethod.CUBIC),
    **dict.fromkeys(("cubic-pytorch", "bicubic-pytorch"), ResizeMethod.CUBIC_PYTORCH),
    "area": ResizeMethod.AREA,
}

# --- weights of a pixel at distance x >= 0; xp is NumPy, or our numpy for traced numbers -----


def _triangle(xp: Any, x: Any) -> Any:
    return xp.maximum(0.0, 1.0 - x)


def _keys(xp: Any, x: Any) -> Any:
    """Source: Keys 1981, "Cubic convolution interpolation for digital image processing"."""
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return xp.where(x >= 2.0, 0.0, xp.where(x >= 1.0, far, near))


def _keys_pytorch(xp: Any, x: Any) -> Any:
    """Keys' cubics with -0.75 instead of -0.5, as in PyTorch and OpenCV."""
    near = (1.25 * x - 2.25) * x * x + 1.0
    far = ((-0.75 * x + 3.75) * x - 6.0) * x + 3.0
    return xp.where(x >= 2.0, 0.0, xp.where(x >= 1.0, far, near))


def _lanczos(radius: float) -> Callable[[Any, Any], Any]:
    def weight(xp: Any, x: Any) -> Any:
        # The quotient tends to 1 at 0, where its derivative must stay finite.
        inner = x > 1e-3
        safe = xp.where(inner, x, 1.0)
        waves = radius * xp.sin(np.pi * safe) * xp.sin(np.pi * safe / radius)
        return xp.where(x > radius, 0.0, xp.where(inner, waves / (np.pi**2 * safe * safe), 1.0))

    return weight


_WEIGHTS: dict[ResizeMethod, Callable[[Any, Any], Any]] = {
    ResizeMethod.LINEAR: _triangle,
    ResizeMethod.LANCZOS3: _lanczos(3.0),
    ResizeMethod.LANCZOS5: _lanczos(5.0),
    ResizeMethod.CUBIC: _keys,
    ResizeMethod.CUBIC_PYTORCH: _keys_pytorch,
}
_PYTORCH_RADIUS = 2
# Weight sums below this belong to centers outside of the image.
_LEAST_SUM = 1000.0 * float(np.finfo(np.float32).eps)


def weight_matrix(
    xp: Any, sizes: tuple[int, int], scale: Any, shift: Any, method: ResizeMethod, antialias: bool
) -> Any:
    """Return the weight of each input pixel in each output pixel: ``[input, output]``.

    Args:
        xp: NumPy, or our numpy.
        sizes: the sizes of input and output.
        scale, shift: input ``x`` goes to output ``x * scale + shift``.
        method: not NEAREST.
        antialias: whether a smaller image averages over all that its pixels cover.
    """
    before, after = sizes
    step = 1.0 / scale
    if method is ResizeMethod.CUBIC_PYTORCH and antialias:
        method = ResizeMethod.CUBIC
    padding = _PYTORCH_RADIUS if method is ResizeMethod.CUBIC_PYTORCH else 0
    inputs = xp.arange(-padding, before + padding, dtype=float)[:, None]
    outputs = xp.arange(after, dtype=float)[None, :]
    centers = (outputs + 0.5) * step - shift * step - 0.5
    if method is ResizeMethod.AREA:
        left = outputs * step - shift * step
        overlap = xp.minimum(left + step, inputs + 1.0) - xp.maximum(left, inputs)
        weights = xp.maximum(0.0, overlap)
    else:
        kernel_scale = xp.maximum(step, 1.0) if antialias else 1.0
        weights = _WEIGHTS[method](xp, xp.abs(centers - inputs) / kernel_scale)
    if padding:
        weights = _fold_edges(xp, weights, padding)
    # Renormalize: some pixels under the kernel may be out of bounds.
    total = xp.sum(weights, axis=0, keepdims=True)
    is_defined = xp.abs(total) > _LEAST_SUM
    weights = xp.where(is_defined, weights / xp.where(is_defined, total, 1.0), 0.0)
    if padding:
        return weights
    in_bounds = xp.logical_and(centers >= -0.5, centers <= before - 0.5)
    return xp.where(in_bounds, weights, 0.0)


def _fold_edges(xp: Any, weights: Any, padding: int) -> Any:
    """Add weights of out-of-bounds pixels to those of the first and last pixel."""
    first = xp.sum(weights[:padding], axis=0, keepdims=True)
    last = xp.sum(weights[-padding:], axis=0, keepdims=True)
    in_bounds = weights[padding:-padding]
    nothing = xp.zeros_like(in_bounds[1:])
    return in_bounds + xp.concatenate([first, nothing]) + xp.concatenate([nothing, last])
