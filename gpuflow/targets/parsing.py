"""Python's parser, in a process in which other threads parse as well."""

from __future__ import annotations

import ast
import gc
import os
import sys
import threading

# CPython 3.11 counts the depth of a tree in one place for all threads, and raises SystemError when
# another thread parses in between (python/cpython issue 106905). Threads take turns only while
# Python code runs, and the parser runs none, except what its allocations make the garbage
# collector call. From 3.12 on the collector waits until the parser is done.
_MAY_BE_DISTURBED = sys.version_info < (3, 12)


def parsed(text: str) -> ast.Module:
    """The syntax tree of a text."""
    if not _MAY_BE_DISTURBED:
        return ast.parse(text)
    with _collector.lock:
        _collector.is_stopped = gc.isenabled()
        gc.disable()
        try:
            return ast.parse(text)
        finally:
            _collector.resume()


def names_in(tree: ast.AST) -> set[str]:
    """The names in a piece of syntax."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


class _Collector:
    """The garbage collector, which one parse of this package at a time stops.

    Attributes:
        is_stopped: whether it ran before, and is to run again.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_stopped = False

    def resume(self) -> None:
        """Let the collector run again if a parse has stopped it."""
        if self.is_stopped:
            self.is_stopped = False
            gc.enable()

    def renew(self) -> None:
        """In a forked child, the thread that held the lock is gone."""
        self.lock = threading.Lock()
        self.resume()


_collector = _Collector()
if _MAY_BE_DISTURBED and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collector.renew)
