"""Parameter initializers: functions of a random key, a shape and a dtype.

Tests: tests/nn/test_nn_initializers.py, tests/nn/test_nn_values.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import random
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.core.argument_kinds import explained
from gpuflow.core.types import Array, ArrayLike, DTypeLike, ShardingLike
from gpuflow.nn.initializer_draws import DRAWS
from gpuflow.numpy.promotion import user_dtype
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops.effects.device_put import in_sharding

Axes = int | Sequence[int]


@runtime_checkable
class Initializer(Protocol):
    """Type of the functions of this module."""

    def __call__(
        self, key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None
    ) -> Any:
        """An array of ``shape``; ``dtype`` defaults to that of the initializer, or float32."""
        raise NotImplementedError("[Initializer] is a protocol. Fix: nn.initializers.normal().")


_Draw = Callable[[Any, tuple[int, ...], Any], Any]


def _initializer(name: str, dtype: Any, draw: _Draw) -> Initializer:
    """An initializer that calls ``draw(key, shape, dtype)`` with checked arguments."""
    default_dtype = dtype

    def init(
        key: Any, shape: Sequence[int], dtype: Any = default_dtype, out_sharding: Any = None
    ) -> Any:
        dtype = user_dtype(float if dtype is None else dtype, name)
        return in_sharding(name, draw(key, as_shape(name, shape), dtype), out_sharding)

    return init


@explained
def zeros(
    key: ArrayLike,
    shape: Sequence[int],
    dtype: DTypeLike | None = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Initializer that returns zeros.

    Args:
        key: unused.
        shape: shape of the result.
        dtype: dtype of the result; float32 by default.
        out_sharding: the sharding of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Example:
        >>> gf.nn.initializers.zeros(gf.random.key(0), (2, 3))
        Array([[0., 0., 0.],
               [0., 0., 0.]], dtype=float32)
    """
    return constant(0)(key, shape, dtype, out_sharding)


@explained
def ones(
    key: ArrayLike,
    shape: Sequence[int],
    dtype: DTypeLike | None = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Initializer that returns ones.

    Args:
        key: unused.
        shape: shape of the result.
        dtype: dtype of the result; float32 by default.
        out_sharding: the sharding of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Example:
        >>> gf.nn.initializers.ones(gf.random.key(0), (2, 3))
        Array([[1., 1., 1.],
               [1., 1., 1.]], dtype=float32)
    """
    return constant(1)(key, shape, dtype, out_sharding)


@explained
def constant(value: ArrayLike, dtype: DTypeLike | None = None) -> Initializer:
    """Return an initializer of constant arrays.

    Args:
        value: a scalar, or an array that broadcasts to the requested shapes.
        dtype: default dtype of the arrays; float32 by default.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Example:
        >>> gf.nn.initializers.constant(7)(gf.random.key(0), (2,))
        Array([7., 7.], dtype=float32)
    """
    return _initializer("constant", dtype, lambda key, shape, dtype: jnp.full(shape, value, dtype))


@explained
def uniform(scale: ArrayLike = 1e-2, dtype: DTypeLike | None = None) -> Initializer:
    """Return an initializer of random numbers, uniform on [0, ``scale``).

    Args:
        scale: upper bound.
        dtype: default dtype of the arrays; float32 by default.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Example:
        >>> x = gf.nn.initializers.uniform(0.5)(gf.random.key(0), (100,))
        >>> bool(((x >= 0) & (x < 0.5)).all())
        True
    """

    def draw(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        return random.uniform(key, shape, dtype) * jnp.array(scale, dtype)

    return _initializer("uniform", dtype, draw)


@explained
def normal(stddev: ArrayLike = 1e-2, dtype: DTypeLike | None = None) -> Initializer:
    """Return an initializer of normal random numbers with mean 0.

    Args:
        stddev: standard deviation.
        dtype: default dtype of the arrays; float32 by default.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Example:
        >>> x = gf.nn.initializers.normal(0.5)(gf.random.key(0), (1000,))
        >>> round(float(x.std()), 1)
        0.5
    """

    def draw(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        return random.normal(key, shape, dtype) * jnp.array(stddev, dtype)

    return _initializer("normal", dtype, draw)


@explained
def truncated_normal(
    stddev: ArrayLike = 1e-2,
    dtype: DTypeLike | None = None,
    lower: ArrayLike = -2.0,
    upper: ArrayLike = 2.0,
) -> Initializer:
    """Return an initializer of truncated normal random numbers.

    Args:
        stddev: standard deviation before truncation.
        dtype: default dtype of the arrays; float32 by default.
        lower: lower bound, in units of ``stddev``.
        upper: upper bound, in units of ``stddev``.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Example:
        >>> x = gf.nn.initializers.truncated_normal(0.5)(gf.random.key(0), (1000,))
        >>> bool((abs(x) <= 1).all())
        True
    """

    def draw(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        return random.truncated_normal(key, lower, upper, shape, dtype) * jnp.array(stddev, dtype)

    return _initializer("truncated_normal", dtype, draw)


# --- scaled by the sizes of the array ------------------------------------------------------

_MEANS = {
    "fan_in": lambda fan_in, fan_out: fan_in,
    "fan_out": lambda fan_in, fan_out: fan_out,
    "fan_avg": lambda fan_in, fan_out: (fan_in + fan_out) / 2,
    "fan_geo_avg": lambda fan_in, fan_out: (fan_in * fan_out) ** 0.5,
}


@explained
def variance_scaling(
    scale: ArrayLike,
    mode: str,
    distribution: str,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Return an initializer of random numbers with variance ``scale / fan``.

    Args:
        scale: positive number.
        mode: definition of ``fan``: ``"fan_in"`` or ``"fan_out"``, the number of elements that
            contribute to one output or input; ``"fan_avg"`` or ``"fan_geo_avg"``, their arithmetic
            or geometric mean.
        distribution: ``"normal"``, ``"truncated_normal"`` or ``"uniform"``; complex uniform numbers
            are in a disk.
        in_axis, out_axis: axes of inputs and outputs.
        batch_axis: axes of independent arrays. All other axes are spatial positions of a
            convolution.
        dtype: default dtype of the arrays.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Raises:
        ValueError: if the mode or distribution is unknown; when the initializer is called, if the
            shape lacks these axes.

    Source: He et al. 2015, "Delving deep into rectifiers".

    Example:
        >>> init = gf.nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        >>> x = init(gf.random.key(0), (100, 50))
        >>> x.shape, round(float(x.std()), 2)
        ((100, 50), 0.1)
    """
    _check_choice("mode", mode, _MEANS)
    _check_choice("distribution", distribution, DRAWS)

    def draw(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        fan = _MEANS[mode](*_fans(shape, in_axis, out_axis, batch_axis))
        variance = jnp.array(scale / fan if fan else np.inf, dtype)
        return DRAWS[distribution](key, shape, dtype, variance)

    return _initializer("variance_scaling", dtype, draw)


def _check_choice(name: str, value: str, choices: Any) -> None:
    check(
        value in choices,
        lambda: (
            f"[variance_scaling] {name} must be one of {', '.join(map(repr, choices))}; "
            f"got {value!r}. Fix: {name}={next(iter(choices))!r}."
        ),
        ValueError,
    )


def _fans(shape: Sequence[int], *axes: Axes) -> tuple[float, float]:
    """Fan-in and fan-out of a parameter shape."""
    check(
        len(shape) > 1 or not isinstance(axes[0], int) or axes[0] != -2,
        lambda: (
            "[variance_scaling] arrays must have 2 axes or more, unless in_axis is given; got "
            f"shape {tuple(shape)}. Fix: in_axis=0, or another initializer."
        ),
        ValueError,
    )
    try:
        sizes = [shape[a] if isinstance(a, int) else math.prod([shape[k] for k in a]) for a in axes]
    except IndexError:
        raise ValueError(
            f"[variance_scaling] in_axis, out_axis and batch_axis must be axes of shape "
            f"{tuple(shape)}; got {axes}. Fix: an in_axis from {-len(shape)} to {len(shape) - 1}."
        ) from None
    inputs, outputs, batch = sizes
    if 0 in sizes:
        return 0.0, 0.0
    receptive_field = math.prod(shape) / inputs / outputs / batch
    return inputs * receptive_field, outputs * receptive_field


@explained
def glorot_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return ``variance_scaling(1, "fan_avg", "uniform")``; also called xavier_uniform.

    Args:
        in_axis: axes of inputs, an int or a sequence of ints.
        out_axis: axes of outputs, an int or a sequence of ints.
        batch_axis: axes of independent arrays. All other axes are spatial positions of a
            convolution.
        dtype: default dtype of the arrays; float32 by default.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Raises:
        ValueError: if the initializer is called with a shape that lacks these axes.

    Example:
        >>> x = gf.nn.initializers.glorot_uniform()(gf.random.key(0), (3, 3))
        >>> x.shape, bool((abs(x) <= 1).all())
        ((3, 3), True)
    """
    return variance_scaling(1.0, "fan_avg", "uniform", in_axis, out_axis, batch_axis, dtype)


@explained
def glorot_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return ``variance_scaling(1, "fan_avg", "truncated_normal")``; also called xavier_normal.

    Args:
        in_axis: axes of inputs, an int or a sequence of ints.
        out_axis: axes of outputs, an int or a sequence of ints.
        batch_axis: axes of independent arrays. All other axes are spatial positions of a
            convolution.
        dtype: default dtype of the arrays; float32 by default.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Raises:
        ValueError: if the initializer is called with a shape that lacks these axes.

    Example:
        >>> x = gf.nn.initializers.glorot_normal()(gf.random.key(0), (100, 100))
        >>> round(float(x.std()), 2)
        0.1
    """
    return variance_scaling(
        1.0, "fan_avg", "truncated_normal", in_axis, out_axis, batch_axis, dtype
    )


@explained
def lecun_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return ``variance_scaling(1, "fan_in", "uniform")``.

    Args:
        in_axis: axes of inputs, an int or a sequence of ints.
        out_axis: axes of outputs, an int or a sequence of ints.
        batch_axis: axes of independent arrays. All other axes are spatial positions of a
            convolution.
        dtype: default dtype of the arrays; float32 by default.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Raises:
        ValueError: if the initializer is called with a shape that lacks these axes.

    Example:
        >>> x = gf.nn.initializers.lecun_uniform()(gf.random.key(0), (3, 10))
        >>> x.shape, bool((abs(x) <= 1).all())
        ((3, 10), True)
    """
    return variance_scaling(1.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


@explained
def lecun_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return ``variance_scaling(1, "fan_in", "truncated_normal")``.

    Args:
        in_axis: axes of inputs, an int or a sequence of ints.
        out_axis: axes of outputs, an int or a sequence of ints.
        batch_axis: axes of independent arrays. All other axes are spatial positions of a
            convolution.
        dtype: default dtype of the arrays; float32 by default.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Raises:
        ValueError: if the initializer is called with a shape that lacks these axes.

    Example:
        >>> x = gf.nn.initializers.lecun_normal()(gf.random.key(0), (100, 50))
        >>> round(float(x.std()), 2)
        0.1
    """
    return variance_scaling(1.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


@explained
def he_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return ``variance_scaling(2, "fan_in", "uniform")``; also called kaiming_uniform.

    Args:
        in_axis: axes of inputs, an int or a sequence of ints.
        out_axis: axes of outputs, an int or a sequence of ints.
        batch_axis: axes of independent arrays. All other axes are spatial positions of a
            convolution.
        dtype: default dtype of the arrays; float32 by default.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Raises:
        ValueError: if the initializer is called with a shape that lacks these axes.

    Example:
        >>> x = gf.nn.initializers.he_uniform()(gf.random.key(0), (6, 10))
        >>> x.shape, bool((abs(x) <= 1).all())
        ((6, 10), True)
    """
    return variance_scaling(2.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


@explained
def he_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike | None = None
) -> Initializer:
    """Return ``variance_scaling(2, "fan_in", "truncated_normal")``; also called kaiming_normal.

    Args:
        in_axis: axes of inputs, an int or a sequence of ints.
        out_axis: axes of outputs, an int or a sequence of ints.
        batch_axis: axes of independent arrays. All other axes are spatial positions of a
            convolution.
        dtype: default dtype of the arrays; float32 by default.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Raises:
        ValueError: if the initializer is called with a shape that lacks these axes.

    Example:
        >>> x = gf.nn.initializers.he_normal()(gf.random.key(0), (200, 50))
        >>> round(float(x.std()), 2)
        0.1
    """
    return variance_scaling(2.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


xavier_uniform = glorot_uniform
xavier_normal = glorot_normal
kaiming_uniform = he_uniform
kaiming_normal = he_normal


# --- orthogonal ----------------------------------------------------------------------------


@explained
def orthogonal(
    scale: ArrayLike = 1.0, column_axis: int = -1, dtype: DTypeLike | None = None
) -> Initializer:
    """Return an initializer of random matrices with orthonormal rows or columns.

    Args:
        scale: length of the vectors.
        column_axis: the axis of columns; all other axes form the rows.
        dtype: default dtype of the arrays.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Raises:
        ValueError: when the initializer is called, if the shape has fewer than 2 axes.

    Example:
        >>> x = gf.nn.initializers.orthogonal()(gf.random.key(0), (2, 4))
        >>> bool(jnp.allclose(x @ x.T, jnp.eye(2), atol=1e-5))
        True
    """

    def draw(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        check(
            len(shape) > 1,
            lambda: f"[orthogonal] the shape must have 2 axes or more; got {shape}. Fix: (n, 1).",
            ValueError,
        )
        if 0 in shape:
            return jnp.zeros(shape, dtype)
        columns = shape[column_axis]
        rows = math.prod(shape) // columns
        matrix = random.orthogonal(key, rows, (), dtype, columns)
        others = tuple(np.delete(shape, column_axis).tolist())
        return jnp.array(scale, dtype) * jnp.moveaxis(
            jnp.reshape(matrix, (*others, columns)), -1, column_axis
        )

    return _initializer("orthogonal", dtype, draw)


@explained
def delta_orthogonal(
    scale: ArrayLike = 1.0, column_axis: int = -1, dtype: DTypeLike | None = None
) -> Initializer:
    """Return an initializer of convolution kernels: orthogonal at the center, 0 elsewhere.

    Args:
        scale, column_axis, dtype: as for ``orthogonal``.

    Returns:
        An initializer: ``init(key, shape, dtype, out_sharding)`` returns an array.

    Raises:
        ValueError: when the initializer is called, if the shape does not have 3 to 5 axes, or has
            more inputs than outputs.

    Source: Xiao et al. 2018, "Dynamical isometry and a mean field theory of CNNs".

    Example:
        >>> x = gf.nn.initializers.delta_orthogonal()(gf.random.key(0), (3, 3, 2, 4))
        >>> float(abs(x[0]).max()), bool((x[1, 1] != 0).all())
        (0.0, True)
    """

    def draw(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        check(
            3 <= len(shape) <= 5 and shape[-2] <= shape[-1],
            lambda: (
                "[delta_orthogonal] the shape must have 3 to 5 axes, and the last not be smaller "
                f"than that before; got {shape}. Fix: (3, 3, inputs, outputs)."
            ),
            ValueError,
        )
        matrix = orthogonal(scale, column_axis)(key, shape[-2:], dtype)
        center = tuple((size - 1) // 2 for size in shape[:-2])
        return jnp.zeros(shape, dtype).at[center].set(matrix)

    return _initializer("delta_orthogonal", dtype, draw)


publish(
    globals(),
    "initializers",
    [
        *public_names(globals(), __name__),
        "xavier_uniform",
        "xavier_normal",
        "kaiming_uniform",
        "kaiming_normal",
    ],
)
