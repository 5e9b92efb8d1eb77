"""Errors about arguments of the wrong kind, from the annotations of public functions.

A function with ``@explained`` runs unmodified. Only if it fails with an error that is not in this
package's form are its arguments compared with its annotations: an argument that does not match its
annotation is the cause, and the error describes it. Other errors are unchanged.

Tests: tests/core/test_argument_kinds.py.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping
from types import GenericAlias, UnionType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.records import record
from gpuflow.core.aval import is_value

# The names of a function's module, among them the classes of its annotations.
_Names = Mapping[str, Any]
P = ParamSpec("P")
T = TypeVar("T")

# Errors that Python and NumPy raise for a value that they cannot work with.
UNSUITABLE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
# Those that keep their class, which JAX raises for the same reason; others become TypeError.
_SAME_CLASS = (ValueError, IndexError, OverflowError)


def explained(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function report the argument that does not match its annotation."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except UNSUITABLE as error:
            explain(function, args, kwargs, error)
            raise

    return call


def is_formed(error: BaseException) -> bool:
    """Whether an error's text has this package's form."""
    text = str(error)
    return text.startswith("[") and " Fix: " in text


def explain(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> None:
    """Raise an error about the first argument that its annotation does not allow, if there is one.

    Raises:
        TypeError: if an argument is of the wrong kind. ValueError, IndexError or OverflowError if
            ``error`` is one.
    """
    if is_formed(error):
        return
    names = inspect.unwrap(function).__globals__
    for is_strict in (False, True):
        for name, value, annotation in _annotated(function, args, kwargs):
            if not _conforms(value, annotation, is_strict, names):
                kind = next((kind for kind in _SAME_CLASS if type(error) is kind), TypeError)
                raise kind(_message(function, name, value, annotation, names)) from None


def _annotated(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any, str]]:
    """Names, values and annotations of the arguments of a call."""
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # Python's own error names the missing argument
        return
    for name, value in given.items():
        parameter = signature.parameters[name]
        annotation = parameter.annotation
        if not isinstance(annotation, str) or value is parameter.default:
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            for k, item in enumerate(value):
                yield f"{name}[{k}]", item, annotation
        elif parameter.kind is not parameter.VAR_KEYWORD:
            yield name, value, annotation


def _message(
    function: Callable[..., Any], name: str, value: Any, annotation: str, names: _Names
) -> str:
    kinds = [_kind_of(text, names) for text in _alternatives(annotation, names)]
    allowed = [kind for kind in kinds if kind is not None]
    must = " or ".join(dict.fromkeys(kind.text for kind in allowed))
    fix = _as_arguments(function, name, value) or fix_for(value, f"{name}={allowed[0].example}")
    return f"[{function.__name__}] {name} must be {must}; got {brief(value)}. Fix: {fix}."


def _as_arguments(function: Callable[..., Any], name: str, value: Any) -> str | None:
    """The call with separate integers, if a tuple of them was passed; else None."""
    if not isinstance(value, tuple | list) or not all(type(size) is int for size in value):
        return None
    parameters = list(inspect.signature(function).parameters.values())[: len(value)]
    if not value or len(parameters) < len(value) or name != parameters[0].name:
        return None
    if not all("int" in _split(str(one.annotation), "|") for one in parameters):
        return None
    return f"{function.__name__}({', '.join(map(str, value))})"


# --- kinds -----------------------------------------------------------------------------------


@record
class _Kind:
    """Values that an annotation allows.

    Args:
        text: the description, as in "must be an integer".
        plural: the same for several.
        example: one of them, as Python.
        holds: whether a value is one; it may raise any error for others.
    """

    text: str
    plural: str
    example: str
    holds: Callable[[Any, bool], bool]


def _is_integer(value: Any, is_strict: bool) -> bool:
    del is_strict
    return operator.index(value) is not None


def _is_flag(value: Any, is_strict: bool) -> bool:
    if is_strict:
        return isinstance(value, bool | int | np.bool_)
    return bool(value) in (True, False)


def _is_array(value: Any, is_strict: bool) -> bool:
    del is_strict
    return is_value(value) or hasattr(type(value), "__jax_array__")


def _is_scalar(value: Any, is_strict: bool) -> bool:
    del is_strict
    return not isinstance(value, str | bytes) and float(value) is not None


def _is_dtype(value: Any, is_strict: bool) -> bool:
    del is_strict
    return dtypes.canonicalize(value) is not None


def _is_file(value: Any, is_strict: bool) -> bool:
    del is_strict
    return isinstance(value, str | os.PathLike) or hasattr(value, "write")


def _is_sequence(value: Any, is_strict: bool) -> bool:
    del is_strict
    return isinstance(value, tuple | list | range) or getattr(value, "ndim", 0) > 0


def _kind(text: str, plural: str, example: str, cls: type | None = None) -> _Kind:
    """Instances of a class; callables without one."""

    def holds(value: Any, is_strict: bool) -> bool:
        del is_strict
        return callable(value) if cls is None else isinstance(value, cls)

    return _Kind(text, plural, example, holds)


_ARRAY = _Kind("an array or a number", "arrays or numbers", "jnp.ones(3)", _is_array)
_KINDS = {
    "FileLike": _Kind("a path or an open file", "files", "'x.npy'", _is_file),
    "int": _Kind("an integer", "integers", "2", _is_integer),
    "bool": _Kind("True or False", "bools", "True", _is_flag),
    "float": _Kind("a number", "numbers", "1.0", _is_scalar),
    "str": _kind("a string", "strings", "'...'", str),
    "None": _kind("None", "None", "None", type(None)),
    "Array": _ARRAY,
    "ArrayLike": _ARRAY,
    "DTypeLike": _Kind("a dtype of numbers", "dtypes", "jnp.float32", _is_dtype),
    "Callable": _kind("a function", "functions", "lambda x: x"),
    "dict": _kind("a dict", "dicts", "{}", dict),
    "type": _kind("a class", "classes", "MyClass", type),
}
_ALIASES = {
    "Axes": "int | Sequence[int] | None",
    "Shape": "Sequence[int]",
    "ShapeLike": "int | Sequence[int]",
    "ArraysLike": "Sequence",
    "Function": "Callable",
    "IsLeaf": "Callable | None",
}
# Annotations that are classes of these packages allow their instances.
_PACKAGES = ("gpuflow.", "optree")
_MODULES = re.compile(r"[a-z_.]+\.(?=[A-Z])")  # as in collections.abc.Sequence
_SEQUENCES = ("Sequence", "Iterable", "Collection", "tuple", "list")


def _conforms(value: Any, annotation: str, is_strict: bool, names: _Names) -> bool:
    """Whether one of the kinds that an annotation names allows a value; unknown kinds allow all."""
    kinds = (_kind_of(text, names) for text in _alternatives(annotation, names))
    return any(kind is None or _allows(kind, value, is_strict) for kind in kinds)


def _allows(kind: _Kind, value: Any, is_strict: bool) -> bool:
    try:
        return kind.holds(value, is_strict)
    except Exception:  # any error of a value that is used as one of the kind
        return False


def _alternatives(annotation: str, names: _Names) -> list[str]:
    """The members of a union, aliases replaced."""
    members: list[str] = []
    for text in _split(annotation, "|"):
        alias = _ALIASES.get(text)
        if isinstance(names.get(text), GenericAlias | UnionType):
            alias = _MODULES.sub("", str(names[text]))
        members += [text] if alias is None else _alternatives(alias, names)
    return members


def _kind_of(text: str, names: _Names) -> _Kind | None:
    """The kind that an annotation without ``|`` names; None for other annotations."""
    head, _, items = text.partition("[")
    if head in _SEQUENCES and items:
        each = _split(items.removesuffix("]"), ",")
        if head == "tuple" and each[-1] != "...":
            return _tuple_of(each, names)
        return _sequence_of(each[0], names)
    if head in _KINDS:
        return _KINDS[head]
    cls = names.get(text)
    if isinstance(cls, type) and cls.__module__.startswith(_PACKAGES):
        return _kind(f"a {cls.__name__}", f"objects of {cls.__name__}", f"{cls.__name__}(...)", cls)
    return None


def _sequence_of(annotation: str, names: _Names) -> _Kind:
    first = _kind_of(_alternatives(annotation, names)[0], names)

    def holds(value: Any, is_strict: bool) -> bool:
        if first is _KINDS["int"] and not is_strict and _allows(first, value, False):
            return True  # many functions take one integer for a sequence of one
        if not (_is_sequence(value, is_strict) or isinstance(value, str)):
            return False
        return all(_conforms(item, annotation, is_strict, names) for item in value)

    plural, example = ("", "x") if first is None else (f" of {first.plural}", first.example)
    return _Kind(f"a sequence{plural}", f"sequences{plural}", f"({example}, {example})", holds)


def _tuple_of(annotations: list[str], names: _Names) -> _Kind:
    count = len(annotations)

    def holds(value: Any, is_strict: bool) -> bool:
        if not _is_sequence(value, is_strict) or len(value) != count:
            return False
        pairs = zip(value, annotations, strict=True)
        return all(_conforms(item, annotation, is_strict, names) for item, annotation in pairs)

    kinds = [_kind_of(_alternatives(annotation, names)[0], names) for annotation in annotations]
    example = f"({', '.join('x' if kind is None else kind.example for kind in kinds)})"
    plurals = {"values" if kind is None else kind.plural for kind in kinds}
    items = plurals.pop() if len(plurals) == 1 else "values"
    return _Kind(f"a tuple of {count} {items}", f"tuples of {count} {items}", example, holds)


def _split(text: str, separator: str) -> list[str]:
    """Split an annotation at the separators that are not in brackets."""
    items, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == separator and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]
