"""``jnp.ufunc``: elementwise functions, and NumPy's ufunc methods.

A ufunc is a ``functools.partial`` of its plain function: a call adds no Python frame.

Tests: tests/test_stored_values.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import index as as_index
from typing import Any

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Axes
from gpuflow.numpy.arguments import as_array, as_arrays
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.joining import concatenate
from gpuflow.numpy.promotion import user_dtype
from gpuflow.numpy.shaping import moveaxis
from gpuflow.numpy.ufunc_loops import dtype_of, fold, one_by_one, select
from gpuflow.numpy.vectorizing import vectorize

Function = Callable[..., Any]

# The module in which pickle finds jnp.add and so on by name.
_PUBLIC_MODULE = __name__.rpartition(".")[0]


class ufunc(functools.partial[Any]):
    """An elementwise function with NumPy's ufunc methods.

    Args:
        func: function of scalars.
        nin: number of arguments.
        nout: number of results.
        name: name of the ufunc; the name of ``func`` by default.
        nargs: number of mapped arguments; all by default.
        identity: the result of an empty reduction.
        call: the function of arrays; ``func`` mapped over them by default.
        reduce, accumulate, at, reduceat: faster implementations of the methods.

    Raises:
        TypeError: if argument numbers are not ints.
    """

    __name__: str
    __qualname__: str
    nin: int
    nout: int
    nargs: int
    identity: Any
    _elementwise: Function
    _call: Function | None
    _faster: dict[str, Function | None]

    def __new__(
        cls,
        func: Function,
        /,
        nin: int,
        nout: int,
        *,
        name: str | None = None,
        nargs: int | None = None,
        identity: Any = None,
        call: Function | None = None,
        reduce: Function | None = None,
        accumulate: Function | None = None,
        at: Function | None = None,
        reduceat: Function | None = None,
    ) -> ufunc:
        self = super().__new__(cls, vectorize(func) if call is None else call)
        self.__name__ = self.__qualname__ = name or func.__name__
        self.__doc__, self.__module__ = func.__doc__, func.__module__
        self.nin, self.nout, self.nargs = as_index(nin), as_index(nout), as_index(nargs or nin)
        self.identity = identity
        self._elementwise, self._call = func, call
        self._faster = {"reduce": reduce, "accumulate": accumulate, "at": at, "reduceat": reduceat}
        return self

    def __repr__(self) -> str:
        return f"<jnp.ufunc {self.__name__!r}>"

    def _key(self) -> tuple[Any, ...]:
        return self._elementwise, self.__name__, self.identity, self.nin, self.nout, self.nargs

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ufunc) and self._key() == other._key()

    def __reduce__(self) -> Any:
        if self.__module__ == _PUBLIC_MODULE:
            return self.__name__
        options = {
            "name": self.__name__,
            "nargs": self.nargs,
            "identity": self.identity,
            "call": self._call,
            **self._faster,
        }
        return _restored, (self._elementwise, self.nin, self.nout, options)

    def _check_binary(self, method: str, out: Any = None) -> str:
        name = f"{self.__name__}.{method}"
        check(
            self.nin == 2 and self.nout == 1,
            lambda: (
                f"[{name}] the function must have two arguments and one result; got "
                f"{self.nin} and {self.nout}. Fix: call it directly."
            ),
            ValueError,
        )
        check(
            out is None,
            lambda: (
                f"[{name}] out must be None, arrays are immutable; got {type(out).__name__}. "
                f"Fix: y = jnp.{name}(...)."
            ),
            NotImplementedError,
        )
        return name

    # --- reductions ------------------------------------------------------------------------

    def reduce(
        self,
        a: Any,
        axis: Axes = 0,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        """Reduce along an axis, from the first element to the last.

        Args:
            a: array.
            axis: the axis; None flattens the array first.
            dtype: dtype of the result.
            out: must be None.
            keepdims: whether the axis stays, with size 1.
            initial: initial value of the reduction.
            where: mask that broadcasts with ``a``.

        Raises:
            ValueError: if there are no elements and no identity, or a mask is given without an
                initial value.
            NotImplementedError: if ``axis`` is a tuple and there is no faster form.
        """
        name = self._check_binary("reduce", out)
        a = as_array(name, a)
        if where is not None:
            self._check_mask(name, as_array(name, where), initial)
        how = self._faster["reduce"] or functools.partial(fold, self)
        return how(a, axis=axis, dtype=dtype, keepdims=keepdims, initial=initial, where=where)

    def _check_mask(self, name: str, mask: Any, initial: Any) -> None:
        check(
            self.identity is not None or initial is not None,
            lambda: (
                f"[{name}] where= needs initial=, as there is no identity; got none. "
                f"Fix: jnp.{name}(x, where=mask, initial=...)."
            ),
            ValueError,
        )
        check(
            dtypes.is_bool(aval_of(mask).dtype),
            lambda: f"[{name}] where must hold bools; got {aval_of(mask)}. Fix: where=mask != 0.",
            ValueError,
        )

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """Return the results of reducing all elements up to each one along an axis.

        Args:
            a: array.
            axis: the axis.
            dtype: dtype of the result.
            out: must be None.
        """
        name = self._check_binary("accumulate", out)
        x, faster = as_array(name, a), self._faster["accumulate"]
        if faster is not None:
            return faster(x, axis=axis, dtype=dtype)
        check(
            axis is not None and not isinstance(axis, (tuple, list)),
            lambda: f"[{name}] axis must be one axis; got {axis}. Fix: axis=0.",
            ValueError,
        )
        dim = canonicalize_axis(axis, aval_of(x).ndim, name)
        out_dtype = dtype_of(self, x, x) if dtype is None else user_dtype(dtype, name)
        rows = moveaxis(x, dim, 0).astype(out_dtype)
        if not aval_of(rows).size:
            return lax.full(aval_of(x).shape, 0, out_dtype)

        def step(total: Any, row: Any) -> tuple[Any, Any]:
            total = lax.convert_element_type(self(total, row), out_dtype)
            return total, total

        later = lax.scan(step, rows[0], rows[1:])[1]
        return moveaxis(concatenate([rows[:1], later]), 0, dim)

    def reduceat(
        self, a: Any, indices: Any, axis: int = 0, dtype: Any = None, out: None = None
    ) -> Any:
        """Reduce the segments that start at the given indices along an axis.

        Args:
            a: array.
            indices: vector of indices; each segment ends where the next one starts. If an index is
                not below the next one, its single element is the result.
            axis: the axis.
            dtype: dtype of the result.
            out: must be None.
        """
        name = self._check_binary("reduceat", out)
        x, starts = as_arrays(name, a, indices)
        check(
            aval_of(x).ndim > 0 and aval_of(starts).ndim == 1,
            lambda: (
                f"[{name}] the array must have an axis, and indices must be a vector; got "
                f"{aval_of(x)} and {aval_of(starts)}. Fix: jnp.ravel(indices)."
            ),
            ValueError,
        )
        check(
            axis is not None and not isinstance(axis, (tuple, list)),
            lambda: f"[{name}] axis must be one axis; got {axis}. Fix: axis=0.",
            ValueError,
        )
        faster = self._faster["reduceat"]
        if faster is not None:
            return faster(x, starts, axis=axis, dtype=dtype)
        dim = canonicalize_axis(axis, aval_of(x).ndim, name)
        rows = moveaxis(x if dtype is None else x.astype(user_dtype(dtype, name)), dim, 0)
        size = aval_of(rows).shape[0]
        last = lax.full((1,), size, aval_of(starts).dtype)
        inner_axes = tuple(range(1, aval_of(rows).ndim))
        start = lax.expand_dims(starts, inner_axes)
        end = lax.expand_dims(concatenate([starts[1:], last]), inner_axes)

        def step(k: Any, out: Any) -> Any:
            row = lax.dynamic_index_in_dim(rows, k, 0, keepdims=True)
            inside = (k > start) & (k < end)
            return select(inside, lax.convert_element_type(self(out, row), out.dtype), out)

        return moveaxis(lax.fori_loop(0, size, step, rows[starts]), 0, dim)

    # --- elements --------------------------------------------------------------------------

    def outer(self, A: Any, B: Any, /) -> Any:
        """Apply the function to all pairs of an element of ``A`` and one of ``B``."""
        name = self._check_binary("outer")
        first, second = as_arrays(name, A, B)
        behind = range(aval_of(first).ndim, aval_of(first).ndim + aval_of(second).ndim)
        return self(
            lax.expand_dims(first, tuple(behind)),
            lax.expand_dims(second, tuple(range(aval_of(first).ndim))),
        )

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = True) -> Any:
        """Return the array with the function applied at an index, once for each occurrence.

        Args:
            a: array.
            indices: an index as in ``a[indices]``.
            b: the second operand, for binary functions.
            inplace: must be False.

        Raises:
            NotImplementedError: if ``inplace`` is True.
        """
        check(
            not inplace,
            lambda: (
                f"[{self.__name__}.at] arrays are immutable, so inplace must be False; got "
                f"{inplace}. Fix: y = jnp.{self.__name__}.at(x, i, v, inplace=False)."
            ),
            NotImplementedError,
        )
        x = as_array(f"{self.__name__}.at", a)
        index = indices if isinstance(indices, tuple) else (indices,)
        index = tuple(asarray(i) if isinstance(i, list) else i for i in index)
        if b is None:
            x = x.astype(dtype_of(self, x))
            return x.at[index].apply(lambda old: self(old))
        b = as_array(f"{self.__name__}.at", b)
        faster = self._faster["at"]
        return faster(x, index, b) if faster is not None else one_by_one(self, x, index, b)


def _restored(func: Function, nin: int, nout: int, options: dict[str, Any]) -> ufunc:
    return ufunc(func, nin, nout, **options)


def public(ufunc_object: ufunc) -> ufunc:
    """A ufunc as a name of ``gpuflow.numpy``."""
    ufunc_object.__module__ = _PUBLIC_MODULE
    return ufunc_object


@explained
def frompyfunc(func: Function, /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """Return a ufunc of a function of scalars.

    Args:
        func: the function; it must be traceable.
        nin: number of arguments.
        nout: number of results.
        identity: the result of an empty reduction.

    Returns:
        A ``jnp.ufunc``: it maps over arrays that broadcast, and has the ufunc methods.

    Raises:
        TypeError: if argument numbers are not ints.

    Example:
        >>> combined = jnp.frompyfunc(lambda a, b: 10 * a + b, 2, 1)
        >>> combined(jnp.array([1, 2]), 3)
        Array([13, 23], dtype=int32)
        >>> combined.reduce(jnp.array([1, 2, 3]))
        Array(123, dtype=int32)
    """
    return ufunc(func, nin, nout, identity=identity)
