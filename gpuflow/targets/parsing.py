"""Python's parser, safe for concurrent threads."""

from __future__ import annotations

import ast
from functools import partial

from gpuflow.base.garbage import without_collection


def parsed(text: str) -> ast.Module:
    """The syntax tree of a text.

    CPython 3.11 counts the depth of a tree in one place for all threads, and raises SystemError
    when another thread parses in between (python/cpython issue 106905). Another thread can run only
    while Python code runs. The parser runs none, except what its allocations make the garbage
    collector call.
    """
    return without_collection(partial(ast.parse, text))


def names_in(tree: ast.AST) -> set[str]:
    """The names in a syntax tree."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
