"""Abstract values: shape, dtype and type facts of an array.

``ShapedArray`` is interned, so equal avals are one object: comparison is identity, hashing is free,
and a tuple of avals is a jit key.

Tests: tests/core/test_aval.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.caches import cache, register_table
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.records import record
from gpuflow.core.mesh import AbstractMesh
from gpuflow.core.sharding import NamedSharding, PartitionSpec

_interned: dict[tuple[Any, ...], ShapedArray] = {}
register_table("types of arrays", _interned)


@record
class ManualAxisType:
    """The axes of shard_map along which a value varies or is a partial sum.

    Args:
        varying: axes along which each device has its own value.
        unreduced: axes along which devices hold terms of a sum, which is the value.
        reduced: axes along which values are equal and cotangents are terms of a sum.
    """

    varying: frozenset[Any] = frozenset()
    unreduced: frozenset[Any] = frozenset()
    reduced: frozenset[Any] = frozenset()

    @property
    def empty(self) -> bool:
        """Whether it names no axis."""
        return not (self.varying or self.unreduced or self.reduced)

    def invarying(self, mesh: Any) -> frozenset[Any]:
        """Return the manual axes along which the value is the same."""
        varying = self.varying | self.unreduced | self.reduced
        return frozenset(name for name in mesh.manual_axes if name not in varying)

    def update(self, **changes: Any) -> ManualAxisType:
        """Return a copy with some fields changed."""
        fields = {"varying": self.varying, "unreduced": self.unreduced, "reduced": self.reduced}
        return ManualAxisType(**{**fields, **changes})


NOT_MANUAL = ManualAxisType()


class MemorySpace(enum.Enum):
    """Kinds of memory, by JAX's names; gpuflow keeps arrays in their device's memory."""

    Device = enum.auto()
    Host = enum.auto()
    Any = enum.auto()

    def __repr__(self) -> str:
        return f"MemorySpace.{self.name}"


@cache
def _unsplit(ndim: int) -> NamedSharding:
    """The sharding of types with ``ndim`` dimensions."""
    return NamedSharding(AbstractMesh((), ()), PartitionSpec(*[None] * ndim))


class ShapedArray:
    """Shape, dtype and weak type of an array.

    Args:
        shape: sizes, as ints.
        dtype: an np.dtype or an extended dtype; it is not canonicalized here.
        weak_type: whether the value came from a Python scalar and yields in promotion.
        mat: along which axes of shard_map the value varies; along none outside of it.
    """

    __slots__ = ("__weakref__", "dtype", "mat", "shape", "weak_type")
    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    mat: ManualAxisType

    def __new__(
        cls,
        shape: Sequence[int],
        dtype: Any,
        weak_type: bool = False,
        mat: ManualAxisType = NOT_MANUAL,
    ) -> ShapedArray:
        if mat is not NOT_MANUAL and mat.empty:
            mat = NOT_MANUAL
        # A key without it is hashed in half the time.
        more = () if mat is NOT_MANUAL else (mat,)
        key = (shape, dtype, weak_type, *more) if more else (shape, dtype, weak_type)
        try:
            interned = _interned.get(key)
        except TypeError:
            interned = None
        if interned is not None:
            return interned
        shape = tuple(int(size) for size in shape)
        if not dtypes.is_extended(dtype):
            dtype = np.dtype(dtype)
        key = (shape, dtype, bool(weak_type), *more)
        interned = _interned.get(key)
        if interned is None:
            self = object.__new__(cls)
            object.__setattr__(self, "shape", shape)
            object.__setattr__(self, "dtype", dtype)
            object.__setattr__(self, "weak_type", bool(weak_type))
            object.__setattr__(self, "mat", mat)
            interned = _interned.setdefault(key, self)
        return interned

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"[aval] avals are immutable; got an assignment to {name}. "
            f"Fix: aval.update({name}=...)."
        )

    def __reduce__(self) -> Any:
        return ShapedArray, (self.shape, self.dtype, self.weak_type, self.mat)

    @property
    def sharding(self) -> NamedSharding:
        """As in JAX outside of explicit meshes: no dimension is split, over a mesh without axes."""
        return _unsplit(len(self.shape))

    @property
    def memory_space(self) -> MemorySpace:
        """The device's, where all arrays are."""
        return MemorySpace.Device

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
        """Return a copy with some fields changed."""
        fields = {
            "shape": self.shape,
            "dtype": self.dtype,
            "weak_type": self.weak_type,
            "mat": self.mat,
        }
        return ShapedArray(**{**fields, **changes})

    def varying(self, names: frozenset[Any]) -> ShapedArray:
        """The same for values that vary along these axes of shard_map."""
        if names == self.mat.varying:
            return self
        return self.update(mat=self.mat.update(varying=names))

    @property
    def manual_axis_type(self) -> ManualAxisType:
        """The axes of shard_map along which values vary, under the name of JAX's."""
        return self.mat

    def update_manual_axis_type(self, mat: ManualAxisType) -> ShapedArray:
        """The same for values that vary along other axes of shard_map."""
        return self if mat == self.mat else self.update(mat=mat)

    def update_weak_type(self, weak_type: bool) -> ShapedArray:
        """The same with another weak type."""
        return self if weak_type == self.weak_type else self.update(weak_type=weak_type)

    def strip_weak_type(self) -> ShapedArray:
        """The same, not weak."""
        return self.update_weak_type(False)

    normalize = strip_weak_type

    def tangent(self) -> ShapedArray:
        """The aval of tangents of values with this aval; weak like the values."""
        dtype = dtypes.tangent_dtype(self.dtype)
        weak_type = self.weak_type and dtype != dtypes.float0
        return ShapedArray(self.shape, dtype, weak_type, self.mat)

    to_tangent_aval = at_least_vspace = tangent  # its names in JAX

    def to_ct_aval(self) -> ShapedArray:
        """The aval of cotangents: sums left open are reduced there, and the other way round."""
        tangent = self.tangent()
        if self.mat.empty:
            return tangent
        mat = ManualAxisType(self.mat.varying, self.mat.reduced, self.mat.unreduced)
        return tangent.update_manual_axis_type(mat)

    # JAX's types that are made of others differ here; an array is its own only component.
    is_high = has_qdd = False

    def lo_ty(self) -> list[ShapedArray]:
        """The types of the arrays that make up a value: this one."""
        return [self]

    def lower_val(self, value: Any) -> list[Any]:
        """The arrays that make up a value: itself."""
        return [value]

    def raise_val(self, value: Any) -> Any:
        """The value that an array makes up: itself."""
        return value

    def str_short(self, short_dtypes: bool = False) -> str:
        """The type as ``float32[2,3]``; ``short_dtypes``: as ``f32[2,3]``."""
        name = dtypes.short_name(self.dtype) if short_dtypes else self.dtype.name
        return f"{name}[{','.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapedArray({self.str_short()}{self._along()}{weak})"

    def __str__(self) -> str:
        return self.str_short(short_dtypes=True) + self._along()

    def _along(self) -> str:
        varying = sorted(map(str, self.mat.varying))
        names = f"({','.join(varying)})" if len(varying) > 1 else "".join(varying)
        return f"{{V:{names}}}" if varying else ""


class HasShape:
    """Attributes of all objects with an aval, or with a similar type."""

    __slots__ = ()
    aval: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    @property
    def weak_type(self) -> bool:
        """Whether the dtype is weak, as that of a Python scalar."""
        return self.aval.weak_type

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError(
                "[len] the array must have at least one axis; got shape (). Fix: x.size."
            )
        return self.aval.shape[0]


class HasAval(HasShape):
    """Arrays and tracers: objects that are operands without conversion."""

    __slots__ = ()
    aval: ShapedArray


class KeyDType(dtypes.ExtendedDType):
    """The dtype of typed random keys of one implementation.

    A key is two or four uint32 values. It is stored as one element, so layout ops, indexing and
    batching treat keys like any array and hide the trailing dimension: two values as uint64 (low
    half first), four as complex128, the only dtype of 128 bits; nothing computes with it.
    """

    type = dtypes.prng_key

    def __init__(self, implementation: str, tag: str, size: int = 2) -> None:
        self.implementation = implementation
        self.name: str = f"key<{tag}>"
        self.itemsize: int = 4 * size
        self.storage: np.dtype[Any] = np.dtype(np.uint64 if size == 2 else np.complex128)
        self.key_shape: tuple[int, ...] = (size,)

    def key_data(self, stored: Any) -> Any:
        """The uint32 values of stored keys, in a last dimension."""
        return stored.reshape((*stored.shape, 1)).view(np.uint32)

    def stored(self, key_data: Any) -> Any:
        """Stored keys from contiguous uint32 values."""
        return key_data.view(self.storage).reshape(key_data.shape[:-1])

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
    """The NumPy dtype in which arrays of ``dtype`` are stored."""
    return dtype.storage if dtypes.is_extended(dtype) else dtype


@cache
def storage_name(dtype: Any) -> str:
    """The name of the storage dtype; NumPy needs microseconds to return it."""
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
    rule = _aval_rules.get(type(value))
    if rule is None:
        if isinstance(value, HasAval):
            return value.aval
        rule = _inherited_rule(type(value))
        if rule is None:
            raise TypeError(
                f"[aval] operands must be arrays or numbers; got {brief(value)}. "
                f"Fix: {fix_for(value, 'convert it with jnp.asarray')}."
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
    # NumPy imports its masked arrays, which takes long, when they are asked for.
    if issubclass(cls, np.ndarray) and issubclass(cls, np.ma.MaskedArray):
        return _masked_array_aval
    for base in cls.__mro__[1:]:
        if base in _aval_rules:
            return _aval_rules[base]
    return None


def _numpy_array_aval(value: np.ndarray) -> ShapedArray:
    kind = value.dtype.kind
    if kind in "OSUMm" or (kind == "V" and not _is_extra_dtype(value.dtype)):
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


def _is_extra_dtype(dtype: np.dtype) -> bool:
    return dtype in (dtypes.float0, dtypes.bfloat16, *dtypes.NARROW_FLOATS, *dtypes.NARROW_INTEGERS)


def _python_scalar_rule(cls: type) -> Callable[[Any], ShapedArray]:
    def rule(value: Any) -> ShapedArray:
        return ShapedArray((), dtypes.canonicalize(cls), weak_type=cls is not bool)

    return rule


register_value_type(np.ndarray, _numpy_array_aval)
register_value_type(np.generic, _numpy_array_aval)
for _cls in (bool, int, float, complex):
    register_value_type(_cls, _python_scalar_rule(_cls))
