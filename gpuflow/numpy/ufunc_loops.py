"""Reductions and updates by any function of two numbers, one element after the other."""

from __future__ import annotations

from operator import index as as_index
from typing import Any

from gpuflow import lax
from gpuflow.api.programs import eval_shape
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Axes
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.logic import as_bool
from gpuflow.numpy.logic import where as choose
from gpuflow.numpy.promotion import broadcast_shapes, user_dtype
from gpuflow.numpy.shaping import broadcast_to, moveaxis, ravel, reshape


def dtype_of(function: Any, *operands: Any) -> Any:
    """The dtype of the function's result for operands of these dtypes."""
    numbers = [lax.full((), 1, aval_of(x).dtype) for x in operands]
    return eval_shape(function, *numbers).dtype


def select(mask: Any, x: Any, y: Any) -> Any:
    """``x`` where the mask holds, else ``y``."""
    return choose(as_bool(mask), x, y)


def fold(
    function: Any, a: Any, *, axis: Axes, dtype: Any, keepdims: bool, initial: Any,
    where: Any,
) -> Any:  # fmt: skip
    """``reduce`` from the first element to the last."""
    name, mask = f"{function.__name__}.reduce", where
    one: Any = axis
    check(
        not isinstance(axis, (tuple, list)),
        lambda: f"[{name}] axis must be one axis or None; got {axis}. Fix: one after the other.",
        NotImplementedError,
    )
    shape = aval_of(a).shape
    mask = None if mask is None else broadcast_to(mask, shape)
    start = function.identity if initial is None else initial
    wanted = dtype_of(function, a, a) if dtype is None else user_dtype(dtype, name)
    if axis is None:
        place, kept = 0, (1,) * len(shape)
        a, mask = ravel(a), None if mask is None else ravel(mask)
    else:
        place = canonicalize_axis(as_index(one), len(shape), name)
        kept = tuple(1 if d == place else n for d, n in enumerate(shape))
    rows = moveaxis(a, place, 0).astype(wanted)
    check(
        aval_of(rows).shape[0] > 0 or start is not None,
        lambda: f"[{name}] an empty array has no result without identity; got shape {shape}. "
        "Fix: pass initial=.",
        ValueError,
    )
    if start is None:
        first, rows = rows[0], rows[1:]
    else:
        first = broadcast_to(asarray(start).astype(wanted), aval_of(rows).shape[1:])
    rest = rows if mask is None else (rows, moveaxis(mask, place, 0))

    def step(total: Any, item: Any) -> tuple[Any, None]:
        if mask is None:
            return lax.convert_element_type(function(total, item), wanted), None
        changed = lax.convert_element_type(function(total, item[0]), wanted)
        return select(item[1], changed, total), None

    result = lax.scan(step, first, rest)[0]
    return reshape(result, kept) if keepdims else result


def one_by_one(function: Any, x: Any, index: tuple[Any, ...], b: Any) -> Any:
    """``at`` for one index after the other."""
    wanted = dtype_of(function, x, b)
    x, b = x.astype(wanted), b.astype(wanted)
    arrays = [i for i in index if not isinstance(i, slice)]
    shape = broadcast_shapes(*[aval_of(i).shape for i in arrays], name=f"{function.__name__}.at")
    if not shape:
        return x.at[index].set(function(x[index], b))
    rest = aval_of(b).shape[len(shape) :]
    values = reshape(broadcast_to(b, (*shape, *rest)), (-1, *rest))
    flat = [ravel(broadcast_to(i, shape)) for i in arrays]

    def step(total: Any, item: Any) -> tuple[Any, None]:
        numbers = iter(item[0])
        place = tuple(i if isinstance(i, slice) else next(numbers) for i in index)
        return total.at[place].set(function(total[place], item[1])), None

    return lax.scan(step, x, (flat, values))[0]
