"""``associative_scan``: parallel prefix of an associative operation, in logarithmic depth.

Tests: tests/control/test_control_flow.py, tests/control/test_control_nesting.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gpuflow.base import tree
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.ops.layout.axes import broadcast_in_dim, reshape
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.rev import rev
from gpuflow.ops.layout.slicing import slice_in_dim

_T = TypeVar("_T")

Leaves = list[Any]


@explained
def associative_scan(
    fn: Callable[[_T, _T], _T], elems: _T, reverse: bool = False, axis: int = 0
) -> _T:
    """Compute all prefixes ``e0``, ``fn(e0, e1)``, ``fn(fn(e0, e1), e2)``, ... along an axis.

    Args:
        fn: an associative function of two trees like ``elems``, elementwise over ``axis``.
        elems: a pytree of arrays with the same size along ``axis``.
        reverse: whether to scan from the end.
        axis: the axis to scan along.

    Returns:
        A pytree like ``elems``.

    Raises:
        TypeError: if ``fn`` is not callable.
        ValueError: if sizes along ``axis`` differ.

    Source: G. Blelloch, Prefix sums and their applications, 1990: combine pairs, scan the half as
    many results, and fill in the elements between.

    Example:
        >>> lax.associative_scan(jnp.multiply, jnp.array([1, 2, 3, 4]))
        Array([ 1,  2,  6, 24], dtype=int32)
    """
    check(
        callable(fn),
        lambda: f"[associative_scan] fn must be callable; got {fn!r}. Fix: pass a function.",
    )
    leaves, treedef = tree.flatten(elems)
    if not leaves:
        return elems
    axes = [canonicalize_axis(axis, aval_of(x).ndim, "associative_scan") for x in leaves]
    sizes = [aval_of(x).shape[d] for x, d in safe_zip(leaves, axes)]
    check(
        len(set(sizes)) == 1,
        lambda: (
            f"[associative_scan] sizes along the axis must be equal; got {sizes}. "
            "Fix: slice the arrays to one size."
        ),
        ValueError,
    )
    if reverse:
        leaves = [rev(x, (d,)) for x, d in safe_zip(leaves, axes)]

    def combine(first: Leaves, second: Leaves) -> Leaves:
        result = fn(tree.unflatten(treedef, first), tree.unflatten(treedef, second))
        return tree.leaves(result)

    outs = _prefixes(combine, leaves, axes)
    if reverse:
        outs = [rev(x, (d,)) for x, d in safe_zip(outs, axes)]
    return tree.unflatten(treedef, outs)


def _prefixes(
    combine: Callable[[Leaves, Leaves], Leaves], elements: Leaves, axes: Sequence[int]
) -> Leaves:
    count = aval_of(elements[0]).shape[axes[0]]
    if count < 2:
        return elements

    def every_second(values: Leaves, start: int, stop: int) -> Leaves:
        return [slice_in_dim(x, start, stop, 2, d) for x, d in safe_zip(values, axes)]

    pairs = combine(every_second(elements, 0, count - 1), every_second(elements, 1, count))
    odd = _prefixes(combine, pairs, axes)  # prefixes that end at 1, 3, 5, ...
    before = odd
    if count % 2 == 0:
        before = [slice_in_dim(x, 0, count // 2 - 1, 1, d) for x, d in safe_zip(odd, axes)]
    even = every_second(elements, 2, count)
    if aval_of(even[0]).shape[axes[0]]:
        even = combine(before, even)
    first = [slice_in_dim(x, 0, 1, 1, d) for x, d in safe_zip(elements, axes)]
    even = [concatenate([x, y], d) for x, y, d in safe_zip(first, even, axes)]
    return [_interleave(x, y, d) for x, y, d in safe_zip(even, odd, axes)]


def _interleave(even: Any, odd: Any, axis: int) -> Any:
    """Interleave ``even[0], odd[0], even[1], ...`` along ``axis``; ``even`` may be one longer."""
    shape = aval_of(odd).shape
    count, size = shape[axis], aval_of(even).shape[axis]
    dims = [d for d in range(len(shape) + 1) if d != axis + 1]
    pairs = (*shape[: axis + 1], 1, *shape[axis + 1 :])
    sides = [broadcast_in_dim(x, pairs, dims) for x in (slice_in_dim(even, 0, count, 1, axis), odd)]
    merged = (*shape[:axis], 2 * count, *shape[axis + 1 :])
    both = reshape(concatenate(sides, axis + 1), merged)
    if size == count:
        return both
    return concatenate([both, slice_in_dim(even, count, size, 1, axis)], axis)
