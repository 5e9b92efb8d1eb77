"""Source of a plan's driver: a Python function without loops or branches.

Tests: tests/test_profiler.py, tests/ops/test_device_programs.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import CodeType
from typing import Any

from gpuflow.base.caches import lru_cache
from gpuflow.compiler.debugging import show


@lru_cache(1024)
def _code(source: str) -> CodeType:
    """Compile a driver, cached by its text; sizes are globals, so plans of a program share code."""
    return compile(source, "<gpuflow driver>", "exec")


class DriverText:
    """Collects the statements of a driver, and the globals that they use."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.namespace: dict[str, Any] = {}
        self._constants: dict[tuple[str, int], str] = {}
        self._owned: list[Any] = []
        self._counter = itertools.count()

    def fresh(self, stem: str) -> str:
        """A new local name."""
        return f"{stem}{next(self._counter)}"

    def constant(self, stem: str, value: Any) -> str:
        """The name of a global of the driver that holds ``value``."""
        key = (stem, id(value))
        if key not in self._constants:
            name = self.fresh(stem)
            self._constants[key] = name
            self.namespace[name] = value
            self._owned.append(value)
        return self._constants[key]

    def keep(self, value: Any) -> None:
        """Keep ``value`` alive as long as the driver."""
        self._owned.append(value)

    def statement(self, text: str) -> None:
        """Append a statement."""
        self.statements.append(text)

    def source(self, result: str) -> str:
        """The text of the driver, a function of the operand arrays and the outputs' device."""
        body = "\n".join("    " + statement for statement in [*self.statements, f"return {result}"])
        return f"def driver(operands, device=None):\n{body}\n"

    def finish(self, result: str, names: dict[str, Any]) -> Callable[..., Any]:
        """Compile the driver."""
        source = self.source(result)
        namespace = {**names, **self.namespace, "__kept__": self._owned}
        exec(_code(source), namespace)
        function = namespace["driver"]
        show(5, "driver", lambda: source)
        return function
