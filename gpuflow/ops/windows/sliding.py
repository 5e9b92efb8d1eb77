"""Common code of ops on sliding windows: shapes, slices, an additional batch dimension.

Tests: tests/ops/test_windows.py, tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray
from gpuflow.core.halo import Halo, Sliding, sliding_halo
from gpuflow.ops.contractions.convolution import Dims, Pads, dilated, window_count
from gpuflow.ops.define import is_ordered


def window_counts(
    name: str,
    x: ShapedArray,
    window_dimensions: Dims,
    window_strides: Dims,
    padding: Pads,
    base_dilation: Dims,
    window_dilation: Dims,
) -> Dims:
    """Number of positions of the window, in each dimension.

    Raises:
        ValueError: if sizes, strides, padding or dilations do not match ``x``.
    """
    geometry = (window_dimensions, window_strides, padding, base_dilation, window_dilation)
    check(
        all(len(values) == x.ndim for values in geometry)
        and all(n >= 1 for values in (*geometry[:2], *geometry[3:]) for n in values),
        lambda: (
            f"[{name}] window sizes, strides, margins and dilations must be given for each "
            f"dimension and be at least 1; got {geometry} for {x}. Fix: 1 where nothing slides."
        ),
        ValueError,
    )
    return tuple(
        window_count(dilated(n, db), dilated(w, dw), stride, pads)
        for n, w, stride, pads, db, dw in zip(x.shape, *geometry, strict=True)
    )


def window_slices(counts: Dims, offsets: Sequence[int], strides: Dims) -> tuple[slice, ...]:
    """Slices of the elements at ``offsets`` of all windows."""
    return tuple(
        slice(offset, offset + (count - 1) * stride + 1, stride) if count else slice(0, 0)
        for count, offset, stride in zip(counts, offsets, strides, strict=True)
    )


# Parameters of a dimension in which each element is a window.
_TRIVIAL = {
    "window_dimensions": 1,
    "window_strides": 1,
    "padding": (0, 0),
    "base_dilation": 1,
    "window_dilation": 1,
}


def with_leading(params: dict[str, Any]) -> dict[str, Any]:
    """The params with a leading batch dimension."""
    changed = {
        name: (trivial, *params[name])
        for name, trivial in _TRIVIAL.items()
        if params.get(name) is not None
    }
    return {**params, **changed}


def has_bounds(dtype: Any) -> bool:
    """Whether ``dtype`` has a smallest and a largest number, for padding."""
    return is_ordered(dtype) and not dtypes.is_bool(dtype)


def window_halo(
    neutral: Callable[[Any], Any], ins: Sequence[ShapedArray], out: ShapedArray, params: Any
) -> Halo:
    """Rows of a block of a window reduction; ``neutral`` gives the padding of a dtype."""
    windows = {
        dim: Sliding(stride, low, base, dilated(window, dilation))
        for dim, (window, stride, (low, _), base, dilation) in enumerate(
            zip(
                params["window_dimensions"],
                params["window_strides"],
                params["padding"],
                params["base_dilation"],
                params["window_dilation"],
                strict=True,
            )
        )
    }

    def apply(bind: Any, pads: Any, *operands: Any) -> Any:
        padding = tuple(pads.get(dim, edges) for dim, edges in enumerate(params["padding"]))
        return bind(*operands, **{**params, "padding": padding})

    return sliding_halo(
        windows,
        lambda dim, rows: [(dim, *rows)] * len(ins),
        apply,
        lambda number, operands: neutral(out.dtype),
    )


def window_partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Any:
    """Dimensions along which each element is a window."""
    ones = (1,) * out.ndim
    trivial = [
        (d, d)
        for d, (window, stride, edges, base) in enumerate(
            zip(
                params["window_dimensions"],
                params["window_strides"],
                params["padding"],
                params.get("base_dilation") or ones,
                strict=True,
            )
        )
        if (window, stride, base) == (1, 1, 1) and tuple(edges) == (0, 0)
    ]
    return [trivial] * len(ins)
