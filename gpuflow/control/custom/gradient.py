"""``custom_gradient``: a function that returns its result and its reverse-mode rule.

Tests: tests/control/test_linear_transpose.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.control.custom.vjp import custom_vjp
from gpuflow.control.programs import Program, trace_program
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import ClosedJaxpr

_P = ParamSpec("_P")
_T = TypeVar("_T")


@record
class _Residuals:
    """A traced reverse-mode rule as a pytree: captured values are leaves, the program is static."""

    consts: tuple[Any, ...]
    jaxpr: ClosedJaxpr
    out_tree: tree.TreeDef


tree.register_node(
    _Residuals,
    lambda node: (node.consts, (node.jaxpr, node.out_tree)),
    lambda aux, children: _Residuals(tuple(children), *aux),
)


def custom_gradient(fun: Callable[_P, tuple[_T, Any]]) -> Callable[_P, _T]:
    """Define a function and its gradient rule, both returned by ``fun``.

    Args:
        fun: ``(*args) -> (out, rule)`` with ``rule(cotangent of out) -> cotangents``: a tuple with
            one cotangent for each argument, or a single one. The rule may close over ``args``.

    Returns:
        A function of the same arguments, like one of ``custom_vjp``.

    Raises:
        TypeError: when the returned function is called, if ``fun`` does not return a pair.

    Example:
        >>> f = gf.custom_gradient(lambda x: (x**2, lambda g: g * jnp.clip(2 * x, -1, 1)))
        >>> gf.grad(f)(3.0)
        Array(1., dtype=float32, weak_type=True)
    """
    name, call = getattr(fun, "__name__", type(fun).__name__), cast(Callable[..., Any], fun)

    def split(args: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]]:
        pair: Any = call(*args)
        check(
            isinstance(pair, tuple | list) and len(pair) == 2 and callable(pair[1]),
            lambda: (
                f"[custom_gradient] {name} must return a pair (out, rule); got "
                f"{type(pair).__name__}. Fix: return out, lambda g: ..."
            ),
        )
        return pair[0], pair[1]

    def function(*args: Any) -> Any:
        return split(args)[0]

    def forward(*args: Any) -> tuple[Any, _Residuals]:
        out, rule = split(args)
        leaves, one = tree.flatten((out,))
        avals = [aval_of(leaf).tangent() for leaf in leaves]
        program: Program = trace_program("custom_gradient", rule, one, avals, "rule")
        return out, _Residuals(program.consts, program.jaxpr, program.out_tree)

    def backward(residuals: _Residuals, cotangent: Any) -> tuple[Any, ...]:
        outs = residuals.jaxpr(*residuals.consts, *tree.leaves(cotangent))
        result = tree.unflatten(residuals.out_tree, outs)
        is_one = not tree.children(residuals.out_tree) and len(outs) == 1
        return (result,) if is_one else tuple(result)

    function.__name__ = name
    function.__doc__ = fun.__doc__
    wrapped = custom_vjp(function)
    wrapped.defvjp(forward, backward)
    return wrapped
