"""``jax.interpreters.mlir``: lowerings of external primitives are functions of arrays.

Tests: tests/test_as_jax_primitives.py, tests/test_as_jax_names.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.as_jax.internals.primitives import LoweringRuleContext as LoweringRuleContext
from gpuflow.as_jax.internals.primitives import Primitive, lowerings
from gpuflow.callbacks import pure_callback
from gpuflow.control.stages import struct_of
from gpuflow.core.jaxpr import ClosedJaxpr, Jaxpr

Rule = Callable[..., Any]


def register_lowering(
    prim: Primitive,
    rule: Rule,
    platform: str | None = None,
    inline: bool = True,
    cacheable: bool = True,
) -> Rule:
    """Register the lowering of a primitive.

    Args:
        prim: an external primitive.
        rule: ``(context, *traced values, **params) -> traced values``, as ``lower_fun`` makes them.
        platform: the platform of the rule; by default, all that have no rule of their own.
        inline, cacheable: of MLIR; they have no effect.
    """
    del inline, cacheable
    lowerings.setdefault(prim, {})[platform] = rule
    return rule


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> Rule:
    """The lowering that is ``fun``, a function of arrays."""

    def rule(context: LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
        del context
        outs = fun(*operands, **params)
        return outs if multiple_results else [outs]

    return rule


def core_call_lowering(
    ctx: LoweringRuleContext,
    *args: Any,
    name: str,
    backend: str | None = None,
    call_jaxpr: ClosedJaxpr | Jaxpr,
) -> list[Any]:
    """Return the lowering of a program as its operations, without a call.

    Args:
        ctx: of the lowering. args: traced values.
        name, backend: of the call; without effect.
        call_jaxpr: the program.
    """
    del ctx, name, backend
    closed = ClosedJaxpr(call_jaxpr) if isinstance(call_jaxpr, Jaxpr) else call_jaxpr
    return closed(*args)


def emit_python_callback(
    ctx: LoweringRuleContext,
    callback: Callable[..., Any],
    token: Any,
    operands: Sequence[Any],
    operand_avals: Sequence[Any],
    result_avals: Sequence[Any],
    *,
    has_side_effect: bool = False,
    **_: Any,
) -> tuple[Sequence[Any], Any, None]:
    """A call of Python on the host in a lowering, which has no effects.

    Returns:
        The results, the given token, and an object that keeps the callback alive: the program does.
    """
    del ctx, operand_avals
    if has_side_effect:
        raise NotImplementedError(
            "[emit_python_callback] a lowering must have no effects; got has_side_effect=True. "
            "Fix: gpuflow.io_callback outside of the primitive."
        )
    structs = [struct_of(aval) for aval in result_avals]
    outs = pure_callback(lambda *args: tuple(callback(*args)), tuple(structs), *operands)
    return list(outs), token, None
