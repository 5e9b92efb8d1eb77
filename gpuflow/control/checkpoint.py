"""The public function ``checkpoint``, and ``print_saved_residuals``.

Tests: tests/control/test_remat.py, tests/control/test_refs.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from gpuflow.base import tree
from gpuflow.base.arguments import as_argnums, as_items
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.foreign import STATIC, brief, fix_for
from gpuflow.base.util import safe_zip
from gpuflow.control.jit import jit_p
from gpuflow.control.jit_function import argument_names
from gpuflow.control.programs import as_arrays, trace_program
from gpuflow.control.remat import bind_remat, remat_p
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.jaxpr import Atom, Jaxpr, Literal
from gpuflow.core.ref_programs import check_once, put_back
from gpuflow.core.refs import Ref, type_of, values_of
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.effects.checkpoint_name import name_p
from gpuflow.transforms.linearize import linearize_flat

_P = ParamSpec("_P")
_T = TypeVar("_T")


@explained
def checkpoint(
    fun: Callable[_P, _T],
    *,
    prevent_cse: bool | Sequence[bool] = True,
    policy: Callable[..., bool] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    concrete: bool = False,
) -> Callable[_P, _T]:
    """Rematerialize: the derivative of ``fun`` recomputes intermediate values.

    Args:
        fun: a function of arrays or trees.
        prevent_cse: whether the compiler must keep the two computations separate; False suits
            bodies of ``lax.scan``, where they are separate anyway.
        policy: the values that may be stored nevertheless; see ``checkpoint_policies``.
        static_argnums, static_argnames: arguments that are static, not traced.
        concrete: must be False.

    Returns:
        A function of the same arguments with the same results, traced once per signature.

    Raises:
        NotImplementedError: if ``concrete`` is set.
        TypeError: if ``fun`` or ``policy`` is not callable; when the returned function is called,
            if an argument is not an array.
        ValueError: when the returned function is called, if ``static_argnums`` is out of range.

    Source:
        Chen, Xu, Zhang and Guestrin 2016, "Training deep nets with sublinear memory cost".

    Example:
        >>> f = gf.checkpoint(lambda x: jnp.sin(jnp.sin(x)))
        >>> round(float(gf.grad(f)(1.0)), 4)
        0.36
    """
    check(
        not concrete,
        lambda: (
            "[checkpoint] functions are always traced; got concrete=True. Fix: static_argnums "
            "for the arguments that Python must see."
        ),
        NotImplementedError,
    )
    for what, value in (("fun", fun), ("policy", policy)):
        check(
            callable(value) or (value is None and what == "policy"),
            lambda what=what, value=value: (
                f"[checkpoint] {what} must be callable; got {value!r}. Fix: pass a function."
            ),
        )
    argnums = as_argnums("checkpoint", "static_argnums", static_argnums)
    argnums = (argnums,) if isinstance(argnums, int) else argnums
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames or ())
    prevents_merging = prevent_cse
    if not isinstance(prevent_cse, bool):
        prevents_merging = any(as_items("checkpoint", "prevent_cse", prevent_cse))
    return _as_function(_Checkpoint(fun, prevents_merging, _hashable(policy), argnums, names), fun)


def _as_function(call: _Checkpoint, fun: Callable[..., Any]) -> Any:
    """Wrap the call as a plain function, which can also be a method."""

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    is_named = isinstance(getattr(fun, "__name__", None), str)
    with_names = functools.update_wrapper if is_named else _without_names
    return with_names(checkpointed, fun)


def _without_names(wrapper: Callable[..., Any], fun: Callable[..., Any]) -> Callable[..., Any]:
    del fun
    return wrapper


def _hashable(policy: Any) -> Any:
    try:
        hash(policy)
    except TypeError:
        return functools.partial(policy)
    return policy


class _Checkpoint:
    """A checkpointed function; it caches one function object per set of static arguments.

    Traces are cached by function object, so each static argument needs its own.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        prevent_cse: bool,
        policy: Any,
        argnums: tuple[int, ...],
        names: tuple[str, ...],
    ) -> None:
        self.fun, self.argnums, self.names = fun, argnums, names
        self.params = {"policy": policy, "prevent_cse": prevent_cse}
        self._functions: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if config.trace_context().disable_jit:
            return self.fun(*as_arrays(args), **as_arrays(kwargs))
        static = self._static_positions(len(args))
        dynamic = tuple(arg for k, arg in enumerate(args) if k not in static)
        named = {key: value for key, value in kwargs.items() if key not in self.names}
        leaves, in_tree = tree.flatten((dynamic, named))
        self._check_leaves(leaves, dynamic, named, static)
        function = self._function(args, kwargs, static)
        avals = [type_of(leaf) for leaf in leaves]
        program = trace_program("checkpoint", function, in_tree, avals, takes_refs=True)
        if program.refs is not None:
            check_once("checkpoint", program.refs, leaves)
        operands = [*program.closed_values, *values_of(leaves)]
        outs = bind_remat(program.jaxpr, operands, **self.params)
        count = program.out_tree.num_leaves
        if program.refs is not None:
            put_back(program.refs, leaves, outs[count:])
        return tree.unflatten(program.out_tree, outs[:count])

    def _static_positions(self, count: int) -> frozenset[int]:
        for argnum in self.argnums:
            check(
                -count <= argnum < count,
                lambda argnum=argnum: (
                    f"[checkpoint] static_argnums must name arguments by position; got {argnum} "
                    f"for a call with {count}. Fix: pass the argument by position."
                ),
                ValueError,
            )
        return frozenset(argnum % count for argnum in self.argnums)

    def _function(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], static: frozenset[int]
    ) -> Callable[..., Any]:
        """``fun`` as a function of ``(dynamic arguments, dynamic keyword arguments)``."""
        fixed = {k: args[k] for k in static}
        fixed_names = {key: value for key, value in kwargs.items() if key in self.names}
        count = len(args)  # the cached function must not keep ``args`` alive
        key = (
            count,
            tuple((k, type(v), v) for k, v in sorted(fixed.items())),
            tuple((k, type(v), v) for k, v in sorted(fixed_names.items())),
        )

        def function(dynamic: tuple[Any, ...], named: dict[str, Any]) -> Any:
            remaining = iter(dynamic)
            full = [fixed[k] if k in fixed else next(remaining) for k in range(count)]
            return self.fun(*full, **named, **fixed_names)

        try:
            return self._functions.setdefault(key, function)
        except TypeError:  # a static argument cannot be hashed: each call traces again
            return function

    def _check_leaves(
        self,
        leaves: Sequence[Any],
        dynamic: tuple[Any, ...],
        named: dict[str, Any],
        static: frozenset[int],
    ) -> None:
        if all(is_value(leaf) or type(leaf) is Ref for leaf in leaves):
            return
        names = argument_names(self.fun, dynamic, named, tuple(static))
        for name, leaf in safe_zip(names, leaves):
            check(
                is_value(leaf) or type(leaf) is Ref,
                lambda name=name, leaf=leaf: (
                    "[checkpoint] arguments must be arrays, numbers or trees of them; got "
                    f"{brief(leaf)} as {name}. Fix: {fix_for(leaf, STATIC, name)}."
                ),
            )


# --- stored residuals ----------------------------------------------------------------------


def saved_residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """Describe each array that reverse mode of ``fun`` would store at these arguments."""
    leaves, in_tree = tree.flatten((args, kwargs))
    avals = [aval_of(leaf) for leaf in leaves]
    nonzeros = [aval.tangent().dtype == aval.dtype for aval in avals]

    def flat(*values: Any) -> list[Any]:
        call_args, call_kwargs = tree.unflatten(in_tree, values)
        return tree.leaves(fun(*call_args, **call_kwargs))

    def evaluation(*values: Any) -> list[Any]:
        return linearize_flat(flat, values, nonzeros).residuals

    names = argument_names(fun, args, kwargs)
    program, _ = trace_to_jaxpr(evaluation, avals, names)
    residuals = dict.fromkeys(atom for atom in program.outvars)
    return [f"{atom.aval} {_origin(program, atom)}" for atom in residuals]


def _origin(program: Jaxpr, atom: Atom) -> str:
    if type(atom) is Literal:
        return "from a literal"
    if atom in program.invars:
        names = dict(safe_zip(program.invars, program.argument_names or [""] * len(program.invars)))
        return f"from the argument {names[atom]}".rstrip()
    if atom in program.constvars:
        return "from a constant"
    eqn = next(eqn for eqn in program.eqns if atom in eqn.outputs)
    if eqn.primitive in (jit_p, remat_p):
        inner = eqn.params["jaxpr"].jaxpr
        inner_atom = inner.outvars[eqn.outputs.index(atom)]
        if inner_atom in inner.invars:
            return _origin(program, eqn.inputs[inner.invars.index(inner_atom)])
        return _origin(inner, inner_atom)
    location = f" from {eqn.source}" if eqn.source else ""
    if eqn.primitive is name_p:
        return f"named {eqn.params['name']!r}{location}"
    return f"output of {eqn.primitive.name}{location}"


@explained
def print_saved_residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print the residuals that reverse mode of ``fun`` would store, one array per line."""
    for text in saved_residuals(fun, *args, **kwargs):
        print(text)
