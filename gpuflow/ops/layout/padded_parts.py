"""Padding as other ops: between elements, as borders of rows; around what is computed, in parts."""

from __future__ import annotations

from typing import Any

from gpuflow.ops.indexing.updating import store_parts
from gpuflow.ops.layout.axes import broadcast_in_dim_p, reshape_p


def padded_rows(eqn: Any, build: Any) -> list[Any] | None:
    """Padding between elements: each element and what follows it is a row, which has borders.

        0 0 a 0 b 0 c          rows of two, behind 0: 0 0, a 0, b 0, c 0, without the last

    Else a remainder would say of each element of the result whether it is padding.
    """
    x, value = eqn.inputs
    if 0 in x.aval.shape:
        return None
    split: list[int] = []
    padded: list[tuple[int, int, int]] = []
    joined, rest = [], []
    for size, (low, high, interior) in zip(
        x.aval.shape, eqn.params["padding_config"], strict=True
    ):
        split.append(size)
        padded.append((0, 0, 0))
        joined.append(size * (interior + 1))
        # What goes in front is whole rows and the beginning of each.
        before = low % (interior + 1)
        if interior:
            split.append(1)
            padded.append((before, interior - before, 0))
        rest.append((low - before, high - interior + before, 0))
    rows = build.apply(reshape_p, x, new_sizes=tuple(split))
    rows = build.apply(eqn.primitive, rows, value, padding_config=tuple(padded))
    out = build.apply(reshape_p, rows, new_sizes=tuple(joined))
    if any(low or high for low, high, _ in rest):
        out = build.apply(eqn.primitive, out, value, padding_config=tuple(rest))
    return [out]


def padded_in_parts(eqn: Any, build: Any) -> Any:
    """What is around and what it is around, where each lies in one range."""
    x, value = eqn.inputs
    out, config = eqn.outputs[0].aval, eqn.params["padding_config"]
    edges = [d for d, edge in enumerate(config) if edge != (0, 0, 0)]
    if len(edges) != 1 or min(config[edges[0]]) < 0 or config[edges[0]][2]:
        return None
    (d,) = edges
    if any(size != 1 for size in out.shape[:d]):
        return None

    def filled(size: int) -> list[Any]:
        shape = (*out.shape[:d], size, *out.shape[d + 1 :])
        whole = build.apply(broadcast_in_dim_p, value, shape=shape, broadcast_dimensions=())
        return [whole] if size else []

    low, high, _ = config[d]
    return store_parts(build, out, d, [*filled(low), x, *filled(high)])
