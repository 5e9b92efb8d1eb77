"""argmax and argmin: index of the first extremum along an axis.

Tests: tests/ops/test_positions.py, tests/ops/test_elementwise_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.core.lowering import TupleReduction
from gpuflow.core.types import Array, ArrayLike, DTypeLike
from gpuflow.kir.argmax import combine_argmax
from gpuflow.kir.scalar import compute_dtype
from gpuflow.ops.define import check_kind, define, is_ordered
from gpuflow.ops.elementwise.nary import zero_jvp
from gpuflow.ops.layout.axes import check_axes, reduced_shape, reduction_batch


def _argument_shape(name: str) -> Callable[..., ShapedArray]:
    def shape(x: ShapedArray, *, axes: tuple[int, ...], index_dtype: Any) -> ShapedArray:
        check_kind(name, x, is_ordered, "an integer, a real float or bool")
        check(
            len(axes) == 1,
            lambda: (
                f"[{name}] exactly one axis must be given; got {axes}. "
                "Fix: reshape the axes into one."
            ),
            ValueError,
        )
        check_axes(name, x, axes)
        check(
            dtypes.is_integer(index_dtype),
            lambda: (
                f"[{name}] index_dtype must be an integer dtype; "
                f"got {dtypes.short_name(index_dtype)}. Fix: use int32."
            ),
        )
        check(
            x.shape[axes[0]] > 0,
            lambda: (
                f"[{name}] the axis must not be empty; got axis {axes[0]} of {x}. Fix: handle the "
                "empty case separately."
            ),
            ValueError,
        )
        check(
            x.shape[axes[0]] - 1 <= ml_dtypes.iinfo(index_dtype).max,
            lambda: (
                f"[{name}] index_dtype must hold the positions along the axis; got "
                f"{dtypes.short_name(index_dtype)} for axis {axes[0]} of {x}. "
                "Fix: config.update('enable_x64', True), or reduce parts of the axis."
            ),
            OverflowError,
        )
        return ShapedArray(reduced_shape(x, axes), index_dtype)

    return shape


def _argument_impl(name: str) -> Callable[..., Any]:
    def impl(xp: Any, x: Any, *, axes: tuple[int, ...], index_dtype: Any) -> Any:
        if dtypes.is_floating(x.dtype) and x.dtype.itemsize <= 2:
            x = x.astype(np.float32)
        return xp.asarray(getattr(xp, name)(x, axis=axes[0])).astype(index_dtype)

    return impl


def _index_kind(params: dict[str, Any]) -> str:
    """The compute dtype of positions: 32 bits unless the result needs 64, which cost twice."""
    return "int64" if np.dtype(params["index_dtype"]).itemsize == 8 else "int32"


def _argument_lowering(is_largest: bool) -> TupleReduction:
    """Reduction of pairs (key, position); keys are integers that are largest at the extremum.

    The keys of floats are their bits, flipped so that they grow with the float; both zeros have one
    key, and all nan have the largest one.
    """

    def key_of(builder: Any, x: Any) -> Any:
        if x.dtype == "bool":
            x = builder.cast(x, "uint8")
        if not x.dtype.startswith("float"):
            return x if is_largest else builder.apply("not", x)
        kind = x.dtype.replace("float", "int")
        largest = int(np.iinfo(kind).max)
        is_nan = builder.apply("ne", x, x)
        zeros_are_equal = builder.apply("add", x, builder.const(x.dtype, 0.0))  # -0.0 becomes 0.0
        bits = builder.apply(f"bitcast_{kind}", zeros_are_equal)
        shift = builder.const(kind, np.iinfo(kind).bits - 1)
        sign = builder.apply("shift_right_arithmetic", bits, shift)
        flipped = builder.apply("and", sign, builder.const(kind, largest))
        key = builder.apply("xor", bits, flipped)
        key = key if is_largest else builder.apply("not", key)
        return builder.select(is_nan, builder.const(kind, largest), key)

    def element(builder: Any, x: Any, index: Any, params: dict[str, Any]) -> Any:
        return key_of(builder, x), builder.cast(index, _index_kind(params))

    def init(builder: Any, aval: ShapedArray, params: dict[str, Any]) -> Any:
        storage = compute_dtype(storage_name(aval.dtype))
        kind = "uint8" if storage == "bool" else storage.replace("float", "int")
        values = (np.iinfo(kind).min, np.iinfo(_index_kind(params)).max)
        kinds = (kind, _index_kind(params))
        return [builder.const(k, int(n)) for k, n in zip(kinds, values, strict=True)]

    def result(builder: Any, values: Sequence[Any], aval: ShapedArray) -> Any:
        return builder.cast(values[1], compute_dtype(storage_name(aval.dtype)))

    return TupleReduction(element, init, combine_argmax, result)


def _argument_reduction(name: str, is_largest: bool) -> Any:
    def batch(axis: Any, operands: Any, dims: Any, *, axes: Any, index_dtype: Any) -> Any:
        inner = reduction_batch(
            lambda x, axes: primitive.bind(x, axes=axes, index_dtype=index_dtype)
        )
        return inner(axis, operands, dims, axes=axes)

    primitive = define(
        name,
        shape=_argument_shape(name),
        impl=_argument_impl(name),
        jvp=zero_jvp(lambda: primitive),
        batch=batch,
        lower=_argument_lowering(is_largest),
    )
    return primitive


argmax_p = _argument_reduction("argmax", True)
argmin_p = _argument_reduction("argmin", False)


def argmax(operand: ArrayLike, axis: int, index_dtype: DTypeLike) -> Array:
    """Return the index of the first maximum along ``axis``; of the first nan, if any.

    Args:
        operand: array of integers, real floats or bools.
        axis: a dimension of ``operand``, not empty.
        index_dtype: the integer dtype of the result.

    Returns:
        An array of ``index_dtype`` without that dimension.

    Raises:
        ValueError: if the axis does not exist or is empty.
        TypeError: if dtypes do not match.

    Example:
        >>> lax.argmax(jnp.array([1, 3, 3]), 0, jnp.int32)
        Array(1, dtype=int32)
    """
    return argmax_p.bind(operand, axes=(axis,), index_dtype=dtypes.canonicalize(index_dtype))


def argmin(operand: ArrayLike, axis: int, index_dtype: DTypeLike) -> Array:
    """Return the index of the first minimum along ``axis``; of the first nan, if any.

    Args:
        operand: array of integers, real floats or bools.
        axis: a dimension of ``operand``, not empty.
        index_dtype: the integer dtype of the result.

    Returns:
        An array of ``index_dtype`` without that dimension.

    Raises:
        ValueError: if the axis does not exist or is empty.
        TypeError: if dtypes do not match.

    Example:
        >>> lax.argmin(jnp.array([3, 1, 1]), 0, jnp.int32)
        Array(1, dtype=int32)
    """
    return argmin_p.bind(operand, axes=(axis,), index_dtype=dtypes.canonicalize(index_dtype))
