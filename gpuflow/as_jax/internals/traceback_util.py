"""``jax._src.traceback_util``: files of libraries whose frames tracebacks leave out.

Tests: tests/test_as_jax_primitives.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

from gpuflow.base import tracebacks


def api_boundary(fun: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """``fun`` itself."""
    return fun


# Libraries append to it, and remove from it.
_exclude_paths = tracebacks.excluded
filter_traceback = tracebacks.filtered_traceback


def register_exclusion(path: str) -> None:
    """Have the frames of a file left out."""
    tracebacks.exclude(path)


def include_frame(frame: FrameType) -> bool:
    """Whether tracebacks show a frame."""
    return not tracebacks.is_own(frame.f_code.co_filename)
