"""Python's parser for several threads of this package at once."""

from __future__ import annotations

import ast
import os
import threading
import time


class _Parser:
    """Keeps threads of this package from parsing at once."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Make a new lock; in a forked child, the thread that held the old one is gone."""
        self.lock = threading.Lock()


_MOST_TRIES = 40
_PAUSE = 1e-3  # seconds, longer with every try: 0.8 in all
_parser = _Parser()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_parser.renew)


def parsed(text: str) -> ast.Module:
    """The syntax tree.

    CPython 3.11 counts the depth of trees in one place for all threads, and raises SystemError when
    another one parses at the same time (python/cpython issue 106905).

    Raises:
        SystemError: other packages' threads parse all the time.
    """
    for tries in range(_MOST_TRIES):
        try:
            with _parser.lock:
                return ast.parse(text)
        except SystemError:
            time.sleep(tries * _PAUSE)
    raise SystemError("[compile] Python must parse a text; other threads keep it from that")
