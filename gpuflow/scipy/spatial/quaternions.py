"""Unit quaternions (..., 4), scalar component last, and other representations of rotations.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.core.aval import aval_of

# Below this angle the first terms of a series replace a quotient of two small values.
_SMALL = 1e-3
# Two axes of Euler angles that are closer than that count as one.
_LOCKED = 1e-7


def _components(x: Any) -> list[Any]:
    return [x[..., k] for k in range(aval_of(x).shape[-1])]


def _norm(x: Any) -> Any:
    return jnp.sqrt(jnp.sum(x * x, -1, keepdims=True))


def normalized(quat: Any) -> Any:
    return quat / _norm(quat)


def inverted(quat: Any) -> Any:
    return jnp.concatenate([-quat[..., :3], quat[..., 3:]], -1)


def multiplied(p: Any, q: Any) -> Any:
    """Hamilton's product: first ``q``, then ``p``."""
    (a, b, c, d), (x, y, z, w) = _components(p), _components(q)
    return jnp.stack(
        [
            d * x + w * a + b * z - c * y,
            d * y + w * b + c * x - a * z,
            d * z + w * c + a * y - b * x,
            d * w - a * x - b * y - c * z,
        ],
        -1,
    )


def with_positive_end(quat: Any) -> Any:
    """``quat`` or its negative, such that the last nonzero element is positive.

    The elements count in the order w, x, y, z.
    """
    x, y, z, w = _components(quat)
    negative: Any = False
    for component in (z, y, x, w):
        negative = (component < 0) | ((component == 0) & negative)
    return jnp.where(jnp.expand_dims(negative, -1), -quat, quat)


def angle_of(quat: Any) -> Any:
    return 2 * jnp.arctan2(_norm(quat[..., :3])[..., 0], jnp.abs(quat[..., 3]))


def matrices_of(quat: Any) -> Any:
    x, y, z, w = _components(quat)
    rows = [
        [x * x - y * y - z * z + w * w, 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), y * y - x * x - z * z + w * w, 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), z * z - x * x - y * y + w * w],
    ]
    return jnp.stack([jnp.stack(row, -1) for row in rows], -2)


def from_matrices(m: Any) -> Any:
    """The largest element of the quaternion is found first; the others are quotients by it."""
    trace = m[..., 0, 0] + m[..., 1, 1] + m[..., 2, 2]
    candidates = []
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        components: list[Any] = [None] * 4
        components[i] = 1 - trace + 2 * m[..., i, i]
        components[j] = m[..., j, i] + m[..., i, j]
        components[k] = m[..., k, i] + m[..., i, k]
        components[3] = m[..., k, j] - m[..., j, k]
        candidates.append(jnp.stack(components, -1))
    skew = [m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]]
    candidates.append(jnp.stack([*skew, 1 + trace], -1))
    sizes = jnp.stack([m[..., 0, 0], m[..., 1, 1], m[..., 2, 2], trace], -1)
    largest = jnp.expand_dims(jnp.argmax(sizes, -1), -1)
    out = candidates[3]
    for i in range(3):
        out = jnp.where(largest == i, candidates[i], out)
    return normalized(out)


def from_rotation_vectors(vector: Any) -> Any:
    square = jnp.sum(vector * vector, -1, keepdims=True)
    small = square <= _SMALL * _SMALL
    # The inner choice keeps the derivative at 0 finite where the outer one drops the quotient.
    angle = jnp.sqrt(jnp.where(small, 1, square))
    scale = jnp.where(small, 0.5 - square / 48 + square * square / 3840, jnp.sin(angle / 2) / angle)
    cosine = jnp.where(small, 1 - square / 8 + square * square / 384, jnp.cos(angle / 2))
    return jnp.concatenate([scale * vector, cosine], -1)


def rotation_vectors(quat: Any) -> Any:
    quat = jnp.where(quat[..., 3:] < 0, -quat, quat)
    sine_square = jnp.sum(quat[..., :3] * quat[..., :3], -1, keepdims=True)
    small = sine_square <= (_SMALL / 2) ** 2
    sine = jnp.sqrt(jnp.where(small, 1, sine_square))
    # angle / sin(angle / 2), as a function of the sine where that is small
    series = 2 + sine_square / 3 + 3 * sine_square * sine_square / 20
    scale = jnp.where(small, series, 2 * jnp.arctan2(sine, quat[..., 3:]) / sine)
    return scale * quat[..., :3]


# --- Euler angles --------------------------------------------------------------------------


def _about(axis: int, angle: Any) -> Any:
    components = [jnp.zeros_like(angle)] * 3 + [jnp.cos(angle / 2)]
    components[axis] = jnp.sin(angle / 2)
    return jnp.stack(components, -1)


def from_euler_angles(angles: Any, axes: tuple[int, ...], intrinsic: bool) -> Any:
    """Compose the rotations in order: about rotated axes each multiplies from the right."""
    each = [_about(axis, angles[..., k]) for k, axis in enumerate(axes)]
    return reduce(multiplied, each if intrinsic else each[::-1])


def euler_angles(quat: Any, axes: tuple[int, ...], intrinsic: bool) -> Any:
    """Three angles, the first and last ones from -pi to pi.

    Source: Bernardes and Viollet, Quaternion to Euler angles conversion: a direct, general and
    computationally efficient method, PLoS ONE 17 (2022), e0276302.
    """
    i, j, k = axes[::-1] if intrinsic else axes
    proper = i == k
    if proper:
        k = 3 - i - j
    sign = (i - j) * (j - k) * (k - i) // 2
    q = _components(quat)
    if proper:
        a, b, c, d = q[3], q[i], q[j], q[k] * sign
    else:
        a, b, c, d = q[3] - q[j], q[i] + q[k] * sign, q[j] + q[3], q[k] * sign - q[i]
    middle = 2 * jnp.arctan2(jnp.hypot(c, d), jnp.hypot(a, b))
    half_sum, half_difference = jnp.arctan2(b, a), jnp.arctan2(d, c)
    # Where the middle angle is 0 or pi, only the sum or the difference of the others is defined.
    at_zero, at_pi = jnp.abs(middle) <= _LOCKED, jnp.abs(middle - np.pi) <= _LOCKED
    locked = at_zero | at_pi
    locked_angle = jnp.where(at_zero, 2 * half_sum, 2 * half_difference * (1 if intrinsic else -1))
    ends = (half_sum + half_difference, half_sum - half_difference)
    first = jnp.where(locked, locked_angle, ends[0] if intrinsic else ends[1])
    last = jnp.where(locked, 0, ends[1] if intrinsic else ends[0])
    if not proper:
        middle = middle - np.pi / 2
        if intrinsic:
            first = first * sign
        else:
            last = last * sign
    angles = jnp.stack([first, middle, last], -1)
    return (angles + np.pi) % (2 * np.pi) - np.pi
