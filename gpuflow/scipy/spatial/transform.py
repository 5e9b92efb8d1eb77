"""Rotations in three dimensions.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.core.aval import aval_of
from gpuflow.numpy.exact_products import exact_matmul
from gpuflow.scipy.spatial.quaternions import (
    angle_of,
    euler_angles,
    from_euler_angles,
    from_matrices,
    from_rotation_vectors,
    inverted,
    matrices_of,
    multiplied,
    normalized,
    rotation_vectors,
    with_positive_end,
)


class Rotation(NamedTuple):
    """One or more rotations.

    Args:
        quat: unit quaternions (..., 4), scalar component last.
    """

    quat: Any

    @classmethod
    def concatenate(cls, rotations: Sequence[Rotation]) -> Rotation:
        """Concatenate rotations."""
        return cls(jnp.concatenate([rotation.quat for rotation in rotations]))

    @classmethod
    def from_euler(cls, seq: str, angles: Any, degrees: bool = False) -> Rotation:
        """Create rotations by one to three Euler angles.

        Args:
            seq: the axes: "xyz" in lower case for extrinsic, "XYZ" for intrinsic rotations.
            angles: (..., axes), or a scalar for one axis.
            degrees: whether angles are in degrees.

        Raises:
            ValueError: if a letter is unknown, or an axis is repeated in succession.
        """
        axes, intrinsic = _axes(seq, range(1, 4))
        angles = jnp.atleast_1d(_inexact(angles))
        return cls(from_euler_angles(jnp.deg2rad(angles) if degrees else angles, axes, intrinsic))

    @classmethod
    def from_matrix(cls, matrix: Any) -> Rotation:
        """Create rotations from real orthogonal matrices (..., 3, 3).

        Raises:
            TypeError: if an argument is boolean or complex.
        """
        dtype = aval_of(jnp.asarray(matrix)).dtype
        check(
            not (dtypes.is_bool(dtype) or dtypes.is_complex(dtype)),
            lambda: (
                f"[Rotation] matrices must hold real numbers; got {dtype}. Fix: jnp.real(matrix)."
            ),
        )
        return cls(from_matrices(_inexact(matrix)))

    @classmethod
    def from_mrp(cls, mrp: Any) -> Rotation:
        """Create rotations from modified Rodrigues parameters (..., 3), axis * tan(angle / 4)."""
        mrp = _inexact(mrp)
        square = jnp.sum(mrp * mrp, -1, keepdims=True)
        return cls(jnp.concatenate([2 * mrp, 1 - square], -1) / (1 + square))

    @classmethod
    def from_quat(cls, quat: Any) -> Rotation:
        """Create rotations from quaternions (..., 4) of any norm."""
        return cls(normalized(_inexact(quat)))

    @classmethod
    def from_rotvec(cls, rotvec: Any, degrees: bool = False) -> Rotation:
        """Create rotations from rotation vectors (..., 3): the axis times the angle."""
        rotvec = _inexact(rotvec)
        return cls(from_rotation_vectors(jnp.deg2rad(rotvec) if degrees else rotvec))

    @classmethod
    def identity(cls, num: int | None = None, dtype: Any = float) -> Rotation:
        """Create the identity rotation, or ``num`` of them."""
        one = jnp.asarray([0.0, 0.0, 0.0, 1.0], dtype)
        return cls(one if num is None else jnp.tile(one, (num, 1)))

    @classmethod
    def random(cls, random_key: Any, num: int | None = None) -> Rotation:
        """Not supported, as in JAX.

        Raises:
            NotImplementedError: always.
        """
        del random_key, num
        raise NotImplementedError(
            "[Rotation.random] rotations must be given; got a key. "
            "Fix: Rotation.from_quat(random.normal(key, (n, 4)))."
        )

    def __getitem__(self, indexer: Any) -> Rotation:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Some of the rotations."""
        self._check_many("subscripts")
        return Rotation(self.quat[indexer])

    def __len__(self) -> int:
        """The number of rotations."""
        self._check_many("len")
        return aval_of(self.quat).shape[0]

    def __mul__(self, other: Rotation) -> Rotation:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The rotation by ``other`` and then by this one."""
        return Rotation.from_quat(multiplied(self.quat, other.quat))

    def _check_many(self, what: str) -> None:
        check(
            not self.single,
            lambda: (
                f"[Rotation] {what} need more than one rotation; got a single one. "
                "Fix: Rotation(rotation.quat[None])."
            ),
        )

    def apply(self, vectors: Any, inverse: bool = False) -> Any:
        """Rotate vectors (..., 3), or apply the inverse rotation."""
        matrix = self.as_matrix()
        matrix = jnp.where(inverse, jnp.swapaxes(matrix, -1, -2), matrix)
        return jnp.squeeze(exact_matmul(matrix, jnp.expand_dims(jnp.asarray(vectors), -1)), -1)

    def as_euler(self, seq: str, degrees: bool = False) -> Any:
        """Return Euler angles about three axes, (..., 3); ``seq`` as for ``from_euler``.

        If the first and the last axis coincide, one of these angles is 0.

        Raises:
            ValueError: if a letter is unknown, their number does not match, or an axis is repeated
                in succession.
        """
        axes, intrinsic = _axes(seq, (3,))
        angles = euler_angles(self.quat, axes, intrinsic)
        return jnp.rad2deg(angles) if degrees else angles

    def as_matrix(self) -> Any:
        """Return rotation matrices (..., 3, 3)."""
        return matrices_of(self.quat)

    def as_mrp(self) -> Any:
        """Return modified Rodrigues parameters (..., 3)."""
        sign = jnp.where(self.quat[..., 3:] < 0, -1, 1).astype(aval_of(self.quat).dtype)
        return sign * self.quat[..., :3] / (1 + sign * self.quat[..., 3:])

    def as_rotvec(self, degrees: bool = False) -> Any:
        """Return rotation vectors (..., 3): the axis times the angle."""
        out = rotation_vectors(self.quat)
        return jnp.rad2deg(out) if degrees else out

    def as_quat(self, canonical: bool = False, scalar_first: bool = False) -> Any:
        """Return quaternions (..., 4).

        Args:
            canonical: whether to choose, of two equivalent quaternions, the one with a positive
                scalar component.
            scalar_first: whether the scalar component comes first.
        """
        quat = with_positive_end(self.quat) if canonical else self.quat
        return jnp.roll(quat, 1, -1) if scalar_first else quat

    def inv(self) -> Rotation:
        """Return the inverse rotations."""
        return Rotation(inverted(self.quat))

    def magnitude(self) -> Any:
        """Return the rotation angles, from 0 to pi."""
        return angle_of(self.quat)

    def mean(self, weights: Any = None) -> Rotation:
        """Return the mean rotation in the sense of least squares.

        Args:
            weights: weight of each rotation; None weights all equally.

        Raises:
            ValueError: if the number of weights does not match.

        Source: Markley et al., Averaging quaternions, J. Guid. Control Dyn. 30 (2007), 1193.
        """
        count, dtype = len(self), aval_of(self.quat).dtype
        weights = jnp.ones(count, dtype) if weights is None else jnp.asarray(weights, dtype)
        check(
            aval_of(weights).shape == (count,),
            lambda: (
                f"[Rotation.mean] weights must be a vector of {count}; got {aval_of(weights)}. "
                "Fix: one weight for each rotation."
            ),
            ValueError,
        )
        _, vectors = jnp.linalg.eigh(exact_matmul(weights[None, :] * self.quat.T, self.quat))
        return Rotation(vectors[:, -1])

    @property
    def single(self) -> bool:
        """Whether it is a single rotation."""
        return aval_of(self.quat).ndim == 1


class Slerp(NamedTuple):
    """Spherical linear interpolation of rotations at constant speed.

    Args:
        times: times of the rotations, ascending.
        timedelta: differences of consecutive times.
        rotations: all rotations except the last.
        rotvecs: rotation vectors from each rotation to the next.
    """

    times: Any
    timedelta: Any
    rotations: Rotation
    rotvecs: Any

    @classmethod
    def init(cls, times: Any, rotations: Rotation) -> Slerp:
        """Create an interpolator from times and rotations.

        Raises:
            TypeError: if the argument is not a ``Rotation``. ValueError: if there are fewer than
                two, or the number of times does not match.
        """
        check(
            isinstance(rotations, Rotation),
            lambda: (
                f"[Slerp] rotations must be a Rotation; got {type(rotations).__name__}. "
                "Fix: Rotation.from_quat(...)."
            ),
        )
        check(
            not rotations.single and len(rotations) > 1,
            lambda: (
                "[Slerp] there must be two or more rotations; got "
                f"{aval_of(rotations.quat)}. Fix: Rotation.concatenate."
            ),
            ValueError,
        )
        times = jnp.asarray(times, aval_of(rotations.quat).dtype)
        check(
            aval_of(times).shape == (len(rotations),),
            lambda: (
                f"[Slerp] times must be a vector of {len(rotations)}; got {aval_of(times)}. "
                "Fix: one time for each rotation."
            ),
            ValueError,
        )
        first, then = Rotation(rotations.quat[:-1]), Rotation(rotations.quat[1:])
        return cls(times, jnp.diff(times), first, (first.inv() * then).as_rotvec())

    def __call__(self, times: Any) -> Rotation:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The rotations at a time, or at a vector of times.

        Raises:
            ValueError: more than one axis.
        """
        times = jnp.asarray(times, aval_of(self.times).dtype)
        check(
            aval_of(times).ndim <= 1,
            lambda: (
                f"[Slerp] times must be a vector or a number; got {aval_of(times)}. "
                "Fix: gpuflow.vmap."
            ),
            ValueError,
        )
        index = jnp.maximum(jnp.searchsorted(self.times, times) - 1, 0)
        fraction = (times - self.times[index]) / self.timedelta[index]
        step = Rotation.from_rotvec(self.rotvecs[index] * jnp.expand_dims(fraction, -1))
        return Rotation(self.rotations.quat[index]) * step


def _inexact(x: Any) -> Any:
    x = jnp.asarray(x)
    return x.astype(dtypes.inexact_dtype(aval_of(x).dtype))


def _axes(seq: str, counts: Any) -> tuple[tuple[int, ...], bool]:
    """The axes named by letters, as indices, and whether they rotate with the body."""
    intrinsic = seq.isupper()
    letters = "XYZ" if intrinsic else "xyz"
    check(
        len(seq) in counts and all(letter in letters for letter in seq),
        lambda: (
            f"[Rotation] axes must be {' to '.join(map(str, (counts[0], counts[-1])))} letters "
            f"of 'xyz' or of 'XYZ'; got {seq!r}. Fix: 'xyz'."
        ),
        ValueError,
    )
    check(
        all(a != b for a, b in pairwise(seq)),
        lambda: f"[Rotation] axes next to each other must differ; got {seq!r}. Fix: 'zxz'.",
        ValueError,
    )
    return tuple(letters.index(letter) for letter in seq), intrinsic


publish(globals(), "scipy.spatial.transform", public_names(globals(), __name__))
