"""Elementwise arithmetic: sums, products, extrema and rounding.

Tests: tests/ops/test_elementwise_rules.py, tests/ops/test_identities.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.arguments import as_member
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Elementwise
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import Zero
from gpuflow.core.types import Array, ArrayLike, DTypeLike
from gpuflow.ops.define import check_kind, define, holds_values, is_number
from gpuflow.ops.effects.faults import zero_divisor
from gpuflow.ops.elementwise import complex_pairs
from gpuflow.ops.elementwise.comparison import eq, lt
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.identities import (
    filled,
    is_all,
    producer,
    same,
    scalar_of,
    sink_broadcasts,
)
from gpuflow.ops.elementwise.nary import (
    batch_elementwise,
    elementwise,
    match_scalars,
    widened,
    zero_jvp,
)
from gpuflow.ops.elementwise.select import maximum, minimum, where
from gpuflow.ops.linear_maps import wraps

# --- add, sub, neg -------------------------------------------------------------------------


def _image_of(atom: Any, eqn: Any, linear: Any, build: EqnBuilder) -> Any:
    """Image of an operand under a linear map of the output; see ``linear_maps``."""
    scalar = scalar_of(atom, linear.definition)
    if scalar is not None:
        return build.apply(mul_p, linear.ones(atom.aval.dtype), scalar)
    return linear(atom) if atom.aval.shape == eqn.outputs[0].aval.shape else None


def _same_image(eqn: Any, linear: Any, build: EqnBuilder) -> Any:
    """Sum, difference or negation of images."""
    images = [_image_of(atom, eqn, linear, build) for atom in eqn.inputs]
    return None if any(image is None for image in images) else build.apply(eqn.primitive, *images)


def _add_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """x + -0 is x, and of integers x + 0; x + (-y) is x - y."""
    x, y = eqn.inputs
    for one, other in ((x, y), (y, x)):
        if is_all(other, definition, -0.0):
            return same(eqn, one)
        negated = producer(other, neg_p, definition)
        if negated is not None:
            return [build.apply(sub_p, one, negated.inputs[0])]
    return None


def _sub_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """x - 0 is x, -0 - x is -x, x - (-y) is x + y; of integers x - x is 0."""
    x, y = eqn.inputs
    if is_all(y, definition, 0.0):
        return same(eqn, x)
    if is_all(x, definition, -0.0) and y.aval.shape == eqn.outputs[0].aval.shape:
        return [build.apply(neg_p, y)]
    if x is y and wraps(x.aval.dtype):
        return filled(eqn, 0, build)
    negated = producer(y, neg_p, definition)
    return None if negated is None else [build.apply(add_p, x, negated.inputs[0])]


def _neg_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """-(-x) is x."""
    del build
    negated = producer(eqn.inputs[0], neg_p, definition)
    return None if negated is None else same(eqn, negated.inputs[0])


add_p = elementwise(
    "add",
    arity=2,
    impl=lambda xp, x, y: xp.add(x, y),
    accepts=is_number,
    what="a number",
    body="add",
    cheap=True,
    simplify=_add_simplify,
    image=_same_image,
    pair=complex_pairs.by_name("add"),
    derivatives=(lambda t, out, x, y: t, lambda t, out, x, y: t),
    transpose=(lambda ct, x, y: ct, lambda ct, x, y: ct),
    sums=all,
)

sub_p = elementwise(
    "sub",
    arity=2,
    impl=lambda xp, x, y: xp.subtract(x, y),
    accepts=is_number,
    what="a number",
    body="sub",
    cheap=True,
    simplify=_sub_simplify,
    image=_same_image,
    pair=complex_pairs.by_name("sub"),
    derivatives=(lambda t, out, x, y: t, lambda t, out, x, y: neg(t)),
    transpose=(lambda ct, x, y: ct, lambda ct, x, y: neg(ct)),
    sums=all,
)

neg_p = elementwise(
    "neg",
    impl=lambda xp, x: xp.negative(x),
    accepts=is_number,
    what="a number",
    body="neg",
    cheap=True,
    simplify=_neg_simplify,
    image=_same_image,
    pair=complex_pairs.by_name("neg"),
    derivatives=(lambda t, out, x: neg(t),),
    transpose=(lambda ct, x: neg(ct),),
    passes_nan=True,
    sums=all,
)


def add(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise sum; integers wrap.

    Args:
        x: array of numbers.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.add(jnp.array([1, 2]), 10)
        Array([11, 12], dtype=int32)
    """
    return add_p.bind(*match_scalars(x, y))


def sub(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise difference; integers wrap.

    Args:
        x: array of numbers.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.sub(jnp.array([1, 2]), 10)
        Array([-9, -8], dtype=int32)
    """
    return sub_p.bind(*match_scalars(x, y))


def neg(x: ArrayLike) -> Array:
    """Elementwise negation; unsigned integers wrap.

    Args:
        x: array of numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.neg(jnp.array([1, -2]))
        Array([-1,  2], dtype=int32)
    """
    return neg_p.bind(x)


# --- mul, div ------------------------------------------------------------------------------


def _mul_image(eqn: Any, linear: Any, build: EqnBuilder) -> Any:
    """Scalar factor times the image of the other operand."""
    for x, factor in (eqn.inputs, eqn.inputs[::-1]):
        scalar = scalar_of(factor, linear.definition)
        if scalar is not None:
            inner = _image_of(x, eqn, linear, build)
            return None if inner is None else build.apply(mul_p, inner, scalar)
    return None


def _mul_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """x * 1 is x, (-x) * (-y) is x * y; of integers x * 0 is 0."""
    x, y = eqn.inputs
    for one, other in ((x, y), (y, x)):
        if is_all(other, definition, 1):
            return same(eqn, one)
        if wraps(x.aval.dtype) and is_all(other, definition, 0):
            return filled(eqn, 0, build)
    first, second = (producer(atom, neg_p, definition) for atom in (x, y))
    if first is None or second is None:
        return None
    return [build.apply(mul_p, first.inputs[0], second.inputs[0])]


mul_p = elementwise(
    "mul",
    arity=2,
    impl=lambda xp, x, y: xp.multiply(x, y),
    accepts=is_number,
    what="a number",
    body="mul",
    cheap=True,
    simplify=_mul_simplify,
    image=_mul_image,
    pair=complex_pairs.pair_body(complex_pairs.mul),
    derivatives=(lambda t, out, x, y: mul(t, y), lambda t, out, x, y: mul(x, t)),
    transpose=(lambda ct, x, y: mul(ct, y), lambda ct, x, y: mul(x, ct)),
    sums=lambda flags: sum(flags) == 1,
)


def _truncated_quotient(xp: Any, x: Any, y: Any) -> Any:
    """Integer division towards zero; x / 0 is all ones and INT_MIN / -1 is INT_MIN, as in XLA."""
    one = y.dtype.type(1)
    if x.dtype.kind == "u":
        return xp.where(y == 0, ~y.dtype.type(0), xp.floor_divide(x, xp.where(y == 0, one, y)))
    # -1 is taken out too: its quotient is the negation, which wraps.
    safe = xp.where((y == 0) | (y == -1), one, y)
    quotient = xp.floor_divide(x, safe)
    inexact = quotient * safe != x
    quotient = quotient + (inexact & ((x < 0) != (safe < 0))).astype(x.dtype)
    return xp.where(y == 0, y.dtype.type(-1), xp.where(y == -1, xp.negative(x), quotient))


def _div_impl(xp: Any, x: Any, y: Any) -> Any:
    if dtypes.is_integer(x.dtype):
        return _truncated_quotient(xp, x, y)
    return xp.divide(x, y)


def _rem_impl(xp: Any, x: Any, y: Any) -> Any:
    if dtypes.is_integer(x.dtype):
        return xp.where(y == 0, x, x - _truncated_quotient(xp, x, y) * y)
    return xp.fmod(x, y)


def _integral_quotient(x: Any, y: Any) -> Any:
    quotient = div(x, y)
    return where(lt(quotient, 0), ceil(quotient), floor(quotient))


def _rem_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """For integers, x rem 1 is 0."""
    if wraps(eqn.inputs[0].aval.dtype) and is_all(eqn.inputs[1], definition, 1):
        return filled(eqn, 0, build)
    return None


def _quotient_again(out: Any, operands: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Jet rule with one division for each order: out * y = x, differentiated."""
    (_, y), (dx, dy) = operands, tangents
    if type(dy) is Zero:
        return div(dx, y)
    change = neg(mul(out, dy))
    return div(change if type(dx) is Zero else add(dx, change), y)


# No rule for x / 1: a mean divides by sizes, and a batch of one would need separate kernels.
div_p = elementwise(
    "div",
    arity=2,
    impl=_div_impl,
    accepts=is_number,
    what="a number",
    body="div",
    pair=complex_pairs.pair_body(complex_pairs.div),
    derivatives=(
        lambda t, out, x, y: div(t, y),
        lambda t, out, x, y: mul(neg(t), div(out, y)),
    ),
    again=_quotient_again,
    transpose=(lambda ct, x, y: div(ct, y), None),
    domain=((-10.0, 10.0), (0.5, 10.0)),
    faults=zero_divisor,
    sums=lambda flags: tuple(flags) == (True, False),
)


def _is_real(dtype: Any) -> bool:
    return dtypes.is_integer(dtype) or dtypes.is_floating(dtype)


rem_p = elementwise(
    "rem",
    arity=2,
    impl=_rem_impl,
    accepts=_is_real,
    what="an integer or a real float",
    body="rem",
    simplify=_rem_simplify,
    derivatives=(
        lambda t, out, x, y: t,
        lambda t, out, x, y: mul(neg(t), _integral_quotient(x, y)),
    ),
    domain=((-10.0, 10.0), (0.5, 10.0)),
)


def mul(x: ArrayLike, y: ArrayLike, *, out_dtype: DTypeLike | None = None) -> Array:
    """Elementwise product; integers wrap.

    Args:
        x: array of numbers.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.
        out_dtype: dtype of the product; the dtype of the operands by default.

    Returns:
        An array of ``out_dtype`` and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.mul(jnp.array([100], jnp.int8), jnp.array([2], jnp.int8), out_dtype=jnp.int32)
        Array([200], dtype=int32)
    """
    if out_dtype is not None:
        dtype = dtypes.canonicalize(out_dtype)
        x, y = (convert_element_type(v, dtype) for v in match_scalars(x, y))
    return mul_p.bind(*match_scalars(x, y))


def div(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise quotient; integers are truncated, and integer x / 0 is -1 (all ones).

    Args:
        x: array of numbers.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.div(jnp.array([-7, 7, 7]), jnp.array([2, 2, 0]))
        Array([-3,  3, -1], dtype=int32)
    """
    return div_p.bind(*match_scalars(x, y))


def rem(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise remainder with the sign of ``x``; for integers, x rem 0 is x.

    Args:
        x: array of integers or real floats.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.rem(jnp.array([-7, 7, 7]), jnp.array([3, 3, 0]))
        Array([-1,  1,  7], dtype=int32)
    """
    return rem_p.bind(*match_scalars(x, y))


# --- max, min ------------------------------------------------------------------------------


def _share(t: Any, out: Any, x: Any, y: Any) -> Any:
    """Tangent of ``x`` where it is the extremum, half of it in case of a tie."""
    return where(eq(x, out), where(eq(y, out), mul(t, 0.5), t), 0)


def constant(x: Any, value: float) -> Any:
    """A constant in the dtype of ``x``."""
    return match_scalars(value, x)[0]


def _extremum(name: str, impl: Callable[..., Any], bool_body: str, neutral: float) -> Any:
    def simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
        """The extremum of x and x is x, and so is that of x and the opposite infinity."""
        del build
        x, y = eqn.inputs
        if x is y:
            return same(eqn, x)
        floats = dtypes.is_floating(x.aval.dtype)
        for one, other in ((x, y), (y, x)):
            if floats and is_all(other, definition, neutral):
                return same(eqn, one)
        return None

    def body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
        del in_avals, out_aval, params
        return builder.apply(bool_body if values[0].dtype == "bool" else name, *values)

    return elementwise(
        name,
        arity=2,
        impl=impl,
        accepts=holds_values,
        what="a number or bool",
        body=body,
        passes_nan=True,
        cheap=True,
        simplify=simplify,
        pair=complex_pairs.pair_body(complex_pairs.extremum("gt" if name == "max" else "lt")),
        derivatives=(
            lambda t, out, x, y: _share(t, out, x, y),
            lambda t, out, x, y: _share(t, out, y, x),
        ),
    )


max_p = _extremum("max", maximum, "or", -math.inf)
min_p = _extremum("min", minimum, "and", math.inf)


def max(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise maximum; nan propagates, -0.0 < 0.0, complex numbers compare by real part first.

    Args:
        x: array of numbers or bools.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.max(jnp.array([1.0, 3.0, jnp.nan]), 2.0)
        Array([ 2.,  3., nan], dtype=float32)
    """
    return max_p.bind(*match_scalars(x, y))


def min(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise minimum; nan propagates, -0.0 < 0.0, complex numbers compare by real part first.

    Args:
        x: array of numbers or bools.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.min(jnp.array([1.0, 3.0, jnp.nan]), 2.0)
        Array([ 1.,  2., nan], dtype=float32)
    """
    return min_p.bind(*match_scalars(x, y))


# --- rounding ------------------------------------------------------------------------------


def _rounding(name: str, impl: Callable[..., Any]) -> Any:
    return elementwise(
        name, impl=impl, accepts=dtypes.is_floating, what="a real float", body=name, cheap=True
    )


floor_p = _rounding("floor", lambda xp, x: xp.floor(x))
ceil_p = _rounding("ceil", lambda xp, x: xp.ceil(x))


def floor(x: ArrayLike) -> Array:
    """Round real floats down to an integer.

    Args:
        x: array of real floats.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.floor(jnp.array([-1.5, 1.5]))
        Array([-2.,  1.], dtype=float32)
    """
    return floor_p.bind(x)


def ceil(x: ArrayLike) -> Array:
    """Round real floats up to an integer.

    Args:
        x: array of real floats.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.ceil(jnp.array([-1.5, 1.5]))
        Array([-1.,  2.], dtype=float32)
    """
    return ceil_p.bind(x)


class RoundingMethod(IntEnum):
    """Rounding of values halfway between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def _round_shape(x: ShapedArray, *, rounding_method: RoundingMethod) -> ShapedArray:
    del rounding_method
    check_kind("round", x, dtypes.is_floating, "a real float")
    return x


def _round_impl(xp: Any, x: Any, *, rounding_method: RoundingMethod) -> Any:
    if rounding_method == RoundingMethod.TO_NEAREST_EVEN:
        return xp.rint(x)
    truncated = xp.trunc(x)
    away = truncated + xp.copysign(x.dtype.type(1), x)
    return xp.where(xp.abs(x - truncated) >= 0.5, away, xp.copysign(truncated, x))


def _round_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, out_aval
    even = params["rounding_method"] == RoundingMethod.TO_NEAREST_EVEN
    return builder.apply("round" if even else "round_away", values[0])


round_p = define(
    "round",
    shape=_round_shape,
    impl=widened(_round_impl),
    jvp=zero_jvp(lambda: round_p),
    batch=batch_elementwise(lambda x, *, rounding_method: round(x, rounding_method)),
    lower=Elementwise(_round_body, cheap=True),
    simplify=sink_broadcasts,
)


def round(x: ArrayLike, rounding_method: RoundingMethod = RoundingMethod.AWAY_FROM_ZERO) -> Array:
    """Round real floats to the nearest integer.

    Args:
        x: array of real floats.
        rounding_method: a ``lax.RoundingMethod``: AWAY_FROM_ZERO or TO_NEAREST_EVEN.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.round(jnp.array([0.5, 2.5]))
        Array([1., 3.], dtype=float32)
        >>> lax.round(jnp.array([0.5, 2.5]), lax.RoundingMethod.TO_NEAREST_EVEN)
        Array([0., 2.], dtype=float32)
    """
    method = as_member("round", "rounding_method", rounding_method, RoundingMethod)
    return round_p.bind(x, rounding_method=method)
