"""``jax._src.source_info_util``: the frame of a line.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuflow.base.util import SourceLocation


class Frame(NamedTuple):
    """A source location; columns are unavailable."""

    file_name: str
    function_name: str
    start_line: int
    start_column: int
    end_line: int
    end_column: int


def user_frame(traceback: SourceLocation | None) -> Frame | None:
    """The frame of a source location of the user's program."""
    if traceback is None:
        return None
    return Frame(traceback.file, traceback.function, traceback.line, 0, traceback.line, 0)
