"""Builders with the defaults of families of ops, so that an op is one short definition.

Tests: tests/ops/test_every_op.py, tests/ops/test_missing_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray
from gpuflow.core.primitive import Primitive, make_primitive, register
from gpuflow.core.rules import Zero


def define(name: str, **fields: Any) -> Primitive:
    """Make and register a primitive; fields are those of ``make_primitive``."""
    return register(make_primitive(name, **fields))


def types_text(avals: Sequence[ShapedArray]) -> str:
    """The operand types as written in error messages."""
    return ", ".join(str(aval) for aval in avals)


def check_same_dtype(name: str, avals: Sequence[ShapedArray]) -> None:
    """Raise TypeError unless all operands have one dtype."""
    first = avals[0].dtype
    for aval in avals:
        if aval.dtype != first:
            raise TypeError(
                f"[{name}] operands must have one dtype; got {types_text(avals)}. "
                "Fix: convert one with x.astype(...), or use the gpuflow.numpy function, "
                "which promotes."
            )


def check_kind(
    name: str,
    aval: ShapedArray,
    accepted: Callable[[Any], bool],
    what: str,
    error: type[Exception] = TypeError,
) -> None:
    """Raise ``error`` unless the operand's dtype is of the accepted kind."""
    check(
        accepted(aval.dtype),
        lambda: (
            f"[{name}] the operand must be {what}; got {aval}. Fix: convert with x.astype(...)."
        ),
        error,
    )


def linear_jvp(apply: Callable[..., Any]) -> Callable[..., Any]:
    """The jvp rule of a linear op of one operand: the op applied to the tangent."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = apply(primals[0], **params)
        return out, apply(tangents[0], **params)

    return jvp


def unary_transpose(rule: Callable[..., Any]) -> Callable[..., list[Any]]:
    """The transpose rule of a linear op of one operand: ``rule(cotangent, aval, **params)``."""

    def transpose(cotangent: Any, operand: Any, **params: Any) -> list[Any]:
        if type(cotangent) is Zero:
            return [Zero(operand.aval.tangent())]
        return [rule(cotangent, operand.aval, **params)]

    return transpose


def any_dtype(dtype: Any) -> bool:
    """Accept every dtype."""
    del dtype
    return True


def is_number(dtype: Any) -> bool:
    """Whether ``dtype`` is an integer, float or complex."""
    return dtypes.is_integer(dtype) or dtypes.is_inexact(dtype)


def holds_values(dtype: Any) -> bool:
    """Whether ``dtype`` is not float0, the tangents of integers."""
    return dtype != dtypes.float0


def is_ordered(dtype: Any) -> bool:
    """Whether values of ``dtype`` have an order: bool, integers and real floats."""
    is_real = not dtypes.is_extended(dtype) and not dtypes.is_complex(dtype)
    return is_real and holds_values(dtype)
