"""Python's parser, in a process in which other threads parse as well."""

from __future__ import annotations

import ast
import sys

from gpuflow.base.collector import paused

# CPython 3.11 counts the depth of a tree in one place for all threads, and raises SystemError when
# another thread parses in between (python/cpython issue 106905). Threads take turns only while
# Python code runs, and the parser runs none, except what its allocations make the garbage
# collector call. From 3.12 on the collector waits until the parser is done.
_MAY_BE_DISTURBED = sys.version_info < (3, 12)


def parsed(text: str) -> ast.Module:
    """The syntax tree of a text."""
    if not _MAY_BE_DISTURBED:
        return ast.parse(text)
    with paused:
        return ast.parse(text)


def names_in(tree: ast.AST) -> set[str]:
    """The names in a piece of syntax."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
