"""``linear_call``: a function that is linear in some arguments, with a user-defined transpose.

Tests: tests/control/test_linear_call.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.control.program_rules import result_types
from gpuflow.control.programs import execute_alone, trace_program, with_inputs
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, Var
from gpuflow.core.key_use import use_none
from gpuflow.core.lowering import Inline
from gpuflow.core.primitive import make_primitive, register
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.zeros import add_tangents, instantiate
from gpuflow.transforms.batching import batch_jaxpr
from gpuflow.transforms.jvp import jvp_flat

# An equation holds two programs, the function and its transpose, each with its own captured values.
# Operands: (*consts of the function, *consts of the transpose, *residuals, *linear operands).
Programs = tuple[ClosedJaxpr, ClosedJaxpr]
Counts = tuple[int, int, int]


def linear_call(
    fun: Callable[..., Any], fun_transpose: Callable[..., Any], residual_args: Any, linear_args: Any
) -> Any:
    """Call ``fun(residual_args, linear_args)``, with ``fun_transpose`` as its transpose.

    Args:
        fun: a function that is linear in its second argument.
        fun_transpose: ``(residual_args, cotangent of the result) -> cotangent of linear_args``,
            linear in the second argument too, and the transpose of ``fun``.
        residual_args: array or pytree.
        linear_args: array or pytree.

    Returns:
        The result of ``fun``. Forward derivatives with respect to ``residual_args`` are those of
        ``fun``.

    Raises:
        TypeError: if ``fun_transpose`` returns another type than that of ``linear_args``.
    """
    residuals = tree.leaves(residual_args)
    linear, linear_tree = tree.flatten(linear_args)
    residual_avals = [aval_of(leaf) for leaf in residuals]
    linear_avals = [aval_of(leaf) for leaf in linear]
    in_tree = tree.structure((residual_args, linear_args))
    forward = trace_program("linear_call", fun, in_tree, [*residual_avals, *linear_avals], "fun")
    out = tree.unflatten(forward.out_tree, forward.jaxpr.out_avals)
    back_tree = tree.structure((residual_args, tree.tree_map(lambda aval: 0.0, out)))
    backward = trace_program(
        "linear_call",
        fun_transpose,
        back_tree,
        [*residual_avals, *forward.jaxpr.out_avals],
        "fun_transpose",
    )
    _check_transpose(backward.out_tree, backward.jaxpr.out_avals, linear_tree, linear_avals)
    counts = (len(forward.consts), len(backward.consts), len(residuals))
    outs = linear_call_p.bind(
        *forward.consts,
        *backward.consts,
        *residuals,
        *linear,
        programs=(forward.jaxpr, backward.jaxpr),
        counts=counts,
    )
    return tree.unflatten(forward.out_tree, outs)


def _check_transpose(
    got_tree: Any, got: Sequence[ShapedArray], want_tree: Any, want: Sequence[ShapedArray]
) -> None:
    same = got_tree == want_tree and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in safe_zip(got, want)
    )
    check(
        same,
        lambda: (
            "[linear_call] fun_transpose must return the type of linear_args, "
            f"{', '.join(map(str, want))} in {tree.text(want_tree)}; got "
            f"{', '.join(map(str, got))} in "
            f"{tree.text(got_tree)}. Fix: return a cotangent for each linear argument."
        ),
    )


# --- the primitive -------------------------------------------------------------------------


def _split(values: Sequence[Any], counts: Counts) -> list[list[Any]]:
    """Split operands: consts of either program, residuals, linear operands."""
    groups, start = [], 0
    for count in counts:
        groups.append(list(values[start : start + count]))
        start += count
    return [*groups, list(values[start:])]


def _shape(*avals: ShapedArray, programs: Programs, counts: Counts) -> list[ShapedArray]:
    consts, _, residuals, linear = _split(avals, counts)
    return result_types("linear_call", [*consts, *residuals, *linear], programs[0])


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, programs: Programs, counts: Counts
) -> tuple[list[Any], list[Any]]:
    params: dict[str, Any] = {"programs": programs, "counts": counts}
    outs = linear_call_p.bind(*primals, **params)
    consts, transpose_consts, residuals, linear = _split(primals, counts)
    const_tangents, _, residual_tangents, linear_tangents = _split(tangents, counts)
    results: list[Any] = [Zero(aval_of(out).tangent()) for out in outs]
    if any(type(t) is not Zero for t in linear_tangents):
        instantiated = [instantiate(t) for t in linear_tangents]
        fixed = [*consts, *transpose_consts, *residuals]
        results = linear_call_p.bind(*fixed, *instantiated, **params)
    if any(type(t) is not Zero for t in (*const_tangents, *residual_tangents)):
        zero_tangents = [Zero(aval_of(value).tangent()) for value in linear]
        _, residual_terms = jvp_flat(
            programs[0],
            [*consts, *residuals, *linear],
            [*const_tangents, *residual_tangents, *zero_tangents],
        )
        results = [add_tangents(a, b) for a, b in safe_zip(results, residual_terms)]
    return outs, results


def _transpose(
    cotangents: Sequence[Any], *operands: Any, programs: Programs, counts: Counts
) -> list[Any]:
    """The transpose rule: the same equation with the two programs swapped."""
    consts, transpose_consts, residuals, linear = _split(operands, counts)
    fixed = [*consts, *transpose_consts, *residuals]
    check(
        not any(is_undefined(value) for value in fixed),
        lambda: (
            "[linear_call] fun is linear in linear_args only; got a transposition with respect to "
            "residual_args. Fix: pass them as linear_args, or use custom_vjp."
        ),
        NotImplementedError,
    )
    no_cotangents = [None] * len(fixed)
    if all(type(ct) is Zero for ct in cotangents):
        return [*no_cotangents, *[Zero(v.aval) if is_undefined(v) else None for v in linear]]
    instantiated = [instantiate(ct) for ct in cotangents]
    outs = linear_call_p.bind(
        *transpose_consts,
        *consts,
        *residuals,
        *instantiated,
        programs=(programs[1], programs[0]),
        counts=(counts[1], counts[0], counts[2]),
    )
    in_cotangents = [out if is_undefined(value) else None for out, value in safe_zip(outs, linear)]
    return [*no_cotangents, *in_cotangents]


def _batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    programs: Programs,
    counts: Counts,
) -> tuple[list[Any], list[int | None]]:
    """Batch both programs; results of one are operands of the other, hence the fixed point."""
    consts, transpose_consts, residuals, linear = _split([dim is not None for dim in dims], counts)
    results = [False] * len(programs[0].out_avals)
    while True:
        forward, out_flags = batch_jaxpr(
            programs[0], axis, (*consts, *residuals, *linear), tuple(results)
        )
        backward, in_flags = batch_jaxpr(
            programs[1], axis, (*transpose_consts, *residuals, *out_flags), tuple(linear)
        )
        if list(out_flags) == results and list(in_flags) == linear:
            break
        results, linear = list(out_flags), list(in_flags)
    flags = [*consts, *transpose_consts, *residuals, *linear]
    batched_operands = [
        batch_to_dim(value, dim, 0, axis.size) if flag else value
        for value, dim, flag in safe_zip(operands, dims, flags)
    ]
    outs = linear_call_p.bind(*batched_operands, programs=(forward, backward), counts=counts)
    return outs, [0 if flag else None for flag in results]


def _lowered(params: dict[str, Any]) -> ClosedJaxpr:
    """The program to inline: the function, with unread inputs for the consts of the transpose."""
    forward, backward = params["programs"]
    counts: Counts = params["counts"]

    def make() -> ClosedJaxpr:
        inputs = forward.jaxpr.invars
        unread = [Var(aval) for aval in backward.in_avals[: counts[1]]]
        return with_inputs(forward, [*inputs[: counts[0]], *unread, *inputs[counts[0] :]])

    return forward.jaxpr.memo(("linear call alone", backward.jaxpr, counts), make)


linear_call_p = register(
    make_primitive(
        "linear_call",
        shape=_shape,
        execute=execute_alone(lambda: linear_call_p),
        jvp=_jvp,
        transpose=_transpose,
        batch=_batch,
        lower=Inline(lambda _, params: _lowered(params), whole=True, by_rule=True),
        multiple_results=True,
        effects=lambda params: params["programs"][0].effects,
        subjaxprs=lambda params: list(params["programs"]),
        keys=use_none,
    )
)
