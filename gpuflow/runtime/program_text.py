"""The text of a plan's driver: a Python function without loops or decisions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

from gpuflow.compiler.debugging import show


@lru_cache(1024)
def _code(source: str) -> CodeType:
    """A driver's code. Sizes are constants of drivers, so that those of one program share it."""
    return compile(source, "<gpuflow driver>", "exec")


class DriverText:
    """Collects lines and the constants that they use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {}
        self._known: dict[tuple[str, int], str] = {}
        self._kept: list[Any] = []
        self._numbers = itertools.count()

    def fresh(self, stem: str) -> str:
        """A new local name."""
        return f"{stem}{next(self._numbers)}"

    def constant(self, stem: str, value: Any) -> str:
        """The name of a global of the driver that holds ``value``."""
        key = (stem, id(value))
        if key not in self._known:
            name = self.fresh(stem)
            self._known[key] = name
            self.namespace[name] = value
            self._kept.append(value)
        return self._known[key]

    def keep(self, value: Any) -> None:
        """Keep ``value`` alive as long as the driver."""
        self._kept.append(value)

    def line(self, text: str) -> None:
        """Append a statement."""
        self.lines.append(text)

    def source(self, result: str) -> str:
        """The text of the driver, a function of the operand arrays and the outputs' device."""
        body = "\n".join("    " + line for line in [*self.lines, f"return {result}"])
        return f"def driver(operands, device=None):\n{body}\n"

    def finish(self, result: str, names: dict[str, Any]) -> Callable[..., Any]:
        """Compile the driver."""
        source = self.source(result)
        namespace = {**names, **self.namespace, "__kept__": self._kept}
        exec(_code(source), namespace)
        function = namespace["driver"]
        show(5, "driver", lambda: source)
        return function
