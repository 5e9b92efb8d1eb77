"""Creation of arrays filled with a value, by shape or like another array.

Tests: tests/numpy/test_jax_array.py, tests/parallel/test_out_sharding.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.trace import Tracer
from gpuflow.core.types import ArrayLike, DeviceLike, DTypeLike, ShapeLike, ShardingLike
from gpuflow.numpy.creation import placed
from gpuflow.numpy.promotion import PYTHON_SCALARS, check_arraylike, convert, user_dtype
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops.collectives.varying import vary_along
from gpuflow.ops.random.keys import random_wrap
from gpuflow.runtime.array import Array


def full(
    shape: ShapeLike,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return an array of ``shape`` filled with a value that broadcasts to it.

    Args:
        shape: an int or a sequence of ints.
        fill_value: a scalar, or an array that broadcasts to ``shape``.
        dtype: dtype of the result; the dtype of ``fill_value`` by default.
        device: the device of the result; the default device by default.
        out_sharding: the sharding of the result; give it instead of ``device``.

    Returns:
        An array of ``shape``; weakly typed for a Python scalar without ``dtype``.

    Raises:
        TypeError: if the shape is invalid, or the value does not broadcast to it.
        ValueError: if both ``device`` and ``out_sharding`` are given, or the device is invalid.

    Example:
        >>> jnp.full((2, 3), 7)
        Array([[7, 7, 7],
               [7, 7, 7]], dtype=int32, weak_type=True)
        >>> jnp.full((2, 3), jnp.array([1, 2, 3]), dtype=float)
        Array([[1., 2., 3.],
               [1., 2., 3.]], dtype=float32)
    """
    return placed("full", _filled("full", shape, fill_value, dtype), device, out_sharding)


def _filled(name: str, shape: Any, fill_value: Any, dtype: Any) -> Any:
    (fill_value,) = check_arraylike(name, fill_value)
    if dtype is not None and dtypes.is_extended(dtype) and aval_of(fill_value).dtype != dtype:
        key_data = _filled(name, (*as_shape(name, shape), *dtype.key_shape), fill_value, np.uint32)
        return random_wrap(key_data, dtype.implementation)
    if dtype is not None:
        out_dtype = user_dtype(dtype, name)
        # The result is strong, even if the value is a weak array of that dtype.
        make = lax.convert_element_type if hasattr(fill_value, "aval") else convert
        fill_value = make(fill_value, out_dtype)
    sizes, fill_shape = as_shape(name, shape), aval_of(fill_value).shape
    return lax.broadcast_in_dim(fill_value, sizes, range(len(sizes) - len(fill_shape), len(sizes)))


def _dtype_or_float(name: str, shape: Any, dtype: Any) -> Any:
    """The dtype, or the default float; an integer raises, because it was meant as a size."""
    check(
        not isinstance(dtype, int),
        lambda: (
            f"[{name}] sizes must be one tuple; got them as separate arguments. Fix: "
            f"jnp.{name}({(*(shape if isinstance(shape, tuple | list) else (shape,)), dtype)})."
        ),
    )
    return float if dtype is None else dtype


def zeros(
    shape: ShapeLike,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return an array of zeros, float32 by default.

    Args:
        shape: an int or a sequence of ints.
        dtype: dtype of the result; None uses the default float dtype.
        device: the device of the result; the default device by default.
        out_sharding: the sharding of the result; give it instead of ``device``.

    Returns:
        An array of ``shape``.

    Raises:
        TypeError: if the shape or dtype is invalid.
        ValueError: if both ``device`` and ``out_sharding`` are given, or the device is invalid.

    Example:
        >>> jnp.zeros((2, 3))
        Array([[0., 0., 0.],
               [0., 0., 0.]], dtype=float32)
        >>> jnp.zeros(3, dtype=int)
        Array([0, 0, 0], dtype=int32)
    """
    out = _filled("zeros", shape, 0, _dtype_or_float("zeros", shape, dtype))
    return placed("zeros", out, device, out_sharding)


def ones(
    shape: ShapeLike,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return an array of ones, float32 by default.

    Args:
        shape: an int or a sequence of ints.
        dtype: dtype of the result; None uses the default float dtype.
        device: the device of the result; the default device by default.
        out_sharding: the sharding of the result; give it instead of ``device``.

    Returns:
        An array of ``shape``.

    Raises:
        TypeError: if the shape or dtype is invalid.
        ValueError: if both ``device`` and ``out_sharding`` are given, or the device is invalid.

    Example:
        >>> jnp.ones((2, 3))
        Array([[1., 1., 1.],
               [1., 1., 1.]], dtype=float32)
        >>> jnp.ones(3, dtype=bool)
        Array([ True,  True,  True], dtype=bool)
    """
    out = _filled("ones", shape, 1, _dtype_or_float("ones", shape, dtype))
    return placed("ones", out, device, out_sharding)


def empty(
    shape: ShapeLike,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return an array of ``shape``, filled with zeros.

    Args:
        shape: an int or a sequence of ints.
        dtype: dtype of the result; None uses the default float dtype.
        device: the device of the result; the default device by default.
        out_sharding: the sharding of the result; give it instead of ``device``.

    Returns:
        An array of ``shape``.

    Raises:
        TypeError: if the shape or dtype is invalid.
        ValueError: if both ``device`` and ``out_sharding`` are given, or the device is invalid.

    Example:
        >>> jnp.empty((2, 0), dtype=int)
        Array([], shape=(2, 0), dtype=int32)
    """
    out = _filled("empty", shape, 0, _dtype_or_float("empty", shape, dtype))
    return placed("empty", out, device, out_sharding)


def full_like(
    a: Any,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    shape: Any = None,
    *,
    device: DeviceLike = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return an array with the shape and dtype of ``a``, filled with a value.

    Args:
        a: array, or an object with a shape and a dtype, such as ``gf.ShapeDtypeStruct``.
        fill_value: a scalar, or an array that broadcasts.
        dtype: dtype of the result; None uses the dtype of ``a``.
        shape: shape of the result; None uses the shape of ``a``.
        device: the device of the result; None uses the device to which ``a`` was committed, or the
            default device.
        out_sharding: the sharding of the result; give it instead of ``device``.

    Returns:
        An array of that shape and dtype.

    Raises:
        TypeError: if the shape or dtype is invalid, or the value does not broadcast.
        ValueError: if both ``device`` and ``out_sharding`` are given, or the device is invalid.

    Example:
        >>> jnp.full_like(jnp.arange(3), 7)
        Array([7, 7, 7], dtype=int32)
        >>> jnp.full_like(jnp.arange(3), 0.5, dtype=float)
        Array([0.5, 0.5, 0.5], dtype=float32)
    """
    out = _like("full_like", a, fill_value, dtype, shape)
    destination = _destination(a, shape, out_sharding) if device is None else device
    return placed("full_like", out, destination, out_sharding)


def _destination(a: Any, shape: Any, out_sharding: Any) -> Any:
    """Device or sharding for an array like ``a``: that of ``a`` if committed, else None."""
    if out_sharding is not None or not isinstance(a, Array) or isinstance(a, Tracer):
        return None
    if type(a) is Array:
        return a.device if a.device.is_committed else None
    return a.sharding if shape is None else None


def _like(name: str, a: Any, fill_value: Any, dtype: Any, shape: Any) -> Any:
    """A filled array that varies over the same mesh axes as ``a`` in shard_map."""
    aval = _aval_like(name, a)
    return vary_along(_filled_like(name, aval, fill_value, dtype, shape), aval.mat.varying)


def _filled_like(name: str, aval: ShapedArray, fill_value: Any, dtype: Any, shape: Any) -> Any:
    sizes = aval.shape if shape is None else as_shape(name, shape)
    if dtype is not None:
        return _filled(name, sizes, fill_value, dtype)
    if dtypes.is_extended(aval.dtype):
        return _filled(name, sizes, fill_value, aval.dtype)
    (fill_value,) = check_arraylike(name, fill_value)
    weak = aval.weak_type and aval.dtype.kind in "ifc"
    value = fill_value
    if weak and type(value) in PYTHON_SCALARS:
        value = aval.dtype.type(value).item()
    value = convert(value, aval.dtype, weak)
    if not weak and aval_of(value).weak_type:  # an array of this dtype already, but a weak one
        value = lax.convert_element_type(value, aval.dtype)
    return _filled(name, sizes, value, None)


def _aval_like(name: str, a: Any) -> ShapedArray:
    if hasattr(a, "shape") and hasattr(a, "dtype") and not is_value(a):
        return ShapedArray(a.shape, dtypes.canonicalize(a.dtype))
    (a,) = check_arraylike(name, a)
    return aval_of(a)


def zeros_like(
    a: Any,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    *,
    device: DeviceLike = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return zeros with the shape and dtype of ``a``.

    Args:
        a: array, or an object with a shape and a dtype, such as ``gf.ShapeDtypeStruct``.
        dtype: dtype of the result; None uses the dtype of ``a``.
        shape: shape of the result; None uses the shape of ``a``.
        device: the device of the result; None uses the device to which ``a`` was committed, or the
            default device.
        out_sharding: the sharding of the result; give it instead of ``device``.

    Returns:
        An array of that shape and dtype.

    Raises:
        TypeError: if the shape or dtype is invalid.
        ValueError: if both ``device`` and ``out_sharding`` are given, or the device is invalid.

    Example:
        >>> jnp.zeros_like(jnp.arange(3))
        Array([0, 0, 0], dtype=int32)
        >>> jnp.zeros_like(jnp.arange(3), dtype=float, shape=(2, 2))
        Array([[0., 0.],
               [0., 0.]], dtype=float32)
    """
    out = _like("zeros_like", a, 0, dtype, shape)
    destination = _destination(a, shape, out_sharding) if device is None else device
    return placed("zeros_like", out, destination, out_sharding)


def ones_like(
    a: Any,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    *,
    device: DeviceLike = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return ones with the shape and dtype of ``a``.

    Args:
        a: array, or an object with a shape and a dtype, such as ``gf.ShapeDtypeStruct``.
        dtype: dtype of the result; None uses the dtype of ``a``.
        shape: shape of the result; None uses the shape of ``a``.
        device: the device of the result; None uses the device to which ``a`` was committed, or the
            default device.
        out_sharding: the sharding of the result; give it instead of ``device``.

    Returns:
        An array of that shape and dtype.

    Raises:
        TypeError: if the shape or dtype is invalid.
        ValueError: if both ``device`` and ``out_sharding`` are given, or the device is invalid.

    Example:
        >>> jnp.ones_like(jnp.array([0.5, 2.0]))
        Array([1., 1.], dtype=float32)
        >>> jnp.ones_like(gf.ShapeDtypeStruct((2,), jnp.int8))
        Array([1, 1], dtype=int8)
    """
    out = _like("ones_like", a, 1, dtype, shape)
    destination = _destination(a, shape, out_sharding) if device is None else device
    return placed("ones_like", out, destination, out_sharding)


def empty_like(
    prototype: Any,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    *,
    device: DeviceLike = None,
) -> Array:
    """Return an array with the shape and dtype of ``prototype``, filled with zeros.

    Args:
        prototype: array, or an object with a shape and a dtype, such as ``gf.ShapeDtypeStruct``.
        dtype: dtype of the result; None uses the dtype of ``prototype``.
        shape: shape of the result; None uses the shape of ``prototype``.
        device: the device of the result; None uses the device to which ``prototype`` was committed,
            or the default device.

    Returns:
        An array of that shape and dtype.

    Raises:
        TypeError: if the shape or dtype is invalid.
        ValueError: if the device is invalid.

    Example:
        >>> jnp.empty_like(jnp.arange(3), shape=(2, 0))
        Array([], shape=(2, 0), dtype=int32)
    """
    return zeros_like(prototype, dtype, shape, device=device)
