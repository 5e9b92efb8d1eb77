"""In-place updates of an array: the compiled form of scatters and dynamic_update_slices.

The compiler makes these two ops from others (``simplify``), after all transformations: the flat
indices of windows, and the update itself.
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
from gpuflow.kir.scalar import COMPUTE_DTYPES, NARROW_DTYPES, PARTS
from gpuflow.ops.define import define
from gpuflow.ops.elementwise.comparison import and_p
from gpuflow.ops.elementwise.nary import broadcast_shape
from gpuflow.ops.handwritten.blocks import in_any_order, in_runs
from gpuflow.ops.layout.axes import broadcast_in_dim_p
from gpuflow.ops.layout.iota import iota_p

_INDEX = ShapedArray((), np.dtype(np.int64))
_TRUE = ShapedArray((), np.dtype(np.bool_))
_FUNCTIONS = {
    "add": "add", "multiply": "mul", "minimum": "min", "maximum": "max",
}  # fmt: skip


# --- places --------------------------------------------------------------------------------


def _places_shape(*avals: ShapedArray, checked: bool) -> list[ShapedArray]:
    del checked
    shape = broadcast_shape("window_places", avals)
    return [ShapedArray(shape, _INDEX.dtype), ShapedArray(shape, _TRUE.dtype)]


def _clipped(xp: Any, start: Any, last: Any) -> Any:
    if start.dtype.kind == "u":
        return xp.minimum(start, last.astype(start.dtype)).astype(np.int64)
    return xp.clip(start.astype(np.int64), 0, last)


def _places_impl(xp: Any, *arrays: Any, checked: bool) -> list[Any]:
    place, inside = np.int64(0), np.bool_(True)
    for start, last, stride in zip(*[iter(arrays)] * 3, strict=True):
        if checked:
            inside = inside & (start >= 0) & (start.astype(np.int64) <= last)
        place = place + _clipped(xp, start, last) * stride
    shape = np.broadcast_shapes(*[array.shape for array in arrays])
    return [
        xp.array(xp.broadcast_to(place, shape)),
        xp.array(xp.broadcast_to(inside, shape)),
    ]


def _places_body(builder: Any, values: Any, in_avals: Any, out: Any, params: Any) -> Any:
    del in_avals, out
    zero = builder.const("int64", 0)
    place, inside = zero, builder.const("bool", True)
    for start, last, stride in zip(*[iter(values)] * 3, strict=True):
        bound = last
        if start.dtype == "uint64":
            bound = builder.cast(last, "uint64")
        else:
            start = builder.cast(start, "int64")
        if params["checked"]:
            good = builder.apply("le", start, bound)
            if start.dtype == "int64":
                good = builder.apply("and", good, builder.apply("ge", start, zero))
            inside = builder.apply("and", inside, good)
        least = builder.cast(builder.apply("min", start, bound), "int64")
        least = builder.apply("max", least, zero)
        place = builder.apply("add", place, builder.apply("mul", least, stride))
    return place, inside


# Operands in threes: starts, the last one that is inside, and elements between neighbours.
window_places_p = define(
    "window_places",
    shape=_places_shape,
    impl=_places_impl,
    lower=Elementwise(_places_body),
    multiple_results=True,
)


# --- updates -------------------------------------------------------------------------------


def _update_shape(
    x: ShapedArray, places: ShapedArray, inside: ShapedArray, windows: ShapedArray, **params: Any
) -> ShapedArray:
    del inside, params
    assert windows.shape[: places.ndim] == places.shape and windows.dtype == x.dtype
    return ShapedArray(x.shape, x.dtype)


def _update_impl(
    xp: Any, x: Any, places: Any, inside: Any, windows: Any, *,
    window_dims: tuple[int, ...], combine: str, repeats: bool,
) -> Any:  # fmt: skip
    del repeats
    out = xp.array(x, copy=True)
    strides = row_major_strides(x.shape)
    rank = places.ndim
    spots = places.reshape(places.shape + (1,) * len(window_dims))
    for k, d in enumerate(window_dims):
        aligned = [1] * windows.ndim
        aligned[rank + k] = -1
        spots = spots + (xp.arange(windows.shape[rank + k]) * strides[d]).reshape(aligned)
    good = inside.reshape(inside.shape + (1,) * (windows.ndim - inside.ndim))
    good = xp.broadcast_to(good, windows.shape).reshape(-1)
    spots = xp.broadcast_to(spots, windows.shape).reshape(-1)[good]
    flat, values = out.reshape(-1), windows.reshape(-1)[good]
    if combine == "set":
        flat[spots] = values
    else:
        getattr(xp, combine).at(flat, spots, values)
    return out


def _repeats(params: dict[str, Any]) -> bool:
    return params["repeats"]


def _function(params: dict[str, Any]) -> str | None:
    return _FUNCTIONS.get(params["combine"])


def _window(params: dict[str, Any]) -> tuple[int, ...]:
    return params["window_dims"]


def _only_if(eqn: Any, flag: Atom, build: Any) -> Any:
    x, places, inside, windows = eqn.inputs
    if type(inside) is Literal and inside.value:
        inside = flag
    else:
        everywhere = build.apply(
            broadcast_in_dim_p, flag, shape=inside.aval.shape, broadcast_dimensions=()
        )
        inside = build.apply(and_p, inside, everywhere)
    return build.apply(eqn.primitive, x, places, inside, windows, **eqn.params)


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
    """Where windows start along one dimension.

    Attributes:
        start: their indices, of the indices' shape or a scalar.
        last: the largest index at which a window fits.
        stride: elements between neighbours.
    """

    start: Atom
    last: int
    stride: int


def can_be_updated(dtype: Any, combine: str) -> bool:
    """Whether kernels hold elements of ``dtype``; sums of 16-bit floats are made elsewhere."""
    stored = storage_dtype(dtype)
    if stored.name in PARTS:
        return combine in ("set", "add")
    if stored.name not in (*COMPUTE_DTYPES, *NARROW_DTYPES):
        return False
    return combine == "set" or dtypes.is_integer(stored) or stored.itemsize > 2


def counted(build: Any, shape: tuple[int, ...], dimension: int) -> Atom:
    """Each element's position along a dimension."""
    return build.apply(iota_p, dtype=_INDEX.dtype, shape=shape, dimension=dimension)


def place_operands(build: Any, components: Sequence[Component]) -> list[Atom]:
    """Operands of ``window_places``."""
    operands: list[Atom] = []
    for part in components:
        last = build.literal(part.last, _INDEX)
        operands += [part.start, last, build.literal(part.stride, _INDEX)]
    return operands


def places_of(
    build: Any, components: Sequence[Component], checked: bool
) -> tuple[Atom, Atom]:
    """The flat indices at which windows start, and the valid windows; see ``update``."""
    operands = place_operands(build, components)
    everywhere = Literal(np.bool_(True), _TRUE)
    if not operands:
        return build.literal(0, _INDEX), everywhere
    place, inside = build.apply(window_places_p, *operands, checked=checked)
    return place, inside if checked else everywhere


def store_parts(
    build: Any, out: ShapedArray, dimension: int, parts: Sequence[Atom]
) -> Any:
    """The equations that store arrays one after the other along a dimension.

    Returns:
        The variable of the result; None where kernels hold no such elements.
    """
    if dtypes.is_extended(out.dtype) or not can_be_updated(out.dtype, "set"):
        return None
    stride, start = row_major_strides(out.shape)[dimension], 0
    result = build.apply(unwritten_p, shape=out.shape, dtype=out.dtype)
    for part in parts:
        place = build.literal(start * stride, _INDEX)
        result = build.apply(
            update_windows_p, result, place, Literal(np.bool_(True), _TRUE), part,
            window_dims=tuple(range(len(out.shape))), combine="set", repeats=False,
        )  # fmt: skip
        start += part.aval.shape[dimension]
    return result


def update(
    build: Any, x: Atom, components: Sequence[Component], windows: Atom,
    window_dims: tuple[int, ...], combine: str, *, checked: bool, repeats: bool,
) -> Any:  # fmt: skip
    """The equations of an update.

    Args:
        build: makes them.
        x: the array.
        components: where windows start; a dimension without one starts at 0.
        windows: of shape (*indices' shape, *window).
        window_dims: the dimensions of ``x`` along which windows extend.
        combine: "set", or the NumPy function that combines elements.
        checked: windows that do not fit are left out; else they are moved inside.
        repeats: elements may be updated more than once, and are in the order of the windows.

    Returns:
        The variable of the result.
    """
    place, inside = places_of(build, components, checked)
    return build.apply(
        update_windows_p, x, place, inside, windows,
        window_dims=window_dims, combine=combine, repeats=repeats,
    )  # fmt: skip
