"""Creation of arrays from data.

Tests: tests/numpy/test_jax_array.py, tests/numpy/test_operand_kinds.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes, tree
from gpuflow.base.arguments import MAX_DIMENSIONS, as_integer
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.lazy import LazyModule
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.sharding import Sharding
from gpuflow.core.trace import Tracer
from gpuflow.core.types import ArrayLike, DeviceLike, DTypeLike, ShardingLike
from gpuflow.numpy.joining import stack
from gpuflow.numpy.promotion import (
    PYTHON_SCALARS,
    check_arraylike,
    check_fits,
    common_type,
    is_arraylike,
    promote_dtypes,
    user_dtype,
)
from gpuflow.numpy.shaping import expand_dims
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.convert import check_holds_complex, convert_element_type_p
from gpuflow.parallel.placement import put
from gpuflow.runtime import host_exchange
from gpuflow.runtime.array import Array, from_numpy
from gpuflow.runtime.device import Device

if TYPE_CHECKING:
    from gpuflow.targets.cuda.runtime.driver import exchange
else:
    exchange = LazyModule("gpuflow.targets.cuda.runtime.driver.exchange")


def array(
    object: Any,
    dtype: DTypeLike | None = None,
    *,
    copy: bool = True,
    order: str | None = "K",
    ndmin: int = 0,
    device: DeviceLike = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Create an array from numbers, nested lists, or another array.

    Args:
        object: a scalar, nested sequences of numbers and arrays, or an array of any library.
        dtype: dtype of the result; by default the dtype of the data, narrowed to 32 bits unless x64
            is enabled.
        copy: whether the result must not share memory with ``object``.
        order: ``"K"`` or ``"C"``; arrays are row-major.
        ndmin: minimum number of axes; new ones are added in front.
        device: the device of the result; the default device by default.
        out_sharding: the sharding of the result; give it instead of ``device``.

    Returns:
        An Array; weakly typed for a Python scalar.

    Raises:
        TypeError: if the data are not numeric, or a Python complex number is given for a real
            dtype.
        OverflowError: if a Python int is out of range for the dtype.
        ValueError: if both ``device`` and ``out_sharding`` are given, or the device is invalid.
        NotImplementedError: if the order is not supported.

    Example:
        >>> jnp.array([[1, 2], [3, 4]])
        Array([[1, 2],
               [3, 4]], dtype=int32)
        >>> jnp.array([1, 2.5], dtype=jnp.bfloat16, ndmin=2)
        Array([[1, 2.5]], dtype=bfloat16)
    """
    return placed("array", _built("array", object, dtype, copy, order, ndmin), device, out_sharding)


def _built(
    name: str, object: Any, dtype: Any, copy: bool, order: str | None, ndmin: int = 0
) -> Any:
    check(
        order is None or (isinstance(order, str) and order in ("K", "C", "A")),
        lambda: (
            f"[{name}] order must be 'K' or 'C': arrays are row-major; got {brief(order)}. "
            "Fix: 'C'."
        ),
        NotImplementedError,
    )
    requested = None if dtype is None else user_dtype(dtype, name)
    out = _make(object, requested)
    if copy and out is object:
        out = lax.copy(out)
    missing = as_integer(name, "ndmin", ndmin) - aval_of(out).ndim
    return expand_dims(out, tuple(range(missing))) if missing > 0 else out


def placed(name: str, x: Any, device: Any, out_sharding: Any = None) -> Any:
    """Move ``x`` to a device or sharding; None leaves it unchanged.

    Raises:
        ValueError: if the device is invalid, or both a device and a sharding are given.
    """
    if device is None:
        return x if out_sharding is None else in_sharding(name, x, out_sharding)
    check(
        out_sharding is None,
        lambda: (
            f"[{name}] only one of device and out_sharding may be given; got {device!r} and "
            f"{out_sharding!r}. Fix: leave out device=."
        ),
        ValueError,
    )
    check(
        isinstance(device, Device | Sharding),
        lambda: (
            f"[{name}] device must be a Device or None, or a Sharding; got {device!r}. "
            "Fix: gpuflow.devices()[0]."
        ),
        ValueError,
    )
    return put(x, device)


def asarray(
    a: Any,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    device: DeviceLike = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Convert ``a`` to an array; arrays of the requested dtype are returned unchanged.

    Args:
        a: a scalar, nested sequences of numbers and arrays, or an array of any library.
        dtype: dtype of the result; by default the dtype of the data, narrowed to 32 bits unless x64
            is enabled.
        copy: True never shares memory with ``a``; False and None may share it.
        device: the device of the result; None keeps the device of an array and uses the default
            device for other data.
        out_sharding: the sharding of the result; give it instead of ``device``.

    Returns:
        An Array; weakly typed for a Python scalar.

    Raises:
        TypeError: if the data are not numeric, or a Python complex number is given for a real
            dtype.
        OverflowError: if a Python int is out of range for the dtype.
        ValueError: if both ``device`` and ``out_sharding`` are given, or the device is invalid.

    Example:
        >>> x = jnp.asarray(np.arange(3.0))
        >>> x
        Array([0., 1., 2.], dtype=float32)
        >>> jnp.asarray(x) is x
        True
    """
    return placed("asarray", _built("asarray", a, dtype, bool(copy), order), device, out_sharding)


def _make(value: Any, requested: Any) -> Any:
    if isinstance(value, (Array, Tracer)):
        return value if requested is None else lax.convert_element_type(value, requested)
    if type(value) in PYTHON_SCALARS:
        aval = aval_of(value)
        if requested is not None:
            _check_held(value, requested)
            aval = ShapedArray((), requested)
        elif type(value) is int:
            check_fits(value, aval.dtype)
        # NumPy has no dtype for larger ints; floats have room for them.
        host = np.asarray(float(value) if type(value) is int and abs(value) >= 2**63 else value)
        return from_numpy(_host_convert(host, aval.dtype), aval)
    if hasattr(type(value), "__jax_array__"):
        return _make(value.__jax_array__(), requested)
    if isinstance(value, (list, tuple)):
        return _from_sequence(value, requested)
    check(
        value is not None,
        lambda: "[array] the data must be numbers; got None. Fix: use jnp.nan, or leave it out.",
        ValueError,
    )
    if host_exchange.is_on_gpu(value):
        return _make(exchange.imported(value, copy=True), requested)
    host = np.asarray(value)
    # Use the value itself if it has a dtype: masked arrays are refused by their class.
    source_dtype = aval_of(value if isinstance(value, np.ndarray) else host).dtype
    aval = ShapedArray(host.shape, source_dtype if requested is None else requested)
    return from_numpy(_host_convert(host, aval.dtype), aval)


def _check_held(value: Any, dtype: Any) -> None:
    """Raise for a Python scalar that ``dtype`` does not hold.

    Raises:
        OverflowError: an int out of range for an integer dtype.
        TypeError: a complex number for a real dtype.
    """
    if type(value) is complex:
        check_holds_complex("array", value, dtype)
    if dtype.kind not in "iu" or not np.isfinite(value):
        return
    bounds = np.iinfo(dtype)
    if not bounds.min <= int(value) <= bounds.max:
        raise OverflowError(
            f"[array] Python numbers must fit {dtype}; got {value}. "
            "Fix: a wider dtype, or np.asarray(x), which wraps."
        )


def _host_convert(host: np.ndarray, dtype: Any) -> np.ndarray:
    """NumPy data in another dtype, under the rules of astype on arrays."""
    if host.dtype == dtype:
        return host
    assert convert_element_type_p.impl is not None
    with np.errstate(all="ignore"):
        return convert_element_type_p.impl(np, host, new_dtype=dtype, weak_type=False)


def _from_sequence(value: Any, requested: Any) -> Any:
    leaves = _leaves(value)
    if any(isinstance(leaf, (Array, Tracer)) for leaf in leaves):
        return _stacked(value, requested)
    for leaf in leaves:
        if is_value(leaf):
            continue
        if is_arraylike(leaf):
            return _stacked(value, requested)
        check(
            hasattr(leaf, "__array__"),
            lambda leaf=leaf: (
                f"[array] the data must be numbers; got {brief(leaf)}. Fix: "
                f"{fix_for(leaf, 'leave it out, or use jnp.nan')}."
            ),
        )
    try:
        host = np.array(value)
    except ValueError:
        raise ValueError(
            f"[array] lists must hold rows of one length; got {brief(value)}. Fix: pad the rows."
        ) from None
    fits = check_fits if requested is None else _check_held
    if requested is None:
        requested = _common_dtype(leaves, host)
    elif host.dtype.kind == "c":
        for leaf in leaves:
            if type(leaf) is complex:
                check_holds_complex("array", leaf, requested)
    if host.dtype.kind in "iuf" and host.size and requested.kind in "iu":
        for extreme in (host.min(), host.max()):
            fits(extreme.item(), requested)
    return from_numpy(_host_convert(host, requested), ShapedArray(host.shape, requested))


def _common_dtype(leaves: Sequence[Any], host: np.ndarray) -> Any:
    """The dtype of a list of values: Python scalars take the dtype of NumPy scalars among them."""
    kinds = {type(leaf) for leaf in leaves}
    if kinds <= set(PYTHON_SCALARS) or not leaves:
        return dtypes.canonicalize(host.dtype)
    avals = {aval_of(x if is_value(x) else np.asarray(x)).update(shape=()) for x in leaves}
    return common_type(list(avals))[0]


def _leaves(value: Any, depth: int = 0) -> list[Any]:
    if isinstance(value, (list, tuple)):
        check(
            depth < MAX_DIMENSIONS,
            lambda: (
                f"[array] lists must be nested at most {MAX_DIMENSIONS} deep, as arrays have no "
                "more dimensions; got deeper ones. Fix: flatten them."
            ),
            ValueError,
        )
        return [leaf for item in value for leaf in _leaves(item, depth + 1)]
    return [value]


def _stacked(value: Any, requested: Any) -> Any:
    """Nested lists with arrays inside: their rows, stacked in one dtype."""
    leaves, structure = tree.flatten(_as_lists(value))
    leaves = check_arraylike("array", *leaves)
    if requested is None:
        leaves = promote_dtypes(*leaves)
    else:
        leaves = [_make(leaf, requested) for leaf in leaves]
    out = _stack_rows(tree.unflatten(structure, leaves))
    # The array of a list is never weak, even if its elements are.
    return lax.convert_element_type(out, aval_of(out).dtype if requested is None else requested)


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _stack_rows(value: Any) -> Any:
    return stack([_stack_rows(item) for item in value]) if isinstance(value, list) else value


def astype(
    x: ArrayLike, dtype: DTypeLike | None, /, *, copy: bool = False, device: DeviceLike = None
) -> Array:
    """Convert elements; floats are truncated to integers, imaginary parts are dropped.

    Args:
        x: array or scalar.
        dtype: the new dtype, narrowed to 32 bits unless x64 is enabled; None uses the default float
            dtype.
        copy: whether to return another array even if the dtype does not change.
        device: the device of the result; None keeps the device of ``x``.

    Returns:
        An array of the shape of ``x``.

    Raises:
        TypeError: if an argument is not array-like, or the dtype is invalid.
        ValueError: if the device is invalid.

    Example:
        >>> jnp.astype(jnp.array([-1.7, 0.2, 1.7]), int)
        Array([-1,  0,  1], dtype=int32)
    """
    (x,) = check_arraylike("astype", x)
    requested = dtypes.default_float() if dtype is None else user_dtype(dtype, "astype")
    if aval_of(x).dtype == dtypes.float0:  # the tangent of an integer: zero
        return placed("astype", lax.full_like(x, 0, requested), device)
    # An array, so that Python complex numbers lose their imaginary component too, as in JAX.
    out = lax.convert_element_type(lax.asarray(x), requested)
    return placed("astype", lax.copy(out) if copy and out is x else out, device)


@explained
def copy(a: ArrayLike, order: str | None = None) -> Array:
    """Copy an array into new memory.

    Args:
        a: array or scalar.
        order: ``"K"`` or ``"C"``, which are equivalent: arrays are row-major.

    Returns:
        An array of the shape and dtype of ``a``.

    Raises:
        TypeError: if an argument is not array-like.
        NotImplementedError: if the order is not supported.

    Example:
        >>> x = jnp.arange(3)
        >>> y = jnp.copy(x)
        >>> y is x, y
        (False, Array([0, 1, 2], dtype=int32))
    """
    (a,) = check_arraylike("copy", a)
    return array(a, copy=True, order=order)
