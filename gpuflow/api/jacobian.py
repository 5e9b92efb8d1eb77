"""Jacobians and Hessians over pytrees: one batched pass over a standard basis.

Tests: tests/transforms/test_derivative_examples.py, tests/control/test_custom_vjp.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from gpuflow.api.derivatives import _named, _pullback, select_arguments
from gpuflow.base import dtypes, tree
from gpuflow.base.arguments import as_argnums
from gpuflow.base.util import safe_zip
from gpuflow.control.jit_options import check_callable
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.rules import AxisData, Zero
from gpuflow.ops.elementwise.comparison import eq
from gpuflow.ops.elementwise.convert import convert, convert_element_type
from gpuflow.ops.layout.axes import reshape
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.zeros import instantiate, zeros_of
from gpuflow.transforms.batching import batch_flat
from gpuflow.transforms.jvp import jvp_flat

_P = ParamSpec("_P")


def _identity(size: int, dtype: Any) -> Any:
    rows = iota("int32", (size, size), 0)
    return convert(eq(rows, iota("int32", (size, size), 1)), dtype)


def _basis(avals: Sequence[ShapedArray]) -> tuple[list[Any], int]:
    """For each aval an array (total, *shape): the standard basis of their concatenation."""
    total = sum(aval.size for aval in avals)
    result, start = [], 0
    for aval in avals:
        eye = _identity(total, aval.dtype)
        columns = slice_in_dim(eye, start, start + aval.size, axis=1)
        result.append(reshape(columns, (total, *aval.shape)))
        start += aval.size
    return result, total


def _split_leading(value: Any, avals: Sequence[ShapedArray]) -> list[Any]:
    """Cut the leading basis axis of ``value`` into one array (*shape, ...) for each aval."""
    blocks, start = [], 0
    trailing = aval_of(value).shape[1:]
    for aval in avals:
        block = slice_in_dim(value, start, start + aval.size, axis=0)
        blocks.append(reshape(block, (*aval.shape, *trailing)))
        start += aval.size
    return blocks


def _without_derivative(leaf: ShapedArray, avals: Sequence[ShapedArray]) -> list[Any]:
    """The Jacobians of an integer input: zeros of its own type."""
    return [zeros_of(leaf.update(shape=(*aval.shape, *leaf.shape))) for aval in avals]


def _like(example: ShapedArray, blocks: Sequence[Any]) -> list[Any]:
    """Blocks of a Jacobian with the dtype and the weak type of the leaf that they belong to."""
    return [convert_element_type(x, example.dtype, example.weak_type) for x in blocks]


def _tangent_array(tangent: Any, out: Any) -> Any:
    """An output's tangent; that of an integer is 0."""
    is_integer = (
        aval_of(tangent).dtype == dtypes.float0
        if type(tangent) is not Zero
        else (tangent.aval.dtype == dtypes.float0)
    )
    return zeros_of(aval_of(out)) if is_integer else instantiate(tangent)


def _check_outputs(outs: Sequence[Any], op: str, holomorphic: bool) -> None:
    for out in outs:
        aval = aval_of(out)
        is_supported = dtypes.is_complex if holomorphic else dtypes.is_floating
        if not is_supported(aval.dtype):
            raise TypeError(
                f"[{op}] outputs must be {'complex' if holomorphic else 'real floats'}; "
                f"got {aval}. Fix: return floats, or set holomorphic={not holomorphic}."
            )


def _check_real_inputs(avals: Sequence[ShapedArray], op: str, holomorphic: bool) -> None:
    for aval in avals:
        if dtypes.is_complex(aval.dtype) and not holomorphic:
            raise TypeError(
                f"[{op}] inputs must be real floats; got {aval}. "
                "Fix: set holomorphic=True, or use jacrev."
            )


@explained
def jacfwd(
    fun: Callable[_P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[_P, Any]:
    """Return a function that computes the Jacobian of ``fun`` in forward mode.

    Args:
        fun: a function of arrays or pytrees. Integer outputs have zero Jacobians.
        argnums: the positional arguments to differentiate; a tuple returns a tuple.
        has_aux: whether ``fun`` returns ``(out, aux)``; the returned function then returns
            ``(jacobian, aux)``.
        holomorphic: whether ``fun`` is holomorphic; inputs and outputs are complex.

    Returns:
        A function that returns, for each output leaf, a tree like the inputs with leaves of shape
        ``(*output shape, *input shape)``.

    Cost:
        Cost: one tangent per input element, so it is efficient for few inputs.

    Raises:
        TypeError: when the returned function is called, if inputs or outputs have an unsupported
            dtype or shape.
        ValueError: when the returned function is called, if ``argnums`` is out of range.

    Example:
        >>> gf.jacfwd(lambda x: jnp.stack([x[0] * x[1], x[0] ** 2]))(jnp.array([2.0, 3.0]))
        Array([[3., 2.],
               [4., 0.]], dtype=float32)
    """
    check_callable(fun, "jacfwd")
    positions = as_argnums("jacfwd", "argnums", argnums)
    op = f"jacfwd of {getattr(fun, '__name__', 'the function')}"

    def jacfwd_f(*args: Any, **kwargs: Any) -> Any:
        flat, leaves, in_tree = select_arguments(
            fun,
            args,
            kwargs,
            positions,
            has_aux,
            op,
            holomorphic=holomorphic,
            allow_int=False,
            missing_error=ValueError,
        )
        avals = [aval_of(leaf) for leaf in leaves]
        _check_real_inputs(avals, op, holomorphic)
        basis, total = _basis(avals)
        outs: list[Any] = []

        def push(*tangents: Any) -> list[Any]:
            values, out_tangents = jvp_flat(flat, leaves, tangents)
            outs[:] = values
            return [_tangent_array(t, out) for t, out in safe_zip(out_tangents, values)]

        columns, dims = batch_flat(push, AxisData(None, total), basis, [0] * len(basis))
        if holomorphic:
            _check_outputs(columns, op, holomorphic)
        rows = []
        for column, dim, out in safe_zip(columns, dims, outs):
            leading = batch_to_dim(column, dim, 0, total)
            blocks = []
            for block, aval in safe_zip(_split_leading(leading, avals), avals):
                blocks.append(_rotate(block, aval.ndim))
            rows.append(_input_tree(in_tree, _like(aval_of(out), blocks), positions))
        result = tree.unflatten(flat.out_tree, rows)
        return (result, flat.aux) if has_aux else result

    return _named(jacfwd_f, fun, "jacfwd")


def _rotate(value: Any, count: int) -> Any:
    """Move the first ``count`` dimensions to the end."""
    for _ in range(count):
        value = move_axis(value, 0, aval_of(value).ndim - 1)
    return value


def _input_tree(in_tree: tree.TreeDef, blocks: list[Any], argnums: Any) -> Any:
    grads = tree.unflatten(in_tree, blocks)
    return grads if isinstance(argnums, tuple) else grads[0]


@explained
def jacrev(
    fun: Callable[_P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[_P, Any]:
    """Return a function that computes the Jacobian of ``fun`` in reverse mode.

    Args:
        fun: a function of arrays or trees.
        argnums: the positional arguments to differentiate; a tuple returns a tuple.
        has_aux: whether ``fun`` returns ``(out, aux)``; the returned function then returns
            ``(jacobian, aux)``.
        holomorphic: whether ``fun`` is holomorphic; inputs and outputs are complex.
        allow_int: whether integer inputs are allowed; their Jacobians are integer zeros.

    Returns:
        A function that returns, for each output leaf, a tree like the inputs with leaves of shape
        ``(*output shape, *input shape)``.

    Raises:
        TypeError: when the returned function is called, if inputs or outputs have an unsupported
            dtype or shape.
        ValueError: when the returned function is called, if ``argnums`` is out of range.

    Cost:
        Cost: one cotangent per output element, so it is efficient for few outputs.

    Example:
        >>> gf.jacrev(lambda x: jnp.stack([x[0] * x[1], x[0] ** 2]))(jnp.array([2.0, 3.0]))
        Array([[3., 2.],
               [4., 0.]], dtype=float32)
    """
    check_callable(fun, "jacrev")
    positions = as_argnums("jacrev", "argnums", argnums)
    op = f"jacrev of {getattr(fun, '__name__', 'the function')}"

    def jacrev_f(*args: Any, **kwargs: Any) -> Any:
        flat, leaves, in_tree = select_arguments(
            fun,
            args,
            kwargs,
            positions,
            has_aux,
            op,
            holomorphic=holomorphic,
            allow_int=allow_int,
            missing_error=ValueError,
        )
        outs, pullback = _pullback(flat, leaves)
        _check_outputs(outs, op, holomorphic)
        out_avals = [aval_of(out) for out in outs]
        basis, total = _basis(out_avals)
        axis = AxisData(None, total)
        cotangents, dims = batch_flat(lambda *cts: pullback(cts), axis, basis, [0] * len(basis))
        by_input = [
            _without_derivative(aval_of(leaf), out_avals)
            if aval_of(ct).dtype == dtypes.float0
            else _like(aval_of(leaf), _split_leading(batch_to_dim(ct, dim, 0, total), out_avals))
            for ct, dim, leaf in safe_zip(cotangents, dims, leaves)
        ]
        rows = [
            _input_tree(in_tree, [blocks[k] for blocks in by_input], positions)
            for k in range(len(outs))
        ]
        result = tree.unflatten(flat.out_tree, rows)
        return (result, flat.aux) if has_aux else result

    return _named(jacrev_f, fun, "jacrev")


jacobian = jacrev


@explained
def hessian(
    fun: Callable[_P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[_P, Any]:
    """Return a function that computes the Hessian of ``fun``: ``jacfwd(jacrev(fun))``.

    Args:
        fun: a function of arrays or trees.
        argnums: the positional arguments to differentiate; a tuple returns tuples.
        has_aux: whether ``fun`` returns ``(out, aux)``; the returned function then returns
            ``(hessian, aux)``.
        holomorphic: whether ``fun`` is holomorphic; inputs and outputs are complex.

    Returns:
        A function that returns, for each output leaf, a tree of trees like the inputs with leaves
        of shape ``(*output shape, *input shape, *input shape)``.

    Raises:
        TypeError: when the returned function is called, if inputs or outputs have an unsupported
            dtype or shape.
        ValueError: when the returned function is called, if ``argnums`` is out of range.

    Example:
        >>> gf.hessian(lambda x: x[0] ** 2 * x[1])(jnp.array([2.0, 3.0]))
        Array([[6., 4.],
               [4., 0.]], dtype=float32)
    """
    inner = jacrev(fun, argnums, has_aux=has_aux, holomorphic=holomorphic)
    return jacfwd(inner, argnums, has_aux=has_aux, holomorphic=holomorphic)
