"""``jax._src.traceback_util``: gpuflow's errors are raised at the call; no frames are hidden."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

_exclude_paths: list[str] = []


def api_boundary(fun: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """``fun`` itself."""
    return fun


def register_exclusion(path: str) -> None:
    """Remember a file whose frames a library would like hidden."""
    _exclude_paths.append(path)


def include_frame(frame: FrameType) -> bool:
    """Whether a frame is of the user's code."""
    name = frame.f_code.co_filename
    return not any(name.startswith(path) for path in _exclude_paths)
