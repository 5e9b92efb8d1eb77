"""Abstract values: what is known of an array before it exists.

``ShapedArray`` is interned, so equal avals are one object: comparison is identity, hashing is free,
and a tuple of avals is a jit key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base import dtypes

_interned: dict[tuple[Any, ...], ShapedArray] = {}


class ShapedArray:
    """Shape, dtype and weak type of an array.

    Args:
        shape: sizes, as ints.
        dtype: an np.dtype or an extended dtype; it is not canonicalized here.
        weak_type: whether the value came from a Python scalar and yields in promotion.
    """

    __slots__ = ("__weakref__", "dtype", "shape", "weak_type")
    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool

    def __new__(cls, shape: Sequence[int], dtype: Any, weak_type: bool = False) -> ShapedArray:
        key = (shape, dtype, weak_type)
        try:
            found = _interned.get(key)
        except TypeError:
            found = None
        if found is not None:
            return found
        shape = tuple(int(size) for size in shape)
        if not dtypes.is_extended(dtype):
            dtype = np.dtype(dtype)
        key = (shape, dtype, bool(weak_type))
        found = _interned.get(key)
        if found is None:
            self = object.__new__(cls)
            object.__setattr__(self, "shape", shape)
            object.__setattr__(self, "dtype", dtype)
            object.__setattr__(self, "weak_type", bool(weak_type))
            found = _interned.setdefault(key, self)
        return found

    @property
    def mat(self) -> ManualAxisType:
        """Along which axes of shard_map the value varies: along none."""
        return ManualAxisType()

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"[aval] avals are immutable; got an assignment to {name}. "
            f"Fix: aval.update({name}=...)."
        )

    def __reduce__(self) -> Any:
        return ShapedArray, (self.shape, self.dtype, self.weak_type)

    @property
    def sharding(self) -> None:
        """None: the array lies on one device."""
        return None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def update(self, **changes: Any) -> ShapedArray:
        """A copy with some fields changed."""
        fields = {"shape": self.shape, "dtype": self.dtype, "weak_type": self.weak_type}
        return ShapedArray(**{**fields, **changes})

    def tangent(self) -> ShapedArray:
        """The aval of tangents of values with this aval; weak like the values."""
        dtype = dtypes.tangent_dtype(self.dtype)
        return ShapedArray(self.shape, dtype, self.weak_type and dtype != dtypes.float0)

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapedArray({self}{weak})"

    def __str__(self) -> str:
        return f"{dtypes.short_name(self.dtype)}[{','.join(map(str, self.shape))}]"


class ManualAxisType(NamedTuple):
    """Along which axes of shard_map a value varies, and along which sums are left open: none."""

    varying: frozenset[Any] = frozenset()
    unreduced: frozenset[Any] = frozenset()
    reduced: frozenset[Any] = frozenset()


class VaryingType:
    """The type of a value in shard_map: an aval, and the axes along which the value varies."""

    def __init__(self, aval: ShapedArray, mat: ManualAxisType) -> None:
        self.aval, self.mat = aval, mat

    def __getattr__(self, name: str) -> Any:
        return getattr(self.aval, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VaryingType) and (self.aval, self.mat) == (other.aval, other.mat)

    def __hash__(self) -> int:
        return hash((self.aval, self.mat))

    def __str__(self) -> str:
        return f"{self.aval}{{V:{','.join(sorted(map(str, self.mat.varying)))}}}"

    def __repr__(self) -> str:
        return f"ShapedArray({self})"


class HasShape:
    """What everything with an aval, or with a type like one, says of it."""

    __slots__ = ()
    aval: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        return self.aval.size

    @property
    def weak_type(self) -> bool:
        return self.aval.weak_type

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError(
                "[len] the array must have at least one axis; got shape (). Fix: x.size."
            )
        return self.aval.shape[0]


class HasAval(HasShape):
    """Arrays and tracers: what can be an operand as it is."""

    __slots__ = ()
    aval: ShapedArray


class KeyDType(dtypes.ExtendedDType):
    """The dtype of typed random keys of one implementation.

    A key is two or four uint32 numbers. It is stored as one element, so layout ops, indexing and
    batching treat keys like any array and hide the trailing dimension: two numbers as uint64 (low
    word first), four as complex128, the only dtype of 128 bits; nothing computes with it.
    """

    def __init__(self, implementation: str, tag: str, words: int = 2) -> None:
        self.implementation = implementation
        self.name = f"key<{tag}>"
        self.itemsize = 4 * words
        self.storage = np.dtype(np.uint64 if words == 2 else np.complex128)
        self.key_shape = (words,)

    def words(self, stored: Any) -> Any:
        """The uint32 numbers of stored keys, in a last dimension."""
        return stored.reshape((*stored.shape, 1)).view(np.uint32)

    def stored(self, words: Any) -> Any:
        """Stored keys from uint32 numbers, contiguous ones."""
        return words.view(self.storage).reshape(words.shape[:-1])

    def __reduce__(self) -> Any:
        return key_dtype_of, (self.implementation,)

    def __repr__(self) -> str:
        return self.name


KEY_DTYPES = {
    "threefry2x32": KeyDType("threefry2x32", "fry"),
    "rbg": KeyDType("rbg", "rbg", 4),
    "unsafe_rbg": KeyDType("unsafe_rbg", "urbg", 4),
}


def key_dtype_of(implementation: str) -> KeyDType:
    """The dtype of the keys of an implementation."""
    return KEY_DTYPES[implementation]


def storage_dtype(dtype: Any) -> np.dtype:
    """The NumPy dtype in which arrays of ``dtype`` lie in memory."""
    return dtype.storage if dtypes.is_extended(dtype) else dtype


@cache
def storage_name(dtype: Any) -> str:
    """The name of the storage dtype; NumPy needs microseconds to tell it."""
    return storage_dtype(dtype).name


# --- concrete values -----------------------------------------------------------------------

_aval_rules: dict[type, Callable[[Any], ShapedArray]] = {}


def register_value_type(cls: type, rule: Callable[[Any], ShapedArray]) -> None:
    """Make values of ``cls`` acceptable as operands; ``rule`` gives their aval."""
    _aval_rules[cls] = rule


def is_value(value: Any) -> bool:
    """Whether ``value`` can be an operand of a primitive."""
    return type(value) in _aval_rules or _inherited_rule(type(value)) is not None


def aval_of(value: Any) -> ShapedArray:
    """The aval of an Array, tracer, NumPy array, NumPy scalar or Python scalar.

    Raises:
        TypeError: ``value`` is not an array or a number.
    """
    if isinstance(value, HasAval):
        return value.aval
    rule = _aval_rules.get(type(value))
    if rule is None:
        rule = _inherited_rule(type(value))
        if rule is None:
            # The type of a ref tells what it is, and need not wait for its value.
            what = getattr(value, "aval", None) or repr(value)
            raise TypeError(
                "[aval] operands must be arrays or numbers; "
                f"got {what} of type {type(value).__name__}. Fix: convert it with jnp.asarray."
            )
        _aval_rules[type(value)] = rule
    return rule(value)


def check_fits(value: int, dtype: Any) -> None:
    """Raise OverflowError unless the Python int is one of integer ``dtype``."""
    bounds = np.iinfo(dtype)
    if not bounds.min <= value <= bounds.max:
        raise OverflowError(
            f"[array] Python ints must fit {dtype}; got {value}. Fix: use a float, or enable 64 "
            "bits with config.update('enable_x64', True)."
        )


def _inherited_rule(cls: type) -> Callable[[Any], ShapedArray] | None:
    for base in cls.__mro__[1:]:
        if base in _aval_rules:
            return _aval_rules[base]
    return None


def _numpy_array_aval(value: np.ndarray) -> ShapedArray:
    if value.dtype.kind in "OSUMm" or (value.dtype.kind == "V" and not _is_known_void(value.dtype)):
        raise TypeError(
            f"[aval] arrays must hold numbers or booleans; got dtype {value.dtype}. "
            "Fix: convert with .astype(float)."
        )
    return ShapedArray(value.shape, dtypes.canonicalize(value.dtype))


def _masked_array_aval(value: np.ndarray) -> ShapedArray:
    raise ValueError(
        f"[aval] masked arrays are not supported; got one of shape {value.shape}. "
        "Fix: x.filled(...), or pass data and mask as two arrays."
    )


def _is_known_void(dtype: np.dtype) -> bool:
    return dtype in (dtypes.float0, dtypes.bfloat16, *dtypes.NARROW_FLOATS, *dtypes.NARROW_INTEGERS)


def _python_scalar_rule(cls: type) -> Callable[[Any], ShapedArray]:
    def rule(value: Any) -> ShapedArray:
        return ShapedArray((), dtypes.canonicalize(cls), weak_type=cls is not bool)

    return rule


register_value_type(np.ndarray, _numpy_array_aval)
register_value_type(np.ma.MaskedArray, _masked_array_aval)
register_value_type(np.generic, _numpy_array_aval)
for _cls in (bool, int, float, complex):
    register_value_type(_cls, _python_scalar_rule(_cls))
