"""``jax.interpreters.ad``: rules for derivatives of primitives from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuflow.as_jax.internals.primitives import Primitive
from gpuflow.as_jax.internals.primitives import primitive_jvps as primitive_jvps
from gpuflow.as_jax.internals.primitives import primitive_transposes as primitive_transposes
from gpuflow.base.names import missing_name, public_names
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


__getattr__ = missing_name(__name__, "jax.interpreters.ad", public_names(globals()))
