"""Set functions of arrays: union, intersection, differences and membership.

Results whose size depends on values need concrete values, or ``size=`` under jit.

Tests: tests/test_stored_values.py.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import check_choice
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_arrays, known, static_int
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.filled import full_like
from gpuflow.numpy.joining import concatenate
from gpuflow.numpy.logic import where
from gpuflow.numpy.positions import nonzero
from gpuflow.numpy.promotion import convert, promote_dtypes
from gpuflow.numpy.reductions import all as all_elements
from gpuflow.numpy.reductions import any as any_element
from gpuflow.numpy.searching import searchsorted
from gpuflow.numpy.shaping import ravel, reshape
from gpuflow.numpy.sorting import sort
from gpuflow.numpy.unique_elements import distinct

METHODS = ("auto", "compare_all", "binary_search", "sort")


@composite
def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Array:
    """Return whether each element is in the test elements.

    Args:
        element: array of any shape.
        test_elements: array of any shape.
        assume_unique: no effect; whether both arrays are guaranteed to have no duplicates.
        invert: whether to invert the result.
        method: ``"compare_all"``, the default, compares all pairs; ``"binary_search"`` or
            ``"sort"`` sort, for many test elements.

    Returns:
        bool array of the shape of ``element``.

    Raises:
        ValueError: if the method is unknown.

    Example:
        >>> jnp.isin(jnp.array([[1, 2], [3, 4]]), jnp.array([2, 4, 9]))
        Array([[False,  True],
               [False,  True]], dtype=bool)
    """
    del assume_unique
    check_choice("isin", "method", method, METHODS)
    element, test_elements = as_arrays("isin", element, test_elements)
    x, tests = promote_dtypes(ravel(element), ravel(test_elements))
    return reshape(_among(x, tests, invert, method), aval_of(element).shape)


def _among(x: Any, tests: Any, invert: bool, method: str = "auto") -> Any:
    if not aval_of(x).size or not aval_of(tests).size:
        return lax.full(aval_of(x).shape, invert, dtypes.bool_)
    if method in ("auto", "compare_all"):
        if invert:
            return all_elements(lax.ne(x[:, None], tests[None, :]), -1)
        return any_element(lax.eq(x[:, None], tests[None, :]), -1)
    tests = sort(tests)
    nearest = tests[searchsorted(tests, x)]
    return lax.ne(x, nearest) if invert else lax.eq(x, nearest)


def _two(name: str, ar1: Any, ar2: Any) -> list[Any]:
    """Two sets as vectors of one dtype."""
    return promote_dtypes(*[ravel(x) for x in as_arrays(name, ar1, ar2)])


@composite
def union1d(
    ar1: ArrayLike, ar2: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Array:
    """Return the distinct elements of two arrays in ascending order.

    Args:
        ar1, ar2: arrays.
        size: static number of results, for use under jit.
        fill_value: the value of padding elements; the smallest element by default.

    Returns:
        A vector of the common dtype.

    Raises:
        ConcretizationTypeError: if an array is traced and ``size`` is not given.

    Example:
        >>> jnp.union1d(jnp.array([3, 1]), jnp.array([2, 3]))
        Array([1, 2, 3], dtype=int32)
    """
    both = concatenate(_two("union1d", ar1, ar2))
    return distinct("union1d", both, 0, True, size, fill_value).values


@composite
def setdiff1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return the distinct elements of ``ar1`` that are not in ``ar2``, in ascending order.

    Args:
        ar1, ar2: arrays.
        assume_unique: whether ``ar1`` is guaranteed to have no duplicates; its order is then kept.
        size: static number of results, for use under jit.
        fill_value: the value of padding elements; 0 by default.

    Returns:
        A vector of the dtype of ``ar1``.

    Raises:
        ConcretizationTypeError: if an array is traced and ``size`` is not given.

    Example:
        >>> jnp.setdiff1d(jnp.array([3, 1, 2, 1]), jnp.array([2, 5]))
        Array([1, 3], dtype=int32)
    """
    first, second = (ravel(x) for x in as_arrays("setdiff1d", ar1, ar2))
    fill = full_like(first, 0 if fill_value is None else fill_value, shape=())
    count = aval_of(first).shape[0]
    if not count:
        return lax.broadcast(fill, (size or 0,))
    real = lax.full((count,), True, dtypes.bool_)
    if not assume_unique:
        limit = None if size is None else count
        unique_elements = distinct("setdiff1d", first, 0, True, limit, None)
        first, valid_count = unique_elements.values, unique_elements.valid_count
        count = aval_of(first).shape[0]
        index = dtypes.default_int()
        real = lax.lt(lax.iota(index, (count,)), convert(valid_count, index))
    common = promote_dtypes(first, second)
    mask = _among(common[0], common[1], True) & real
    if size is None:
        fix = "say how many elements to return: jnp.setdiff1d(x, y, size=...)."
        return first[known("setdiff1d", "the array", mask, fix)]
    return _select_masked("setdiff1d", first, mask, size, fill)


def _select_masked(name: str, x: Any, mask: Any, size: Any, fill: Any) -> Any:
    """The first ``size`` elements where ``mask`` holds, and then ``fill``."""
    count = static_int(name, "size", size)
    total = aval_of(x).shape[0]
    indices = nonzero(mask, size=count, fill_value=total)[0]
    if not total:
        return lax.broadcast(convert(fill, aval_of(x).dtype), (count,))
    return where(indices < total, x[indices], fill)


@composite
def setxor1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return the elements of exactly one of two arrays, in ascending order.

    Args:
        ar1, ar2: arrays.
        assume_unique: whether both arrays are guaranteed to have no duplicates.
        size: static number of results, for use under jit.
        fill_value: the value of padding elements; the smallest element of the result by default.

    Returns:
        A vector of the common dtype.

    Raises:
        ConcretizationTypeError: if an array is traced and ``size`` is not given.

    Example:
        >>> jnp.setxor1d(jnp.array([3, 1]), jnp.array([2, 3]))
        Array([1, 2], dtype=int32)
    """
    first, second = _two("setxor1d", ar1, ar2)
    values, _, real = _merged("setxor1d", first, second, assume_unique, size)
    if not aval_of(values).size:
        return lax.full((size or 0,), 0 if fill_value is None else fill_value, values.dtype)
    edge = lax.full((1,), True, dtypes.bool_)
    steps = _steps(values, real)
    alone = concatenate([edge, steps]) & concatenate([steps, edge]) & real
    return _selected("setxor1d", values, alone, size, fill_value)


def _merged(name: str, first: Any, second: Any, assume_unique: bool, size: Any) -> Any:
    """Both sets in one sorted vector, the source indices, and a mask of valid elements."""
    arrays, origins, reals = [], [], []
    index = dtypes.default_int()
    base = 0
    for x in (first, second):
        count = aval_of(x).shape[0]
        origin = lax.iota(index, (count,))
        real = lax.full((count,), True, dtypes.bool_)
        if not assume_unique and count:
            found = distinct(name, x, 0, True, None if size is None else count, None)
            x, origin = found.values, found.first
            unique_count = aval_of(x).shape[0]
            real = lax.lt(lax.iota(index, (unique_count,)), convert(found.valid_count, index))
        arrays.append(x)
        origins.append(lax.add(origin, convert(base, index)))
        reals.append(real)
        base += count
    values, origin, real = (concatenate(group) for group in (arrays, origins, reals))
    _, values, origin, real = lax.sort([lax.bitwise_not(real), values, origin, real], 0, True, 2)
    return values, origin, real


def _steps(values: Any, real: Any) -> Any:
    """Mask of differing neighbors in a sorted vector; nan differs from everything."""
    return lax.ne(values[1:], values[:-1]) | ~real[1:]


def _selected(name: str, values: Any, mask: Any, size: Any, fill_value: Any) -> Any:
    """The values where ``mask`` holds; padded with the smallest of them by default."""
    if size is None:
        fix = f"say how many elements to return: jnp.{name}(x, y, size=...)."
        return values[known(name, "the arrays", mask, fix)]
    return _select_masked(name, values, mask, size, _fill(values, mask, fill_value))


def _fill(values: Any, mask: Any, fill_value: Any) -> Any:
    if fill_value is not None:
        return lax.convert_element_type(asarray(fill_value), aval_of(values).dtype)
    first = nonzero(mask, size=1)[0]
    return where(any_element(mask), values[first][0], convert(0, aval_of(values).dtype))


@overload
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: Literal[False] = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Array: ...
@overload
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> tuple[Array, Array, Array]: ...
@composite
def intersect1d(
    ar1: ArrayLike,
    ar2: ArrayLike,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Any:
    """Return the common elements of two arrays, in ascending order.

    Args:
        ar1, ar2: arrays.
        assume_unique: whether both arrays are guaranteed to have no duplicates.
        return_indices: whether to return the index of the first occurrence in both arrays.
        size: static number of results, for use under jit.
        fill_value: the value of padding elements; the smallest element of the result by default.

    Returns:
        The common elements; with ``return_indices`` a tuple with two arrays of indices, padded with
        the sizes of the arrays.

    Raises:
        ConcretizationTypeError: if an array is traced and ``size`` is not given.

    Example:
        >>> jnp.intersect1d(jnp.array([3, 1, 4]), jnp.array([1, 4, 4]))
        Array([1, 4], dtype=int32)
    """
    first, second = _two("intersect1d", ar1, ar2)
    values, origin, real = _merged("intersect1d", first, second, assume_unique, size)
    sizes = [aval_of(x).shape[0] for x in (first, second)]
    if not aval_of(values).size:
        shared = lax.full((size or 0,), 0 if fill_value is None else fill_value, values.dtype)
        indices = [lax.full((size or 0,), n, dtypes.default_int()) for n in sizes]
        return (shared, *indices) if return_indices else shared
    twice = ~_steps(values, real)
    shared = _selected("intersect1d", values[:-1], twice, size, fill_value)
    if not return_indices:
        return shared
    indices = [
        _selected("intersect1d", source, twice, size, end)
        for source, end in ((origin[:-1], sizes[0]), (origin[1:], sum(sizes)))
    ]
    return shared, indices[0], lax.sub(indices[1], convert(sizes[0], dtypes.default_int()))
