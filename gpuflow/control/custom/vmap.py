"""``custom_vmap``: user-defined batching rules.

A ``custom_vmap_call`` equation holds the traced function and a ``FlatRule``. Derivatives of the
equation hold derivatives of the rule, which are in ``vmap_derivative``.

Tests: tests/control/test_custom_vmap.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.control.custom.calls import bind_arguments
from gpuflow.control.custom.vmap_derivative import (
    CotangentRule,
    DerivativeRule,
    FlatRule,
    TangentRule,
    tangent_program,
)
from gpuflow.control.loops.scan_and_map import map as map_elements
from gpuflow.control.program_rules import backward_jaxpr, operand_cotangents
from gpuflow.control.programs import close, execute_alone, trace_program
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, evaluate
from gpuflow.core.key_use import follow_programs
from gpuflow.core.lowering import Inline
from gpuflow.core.primitive import make_primitive, register
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.transforms.jvp import jvp_jaxpr
from gpuflow.transforms.linearize import linearize_jaxpr

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Rule = TypeVar("_Rule", bound=Callable[..., tuple[Any, Any]])


def _shape(*avals: ShapedArray, call: ClosedJaxpr, **params: Any) -> list[ShapedArray]:
    del avals, params
    return call.out_avals


def _batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    call: ClosedJaxpr,
    rule: FlatRule,
    num_consts: int,
    name: str,
) -> tuple[list[Any], list[int | None]]:
    """The batch rule: call the user's rule with the batch axis of mapped operands at 0."""
    del call
    for value, dim in safe_zip(operands[:num_consts], dims[:num_consts]):
        check(
            dim is None,
            lambda value=value: (
                f"[custom_vmap] {name} must not close over mapped values; got a closed-over "
                f"{aval_of(value)} that vmap maps. Fix: pass it as an argument."
            ),
            ValueError,
        )
    batched_operands = [
        x if dim is None else batch_to_dim(x, dim, 0, axis.size)
        for x, dim in safe_zip(operands[num_consts:], dims[num_consts:])
    ]
    flags = tuple(dim is not None for dim in dims[num_consts:])
    outs, out_flags = rule(axis.size, flags, *batched_operands)
    return outs, [0 if flag else None for flag in out_flags]


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    call: ClosedJaxpr,
    rule: FlatRule,
    num_consts: int,
    name: str,
) -> tuple[list[Any], list[Any]]:
    nonzeros = tuple(type(tangent) is not Zero for tangent in tangents)
    derivative, out_nonzeros = jvp_jaxpr(call, nonzeros, False)
    nonzero_tangents = [tangent for tangent in tangents if type(tangent) is not Zero]
    if any(nonzeros[:num_consts]):
        # The rule does not take captured values, so the function is differentiated op by op.
        results = derivative(*primals, *nonzero_tangents)
    else:
        derivative, closed = close(derivative)
        results = custom_vmap_p.bind(
            *closed,
            *primals,
            *nonzero_tangents,
            call=derivative,
            num_consts=len(closed) + num_consts,
            rule=DerivativeRule(rule, nonzeros[num_consts:], out_nonzeros),
            name=f"jvp({name})",
        )
    count = len(call.out_avals)
    out_tangents = iter(results[count:])
    return results[:count], [
        next(out_tangents) if flag else Zero(aval.tangent())
        for aval, flag in safe_zip(call.out_avals, out_nonzeros)
    ]


def _linearize(
    nonzeros: tuple[bool, ...],
    *primals: Any,
    call: ClosedJaxpr,
    rule: FlatRule,
    num_consts: int,
    name: str,
) -> tuple[Any, ...]:
    if any(nonzeros[:num_consts]):
        # The rule does not take captured values, as in ``_jvp``.
        known, linear, out_nonzeros, count = linearize_jaxpr(call, nonzeros)
        results = known(*primals)
        split = len(results) - count

        def linear_map(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
            return evaluate(linear, (), [*residuals, *tangents])

        return results[:split], out_nonzeros, results[split:], linear_map

    outs = custom_vmap_p.bind(*primals, call=call, rule=rule, num_consts=num_consts, name=name)
    map_of_tangents, out_nonzeros = tangent_program(call, nonzeros)
    map_of_tangents, closed = close(map_of_tangents)
    tangent_rule = TangentRule(rule, nonzeros[num_consts:], out_nonzeros)

    def tangent_function(residuals: Sequence[Any], *tangents: Any) -> list[Any]:
        return custom_vmap_p.bind(
            *residuals,
            *tangents,
            call=map_of_tangents,
            num_consts=len(closed) + num_consts,
            rule=tangent_rule,
            name=f"linear({name})",
        )

    return outs, out_nonzeros, [*closed, *primals], tangent_function


def _transpose(
    cotangents: Sequence[Any],
    *operands: Any,
    call: ClosedJaxpr,
    rule: FlatRule,
    num_consts: int,
    name: str,
) -> list[Any]:
    undefined = tuple(is_undefined(operand) for operand in operands)
    nonzeros = tuple(type(cotangent) is not Zero for cotangent in cotangents)
    backward, out_nonzeros = backward_jaxpr(call, undefined, nonzeros)
    backward, closed = close(backward)
    known = [operand for operand in operands if not is_undefined(operand)]
    nonzero_cotangents = [cotangent for cotangent in cotangents if type(cotangent) is not Zero]
    backward_rule = CotangentRule(rule, undefined[num_consts:], nonzeros, out_nonzeros, call)
    cotangents_in = custom_vmap_p.bind(
        *closed,
        *known,
        *nonzero_cotangents,
        call=backward,
        num_consts=len(closed) + num_consts,
        rule=backward_rule,
        name=f"transpose({name})",
    )
    return operand_cotangents(operands, cotangents_in, out_nonzeros)


class _UserRule:
    """A user's rule as a ``FlatRule``, with checks of its results."""

    def __init__(
        self, rule: Callable[..., Any], in_tree: tree.TreeDef, out_tree: tree.TreeDef, name: str
    ) -> None:
        self.rule, self.in_tree, self.out_tree, self.name = rule, in_tree, out_tree, name

    def __call__(
        self, size: int, flags: Sequence[bool], *operands: Any
    ) -> tuple[list[Any], list[bool]]:
        args = tree.unflatten(self.in_tree, operands)
        in_batched = list(tree.unflatten(self.in_tree, flags))
        result = self.rule(size, in_batched, *args)
        check(
            isinstance(result, tuple | list) and len(result) == 2,
            lambda: (
                f"[custom_vmap] the rule of {self.name} must return a pair (out, out_batched); "
                f"got {type(result).__name__}. Fix: return out, True."
            ),
            ValueError,
        )
        outs, out_tree = tree.flatten(result[0])
        out_flags, flags_tree = tree.flatten(result[1])
        check(
            out_tree == flags_tree,
            lambda: (
                f"[custom_vmap] the rule of {self.name} must return one bool for each output; got "
                f"outputs {tree.text(out_tree)} and out_batched {tree.text(flags_tree)}. "
                "Fix: return equal trees."
            ),
            ValueError,
        )
        check(
            out_tree == self.out_tree,
            lambda: (
                f"[custom_vmap] the rule of {self.name} must return the tree of the function's "
                f"output, {tree.text(self.out_tree)}; got {tree.text(out_tree)}. "
                "Fix: return the same containers."
            ),
            ValueError,
        )
        return outs, [bool(flag) for flag in out_flags]


custom_vmap_p = register(
    make_primitive(
        "custom_vmap_call",
        shape=_shape,
        execute=execute_alone(lambda: custom_vmap_p),
        jvp=_jvp,
        linearize=_linearize,
        transpose=_transpose,
        batch=_batch,
        lower=Inline(lambda _, params: params["call"]),
        multiple_results=True,
        effects=lambda params: params["call"].effects,
        subjaxprs=lambda params: [params["call"]],
        keys=follow_programs,
    )
)


class custom_vmap(Generic[_P, _T]):
    """Function with a custom vmap rule.

    Derivatives of the function are derivatives of the rule under an enclosing vmap. So
    ``vmap(grad(f))`` is the gradient of the rule's outputs summed over the axis. Reverse mode
    recomputes the function from its operands.

    Args:
        fun: a function of arrays or trees.

    Example:
        >>> @gpuflow.custom_batching.custom_vmap
        ... def f(x, y): return x + y
        >>> @f.def_vmap
        ... def f_vmap(axis_size, in_batched, xs, ys): return xs * ys, True
    """

    def __init__(self, fun: Callable[_P, _T]) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.name = getattr(fun, "__name__", type(fun).__name__)
        self.vmap_rule: Callable[..., Any] | None = None

    def def_vmap(self, vmap_rule: _Rule) -> _Rule:
        """Set the rule ``(axis_size, in_batched, *args) -> (out, out_batched)``.

        Args:
            vmap_rule: ``(axis_size, in_batched, *args) -> (out, out_batched)``. ``in_batched`` has
                a tree of bools for each argument; the mapped axis of mapped leaves is axis 0.
                ``out_batched`` is a tree of bools like ``out``.
        """
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self.vmap_rule is None:
            raise AttributeError(
                f"[custom_vmap] {self.name} must have a rule before it is called; got none. "
                f"Fix: @{self.name}.def_vmap."
            )
        leaves, in_tree = tree.flatten(bind_arguments(self.fun, args, kwargs))
        avals = [aval_of(leaf) for leaf in leaves]
        program = trace_program("custom_vmap", self.fun, in_tree, avals, self.name)
        rule = _UserRule(self.vmap_rule, in_tree, program.out_tree, self.name)
        outs = custom_vmap_p.bind(
            *program.consts,
            *leaves,
            call=program.jaxpr,
            rule=rule,
            num_consts=len(program.consts),
            name=self.name,
        )
        return tree.unflatten(program.out_tree, outs)


def sequential_vmap(f: Callable[_P, _T]) -> custom_vmap[_P, _T]:
    """Return ``f`` with a vmap rule that calls it for each element in a loop."""
    mapped = custom_vmap(f)

    def rule(axis_size: int, in_batched: list[Any], *args: Any) -> tuple[Any, Any]:
        del axis_size
        leaves, in_tree = tree.flatten(args)
        flags = tree.leaves(in_batched)

        def element(mapped_leaves: list[Any]) -> Any:
            remaining = iter(mapped_leaves)
            full = [next(remaining) if flag else x for x, flag in safe_zip(leaves, flags)]
            return mapped(*tree.unflatten(in_tree, full))  # type: ignore[call-arg]

        out = map_elements(element, [x for x, flag in safe_zip(leaves, flags) if flag])
        return out, tree.tree_map(lambda _: True, out)

    mapped.def_vmap(rule)
    return mapped
