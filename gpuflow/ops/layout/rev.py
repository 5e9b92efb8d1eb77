"""rev: reverse the elements along axes.

Tests: tests/ops/test_layout.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.arguments import as_items
from gpuflow.core import views
from gpuflow.core.aval import ShapedArray
from gpuflow.core.halo import Halo
from gpuflow.core.lowering import Layout
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import define, linear_jvp, unary_transpose
from gpuflow.ops.layout.axes import check_axes


def _rev_shape(x: ShapedArray, *, dimensions: tuple[int, ...]) -> ShapedArray:
    check_axes("rev", x, dimensions, TypeError)
    return ShapedArray(x.shape, x.dtype, x.weak_type)


def _rev_impl(xp: Any, x: Any, *, dimensions: tuple[int, ...]) -> Any:
    return xp.array(xp.flip(x, dimensions), order="C")


def _rev_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int], *, dimensions: tuple[int, ...]
) -> tuple[Any, int]:
    del axis
    dim = dims[0]
    return rev(operands[0], tuple(d + (d >= dim) for d in dimensions)), dim


def _rev_links(x: ShapedArray, out: ShapedArray, *, dimensions: tuple[int, ...]) -> Any:
    """Reversal along an axis requires the operand in memory."""
    del out
    return None if dimensions else [(d, d) for d in range(x.ndim)]


def _rev_partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Any:
    del ins
    return [[(d, d) for d in range(out.ndim) if d not in params["dimensions"]]]


def _rev_halo(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Halo:
    del out

    def rows(dim: int, start: int, size: int) -> Sequence[Any]:
        return [(dim, ins[0].shape[dim] - start - size, size)]

    def apply(bind: Any, starts: Any, shape: Any, x: Any) -> Any:
        del starts, shape
        return bind(x, **params)

    return Halo(rows, apply)


def _rev_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Merge reversals of reversals: double reversals cancel."""
    source, dimensions = definition(eqn.inputs[0]), eqn.params["dimensions"]
    if not dimensions:
        return [eqn.inputs[0]]
    if source is None or source.primitive is not rev_p:
        return None
    once = tuple(sorted(set(dimensions) ^ set(source.params["dimensions"])))
    return [build.apply(rev_p, source.inputs[0], dimensions=once) if once else source.inputs[0]]


def rev(operand: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Reverse the order of elements along ``dimensions``.

    Args:
        operand: array of any dtype.
        dimensions: dimensions of ``operand``.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if a dimension is repeated or out of range for ``operand``.

    Example:
        >>> lax.rev(jnp.array([[1, 2], [3, 4]]), (1,))
        Array([[2, 1],
               [4, 3]], dtype=int32)
    """
    dimensions = as_items("rev", "dimensions", dimensions)
    return rev_p.bind(operand, dimensions=dimensions) if dimensions else operand


rev_p = define(
    "rev",
    shape=_rev_shape,
    impl=_rev_impl,
    jvp=linear_jvp(lambda x, dimensions: rev(x, dimensions)),
    transpose=unary_transpose(lambda ct, x, *, dimensions: rev(ct, dimensions)),
    batch=_rev_batch,
    lower=Layout(
        lambda view, out, *, dimensions: views.reverse(view, dimensions),
        _rev_links,
        steps=lambda x, out, *, dimensions: [-1 if d in dimensions else 1 for d in range(x.ndim)],
        partitionable=_rev_partitionable,
    ),
    simplify=_rev_simplify,
    halo=_rev_halo,
)
