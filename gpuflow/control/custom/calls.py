"""Common code of custom_jvp and custom_vjp: flat functions, arguments, and call equations.

Such an equation holds the user's function, as a Python callable or a jaxpr, and the rules. Captured
values of the function become leading operands before the equation is recorded or batched.

Tests: tests/control/test_symbolic_zeros.py, tests/control/test_custom_vjp.py,
tests/control/test_refs_of_rules.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpuflow.base import tree
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.util import safe_zip
from gpuflow.control.jit import close_over
from gpuflow.control.programs import as_array
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.primitive import Primitive
from gpuflow.core.ref_programs import record_program
from gpuflow.core.refs import Ref
from gpuflow.core.rules import AxisData, Uniform, Zero
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.elementwise.convert import stop_gradient
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.zeros import zeros_of
from gpuflow.transforms.batching import batch_flat, batch_jaxpr_dims
from gpuflow.transforms.checking import Categories, State, checked_jaxpr

Flat = Callable[..., Sequence[Any]]


class FlatCall:
    """A function of pytrees, flattened: it takes the leaves of the differentiable arguments.

    Attributes:
        function: the user's function.
        fixed: nondifferentiable arguments, by position.
        count: number of arguments.
        treedef: structure of the tuple of differentiable arguments.
        refs: leaves that are refs, by index. They are inserted, not passed as operands.
        out_tree, out_avals: structure and types of the result; set by each call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        fixed: dict[int, Any],
        count: int,
        treedef: tree.TreeDef,
        refs: dict[int, Ref],
    ) -> None:
        self.function, self.fixed, self.count, self.treedef = function, fixed, count, treedef
        self.refs = refs
        self.out_tree: tree.TreeDef | None = None
        self.out_avals: list[ShapedArray] = []

    def __call__(self, *leaves: Any) -> list[Any]:
        outs, out_tree = tree.flatten(self.function(*self.arguments(leaves)))
        self.out_avals = [aval_of(out) for out in outs]
        self.out_tree = out_tree
        return outs

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """All arguments by position, with ``leaves`` instead of the differentiable ones."""
        remaining = iter(tree.unflatten(self.treedef, with_refs(leaves, self.refs)))
        return [self.fixed[k] if k in self.fixed else next(remaining) for k in range(self.count)]


def check_leaves(op: str, name: str, leaves: Sequence[Any]) -> None:
    """Raise TypeError for leaves of differentiable arguments that are neither arrays nor refs."""
    for leaf in leaves:
        # An object with __jax_array__ is converted inside the function.
        is_array = is_value(leaf) or type(leaf) is Ref or hasattr(type(leaf), "__jax_array__")
        if not is_array:
            raise TypeError(
                f"[{op}] arguments of {name} must be arrays, numbers, or in nondiff_argnums; got "
                f"{brief(leaf)}. Fix: {fix_for(leaf, 'nondiff_argnums=(1,)')}."
            )


def without_refs(leaves: Sequence[Any]) -> tuple[list[Any], dict[int, Ref]]:
    """Split leaves into those that are not refs, and a dict from index to ref."""
    refs = {k: leaf for k, leaf in enumerate(leaves) if type(leaf) is Ref}
    return [leaf for k, leaf in enumerate(leaves) if k not in refs], refs


def with_refs(leaves: Sequence[Any], others: dict[int, Any]) -> list[Any]:
    """Insert ``others`` at their indices; the inverse of ``without_refs``."""
    remaining = iter(leaves)
    count = len(leaves) + len(others)
    return [others[k] if k in others else next(remaining) for k in range(count)]


class UsesRefsError(Exception):
    """Raised if a function with a custom derivative uses refs: it cannot become an equation."""


class NoDerivative:
    """A jvp rule that always raises, for functions with custom derivatives that use refs.

    A traced program has these refs as inputs and outputs, which the user's rule does not cover.
    """

    symbolic_zeros = True
    __name__ = "no_derivative"

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *operands: Any) -> Any:
        del operands
        raise NotImplementedError(
            f"[{self.name}] a function with its own derivative that uses refs must be "
            "differentiated inside the program that calls it; got jit or a loop under grad. Fix: "
            "jit(grad(f)) instead of grad(jit(f))."
        )


def bind_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """All arguments by position, including defaults; keyword-only ones keep their default."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        if not kwargs:
            return args
        raise TypeError(
            f"[custom rule] arguments must fit the function; got {kwargs}. "
            f"Fix: use its parameters' names. ({error})"
        ) from None
    bound.apply_defaults()  # otherwise arguments after an omitted one count as keywords
    named = sorted(name for name in bound.kwargs if name in kwargs)
    if named:
        raise TypeError(
            f"[custom rule] keyword-only arguments are not passed to rules; got {named}. "
            "Fix: make them positional."
        )
    return bound.args


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters; none if the signature is unavailable."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def positions_of(op: str, function: Callable[..., Any], names: Sequence[str]) -> list[int]:
    """The positions of arguments that are given by name.

    Raises:
        ValueError: if the function has no such argument.
    """
    known = list(inspect.signature(function).parameters) if names else []
    for name in names:
        if name not in known:
            raise ValueError(
                f"[{op}] nondiff_argnames must be arguments of the function, {known}; got "
                f"{name!r}. Fix: use one of its names."
            )
    return [known.index(name) for name in names]


class SymbolicZero:
    """A symbolic zero tangent or cotangent, for rules with ``symbolic_zeros``."""

    def __init__(self, aval: ShapedArray) -> None:
        self.aval = aval

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size

    @staticmethod
    def from_primal_value(value: Any) -> SymbolicZero:
        """Return the symbolic zero tangent of ``value``."""
        return zero_from_primal(value, symbolic_zeros=True)

    def __repr__(self) -> str:
        return f"SymbolicZero({self.aval})"


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """Return the zero tangents of a pytree.

    Args:
        val: array or pytree.
        symbolic_zeros: whether to return SymbolicZeros instead of arrays of zeros.
    """

    def zero(leaf: Any) -> Any:
        aval = aval_of(leaf).tangent()
        return SymbolicZero(aval) if symbolic_zeros else zeros_of(aval)

    return tree.tree_map(zero, val)


def as_symbolic(value: Any) -> Any:
    """Convert an internal ``Zero`` to the public SymbolicZero; other values are unchanged."""
    return SymbolicZero(value.aval) if type(value) is Zero else value


def batch_with_zeros(
    function: Callable[..., Sequence[Any]],
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
) -> tuple[list[Any], list[int | None]]:
    """``batch_flat`` for operands of which some are ``Zero``."""
    zeros: dict[int, Zero] = {}
    for k, (value, dim) in enumerate(safe_zip(operands, dims)):
        if type(value) is Zero:
            shape = value.aval.shape
            inner = shape if dim is None else (*shape[:dim], *shape[dim + 1 :])
            zeros[k] = Zero(value.aval.update(shape=inner))
    positions = [k for k in range(len(operands)) if k not in zeros]

    def filled(*values: Any) -> Sequence[Any]:
        full: dict[int, Any] = {**zeros, **dict(safe_zip(positions, values))}
        return function(*[full[k] for k in range(len(operands))])

    return batch_flat(filled, axis, [operands[k] for k in positions], [dims[k] for k in positions])


def call_shape(*avals: ShapedArray, call_jaxpr: Any, **params: Any) -> list[ShapedArray]:
    """The shape rule: the types of the function's outputs."""
    del avals, params
    return call_jaxpr.out_avals


def call_execute(operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """The execute rule: without differentiation the function is called."""
    return list(params["call_jaxpr"](*[as_array(x) for x in operands]))


class _Unchecked:
    """A user's rule without its checks, which the separate checked program already has."""

    def __init__(self, rule: Any) -> None:
        self.rule = rule

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def __call__(self, *operands: Any) -> list[Any]:
        positions = [k for k, operand in enumerate(operands) if is_value(operand)]
        present: list[bool] = []

        def run(*values: Any) -> list[Any]:
            full = list(operands)
            for position, value in safe_zip(positions, values):
                full[position] = value
            results = self.rule(*full)
            present[:] = [result is not None for result in results]
            return [result for result in results if result is not None]

        values = [operands[k] for k in positions]
        jaxpr, consts = trace_to_jaxpr(run, [aval_of(value) for value in values])
        program, _ = checked_jaxpr(ClosedJaxpr(jaxpr, tuple(consts)), frozenset())
        outs = iter(program(*values))
        return [next(outs) if flag else None for flag in present]


def call_checked(get: Callable[[], Primitive], rules: Sequence[str]) -> Callable[..., Any]:
    """A ``checked`` rule: the call keeps its derivative, and its function is checked separately.

    The compiler merges both computations of the function.

    Args:
        get: returns the primitive, which does not exist yet when its rules are created.
        rules: names of the params that are users' rules.
    """

    def checked(
        categories: Categories, operands: Sequence[Any], params: dict[str, Any]
    ) -> tuple[list[Any], State | None]:
        call = params["call_jaxpr"]
        program, sites = checked_jaxpr(call, categories)
        count, inner = len(call.out_avals), program.jaxpr
        without = inner.memo(
            ("first outputs", count), lambda: inner.replace(outvars=inner.outvars[:count])
        )
        plain = ClosedJaxpr(without, program.consts)
        silent = {name: _Unchecked(params[name]) for name in rules}
        outs = get().bind(*operands, **{**params, **silent, "call_jaxpr": plain})
        if not sites:
            return outs, None
        return outs, State(tuple(program(*map(stop_gradient, operands))[count:]), sites)

    return checked


def call_effects(params: dict[str, Any]) -> frozenset[Any]:
    """The effects of the function."""
    call = params["call_jaxpr"]
    return call.effects if isinstance(call, ClosedJaxpr) else frozenset()


def close_call(
    operands: Sequence[Any], params: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The ``close`` rule: trace the function; captured values become leading operands.

    Raises:
        UsesRefsError: if the function uses refs.
    """
    call = params["call_jaxpr"]
    if isinstance(call, ClosedJaxpr):
        return operands, params
    avals = [aval_of(operand) for operand in operands]
    jaxpr, consts, refs = record_program(call, avals, function_name=params["name"])
    if refs is not None:
        raise UsesRefsError
    hidden, closed = close_over(jaxpr, consts, params["name"])
    count = params["num_consts"] + len(hidden)
    return [*hidden, *operands], {**params, "call_jaxpr": closed["jaxpr"], "num_consts": count}


class MappedCall(NamedTuple):
    """A batched call equation.

    Attributes:
        operands: operands of the new equation; mapped ones have batch axis 0.
        params: its params without the rules.
        rule_dims: the batch axes of the operands of rules: of all but the consts.
        out_dims: the batch axes of the outputs.
    """

    operands: list[Any]
    params: dict[str, Any]
    rule_dims: list[int | None]
    out_dims: list[int | Uniform | None]


def map_call(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    call_jaxpr: ClosedJaxpr,
    name: str,
    num_consts: int,
) -> MappedCall:
    """Batch the function of a call equation; the caller batches the rules.

    Every output is mapped, even if it depends on no mapped operand.

    Args:
        axis: the batch axis.
        operands: operands of the equation; the first ``num_consts`` are consts of the function.
        dims: the batch axis of each operand; None: it is not mapped.
        call_jaxpr: the function.
        name: name of the function, for messages.
        num_consts: count of consts.
    """
    batched = tuple(dim is not None for dim in dims)
    all_mapped = (True,) * len(call_jaxpr.out_avals)
    mapped, out_dims = batch_jaxpr_dims(call_jaxpr, axis, batched, all_mapped)
    hidden, closed = close_over(mapped.jaxpr, mapped.consts, name)
    batched_operands = [
        x if dim is None else batch_to_dim(x, dim, 0, axis.size)
        for x, dim in safe_zip(operands, dims)
    ]
    count = num_consts + len(hidden)
    call = {"call_jaxpr": closed["jaxpr"], "name": name, "num_consts": count}
    rule_dims = [0 if flag else None for flag in batched[num_consts:]]
    return MappedCall([*hidden, *batched_operands], call, rule_dims, list(out_dims))
