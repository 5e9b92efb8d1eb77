"""What elementwise steps, reductions and layout mean, in NumPy alone.

Operands come wide: floats as float64, complex numbers as complex128, integers as int64. Results are
rounded to the dtype of the step's value, and integers wrap there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fuzzing.programs import FLOATS, dtype_of
from scipy import special


def widened(x: Any) -> np.ndarray:
    """The same values in the widest dtype of their kind."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        return x.astype(np.complex128)
    if x.dtype.name in FLOATS or x.dtype.kind == "f":
        return x.astype(np.float64)
    return x if x.dtype.kind == "b" else x.astype(np.int64)


def narrowed(x: Any, dtype: Any) -> np.ndarray:
    """Rounded, or wrapped, to a dtype."""
    return np.asarray(x).astype(dtype)


def _divide(x: Any, y: Any) -> Any:
    if x.dtype.kind != "i":
        return np.divide(x, y)
    nonzero = np.where(y == 0, 1, y)
    quotient = np.sign(x) * np.sign(nonzero) * (np.abs(x) // np.abs(nonzero))
    return np.where(y == 0, -1, quotient)


def _remainder(x: Any, y: Any) -> Any:
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y)))


def _round(x: Any) -> Any:
    """Halves away from zero."""
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


def _convert(x: Any, dtype: str) -> Any:
    target = dtype_of(dtype)
    if x.dtype.kind == "f" and target.kind in "iu":
        bounds = np.iinfo(target)
        return np.trunc(np.clip(np.nan_to_num(x, posinf=np.inf, neginf=-np.inf), *_ends(bounds)))
    return x != 0 if target.kind == "b" else x


def _ends(bounds: Any) -> tuple[float, float]:
    return float(bounds.min), float(bounds.max)


# --- reductions ----------------------------------------------------------------------------


def lowest(dtype: Any, sign: int) -> Any:
    """Below (sign -1) or above all values of a dtype."""
    if dtype.name in FLOATS or dtype.kind == "f":
        return sign * np.inf
    bounds = np.iinfo(dtype)
    return bounds.min if sign < 0 else bounds.max


def _reduce(function: Any, start: Callable[[Any], Any]) -> Callable[..., Any]:
    def reduced(x: Any, axes: Sequence[int], dtype: Any) -> Any:
        return function.reduce(x, axis=tuple(axes), initial=start(dtype))

    return reduced


def _ones(dtype: Any) -> Any:
    return True if dtype.kind == "b" else -1


REDUCTIONS = {
    "reduce_sum": _reduce(np.add, lambda dtype: 0),
    "reduce_prod": _reduce(np.multiply, lambda dtype: 1),
    "reduce_max": _reduce(np.maximum, lambda dtype: lowest(dtype, -1)),
    "reduce_min": _reduce(np.minimum, lambda dtype: lowest(dtype, 1)),
    "reduce_and": _reduce(np.bitwise_and, _ones),
    "reduce_or": _reduce(np.bitwise_or, lambda dtype: False),
    "reduce_xor": _reduce(np.bitwise_xor, lambda dtype: False),
}


def _cumulate(function: Any) -> Callable[..., Any]:
    def cumulated(x: Any, axis: int, reverse: bool) -> Any:
        if not x.size:
            return x
        x = np.flip(x, axis) if reverse else x
        out = function.accumulate(x, axis=axis)
        return np.flip(out, axis) if reverse else out

    return cumulated


CUMULATIVE = {
    "cumsum": _cumulate(np.add),
    "cumprod": _cumulate(np.multiply),
    "cummax": _cumulate(np.maximum),
    "cummin": _cumulate(np.minimum),
    "cumlogsumexp": _cumulate(np.logaddexp),
}


def _associative_scan(x: Any, kind: str, axis: int, reverse: bool) -> Any:
    return CUMULATIVE[kind](x, axis, reverse)


# --- layout --------------------------------------------------------------------------------


def _broadcast_in_dim(x: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Any:
    full = [1] * len(shape)
    for d, size in zip(broadcast_dimensions, x.shape, strict=True):
        full[d] = size
    return np.broadcast_to(x.reshape(full), shape)


def _spread(x: Any, axes: Sequence[int], shape: Sequence[int]) -> Any:
    return np.broadcast_to(np.expand_dims(x, tuple(axes)), shape)


def _slice(x: Any, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    return x[tuple(map(slice, start_indices, limit_indices, strides))]


def _pad(x: Any, value: Any, config: Sequence[Sequence[int]]) -> Any:
    """Elements are placed one by one into an array of the value."""
    sizes = [
        low + high + n + max(n - 1, 0) * between
        for n, (low, high, between) in zip(x.shape, config, strict=True)
    ]
    out = np.full(sizes, value, x.dtype)
    for place in np.ndindex(x.shape):
        to = tuple(low + k * (between + 1) for k, (low, _, between) in zip(place, config))
        if all(0 <= k < n for k, n in zip(to, sizes)):
            out[to] = x[place]
    return out


def _iota(dtype: str, shape: Sequence[int], dimension: int) -> Any:
    line = [-1 if d == dimension else 1 for d in range(len(shape))]
    return np.broadcast_to(np.arange(shape[dimension]).reshape(line), shape)


def _argument(function: Any) -> Callable[..., Any]:
    return lambda x, axis: function(x, axis)


OPS: dict[str, Callable[..., Any]] = {
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "logistic": special.expit, "erf": special.erf,
    "atan": np.arctan, "square": np.square, "sqrt": np.sqrt, "cbrt": np.cbrt, "log1p": np.log1p,
    "rsqrt": lambda x: 1 / np.sqrt(x), "log": np.log, "exp": np.exp, "expm1": np.expm1,
    "neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": _round,
    "sign": np.sign, "real": np.real, "imag": np.imag, "conj": np.conj,
    "clamp": lambda x: np.minimum(np.maximum(x, -1), 2),
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "rem": _remainder,
    "max": np.maximum, "min": np.minimum, "atan2": np.arctan2, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "select": np.where, "convert": _convert,
    "argmax": _argument(np.argmax), "argmin": _argument(np.argmin),
    **CUMULATIVE, "associative_scan": _associative_scan,
    "broadcast_in_dim": _broadcast_in_dim, "spread": _spread, "slice": _slice, "pad": _pad,
    "reshape": lambda x, new_sizes: x.reshape(new_sizes),
    "transpose": lambda x, permutation: x.transpose(permutation),
    "squeeze": lambda x, dimensions: np.squeeze(x, tuple(dimensions)),
    "rev": lambda x, dimensions: np.flip(x, tuple(dimensions)),
    "concatenate": lambda *xs, dimension: np.concatenate(xs, dimension),
    "iota": _iota, "full": lambda dtype, shape, value: np.full(shape, value),
}  # fmt: skip
