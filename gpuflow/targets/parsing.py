"""Python's parser, safe for concurrent threads.

Tests: tests/targets/test_parsing.py.
"""

from __future__ import annotations

import ast
from functools import partial

from gpuflow.base.garbage import without_collection


def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a text.

    CPython 3.11 has one recursion depth counter for all threads, and raises SystemError if two
    threads parse at once (python/cpython issue 106905). The parser yields to another thread only
    if its allocations start a garbage collection, which runs Python code. So collection is off.
    """
    return without_collection(partial(ast.parse, text))


def names_in(tree: ast.AST) -> set[str]:
    """Return the identifiers that a syntax tree reads or writes."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
