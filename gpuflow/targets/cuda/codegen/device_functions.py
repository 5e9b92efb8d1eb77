"""Device functions of printed sources, made once for all kernels of the process that have them.

Numba infers types and emits LLVM instructions of a device function for each object that it is given
and each signature, which is most of the time of a build. Kernels that are alike define the same
ones in their texts: functions whose texts are equal, down to those that they call, are one object.
A kernel's PTX is the same either way: it has no lines of device functions.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, TypeGuard

from gpuflow.targets.cuda.codegen.toolchain import NumbaCuda
from gpuflow.targets.cuda.intrinsics.namespace import source_namespace
from gpuflow.targets.parsing import names_in, parsed

_MARK = "device_function"
# By what tells functions apart, and what they are compiled for: Numba compiles them for one only.
_shared: dict[tuple[str, tuple[int, int]], Any] = {}


def module_namespace(
    tools: NumbaCuda, source: str, filename: str, compute_capability: tuple[int, int]
) -> dict[str, Any]:
    """The definitions of a printed module, and the names that it may use.

    Args:
        tools: from ``load_numba_cuda``.
        source: text of the module.
        filename: of its functions, but for device functions.
        compute_capability: the compute capability of the target.
    """
    namespace, statements = source_namespace(tools), parsed(source).body
    digests = _Digests(statements)
    for statement in statements:
        if _is_device_function(statement):
            key = digests.of(statement), compute_capability
            if key not in _shared:
                text = ast.unparse(statement)
                file = f"<gpuflow {statement.name} {key[0]}>"
                # Numba reads it when it is called with other types.
                linecache.cache[file] = (len(text), None, text.splitlines(True), file)
                _run(*parsed(text).body, file, namespace)
                _shared.setdefault(key, namespace[statement.name])
            namespace[statement.name] = _shared[key]
        else:
            _run(statement, filename, namespace)
    return namespace


class _Digests:
    """Digests of a module's definitions: their texts, and those of names that they use."""

    def __init__(self, statements: Iterable[ast.stmt]) -> None:
        self._binders = {name: one for one in statements for name in _bound_names(one)}
        self._known: dict[ast.stmt, str] = {}

    def of(self, statement: ast.stmt) -> str:
        """The digest of a definition."""
        if statement not in self._known:
            self._known[statement] = ""  # for functions that name themselves
            named = [self._binders.get(name) for name in sorted(names_in(statement))]
            parts = [ast.unparse(statement), *(self.of(one) for one in named if one is not None)]
            self._known[statement] = sha256("\0".join(parts).encode()).hexdigest()
        return self._known[statement]


def _is_device_function(statement: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(statement, ast.FunctionDef) and any(
        isinstance(mark, ast.Name) and mark.id == _MARK for mark in statement.decorator_list
    )


def _bound_names(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def _run(statement: ast.stmt, filename: str, namespace: dict[str, Any]) -> None:
    exec(compile(ast.Module([statement], []), filename, "exec"), namespace)
