"""transpose: permutation of axes, and its use by batch rules.

Tests: tests/ops/test_layout.py, tests/runtime/test_single_ops.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.arguments import are_dimensions, as_integers, as_items
from gpuflow.base.errors import check
from gpuflow.core import views
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Layout
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import define, linear_jvp, unary_transpose


def _transpose_shape(x: ShapedArray, *, permutation: tuple[int, ...]) -> ShapedArray:
    check(
        len(permutation) == x.ndim and are_dimensions(permutation, x.ndim),
        lambda: (
            f"[transpose] permutation must hold each dimension of {x} once; got {permutation}. "
            f"Fix: permute (0, ..., {x.ndim - 1})."
        ),
    )
    return ShapedArray(tuple(x.shape[d] for d in permutation), x.dtype, x.weak_type)


def _inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(d) for d in np.argsort(permutation))


def _transpose_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int], *, permutation: tuple[int, ...]
) -> tuple[Any, int]:
    del axis
    dim = dims[0]
    shifted = tuple(d + (d >= dim) for d in permutation)
    return transpose(operands[0], (dim, *shifted)), 0


def _transpose_links(x: ShapedArray, out: ShapedArray, *, permutation: tuple[int, ...]) -> Any:
    del x, out
    return [(d, k) for k, d in enumerate(permutation)]


def _transpose_simplify(
    eqn: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    """Merge two transpositions; let a library call write its output transposed."""
    source = definition(eqn.inputs[0])
    permutation = eqn.params["permutation"]
    if permutation == tuple(range(len(permutation))):
        return [eqn.inputs[0]]
    if source is None:
        return None
    if source.primitive is transpose_p:
        inner = source.params["permutation"]
        composed = tuple(inner[d] for d in permutation)
        return [build.apply(transpose_p, source.inputs[0], permutation=composed)]
    rule = source.primitive.lower
    if rule.transposed and definition.is_read_once(eqn.inputs[0]):
        result = rule.transposed(source, permutation, build)
        return None if result is None else [result]
    return None


def transpose(operand: ArrayLike, permutation: Sequence[int]) -> Array:
    """Permute the dimensions: dimension k of the result is ``permutation[k]`` of ``operand``.

    Args:
        operand: array of any dtype.
        permutation: the dimensions of ``operand`` in their new order.

    Returns:
        An array of the dtype of ``operand``.

    Raises:
        TypeError: if ``permutation`` is not a permutation of the dimensions.

    Example:
        >>> lax.transpose(jnp.ones((2, 3, 4)), (2, 0, 1)).shape
        (4, 2, 3)
    """
    permutation = as_items("transpose", "permutation", permutation)
    if {*map(type, permutation)} != {int}:
        permutation = as_integers("transpose", "permutation", permutation)
    if permutation == tuple(range(aval_of(operand).ndim)) and hasattr(operand, "aval"):
        return operand  # type: ignore[return-value]
    return transpose_p.bind(operand, permutation=permutation)


transpose_p = define(
    "transpose",
    shape=_transpose_shape,
    impl=lambda xp, x, *, permutation: xp.ascontiguousarray(x.transpose(permutation)).reshape(
        [x.shape[d] for d in permutation]
    ),
    jvp=linear_jvp(lambda x, permutation: transpose(x, permutation)),
    transpose=unary_transpose(lambda ct, x, *, permutation: transpose(ct, _inverse(permutation))),
    batch=_transpose_batch,
    lower=Layout(
        lambda view, out, *, permutation: views.transpose(view, permutation), _transpose_links
    ),
    simplify=_transpose_simplify,
)


def move_axis(x: Any, source: int, target: int) -> Any:
    """Move dimension ``source`` to position ``target``."""
    if source == target:
        return x
    order = [d for d in range(aval_of(x).ndim) if d != source]
    order.insert(target, source)
    return transpose(x, order)
