"""``record``: dataclasses whose classes are cheap to make and whose objects are quick to make.

A program imports some two hundred of them and uses a few. A dataclass compiles up to six methods
when its module is imported; a record compiles one, its ``__init__``, when its first object is made,
and its other methods are shared functions. See docs/design/0017-records.md.

Tests: tests/base/test_records.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def record(cls: type[T]) -> type[T]: ...


@overload
def record(
    *, frozen: bool = True, eq: bool = True, repr: bool = True
) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: Any = None, /, *, frozen: bool = True, eq: bool = True, repr: bool = True) -> Any:
    """A dataclass, frozen by default: ``@record`` or ``@record(frozen=False)``.

    ``dataclasses.field``, ``fields``, ``replace`` and ``__post_init__`` work as they do there;
    ``slots``, ``order`` and ``InitVar`` are not offered.

    Args:
        frozen: objects refuse assignments, and are hashed by their fields if ``eq`` holds.
        eq: objects are equal if their classes and fields are; otherwise only to themselves.
        repr: objects print as ``Name(field=value, ...)``.
    """

    def decorate(cls: type[T]) -> type[T]:
        return _as_record(cls, frozen, eq, repr)

    return decorate if cls is None else decorate(cls)


def _as_record(cls: Any, frozen: bool, eq: bool, printed: bool) -> Any:
    doc = cls.__doc__
    cls.__doc__ = doc or ""  # dataclass writes a signature where there is none, at a price
    dataclass(init=False, repr=False, eq=False)(cls)
    cls.__doc__ = doc
    members = vars(cls)
    if "__init__" not in members:
        cls.__init__ = _first_init(cls, frozen)
        cls.__signature__ = _Signature()
    if printed and "__repr__" not in members:
        cls.__repr__ = _repr
    if eq:
        _compare(cls, frozen, members)
    if frozen:
        cls.__setattr__, cls.__delattr__ = _refuse_assignment, _refuse_deletion
    return cls


def _compare(cls: Any, frozen: bool, members: Any) -> None:
    """Define equality and hash by the fields with ``compare``."""
    names = [f.name for f in fields(cls) if f.compare]
    values = attrgetter(*names) if names else _nothing

    def __eq__(self: Any, other: Any) -> Any:
        if other.__class__ is self.__class__:
            return self is other or values(self) == values(other)
        return NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    if "__eq__" not in members:
        cls.__eq__ = __eq__
    if members.get("__hash__") is None:
        cls.__hash__ = __hash__ if frozen else None


def _nothing(_self: Any) -> tuple[()]:
    return ()


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _refuse_assignment(self: Any, name: str, _value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


class _Factory:
    """The default of a field with a factory, until one value is made."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


class _Signature:
    """``inspect.signature`` of a record's class, computed at first use."""

    def __get__(self, _object: Any, owner: type) -> inspect.Signature:
        types: dict[str, Any] = {f.name: f.type for f in fields(owner)}  # type: ignore[arg-type]
        _, *taken = inspect.signature(_compiled_init(owner, frozen=False)).parameters.values()
        parameters = [p.replace(annotation=types[p.name]) for p in taken]
        return inspect.Signature(parameters, return_annotation=None)


def _first_init(cls: Any, frozen: bool) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = _compiled_init(cls, frozen)
        cls.__init__(self, *args, **kwargs)

    return __init__


def _compiled_init(cls: Any, frozen: bool) -> Callable[..., None]:
    """``__init__`` of a class: its fields as parameters, the keyword-only ones last."""
    set_fields = [f for f in fields(cls) if f.init or f.default_factory is not MISSING]
    positional = [_parameter(f) for f in set_fields if f.init and not f.kw_only]
    named = [_parameter(f) for f in set_fields if f.init and f.kw_only]
    header = ", ".join(["self", *positional, *(["*", *named] if named else [])])
    body = [_assignment(f, frozen) for f in set_fields]
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    namespace: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    namespace |= {f"_default_{f.name}": f.default for f in set_fields}
    namespace |= {f"_factory_{f.name}": f.default_factory for f in set_fields}
    exec(f"def __init__({header}):\n " + "\n ".join(body or ["pass"]), namespace)
    init = namespace["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return init


def _parameter(f: Field[Any]) -> str:
    """``name`` or ``name=default``; with a factory, ``_FACTORY`` is the default."""
    if f.default is not MISSING:
        return f"{f.name}=_default_{f.name}"
    return f.name if f.default_factory is MISSING else f"{f.name}=_FACTORY"


def _assignment(f: Field[Any], frozen: bool) -> str:
    value = f.name
    if f.default_factory is not MISSING:
        default = f"_factory_{f.name}()"
        value = f"{default} if {f.name} is _FACTORY else {f.name}" if f.init else default
    return f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}"
