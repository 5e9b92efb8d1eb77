"""Builder for functions of the native runtime as LLVM IR text, with structured control flow.

It serves functions whose instructions depend on constants, such as the radix of a Fourier
transform. Writing the text takes less than a millisecond, and the text is the code's cache key.
So a change of an emitted label or instruction makes new cache entries.

Tests: tests/targets/cpu/test_fourier_rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

Value = str  # an SSA name such as "%v12", or a constant


class FunctionText:
    """One LLVM function under construction; it returns void.

    Methods append instructions in the order of the calls, so a value may be used only by
    instructions that are emitted after it, inside of the loop or branch that defines it. The caller
    keeps types consistent: only LLVM checks them.

    Args:
        name: symbol of the function.
        parameters: types and names, such as ``[("ptr", "x"), ("i64", "count")]``. The parameter
            ``x`` is the value ``%x``.
        is_internal: whether it has internal linkage: only functions of the same module call it.
    """

    def __init__(
        self, name: str, parameters: Sequence[tuple[str, str]], is_internal: bool = False
    ) -> None:
        signature = ", ".join(f"{type_} %{parameter}" for type_, parameter in parameters)
        linkage = "internal " if is_internal else ""
        self._lines = [f"define {linkage}void @{name}({signature}) {{", "entry:"]
        self._value_count, self._label_count = 0, 0
        self._entry_line = len(self._lines)  # where allocas are inserted

    def emit(self, text: str) -> Value:
        """Emit an instruction; returns its result."""
        value = self._new_value()
        self._lines.append(f"  {value} = {text}")
        return value

    def emit_void(self, text: str) -> None:
        """Emit an instruction without a result."""
        self._lines.append(f"  {text}")

    def alloca(self, type_: str, count: int = 1) -> Value:
        """Allocate ``count`` uninitialized elements on the stack; returns their address.

        The allocation is in the entry block, so a loop around the call does not repeat it.
        """
        value = self._new_value()
        self._lines.insert(self._entry_line, f"  {value} = alloca [{count} x {type_}], align 64")
        return value

    def load(self, type_: str, address: Value, align: int) -> Value:
        """Load the value at an address, which must be a multiple of ``align`` bytes."""
        return self.emit(f"load {type_}, ptr {address}, align {align}")

    def store(self, type_: str, value: Value, address: Value, align: int) -> None:
        """Write a value to an address, which must be a multiple of ``align`` bytes."""
        self.emit_void(f"store {type_} {value}, ptr {address}, align {align}")

    def add(self, a: Value | int, b: Value | int) -> Value:
        """``a + b`` of int64, which must not overflow."""
        return self.emit(f"add nsw i64 {a}, {b}")

    def sub(self, a: Value | int, b: Value | int) -> Value:
        """``a - b`` of int64, which must not overflow."""
        return self.emit(f"sub nsw i64 {a}, {b}")

    def mul(self, a: Value | int, b: Value | int) -> Value:
        """``a * b`` of int64, which must not overflow."""
        return self.emit(f"mul nsw i64 {a}, {b}")

    def smin(self, a: Value | int, b: Value | int) -> Value:
        """The minimum of two signed int64; the module must declare ``@llvm.smin.i64``."""
        return self.emit(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def at(self, base: Value, offset: Value | int) -> Value:
        """The address ``offset`` bytes after another."""
        return self.emit(f"getelementptr i8, ptr {base}, i64 {offset}")

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """Emit a loop around the enclosed instructions; yields its induction variable.

        It runs from ``start`` while less than ``stop``; ``step`` must be positive.
        """
        n = self._new_label()
        index, next_index = f"%i{n}", f"%next{n}"
        self._lines += [
            f"  br label %before{n}",
            f"before{n}:",
            f"  br label %look{n}",
            f"look{n}:",
            f"  {index} = phi i64 [ {start}, %before{n} ], [ {next_index}, %again{n} ]",
            f"  %more{n} = icmp slt i64 {index}, {stop}",
            f"  br i1 %more{n}, label %body{n}, label %end{n}",
            f"body{n}:",
        ]
        yield index
        self._lines += [
            f"  br label %again{n}",
            f"again{n}:",
            f"  {next_index} = add nsw i64 {index}, {step}",
            f"  br label %look{n}",
            f"end{n}:",
        ]

    @contextmanager
    def if_then(self, condition: Value) -> Iterator[None]:
        """Emit a branch: the enclosed instructions run if the i1 is true."""
        n = self._new_label()
        self._lines += [f"  br i1 {condition}, label %then{n}, label %else{n}", f"then{n}:"]
        yield
        self._lines += [f"  br label %else{n}", f"else{n}:"]

    def _new_value(self) -> Value:
        value = f"%v{self._value_count}"
        self._value_count += 1
        return value

    def _new_label(self) -> int:
        """A number for the labels of one loop or branch."""
        self._label_count += 1
        return self._label_count

    def text(self) -> str:
        """The text of the function with the instructions so far."""
        return "\n".join([*self._lines, "  ret void", "}", ""])
