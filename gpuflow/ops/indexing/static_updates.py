"""Selects at static indices as in-place updates.

    select_n(iota >= 2 & iota < 7, x, new)     is  x with 5 elements of new, at 2
    select_n(rem(iota - 2, 3) == 0, x, new)    is  x with each third element of new, from 2 on

``x.at[2:7].set(new)`` is such a select, and so are its derivatives, and ``jnp.where`` of a compared
``jnp.arange``. The compiler rewrites it as an update if that happens in the memory of ``x``.

Tests: tests/control/test_inputs_unchanged.py, tests/compiler/test_updates.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm, prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.util import row_major_strides
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Atom, Eqn, Var
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.ops.elementwise.arithmetic import add_p, mul_p, rem_p, sub_p
from gpuflow.ops.elementwise.comparison import and_p, eq_p, ge_p, gt_p, le_p, lt_p
from gpuflow.ops.elementwise.convert import copy_p
from gpuflow.ops.elementwise.identities import constant_of
from gpuflow.ops.elementwise.select import select_n_p
from gpuflow.ops.indexing.updating import can_be_updated, counted, update_windows_p
from gpuflow.ops.layout.axes import broadcast_in_dim_p, squeeze_p
from gpuflow.ops.layout.iota import iota_p
from gpuflow.ops.layout.slicing import slice_p

Bound = tuple[int, int, int]  # start, stop and step

# Range of the indices in [0, size) for which a comparison with a scalar holds.
_SPANS: dict[Any, Callable[[int, int], range]] = {
    eq_p: lambda constant, size: range(constant, constant + 1),
    lt_p: lambda constant, size: range(constant),
    le_p: lambda constant, size: range(constant + 1),
    ge_p: lambda constant, size: range(constant, size),
    gt_p: lambda constant, size: range(constant + 1, size),
}

# From functions of kir.scalar to the combining functions of updates.
_COMBINED = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}


def as_choice(eqn: Eqn) -> tuple[Atom, Var] | None:
    """The predicate of a select, and the array that it may update.

    None: it does not select between two arrays.
    """
    if eqn.primitive is not select_n_p or len(eqn.inputs) != 3:
        return None
    which, old, _ = eqn.inputs
    out = eqn.outputs[0].aval
    if type(old) is not Var or old.aval.shape != out.shape or not dtypes.is_bool(which.aval.dtype):
        return None
    return (which, old) if can_be_updated(out.dtype, "set") else None


def as_update(eqn: Eqn, definition: DefinitionLookup, build: EqnBuilder) -> bool:
    """Build a select as an update; its output is that of the last equation.

    Args:
        eqn: the select, which ``as_choice`` recognizes.
        definition: maps an atom to its defining equation.
        build: makes equations.

    Returns:
        Whether it is one: its indices are static, with a constant step in each dimension.
    """
    which, old, new = eqn.inputs
    shape = old.aval.shape
    spans = _spans(which, definition)
    if spans is None:
        return False
    spans_by_dim = [spans.get(d, range(size)) for d, size in enumerate(shape)]
    window = [len(span) for span in spans_by_dim]
    if 0 in window:
        return False
    bounds = [(span[0], span[-1] + 1, span.step if len(span) > 1 else 1) for span in spans_by_dim]
    dims = tuple(d for d, size in enumerate(window) if size != 1)
    combine, values = _combined(old, new, definition)
    sizes = [window[d] for d in dims]
    elements = _over(_cut(values, bounds, definition, build), sizes, dims, build)
    # Elements read from the array itself are stored first, unless other ops do so anyway.
    reads_it = any(made.primitive is slice_p and made.inputs[0] is old for made in build.eqns)
    source = _data_movement_source(values, definition)
    if 2 * prod(window) > prod(shape) and (reads_it or source is old):
        return False
    if source is not values:
        elements = build.apply(copy_p, elements)  # a view of the updated array is read too late
    # Windows begin at the indices of all dimensions up to the last one with a step.
    rank = max((k + 1 for k, d in enumerate(dims) if bounds[d][2] != 1), default=0)
    offsets = _window_starts(shape, bounds, dims[:rank], build)
    everywhere = build.literal(True, ShapedArray((), np.dtype(np.bool_)))
    build.apply(
        update_windows_p,
        old,
        offsets,
        everywhere,
        elements,
        window_dims=dims[rank:],
        combine=combine,
        repeats=False,
    )
    return True


def _window_starts(
    shape: Sequence[int], bounds: Sequence[Bound], dims: Sequence[int], build: EqnBuilder
) -> Atom:
    """Row-major offsets at which windows begin, for each index of some dimensions."""
    strides = row_major_strides(shape)
    index = ShapedArray((), np.dtype(np.int64))
    first = sum(start * by for (start, *_), by in zip(bounds, strides))
    offsets: Atom = build.literal(first, index)
    sizes = tuple(len(range(*bounds[d])) for d in dims)
    for k, d in enumerate(dims):
        distance = build.literal(bounds[d][2] * strides[d], index)
        shift = build.apply(mul_p, counted(build, sizes, k), distance)
        offsets = build.apply(add_p, shift, offsets)
    return offsets


def _combined(old: Atom, new: Atom, definition: DefinitionLookup) -> tuple[str, Atom]:
    """The combining function and operand of an update."""
    source = definition(new)
    if source is None or not source.primitive.lower.is_elementwise:
        return "set", new
    body = source.primitive.lower.body
    combine = _COMBINED.get(body) if isinstance(body, str) else None
    if combine is None or not can_be_updated(old.aval.dtype, combine):
        return "set", new
    others = [atom for atom in source.inputs if atom is not old]
    return (combine, others[0]) if len(others) == 1 else ("set", new)


def _data_movement_source(atom: Atom, definition: DefinitionLookup) -> Atom:
    """The array that ``atom`` is a pure data movement of."""
    source = definition(atom)
    while source is not None and source.primitive.lower.selects:
        atom = source.inputs[0]
        source = definition(atom)
    return atom


def _spans(which: Atom, definition: DefinitionLookup) -> dict[int, range] | None:
    """Index ranges in which a predicate holds, by dimension; None: undecided.

    The predicate is a conjunction of one range for each dimension.
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
    return _compared(source, definition) if source.primitive in _SPANS else None


def _compared(eqn: Eqn, definition: DefinitionLookup) -> dict[int, range] | None:
    """Index range in which a comparison with a scalar holds."""
    source, constant = definition(eqn.inputs[0]), constant_of(eqn.inputs[1], definition)
    first, step = 0, None
    if source is not None and source.primitive is rem_p and eqn.primitive is eq_p:
        step = constant_of(source.inputs[1], definition)
        source = definition(source.inputs[0]) if step is not None else None
        if source is not None and source.primitive is sub_p:
            first = constant_of(source.inputs[1], definition)
            source = definition(source.inputs[0])
    if source is None or source.primitive is not iota_p or constant is None or first is None:
        return None
    dtype, dimension = source.params["dtype"], source.params["dimension"]
    size = source.params["shape"][dimension]
    if not dtypes.is_integer(dtype) or dtype.kind not in "iu" or np.iinfo(dtype).max < size - 1:
        return None
    constant, first = int(constant), int(first)
    if step is None:
        span = _SPANS[eqn.primitive](constant, size)
    elif 0 <= constant < step and (first == 0 or (dtype.kind == "i" and 0 < first < size)):
        # A remainder has the sign of the dividend.
        begin = first + constant if constant else first % int(step)
        span = range(begin, size, int(step))
    else:
        return None
    span = _common(span, range(size))
    return {} if size == 1 and span else {dimension: span}  # a size of 1 may repeat


def _both(one: dict[int, range] | None, other: dict[int, range] | None) -> dict[int, range] | None:
    if one is None or other is None:
        return None
    result = dict(one)
    for d, span in other.items():
        result[d] = _common(result[d], span) if d in result else span
    return result


def _common(one: range, other: range) -> range:
    """Intersection of two ranges."""
    if one.step < other.step:
        one, other = other, one
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    one = range(start + (one.start - start) % one.step, stop, one.step)
    first = next((index for index in one[: other.step] if index in other), stop)
    return range(first, stop, lcm(one.step, other.step))


def _cut(
    atom: Atom, bounds: Sequence[Bound], definition: DefinitionLookup, build: EqnBuilder
) -> Atom:
    """A slice of an elementwise op's operand, computed for these elements alone.

    Sizes of 1 and scalars broadcast, and stay.
    """
    shape = atom.aval.shape
    own_bounds = [(0, 1, 1) if size == 1 else bound for size, bound in zip(shape, bounds)]
    if all(bound == (0, size, 1) for size, bound in zip(shape, own_bounds)):
        return atom
    source = definition(atom)

    def cut(operand: Atom, bounds: Sequence[Bound]) -> Atom:
        return _cut(operand, bounds, definition, build)

    made = None
    if source is not None:
        rule = source.primitive.lower
        # A value with other users is stored, so that it need not be computed again.
        is_own = len(source.outputs) == 1 and definition.is_read_once(atom)
        if rule.is_elementwise and is_own:
            operands = [cut(operand, own_bounds) for operand in source.inputs]
            made = build.apply(source.primitive, *operands, **source.params)
        elif rule.sliced is not None:
            made = rule.sliced(source, own_bounds, cut, definition, build)
    if made is not None:
        return made
    starts, limits, steps = zip(*own_bounds)
    strides = None if all(step == 1 for step in steps) else steps
    return build.apply(slice_p, atom, start_indices=starts, limit_indices=limits, strides=strides)


def _over(atom: Atom, sizes: Sequence[int], dims: Sequence[int], build: EqnBuilder) -> Atom:
    """A broadcast operand of an elementwise op, over the dimensions of a window."""
    shape = atom.aval.shape
    dropped = tuple(d for d, size in enumerate(shape) if size == 1)
    remaining = [d for d, size in enumerate(shape) if size != 1]
    if dropped:
        atom = build.apply(squeeze_p, atom, dimensions=dropped)
    if atom.aval.shape == tuple(sizes):
        return atom
    positions = tuple(dims.index(d) for d in remaining)
    return build.apply(broadcast_in_dim_p, atom, shape=tuple(sizes), broadcast_dimensions=positions)
