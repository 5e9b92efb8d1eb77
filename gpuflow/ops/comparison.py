"""Comparisons, logic on bits, shifts, and choices: select_n and clamp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Elementwise
from gpuflow.core.rules import Zero, is_undefined
from gpuflow.ops.define import any_dtype, check_same_dtype, define, is_ordered, types_text
from gpuflow.ops.nary import (
    batch_elementwise,
    broadcast_shape,
    broadcast_to,
    elementwise,
    match_scalars,
    nary_jvp,
    typed_scalar,
    unbroadcast,
)


def is_bits(dtype: Any) -> bool:
    """Integers and bool."""
    return dtypes.is_integer(dtype) or dtypes.is_bool(dtype)


def _bool_result(dtype: Any) -> np.dtype:
    del dtype
    return dtypes.bool_


# --- comparisons ---------------------------------------------------------------------------


def _comparison(name: str, impl: Callable[..., Any], accepts: Callable[[Any], bool]) -> Any:
    what = "a number or bool" if accepts is any_dtype else "an integer, a real float or bool"
    return elementwise(
        name, arity=2, impl=impl, accepts=accepts, what=what, body=name, cheap=True,
        result=_bool_result,
    )  # fmt: skip


eq_p = _comparison("eq", lambda xp, x, y: xp.equal(x, y), any_dtype)
ne_p = _comparison("ne", lambda xp, x, y: xp.not_equal(x, y), any_dtype)
lt_p = _comparison("lt", lambda xp, x, y: xp.less(x, y), is_ordered)
le_p = _comparison("le", lambda xp, x, y: xp.less_equal(x, y), is_ordered)
gt_p = _comparison("gt", lambda xp, x, y: xp.greater(x, y), is_ordered)
ge_p = _comparison("ge", lambda xp, x, y: xp.greater_equal(x, y), is_ordered)
is_finite_p = elementwise(
    "is_finite", impl=lambda xp, x: xp.isfinite(x), accepts=dtypes.is_floating,
    what="a real float", body="is_finite", cheap=True, result=_bool_result,
)  # fmt: skip


def eq(x: Any, y: Any) -> Any:
    """Elementwise ``x == y``, as bool; nan equals nothing."""
    return eq_p.bind(*match_scalars(x, y))


def ne(x: Any, y: Any) -> Any:
    """Elementwise ``x != y``, as bool."""
    return ne_p.bind(*match_scalars(x, y))


def lt(x: Any, y: Any) -> Any:
    """Elementwise ``x < y``, as bool."""
    return lt_p.bind(*match_scalars(x, y))


def le(x: Any, y: Any) -> Any:
    """Elementwise ``x <= y``, as bool."""
    return le_p.bind(*match_scalars(x, y))


def gt(x: Any, y: Any) -> Any:
    """Elementwise ``x > y``, as bool."""
    return gt_p.bind(*match_scalars(x, y))


def ge(x: Any, y: Any) -> Any:
    """Elementwise ``x >= y``, as bool."""
    return ge_p.bind(*match_scalars(x, y))


def is_finite(x: Any) -> Any:
    """Elementwise: neither infinite nor nan, as bool."""
    return is_finite_p.bind(x)


# --- bits ----------------------------------------------------------------------------------


def _bitwise(name: str, impl: Callable[..., Any], arity: int = 2) -> Any:
    return elementwise(
        name, arity=arity, impl=impl, accepts=is_bits, what="an integer or bool", body=name,
        cheap=True,
    )  # fmt: skip


and_p = _bitwise("and", lambda xp, x, y: xp.bitwise_and(x, y))
or_p = _bitwise("or", lambda xp, x, y: xp.bitwise_or(x, y))
xor_p = _bitwise("xor", lambda xp, x, y: xp.bitwise_xor(x, y))
not_p = _bitwise("not", lambda xp, x: xp.invert(x), arity=1)


def bitwise_and(x: Any, y: Any) -> Any:
    """Elementwise and: of the bits of integers, or of bools."""
    return and_p.bind(*match_scalars(x, y))


def bitwise_or(x: Any, y: Any) -> Any:
    """Elementwise or: of the bits of integers, or of bools."""
    return or_p.bind(*match_scalars(x, y))


def bitwise_xor(x: Any, y: Any) -> Any:
    """Elementwise exclusive or: of the bits of integers, or of bools."""
    return xor_p.bind(*match_scalars(x, y))


def bitwise_not(x: Any) -> Any:
    """Elementwise not: of the bits of integers, or of bools."""
    return not_p.bind(x)


def _unsigned(x: Any) -> Any:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _signed(x: Any) -> Any:
    return x.view(np.dtype(f"i{x.dtype.itemsize}"))


def _shift_count(xp: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Whether the shift is below the width, and a count that every library accepts."""
    inside = _unsigned(y) < 8 * x.dtype.itemsize
    return inside, xp.where(inside, y, y.dtype.type(0))


def _shift_left_impl(xp: Any, x: Any, y: Any) -> Any:
    inside, count = _shift_count(xp, x, y)
    return xp.where(inside, xp.left_shift(x, count), x.dtype.type(0))


def _shift_right_logical_impl(xp: Any, x: Any, y: Any) -> Any:
    inside, count = _shift_count(xp, x, y)
    shifted = xp.right_shift(_unsigned(x), _unsigned(count)).astype(x.dtype)
    return xp.where(inside, shifted, x.dtype.type(0))


def _shift_right_arithmetic_impl(xp: Any, x: Any, y: Any) -> Any:
    inside, count = _shift_count(xp, x, y)
    signed = _signed(x)
    count = xp.where(inside, count.astype(signed.dtype), 8 * x.dtype.itemsize - 1)
    return xp.right_shift(signed, count.astype(signed.dtype)).astype(x.dtype)


def _shift(name: str, impl: Callable[..., Any]) -> Any:
    return elementwise(
        name, arity=2, impl=impl, accepts=dtypes.is_integer, what="an integer", body=name,
        cheap=True,
    )  # fmt: skip


shift_left_p = _shift("shift_left", _shift_left_impl)
shift_right_logical_p = _shift("shift_right_logical", _shift_right_logical_impl)
shift_right_arithmetic_p = _shift("shift_right_arithmetic", _shift_right_arithmetic_impl)


def shift_left(x: Any, y: Any) -> Any:
    """``x << y``; 0 where ``y`` is negative or at least the width of the dtype."""
    return shift_left_p.bind(*match_scalars(x, y))


def shift_right_logical(x: Any, y: Any) -> Any:
    """``x >> y`` with zeros shifted in; 0 where ``y`` is negative or at least the width."""
    return shift_right_logical_p.bind(*match_scalars(x, y))


def shift_right_arithmetic(x: Any, y: Any) -> Any:
    """``x >> y`` with the sign bit shifted in, also where ``y`` is at least the width."""
    return shift_right_arithmetic_p.bind(*match_scalars(x, y))


# --- select_n ------------------------------------------------------------------------------


def _select_shape(which: ShapedArray, *cases: ShapedArray) -> ShapedArray:
    check(
        is_bits(which.dtype),
        lambda: (
            f"[select_n] the predicate must be bool or an integer; got {which}. "
            "Fix: compare it with something, for example x != 0."
        ),
    )
    check(
        len(cases) > 0,
        lambda: "[select_n] there must be at least one case; got none. Fix: pass the cases.",
        ValueError,
    )
    check(
        len(cases) <= 2 or not dtypes.is_bool(which.dtype),
        lambda: (
            f"[select_n] a bool predicate chooses between at most 2 cases; got {len(cases)}. "
            "Fix: use an int32 predicate."
        ),
    )
    check_same_dtype("select_n", cases)
    weak = all(case.weak_type for case in cases)
    return ShapedArray(broadcast_shape("select_n", (which, *cases)), cases[0].dtype, weak)


def _select_impl(xp: Any, which: Any, *cases: Any) -> Any:
    out = cases[0]
    for number, case in enumerate(cases[1:], 1):
        out = xp.where(which if which.dtype == np.bool_ else which >= number, case, out)
    shape = np.broadcast_shapes(which.shape, *(case.shape for case in cases))
    return xp.broadcast_to(out, shape)


def _select_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    which, *cases = primals
    out = select_n_p.bind(which, *cases)
    parts = tangents[1:]
    aval = aval_of(out)
    if all(type(part) is Zero for part in parts):
        return out, Zero(aval.tangent())
    zero = typed_scalar(0, aval)
    tangent = select_n_p.bind(which, *[zero if type(t) is Zero else t for t in parts])
    return out, broadcast_to(tangent, aval.shape)


def _select_transpose(cotangent: Any, which: Any, *cases: Any) -> list[Any]:
    results: list[Any] = [None]
    for number, case in enumerate(cases):
        if not is_undefined(case):
            results.append(None)
        elif type(cotangent) is Zero:
            results.append(Zero(case.aval.tangent()))
        else:
            part = _where_chosen(which, number, len(cases), cotangent)
            results.append(unbroadcast(part, case.aval))
    return results


def _where_chosen(which: Any, number: int, count: int, cotangent: Any) -> Any:
    """The cotangent where the predicate chooses case ``number``, else 0; ends catch outliers."""
    if count == 1:
        return cotangent
    if aval_of(which).dtype == dtypes.bool_:
        return where(which, cotangent, 0) if number else where(which, 0, cotangent)
    if number == 0:
        return where(le(which, 0), cotangent, 0)
    if number == count - 1:
        return where(ge(which, number), cotangent, 0)
    return where(eq(which, number), cotangent, 0)


def _select_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, out_aval, params
    which, *cases = values
    out = cases[0]
    for number, case in enumerate(cases[1:], 1):
        chosen = which
        if which.dtype != "bool":
            chosen = builder.apply("ge", which, builder.const(which.dtype, number))
        out = builder.select(chosen, case, out)
    return out


select_n_p = define(
    "select_n",
    shape=_select_shape,
    impl=_select_impl,
    jvp=_select_jvp,
    transpose=_select_transpose,
    batch=batch_elementwise(lambda *operands: select_n_p.bind(*operands)),
    lower=Elementwise(_select_body, cheap=True),
)


def where(which: Any, on_true: Any, on_false: Any) -> Any:
    """``select`` for rules: sizes of 1 and scalars repeat."""
    on_true, on_false = match_scalars(on_true, on_false)
    return select_n_p.bind(which, on_false, on_true)


def select_n(which: Any, *cases: Any) -> Any:
    """Choose elements from ``cases``.

    Args:
        which: bool (False: the first case) or integer, a scalar or of the cases' shape. Integers
            are clamped to the number of cases.
        cases: arrays of one dtype and shape.

    Returns:
        An array of the cases' dtype and shape.

    Raises:
        TypeError: shapes or dtypes that do not fit.
    """
    avals = [aval_of(case) for case in cases]
    check(
        len({aval.shape for aval in avals}) <= 1,
        lambda: (
            f"[select_n] cases must have one shape; got {types_text(avals)}. "
            "Fix: broadcast them, or use jnp.where."
        ),
    )
    predicate = aval_of(which)
    check(
        not cases or predicate.shape in ((), avals[0].shape),
        lambda: (
            "[select_n] the predicate must be a scalar or have the cases' shape "
            f"{avals[0].shape}; got {predicate}. Fix: broadcast it, or use jnp.where."
        ),
    )
    return select_n_p.bind(which, *cases)


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """``on_true`` where ``pred`` holds, else ``on_false``; both are evaluated.

    Args:
        pred: bool, a scalar or of the shape of the others.
        on_true: array of any dtype.
        on_false: array of the same dtype and shape.

    Raises:
        TypeError: shapes or dtypes that do not fit.
    """
    on_true, on_false = match_scalars(on_true, on_false)
    return select_n(pred, on_false, on_true)


# --- clamp ---------------------------------------------------------------------------------


def _clamp_shape(low: ShapedArray, x: ShapedArray, high: ShapedArray) -> ShapedArray:
    avals = (low, x, high)
    check_same_dtype("clamp", avals)
    check(
        is_ordered(x.dtype),
        lambda: (
            f"[clamp] the operand must be an integer, a real float or bool; got {x}. "
            "Fix: clamp real and imaginary parts apart."
        ),
    )
    return ShapedArray(broadcast_shape("clamp", avals), x.dtype, all(a.weak_type for a in avals))


def _clamp_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, out_aval, params
    low, x, high = values
    above, below = ("or", "and") if x.dtype == "bool" else ("max", "min")
    return builder.apply(below, builder.apply(above, low, x), high)


clamp_p = define(
    "clamp",
    shape=_clamp_shape,
    impl=lambda xp, low, x, high: xp.minimum(xp.maximum(low, x), high),
    jvp=nary_jvp(
        lambda: clamp_p,
        (
            lambda t, out, low, x, high: where(bitwise_and(gt(low, x), lt(low, high)), t, 0),
            lambda t, out, low, x, high: where(bitwise_and(gt(x, low), lt(x, high)), t, 0),
            lambda t, out, low, x, high: where(lt(high, x), t, 0),
        ),
    ),
    batch=batch_elementwise(lambda *operands: clamp_p.bind(*operands)),
    lower=Elementwise(_clamp_body, cheap=True),
    domain=((-2.0, -1.0), (-4.0, 4.0), (1.0, 2.0)),
)


def clamp(min: Any, x: Any, max: Any) -> Any:
    """``x`` limited to ``[min, max]``; ``max`` wins where they cross, and nan stays.

    Args:
        min: scalar or array of the shape and dtype of ``x``.
        x: array of integers, real floats or bools.
        max: like ``min``.

    Raises:
        TypeError: shapes or dtypes that do not fit.
    """
    aval = aval_of(x)
    for name, bound in (("min", min), ("max", max)):
        shape = aval_of(bound).shape
        check(
            shape in ((), aval.shape),
            lambda name=name, shape=shape: (
                f"[clamp] {name} must be a scalar or have the shape of x {aval.shape}; "
                f"got shape {shape}. Fix: broadcast it, or use jnp.clip."
            ),
        )
    return clamp_p.bind(match_scalars(min, x)[0], x, match_scalars(x, max)[1])
