"""The public functions ``linear_transpose`` and ``closure_convert``.

Tests: tests/control/test_linear_transpose.py, tests/control/test_linear_call.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base import dtypes, tree
from gpuflow.base.arguments import as_items
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.base.util import safe_zip
from gpuflow.control.mismatch import same_type
from gpuflow.control.programs import Program, trace_program
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import evaluate
from gpuflow.core.rules import UndefinedPrimal, Zero
from gpuflow.core.trace import Tracer
from gpuflow.ops.collectives.varying import cotangent_of
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.zeros import zeros_of
from gpuflow.transforms.transpose import backward_pass


@explained
def linear_transpose(
    fun: Callable[..., Any], *primals: Any, reduce_axes: Sequence[Any] = ()
) -> Callable[..., Any]:
    """Return the transpose of a linear function.

    Args:
        fun: a function of arrays or pytrees that is jointly linear in them; added constants are
            ignored.
        primals: arguments, or ShapeDtypeStructs of their types.
        reduce_axes: must be empty.

    Returns:
        A function from a cotangent of the tree of the output to a tuple of cotangents, one for
        each argument.

    Raises:
        NotImplementedError: if ``reduce_axes`` is given; when the returned function is called, if
            an op of ``fun`` is not linear.
        TypeError: if floats and integers are mixed; when the returned function is called, if a
            cotangent does not match.

    Example:
        >>> f = gf.linear_transpose(lambda x: 3 * x[:2], jnp.zeros(3))
        >>> f(jnp.array([1.0, 2.0]))
        (Array([3., 6., 0.], dtype=float32),)
    """
    refuse_reduce_axes("linear_transpose", reduce_axes)
    leaves, in_tree = tree.flatten(primals)
    avals = [aval_of(leaf) for leaf in leaves]
    program = trace_program("linear_transpose", lambda *args: fun(*args), in_tree, avals)
    out_avals = program.jaxpr.out_avals
    _check_dtypes(avals, out_avals)

    def transposed(cotangent: Any) -> tuple[Any, ...]:
        cotangents, cotangent_tree = tree.flatten(cotangent)
        check(
            cotangent_tree == program.out_tree,
            lambda: (
                "[linear_transpose] the cotangent must form the tree of the output, "
                f"{tree.text(program.out_tree)}; got {tree.text(cotangent_tree)}. "
                "Fix: give one cotangent for each output."
            ),
        )
        for want, value in safe_zip(out_avals, cotangents):
            check(
                same_type(aval_of(value), want),
                lambda want=want, value=value: (
                    f"[linear_transpose] cotangents must have the types of the outputs, {want}; "
                    f"got {aval_of(value)}. Fix: convert it, or make it with this shape."
                ),
            )
        return tree.unflatten(in_tree, transpose_program(program, avals, cotangents))

    return transposed


def refuse_reduce_axes(op: str, reduce_axes: Any) -> None:
    """Check that ``reduce_axes``, which JAX has deprecated, is empty.

    Raises:
        NotImplementedError: if it is not.
    """
    check(
        reduce_axes is None or len(as_items(op, "reduce_axes", reduce_axes)) == 0,
        lambda: (
            f"[{op}] reduce_axes must be empty; got {brief(reduce_axes)}. Fix: lax.psum the result."
        ),
        NotImplementedError,
    )


def transpose_program(
    program: Program, avals: Sequence[ShapedArray], cotangents: Sequence[Any]
) -> list[Any]:
    """Transpose a traced linear function: cotangents of its arguments for those of its results."""
    unknown = [UndefinedPrimal(aval) for aval in avals]
    operands = [*program.consts, *unknown]
    results = backward_pass(program.jaxpr.jaxpr, (), operands, cotangents)[len(program.consts) :]
    return [
        zeros_of(aval)
        if type(result) is Zero
        else cotangent_of(_as_array(result), aval.mat.varying)
        for aval, result in safe_zip(avals, results)
    ]


def _as_array(value: Any) -> Any:
    """Convert a cotangent to an array; it may be a Python scalar."""
    aval = aval_of(value)
    return convert_element_type(value, aval.dtype, aval.weak_type)


def _check_dtypes(in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray]) -> None:
    kinds = [aval.dtype for aval in (*in_avals, *out_avals)]
    plain = [dtype for dtype in kinds if not dtypes.is_extended(dtype)]
    is_one_kind = len(plain) == len(kinds) and (
        all(dtypes.is_inexact(dtype) for dtype in kinds)
        or all(dtypes.is_integer(dtype) for dtype in kinds)
    )
    check(
        is_one_kind,
        lambda: (
            "[linear_transpose] inputs and outputs must be all floats or complex, or all integers; "
            f"got {', '.join(map(str, in_avals))} -> {', '.join(map(str, out_avals))}. "
            "Fix: close over the others."
        ),
    )


# --- closures ------------------------------------------------------------------------------


@explained
def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Any, list[Any]]:
    """Return ``fun`` with differentiable captured values as arguments, and these values.

    Args:
        fun: a function of arrays or trees.
        example_args: example arguments with the types of later calls.

    Returns:
        A function ``(*args, *values)``, and the values: floats that are currently traced. Other
        captured values remain captured.

    Raises:
        TypeError: when the returned function is called, if the arguments have another tree
            structure.

    Example:
        >>> @gf.jit
        ... def f(w):
        ...     g, values = gf.closure_convert(lambda x: w * x, 1.0)
        ...     return g(3.0, *values)
        >>> f(2.0)
        Array(6., dtype=float32, weak_type=True)
    """
    leaves, in_tree = tree.flatten(example_args)
    avals = [aval_of(leaf) for leaf in leaves]
    program = trace_program("closure_convert", lambda *args: fun(*args), in_tree, avals)
    moved = [_may_be_differentiated(value) for value in program.consts]
    hoisted = [value for value, flag in safe_zip(program.consts, moved) if flag]

    def converted(*args_and_values: Any) -> Any:
        count = len(args_and_values) - len(hoisted)
        arguments, argument_tree = tree.flatten(tuple(args_and_values[:count]))
        check(
            argument_tree == in_tree,
            lambda: (
                "[closure_convert] arguments must form the tree of the example arguments, "
                f"{tree.text(in_tree)}; got {tree.text(argument_tree)}. Fix: pass them first, and "
                "the closed-over values after them."
            ),
        )
        values = iter(args_and_values[count:])
        consts = [
            next(values) if flag else const for const, flag in safe_zip(program.consts, moved)
        ]
        outs = evaluate(program.jaxpr.jaxpr, (), [*consts, *arguments])
        return tree.unflatten(program.out_tree, outs)

    return converted, hoisted


def _may_be_differentiated(value: Any) -> bool:
    dtype = aval_of(value).dtype
    return isinstance(value, Tracer) and not dtypes.is_extended(dtype) and dtypes.is_inexact(dtype)
