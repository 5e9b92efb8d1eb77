"""``scatter_apply``: apply a function to elements, once for each occurrence of their index.

Tests: tests/lax/test_lax_definitions.py, tests/numpy/test_numpy_indexing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.control.loops.fori import fori_loop
from gpuflow.control.scalar_programs import map_scalars, trace_scalars
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.trace import Tracer
from gpuflow.core.types import Array, ArrayLike, ModeLike
from gpuflow.ops.elementwise.comparison import lt
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.indexing.dimension_numbers import ScatterDimensionNumbers
from gpuflow.ops.indexing.gather import scatter_add
from gpuflow.ops.reductions.reduce import reduce_max
from gpuflow.ops.zeros import full


@explained
def scatter_apply(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    func: Callable[[Any], Any],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: ModeLike = None,
) -> Array:
    """Apply a function to the elements of ``operand`` at indices.

    Args:
        operand: array.
        scatter_indices: integers of shape ``batch + (n,)``.
        func: a function of a scalar of the dtype of ``operand``; it is applied once for each
            occurrence of an index.
        dimension_numbers: see ``ScatterDimensionNumbers``.
        update_shape: the shape of the updates in an equivalent ``scatter``.
        indices_are_sorted, unique_indices, mode: as in ``scatter_add``. With traced indices,
            reverse-mode derivatives require ``unique_indices``.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if shapes or dimension numbers are inconsistent, or ``func`` returns another
            dtype than that of ``operand``.

    Example:
        >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        >>> x, places = jnp.array([1.0, 2.0, 3.0]), jnp.array([[2]])
        >>> lax.scatter_apply(x, places, jnp.square, numbers, update_shape=(1,))
        Array([1., 2., 9.], dtype=float32)
    """
    aval = aval_of(operand)
    program = trace_scalars("scatter_apply", func, [aval.dtype], "func")
    outs = program.jaxpr.out_avals
    check(
        [(out.shape, out.dtype) for out in outs] == [((), aval.dtype)],
        lambda: (
            f"[scatter_apply] func must return a scalar of the operand's dtype; got "
            f"{', '.join(map(str, outs))} for {ShapedArray((), aval.dtype)}. Fix: x.astype(...)."
        ),
    )
    counts = scatter_add(
        full(aval.shape, 0, np.int32),
        scatter_indices,
        full(tuple(update_shape), 1, np.int32),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )

    def once_more(repetition: Any, x: Any) -> Any:
        # Others are ones for ``func``, which may have no finite derivative at them.
        is_next = lt(repetition, counts)
        operands = [where(is_next, x, full(aval.shape, 1, aval.dtype))]
        return where(is_next, map_scalars(program, operands)[0], x)

    if unique_indices:
        return once_more(np.int32(0), operand)
    most = reduce_max(counts, range(aval.ndim))
    if isinstance(most, Tracer):
        return fori_loop(np.int32(0), most, once_more, operand)
    for repetition in range(int(most)):
        operand = once_more(np.int32(repetition), operand)
    return operand  # type: ignore[return-value]
