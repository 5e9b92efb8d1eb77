"""Rewrites of pad: interior padding as padding of rows, and padding as separate stores.

Adjacent arrays that are zero-padded and added become a concatenation: the gradient of a split.

Tests: tests/ops/test_interior_padding.py, tests/compiler/test_chunked_stores.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.primitive import registry
from gpuflow.ops.elementwise.identities import constant_of
from gpuflow.ops.indexing.updating import store_concatenated
from gpuflow.ops.layout.axes import broadcast_in_dim_p, reshape_p


def padded_rows(eqn: Any, build: EqnBuilder) -> list[Any] | None:
    """Interior padding: each element and the following padding form a padded row.

        0 0 a 0 b 0 c          rows of two, after 0: 0 0, a 0, b 0, c 0, without the last

    Otherwise a remainder would determine for each element of the result whether it is padding.
    """
    x, value = eqn.inputs
    if 0 in x.aval.shape:
        return None
    split: list[int] = []
    padded: list[tuple[int, int, int]] = []
    merged, outer = [], []
    for size, (low, high, interior) in zip(x.aval.shape, eqn.params["padding_config"], strict=True):
        split.append(size)
        padded.append((0, 0, 0))
        merged.append(size * (interior + 1))
        # Low padding is a number of full rows, and the beginning of each row.
        before = low % (interior + 1)
        if interior:
            split.append(1)
            padded.append((before, interior - before, 0))
        outer.append((low - before, high - interior + before, 0))
    rows = build.apply(reshape_p, x, new_sizes=tuple(split))
    rows = build.apply(eqn.primitive, rows, value, padding_config=tuple(padded))
    out = build.apply(reshape_p, rows, new_sizes=tuple(merged))
    if any(low or high for low, high, _ in outer):
        out = build.apply(eqn.primitive, out, value, padding_config=tuple(outer))
    return [out]


def added_pads(one: Any, other: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """The sum of two zero-padded arrays of which one begins where the other ends.

    A sum of four would compare each index with four ranges, in any order.
    """
    d = _edge(one)
    zeros = [constant_of(eqn.inputs[1], definition) for eqn in (one, other)]
    if d is None or _edge(other) != d or zeros[0] != 0 or zeros[1] != 0:
        return None
    size = one.outputs[0].aval.shape[d]
    first, last = sorted((one, other), key=lambda eqn: eqn.params["padding_config"][d][0])
    low, after, _ = first.params["padding_config"][d]
    before, high, _ = last.params["padding_config"][d]
    if size - after != before or 0 in (first.inputs[0].aval.shape[d], last.inputs[0].aval.shape[d]):
        return None
    join = registry()["concatenate"]  # it imports slices, which import this module
    concatenated = build.apply(join, first.inputs[0], last.inputs[0], dimension=d)
    config = [(0, 0, 0)] * concatenated.aval.ndim
    config[d] = (low, high, 0)
    zero = one.inputs[1]
    return build.apply(one.primitive, concatenated, zero, padding_config=tuple(config))


def _edge(eqn: Any) -> int | None:
    """The only dimension with padding, if that is around the elements; else None."""
    config = eqn.params["padding_config"]
    edges = [d for d, edge in enumerate(config) if edge != (0, 0, 0)]
    is_around = len(edges) == 1 and min(config[edges[0]]) >= 0 and not config[edges[0]][2]
    return edges[0] if is_around else None


def padded_stores(eqn: Any, build: EqnBuilder) -> Any:
    """Store the padding and the padded array one by one, if each is one range."""
    x, value = eqn.inputs
    out, config = eqn.outputs[0].aval, eqn.params["padding_config"]
    d = _edge(eqn)
    if d is None or any(size != 1 for size in out.shape[:d]):
        return None

    def filled(size: int) -> list[Any]:
        shape = (*out.shape[:d], size, *out.shape[d + 1 :])
        full = build.apply(broadcast_in_dim_p, value, shape=shape, broadcast_dimensions=())
        return [full] if size else []

    low, high, _ = config[d]
    return store_concatenated(build, out, d, [*filled(low), x, *filled(high)])
