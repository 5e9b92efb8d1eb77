"""Elementwise ops: arithmetic, comparisons, logic."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Elementwise
from gpuflow.core.rules import Zero
from gpuflow.ops.define import any_dtype, define, is_number, is_ordered
from gpuflow.ops.nary import (
    batch_elementwise,
    broadcast_to,
    elementwise,
    linear_in,
    match_scalars,
    nary_jvp,
)


def _no_params(function: Any) -> Any:
    """Drop ``out`` and operands from a derivative that is the tangent's image alone."""
    return lambda t, out, *operands: function(t)


# --- add, sub, neg -------------------------------------------------------------------------

add_p = elementwise(
    "add", arity=2, impl=lambda xp, x, y: xp.add(x, y), accepts=is_number, what="a number",
    body="add", cheap=True,
    derivatives=(lambda t, out, x, y: t, lambda t, out, x, y: t),
    transpose=(lambda ct, x, y: ct, lambda ct, x, y: ct),
)  # fmt: skip

sub_p = elementwise(
    "sub", arity=2, impl=lambda xp, x, y: xp.subtract(x, y), accepts=is_number, what="a number",
    body="sub", cheap=True,
    derivatives=(lambda t, out, x, y: t, lambda t, out, x, y: neg(t)),
    transpose=(lambda ct, x, y: ct, lambda ct, x, y: neg(ct)),
)  # fmt: skip

neg_p = elementwise(
    "neg", impl=lambda xp, x: xp.negative(x), accepts=is_number, what="a number",
    body="neg", cheap=True,
    derivatives=(lambda t, out, x: neg(t),), transpose=(lambda ct, x: neg(ct),),
)  # fmt: skip


def add(x: Any, y: Any) -> Any:
    """Elementwise sum; integers wrap."""
    return add_p.bind(*match_scalars(x, y))


def sub(x: Any, y: Any) -> Any:
    """Elementwise difference; integers wrap."""
    return sub_p.bind(*match_scalars(x, y))


def neg(x: Any) -> Any:
    """Elementwise negation; unsigned integers wrap."""
    return neg_p.bind(x)


# --- mul, div ------------------------------------------------------------------------------

mul_p = elementwise(
    "mul", arity=2, impl=lambda xp, x, y: xp.multiply(x, y), accepts=is_number, what="a number",
    body="mul", cheap=True,
    derivatives=(lambda t, out, x, y: mul(t, y), lambda t, out, x, y: mul(x, t)),
    transpose=(lambda ct, x, y: mul(ct, y), lambda ct, x, y: mul(x, ct)),
)  # fmt: skip


def _div_impl(xp: Any, x: Any, y: Any) -> Any:
    if not dtypes.is_integer(x.dtype):
        return xp.divide(x, y)
    # Truncating division; x / 0 is all ones and INT_MIN / -1 is INT_MIN, as in XLA.
    safe = xp.where(y == 0, np.ones((), y.dtype), y)
    quotient = xp.floor_divide(x, safe)
    if x.dtype.kind == "i":
        inexact = quotient * safe != x
        quotient = quotient + (inexact & ((x < 0) != (safe < 0))).astype(x.dtype)
    return xp.where(y == 0, np.asarray(-1).astype(x.dtype), quotient)


div_p = elementwise(
    "div", arity=2, impl=_div_impl, accepts=is_number, what="a number", body="div",
    derivatives=(
        lambda t, out, x, y: div(t, y),
        lambda t, out, x, y: mul(neg(t), div(out, y)),
    ),
    transpose=(lambda ct, x, y: div(ct, y), None),
    domain=((-10.0, 10.0), (0.5, 10.0)),
)  # fmt: skip


def mul(x: Any, y: Any) -> Any:
    """Elementwise product; integers wrap."""
    return mul_p.bind(*match_scalars(x, y))


def div(x: Any, y: Any) -> Any:
    """Elementwise quotient; integers divide towards zero, and x / 0 is -1 (all ones)."""
    return div_p.bind(*match_scalars(x, y))
