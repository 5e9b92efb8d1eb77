"""Sequential reductions and updates by any binary scalar function.

Tests: tests/numpy/test_numpy_gradients.py, tests/test_stored_values.py.
"""

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
    scalars = [lax.full((), 1, aval_of(x).dtype) for x in operands]
    return eval_shape(function, *scalars).dtype


def select(mask: Any, x: Any, y: Any) -> Any:
    """Select ``x`` where the mask holds, else ``y``."""
    return choose(as_bool(mask), x, y)


def fold(
    function: Any,
    a: Any,
    *,
    axis: Axes,
    dtype: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
) -> Any:
    """``reduce`` as a scan from the first element to the last."""
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
    out_dtype = dtype_of(function, a, a) if dtype is None else user_dtype(dtype, name)
    if axis is None:
        dim, out_shape = 0, (1,) * len(shape)
        a, mask = ravel(a), None if mask is None else ravel(mask)
    else:
        dim = canonicalize_axis(as_index(one), len(shape), name)
        out_shape = tuple(1 if d == dim else n for d, n in enumerate(shape))
    rows = moveaxis(a, dim, 0).astype(out_dtype)
    check(
        aval_of(rows).shape[0] > 0 or start is not None,
        lambda: (
            f"[{name}] an empty array has no result without identity; got shape {shape}. "
            "Fix: pass initial=."
        ),
        ValueError,
    )
    if start is None:
        first, rows = rows[0], rows[1:]
    else:
        first = broadcast_to(asarray(start).astype(out_dtype), aval_of(rows).shape[1:])
    items = rows if mask is None else (rows, moveaxis(mask, dim, 0))

    def step(total: Any, item: Any) -> tuple[Any, None]:
        if mask is None:
            return lax.convert_element_type(function(total, item), out_dtype), None
        changed = lax.convert_element_type(function(total, item[0]), out_dtype)
        return select(item[1], changed, total), None

    result = lax.scan(step, first, items)[0]
    return reshape(result, out_shape) if keepdims else result


def one_by_one(function: Any, x: Any, index: tuple[Any, ...], b: Any) -> Any:
    """``at`` as a scan over the indices."""
    out_dtype = dtype_of(function, x, b)
    x, b = x.astype(out_dtype), b.astype(out_dtype)
    arrays = [i for i in index if not isinstance(i, slice)]
    shape = broadcast_shapes(*[aval_of(i).shape for i in arrays], name=f"{function.__name__}.at")
    if not shape:
        return x.at[index].set(function(x[index], b))
    tail = aval_of(b).shape[len(shape) :]
    values = reshape(broadcast_to(b, (*shape, *tail)), (-1, *tail))
    flat = [ravel(broadcast_to(i, shape)) for i in arrays]

    def step(total: Any, item: Any) -> tuple[Any, None]:
        scalars = iter(item[0])
        entry = tuple(i if isinstance(i, slice) else next(scalars) for i in index)
        return total.at[entry].set(function(total[entry], item[1])), None

    return lax.scan(step, x, (flat, values))[0]
