"""Small helpers that every layer uses."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

from gpuflow.base.errors import TracedArgumentError, TracerIntegerConversionError
from gpuflow.base.records import record

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def safe_zip(*sequences: Iterable[Any]) -> list[tuple[Any, ...]]:
    """``zip`` that demands equal lengths and returns a list."""
    return list(zip(*sequences, strict=True))


def canonicalize_axis(axis: int, rank: int, op: str = "axis") -> int:
    """``axis`` counted from the front.

    Raises:
        ValueError: ``axis`` is not in ``[-rank, rank)``.
        TracedArgumentError: it is traced.
    """
    position = axis if type(axis) is int else known_index(axis)
    if not isinstance(position, int):
        raise TypeError(f"[{op}] axis must be an integer; got {axis!r}. Fix: pass an int.")
    if not -rank <= position < rank:
        raise ValueError(
            f"[{op}] axis must lie in [{-rank}, {rank}) for an array of rank {rank}; "
            f"got {position}. Fix: choose an existing axis."
        )
    return position % rank


def known_index(value: Any) -> Any:
    """``value.__index__()``; what has none comes back as it is.

    Raises:
        TracedArgumentError: it is traced.
    """
    if not hasattr(value, "__index__"):
        return value
    try:
        return value.__index__()
    except TracerIntegerConversionError as error:
        raise TracedArgumentError(str(error)) from None


def are_several(axes: Any) -> bool:
    """Whether ``axes`` are a sequence of them: a tuple, list, range or array, and no number."""
    return isinstance(axes, tuple | list | range) or bool(getattr(axes, "ndim", 0))


def canonicalize_axes(axes: Any, rank: int, op: str = "axis") -> tuple[int, ...]:
    """``axes`` (None: all, an int, or several) as a sorted tuple without repeats."""
    if axes is None:
        return tuple(range(rank))
    if not are_several(axes):
        axes = (axes,)
    result = tuple(sorted(canonicalize_axis(axis, rank, op) for axis in axes))
    if len(set(result)) != len(result):
        raise ValueError(f"[{op}] axes must differ; got {tuple(axes)}. Fix: drop the repeats.")
    return result


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a contiguous array; sizes of 0 count as 1."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@record
class SourceLine:
    """Where in the user's program an equation was made."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


_is_users_file: dict[str, bool] = {}


def is_users(function: Any) -> bool:
    """Whether a function is defined outside this package."""
    while True:
        inner = getattr(function, "func", None) or getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None)
    return code is not None and not code.co_filename.startswith(PACKAGE_FOLDER)


def user_frame() -> FrameType | None:
    """The innermost stack frame outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # By file: a code object computes its hash from all of it, each time.
        file = frame.f_code.co_filename
        is_user = _is_users_file.get(file)
        if is_user is None:
            is_user = not file.startswith((PACKAGE_FOLDER, "<string>", "<frozen", "<gpuflow"))
            _is_users_file[file] = is_user
        if is_user:
            return frame
        frame = frame.f_back
    return None


def user_source_line() -> SourceLine | None:
    """The line at which ``user_frame`` is."""
    frame = user_frame()
    if frame is None:
        return None
    return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn of the line outside this package that called it, however deep this is inside.

    Args:
        text: as that of an error: what should hold, what was found, what to write.
        category: the class of the warning.
    """
    frame = user_frame()
    if frame is None:
        warnings.warn(text, category, stacklevel=2)
        return
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "<unknown>")
    warnings.warn_explicit(
        text, category, frame.f_code.co_filename, frame.f_lineno, module, registry
    )
