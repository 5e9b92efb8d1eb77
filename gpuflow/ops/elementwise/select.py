"""Selection between values: select_n and clamp.

Tests: tests/ops/test_elementwise_rules.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Elementwise
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import Zero, is_undefined
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import check_same_dtype, define, is_ordered, types_text
from gpuflow.ops.elementwise.comparison import bitwise_and, eq, ge, gt, is_bits, le, lt, not_p
from gpuflow.ops.elementwise.identities import (
    constant_of,
    first_of,
    is_all,
    producer,
    same,
    sink_broadcasts,
)
from gpuflow.ops.elementwise.nary import (
    batch_elementwise,
    broadcast_shape,
    broadcast_to,
    match_scalars,
    nary_jvp,
    typed_scalar,
    unbroadcast,
)

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
    shape = broadcast_shape("select_n", (which, *cases))
    return next(iter(cases)).update(shape=shape, weak_type=weak)


def _select_impl(xp: Any, which: Any, *cases: Any) -> Any:
    out = cases[0]
    for index, case in enumerate(cases[1:], 1):
        out = xp.where(which if which.dtype == np.bool_ else which >= index, case, out)
    shape = np.broadcast_shapes(which.shape, *(case.shape for case in cases))
    return xp.broadcast_to(out, shape)


def _select_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    which, *cases = primals
    out = select_n_p.bind(which, *cases)
    case_tangents = tangents[1:]
    aval = aval_of(out)
    if all(type(tangent) is Zero for tangent in case_tangents):
        return out, Zero(aval.tangent())
    zero = typed_scalar(0, aval)
    tangent = select_n_p.bind(which, *[zero if type(t) is Zero else t for t in case_tangents])
    return out, broadcast_to(tangent, aval.shape)


def _select_transpose(cotangent: Any, which: Any, *cases: Any) -> list[Any]:
    results: list[Any] = [None]
    for index, case in enumerate(cases):
        if not is_undefined(case):
            results.append(None)
        elif type(cotangent) is Zero:
            results.append(Zero(case.aval.tangent()))
        else:
            case_cotangent = _where_selected(which, index, len(cases), cotangent)
            results.append(unbroadcast(case_cotangent, case.aval))
    return results


def _where_selected(which: Any, index: int, count: int, cotangent: Any) -> Any:
    """The cotangent if the predicate selects case ``index``, else 0; indices are clamped."""
    if count == 1:
        return cotangent
    if aval_of(which).dtype == dtypes.bool_:
        return where(which, cotangent, 0) if index else where(which, 0, cotangent)
    if index == 0:
        return where(le(which, 0), cotangent, 0)
    if index == count - 1:
        return where(ge(which, index), cotangent, 0)
    return where(eq(which, index), cotangent, 0)


def _select_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, out_aval, params
    which, *cases = values
    out = cases[0]
    for index, case in enumerate(cases[1:], 1):
        selected = which
        if which.dtype != "bool":
            selected = builder.apply("ge", which, builder.const(which.dtype, index))
        out = builder.select(selected, case, out)
    return out


def _select_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """Equal cases; a constant predicate; select(not p, x, y); select(p, False, True) is p."""
    which, *cases = eqn.inputs
    if all(case is cases[0] for case in cases):
        return same(eqn, cases[0])
    if len(cases) != 2 or not dtypes.is_bool(which.aval.dtype):
        return None
    constant = constant_of(which, definition)
    if constant is not None:
        return same(eqn, cases[int(constant)])
    inverse = producer(which, not_p, definition)
    if inverse is not None:
        return [build.apply(select_n_p, inverse.inputs[0], cases[1], cases[0])]
    if dtypes.is_bool(cases[0].aval.dtype):
        if is_all(cases[0], definition, 0) and is_all(cases[1], definition, 1):
            return same(eqn, which)
        negated = is_all(cases[0], definition, 1) and is_all(cases[1], definition, 0)
        if negated and which.aval.shape == eqn.outputs[0].aval.shape:
            return [build.apply(not_p, which)]
    return None


select_n_p = define(
    "select_n",
    shape=_select_shape,
    impl=_select_impl,
    jvp=_select_jvp,
    transpose=_select_transpose,
    batch=batch_elementwise(lambda *operands: select_n_p.bind(*operands)),
    lower=Elementwise(_select_body, cheap=True, pair=_select_body, continuous=True),
    passes_nan=True,
    simplify=first_of(_select_simplify, sink_broadcasts),
)


def where(which: Any, on_true: Any, on_false: Any) -> Any:
    """``select`` for rules: sizes of 1 and scalars broadcast."""
    on_true, on_false = match_scalars(on_true, on_false)
    return select_n_p.bind(which, on_false, on_true)


def select_n(which: ArrayLike, *cases: ArrayLike) -> Array:
    """Select elements from ``cases`` by index.

    Args:
        which: bool (False selects the first case) or integer, a scalar or of the shape of the
            cases. Integers are clamped to the number of cases.
        cases: arrays of one dtype and shape.

    Returns:
        An array of the cases' dtype and shape.

    Raises:
        TypeError: if shapes or dtypes do not match.

    Example:
        >>> lax.select_n(jnp.array([0, 2, 1]), jnp.zeros(3), jnp.ones(3), jnp.full(3, 2.0))
        Array([0., 2., 1.], dtype=float32)
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


def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> Array:
    """Return ``on_true`` where ``pred`` is True, else ``on_false``; both are evaluated.

    Args:
        pred: bool, a scalar or of the shape of the other operands.
        on_true: array of any dtype.
        on_false: array of the same dtype and shape.

    Returns:
        An array of the dtype and shape of ``on_true``.

    Raises:
        TypeError: if shapes or dtypes do not match.

    Example:
        >>> lax.select(jnp.array([True, False]), jnp.array([1, 2]), jnp.array([10, 20]))
        Array([ 1, 20], dtype=int32)
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
            f"[clamp] the operand must be an integer, a real float or bool; got {x}. Fix: clamp "
            "real and imaginary parts separately."
        ),
    )
    return ShapedArray(broadcast_shape("clamp", avals), x.dtype, all(a.weak_type for a in avals))


def maximum(xp: Any, x: Any, y: Any) -> Any:
    """``xp.maximum`` with -0.0 below 0.0."""
    out = xp.maximum(x, y)
    are_zeros = _both_zeros(out, x, y)
    return out if are_zeros is None else xp.where(are_zeros, x + y, out)


def minimum(xp: Any, x: Any, y: Any) -> Any:
    """``xp.minimum`` with -0.0 below 0.0."""
    out = xp.minimum(x, y)
    are_zeros = _both_zeros(out, x, y)
    return out if are_zeros is None else xp.where(are_zeros, -(-x - y), out)


def _both_zeros(out: Any, x: Any, y: Any) -> Any:
    """Mask of elements at which both operands are zeros; None if there are none."""
    if not dtypes.is_floating(x.dtype):
        return None
    are_zeros = out == 0
    return are_zeros & (x == y) if are_zeros.any() else None


def _clamp_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, out_aval, params
    low, x, high = values
    above, below = ("or", "and") if x.dtype == "bool" else ("max", "min")
    return builder.apply(below, builder.apply(above, low, x), high)


clamp_p = define(
    "clamp",
    shape=_clamp_shape,
    impl=lambda xp, low, x, high: minimum(xp, maximum(xp, low, x), high),
    jvp=nary_jvp(
        lambda: clamp_p,
        (
            lambda t, out, low, x, high: where(bitwise_and(gt(low, x), lt(low, high)), t, 0),
            lambda t, out, low, x, high: where(bitwise_and(gt(x, low), lt(x, high)), t, 0),
            lambda t, out, low, x, high: where(lt(high, x), t, 0),
        ),
    ),
    batch=batch_elementwise(lambda *operands: clamp_p.bind(*operands)),
    lower=Elementwise(_clamp_body, cheap=True, continuous=True),
    simplify=sink_broadcasts,
    domain=((-2.0, -1.0), (-4.0, 4.0), (1.0, 2.0)),
)


def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike) -> Array:
    """Limit ``x`` to ``[min, max]``; ``max`` wins if they cross, and nan is unchanged.

    Args:
        min: scalar or array of the shape and dtype of ``x``.
        x: array of integers, real floats or bools.
        max: scalar or array of the shape and dtype of ``x``.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if shapes or dtypes do not match.

    Example:
        >>> lax.clamp(0.0, jnp.array([-1.0, 0.5, 2.0]), 1.0)
        Array([0. , 0.5, 1. ], dtype=float32)
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
