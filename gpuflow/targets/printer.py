"""Prints a KernelIR kernel as the text of a Python module, which Numba compiles for CUDA.

An emitter is a subclass of ``KernelPrinter``. It overrides hooks of ``KernelWalk``, and these:

    module_header   text between the header comment and the function
    function_name   the name of the function
    signature       the ``def`` line
    unpack          lines that give every argument its local name (see ``Names``)
    entry           the function's body; calls ``block(kernel.body)`` wherever the body belongs

Tests: tests/targets/cuda/test_cuda_schedule.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from gpuflow.base.records import record
from gpuflow.kir.nodes import For, Kernel, Operand, Stride, Value
from gpuflow.kir.text import kernel_text
from gpuflow.targets.kernel_walk import FLOATS, KernelWalk


@record
class Source:
    """The text of one Python module.

    Attributes:
        text: the text.
        entry: name of the kernel's function.
        target: the ``target_name`` of the printer.
    """

    text: str
    entry: str
    target: str


def constant(value: bool | int | float, dtype: str) -> str:
    """A Python expression for ``value`` that Numba types exactly as ``dtype``.

    Args:
        value: a Python number, also inf, nan and -0.0. For integers, it must be in the range of
            ``dtype``.
        dtype: a compute dtype.

    Returns:
        The expression's text.
    """
    if dtype == "bool":
        return "True" if value else "False"
    if dtype not in FLOATS:
        return f"np.{dtype}({int(value)})"
    number = float(value)
    if math.isnan(number):
        text = "np.nan"
    elif math.isinf(number):
        text = "np.inf" if number > 0 else "-np.inf"
    else:
        text = repr(number)
    return f"np.{dtype}({text})"


class IndentedText:
    """Python text under construction, and the indentation of its next line.

    Attributes:
        lines: the lines so far.
        depth: indentation of the next line, in levels of four spaces.
    """

    lines: list[str]
    depth: int

    def emit(self, text: str) -> None:
        """Append one line at the current depth."""
        self.lines.append("    " * self.depth + text if text else "")

    @contextmanager
    def indented(self, head: str) -> Iterator[None]:
        """Append a line that ends in a colon; lines emitted inside are its suite."""
        self.emit(head)
        self.depth += 1
        line_count = len(self.lines)
        yield
        if len(self.lines) == line_count:
            self.emit("pass")
        self.depth -= 1


class KernelPrinter(IndentedText, KernelWalk[str]):
    """Prints one kernel as Python text; the module's docstring lists the hooks.

    Attributes:
        target_name: name of the target, for ``Source``.
        comment: first line of the text, before the kernel's KernelIR.
    """

    target_name = ""
    comment = ""
    zero = "0"

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.lines: list[str] = []
        self.depth = 0

    def source(self) -> Source:
        """Print the module."""
        comment = [self.comment, *kernel_text(self.kernel).rstrip().splitlines()]
        for text in comment:
            self.emit(f"# {text}".rstrip())
        for text in self.module_header():
            self.emit(text)
        with self.indented(self.signature()):
            self.entry()
        return Source("\n".join(self.lines) + "\n", self.function_name(), self.target_name)

    # Hooks of the walk

    def name(self, name: str) -> str:
        return name

    def target(self, value: Value) -> str:
        return self.value(value)

    def constant(self, value: bool | int | float, dtype: str) -> str:
        return constant(value, dtype)

    def constant_stride(self, stride: Stride) -> str:
        return stride.value

    def set(self, target: str, value: str) -> None:
        self.emit(f"{target} = {value}")

    def set_all(self, targets: Sequence[str], value: str) -> None:
        self.emit(f"{', '.join(targets)} = {value}")

    def when(self, test: str) -> AbstractContextManager[None]:
        return self.indented(f"if {test}:")

    def otherwise(self) -> AbstractContextManager[None]:
        return self.indented("else:")

    def forever(self) -> AbstractContextManager[None]:
        return self.indented("while True:")

    def leave(self) -> None:
        self.emit("break")

    def count_loop(self, s: For, counter: str, count: str) -> None:
        with self.indented(f"for {counter} in range({count}):"):
            self.iteration(s)

    def element_index(self, address: str, component: int | None) -> str:
        if component is None:
            return address
        real = address if address == "0" else f"({address}) * 2"
        return f"{real} + 1" if component else real

    def load(self, operand: Operand, offset: str) -> str:
        return f"{self.names.operand(operand.name)}[{offset}]"

    def store(self, operand: Operand, offset: str, value: str) -> None:
        self.emit(f"{self.names.operand(operand.name)}[{offset}] = {value}")

    def operation(self, operator: str, left: str, right: str) -> str:
        return f"{left} {operator} {right}"

    def prefix(self, operator: str, operand: str) -> str:
        return f"not {operand}" if operator == "not" else f"{operator}{operand}"

    def converted(self, value: str, dtype: str) -> str:
        return f"np.{dtype}({value})"

    def function(self, fn: str, arguments: Sequence[str], dtype: str) -> str:
        del dtype
        return f"{fn}({', '.join(arguments)})"

    def select(self, predicate: str, on_true: str, on_false: str, dtype: str) -> str:
        del dtype
        return f"{on_true} if {predicate} else {on_false}"

    def cast(self, argument: str, source: str, dtype: str) -> str:
        """Print a conversion that Numba writes as a call; a target overrides the others."""
        del source
        return self.converted(argument, dtype)

    # Hooks of the text

    def module_header(self) -> list[str]:
        """Text between the header comment and the function: imports, helper definitions."""
        return ["import math", "", "import numpy as np", "", ""]

    def function_name(self) -> str:
        """The name of the kernel's function in the text."""
        return self.kernel.name

    def signature(self) -> str:
        """The ``def`` line of the kernel."""
        raise NotImplementedError(f"[printer] {type(self).__name__} must override signature")

    def unpack(self) -> None:
        """Emit the lines that assign every name of ``Names`` from the function's arguments."""
        raise NotImplementedError(f"[printer] {type(self).__name__} must override unpack")

    def entry(self) -> None:
        """Emit the function's suite."""
        self.unpack()
        self.block(self.kernel.body)
