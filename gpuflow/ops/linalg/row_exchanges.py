"""The permutation of the row exchanges of an LU decomposition.

Tests: tests/ops/test_device_programs.py, tests/ops/test_linalg_ops.py.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.lowering import Indexed, Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.linalg.algebra import Shape
from gpuflow.ops.linalg.common import Outputs, matrix_op


def _permutation_result(pivots: Shape, dtype: Any, *, permutation_size: int) -> Outputs:
    del dtype
    check(
        permutation_size >= pivots[0],
        lambda: (
            "[lu_pivots_to_permutation] permutation_size must be at least the number of pivots; "
            f"got {permutation_size} for {pivots[0]} pivots. Fix: pass the number of rows."
        ),
        ValueError,
    )
    return [((permutation_size,), dtypes.int32)]


def permutation_of(xp: Any, pivots: Any, *, permutation_size: int) -> Any:
    batch, count = pivots.shape[:-1], pivots.shape[-1]
    out = xp.empty((prod(batch), permutation_size), np.int32)
    out[...] = xp.arange(permutation_size, dtype=np.int32)
    pivot_rows, every = pivots.reshape(len(out), count), xp.arange(len(out))
    if xp is np and len(out) == 1:
        order = list(range(permutation_size))
        for k, other in enumerate(pivot_rows[0].tolist()):
            order[k], order[other] = order[other], order[k]
        out[0] = order
        return out.reshape(*batch, permutation_size)
    for k in range(count if len(out) else 0):
        other = pivot_rows[:, k]
        row = out[:, k].copy()
        out[:, k] = out[every, other]
        out[every, other] = row
    return out.reshape(*batch, permutation_size)


def _row_order_body(context: Any, in_avals: Any, out: Any, params: dict[str, Any]) -> Any:
    """Source row of an output index: apply the exchanges to it in reverse order.

    Elements do not depend on each other, so each has a thread.
    """
    del params
    builder, dim = context.builder, out.ndim - 1
    index = context.index(dim)
    if 0 in in_avals[0].shape:
        return builder.cast(index, "int32")
    batch, count = [context.index(d) for d in range(dim)], context.number(0)
    last = builder.apply("sub", count, builder.const("int64", 1))

    def exchanged(k: Any, index: Any) -> Any:
        row = builder.apply("sub", last, k)
        other = builder.cast(context.load(0, [*batch, row]), "int64")
        swapped = builder.select(builder.apply("eq", index, other), row, index)
        return builder.select(builder.apply("eq", index, row), other, swapped)

    (source,) = builder.for_count(count, [index], exchanged)
    return builder.cast(source, "int32")


# Form for GPUs, with a thread for each row; applying the exchanges in order, as on the CPU, would
# use one thread for each matrix.
row_order_p = matrix_op(
    "row_order",
    (1,),
    _permutation_result,
    permutation_of,
    integer=True,
    lower=Indexed(_row_order_body, lambda ins, params: [ins[0].shape[-1]]),
    size_params=frozenset({"permutation_size"}),
)


def _order_on_gpu(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any]:
    del definition
    return [build.apply(row_order_p, *eqn.inputs, **eqn.params)]


lu_pivots_to_permutation_p = matrix_op(
    "lu_pivots_to_permutation",
    (1,),
    _permutation_result,
    permutation_of,
    integer=True,
    lower=Library(on_gpu=_order_on_gpu),
    size_params=frozenset({"permutation_size"}),
)


@explained
def lu_pivots_to_permutation(pivots: ArrayLike, permutation_size: int) -> Array:
    """Return the permutation of a sequence of row exchanges.

    Args:
        pivots: i32[..., k]: row i is swapped with row ``pivots[i]``, in this order.
        permutation_size: the number of rows, at least k.

    Returns:
        i32[..., permutation_size].

    Raises:
        ValueError: if ``permutation_size`` is too small. TypeError: if pivots are not int32.

    Example:
        >>> lax.linalg.lu_pivots_to_permutation(jnp.array([2, 2]), 4)
        Array([2, 0, 1, 3], dtype=int32)
    """
    return lu_pivots_to_permutation_p.bind(pivots, permutation_size=int(permutation_size))
