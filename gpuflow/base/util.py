"""Small helpers that every layer uses.

Tests: tests/core/test_jaxpr.py.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import optree

from gpuflow.base.records import record

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Frames of these are not the user's: this package, trees that it builds, and generated code.
_INTERNAL = (
    PACKAGE_FOLDER,
    os.path.dirname(optree.__file__) + os.sep,
    "<string>",
    "<frozen",
    "<gpuflow",
)


def safe_zip(*sequences: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Zip sequences of equal length to a list."""
    return list(zip(*sequences, strict=True))


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a contiguous array; sizes of 0 count as 1."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def exact_key(value: Any) -> Any:
    """A key of a parameter that differs where its type or bits do.

    Equal values may mean different programs: 0.0 and -0.0; 1, 1.0 and True. nan is equal to itself.

    Args:
        value: a number, a tuple of such values, or any other value, which is its own key.
    """
    if type(value) is tuple:
        return tuple(map(exact_key, value))
    if isinstance(value, np.generic):
        return type(value), value.tobytes()
    if isinstance(value, float):
        return type(value), float.hex(value)
    if isinstance(value, complex):
        return type(value), float.hex(value.real), float.hex(value.imag)
    return (type(value), value) if isinstance(value, int) else value


def params_key(params: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The key of an equation's parameters, in the order of their names; see ``exact_key``."""
    return tuple([(name, exact_key(params[name])) for name in sorted(params)])


def selector(indices: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that selects values by index from a sequence or a mapping, as a tuple."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda values: tuple([values[index] for index in indices])


@record
class SourceLocation:
    """The source location of an equation in the user's program.

    Attributes:
        file, line, function: the location.
        cause: why the compiler added the equation; "" for equations of the program itself. It is
            not part of the identity.
    """

    file: str
    line: int
    function: str
    cause: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"

    @property
    def short(self) -> str:
        """The same with a short path, for programs and plans that people read."""
        return f"{short_path(self.file)}:{self.line} ({self.function})"


def because(source: SourceLocation | None, cause: str) -> SourceLocation | None:
    """The location of an equation that the compiler adds for a reason."""
    return None if source is None else replace(source, cause=cause)


def short_path(path: str | Path) -> str:
    """A path relative to the working folder, or from the home folder on; else as it was."""
    for folder, lead in ((Path.cwd, ""), (Path.home, "~/")):
        with suppress(OSError, RuntimeError, ValueError):  # no such folder, or not in it
            return f"{lead}{Path(path).relative_to(folder())}"
    return str(path)


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
            is_user = not file.startswith(_INTERNAL)
            _is_users_file[file] = is_user
        if is_user:
            return frame
        frame = frame.f_back
    return None


def user_source_location() -> SourceLocation | None:
    """The source location of ``user_frame``."""
    frame = user_frame()
    if frame is None:
        return None
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the source location of the caller outside this package, at any depth.

    Args:
        text: like that of an error: the requirement, the value, and the fix.
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
