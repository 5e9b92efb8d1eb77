"""In-place updates of an array: the compiled form of scatters and dynamic_update_slices.

The compiler makes these two ops from others (``simplify``), after all transformations: the flat
indices of windows, and the update itself.

Tests: tests/ops/test_every_op.py, tests/ops/test_gather_scatter.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.base.util import row_major_strides
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.jaxpr import Atom, Literal
from gpuflow.core.lowering import Elementwise, Unwritten, Update
from gpuflow.core.lowering.rewrite_rules import EqnBuilder
from gpuflow.kir.scalar import COMPONENT_DTYPES, COMPUTE_DTYPES, NARROW_DTYPES
from gpuflow.ops.define import define
from gpuflow.ops.elementwise.comparison import and_p
from gpuflow.ops.elementwise.nary import broadcast_shape
from gpuflow.ops.handwritten.blocks import in_any_order, in_runs
from gpuflow.ops.layout.axes import broadcast_in_dim_p
from gpuflow.ops.layout.iota import iota_p

_INDEX = ShapedArray((), np.dtype(np.int64))
_TRUE = ShapedArray((), np.dtype(np.bool_))
_FUNCTIONS = {
    "add": "add",
    "multiply": "mul",
    "minimum": "min",
    "maximum": "max",
}


# --- offsets -------------------------------------------------------------------------------


def _offsets_shape(*avals: ShapedArray, checked: bool) -> list[ShapedArray]:
    del checked
    shape = broadcast_shape("window_places", avals)
    return [ShapedArray(shape, _INDEX.dtype), ShapedArray(shape, _TRUE.dtype)]


def _clipped(xp: Any, start: Any, last: Any) -> Any:
    if start.dtype.kind == "u":
        return xp.minimum(start, last.astype(start.dtype)).astype(np.int64)
    return xp.clip(start.astype(np.int64), 0, last)


def _offsets_impl(xp: Any, *arrays: Any, checked: bool) -> list[Any]:
    offset, in_bounds = np.int64(0), np.bool_(True)
    for start, last, stride in zip(*[iter(arrays)] * 3, strict=True):
        if checked:
            in_bounds = in_bounds & (start >= 0) & (start.astype(np.int64) <= last)
        offset = offset + _clipped(xp, start, last) * stride
    shape = np.broadcast_shapes(*[array.shape for array in arrays])
    return [
        xp.array(xp.broadcast_to(offset, shape)),
        xp.array(xp.broadcast_to(in_bounds, shape)),
    ]


def _offsets_body(builder: Any, values: Any, in_avals: Any, out: Any, params: Any) -> Any:
    del in_avals, out
    zero = builder.const("int64", 0)
    offset, in_bounds = zero, builder.const("bool", True)
    for start, last, stride in zip(*[iter(values)] * 3, strict=True):
        bound = last
        if start.dtype == "uint64":
            bound = builder.cast(last, "uint64")
        else:
            start = builder.cast(start, "int64")
        if params["checked"]:
            valid = builder.apply("le", start, bound)
            if start.dtype == "int64":
                valid = builder.apply("and", valid, builder.apply("ge", start, zero))
            in_bounds = builder.apply("and", in_bounds, valid)
        least = builder.cast(builder.apply("min", start, bound), "int64")
        least = builder.apply("max", least, zero)
        offset = builder.apply("add", offset, builder.apply("mul", least, stride))
    return offset, in_bounds


# Operands in triples: starts, the last start in bounds, and the stride in elements.
window_offsets_p = define(
    "window_places",
    shape=_offsets_shape,
    impl=_offsets_impl,
    lower=Elementwise(_offsets_body),
    multiple_results=True,
)


# --- updates -------------------------------------------------------------------------------


def _update_shape(
    x: ShapedArray,
    offsets: ShapedArray,
    in_bounds: ShapedArray,
    windows: ShapedArray,
    **params: Any,
) -> ShapedArray:
    del in_bounds, params
    assert windows.shape[: offsets.ndim] == offsets.shape and windows.dtype == x.dtype
    return ShapedArray(x.shape, x.dtype)


def _update_impl(
    xp: Any,
    x: Any,
    offsets: Any,
    in_bounds: Any,
    windows: Any,
    *,
    window_dims: tuple[int, ...],
    combine: str,
    repeats: bool,
) -> Any:
    del repeats
    out = xp.array(x, copy=True)
    strides = row_major_strides(x.shape)
    rank = offsets.ndim
    indices = offsets.reshape(offsets.shape + (1,) * len(window_dims))
    for k, d in enumerate(window_dims):
        aligned = [1] * windows.ndim
        aligned[rank + k] = -1
        indices = indices + (xp.arange(windows.shape[rank + k]) * strides[d]).reshape(aligned)
    mask = in_bounds.reshape(in_bounds.shape + (1,) * (windows.ndim - in_bounds.ndim))
    mask = xp.broadcast_to(mask, windows.shape).reshape(-1)
    indices = xp.broadcast_to(indices, windows.shape).reshape(-1)[mask]
    flat, values = out.reshape(-1), windows.reshape(-1)[mask]
    if combine == "set":
        flat[indices] = values
    else:
        getattr(xp, combine).at(flat, indices, values)
    return out


def _repeats(params: dict[str, Any]) -> bool:
    return params["repeats"]


def _function(params: dict[str, Any]) -> str | None:
    return _FUNCTIONS.get(params["combine"])


def _window(params: dict[str, Any]) -> tuple[int, ...]:
    return params["window_dims"]


def _only_if(eqn: Any, flag: Atom, build: EqnBuilder) -> Any:
    x, offsets, mask, windows = eqn.inputs
    if type(mask) is Literal and mask.value:
        mask = flag
    else:
        everywhere = build.apply(
            broadcast_in_dim_p, flag, shape=mask.aval.shape, broadcast_dimensions=()
        )
        mask = build.apply(and_p, mask, everywhere)
    return build.apply(eqn.primitive, x, offsets, mask, windows, **eqn.params)


update_windows_p = define(
    "update_windows",
    shape=_update_shape,
    impl=_update_impl,
    lower=Update(_function, _window, _repeats, _only_if, in_runs, in_any_order),
)


# --- memory that updates write --------------------------------------------------------------


def _unwritten_impl(xp: Any, *, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    return xp.zeros(shape, storage_dtype(dtype))


unwritten_p = define(
    "unwritten",
    shape=lambda *, shape, dtype: ShapedArray(shape, dtype),
    impl=_unwritten_impl,
    lower=Unwritten(),
    size_params=frozenset({"shape"}),
)


# --- for the ops that become updates --------------------------------------------------------


@record
class Component:
    """Starts of windows along one dimension.

    Attributes:
        start: their indices, of the indices' shape or a scalar.
        last: the largest start in bounds.
        stride: stride of the dimension, in elements.
    """

    start: Atom
    last: int
    stride: int


def can_be_updated(dtype: Any, combine: str) -> bool:
    """Whether kernels can update elements of ``dtype``; 16-bit float sums use float32."""
    stored = storage_dtype(dtype)
    if stored.name in COMPONENT_DTYPES:
        return combine in ("set", "add")
    if stored.name not in (*COMPUTE_DTYPES, *NARROW_DTYPES):
        return False
    return combine == "set" or dtypes.is_integer(stored) or stored.itemsize > 2


def counted(build: EqnBuilder, shape: tuple[int, ...], dimension: int) -> Atom:
    """Each element's position along a dimension."""
    return build.apply(iota_p, dtype=_INDEX.dtype, shape=shape, dimension=dimension)


def offset_operands(build: EqnBuilder, components: Sequence[Component]) -> list[Atom]:
    """Operands of ``window_places``."""
    operands: list[Atom] = []
    for component in components:
        last = build.literal(component.last, _INDEX)
        operands += [component.start, last, build.literal(component.stride, _INDEX)]
    return operands


def _window_offsets(
    build: EqnBuilder, components: Sequence[Component], checked: bool
) -> tuple[Atom, Atom]:
    """The flat indices at which windows start, and the valid windows; see ``update``."""
    operands = offset_operands(build, components)
    always = Literal(np.bool_(True), _TRUE)
    if not operands:
        return build.literal(0, _INDEX), always
    offsets, in_bounds = build.apply(window_offsets_p, *operands, checked=checked)
    return offsets, in_bounds if checked else always


def store_concatenated(
    build: EqnBuilder, out: ShapedArray, dimension: int, arrays: Sequence[Atom]
) -> Any:
    """Build the equations that store the concatenation of arrays along a dimension.

    Returns:
        The variable of the result; None if kernels cannot hold such elements.
    """
    if dtypes.is_extended(out.dtype) or not can_be_updated(out.dtype, "set"):
        return None
    stride, start = row_major_strides(out.shape)[dimension], 0
    result = build.apply(unwritten_p, shape=out.shape, dtype=out.dtype)
    for array in arrays:
        offset = build.literal(start * stride, _INDEX)
        result = build.apply(
            update_windows_p,
            result,
            offset,
            Literal(np.bool_(True), _TRUE),
            array,
            window_dims=tuple(range(len(out.shape))),
            combine="set",
            repeats=False,
        )
        start += array.aval.shape[dimension]
    return result


def update(
    build: EqnBuilder,
    x: Atom,
    components: Sequence[Component],
    windows: Atom,
    window_dims: tuple[int, ...],
    combine: str,
    *,
    checked: bool,
    repeats: bool,
) -> Any:
    """Build the equations of an update.

    Args:
        build: makes them.
        x: the array.
        components: starts of windows; a dimension without one starts at 0.
        windows: of shape (*indices' shape, *window).
        window_dims: the dimensions of ``x`` along which windows extend.
        combine: "set", or the NumPy function that combines elements.
        checked: out-of-bounds windows are dropped; else they are clamped.
        repeats: elements may be updated more than once, and are in the order of the windows.

    Returns:
        The variable of the result.
    """
    offset, in_bounds = _window_offsets(build, components, checked)
    return build.apply(
        update_windows_p,
        x,
        offset,
        in_bounds,
        windows,
        window_dims=window_dims,
        combine=combine,
        repeats=repeats,
    )
