"""Sorting, positions in sorted arrays, and cumulative sums and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.util import canonicalize_axis
from gpuflow.core.aval import aval_of
from gpuflow.numpy.logic import as_bool
from gpuflow.numpy.promotion import check_arraylike, convert, no_out, promote_dtypes, user_dtype
from gpuflow.numpy.shaping import ravel, reshape

# --- sorting -------------------------------------------------------------------------------


def _prepare(name: str, a: Any, axis: int | None, kind: Any, order: Any) -> tuple[Any, int]:
    check(
        kind is None and order is None,
        lambda: f"[{name}] kind and order must be None; got {kind!r} and {order!r}. "
        f"Fix: jnp.{name}(x, stable=True).",
    )
    check_arraylike(name, a)
    if axis is None:
        return ravel(a), 0
    return a, canonicalize_axis(axis, aval_of(a).ndim, name)


def sort(
    a: Any, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True,
    descending: bool = False,
) -> Any:  # fmt: skip
    """The elements in ascending order along ``axis``, nan last.

    Args:
        a: array of numbers or bools.
        axis: the axis along which to sort; None: of the raveled array.
        stable: whether equal elements must keep their order.
        descending: the reverse order, nan first.

    Raises:
        TypeError: ``kind`` or ``order``.
        ValueError: no such axis.
    """
    a, place = _prepare("sort", a, axis, kind, order)
    out = lax.sort(a, place, stable)
    return lax.rev(out, (place,)) if descending else out


def argsort(
    a: Any, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True,
    descending: bool = False, dtype: Any = None,
) -> Any:  # fmt: skip
    """The positions of the elements in ascending order along ``axis``; arguments as in ``sort``.

    With ``descending`` equal elements keep their order too, where ``stable``. ``dtype`` is that of
    the positions, by default the default integer.
    """
    a, place = _prepare("argsort", a, axis, kind, order)
    index = dtypes.default_int() if dtype is None else user_dtype(dtype, "argsort")
    positions = lax.iota(index, aval_of(a).shape, place)
    turned = descending and stable
    if turned:
        # Sorted backwards and turned again, equal elements come in their order.
        a, positions = lax.rev(a, (place,)), lax.rev(positions, (place,))
    found = lax.sort_key_val(a, positions, place, stable)[1]
    return lax.rev(found, (place,)) if descending else found


def lexsort(keys: Any, axis: int = -1) -> Any:
    """The positions in the order of several keys, of which the last one is primary.

    Args:
        keys: sequence of arrays of one shape, or an array whose first axis counts the keys.
        axis: the axis along which to sort.
    """
    many = [keys[k] for k in range(len(keys))]
    check(
        len(many) > 0,
        lambda: "[lexsort] there must be a key; got none. Fix: jnp.lexsort([x]).",
    )
    check_arraylike("lexsort", *many)
    aval = aval_of(many[0])
    if aval.ndim == 0:
        return convert(0, dtypes.default_int())
    place = canonicalize_axis(axis, aval.ndim, "lexsort")
    positions = lax.iota(dtypes.default_int(), aval.shape, place)
    return lax.sort([*many[::-1], positions], place, True, len(many))[-1]


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Where elements must be inserted into a sorted array for it to stay sorted.

    Args:
        a: array of rank 1 in ascending order, as ``sorter`` makes it.
        v: array of any shape.
        side: ``"left"``: before equal elements; ``"right"``: after them.
        sorter: the positions that sort ``a``, where it is not sorted.

    Returns:
        Positions in [0, len(a)], of the shape of ``v`` and the default integer dtype.

    Raises:
        ValueError: another side, or an array of another rank.

    Cost: O((n + m) log(n + m)): both are sorted together.
    """
    check(
        side in ("left", "right"),
        lambda: f"[searchsorted] side must be 'left' or 'right'; got {side!r}. Fix: side='left'.",
        ValueError,
    )
    check_arraylike("searchsorted", a, v)
    check(
        aval_of(a).ndim == 1,
        lambda: f"[searchsorted] a must have rank 1; got {aval_of(a)}. Fix: gpuflow.vmap.",
        ValueError,
    )
    a, v = promote_dtypes(a, v)
    if sorter is not None:
        a = lax.row_gather(a, sorter, "clip")
    query, count, size = ravel(v), aval_of(v).size, aval_of(a).shape[0]
    pieces = [query, a] if side == "left" else [a, query]
    rank = _ranks(lax.concatenate(pieces, 0))
    start = 0 if side == "left" else size
    among_all = lax.slice_in_dim(rank, start, start + count)
    return reshape(lax.sub(among_all, _ranks(query)), aval_of(v).shape)


def _ranks(x: Any) -> Any:
    """How many elements come before each one in sorted order."""
    return argsort(argsort(x))


# --- cumulative sums and products ----------------------------------------------------------


def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The sums of all elements up to each one.

    Args:
        a: array; bools are added in the default integer dtype, other dtypes in their own.
        axis: the axis to run along; None: the raveled array.
        dtype: dtype to add in.
    """
    return _cumulative("cumsum", lax.cumsum, a, axis, dtype, out)


def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The products of all elements up to each one; arguments as in ``cumsum``."""
    return _cumulative("cumprod", lax.cumprod, a, axis, dtype, out)


def _cumulative(
    name: str, op: Callable[..., Any], a: Any, axis: int | None, dtype: Any, out: Any
) -> Any:
    no_out(name, out)
    check_arraylike(name, a)
    if axis is None or aval_of(a).ndim == 0:
        a = ravel(a)
    place = 0 if axis is None else canonicalize_axis(axis, aval_of(a).ndim, name)
    own = aval_of(a).dtype
    wanted = own if dtype is None else user_dtype(dtype, name)
    if dtypes.is_bool(wanted):
        result = op(convert(as_bool(a), dtypes.default_int()), place)
        return result if dtype is None else as_bool(result)
    return op(lax.convert_element_type(a, wanted), place)
