"""approx_max_k and approx_min_k: implemented exactly, so their recall is 1.

Tests: tests/lax/test_lax_rest.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import neg
from gpuflow.ops.sorting.sort import top_k


def approx_max_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> list[Array]:
    """Return the ``k`` largest elements along a dimension, and their indices; the result is exact.

    Args:
        operand: array of floats.
        k: number of results, at least 1 and at most the size of the dimension.
        reduction_dimension: the dimension to search.
        recall_target, reduction_input_size_override: accepted as in JAX, for approximations.
        aggregate_to_topk: accepted as in JAX, where False may return more than ``k`` unsorted
            results. gpuflow always returns ``k`` sorted results.

    Returns:
        Values in descending order and their i32 indices; derivatives are those of ``top_k``.

    Raises:
        TypeError: if the argument is a scalar.
        ValueError: if operands are not floats, or ``k`` is out of range.

    Example:
        >>> lax.approx_max_k(jnp.array([1.0, 4.0, 3.0]), 2)
        [Array([4., 3.], dtype=float32), Array([1, 2], dtype=int32)]
    """
    del recall_target, reduction_input_size_override, aggregate_to_topk
    dim = _checked("approx_max_k", operand, k, reduction_dimension)
    return top_k(operand, k, axis=dim)


def approx_min_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> list[Array]:
    """Return the ``k`` smallest elements along a dimension, and their indices; it is exact.

    Args:
        operand: array of floats.
        k: number of results, at least 1 and at most the size of the dimension.
        reduction_dimension: the dimension to search.
        recall_target, reduction_input_size_override: accepted as in JAX, for approximations.
        aggregate_to_topk: accepted as in JAX; there are always ``k`` sorted results.

    Returns:
        Values in ascending order and their i32 indices; derivatives are those of ``top_k``.

    Raises:
        TypeError: if the argument is a scalar.
        ValueError: if operands are not floats, or ``k`` is out of range.

    Example:
        >>> lax.approx_min_k(jnp.array([1.0, 4.0, 3.0]), 2)
        [Array([1., 3.], dtype=float32), Array([0, 2], dtype=int32)]
    """
    del recall_target, reduction_input_size_override, aggregate_to_topk
    dim = _checked("approx_min_k", operand, k, reduction_dimension)
    values, positions = top_k(neg(operand), k, axis=dim)
    return [neg(values), positions]


def _checked(name: str, operand: Any, k: int, dimension: int) -> int:
    """Check the arguments, and return the dimension as a nonnegative int."""
    aval = aval_of(operand)
    check(
        aval.ndim > 0,
        lambda: f"[{name}] the operand must have a dimension; got {aval}. Fix: x[None].",
    )
    check(
        dtypes.is_floating(aval.dtype),
        lambda: f"[{name}] the operand must be floats; got {aval}. Fix: x.astype('float32').",
        ValueError,
    )
    dim = canonicalize_axis(dimension, aval.ndim, name)
    check(
        0 < k <= aval.shape[dim],
        lambda: (
            f"[{name}] k must be in [1, {aval.shape[dim]}], the size of dimension {dim}; got "
            f"{k} for {aval}. Fix: choose another k."
        ),
        ValueError,
    )
    return dim
