"""``custom_jvp``: user-defined forward-mode rules.

A ``custom_jvp_call`` equation holds the function and its rule until differentiation has run. Then
the compiler inlines the function. Rules of equations take flat operands; wrappers handle pytrees.

Tests: tests/control/test_custom_jvp.py, tests/control/test_symbolic_zeros.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.util import safe_zip
from gpuflow.control.custom.calls import (
    Flat,
    FlatCall,
    NoDerivative,
    SymbolicZero,
    UsesRefsError,
    as_symbolic,
    batch_with_zeros,
    bind_arguments,
    call_checked,
    call_effects,
    call_execute,
    call_shape,
    check_leaves,
    close_call,
    map_call,
    positions_of,
    with_refs,
    without_refs,
)
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.key_use import follow_programs
from gpuflow.core.lowering import Inline
from gpuflow.core.primitive import make_primitive, register
from gpuflow.core.refs import Ref
from gpuflow.core.rules import AxisData, Uniform, Zero
from gpuflow.core.trace import Tracer, eval_trace, thread_state
from gpuflow.ops.elementwise.convert import stop_gradient
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.zeros import instantiate
from gpuflow.runtime.scalars import array_of_scalar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Rule = TypeVar("_Rule", bound=Callable[..., tuple[Any, Any]])


def _custom_jvp_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jvp: Any, num_consts: int, **params: Any
) -> tuple[list[Any], list[Any]]:
    del params
    for tangent in tangents[:num_consts]:
        if type(tangent) is not Zero:
            raise TypeError(
                "[custom_jvp] the function must not close over values that are differentiated; "
                f"got a tangent for a closed-over {aval_of(tangent)}. Fix: pass it as an argument."
            )
    rule_tangents = list(tangents[num_consts:])
    if not jvp.symbolic_zeros:
        rule_tangents = [instantiate(tangent) for tangent in rule_tangents]
    results = list(jvp(*primals[num_consts:], *rule_tangents))
    count = len(results) // 2
    outs, out_tangents = results[:count], results[count:]
    return outs, [
        Zero(aval_of(out).tangent()) if _is_float0(tangent) else tangent
        for out, tangent in safe_zip(outs, out_tangents)
    ]


def _is_float0(tangent: Any) -> bool:
    return aval_of(tangent).dtype == dtypes.float0


def _custom_jvp_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    call_jaxpr: ClosedJaxpr,
    jvp: Any,
    name: str,
    num_consts: int,
) -> tuple[list[Any], list[int | Uniform | None]]:
    # Every output is mapped, even if it depends on no mapped operand: its tangent may depend on
    # one, which only the rule determines.
    moved, call, rule_dims, out_dims = map_call(axis, operands, dims, call_jaxpr, name, num_consts)
    return custom_jvp_p.bind(*moved, **call, jvp=_MappedRule(jvp, axis, rule_dims)), out_dims


class _MappedRule:
    """A flat jvp rule, batched; the batch axis of all results is 0."""

    def __init__(self, rule: Any, axis: AxisData, dims: Sequence[int | None]) -> None:
        self.rule, self.axis, self.dims = rule, axis, dims
        self.symbolic_zeros = rule.symbolic_zeros
        self.__name__ = rule.__name__

    def __call__(self, *values: Any) -> list[Any]:
        dims = [*self.dims, *self.dims]
        results, dims_out = batch_with_zeros(self.rule, self.axis, values, dims)
        return [
            batch_to_dim(value, dim, 0, self.axis.size)
            for value, dim in safe_zip(results, dims_out)
        ]


custom_jvp_p = register(
    make_primitive(
        "custom_jvp_call",
        shape=call_shape,
        execute=call_execute,
        close=close_call,
        jvp=_custom_jvp_jvp,
        batch=_custom_jvp_batch,
        lower=Inline(lambda _, params: params["call_jaxpr"], by_rule=True),
        multiple_results=True,
        effects=call_effects,
        checked=call_checked(lambda: custom_jvp_p, ("jvp",)),
        subjaxprs=lambda params: [params["call_jaxpr"]],
        keys=follow_programs,
    )
)


def without_rule(name: str, call: Flat, leaves: Sequence[Any]) -> list[Any]:
    """Call a function that uses refs, and bind its outputs to a rule that raises.

    Inside a traced program such a function has no derivative.
    """
    outs = call(*leaves)
    return custom_jvp_p.bind(
        *outs,
        call_jaxpr=lambda *values: list(values),
        jvp=NoDerivative(name),
        name=name,
        num_consts=0,
    )


class custom_jvp(Generic[_P, _T]):
    """Function with a custom forward-mode rule.

    Args:
        fun: the function.
        nondiff_argnums: indices of arguments that are not differentiated.
        nondiff_argnames: names of further arguments of this kind.

    Example:
        >>> @gpuflow.custom_jvp
        ... def f(x): return jnp.sin(x)
        >>> @f.defjvp
        ... def f_jvp(primals, tangents): return f(*primals), jnp.cos(primals[0]) * tangents[0]
    """

    def __init__(
        self,
        fun: Callable[_P, _T],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.name = getattr(fun, "__name__", type(fun).__name__)
        named = positions_of("custom_jvp", fun, nondiff_argnames)
        self.nondiff_argnums = (*nondiff_argnums, *named)
        self.jvp: Callable[..., Any] | None = None
        self.symbolic_zeros = False

    def defjvp(self, jvp: _Rule, symbolic_zeros: bool = False) -> _Rule:
        """Set the rule ``(*nondiff, primals, tangents) -> (out, out_tangent)``.

        Args:
            jvp: the rule, ``(primals, tangents) -> (out, out_tangent)``.
            symbolic_zeros: whether zero tangents arrive as ``custom_derivatives.SymbolicZero``
                instead of arrays.
        """
        self.jvp = jvp
        self.symbolic_zeros = symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Set one rule ``(tangent, out, *primals) -> out_tangent`` per argument; None means zero.

        Raises:
            TypeError: if there are arguments without derivatives, which these rules do not support.
        """
        if self.nondiff_argnums:
            raise TypeError(
                f"[custom_jvp] defjvps needs a function of differentiable arguments only; got "
                f"nondiff_argnums {self.nondiff_argnums} of {self.name}. Fix: defjvp."
            )

        def jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
            out = self(*primals)  # type: ignore[call-arg]
            total = None
            for rule, tangent in safe_zip(jvps, tangents):
                # Skip zero tangents: zero times an infinite derivative would be nan.
                if rule is not None and not _is_zero(tangent):
                    term = rule(tree.tree_map(_without_symbol, tangent), out, *primals)
                    total = term if total is None else tree.tree_map(_plus, total, term)
            if total is None:
                total = tree.tree_map(lambda x: instantiate(Zero(aval_of(x).tangent())), out)
            return out, total

        self.defjvp(jvp, symbolic_zeros=True)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Bind a ``custom_jvp_call`` equation on the leaves of the differentiable arguments."""
        if self.jvp is None:
            raise AttributeError(
                f"[custom_jvp] {self.name} must have a rule before it is called; got none. "
                f"Fix: @{self.name}.defjvp."
            )
        bound = bind_arguments(self.fun, args, kwargs)
        count = len(bound)
        for argnum in self.nondiff_argnums:
            if not -count <= argnum < count:
                raise ValueError(
                    f"[custom_jvp] nondiff_argnums must name arguments of {self.name}; got "
                    f"{argnum} for a call with {count}. Fix: pass the argument by position."
                )
        positions = sorted({argnum % count for argnum in self.nondiff_argnums})
        fixed = {k: tree.tree_map(_without_derivative, bound[k]) for k in positions}
        dynamic = tuple(arg for k, arg in enumerate(bound) if k not in fixed)
        leaves, treedef = tree.flatten(dynamic)
        check_leaves("custom_jvp", self.name, leaves)
        leaves, refs = without_refs(leaves)
        call = FlatCall(self.fun, fixed, count, treedef, refs)
        rule = _FlatJvpRule(self, tuple(fixed.values()), treedef, refs)
        try:
            outs = custom_jvp_p.bind(
                *leaves, call_jaxpr=call, jvp=rule, name=self.name, num_consts=0
            )
        except UsesRefsError:
            outs = without_rule(self.name, call, leaves)
        out_tree = rule.out_tree[-1] if call.out_tree is None else call.out_tree
        return tree.unflatten(out_tree, outs)


def _without_derivative(value: Any) -> Any:
    """Drop the tangent of a leaf of a nondifferentiable argument."""
    return stop_gradient(value) if isinstance(value, Tracer) else value


def _is_zero(tangent: Any) -> bool:
    return all(isinstance(leaf, SymbolicZero) for leaf in tree.leaves(tangent))


def _without_symbol(tangent: Any) -> Any:
    return instantiate(Zero(tangent.aval)) if isinstance(tangent, SymbolicZero) else tangent


def _plus(first: Any, second: Any) -> Any:
    return first + second


class _FlatJvpRule:
    """A user's jvp rule on flat operands: ``(*primals, *tangents) -> (*outs, *tangents)``."""

    def __init__(
        self,
        function: custom_jvp[..., Any],
        fixed: tuple[Any, ...],
        treedef: tree.TreeDef,
        refs: dict[int, Ref],
    ) -> None:
        assert function.jvp is not None
        self.rule, self.fixed, self.treedef = function.jvp, fixed, treedef
        self.refs = refs
        self.name, self.symbolic_zeros = function.name, function.symbolic_zeros
        self.out_tree: list[tree.TreeDef] = []
        self.__name__ = f"{self.name}_jvp"

    def __call__(self, *operands: Any) -> list[Any]:
        count = len(operands) // 2
        primals = tree.unflatten(self.treedef, with_refs(operands[:count], self.refs))
        zeros = {k: SymbolicZero(ref.aval.aval.tangent()) for k, ref in self.refs.items()}
        tangent_leaves = with_refs([as_symbolic(x) for x in operands[count:]], zeros)
        tangents = tree.unflatten(self.treedef, tangent_leaves)
        result = self.rule(*self.fixed, primals, tangents)
        if not (isinstance(result, tuple | list) and len(result) == 2):
            raise TypeError(
                f"[custom_jvp] the rule of {self.name} must return a pair (out, out_tangent); "
                f"got {type(result).__name__}. Fix: return out, tangent."
            )
        outs, out_tree = tree.flatten(result[0])
        out_tangents, tangent_tree = tree.flatten(result[1])
        out_tangents = [
            instantiate(Zero(x.aval)) if isinstance(x, SymbolicZero) else x for x in out_tangents
        ]
        if out_tree != tangent_tree:
            raise TypeError(
                f"[custom_jvp] the rule of {self.name} must return equal trees; got output "
                f"{tree.text(out_tree)} and tangent {tree.text(tangent_tree)}. "
                "Fix: return one tangent per output."
            )
        for out, tangent in safe_zip(outs, out_tangents):
            _check_tangent(self.name, aval_of(out), aval_of(tangent))
        self.out_tree.append(out_tree)
        return [_without_scalars(x) for x in (*outs, *out_tangents)]


def _without_scalars(value: Any) -> Any:
    """Convert a Python or NumPy scalar to an Array of its type, unless a program is traced."""
    is_scalar = isinstance(value, (bool, int, float, complex, np.generic))
    if not is_scalar or thread_state.trace is not eval_trace:
        return value
    return array_of_scalar(value)


def _check_tangent(name: str, out: ShapedArray, tangent: ShapedArray) -> None:
    want = out.tangent()
    if tangent.shape != want.shape or tangent.dtype != want.dtype:
        raise TypeError(
            f"[custom_jvp] the rule of {name} must return tangents of type {want}; got {tangent}. "
            f"Fix: convert the tangent, for example with .astype({want.dtype})."
        )
