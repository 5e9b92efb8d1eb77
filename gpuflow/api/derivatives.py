"""Differentiation over pytrees: argument handling for jvp, vjp, grad and the Jacobians.

Tests: tests/test_api_errors.py, tests/control/test_custom_vjp.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, ParamSpec, TypeVar, overload

from gpuflow.base import dtypes, tree
from gpuflow.base.arguments import as_argnums
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.util import safe_zip
from gpuflow.control.jit_options import check_callable
from gpuflow.control.linear_transpose import refuse_reduce_axes
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.jaxpr import Jaxpr, evaluate
from gpuflow.core.refs import Ref
from gpuflow.core.rules import UndefinedPrimal, Zero
from gpuflow.core.trace import Tracer, raise_leaked_tracer, thread_state
from gpuflow.ops.collectives.varying import entered, vary_along
from gpuflow.ops.elementwise.convert import convert, convert_element_type
from gpuflow.ops.zeros import instantiate, ones_of
from gpuflow.transforms.jvp import TangentTrace, jvp_flat
from gpuflow.transforms.linearize import linearize_flat
from gpuflow.transforms.transpose import backward_pass
from gpuflow.tree_util import Partial

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Aux = TypeVar("_Aux")


class FlatFunction:
    """A function of trees as a function of leaves; ``out_tree`` is known after a call."""

    def __init__(self, function: Callable[..., Any], in_tree: tree.TreeDef, has_aux: bool) -> None:
        self.function, self.in_tree, self.has_aux = function, in_tree, has_aux
        self.out_tree: tree.TreeDef
        self.aux: Any = None

    def __call__(self, *leaves: Any) -> list[Any]:
        out = self.function(*tree.unflatten(self.in_tree, leaves))
        if self.has_aux:
            if not (isinstance(out, tuple | list) and len(out) == 2):
                raise TypeError(
                    "[has_aux] the function must return a pair (out, aux); "
                    f"got {type(out).__name__}. Fix: return out, aux."
                )
            out, aux = out
            self.aux = tree.tree_map(_without_tangent, aux)
        outs, self.out_tree = tree.flatten(out)
        for value in outs:
            if isinstance(value, Tracer) and value._trace.finished:
                raise_leaked_tracer(value, "differentiation")
            if not is_value(value):
                raise TypeError(
                    "[differentiation] outputs must be arrays, numbers or trees of them; got "
                    f"{value!r}. Fix: return other values through has_aux=True."
                )
        return outs


def _without_tangent(value: Any) -> Any:
    """``value`` without its tangent, as auxiliary data of a derivative is returned."""
    if not isinstance(value, Tracer):
        return value
    trace = thread_state.trace
    assert isinstance(trace, TangentTrace)  # of the derivative that calls the function
    return trace.split(value)[0]


def _check_tangents(
    avals: Sequence[ShapedArray],
    tangents: Sequence[Any],
    op: str,
    treedef: tree.TreeDef,
    dtype_error: type[Exception] = ValueError,
) -> None:
    """Refuse tangents that do not match; ``treedef`` is the tree of both, to name their leaves."""
    kind = "cotangents" if op == "vjp" else "tangents"
    for index, (aval, tangent) in enumerate(safe_zip(avals, tangents)):
        _check_value(tangent, index, treedef, op, kind)
        want, got = aval.tangent(), aval_of(tangent)
        # Python floats are weak and take any float dtype.
        yields = got.weak_type and got.dtype.kind == "f" and dtypes.is_floating(want.dtype)
        # Integer outputs have no cotangents: integers given for them are ignored.
        yields |= op == "vjp" and want.dtype == dtypes.float0 and got.dtype == aval.dtype
        if got.shape != want.shape or (got.dtype != want.dtype and not yields):
            raise (ValueError if got.shape != want.shape else dtype_error)(
                f"[{op}] {kind} must have the tangent type of their values, {want} for "
                f"{aval}; got {got}{_at(index, treedef)}. Fix: make the "
                f"{kind[:-1]} with dtype "
                f"{_dtype_text(want.dtype)} and shape {want.shape}."
            )


def _at(index: int, treedef: tree.TreeDef) -> str:
    """The path of leaf ``index`` for a message, unless it is the whole tree."""
    path = tree.paths(tree.unflatten(treedef, range(treedef.num_leaves)))[index]
    return f" at {path}" if path else ""


def _check_value(value: Any, index: int, treedef: tree.TreeDef, op: str, role: str) -> None:
    if not is_value(value):
        if type(value) is Ref:
            raise TypeError(
                f"[{op}] {role} must be arrays, numbers or trees of them; got {value.aval}, a "
                f"ref{_at(index, treedef)}. Fix: differentiate with respect to its value, "
                "ref[...]."
            )
        raise TypeError(
            f"[{op}] {role} must be arrays, numbers or trees of them; got {brief(value)}"
            f"{_at(index, treedef)}. Fix: {fix_for(value, 'close over it')}."
        )


def _flatten_primals(fun: Any, primals: Any, op: str) -> tuple[list[Any], tree.TreeDef]:
    check_callable(fun, op)
    leaves, in_tree = tree.flatten(tuple(primals))
    for index, leaf in enumerate(leaves):
        _check_value(leaf, index, in_tree, op, "arguments")
    return leaves, in_tree


def _dtype_text(dtype: Any) -> str:
    return "float0 (np.zeros(shape, gpuflow.float0))" if dtype == dtypes.float0 else str(dtype)


def _typed(value: Any, aval: ShapedArray) -> Any:
    """A tangent in the dtype of ``aval``; float0 tangents are symbolic zeros."""
    if aval.dtype == dtypes.float0:
        return Zero(aval)
    if aval_of(value).dtype != aval.dtype:
        return convert(value, aval.dtype)
    return value


@overload
def jvp(
    fun: Callable[..., _T],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    has_aux: Literal[False] = False,
) -> tuple[_T, _T]: ...
@overload
def jvp(
    fun: Callable[..., tuple[_T, _Aux]],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    has_aux: Literal[True],
) -> tuple[_T, _T, _Aux]: ...
@explained
def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """Compute ``fun`` and its directional derivative (forward mode).

    Args:
        fun: a function of arrays or trees.
        primals: tuple or list of arguments, the point of linearization.
        tangents: the direction: the same trees, shapes and tangent dtypes (float0 for integers).
        has_aux: whether ``fun`` returns ``(out, aux)``; aux is not differentiated.

    Returns:
        ``(out, out_tangent)``, followed by aux with ``has_aux``.

    Raises:
        TypeError: if trees or dtypes differ.
        ValueError: if shapes differ.

    Example:
        >>> gf.jvp(lambda x: x**2, (3.0,), (1.0,))
        (Array(9., dtype=float32, weak_type=True), Array(6., dtype=float32, weak_type=True))
    """
    if not isinstance(primals, tuple | list) or type(primals) is not type(tangents):
        raise TypeError(
            "[jvp] primals and tangents must be two tuples or two lists of arguments; got "
            f"{type(primals).__name__} and {type(tangents).__name__}. Fix: jvp(f, (x,), (t,))."
        )
    leaves, in_tree = _flatten_primals(fun, primals, "jvp")
    tangent_leaves, tangent_tree = tree.flatten(tuple(tangents))
    if in_tree != tangent_tree:
        raise TypeError(
            f"[jvp] primals and tangents must be equal trees; got {tree.text(in_tree)} and "
            f"{tree.text(tangent_tree)}. Fix: give one tangent for each primal."
        )
    avals = [aval_of(leaf) for leaf in leaves]
    _check_tangents(avals, tangent_leaves, "jvp", in_tree, TypeError)
    typed = [_typed(t, aval.tangent()) for aval, t in safe_zip(avals, tangent_leaves)]
    flat = FlatFunction(fun, in_tree, has_aux)
    outs, out_tangents = jvp_flat(flat, leaves, typed)
    result = (
        tree.unflatten(flat.out_tree, outs),
        tree.unflatten(flat.out_tree, [_as_array(tangent) for tangent in out_tangents]),
    )
    return (*result, flat.aux) if has_aux else result


def _as_array(tangent: Any) -> Any:
    """A tangent as an array, also if it is a Python scalar."""
    value = instantiate(tangent)
    return convert_element_type(value, aval_of(value).dtype, aval_of(value).weak_type)


def _is_inexact(value: Any) -> bool:
    return aval_of(value).tangent().dtype != dtypes.float0


@overload
def linearize(
    fun: Callable[..., _T], *primals: Any, has_aux: Literal[False] = False
) -> tuple[_T, Callable[..., _T]]: ...
@overload
def linearize(
    fun: Callable[..., tuple[_T, _Aux]], *primals: Any, has_aux: Literal[True]
) -> tuple[_T, Callable[..., _T], _Aux]: ...
@explained
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Compute ``fun`` and its derivative at ``primals`` as a linear function.

    Args:
        fun: a function of arrays or trees.
        primals: arguments of ``fun``, the point of linearization.
        has_aux: whether ``fun`` returns ``(out, aux)``; aux is not differentiated.

    Returns:
        ``(out, f_jvp)`` with ``f_jvp(*tangents) -> out_tangent``, followed by aux with ``has_aux``.
        ``f_jvp`` is a pytree of the residuals.

    Raises:
        TypeError, ValueError: from ``f_jvp``, if tangents do not match the primals.

    Example:
        >>> y, f_jvp = gf.linearize(lambda x: x**2, 3.0)
        >>> f_jvp(1.0)
        Array(6., dtype=float32, weak_type=True)
    """
    leaves, in_tree = _flatten_primals(fun, primals, "linearize")
    flat = FlatFunction(fun, in_tree, has_aux)
    nonzeros = [_is_inexact(leaf) for leaf in leaves]
    avals = [aval_of(leaf) for leaf in leaves]
    outs, jaxpr, residuals, _ = linearize_flat(flat, leaves, nonzeros)

    def f_jvp(residuals: Sequence[Any], *tangents: Any) -> Any:
        tangent_leaves, tangent_tree = tree.flatten(tangents)
        if tangent_tree != in_tree:
            raise TypeError(
                f"[linearize] tangents must form the tree of the primals, {tree.text(in_tree)}; "
                f"got {tree.text(tangent_tree)}. Fix: give one tangent for each primal."
            )
        _check_tangents(avals, tangent_leaves, "linearize", in_tree)
        nonzero_tangents = [
            _typed(t, aval.tangent())
            for aval, t, nonzero in safe_zip(avals, tangent_leaves, nonzeros)
            if nonzero
        ]
        return tree.unflatten(flat.out_tree, evaluate(jaxpr, residuals, nonzero_tangents))

    result = (tree.unflatten(flat.out_tree, outs), Partial(f_jvp, residuals))
    return (*result, flat.aux) if has_aux else result


class _Pullback:
    """The reverse pass of one linearization: from output to input cotangents."""

    def __init__(
        self,
        jaxpr: Jaxpr,
        residuals: list[Any],
        avals: tuple[ShapedArray, ...],
        nonzeros: tuple[bool, ...],
    ) -> None:
        self.jaxpr, self.residuals, self.avals, self.nonzeros = jaxpr, residuals, avals, nonzeros

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        unknown = [UndefinedPrimal(var.aval) for var in self.jaxpr.invars]
        in_cts = iter(backward_pass(self.jaxpr, self.residuals, unknown, cotangents))
        return [
            _as_weak_as(aval, instantiate(next(in_cts) if nonzero else Zero(aval.tangent())))
            for aval, nonzero in safe_zip(self.avals, self.nonzeros)
        ]


def _as_weak_as(primal: ShapedArray, cotangent: Any) -> Any:
    """A cotangent as weakly typed as its primal."""
    aval = aval_of(cotangent)
    if aval.dtype == dtypes.float0 or aval.weak_type == primal.weak_type:
        return cotangent
    return convert_element_type(cotangent, aval.dtype, primal.weak_type)


def _pullback(flat: FlatFunction, leaves: list[Any]) -> tuple[list[Any], _Pullback]:
    nonzeros = [_is_inexact(leaf) for leaf in leaves]

    def from_entered(*values: Any) -> list[Any]:
        return flat(*entered(values))

    outs, jaxpr, residuals, _ = linearize_flat(from_entered, leaves, nonzeros)
    avals = tuple(aval_of(leaf) for leaf in leaves)
    return outs, _Pullback(jaxpr, residuals, avals, tuple(nonzeros))


@overload
def vjp(
    fun: Callable[..., _T],
    *primals: Any,
    has_aux: Literal[False] = False,
    reduce_axes: Sequence[Any] = (),
) -> tuple[_T, VJP]: ...
@overload
def vjp(
    fun: Callable[..., tuple[_T, _Aux]],
    *primals: Any,
    has_aux: Literal[True],
    reduce_axes: Sequence[Any] = (),
) -> tuple[_T, VJP, _Aux]: ...
@explained
def vjp(
    fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Sequence[Any] = ()
) -> Any:
    """Compute ``fun`` and its vector-Jacobian product at ``primals`` (reverse mode).

    Args:
        fun: a function of arrays or trees.
        primals: arguments of ``fun``, the point of linearization.
        has_aux: whether ``fun`` returns ``(out, aux)``; aux is not differentiated.
        reduce_axes: must be empty.

    Returns:
        ``(out, f_vjp)`` with ``f_vjp(cotangent) -> tuple of cotangents``, one for each primal
        (float0 zeros for integers), followed by aux with ``has_aux``. ``f_vjp`` is a pytree of the
        residuals, so it can be passed to jitted functions.

    Raises:
        TypeError, ValueError: from ``f_vjp``, if cotangents do not match the output.

    Example:
        >>> y, f_vjp = gf.vjp(lambda x, w: x * w, 3.0, 4.0)
        >>> f_vjp(1.0)
        (Array(4., dtype=float32, weak_type=True), Array(3., dtype=float32, weak_type=True))
    """
    refuse_reduce_axes("vjp", reduce_axes)
    leaves, in_tree = _flatten_primals(fun, primals, "vjp")
    flat = FlatFunction(fun, in_tree, has_aux)
    outs, pullback = _pullback(flat, leaves)
    out_avals = tuple(aval_of(out) for out in outs)
    f_vjp = VJP(pullback, out_avals, in_tree, flat.out_tree)
    result = (tree.unflatten(flat.out_tree, outs), f_vjp)
    return (*result, flat.aux) if has_aux else result


class VJP:
    """The transposed derivative that ``vjp`` returns: a function, and a pytree of residuals."""

    def __init__(
        self,
        pullback: _Pullback,
        out_avals: tuple[ShapedArray, ...],
        in_tree: tree.TreeDef,
        out_tree: tree.TreeDef,
    ) -> None:
        self.pullback, self.out_avals = pullback, out_avals
        self.in_tree, self.out_tree = in_tree, out_tree

    def __call__(self, cotangent: Any) -> tuple[Any, ...]:
        out_cts, cotangent_tree = tree.flatten(cotangent)
        if cotangent_tree != self.out_tree:
            raise ValueError(
                f"[vjp] the cotangent must form the tree of the output, "
                f"{tree.text(self.out_tree)}; got {tree.text(cotangent_tree)}. "
                "Fix: give one cotangent for each output."
            )
        _check_tangents(self.out_avals, out_cts, "vjp", self.out_tree)
        typed = [_typed(ct, aval.tangent()) for ct, aval in safe_zip(out_cts, self.out_avals)]
        return tree.unflatten(self.in_tree, self.pullback(typed))

    def flattened(self) -> tuple[Any, Any]:
        """Residuals, and the static fields."""
        pullback = self.pullback
        of_pullback = (pullback.jaxpr, pullback.avals, pullback.nonzeros)
        return pullback.residuals, (*of_pullback, self.out_avals, self.in_tree, self.out_tree)

    @staticmethod
    def restored(fixed: Any, residuals: Any) -> VJP:
        """The VJP of the two results of ``flattened``."""
        jaxpr, avals, nonzeros, *others = fixed
        return VJP(_Pullback(jaxpr, list(residuals), avals, nonzeros), *others)


tree.register_node(VJP, VJP.flattened, VJP.restored)


# --- grad ----------------------------------------------------------------------------------


def _argnums(
    argnums: int | tuple[int, ...], count: int, op: str, missing_error: type[Exception] = TypeError
) -> tuple[int, ...]:
    requested = argnums if isinstance(argnums, tuple) else (argnums,)
    if not requested:
        raise ValueError(f"[{op}] argnums must name an argument; got none. Fix: argnums=0.")
    for position in requested:
        if not -count <= position < count:
            # JAX's classes: a TypeError where a larger call would do, but for Jacobians.
            raise (ValueError if position < 0 else missing_error)(
                f"[{op}] argnums must name positional arguments; got {argnums} for a call with "
                f"{count}. Fix: pass the argument by position, or change argnums."
            )
    positions = tuple(position % count for position in requested)
    if len(set(positions)) < len(positions):
        raise TypeError(
            f"[{op}] argnums must name each argument once; got {argnums} for a call with "
            f"{count}. Fix: leave one out."
        )
    return positions


def _check_grad_input(leaf: Any, op: str, holomorphic: bool, allow_int: bool) -> None:
    aval = aval_of(leaf)
    if holomorphic and not dtypes.is_complex(aval.dtype):
        raise TypeError(
            f"[{op}] holomorphic=True needs complex inputs; got {aval}. "
            "Fix: convert with .astype(complex), or drop holomorphic."
        )
    if not holomorphic and dtypes.is_extended(aval.dtype) and not allow_int:
        raise TypeError(f"[{op}] inputs must be real floats; got {aval}. Fix: use argnums.")
    if holomorphic or dtypes.is_extended(aval.dtype) or dtypes.is_inexact(aval.dtype):
        return
    if not allow_int:
        raise TypeError(
            f"[{op}] inputs must be floats or complex; got {aval}. Fix: differentiate other "
            "arguments with argnums, convert with x.astype(float), or pass allow_int=True."
        )


def select_arguments(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: int | tuple[int, ...],
    has_aux: bool,
    op: str,
    *,
    holomorphic: bool,
    allow_int: bool,
    missing_error: type[Exception] = TypeError,
) -> tuple[FlatFunction, list[Any], tree.TreeDef]:
    """``fun`` as a flat function of the selected arguments, their leaves, and their tree.

    Args:
        fun: the user's function.
        args: positional arguments of the call; only those in ``argnums`` may be differentiated.
        kwargs: keyword arguments of the call, which are passed on.
        argnums: indices of the selected arguments; negative ones count from the end.
        has_aux: whether ``fun`` returns a pair, whose second item is not differentiated.
        op: the name of the transformation with that of the function, for errors: "grad of f".
        holomorphic: whether the selected arguments must be complex.
        allow_int: whether they may be integers.
        missing_error: the class of the error for an index that no argument has.
    """
    positions = _argnums(argnums, len(args), op, missing_error)

    def partial_fun(*selected: Any) -> Any:
        full_args = list(args)
        for position, value in safe_zip(positions, selected):
            full_args[position] = value
        return fun(*full_args, **kwargs)

    leaves, in_tree = tree.flatten(tuple(args[position] for position in positions))
    for position, leaf in enumerate(leaves):
        _check_value(leaf, position, in_tree, op, "arguments")
        _check_grad_input(leaf, op, holomorphic, allow_int)
    return FlatFunction(partial_fun, in_tree, has_aux), leaves, in_tree


def _check_scalar_output(flat: FlatFunction, outs: list[Any], op: str, holomorphic: bool) -> None:
    if not flat.out_tree.is_leaf() or aval_of(outs[0]).shape != ():
        types = ", ".join(str(aval_of(out)) for out in outs) or "nothing"
        types += "" if flat.out_tree.is_leaf() else f" in {tree.text(flat.out_tree)}"
        raise TypeError(
            f"[{op}] the function must return one scalar; got {types}. "
            "Fix: sum or average the output, or use vjp or jacrev."
        )
    aval = aval_of(outs[0])
    is_supported = dtypes.is_complex if holomorphic else dtypes.is_floating
    if not is_supported(aval.dtype):
        kind = "complex" if holomorphic else "a real float"
        raise TypeError(
            f"[{op}] the output must be {kind}; got {aval}. Fix: "
            f"{'use holomorphic=False' if holomorphic else 'return a float, or holomorphic=True'}."
        )


@explained
def value_and_grad(
    fun: Callable[_P, _T],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[_P, tuple[_T, Any]]:
    """Return a function that computes the value and the gradient of ``fun``.

    Args:
        fun: a function that returns a real scalar, or a pair of it and aux with ``has_aux``.
        argnums: the positional arguments to differentiate; a tuple returns a tuple of gradients.
        has_aux: whether ``fun`` returns ``(value, aux)``; the returned function then returns
            ``((value, aux), grad)``.
        holomorphic: whether ``fun`` is holomorphic; inputs and output are complex.
        allow_int: whether integer inputs are allowed; they get float0 gradients.
        reduce_axes: must be empty.

    Returns:
        A function ``(*args, **kwargs) -> (value, grad)``; grad has the structure of the arguments.

    Raises:
        TypeError: when the returned function is called, if inputs or outputs have an unsupported
            dtype or shape.

    Example:
        >>> gf.value_and_grad(lambda w, x: (w * x).sum())(2.0, jnp.array([1.0, 3.0]))
        (Array(8., dtype=float32), Array(4., dtype=float32, weak_type=True))
    """
    check_callable(fun, "grad")
    refuse_reduce_axes("grad", reduce_axes)
    positions = as_argnums("grad", "argnums", argnums)
    name = getattr(fun, "__name__", "the function")

    def value_and_grad_f(*args: Any, **kwargs: Any) -> Any:
        op = f"grad of {name}"
        flat, leaves, in_tree = select_arguments(
            fun, args, kwargs, positions, has_aux, op, holomorphic=holomorphic, allow_int=allow_int
        )
        outs, pullback = _pullback(flat, leaves)
        _check_scalar_output(flat, outs, op, holomorphic)
        aval = aval_of(outs[0])
        one = vary_along(ones_of(aval), aval.mat.varying)
        grads = tree.unflatten(in_tree, pullback([one]))
        value = tree.unflatten(flat.out_tree, outs)
        result = grads if isinstance(positions, tuple) else grads[0]
        return ((value, flat.aux), result) if has_aux else (value, result)

    return _named(value_and_grad_f, fun, "value_and_grad")


@explained
def grad(
    fun: Callable[_P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[_P, Any]:
    """Return a function that computes the gradient of ``fun``.

    Args:
        fun: a function that returns a real scalar, or a pair of it and aux with ``has_aux``.
        argnums: the positional arguments to differentiate; a tuple returns a tuple of gradients.
        has_aux: whether ``fun`` returns ``(value, aux)``; the returned function then returns
            ``(grad, aux)``.
        holomorphic: whether ``fun`` is holomorphic; inputs and output are complex.
        allow_int: whether integer inputs are allowed; they get float0 gradients.
        reduce_axes: must be empty.

    Returns:
        A function of the same arguments that returns a tree with the structure, shapes and dtypes
        of the arguments in ``argnums``.

    Raises:
        NotImplementedError: if ``reduce_axes`` is not empty.
        TypeError: when the returned function is called, if inputs or outputs have an unsupported
            dtype or shape.

    Example:
        >>> gf.grad(lambda x: (x**2).sum())(jnp.array([1.0, 2.0, 3.0]))
        Array([2., 4., 6.], dtype=float32)
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, reduce_axes)

    def grad_f(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return _named(grad_f, fun, "grad")


def _named(wrapper: Callable[..., Any], fun: Callable[..., Any], title: str) -> Any:
    with suppress(AttributeError, TypeError):  # no name, or one that is no string
        functools.update_wrapper(wrapper, fun)
    wrapper.__doc__ = f"{title} of {getattr(fun, '__name__', 'a function')}.\n\n{fun.__doc__ or ''}"
    return wrapper
