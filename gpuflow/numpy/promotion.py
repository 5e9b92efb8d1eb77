"""Promotion of operands: common dtypes, weak types and ranks.

Tests: tests/numpy/test_numpy_promotion.py, tests/numpy/test_numpy_errors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.caches import register_table
from gpuflow.base.config import config
from gpuflow.base.foreign import brief, fix_for, is_array
from gpuflow.base.recent import Recent
from gpuflow.base.util import warn
from gpuflow.core.aval import HasAval, ShapedArray, aval_of, is_value
from gpuflow.core.trace import eval_trace, thread_state
from gpuflow.ops.define import check_kind, is_number
from gpuflow.ops.elementwise.convert import check_holds_complex
from gpuflow.runtime.array import Array, from_numpy
from gpuflow.runtime.scalars import SCALAR_TYPES

PYTHON_SCALARS = (bool, int, float, complex)
_scalar_cache: Recent[Any, Array] = Recent(4096)  # by the type of the other operand


def check_arraylike(name: str, *operands: Any) -> Sequence[Array]:
    """Check that operands are arrays or scalars, or have ``__jax_array__``.

    Raises:
        TypeError: for other operands, such as lists.
    """
    for operand in operands:
        if not is_value(operand):
            return [
                x if is_value(x) else _asked_for_array(name, x, position)
                for position, x in enumerate(operands)
            ]
    return operands


def is_arraylike(x: Any) -> bool:
    """Whether array functions accept ``x``."""
    return is_value(x) or hasattr(type(x), "__jax_array__")


def _asked_for_array(name: str, operand: Any, position: int) -> Any:
    if not is_arraylike(operand):
        kind = brief(operand) if is_array(operand) else type(operand).__name__
        raise TypeError(
            f"[{name}] operands must be arrays or numbers; got {kind} at position {position}. "
            f"Fix: {fix_for(operand, 'convert it with jnp.asarray')}."
        )
    return operand.__jax_array__()


def convert(x: Any, dtype: Any, weak_type: bool = False) -> Any:
    """Convert ``x`` to ``dtype``; unchanged if it has that dtype already."""
    if type(x) in PYTHON_SCALARS:
        return _typed(x, dtype, weak_type)
    if aval_of(x).dtype == dtype:
        return x
    return lax.convert_element_type(x, dtype, weak_type)


_KIND_OF_SCALAR = {"i": int, "f": float, "c": complex}


def _typed(value: Any, dtype: Any, weak_type: bool) -> Any:
    """A Python scalar as a scalar of ``dtype``; a weak one stays a Python scalar if possible."""
    if dtypes.is_extended(dtype):
        raise TypeError(f"[promote] keys hold no numbers; got {value}. Fix: random.key_data(key).")
    if type(value) is int:
        check_fits(value, dtype)
    if weak_type:
        kind = _KIND_OF_SCALAR[dtype.kind]
        if dtypes.canonicalize(kind) == dtype:
            return kind(value)
    if type(value) is complex:
        check_holds_complex("promote", value, dtype)
    return np.asarray(value).astype(dtype)[()]


def check_fits(value: int, dtype: Any) -> None:
    """Raise OverflowError for a Python int that neither ``dtype`` nor the default int can hold."""
    if -(2**31) <= value < 2**31:
        return
    limits = [np.iinfo(dtypes.default_int())]
    if dtype.kind in "iu":
        limits.append(np.iinfo(dtype))
    if not any(limit.min <= value <= limit.max for limit in limits):
        if not dtypes.is_integer(dtype):
            limits.append(limits[0])
        raise OverflowError(
            f"[promote] Python ints must fit {limits[-1].dtype}; got {value}. Fix: use a float, "
            "or enable 64 bits with config.update('enable_x64', True)."
        )


def promote_dtypes(*operands: Any) -> list[Array]:
    """The operands in their common dtype."""
    avals = [aval_of(x) for x in operands]
    first = avals[0].dtype
    if all(aval.dtype == first for aval in avals):
        for x in operands:
            if type(x) is int:
                check_fits(x, first)
        return list(operands)
    dtype, weak_type = common_type(avals)
    return [convert(x, dtype, weak_type) for x in operands]


_MAX_COMMON_TYPES = 4096
_common_types: dict[Any, tuple[Any, bool]] = {}
register_table("common types", _common_types, _MAX_COMMON_TYPES)


def common_type(avals: Sequence[ShapedArray]) -> tuple[Any, bool]:
    """The common dtype of operands and its weak type, cached."""
    types = tuple([(aval.dtype, aval.weak_type) for aval in avals])
    key = (types, config.trace_context())
    common = _common_types.get(key)
    if common is None:
        if len(_common_types) >= _MAX_COMMON_TYPES:
            _common_types.clear()
        common = _common_types[key] = dtypes.promote(*types)
    return common


inexact_dtype = dtypes.inexact_dtype


def promote_dtypes_inexact(*operands: Any) -> list[Array]:
    """The operands in their common float or complex dtype."""
    avals = [aval_of(x) for x in operands]
    dtype, weak_type = common_type(avals)
    if dtypes.is_extended(dtype):
        raise TypeError(
            f"[promote] operands must be numbers; got {', '.join(map(str, avals))}. "
            "Fix: use random.key_data for the integers inside a key."
        )
    dtype = inexact_dtype(dtype)
    return [convert(x, dtype, weak_type) for x in operands]


def promote_shapes(name: str, operands: Sequence[Any]) -> list[Array]:
    """Apply ``equal_ranks`` to the operands of an elementwise function that a user wrote.

    Raises:
        TypeError: if shapes do not broadcast.
        ValueError: if ranks differ and ``numpy_rank_promotion`` forbids it.
    """
    promoted = equal_ranks(name, operands)
    shapes = [aval_of(x).shape for x in operands]
    if len({len(shape) for shape in shapes if shape}) > 1:
        check_rank_promotion(name, shapes)
    return promoted


def equal_ranks(name: str, operands: Sequence[Any]) -> list[Array]:
    """Operands of one rank, by leading dimensions of size 1; scalars are unchanged.

    Raises:
        TypeError: if shapes do not broadcast.
    """
    shapes = [aval_of(x).shape for x in operands]
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return list(operands)
    rank = len(broadcast_shapes(*shapes, name=name, error=TypeError))
    return [to_rank(x, rank) if shape else x for x, shape in zip(operands, shapes, strict=True)]


def to_rank(x: Any, rank: int) -> Array:
    """``x`` with leading dimensions of size 1 up to ``rank``."""
    shape = aval_of(x).shape
    missing = rank - len(shape)
    if missing == 0:
        return x
    return lax.broadcast_in_dim(x, (1,) * missing + shape, tuple(range(missing, rank)))


def broadcast_shapes(
    *shapes: Sequence[int],
    name: str = "broadcast_shapes",
    error: type[Exception] = ValueError,
) -> tuple[int, ...]:
    """The common shape under NumPy's rules.

    Raises:
        ValueError: if sizes do not match; elementwise functions raise TypeError, as lax does.
    """
    rank = max(map(len, shapes), default=0)
    result = []
    for d in range(-rank, 0):
        sizes = {shape[d] for shape in shapes if len(shape) >= -d}
        wide = sizes - {1}
        if len(wide) > 1:
            raise error(
                f"[{name}] shapes must broadcast: aligned at the end, sizes must be equal or 1; "
                f"got {', '.join(str(tuple(shape)) for shape in shapes)}. "
                "Fix: insert axes with x[:, None], or reshape one operand."
            )
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def check_rank_promotion(name: str, shapes: Sequence[tuple[int, ...]]) -> None:
    """Warn if ranks differ, or raise ValueError, depending on ``numpy_rank_promotion``."""
    mode = config.trace_context().numpy_rank_promotion
    if mode == "allow":
        return
    text = (
        f"[{name}] operands must have one rank while numpy_rank_promotion is {mode!r}; got shapes "
        f"{', '.join(map(str, shapes))}. Fix: insert axes with x[None]."
    )
    if mode == "raise":
        raise ValueError(text)
    warn(text)


def promote_args(name: str, *operands: Any) -> Sequence[Array]:
    """Operands of an elementwise function in one dtype and one rank.

    Raises:
        TypeError: if an operand is not an array or scalar.
        ValueError: if shapes do not broadcast.
    """
    first, last = operands[0], operands[-1]
    if len(operands) < 3:
        if type(first) is type(last):  # also for a single operand
            if isinstance(first, HasAval) and first.aval is last.aval:
                return operands  # fast path: arrays of one type need no conversion
        elif (pair := _with_scalar(first, last)) is not None:
            return pair
    operands = check_arraylike(name, *operands)
    if len(operands) == 1:
        return promote_dtypes(*operands)
    return promote_shapes(name, promote_dtypes(*operands))


def _with_scalar(first: Any, last: Any) -> tuple[Array, Array] | None:
    """Eager fast path for an array and a scalar: the scalar as an array of the same type.

    Scalars are cached: creating an array takes as long as an addition.

    Returns:
        None for other operands, or if the common type is not that of the array.
    """
    scalar = _cached_scalar(last, first)
    if scalar is not None:
        return first, scalar
    scalar = _cached_scalar(first, last)
    return None if scalar is None else (scalar, last)


def _typed_scalar(x: Array, scalar: Any) -> Array | None:
    aval = x.aval
    # 0.0 and -0.0 are equal; settings choose common types.
    value = scalar if scalar and type(scalar) is not complex else repr(scalar)
    key = config.trace_context(), aval.dtype, aval.weak_type, type(scalar), value
    cached = _scalar_cache.get(key)
    if cached is None or cached.device is not x.device:
        dtype, is_weak = common_type([aval, aval_of(scalar)])
        if (dtype, is_weak) != (aval.dtype, aval.weak_type):
            return None
        if type(scalar) is int:
            check_fits(scalar, dtype)
        value = np.asarray(convert(scalar, dtype, is_weak), dtype)
        cached = from_numpy(value, ShapedArray((), dtype, is_weak), x.device)
        _scalar_cache.put(key, cached)
    return cached


def check_numbers(name: str, *operands: Any) -> None:
    """Raise TypeError for bools, which NumPy treats as integers here and JAX does not."""
    for x in operands:
        check_kind(name, aval_of(x), is_number, "a number")


def check_strict(*operands: Any) -> None:
    """Raise TypePromotionError for mixed dtypes under strict promotion.

    For functions whose result does not depend on the common dtype.
    """
    if config.trace_context().numpy_dtype_promotion == "strict":
        common_type([aval_of(x) for x in operands])


def promote_args_numeric(name: str, *operands: Any) -> Sequence[Array]:
    """``promote_args``, where bools become int32."""
    operands = promote_args(name, *operands)
    if aval_of(operands[0]).dtype is not dtypes.bool_:  # built-in dtypes are singletons
        return operands
    return [convert(x, dtypes.int32) for x in operands]


def promote_args_inexact(name: str, *operands: Any) -> Sequence[Array]:
    """``promote_args`` to a float or complex dtype."""
    first = operands[0]
    if isinstance(first, HasAval) and dtypes.is_inexact(first.aval.dtype):
        return promote_args(name, *operands)
    operands = check_arraylike(name, *operands)
    return promote_shapes(name, promote_dtypes_inexact(*operands))


def user_dtype(dtype: Any, name: str) -> Any:
    """The dtype for a user's ``dtype=``, narrowed to 32 bits unless x64 is enabled.

    Raises:
        TypeError: if the dtype is invalid.

    Warns:
        UserWarning: if a NumPy dtype is narrowed; Python's ``float`` means the default.
    """
    if dtypes.is_extended(dtype):
        return dtype
    try:
        canonical = dtypes.canonicalize(dtype)
    except TypeError as error:
        if isinstance(dtype, np.dtype | type):
            raise TypeError(f"[{name}] {str(error).removeprefix('[dtype] ')}") from None
        raise TypeError(
            f"[{name}] dtype must be a dtype of numbers; got {brief(dtype)}. Fix: {_hint(dtype)}."
        ) from None
    if canonical.kind in "OSUMm":
        raise TypeError(
            f"[{name}] dtype must be a dtype of numbers; got {canonical}. Fix: jnp.float32."
        )
    if canonical.itemsize <= 8 and not (isinstance(dtype, type) and dtype in PYTHON_SCALARS):
        _warn_if_narrowed(np.dtype(dtype), canonical, name)
    return canonical


def _hint(dtype: Any) -> str:
    """Suggested dtype for an error about an invalid one; integers were meant as sizes or axes."""
    is_size = isinstance(dtype, int | tuple | list)
    return "jnp.float32; several sizes or axes are one tuple, (2, 3)" if is_size else "jnp.float32"


def _warn_if_narrowed(given: Any, canonical: Any, name: str) -> None:
    if given.itemsize > canonical.itemsize:
        warn(
            f"[{name}] 64-bit dtypes must be enabled; got {given}, which becomes {canonical}. "
            "Fix: config.update('enable_x64', True), or ask for the narrower dtype.",
        )


def like(value: Any, x: Any) -> Any:
    """A scalar in the dtype of ``x``; weak if ``x`` is, like Python scalars."""
    found = _cached_scalar(value, x)
    if found is not None:
        return found
    aval = aval_of(x)
    return convert(value, aval.dtype, aval.weak_type)


def constant(value: Any, x: Any) -> Any:
    """A scalar in the dtype of ``x``; weak if ``x`` is a weak scalar.

    For constants of JAX's formulas, which make weakly typed arrays strong.
    """
    aval = aval_of(x)
    found = _cached_scalar(value, x) if not aval.weak_type else None
    return convert(value, aval.dtype, aval.weak_type and not aval.ndim) if found is None else found


def _cached_scalar(value: Any, x: Any) -> Array | None:
    """A Python scalar as a cached array of the type of ``x``, outside of tracing."""
    if type(x) is Array and type(value) in SCALAR_TYPES and thread_state.trace is eval_trace:
        return _typed_scalar(x, value)
    return None


def strong(x: Any) -> Array:
    """``x`` without weak type."""
    return lax.convert_element_type(x, aval_of(x).dtype)


def no_out(name: str, out: Any) -> None:
    """Raise NotImplementedError for an ``out`` argument: arrays are immutable."""
    if out is not None:
        raise NotImplementedError(
            f"[{name}] out must be None, arrays are immutable; got {type(out).__name__}. "
            f"Fix: y = jnp.{name}(...)."
        )


def broadcastlike(*operands: Any) -> list[Any]:
    """Broadcast operands of a function with a custom derivative."""
    shape = broadcast_shapes(*[aval_of(x).shape for x in operands])
    return [_broadcast(x, shape) for x in operands]


def _broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    x_shape = aval_of(x).shape
    dims = () if not x_shape else tuple(range(len(shape) - len(x_shape), len(shape)))
    return x if x_shape == shape else lax.broadcast_in_dim(x, shape, dims)
