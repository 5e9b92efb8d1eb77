"""Arguments by kind: axes, integers, sequences and choices. Each kind is checked in one function.

A valid argument costs a comparison of its type. Errors of arguments of the wrong kind are explained
from annotations, see ``core/argument_kinds.py``.

Tests: tests/base/test_arguments.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeVar

from gpuflow.base.errors import TracedArgumentError, TracerIntegerConversionError
from gpuflow.base.foreign import brief

MAX_DIMENSIONS = 64  # of NumPy's arrays

_Member = TypeVar("_Member", bound=Enum)


def canonicalize_axis(axis: int, rank: int, op: str = "axis") -> int:
    """``axis`` counted from the front.

    Raises:
        TypeError: ``axis`` is not an integer.
        ValueError: ``axis`` is not in ``[-rank, rank)``.
        TracedArgumentError: it is traced.
    """
    position = axis if type(axis) is int else known_index(axis)
    if not isinstance(position, int):
        raise TypeError(f"[{op}] axis must be an integer; got {brief(axis)}. Fix: pass an int.")
    if not -rank <= position < rank:
        raise ValueError(
            f"[{op}] axis must be in [{-rank}, {rank}) for an array of rank {rank}; got "
            f"{position}. Fix: choose an existing axis."
        )
    return position % rank


def canonicalize_axes(axes: Any, rank: int, op: str = "axis") -> tuple[int, ...]:
    """``axes`` (None: all, an int, or several) as a sorted tuple without repeats."""
    if axes is None:
        return tuple(range(rank))
    axes = as_items(op, "axes", axes) if are_several(axes) else (axes,)
    result = tuple(sorted(canonicalize_axis(axis, rank, op) for axis in axes))
    if len(set(result)) != len(result):
        raise ValueError(f"[{op}] axes must differ; got {tuple(axes)}. Fix: drop the repeats.")
    return result


def are_dimensions(dims: Sequence[Any], rank: int) -> bool:
    """Whether ``dims`` are distinct dimensions of an array of ``rank``, counted from the front."""
    if not all(isinstance(known_index(d), int) and 0 <= d < rank for d in dims):
        return False
    return len(set(dims)) == len(dims)


def are_several(axes: Any) -> bool:
    """Whether ``axes`` are several: a tuple, list, range, set or array, and not an integer."""
    if isinstance(axes, tuple | list | range | set | frozenset):
        return True
    return not isinstance(axes, type) and bool(getattr(axes, "ndim", 0))


def known_index(value: Any) -> Any:
    """Return the integer for an integer-like ``value``; other values are returned unchanged.

    Raises:
        TracedArgumentError: it is traced.
    """
    try:
        return value.__index__()
    except TracerIntegerConversionError as error:
        raise TracedArgumentError(str(error)) from None
    except (AttributeError, TypeError):  # no integer, an array of several or of floats, a class
        return value


def as_integer(op: str, name: str, value: Any) -> int:
    """An argument that must be an integer.

    Raises:
        TypeError: it is not an integer.
        TracedArgumentError: it is traced.
    """
    integer = value if type(value) is int else known_index(value)
    if not isinstance(integer, int):
        raise TypeError(
            f"[{op}] {name} must be an integer; got {brief(value)}. Fix: pass {name} as an int."
        )
    return integer


def as_count(op: str, name: str, value: Any) -> int:
    """An argument that ``int`` makes an integer: programs pass quotients such as ``total / size``.

    For sizes for which JAX calls ``int``; the others are integers already (``as_integer``).

    Raises:
        TypeError: it is not a number.
        TracedArgumentError: it is traced.
    """
    integer = value if type(value) is int else known_index(value)
    if isinstance(integer, int):
        return integer
    try:
        if getattr(value, "ndim", 0) == 0:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(
        f"[{op}] {name} must be an integer; got {brief(value)}. Fix: pass {name} as an int."
    )


def as_truth(op: str, name: str, value: Any) -> bool:
    """Whether an argument is true.

    Raises:
        TracerBoolConversionError: it is traced. ValueError: an array of several elements.
    """
    try:
        return bool(value)
    except ValueError:
        raise ValueError(
            f"[{op}] {name} must be true or false; got {brief(value)}. Fix: x.all() or x.any()."
        ) from None


def as_items(op: str, name: str, value: Any) -> tuple[Any, ...]:
    """The items of an argument that must be a sequence.

    Raises:
        TypeError: it is not a sequence.
    """
    if isinstance(value, tuple):
        return value
    try:
        return tuple(value)
    except TypeError:
        raise TypeError(
            f"[{op}] {name} must be a sequence; got {brief(value)}. Fix: pass {name} as a tuple."
        ) from None


def as_integers(op: str, name: str, value: Any) -> tuple[int, ...]:
    """The items of an argument that must be a sequence of integers.

    Raises:
        TypeError: it is not a sequence, or has other items.
        TracedArgumentError: one is traced.
    """
    return tuple(as_integer(op, f"each of {name}", item) for item in as_items(op, name, value))


def as_argnums(op: str, name: str, value: Any) -> int | tuple[int, ...]:
    """The index of an argument, or a tuple of indices for any other iterable of integers.

    Raises:
        TypeError: if it is neither.
        TracedArgumentError: it is traced.
    """
    argnum = value if type(value) is int else known_index(value)
    if isinstance(argnum, int):
        return argnum
    try:
        argnums = tuple(map(known_index, value))
    except TypeError:
        argnums = (None,)
    if not all(isinstance(k, int) for k in argnums):
        raise TypeError(
            f"[{op}] {name} must name positional arguments by an int or a tuple of ints; got "
            f"{brief(value)}. Fix: {name}=(0, 1)."
        )
    return argnums


def check_choice(op: str, name: str, value: Any, options: Sequence[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``options``."""
    if isinstance(value, str) and value in options:
        return
    texts = [repr(option) for option in options]
    listed = " or ".join(texts) if len(texts) == 2 else f"one of {', '.join(texts)}"
    raise ValueError(f"[{op}] {name} must be {listed}; got {value!r}. Fix: {name}={options[0]!r}.")


def check_rank(op: str, shape: Sequence[int]) -> None:
    """Raise ValueError for a shape of more dimensions than arrays can have."""
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(
            f"[{op}] arrays must have at most {MAX_DIMENSIONS} dimensions; got {len(shape)}. "
            "Fix: reshape some into one."
        )


def as_member(op: str, name: str, value: Any, options: type[_Member]) -> _Member:
    """The member of an enum that ``value`` is, or is the value of.

    Raises:
        ValueError: it is neither.
    """
    try:
        return options(value)
    except (ValueError, TypeError):
        names = ", ".join(option.name for option in options)
        raise ValueError(
            f"[{op}] {name} must be one of {names}; got {brief(value)}. "
            f"Fix: {name}={next(iter(options))}."
        ) from None
