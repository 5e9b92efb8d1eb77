"""The public functions ``reduce`` and ``reduce_window``, with an arbitrary computation.

Sums, products, extrema and logical reductions use their own ops. Any other computation is traced
for scalars, mapped over arrays, and applied as a tree reduction over halves (or to the elements of
each window).

Tests: tests/control/test_reduce.py, tests/ops/test_windows.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.arguments import as_integers, canonicalize_axes
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.control.programs import Program, trace_program
from gpuflow.control.scalar_programs import map_scalars
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import Literal, subjaxprs
from gpuflow.core.trace import Tracer
from gpuflow.core.types import ShardingLike
from gpuflow.ops.contractions.convolution import dilated, window_count
from gpuflow.ops.contractions.convolution_calls import explicit_pads
from gpuflow.ops.elementwise.arithmetic import add_p, max_p, min_p, mul_p
from gpuflow.ops.elementwise.comparison import and_p, or_p, xor_p
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.layout.axes import broadcast_in_dim, reduce_sum, reshape
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.slicing import pad, slice_, slice_in_dim
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.reductions.reduce import (
    highest,
    lowest,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_xor,
)
from gpuflow.ops.windows.reduce_window import (
    reduce_window_max_p,
    reduce_window_min_p,
    reduce_window_sum_p,
)

# From a binary primitive to the reduction op that combines by it.
REDUCTIONS: dict[Any, Callable[..., Any]] = {
    add_p: reduce_sum,
    mul_p: reduce_prod,
    max_p: reduce_max,
    min_p: reduce_min,
    and_p: reduce_and,
    or_p: reduce_or,
    xor_p: reduce_xor,
}
WINDOW_REDUCTIONS: dict[Any, Any] = {
    add_p: reduce_window_sum_p,
    max_p: reduce_window_max_p,
    min_p: reduce_window_min_p,
}
# The neutral element of each window reduction, for a dtype.
NEUTRAL: dict[Any, Callable[[Any], Any]] = {
    reduce_window_sum_p: lambda dtype: 0,
    reduce_window_max_p: lowest,
    reduce_window_min_p: highest,
}


def _is_neutral(value: Any, neutral: Any) -> bool:
    """Whether a concrete value equals the neutral element."""
    return not isinstance(value, Tracer) and bool(np.asarray(value) == neutral)


def _traced(
    op: str,
    computation: Callable[..., Any],
    operands: Sequence[Any],
    init: Sequence[Any],
    treedef: tree.TreeDef,
) -> Program:
    """Trace the computation for two trees of scalars of the operands' dtypes.

    Raises:
        TypeError: if initial values are not scalars, or results differ in type.
        ValueError: if the number of initial values is not that of operands.
    """
    check(
        len(operands) == len(init),
        lambda: (
            f"[{op}] there must be an initial value for each operand; got {len(operands)} "
            f"operands and {len(init)} initial values. Fix: a tree like that of the operands."
        ),
        ValueError,
    )
    avals = []
    for x, start in zip(operands, init, strict=True):
        aval = aval_of(x)
        check(
            not aval_of(start).shape,
            lambda start=start: (
                f"[{op}] initial values must be scalars; got {aval_of(start)}. Fix: one number."
            ),
        )
        avals.append(ShapedArray((), aval.dtype))
    pair = tree.structure(
        (tree.unflatten(treedef, range(len(avals))), tree.unflatten(treedef, range(len(avals))))
    )
    program = trace_program(op, computation, pair, [*avals, *avals], "computation")
    outs = program.jaxpr.out_avals
    check(
        [(a.shape, a.dtype) for a in outs] == [(a.shape, a.dtype) for a in avals],
        lambda: (
            f"[{op}] the computation must return scalars of the operands' dtypes; got "
            f"{', '.join(map(str, outs))} for {', '.join(map(str, avals))}. Fix: x.astype(...)."
        ),
    )
    return program


def _single_primitive(program: Program) -> Any:
    """The binary primitive that is the whole computation; None if there is no such primitive."""
    jaxpr = program.jaxpr.jaxpr
    while len(jaxpr.eqns) == 1 and subjaxprs(jaxpr.eqns[0]):
        (eqn,) = jaxpr.eqns
        inner = subjaxprs(eqn)[0].jaxpr
        if tuple(eqn.inputs) != jaxpr.invars or tuple(eqn.outputs) != jaxpr.outvars:
            return None
        jaxpr = inner
    if program.consts or len(jaxpr.eqns) != 1 or len(jaxpr.invars) != 2:
        return None
    (eqn,) = jaxpr.eqns
    operands = [atom for atom in eqn.inputs if type(atom) is not Literal]
    is_whole = set(operands) == set(jaxpr.invars) and tuple(eqn.outputs) == jaxpr.outvars
    return eqn.primitive if is_whole and len(eqn.inputs) == 2 else None


def _combine(program: Program, first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Apply the computation elementwise to arrays of one shape."""
    return map_scalars(program, [*first, *second])


def _broadcast_scalar(start: Any, shape: Sequence[int], like: Any) -> Any:
    value = convert_element_type(start, aval_of(like).dtype)
    return broadcast_in_dim(value, tuple(shape), ())


@explained
def reduce(
    operands: Any,
    init_values: Any,
    computation: Callable[[Any, Any], Any],
    dimensions: Sequence[int],
    out_sharding: ShardingLike = None,
) -> Any:
    """Reduce dimensions with an associative and commutative function.

    Args:
        operands: a pytree of arrays of one shape.
        init_values: a pytree of scalars that are included once in the reduction; best the neutral
            elements.
        computation: ``(a, b) -> c`` on pytrees of scalars.
        dimensions: the dimensions to reduce.
        out_sharding: accepted as in JAX.

    Returns:
        A pytree of arrays without the reduced dimensions.

    Raises:
        TypeError: if trees, shapes or dtypes do not match.
        ValueError: if the dimension does not exist.

    Example:
        >>> lax.reduce(jnp.array([[1, 2], [3, 4]]), 1, jnp.multiply, (0,))
        Array([3, 8], dtype=int32)
    """
    del out_sharding
    leaves, treedef = tree.flatten(operands)
    init, init_tree = tree.flatten(init_values)
    check(
        treedef == init_tree and bool(leaves),
        lambda: (
            "[reduce] operands and initial values must have one structure; got "
            f"{tree.text(treedef)} and "
            f"{tree.text(init_tree)}. Fix: one initial value for each operand."
        ),
    )
    shape = aval_of(leaves[0]).shape
    check(
        all(aval_of(x).shape == shape for x in leaves),
        lambda: (
            f"[reduce] operands must have one shape; got {[str(aval_of(x)) for x in leaves]}. "
            "Fix: jnp.broadcast_to."
        ),
    )
    axes = canonicalize_axes(tuple(dimensions), len(shape), "reduce")
    program = _traced("reduce", computation, leaves, init, treedef)
    remaining = tuple(n for d, n in enumerate(shape) if d not in axes)
    reduction = REDUCTIONS.get(_single_primitive(program))
    if reduction is not None:
        outs = [reduction(leaves[0], axes)]
    else:
        outs = _tree_reduce(program, leaves, axes, remaining)
    starts = [_broadcast_scalar(value, remaining, x) for value, x in safe_zip(init, leaves)]
    results = starts if outs is None else _combine(program, starts, outs)
    return tree.unflatten(treedef, results)


def _tree_reduce(
    program: Program, leaves: Sequence[Any], axes: Sequence[int], remaining: tuple[int, ...]
) -> list[Any] | None:
    """Tree reduction: combine halves until one element remains; None if there are no elements."""
    operands = []
    for x in leaves:
        for position, axis in enumerate(axes):
            x = move_axis(x, axis, position)
        operands.append(x if 0 in remaining else reshape(x, (_count(x, remaining), *remaining)))
    if 0 in remaining:
        return None
    count = aval_of(operands[0]).shape[0]
    if count == 0:
        return None
    while count > 1:
        half = count // 2
        first = [slice_in_dim(x, 0, half) for x in operands]
        second = [slice_in_dim(x, half, 2 * half) for x in operands]
        tails = [slice_in_dim(x, 2 * half, count) for x in operands]
        merged = _combine(program, first, second)
        odd = count % 2
        operands = [concatenate([a, b], 0) if odd else a for a, b in safe_zip(merged, tails)]
        count = half + odd
    return [reshape(x, remaining) for x in operands]


def _count(x: Any, remaining: tuple[int, ...]) -> int:
    return aval_of(x).size // max(int(np.prod(remaining, dtype=np.int64)), 1)


# --- windows -------------------------------------------------------------------------------


@explained
def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Reduce each position of a sliding window.

    Args:
        operand: an array, or a pytree of arrays of one shape.
        init_value: a scalar for each operand; the value of padding and dilation, best the neutral
            element.
        computation: ``(a, b) -> c`` on (pytrees of) scalars.
        window_dimensions: size of the window in each dimension.
        window_strides: strides of the window; None means 1.
        padding: ``"VALID"``, ``"SAME"``, ``"SAME_LOWER"``, or pairs (low, high).
        base_dilation, window_dilation: dilation of operand and window; None means 1.

    Returns:
        An array, or a pytree of arrays, with one element for each position of the window.

    Raises:
        TypeError: if dtypes, sizes or strides are inconsistent.
        ValueError: if the padding is inconsistent.

    Source: the definition of ReduceWindow in the XLA operation semantics.

    Example:
        >>> lax.reduce_window(jnp.array([1.0, 5.0, 2.0, 4.0]), -jnp.inf, lax.max, (2,), (2,))
        Array([5., 4.], dtype=float32)
    """
    leaves, treedef = tree.flatten(operand)
    init = tree.leaves(init_value)
    program = _traced("reduce_window", computation, leaves, init, treedef)
    shape = aval_of(leaves[0]).shape
    ones = (1,) * len(shape)
    window, strides, lhs_dilation, rhs_dilation = (
        ones if sizes is None else as_integers("reduce_window", what, sizes)
        for what, sizes in (
            ("window_dimensions", window_dimensions),
            ("window_strides", window_strides),
            ("base_dilation", base_dilation),
            ("window_dilation", window_dilation),
        )
    )
    check(
        all(len(v) == len(shape) for v in (window, strides, lhs_dilation, rhs_dilation))
        and all(n >= 1 for v in (window, strides, lhs_dilation, rhs_dilation) for n in v),
        lambda: (
            "[reduce_window] window sizes, strides and dilations must be given for each dimension "
            f"and be at least 1; got {window}, {strides}, {lhs_dilation}, {rhs_dilation} for shape "
            f"{shape}. Fix: 1 where nothing slides."
        ),
    )
    sizes = [dilated(n, d) for n, d in zip(shape, lhs_dilation, strict=True)]
    windows = [dilated(n, d) for n, d in zip(window, rhs_dilation, strict=True)]
    pads = explicit_pads(padding, sizes, windows, strides)
    reduction = WINDOW_REDUCTIONS.get(_single_primitive(program))
    if reduction is not None and dtypes.is_bool(aval_of(leaves[0]).dtype):
        reduction = None  # bools have no kernel of windows
    if reduction is not None:
        reduced = reduction.bind(
            leaves[0],
            window_dimensions=window,
            window_strides=strides,
            padding=pads,
            base_dilation=lhs_dilation,
            window_dilation=rhs_dilation,
        )
        if _is_neutral(init[0], NEUTRAL[reduction](aval_of(reduced).dtype)):
            return tree.unflatten(treedef, [reduced])
        start = _broadcast_scalar(init[0], aval_of(reduced).shape, reduced)
        return tree.unflatten(treedef, _combine(program, [start], [reduced]))
    counts = [
        window_count(n, w, stride, pair)
        for n, w, stride, pair in zip(sizes, windows, strides, pads, strict=True)
    ]
    config = [(low, high, d - 1) for (low, high), d in zip(pads, lhs_dilation, strict=True)]
    wide = [
        pad(x, convert_element_type(value, aval_of(x).dtype), config)
        for x, value in safe_zip(leaves, init)
    ]
    total = [_broadcast_scalar(value, counts, x) for value, x in safe_zip(init, leaves)]
    if 0 in counts:
        return tree.unflatten(treedef, total)
    for offset in product(*map(range, window)):
        starts = [k * d for k, d in zip(offset, rhs_dilation, strict=True)]
        limits = [a + (n - 1) * s + 1 for a, n, s in zip(starts, counts, strides, strict=True)]
        elements = [slice_(x, starts, limits, strides) for x in wide]
        total = _combine(program, total, elements)
    return tree.unflatten(treedef, total)
