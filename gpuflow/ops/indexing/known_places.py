"""Choices at known places as updates.

    select_n(iota >= 2 & iota < 7, x, new)  is  x with 5 elements of new, at 2

``x.at[2:7].set(new)`` is such a choice, and so are its derivatives, and ``jnp.where`` of a compared
``jnp.arange``. The compiler makes an update of it where that happens in the memory of ``x``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.util import row_major_strides
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Atom, Eqn, Var
from gpuflow.core.lowering import Elementwise, Indexed, Layout
from gpuflow.ops.elementwise.comparison import and_p, eq_p, ge_p, gt_p, le_p, lt_p
from gpuflow.ops.elementwise.identities import number_of
from gpuflow.ops.elementwise.select import select_n_p
from gpuflow.ops.indexing.updating import can_be_updated, update_windows_p
from gpuflow.ops.layout.axes import broadcast_in_dim_p, squeeze_p
from gpuflow.ops.layout.iota import iota_p
from gpuflow.ops.layout.slicing import slice_p

Span = tuple[int, int]  # the first index, and the one behind the last
Bound = tuple[int, int, int]

# Where a comparison of an index in [0, size) with a number holds.
_SPANS: dict[Any, Callable[[int, int], Span]] = {
    eq_p: lambda number, size: (number, number + 1),
    lt_p: lambda number, size: (0, number),
    le_p: lambda number, size: (0, number + 1),
    ge_p: lambda number, size: (number, size),
    gt_p: lambda number, size: (number + 1, size),
}

# Of functions of kir.scalar, what updates call them.
_COMBINED = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}


def chosen_array(eqn: Eqn) -> Var | None:
    """The array that a choice may be an update of; None: it is no choice between two."""
    if eqn.primitive is not select_n_p or len(eqn.inputs) != 3:
        return None
    which, old, _ = eqn.inputs
    out = eqn.outputs[0].aval
    if type(old) is not Var or old.aval.shape != out.shape or not dtypes.is_bool(which.aval.dtype):
        return None
    return old if can_be_updated(out.dtype, "set") else None


def as_update(eqn: Eqn, definition: Any, build: Any) -> bool:
    """Build the update that a choice is; its output is that of the last equation.

    Args:
        eqn: the choice; it has a ``chosen_array``.
        definition: says what made an atom.
        build: makes equations.

    Returns:
        Whether there is one: the places are known, and are one window.
    """
    which, old, new = eqn.inputs
    shape = old.aval.shape
    spans = _spans(which, definition)
    if spans is None:
        return False
    bounds = [(*spans.get(d, (0, size)), 1) for d, size in enumerate(shape)]
    if any(start >= limit for start, limit, _ in bounds):
        return False
    window = tuple(limit - start for start, limit, _ in bounds)
    dims = tuple(d for d, size in enumerate(window) if size != 1)
    combine, values = _combined(old, new, definition)
    sizes = [window[d] for d in dims]
    elements = _over(_cut(values, bounds, definition, build), sizes, dims, build)
    # What is read of the array itself is stored before, unless other ops do so anyway.
    reads_it = any(made.primitive is slice_p and made.inputs[0] is old for made in build.eqns)
    if 2 * prod(window) > prod(shape) and (reads_it or _is_part(values, old, definition)):
        return False
    first = sum(start * by for (start, *_), by in zip(bounds, row_major_strides(shape)))
    place = build.literal(first, ShapedArray((), np.dtype(np.int64)))
    everywhere = build.literal(True, ShapedArray((), np.dtype(np.bool_)))
    build.apply(
        update_windows_p, old, place, everywhere, elements,
        window_dims=dims, combine=combine, repeats=False,
    )  # fmt: skip
    return True


def _combined(old: Atom, new: Atom, definition: Any) -> tuple[str, Atom]:
    """How an update combines elements, and with what."""
    source = definition(new)
    if source is None or not isinstance(source.primitive.lower, Elementwise):
        return "set", new
    body = source.primitive.lower.body
    combine = _COMBINED.get(body) if isinstance(body, str) else None
    if combine is None or not can_be_updated(old.aval.dtype, combine):
        return "set", new
    others = [atom for atom in source.inputs if atom is not old]
    return (combine, others[0]) if len(others) == 1 else ("set", new)


def _is_part(atom: Atom, array: Atom, definition: Any) -> bool:
    """Whether elements of an array have only been moved."""
    source = definition(atom)
    while source is not None and _moves(source.primitive.lower):
        atom = source.inputs[0]
        source = definition(atom)
    return atom is array


def _moves(rule: Any) -> bool:
    return isinstance(rule, Layout) or (isinstance(rule, Indexed) and rule.moves)


def _spans(which: Atom, definition: Any) -> dict[int, Span] | None:
    """The indices at which a predicate holds, of dimensions that matter; None: not known.

    An index of each dimension is inside independently of the others.
    """
    source = definition(which)
    if source is None:
        return None
    if source.primitive is and_p:
        return _both(*[_spans(atom, definition) for atom in source.inputs])
    if source.primitive is broadcast_in_dim_p:
        inner = _spans(source.inputs[0], definition)
        dims = source.params["broadcast_dimensions"]
        return None if inner is None else {dims[d]: span for d, span in inner.items()}
    if source.primitive not in _SPANS:
        return None
    counted, number = definition(source.inputs[0]), number_of(source.inputs[1], definition)
    if counted is None or counted.primitive is not iota_p or number is None:
        return None
    dtype, dimension = counted.params["dtype"], counted.params["dimension"]
    size = counted.params["shape"][dimension]
    if not dtypes.is_integer(dtype) or dtype.kind not in "iu" or np.iinfo(dtype).max < size - 1:
        return None
    start, limit = _SPANS[source.primitive](int(number), size)
    return {dimension: (max(start, 0), min(limit, size))}


def _both(one: dict[int, Span] | None, other: dict[int, Span] | None) -> dict[int, Span] | None:
    if one is None or other is None:
        return None
    result = dict(one)
    for d, (start, limit) in other.items():
        first, last = result.get(d, (start, limit))
        result[d] = max(first, start), min(last, limit)
    return result


def _cut(atom: Atom, bounds: Sequence[Bound], definition: Any, build: Any) -> Atom:
    """A slice of what stands in an elementwise op, computed for these elements alone.

    Sizes of 1 and scalars repeat, and stay.
    """
    shape = atom.aval.shape
    own = [(0, 1, 1) if size == 1 else bound for size, bound in zip(shape, bounds)]
    if all(bound == (0, size, 1) for size, bound in zip(shape, own)):
        return atom
    source = definition(atom)

    def cut(part: Atom, bounds: Sequence[Bound]) -> Atom:
        return _cut(part, bounds, definition, build)

    made = None
    if source is not None:
        rule = source.primitive.lower
        # What others read as well is stored, so that it need not be computed again.
        is_own = len(source.outputs) == 1 and definition.is_read_once(atom)
        if isinstance(rule, Elementwise) and is_own:
            operands = [cut(part, own) for part in source.inputs]
            made = build.apply(source.primitive, *operands, **source.params)
        elif isinstance(rule, (Indexed, Layout)) and rule.sliced is not None:
            made = rule.sliced(source, own, cut, definition, build)
    if made is not None:
        return made
    starts, limits, _ = zip(*own)
    return build.apply(
        slice_p, atom, start_indices=starts, limit_indices=limits, strides=None
    )


def _over(atom: Atom, sizes: Sequence[int], dims: Sequence[int], build: Any) -> Atom:
    """What repeats in an elementwise op, over the dimensions that a window has."""
    shape = atom.aval.shape
    dropped = tuple(d for d, size in enumerate(shape) if size == 1)
    kept = [d for d, size in enumerate(shape) if size != 1]
    if dropped:
        atom = build.apply(squeeze_p, atom, dimensions=dropped)
    if atom.aval.shape == tuple(sizes):
        return atom
    places = tuple(dims.index(d) for d in kept)
    return build.apply(
        broadcast_in_dim_p, atom, shape=tuple(sizes), broadcast_dimensions=places
    )
