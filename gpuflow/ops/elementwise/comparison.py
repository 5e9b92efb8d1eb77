"""Comparisons, bitwise logic, and shifts.

Tests: tests/ops/test_elementwise_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.key_use import use_none
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import holds_values, is_ordered
from gpuflow.ops.elementwise import complex_pairs
from gpuflow.ops.elementwise.identities import constant_of, filled, is_all, producer, same
from gpuflow.ops.elementwise.nary import elementwise, match_scalars
from gpuflow.ops.linear_maps import wraps


def is_bits(dtype: Any) -> bool:
    """Whether ``dtype`` is bool or an integer."""
    return dtypes.is_bool(dtype) or dtypes.is_integer(dtype)


def _bool_result(dtype: Any) -> np.dtype:
    del dtype
    return dtypes.bool_


# --- comparisons ---------------------------------------------------------------------------


_PAIRS = {
    "eq": complex_pairs.pair_body(complex_pairs.equal),
    "ne": complex_pairs.pair_body(complex_pairs.not_equal),
}


def _comparison(
    name: str, impl: Callable[..., Any], accepts: Callable[[Any], bool], of_equal: bool
) -> Any:
    def simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
        """The result of comparing x with itself, unless it is a float (nan != nan)."""
        del definition
        x, y = eqn.inputs
        if x is y and (wraps(x.aval.dtype) or dtypes.is_bool(x.aval.dtype)):
            return filled(eqn, of_equal, build)
        return None

    what = "a number or bool" if accepts is not is_ordered else "an integer, a real float or bool"
    return elementwise(
        name,
        arity=2,
        impl=impl,
        accepts=accepts,
        what=what,
        body=name,
        cheap=True,
        result=_bool_result,
        simplify=simplify,
        pair=_PAIRS.get(name),
        keys=use_none,
    )


eq_p = _comparison("eq", lambda xp, x, y: xp.equal(x, y), holds_values, True)
ne_p = _comparison("ne", lambda xp, x, y: xp.not_equal(x, y), holds_values, False)
lt_p = _comparison("lt", lambda xp, x, y: xp.less(x, y), is_ordered, False)
le_p = _comparison("le", lambda xp, x, y: xp.less_equal(x, y), is_ordered, True)
gt_p = _comparison("gt", lambda xp, x, y: xp.greater(x, y), is_ordered, False)
ge_p = _comparison("ge", lambda xp, x, y: xp.greater_equal(x, y), is_ordered, True)
is_finite_p = elementwise(
    "is_finite",
    impl=lambda xp, x: xp.isfinite(x),
    accepts=dtypes.is_floating,
    what="a real float",
    body="is_finite",
    cheap=True,
    result=_bool_result,
)


def eq(x: Any, y: Any) -> Any:
    """Elementwise ``x == y``, as bool; nan equals nothing."""
    return eq_p.bind(*match_scalars(x, y))


def ne(x: Any, y: Any) -> Any:
    """Elementwise ``x != y``, as bool."""
    return ne_p.bind(*match_scalars(x, y))


def lt(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise ``x < y``.

    Args:
        x: array of integers, real floats or bools.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        A bool array of the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.lt(jnp.array([1, 2, 3]), 2)
        Array([ True, False, False], dtype=bool)
    """
    return lt_p.bind(*match_scalars(x, y))


def le(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise ``x <= y``.

    Args:
        x: array of integers, real floats or bools.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        A bool array of the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.le(jnp.array([1, 2, 3]), 2)
        Array([ True,  True, False], dtype=bool)
    """
    return le_p.bind(*match_scalars(x, y))


def gt(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise ``x > y``.

    Args:
        x: array of integers, real floats or bools.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        A bool array of the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.gt(jnp.array([1, 2, 3]), 2)
        Array([False, False,  True], dtype=bool)
    """
    return gt_p.bind(*match_scalars(x, y))


def ge(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise ``x >= y``.

    Args:
        x: array of integers, real floats or bools.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        A bool array of the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.ge(jnp.array([1, 2, 3]), 2)
        Array([False,  True,  True], dtype=bool)
    """
    return ge_p.bind(*match_scalars(x, y))


def is_finite(x: ArrayLike) -> Array:
    """Elementwise test for neither infinite nor nan.

    Args:
        x: array of real floats.

    Returns:
        A bool array of the shape of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.is_finite(jnp.array([1.0, jnp.inf, jnp.nan]))
        Array([ True, False, False], dtype=bool)
    """
    return is_finite_p.bind(x)


# --- bits ----------------------------------------------------------------------------------


def _in_bytes(impl: Callable[..., Any]) -> Callable[..., Any]:
    """``impl`` with integers of less than 8 bits as int8: NumPy has no bitwise ops for others."""

    def run(xp: Any, *arrays: Any) -> Any:
        if arrays[0].dtype in dtypes.NARROW_INTEGERS:
            arrays = tuple(array.astype(np.int8) for array in arrays)
        return impl(xp, *arrays)

    return run


def _bitwise(
    name: str, impl: Callable[..., Any], simplify: Callable[..., Any], arity: int = 2
) -> Any:
    return elementwise(
        name,
        arity=arity,
        impl=_in_bytes(impl),
        accepts=is_bits,
        what="an integer or bool",
        body=name,
        cheap=True,
        simplify=simplify,
    )


def _and_or_simplify(neutral: int, absorbing: int) -> Callable[..., Any]:
    """x with x is x, x with the neutral value is x, x with the absorbing value is that."""

    def simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
        x, y = eqn.inputs
        if x is y:
            return same(eqn, x)
        for one, other in ((x, y), (y, x)):
            if _is_filled(other, definition, neutral):
                return same(eqn, one)
            if _is_filled(other, definition, absorbing):
                return filled(eqn, _bits(absorbing, x.aval.dtype), build)
        return None

    return simplify


def _is_filled(atom: Any, definition: DefinitionLookup, bit: int) -> bool:
    """Whether ``atom`` is a constant with all bits equal to ``bit``."""
    constant = constant_of(atom, definition)
    return constant is not None and constant == _bits(bit, atom.aval.dtype)


def _bits(bit: int, dtype: Any) -> Any:
    if dtypes.is_bool(dtype):
        return np.bool_(bit)
    return np.int8(-bit).astype(dtype)


def _xor_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """x xor 0 is x, x xor x is 0."""
    x, y = eqn.inputs
    if x is y:
        return filled(eqn, 0, build)
    for one, other in ((x, y), (y, x)):
        if _is_filled(other, definition, 0):
            return same(eqn, one)
    return None


def _not_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """not not x is x."""
    del build
    source = producer(eqn.inputs[0], not_p, definition)
    return None if source is None else same(eqn, source.inputs[0])


and_p = _bitwise("and", lambda xp, x, y: xp.bitwise_and(x, y), _and_or_simplify(1, 0))
or_p = _bitwise("or", lambda xp, x, y: xp.bitwise_or(x, y), _and_or_simplify(0, 1))
xor_p = _bitwise("xor", lambda xp, x, y: xp.bitwise_xor(x, y), _xor_simplify)
not_p = _bitwise("not", lambda xp, x: xp.invert(x), _not_simplify, arity=1)


def bitwise_and(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise and: of the bits of integers, or of bools.

    Args:
        x: array of integers or bools.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.bitwise_and(jnp.array([12, 10]), 6)
        Array([4, 2], dtype=int32)
    """
    return and_p.bind(*match_scalars(x, y))


def bitwise_or(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise or: of the bits of integers, or of bools.

    Args:
        x: array of integers or bools.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.bitwise_or(jnp.array([12, 10]), 6)
        Array([14, 14], dtype=int32)
    """
    return or_p.bind(*match_scalars(x, y))


def bitwise_xor(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise exclusive or: of the bits of integers, or of bools.

    Args:
        x: array of integers or bools.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.bitwise_xor(jnp.array([12, 10]), 6)
        Array([10, 12], dtype=int32)
    """
    return xor_p.bind(*match_scalars(x, y))


def bitwise_not(x: ArrayLike) -> Array:
    """Elementwise not: of the bits of integers, or of bools.

    Args:
        x: array of integers or bools.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.bitwise_not(jnp.array([0, 1]))
        Array([-1, -2], dtype=int32)
    """
    return not_p.bind(x)


def _unsigned(x: Any) -> Any:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _signed(x: Any) -> Any:
    return x.view(np.dtype(f"i{x.dtype.itemsize}"))


def _shift_count(xp: Any, width: int, y: Any) -> tuple[Any, Any]:
    """Whether the shift is below the width, and a count that every library accepts."""
    in_range = _unsigned(y) < width
    return in_range, xp.where(in_range, y, y.dtype.type(0))


def _is_numpys(xp: Any, x: Any, width: int) -> bool:
    """Whether ``xp`` has these shifts: NumPy does, for integers that fill their bytes."""
    return xp is np and width == 8 * x.dtype.itemsize


def _shift_left_impl(xp: Any, x: Any, y: Any, width: int) -> Any:
    if _is_numpys(xp, x, width):
        return np.left_shift(x, y)
    in_range, count = _shift_count(xp, width, y)
    return xp.where(in_range, xp.left_shift(x, count), x.dtype.type(0))


def _shift_right_logical_impl(xp: Any, x: Any, y: Any, width: int) -> Any:
    if _is_numpys(xp, x, width):
        return np.right_shift(_unsigned(x), _unsigned(y)).astype(x.dtype)
    in_range, count = _shift_count(xp, width, y)
    bits = _unsigned(x)
    if width < 8 * x.dtype.itemsize:
        bits = bits & bits.dtype.type(2**width - 1)
    shifted = xp.right_shift(bits, _unsigned(count)).astype(x.dtype)
    return xp.where(in_range, shifted, x.dtype.type(0))


def _shift_right_arithmetic_impl(xp: Any, x: Any, y: Any, width: int) -> Any:
    if _is_numpys(xp, x, width):
        return np.right_shift(_signed(x), _signed(y)).astype(x.dtype)
    in_range, count = _shift_count(xp, width, y)
    signed = _signed(x)
    if width < 8 * x.dtype.itemsize:  # the highest bit of the integer is its sign bit
        unused = signed.dtype.type(8 * x.dtype.itemsize - width)
        signed = (signed << unused) >> unused
    count = xp.where(in_range, count.astype(signed.dtype), width - 1)
    return xp.right_shift(signed, count.astype(signed.dtype)).astype(x.dtype)


def _shift_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """A shift by 0 does nothing."""
    del build
    x, count = eqn.inputs
    return same(eqn, x) if is_all(count, definition, 0) else None


def _shift(name: str, impl: Callable[..., Any]) -> Any:
    def run(xp: Any, x: Any, y: Any) -> Any:
        width = dtypes.bits_of(x.dtype)
        return _in_bytes(lambda xp, x, y: impl(xp, x, y, width))(xp, x, y)

    return elementwise(
        name,
        arity=2,
        impl=run,
        accepts=dtypes.is_integer,
        what="an integer",
        body=name,
        cheap=True,
        simplify=_shift_simplify,
    )


shift_left_p = _shift("shift_left", _shift_left_impl)
shift_right_logical_p = _shift("shift_right_logical", _shift_right_logical_impl)
shift_right_arithmetic_p = _shift("shift_right_arithmetic", _shift_right_arithmetic_impl)


def shift_left(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise ``x << y``; 0 if ``y`` is negative or at least the width of the dtype.

    Args:
        x: array of integers.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.shift_left(jnp.array([1, 1, 1]), jnp.array([0, 3, 40]))
        Array([1, 8, 0], dtype=int32)
    """
    return shift_left_p.bind(*match_scalars(x, y))


def shift_right_logical(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise ``x >> y`` with zeros shifted in; 0 if ``y`` is negative or at least the width.

    Args:
        x: array of integers.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.shift_right_logical(jnp.array([-8, 8], jnp.int8), jnp.int8(1))
        Array([124,   4], dtype=int8)
    """
    return shift_right_logical_p.bind(*match_scalars(x, y))


def shift_right_arithmetic(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise ``x >> y`` with the sign bit shifted in, also if ``y`` is at least the width.

    Args:
        x: array of integers.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.shift_right_arithmetic(jnp.array([-8, 8], jnp.int8), jnp.int8(1))
        Array([-4,  4], dtype=int8)
    """
    return shift_right_arithmetic_p.bind(*match_scalars(x, y))
