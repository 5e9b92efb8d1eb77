"""Scalar types: ``jnp.float32`` is accepted as a dtype, and creates arrays when called.

Tests: tests/numpy/test_numpy_array_api.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.types import Array, DTypeLike
from gpuflow.numpy.creation import asarray

inexact, floating, complexfloating = np.inexact, np.floating, np.complexfloating
integer, signedinteger, unsignedinteger = np.integer, np.signedinteger, np.unsignedinteger
number, generic = np.number, np.generic
character, flexible, object_ = np.character, np.flexible, np.object_
ComplexWarning = np.exceptions.ComplexWarning
extended, prng_key = dtypes.extended, dtypes.prng_key


class ScalarMeta(type):
    """Metaclass of the scalar types: calling such a class creates an array."""

    dtype: np.dtype

    def __call__(cls, x: Any) -> Array:
        return asarray(x, dtype=cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.dtype.type)

    def __eq__(cls, other: Any) -> bool:
        return cls is other or bool(cls.dtype.type == other)

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)


def scalar_type(scalar: Any) -> ScalarMeta:
    """A dtype as a class: ``jnp.float32(3)`` is an array of that dtype.

    NumPy's scalars of the dtype are its instances; arrays are not.
    """
    dtype = np.dtype(scalar)
    doc = f"The dtype {dtype.name}: call it to make an array, or pass it as a dtype."
    members = {"dtype": dtype, "__module__": "gpuflow.numpy", "__doc__": doc}
    return ScalarMeta(dtype.name, (), members)


bool_ = scalar_type(np.bool_)
int8, int16, int32, int64 = (scalar_type(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (scalar_type(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (scalar_type(f"float{n}") for n in (16, 32, 64))
bfloat16 = scalar_type(ml_dtypes.bfloat16)
complex64, complex128 = scalar_type(np.complex64), scalar_type(np.complex128)
int4, uint4 = scalar_type(ml_dtypes.int4), scalar_type(ml_dtypes.uint4)
float8_e4m3fn = scalar_type(ml_dtypes.float8_e4m3fn)
float8_e5m2 = scalar_type(ml_dtypes.float8_e5m2)
float8_e3m4 = scalar_type(ml_dtypes.float8_e3m4)
float8_e4m3 = scalar_type(ml_dtypes.float8_e4m3)
float8_e4m3b11fnuz = scalar_type(ml_dtypes.float8_e4m3b11fnuz)
float8_e4m3fnuz = scalar_type(ml_dtypes.float8_e4m3fnuz)
float8_e5m2fnuz = scalar_type(ml_dtypes.float8_e5m2fnuz)
float8_e8m0fnu = scalar_type(ml_dtypes.float8_e8m0fnu)
# Arrays cannot hold int1, uint1 and those of 6 bits; they are names of dtypes, as for ``np.dtype``.
int1, int2, uint1, uint2 = (
    scalar_type(getattr(ml_dtypes, name)) for name in ("int1", "int2", "uint1", "uint2")
)
float4_e2m1fn, float6_e2m3fn, float6_e3m2fn = (
    scalar_type(getattr(ml_dtypes, name))
    for name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
)
single, double, csingle, cdouble = float32, float64, complex64, complex128
int_, uint, float_, complex_ = int64, uint64, float64, complex128
dtype = np.dtype


def _dtype_of(what: Any) -> tuple[Any, bool]:
    """The dtype and weak type of an array, a scalar, or a dtype-like object."""
    if what in (bool, int, float, complex) if isinstance(what, type) else False:
        return dtypes.canonicalize(what), what is not bool
    if not isinstance(what, type | str) and is_value(what):  # np.str_ is a str, and a scalar
        aval = aval_of(what)
        return aval.dtype, aval.weak_type
    return dtypes.canonicalize(what), False


def result_type(*args: Any) -> Any:
    """Return the dtype of the result of an operation on these arrays, scalars and dtypes.

    Args:
        args: arrays, dtypes and Python scalars, which are weak.

    Returns:
        A dtype; of at most 32 bits without ``enable_x64``.

    Raises:
        ValueError: if there are no arguments.

    Example:
        >>> jnp.result_type(jnp.int8(1), 2)  # a weak number
        dtype('int8')
        >>> jnp.result_type("int8", "uint8")
        dtype('int16')
    """
    return result_type_and_weakness(*args)[0]


def result_type_and_weakness(*args: Any) -> tuple[Any, bool]:
    """The dtype of an operation's result, and whether it is weak."""
    if not args:
        raise ValueError("[result_type] arguments are needed; got none. Fix: pass an array.")
    dtype, weak_type = dtypes.promote(*[_dtype_of(arg) for arg in args])
    return dtypes.canonicalize(dtype), weak_type


@explained
def promote_types(a: DTypeLike, b: DTypeLike) -> Any:
    """Return the common dtype of two dtypes; Python scalar types are weak.

    Args:
        a, b: dtypes, names of dtypes, or Python types.

    Returns:
        A dtype.

    Example:
        >>> jnp.promote_types("int32", "float16")
        dtype('float16')
        >>> jnp.promote_types("int8", int)
        dtype('int8')
    """
    return dtypes.promote(_dtype_of(a), _dtype_of(b))[0]


def _as_type(what: Any) -> Any:
    """A scalar class, for ``issubclass``."""
    if isinstance(what, type) and issubclass(what, np.generic):
        return what
    if dtypes.is_extended(what):
        return type(what)
    return np.dtype(what).type


@explained
def issubdtype(arg1: DTypeLike, arg2: DTypeLike) -> bool:
    """Return whether a dtype is of a category; bfloat16 is floating.

    Args:
        arg1: a dtype, a scalar type or the name of a dtype.
        arg2: a dtype, or a category: ``jnp.floating``, ``jnp.integer``, ``jnp.number`` and so on.

    Returns:
        A bool.

    Raises:
        TypeError: if the dtype is invalid.

    Example:
        >>> jnp.issubdtype(jnp.bfloat16, jnp.floating), jnp.issubdtype("int8", jnp.floating)
        (True, False)
    """
    kinds = {np.generic, np.number, np.inexact, np.floating}
    if dtypes.is_extended(arg1) or dtypes.is_extended(arg2):
        return arg1 == arg2 or arg2 in (np.generic, extended, prng_key)
    first, second = _as_type(arg1), _as_type(arg2)
    concrete = np.dtype(first) if not _is_abstract(first) else None
    if concrete is not None and dtypes.is_floating(concrete) and second in kinds:
        return True
    if concrete is not None and concrete in dtypes.NARROW_INTEGERS:
        signed = np.unsignedinteger if dtypes.is_unsigned(concrete) else np.signedinteger
        return second is first or issubclass(signed, second)
    return issubclass(first, second)


def _is_abstract(scalar: type) -> bool:
    return scalar in (
        np.generic,
        np.number,
        np.integer,
        np.signedinteger,
        np.unsignedinteger,
        np.inexact,
        np.floating,
        np.complexfloating,
        np.character,
        np.flexible,
        extended,
        prng_key,
    )


_KINDS = {
    "bool": dtypes.is_bool,
    "signed integer": lambda dt: dtypes.is_integer(dt) and not dtypes.is_unsigned(dt),
    "unsigned integer": dtypes.is_unsigned,
    "integral": dtypes.is_integer,
    "real floating": dtypes.is_floating,
    "complex floating": dtypes.is_complex,
    "numeric": lambda dt: dtypes.is_integer(dt) or dtypes.is_inexact(dt),
}


@explained
def isdtype(dtype: DTypeLike, kind: Any) -> bool:
    """Return whether a dtype is of a kind: a dtype, a name such as ``"integral"``, or a tuple.

    Args:
        dtype: a dtype, or the name of one.
        kind: a dtype; ``"bool"``, ``"signed integer"``, ``"unsigned integer"``, ``"integral"``,
            ``"real floating"``, ``"complex floating"`` or ``"numeric"``; or a tuple: any of them.

    Returns:
        A bool.

    Raises:
        ValueError: if the name is unknown.

    Example:
        >>> jnp.isdtype("uint8", "integral"), jnp.isdtype("uint8", ("bool", "real floating"))
        (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    numpy_dtype = np.dtype(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return bool(_KINDS[kind](numpy_dtype))
    try:
        return numpy_dtype == np.dtype(kind)
    except TypeError:
        raise ValueError(
            f"[isdtype] kind must be a dtype or one of {tuple(_KINDS)}; got {kind!r}. "
            "Fix: 'real floating'."
        ) from None


@explained
def can_cast(from_: DTypeLike, to: DTypeLike, casting: str = "safe") -> bool:
    """Return whether NumPy's casting rules allow the conversion.

    Args:
        from_: a dtype, or the name of one.
        to: a dtype, or the name of one.
        casting: ``"no"``, ``"equiv"``, ``"safe"``, ``"same_kind"`` or ``"unsafe"``.

    Returns:
        A bool.

    Raises:
        TypeError: if the dtype is invalid.

    Example:
        >>> jnp.can_cast("int8", "int32"), jnp.can_cast("int32", "float32")
        (True, False)
    """
    return np.can_cast(np.dtype(from_), np.dtype(to), casting=casting)


@explained
def finfo(dtype: DTypeLike | None) -> Any:
    """Return the limits of a float dtype: ``eps``, ``max``, ``tiny``, ``bits`` and so on.

    Args:
        dtype: a float or complex dtype, its name, or an array.

    Returns:
        An object with the limits as attributes.

    Raises:
        ValueError: if the dtype is integer or bool.

    Example:
        >>> jnp.finfo(jnp.bfloat16).bits, float(jnp.finfo(jnp.float16).max)
        (16, 65504.0)
    """
    full = _full_width_dtype(dtype)
    check(
        dtypes.is_extended(full) is False and dtypes.is_inexact(full),
        lambda: f"[finfo] the dtype must be one of floats; got {full}. Fix: jnp.iinfo.",
        ValueError,
    )
    return ml_dtypes.finfo(full)


@explained
def iinfo(int_type: Any) -> Any:
    """Return the limits of an integer dtype: ``min``, ``max`` and ``bits``.

    Args:
        int_type: an integer dtype, its name, or an array.

    Returns:
        An object with the limits as attributes.

    Raises:
        ValueError: if the dtype is float, complex or bool.

    Example:
        >>> jnp.iinfo(jnp.int8).min, jnp.iinfo("uint8").max
        (-128, 255)
    """
    full = _full_width_dtype(int_type)
    check(
        dtypes.is_extended(full) is False and dtypes.is_integer(full),
        lambda: f"[iinfo] the dtype must be one of integers; got {full}. Fix: jnp.finfo.",
        ValueError,
    )
    return ml_dtypes.iinfo(full)


def _full_width_dtype(what: Any) -> Any:
    """The dtype of an array, or a dtype at its full width."""
    if isinstance(what, (type, str, np.dtype)):
        dtypes.canonicalize(what)  # its error names the invalid dtype
        return np.dtype(what)
    return _dtype_of(what)[0]


@explained
def iscomplexobj(x: Any) -> bool:
    """Return whether an array, or another object with a dtype, is complex.

    Args:
        x: array, scalar, or nested lists of numbers.

    Returns:
        A bool; it does not depend on the imaginary parts.

    Raises:
        ValueError: if nested lists are not rectangular.

    Example:
        >>> jnp.iscomplexobj(jnp.array([1 + 0j])), jnp.iscomplexobj(2.0)
        (True, False)
    """
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        try:
            return isinstance(x, complex) or np.iscomplexobj(x)
        except ValueError:
            raise ValueError(
                f"[iscomplexobj] x must be a number or lists that are an array; got {brief(x)}. "
                "Fix: lists of equal lengths."
            ) from None
    return dtypes.is_complex(dtype)


@explained
def isrealobj(x: Any) -> bool:
    """Return whether the dtype of an array is not complex.

    Args:
        x: array, scalar, or nested lists of numbers.

    Returns:
        A bool; it does not depend on the imaginary parts.

    Example:
        >>> jnp.isrealobj(jnp.array([1 + 0j])), jnp.isrealobj(2.0)
        (False, True)
    """
    return not iscomplexobj(x)


def isscalar(element: Any) -> bool:
    """Return whether ``element`` is a scalar or an array of rank 0.

    Args:
        element: any object.

    Returns:
        A bool.

    Example:
        >>> jnp.isscalar(jnp.array(1.0)), jnp.isscalar(2), jnp.isscalar(jnp.array([1]))
        (True, True, False)
    """
    return is_value(element) and aval_of(element).ndim == 0


def iterable(y: Any) -> bool:
    """Return whether ``iter(y)`` works: True for sequences, and for arrays with an axis.

    Args:
        y: any object.

    Returns:
        A bool.

    Example:
        >>> jnp.iterable(jnp.array([1])), jnp.iterable(jnp.array(1))
        (True, False)
    """
    return np.iterable(y)
