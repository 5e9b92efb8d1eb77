"""``jax.interpreters.ad``: rules for derivatives of external primitives.

Tests: tests/test_as_jax_primitives.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.as_jax.internals.linear_util import WrappedFun
from gpuflow.as_jax.internals.primitives import Primitive
from gpuflow.as_jax.internals.primitives import primitive_jvps as primitive_jvps
from gpuflow.as_jax.internals.primitives import primitive_transposes as primitive_transposes
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import aval_of
from gpuflow.core.rules import UndefinedPrimal as UndefinedPrimal
from gpuflow.core.rules import Zero as Zero
from gpuflow.core.rules import is_undefined
from gpuflow.core.rules import is_undefined as is_undefined_primal  # noqa: F401
from gpuflow.ops.elementwise.nary import add_any_p as add_jaxvals_p  # noqa: F401
from gpuflow.ops.zeros import add_tangents as add_tangents
from gpuflow.ops.zeros import instantiate as instantiate_zeros
from gpuflow.ops.zeros import zeros_of as zeros_like_aval  # noqa: F401
from gpuflow.transforms.jvp import JVPTrace as JVPTrace
from gpuflow.transforms.jvp import JVPTracer as JVPTracer
from gpuflow.transforms.jvp import jvp_flat
from gpuflow.transforms.linearize import linearize_flat
from gpuflow.transforms.transpose import backward_pass as backward_pass
from gpuflow.tree_util import register_pytree_node

# As in JAX: functions that are mapped may return it.
register_pytree_node(Zero, lambda zero: ((), zero.aval), lambda aval, _: Zero(aval))

add_jaxvals = add_tangents
Rule = Callable[..., Any]


def get_primitive_transpose(primitive: Any) -> Rule:
    """The transpose rule of a primitive.

    Raises:
        NotImplementedError: it has none.
    """
    try:
        return primitive_transposes[primitive]
    except KeyError:
        raise NotImplementedError(
            f"[{primitive}] transposition needs a rule; got a primitive without one. Fix: "
            "ad.primitive_transposes[primitive] = rule."
        ) from None


def defjvp(primitive: Primitive, *rules: Rule | None) -> None:
    """For each operand ``(tangent, *operands, **params) -> tangent``, or None."""
    with_out = [rule and _without_out(rule) for rule in rules]
    defjvp2(primitive, *with_out)


def _without_out(rule: Rule) -> Rule:
    return lambda tangent, out, *operands, **params: rule(tangent, *operands, **params)


def defjvp2(primitive: Primitive, *rules: Rule | None) -> None:
    """For each operand ``(tangent, out, *operands, **params) -> tangent``, or None."""

    def jvp(primals: Any, tangents: Any, /, **params: Any) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        total: Any = Zero(aval_of(out).tangent())
        for rule, tangent in safe_zip(rules, tangents):
            if rule is not None and type(tangent) is not Zero:
                total = add_tangents(total, rule(tangent, out, *primals, **params))
        return out, total

    primitive_jvps[primitive] = jvp


def deflinear(primitive: Primitive, transpose_rule: Rule) -> None:
    """A linear primitive: ``(cotangent, **params) -> cotangents``."""
    deflinear2(primitive, lambda cotangent, *_, **params: transpose_rule(cotangent, **params))


def deflinear2(primitive: Primitive, transpose_rule: Rule) -> None:
    """A linear primitive: ``(cotangent, *operands, **params) -> cotangents``."""

    def jvp(primals: Any, tangents: Any, /, **params: Any) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        if all(type(tangent) is Zero for tangent in tangents):
            if primitive.multiple_results:
                return out, [Zero(aval_of(value).tangent()) for value in out]
            return out, Zero(aval_of(out).tangent())
        return out, primitive.bind(*map(instantiate_zeros, tangents), **params)

    def transpose(cotangent: Any, /, *operands: Any, **params: Any) -> Any:
        if type(cotangent) is Zero:
            return Zero
        return transpose_rule(cotangent, *operands, **params)

    primitive_jvps[primitive] = jvp
    primitive_transposes[primitive] = transpose


def defbilinear(primitive: Primitive, left: Rule, right: Rule) -> None:
    """A primitive that is linear in each of two operands.

    Args:
        primitive: it.
        left: ``(cotangent, left operand, right operand, **params) -> cotangent`` of the left one,
            which is given as an ``UndefinedPrimal``.
        right: the same for the right operand.
    """
    defjvp(
        primitive,
        lambda tangent, x, y, **params: primitive.bind(tangent, y, **params),
        lambda tangent, x, y, **params: primitive.bind(x, tangent, **params),
    )

    def transpose(cotangent: Any, x: Any, y: Any, /, **params: Any) -> Any:
        if type(cotangent) is Zero:
            return Zero
        if is_undefined(x):
            return left(cotangent, x, y, **params), None
        return None, right(cotangent, x, y, **params)

    primitive_transposes[primitive] = transpose


def jvp(
    fun: Callable[..., Any] | WrappedFun,
    primals: Sequence[Any] | None = None,
    tangents: Sequence[Any] | None = None,
    has_aux: bool = False,
    instantiate: bool | Sequence[bool] = True,
    transform_stack: bool = True,
) -> Any:
    """The derivative of a function of flat arguments along tangents.

    Args:
        fun: returns a sequence, with ``has_aux`` a pair of one and other values.
        primals, tangents: of its arguments; tangents may be ``Zero``. Without them the derivative
            is returned as a WrappedFun of both, as in versions of JAX before 0.9.
        has_aux: whether there are other values, which are returned unchanged.
        instantiate: the results that have arrays instead of ``Zero``.
        transform_stack: without effect.

    Returns:
        The results and their tangents, and the other values.
    """
    if primals is None or tangents is None:
        later = functools.partial(
            jvp, fun, has_aux=has_aux, instantiate=instantiate, transform_stack=transform_stack
        )
        return WrappedFun(later, getattr(fun, "debug_info", None))
    aux: list[Any] = []

    def call(*operands: Any) -> Sequence[Any]:
        out = fun.call_wrapped(*operands) if isinstance(fun, WrappedFun) else fun(*operands)
        if has_aux:
            out, more = out
            aux.append(more)
        return out

    outs, out_tangents = jvp_flat(call, list(primals), list(tangents))
    flags = [instantiate] * len(outs) if isinstance(instantiate, bool) else instantiate
    out_tangents = [
        instantiate_zeros(tangent) if flag else tangent
        for tangent, flag in safe_zip(out_tangents, flags)
    ]
    return outs, out_tangents, *aux


def linearize(
    traceable: Callable[..., Any] | WrappedFun,
    primals: Sequence[Any],
    has_aux: bool = False,
    is_vjp: bool = False,
) -> Any:
    """The value of a function of flat arguments, and the linear map of its derivative.

    Args:
        traceable: returns a sequence, with ``has_aux`` a pair of one and other values.
        primals: arguments of ``fun``, the point of linearization.
        has_aux: whether there are other values, which are returned unchanged.
        is_vjp: without effect.

    Returns:
        The results; which of them have no derivative; a jaxpr from the tangents of the arguments to
        those of the other results; the values of its constants; the other values.
    """
    del is_vjp
    aux: list[Any] = []

    def call(*operands: Any) -> Sequence[Any]:
        function = traceable.call_wrapped if isinstance(traceable, WrappedFun) else traceable
        out = function(*operands)
        if has_aux:
            out, more = out
            aux.append(more)
        return out

    outs, jaxpr, consts, nonzeros = linearize_flat(call, list(primals), None, False)
    return outs, [not flag for flag in nonzeros], jaxpr, consts, *aux
