"""``jax._src.linear_util``: functions with their transformations, as jax.extend.linear_util.

Tests: tests/test_as_jax_names.py, tests/test_as_jax_primitives.py.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Hashable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from gpuflow.base.config import config
from gpuflow.core.source_info import DebugInfo as DebugInfo


class StoreException(Exception):
    """A Store that is read before it is filled, or filled twice."""


class Store:
    """A value that a transformation puts aside while its function runs."""

    def __init__(self) -> None:
        self._values: tuple[Any, ...] = ()

    def store(self, val: Any) -> None:
        """Fill it.

        Raises:
            StoreException: if it is filled already.
        """
        if self._values:
            raise StoreException("[Store] a store must be filled once; got a second value.")
        self._values = (val,)

    def reset(self) -> None:
        """Empty it."""
        self._values = ()

    @property
    def val(self) -> Any:
        """The value.

        Raises:
            StoreException: if there is none.
        """
        if not self._values:
            raise StoreException(
                "[Store] a store must be filled before it is read; got an empty one. Fix: call the "
                "transformed function first."
            )
        return self._values[0]

    def __bool__(self) -> bool:
        return bool(self._values)


class WrappedFun:
    """A function that ``jax.api_util`` and ``jax.interpreters.partial_eval`` take.

    Two are equal that apply the same transformations to the same function.

    Args:
        f: the function.
        debug_info: facts about it, for messages.
        params: keywords that it is called with.
    """

    def __init__(
        self, f: Callable[..., Any], debug_info: Any = None, params: Mapping[str, Any] | None = None
    ) -> None:
        self.f, self.debug_info = f, debug_info
        self.params: tuple[tuple[str, Any], ...] = tuple(sorted((params or {}).items()))
        self.transforms: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = ()
        self.stores: tuple[Store | None, ...] = ()
        self._call = functools.partial(f, **params) if params else f

    @property
    def __name__(self) -> str:
        return getattr(self.f, "__name__", type(self.f).__name__)

    def wrap(
        self, function: Callable[..., Any], made_with: tuple[Any, ...], store: Store | None = None
    ) -> WrappedFun:
        """The function with one transformation more.

        Args:
            function: ``(f, *made_with, *args) -> out``; a store comes second.
            made_with: hashable.
            store: receives a value in addition to the result.
        """
        wrapped = WrappedFun(self.f, self.debug_info, dict(self.params))
        wrapped.transforms = ((function, made_with), *self.transforms)
        wrapped.stores = (store, *self.stores)
        first = () if store is None else (store,)
        wrapped._call = functools.partial(function, self._call, *first, *made_with)
        return wrapped

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self._call(*args, **kwargs)

    def populate_stores(self, stores: tuple[Store | None, ...]) -> None:
        """Fill the stores with the values of those of an equal function."""
        for store, other in zip(self.stores, stores, strict=True):
            if store is not None and other:
                store.reset()
                store.store(other.val)

    @property
    def _key(self) -> Hashable:
        return self.f, self.transforms, self.params

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WrappedFun) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def wrap_init(
    f: Callable[..., Any], params: Mapping[str, Any] | None = None, *, debug_info: Any = None
) -> WrappedFun:
    """``f``, with keywords ``params``, as a WrappedFun."""
    return WrappedFun(f, debug_info, params)


def transformation2(function: Callable[..., Any]) -> Callable[..., WrappedFun]:
    """A transformation of WrappedFuns, written as a function ``(f, *made_with, *args) -> out``."""
    return lambda fun, *made_with: fun.wrap(function, made_with)


def transformation_with_aux2(
    function: Callable[..., Any],
) -> Callable[..., tuple[WrappedFun, Callable[[], Any]]]:
    """The same for ``(f, store, *made_with, *args) -> out``, which fills the store.

    The transformation also returns a function that reads the store after a call.
    """

    def transform(fun: WrappedFun, *made_with: Any, **_: Any) -> tuple[WrappedFun, Any]:
        store = Store()
        return fun.wrap(function, made_with, store), lambda: store.val

    return transform


def transformation(generator: Callable[..., Any]) -> Callable[..., WrappedFun]:
    """A transformation of WrappedFuns, written as a generator.

    Args:
        generator: called with the extra arguments of the transformation, then the arguments; it
            yields ``(args, kwargs)`` for the function, is sent its result, and yields its own.
    """

    def function(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return _run(generator(*args, **kwargs), f)

    return transformation2(function)


def transformation_with_aux(
    generator: Callable[..., Any],
) -> Callable[..., tuple[WrappedFun, Callable[[], Any]]]:
    """The same, whose generator yields its result and something more.

    The transformation returns a function that gives the latter after a call.
    """

    def function(f: Callable[..., Any], store: Store, *args: Any, **kwargs: Any) -> Any:
        out, aux = _run(generator(*args, **kwargs), f)
        store.reset()
        store.store(aux)
        return out

    return transformation_with_aux2(function)


def _run(steps: Generator[Any, Any, None], f: Callable[..., Any]) -> Any:
    args, kwargs = next(steps)
    result = steps.send(f(*args, **kwargs))
    steps.close()
    return result


def cache(
    call: Callable[..., Any], *, explain: Callable[..., None] | None = None
) -> Callable[..., Any]:
    """Remember the results of ``call(WrappedFun, *args)`` by the function and hashable ``args``.

    A result that is found again fills the stores of the function as the first call did. Entries
    end with the function.

    Args:
        call: the function to remember results of.
        explain: without effect; the setting ``explain_cache_misses`` explains those of jit.
    """
    del explain
    known: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    def remembering(fun: WrappedFun, *args: Any) -> Any:
        results = known.setdefault(fun.f, {})
        key = (fun.transforms, fun.params, args, config.trace_context())
        if key in results:
            out, stores = results[key]
            fun.populate_stores(stores)
            return out
        out = call(fun, *args)
        results[key] = out, fun.stores
        return out

    remembering.cache_clear = known.clear  # type: ignore[attr-defined]
    remembering.evict_function = lambda f: known.pop(f, None)  # type: ignore[attr-defined]
    return remembering


def merge_linear_aux(aux1: Callable[[], Any], aux2: Callable[[], Any]) -> tuple[bool, Any]:
    """The value of that one of two stores which is filled, and whether it is the first.

    Raises:
        StoreException: if none or both are filled.
    """
    found = []
    for is_first, aux in ((True, aux1), (False, aux2)):
        with contextlib.suppress(StoreException):
            found.append((is_first, aux()))
    if len(found) != 1:
        which = "both" if found else "none"
        raise StoreException(f"[merge_linear_aux] one store must be filled; got {which} of two.")
    return found[0]
