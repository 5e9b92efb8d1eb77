"""The operators, methods and properties of arrays: one table for Array and Tracer.

``wiring.install`` sets them on both classes.

Tests: tests/test_stored_values.py, tests/numpy/test_iteration.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief, fix_for, is_foreign
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.types import ArrayLike, DeviceLike, DTypeLike, ShapeLike, ShardingLike
from gpuflow.numpy import (
    array_api,
    choices,
    contractions,
    creation,
    elementary,
    exports,
    indexing,
    logic,
    matrices,
    memory,
    notebook,
    partitions,
    positions,
    reductions,
    searching,
    shaping,
    sorting,
    statistics,
    ufuncs,
)
from gpuflow.numpy.promotion import is_arraylike
from gpuflow.numpy.taking import take
from gpuflow.numpy.tiling import repeat
from gpuflow.numpy.updates import At
from gpuflow.runtime.array import Array

# Types that are never operands, although Python would compare or repeat them.
_CONTAINERS = (list, tuple, set, dict)


def _defer_to(name: str, self: Any, other: Any) -> Any:
    """Return NotImplemented for an operand of another type, so that it can handle the operator.

    Raises:
        TypeError: if it is a container, or known not to be an array.
    """
    if isinstance(other, _CONTAINERS):
        raise TypeError(
            f"[{name}] operands must be arrays or numbers; got a {type(other).__name__} and "
            f"{aval_of(self)}. Fix: convert it with jnp.asarray."
        )
    reflected = name.replace("__", "__r", 1)  # the reflected method, if the operator has one
    if reflected in METHODS and not hasattr(type(other), reflected) and is_foreign(other):
        raise TypeError(
            f"[{name}] operands must be arrays or numbers; got {brief(other)} and {aval_of(self)}. "
            f"Fix: {fix_for(other, 'convert it with jnp.asarray')}."
        )
    return NotImplemented


def _operator(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A binary operator."""

    def operator(self: Any, other: ArrayLike) -> Any:
        if is_value(other) or is_arraylike(other):
            return function(self, other)
        return _defer_to(name, self, other)

    return _named(operator, function, name)


def _reflected(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A binary operator with the array as its right operand."""

    def operator(self: Any, other: ArrayLike) -> Any:
        if is_value(other) or is_arraylike(other):
            return function(other, self)
        return _defer_to(name, self, other)

    return _named(operator, function, name)


def _named(operator: Any, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    operator.__name__ = name
    operator.__annotations__["return"] = function.__annotations__["return"]
    return operator


_BINARY = {
    "add": ufuncs.add,
    "sub": ufuncs.subtract,
    "mul": ufuncs.multiply,
    "truediv": ufuncs.divide,
    "floordiv": ufuncs.floor_divide,
    "mod": ufuncs.remainder,
    "divmod": ufuncs.divmod,
    "pow": ufuncs.power,
    "matmul": contractions.matmul,
    "and": logic.bitwise_and,
    "or": logic.bitwise_or,
    "xor": logic.bitwise_xor,
    "lshift": logic.left_shift,
    "rshift": logic.right_shift,
}
_COMPARISONS = {
    "eq": logic.equal,
    "ne": logic.not_equal,
    "lt": logic.less,
    "le": logic.less_equal,
    "gt": logic.greater,
    "ge": logic.greater_equal,
}


def _iterate(self: Any) -> Iterator[Array]:
    if aval_of(self).ndim == 0:
        raise TypeError("[iter] the array must have an axis; got shape (). Fix: float(x).")
    return _rows(self, range(aval_of(self).shape[0]))


def _reversed(self: Any) -> Iterator[Array]:
    if aval_of(self).ndim == 0:
        raise TypeError("[reversed] the array must have an axis; got shape (). Fix: float(x).")
    return _rows(self, reversed(range(aval_of(self).shape[0])))


def _rows(self: Any, positions: Iterable[int]) -> Iterator[Any]:
    """The rows at ``positions`` along the first axis, each created on demand."""
    if type(self) is Array and not dtypes.is_extended(self.aval.dtype):
        return self.rows(positions)
    # Keys too: their use is tracked from operation to operation.
    return (indexing.getitem(self, k) for k in positions)


def _reshape(
    self: Any,
    *args: ShapeLike,
    order: str = "C",
    copy: bool | None = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return the elements in row-major order with another shape."""
    shape: Any = args[0] if len(args) == 1 else args
    return shaping.reshape(self, shape, order, copy=copy, out_sharding=out_sharding)


def _transpose(self: Any, *args: int | Sequence[int] | None) -> Array:
    """Permute the axes; by default reverse them."""
    axes: Any = args
    if len(args) == 1 and (not hasattr(args[0], "__index__") or getattr(args[0], "ndim", 0)):
        axes = args[0] if args[0] is None else tuple(args[0])
    return shaping.transpose(self, axes or None)


def _astype(self: Any, dtype: DTypeLike, copy: bool = False, device: DeviceLike = None) -> Array:
    """Convert elements."""
    return creation.astype(self, dtype, copy=copy, device=device)


def _clip(self: Any, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
    """Limit elements to ``[min, max]``."""
    return logic.clip(self, min, max)


def _copy(self: Any) -> Array:
    """Copy the array into new memory."""
    return lax.copy(self)


def _conj(self: Any) -> Array:
    """Return the complex conjugate."""
    return elementary.conj(self)


def _negative(self: Any) -> Array:
    return ufuncs.negative(self)


def _absolute(self: Any) -> Array:
    return ufuncs.abs(self)


def _invert(self: Any) -> Array:
    return logic.bitwise_not(self)


def _identity(self: Any) -> Array:
    return ufuncs.positive(self)


def _contains(self: Any, item: ArrayLike) -> bool:
    """Whether an element of a vector equals ``item``; ValueError for other ranks."""
    check(
        aval_of(self).ndim == 1,
        lambda: f"[contains] the array must be a vector; got {aval_of(self)}. Fix: (x == 1).any().",
        ValueError,
    )
    return bool(reductions.any(logic.equal(self, item)))


def _compress(
    self: Any,
    condition: ArrayLike,
    axis: int | None = None,
    *,
    out: None = None,
    size: int | None = None,
    fill_value: ArrayLike = 0,
) -> Array:
    """Return the slices along an axis at True conditions; see ``jnp.compress``."""
    return choices.compress(condition, self, axis, size=size, fill_value=fill_value, out=out)


def _nonzero(self: Any, *, fill_value: Any = None, size: int | None = None) -> tuple[Array, ...]:
    """Return the indices of nonzero elements; see ``jnp.nonzero``."""
    return positions.nonzero(self, size=size, fill_value=fill_value)


def _flat(self: Any) -> NoReturn:
    """Not there: it would be a writable view."""
    raise NotImplementedError(
        f"[flat] arrays are immutable and have no views; got {aval_of(self)}. Fix: x.ravel()."
    )


def _round(self: Any, ndigits: int | None = None) -> Array:
    """Python's ``round``: without a number of digits, integers of the default dtype."""
    rounded = elementary.round(self, ndigits or 0)
    return creation.astype(rounded, int) if ndigits is None else rounded


def _real(self: Any) -> Array:
    """The real part of each element."""
    return elementary.real(self)


def _imag(self: Any) -> Array:
    """The imaginary part of each element."""
    return elementary.imag(self)


def _itemsize(self: Any) -> int:
    """The size of one element in bytes."""
    return aval_of(self).dtype.itemsize


def _nbytes(self: Any) -> int:
    """The size of all elements in bytes."""
    return aval_of(self).nbytes


METHODS: dict[str, Callable[..., Any]] = {
    **{f"__{k}__": _operator(f, f"__{k}__") for k, f in {**_BINARY, **_COMPARISONS}.items()},
    **{f"__r{k}__": _reflected(f, f"__r{k}__") for k, f in _BINARY.items()},
    "__neg__": _negative,
    "__pos__": _identity,
    "__abs__": _absolute,
    "__invert__": _invert,
    "__round__": _round,
    "__getitem__": indexing.getitem,
    "__iter__": _iterate,
    "__reversed__": _reversed,
    "__contains__": _contains,
    "__array_namespace__": array_api.array_namespace,
    "__dlpack__": exports.dlpack,
    "__dlpack_device__": exports.dlpack_device,
    "to_device": exports.to_device,
    "on_device_size_in_bytes": exports.on_device_size_in_bytes,
    "platform": exports.platform,
    "copy_to_host_async": exports.copy_to_host_async,
    "is_ready": exports.is_ready,
    "_repr_html_": notebook.repr_html,
    "argpartition": partitions.argpartition,
    "choose": choices.choose,
    "clone": _copy,
    "compress": _compress,
    "diagonal": matrices.diagonal,
    "nonzero": _nonzero,
    "searchsorted": searching.searchsorted,
    "trace": matrices.trace,
    "sum": reductions.sum,
    "prod": reductions.prod,
    "mean": statistics.mean,
    "var": statistics.var,
    "std": statistics.std,
    "max": reductions.max,
    "min": reductions.min,
    "ptp": reductions.ptp,
    "all": reductions.all,
    "any": reductions.any,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "argsort": sorting.argsort,
    "sort": sorting.sort,
    "cumsum": sorting.cumsum,
    "cumprod": sorting.cumprod,
    "reshape": _reshape,
    "transpose": _transpose,
    "ravel": shaping.ravel,
    "flatten": shaping.ravel,
    "squeeze": shaping.squeeze,
    "swapaxes": shaping.swapaxes,
    "repeat": repeat,
    "take": take,
    "dot": contractions.dot,
    "astype": _astype,
    "view": memory.view,
    "byteswap": memory.byteswap,
    "clip": _clip,
    "copy": _copy,
    "round": elementary.round,
    "conj": _conj,
    "conjugate": _conj,
}

PROPERTIES: dict[str, Callable[[Any], Any]] = {
    "T": shaping.transpose,
    "mT": shaping.matrix_transpose,
    "real": _real,
    "imag": _imag,
    "at": At,
    "flat": _flat,
    "__cuda_array_interface__": exports.cuda_array_interface,
    "committed": exports.committed,
    "is_fully_addressable": exports.is_fully_addressable,
    "is_fully_replicated": exports.is_fully_replicated,
    "itemsize": _itemsize,
    "nbytes": _nbytes,
}
