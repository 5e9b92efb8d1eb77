"""The source lines of a plan, and the functions that contain them.

Tests: tests/explaining/test_page.py, tests/explaining/test_explanation.py.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable

from gpuflow.base.records import record
from gpuflow.base.util import SourceLocation

_BEFORE, _AFTER = 3, 2  # lines around one that is in no function
_MAX_LENGTH = 120  # lines of a function that is shown as a whole


@record
class Source:
    """The shown rows of a source file.

    Attributes:
        file: its path, or the name of a cell.
        text: all of it, or "" if there is none to read.
        numbers: of the lines that are shown, in order.
    """

    file: str
    text: str
    numbers: tuple[int, ...]


def sources_of(origins: Iterable[SourceLocation]) -> list[Source]:
    """The files with these lines, each with the functions that contain them."""
    by_file: dict[str, set[int]] = {}
    for origin in origins:
        by_file.setdefault(origin.file, set()).add(origin.line)
    return [_source(file, numbers) for file, numbers in by_file.items()]


def _source(file: str, numbers: set[int]) -> Source:
    rows = linecache.getlines(file)
    shown: set[int] = set()
    spans = _functions("".join(rows))
    for number in numbers:
        around = [(a, b) for a, b in spans if a <= number <= b and b - a < _MAX_LENGTH]
        first, last = max(around, default=(number - _BEFORE, number + _AFTER), key=_length)
        shown.update(k for k in range(first, last + 1) if 1 <= k <= len(rows))
    return Source(file, "".join(rows), tuple(sorted(shown | numbers)))


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _functions(text: str) -> list[tuple[int, int]]:
    """The first and last lines of all functions of a file; none if it is no Python."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    return [
        (min([node.lineno, *[d.lineno for d in node.decorator_list]]), node.end_lineno or 0)
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
