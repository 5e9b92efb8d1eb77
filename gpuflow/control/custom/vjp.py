"""``custom_vjp``: user-defined reverse-mode rules, flattened, with checks of their results.

The primitives are in ``vjp_call``.

Tests: tests/control/test_custom_vjp.py, tests/control/test_symbolic_zeros.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar

from gpuflow.base import dtypes, tree
from gpuflow.base.errors import UnexpectedTracerError, check
from gpuflow.base.records import record
from gpuflow.base.tree import tree_map
from gpuflow.base.util import safe_zip
from gpuflow.control.custom.calls import (
    FlatCall,
    SymbolicZero,
    UsesRefsError,
    as_symbolic,
    bind_arguments,
    check_leaves,
    parameter_names,
    positions_of,
    with_refs,
    without_refs,
)
from gpuflow.control.custom.jvp import without_rule
from gpuflow.control.custom.vjp_call import custom_vjp_p
from gpuflow.core.aval import HasAval, ShapedArray, aval_of, is_value
from gpuflow.core.refs import AbstractRef, Ref, type_of
from gpuflow.core.trace import Tracer
from gpuflow.ops.elementwise.convert import convert

_P = ParamSpec("_P")
_T = TypeVar("_T")

# --- the user's rules on flat operands ------------------------------------------------------


@contextmanager
def _explaining_closures(name: str) -> Iterator[None]:
    """Explain the error of a rule that captures a tracer of another transformation."""
    try:
        yield
    except UnexpectedTracerError as error:
        if str(error).startswith("[custom_vjp]"):
            raise
        raise UnexpectedTracerError(
            f"[custom_vjp] {name}, its fwd and its bwd must not close over values that grad or "
            "vmap traces outside of it; got one. Fix: pass it as an argument, or as a residual "
            f"from fwd to bwd. ({error})"
        ) from error


@record
class _Rules:
    """One call of a custom_vjp function.

    Attributes:
        name: name of the function.
        symbolic_zeros: whether the rules take symbolic zeros.
        fwd, bwd: the user's rules.
        call: the flattened function.
        in_avals: types of the leaves of differentiable arguments.
        argument_names: names of these arguments.
    """

    name: str
    symbolic_zeros: bool
    fwd: Callable[..., Any]
    bwd: Callable[..., Any]
    call: FlatCall
    in_avals: list[ShapedArray | AbstractRef]
    argument_names: list[str]


@record(frozen=False)
class CustomVJPPrimal:
    """Argument leaf of fwd with ``symbolic_zeros``: its value, and whether it is differentiated."""

    value: Any
    perturbed: bool


def custom_vjp_primal_tree_values(tree: Any) -> Any:
    """Replace each ``CustomVJPPrimal`` in a pytree by its value."""
    return tree_map(lambda leaf: leaf.value if isinstance(leaf, CustomVJPPrimal) else leaf, tree)


class _Forward:
    """A user's fwd on flat operands: ``(perturbed, *primals) -> (*outs, *residuals)``."""

    def __init__(self, rules: _Rules) -> None:
        self.rules = rules
        self.out_tree: tree.TreeDef  # both trees are known after a call
        self.residual_tree: tree.TreeDef
        self.residual_refs: dict[int, Ref] = {}
        self.out_count = 0
        self.__name__ = getattr(rules.fwd, "__name__", "fwd")

    def __call__(self, perturbed: tuple[bool, ...], *primals: Any) -> list[Any]:
        rules = self.rules
        if rules.symbolic_zeros:
            pairs = safe_zip(primals, perturbed)
            primals = tuple(CustomVJPPrimal(value, flag) for value, flag in pairs)
        with _explaining_closures(rules.name):
            pair = rules.fwd(*rules.call.arguments(primals))
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise TypeError(
                f"[custom_vjp] fwd of {rules.name} must return a pair (out, residuals); got "
                f"{_described(pair)}. Fix: return out, residuals (None if there are none)."
            )
        outs, self.out_tree = tree.flatten(pair[0])
        residuals, self.residual_tree = tree.flatten(pair[1])
        residuals, self.residual_refs = without_refs(residuals)
        self.out_count = len(outs)
        for value in (*outs, *residuals):
            if not is_value(value):
                raise TypeError(
                    f"[custom_vjp] fwd of {rules.name} must return arrays, numbers or trees of "
                    f"them; got {value!r}. Fix: pass other values as nondiff_argnums."
                )
        self._check_outputs(outs)
        return [*outs, *residuals]

    def _check_outputs(self, outs: list[Any]) -> None:
        """Check that outputs of fwd match those of the function, if that has run."""
        call, name = self.rules.call, self.rules.name
        if call.out_tree is None:
            return
        if call.out_tree != self.out_tree:
            raise TypeError(
                f"[custom_vjp] fwd of {name} must return the function's output first, of tree "
                f"{tree.text(call.out_tree)}; got {tree.text(self.out_tree)}. "
                f"Fix: return {name}(...), residuals."
            )
        for want, out in safe_zip(call.out_avals, outs):
            got = aval_of(out)
            if (want.shape, want.dtype) != (got.shape, got.dtype):
                raise TypeError(
                    f"[custom_vjp] fwd of {name} must return the function's output first, of type "
                    f"{want}; got {got}. Fix: return {name}(...), residuals."
                )


class _Backward:
    """A user's bwd on flat operands: ``(*residuals, *cotangents) -> cotangents``, None for zero."""

    def __init__(self, rules: _Rules, forward: _Forward) -> None:
        self.rules, self.forward = rules, forward
        self.symbolic_zeros = rules.symbolic_zeros
        self.__name__ = getattr(rules.bwd, "__name__", "bwd")

    def __call__(self, *operands: Any) -> list[Any]:
        rules, forward = self.rules, self.forward
        count = len(operands) - forward.out_count
        leaves = with_refs(operands[:count], forward.residual_refs)
        residuals = tree.unflatten(forward.residual_tree, leaves)
        cotangent_leaves = [as_symbolic(cotangent) for cotangent in operands[count:]]
        cotangents = tree.unflatten(forward.out_tree, cotangent_leaves)
        with _explaining_closures(rules.name):
            results = rules.bwd(*rules.call.fixed.values(), residuals, cotangents)
        names = rules.argument_names
        if not isinstance(results, tuple | list) or len(results) != len(names):
            raise TypeError(
                f"[custom_vjp] bwd of {rules.name} must return a tuple with a cotangent for each "
                f"argument ({', '.join(names)}); got {_described(results)}. Fix: return "
                f"{len(names)} cotangent{'s' if len(names) != 1 else ''} in a tuple, None for zero."
            )
        return self._flat_cotangents(results)

    def _flat_cotangents(self, results: Sequence[Any]) -> list[Any]:
        rules = self.rules
        avals = iter(rules.in_avals)
        arguments = tree.unflatten(rules.call.treedef, rules.in_avals)
        flat: list[Any] = []
        for name, argument, result in safe_zip(rules.argument_names, arguments, results):
            for leaf_index, item in enumerate(self._broadcast(name, argument, result)):
                aval = next(avals)
                if type(aval) is not AbstractRef:  # refs have no cotangents
                    flat.append(self._typed((name, argument, leaf_index), aval, item))
        return flat

    def _broadcast(self, argument_name: str, argument: Any, result: Any) -> list[Any]:
        """One cotangent for each leaf; a value of a tree prefix is used for its whole subtree."""
        try:
            return tree.broadcast_prefix(result, argument, "custom_vjp")
        except ValueError:
            raise TypeError(
                f"[custom_vjp] bwd of {self.rules.name} must return a cotangent of the tree of its "
                f"argument, {argument_name} of {tree.text(tree.structure(argument))}; got "
                f"{tree.text(tree.structure(result))}. "
                "Fix: return the same containers, None for zero."
            ) from None

    def _typed(self, leaf: tuple[str, Any, int], aval: ShapedArray, cotangent: Any) -> Any:
        """Check a cotangent, and convert it to the tangent dtype; None for zero.

        Args:
            leaf: the name and the tree of its argument, and the index of the leaf, for messages.
            aval: the type of the leaf.
            cotangent: the result of bwd.
        """
        want = aval.tangent()
        if cotangent is None or isinstance(cotangent, SymbolicZero) or want.dtype == dtypes.float0:
            return None
        got = aval_of(cotangent) if is_value(cotangent) else None
        if got is not None and got.shape == want.shape:
            self._check_varying(leaf, want, got)
            if got.dtype == want.dtype:
                is_array = isinstance(cotangent, HasAval)
                return cotangent if is_array else convert(cotangent, want.dtype)
            # Values are converted to the expected dtype, but never from complex to real.
            is_numeric = not dtypes.is_extended(got.dtype)
            if is_numeric and (got.dtype.kind != "c" or want.dtype.kind == "c"):
                return convert(cotangent, want.dtype)
            fix = f"convert it with .real or .astype({want.dtype})"
        else:
            fix = "sum over the axes that were broadcast, or return None for zero"
        name, argument, leaf_index = leaf
        raise (TypeError if got is None else ValueError)(
            f"[custom_vjp] bwd of {self.rules.name} must return a cotangent of type {want} for "
            f"{name}{tree.paths(argument)[leaf_index]}; got "
            f"{repr(cotangent) if got is None else got}. Fix: {fix}."
        )

    def _check_varying(
        self, leaf: tuple[str, Any, int], want: ShapedArray, got: ShapedArray
    ) -> None:
        """Check that in shard_map a cotangent varies along the same axes as its argument.

        Raises:
            ValueError: if it varies along other axes.
        """
        name, argument, leaf_index = leaf
        check(
            got.mat.varying == want.mat.varying,
            lambda: (
                f"[custom_vjp] bwd of {self.rules.name} must return a cotangent that varies along "
                f"the mesh axes of {name}{tree.paths(argument)[leaf_index]}, {want}; got {got}. "
                "Fix: lax.psum where it varies along more, lax.pcast along less."
            ),
            ValueError,
        )


def _described(value: Any) -> str:
    """Describe a rule's result for errors: a type, or a tree."""
    if is_value(value):
        return str(aval_of(value))
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


# --- the public class -----------------------------------------------------------------------


class custom_vjp(Generic[_P, _T]):
    """Function with a custom reverse-mode rule; forward mode raises an error.

    Without differentiation the function itself is called. Under vmap the rule receives single
    elements, and the gradient of an unmapped argument is summed over them, as in a loop.

    Args:
        fun: the function, of arrays or pytrees.
        nondiff_argnums: indices of arguments that are not arrays, such as functions and settings.
        nondiff_argnames: names of further arguments of this kind.

    Example:
        >>> @gpuflow.custom_vjp
        ... def clip_gradient(x, limit): return x
        >>> def fwd(x, limit): return x, limit
        >>> def bwd(limit, g): return jnp.clip(g, -limit, limit), None
        >>> clip_gradient.defvjp(fwd, bwd)
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
        self.nondiff_argnums = (
            *nondiff_argnums,
            *positions_of("custom_vjp", fun, nondiff_argnames),
        )
        self.parameter_names = parameter_names(fun)
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None
        self.symbolic_zeros = False
        self.optimize_remat = False

    def defvjp(
        self,
        fwd: Callable[..., tuple[_T, Any]],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the rules.

        Args:
            fwd: ``(*args) -> (out, residuals)``, with the arguments of the function.
            bwd: ``(*nondiff, residuals, cotangent) -> cotangents``, a tuple with one tree for each
                differentiated argument; None, at any level, means zero.
            symbolic_zeros: whether fwd gets a ``custom_derivatives.CustomVJPPrimal`` for each leaf,
                with ``value`` and ``perturbed``, and bwd a ``SymbolicZero`` for a zero cotangent.
            optimize_remat: in JAX, whether ``fun`` runs instead of ``fwd`` if the residuals are
                unused. gpuflow removes unused ops of the residuals one by one with either value;
                callbacks of ``fwd`` stay.

        Raises:
            NotImplementedError: if ``optimize_remat`` is combined with ``symbolic_zeros``.
        """
        if optimize_remat and symbolic_zeros:
            raise NotImplementedError(
                f"[custom_vjp] the rules of {self.name} may have optimize_remat or symbolic_zeros; "
                "got both. Fix: leave one out."
            )
        self.fwd, self.bwd, self.symbolic_zeros = fwd, bwd, symbolic_zeros
        self.optimize_remat = optimize_remat

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Bind a ``custom_vjp_call`` equation on the leaves of the differentiable arguments."""
        if self.fwd is None or self.bwd is None:
            raise AttributeError(
                f"[custom_vjp] {self.name} must have rules before it is called; got none. "
                f"Fix: {self.name}.defvjp(fwd, bwd)."
            )
        bound = bind_arguments(self.fun, args, kwargs)
        fixed = self._fixed(bound)
        leaves, treedef = tree.flatten(tuple(x for k, x in enumerate(bound) if k not in fixed))
        check_leaves("custom_vjp", self.name, leaves)
        avals = [type_of(leaf) for leaf in leaves]
        leaves, refs = without_refs(leaves)
        call = FlatCall(self.fun, fixed, len(bound), treedef, refs)
        names = [self._argument_name(k) for k in range(len(bound)) if k not in fixed]
        rules = _Rules(self.name, self.symbolic_zeros, self.fwd, self.bwd, call, avals, names)
        forward = _Forward(rules)
        backward = _Backward(rules, forward)
        try:
            with _explaining_closures(self.name):
                outs = custom_vjp_p.bind(
                    *leaves,
                    call_jaxpr=call,
                    fwd=forward,
                    bwd=backward,
                    name=self.name,
                    num_consts=0,
                )
        except UsesRefsError:
            outs = without_rule(self.name, call, leaves)
        return tree.unflatten(forward.out_tree if call.out_tree is None else call.out_tree, outs)

    def _argument_name(self, position: int) -> str:
        is_named = position < len(self.parameter_names)
        return self.parameter_names[position] if is_named else f"argument {position}"

    def _fixed(self, args: tuple[Any, ...]) -> dict[int, Any]:
        """Nondifferentiable arguments, by position."""
        count = len(args)
        for argnum in self.nondiff_argnums:
            if not -count <= argnum < count:
                raise ValueError(
                    f"[custom_vjp] nondiff_argnums must name arguments of {self.name}; got "
                    f"{argnum} for a call with {count}. Fix: pass the argument by position."
                )
        fixed = {k: args[k] for k in sorted({n % count for n in self.nondiff_argnums})}
        for argnum, value in fixed.items():
            if any(isinstance(leaf, Tracer) for leaf in tree.leaves(value)):
                raise UnexpectedTracerError(
                    "[custom_vjp] arguments in nondiff_argnums must not be traced; got a traced "
                    f"value for argument {argnum} of {self.name}. Fix: drop it from "
                    "nondiff_argnums, and return None as its cotangent."
                )
        return fixed
