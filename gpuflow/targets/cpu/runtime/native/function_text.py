"""Builder for functions of the native runtime as LLVM IR text, with structured control flow.

It serves functions whose instructions depend on constants, such as the radix of a Fourier
transform. Writing the text takes less than a millisecond, and the text is the code's cache key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

Value = str  # an SSA name such as "%v12", or a constant


class FunctionText:
    """One function under construction; it returns nothing.

    Args:
        name: name of the function.
        arguments: types and names, such as ``[("ptr", "x"), ("i64", "count")]``.
        local: whether it has internal linkage: only functions of the same module call it.
    """

    def __init__(
        self, name: str, arguments: Sequence[tuple[str, str]], local: bool = False
    ) -> None:
        head = ", ".join(f"{kind} %{argument}" for kind, argument in arguments)
        linkage = "internal " if local else ""
        self._instructions = [f"define {linkage}void @{name}({head}) {{", "entry:"]
        self._values, self._labels = 0, 0
        self._entry = len(self._instructions)

    def op(self, text: str) -> Value:
        """Emit an instruction; returns its result."""
        value = f"%v{self._values}"
        self._values += 1
        self._instructions.append(f"  {value} = {text}")
        return value

    def do(self, text: str) -> None:
        """Emit an instruction without a result."""
        self._instructions.append(f"  {text}")

    def variable(self, kind: str, count: int = 1) -> Value:
        """Allocate ``count`` elements on the stack, in the entry block."""
        value = f"%v{self._values}"
        self._values += 1
        self._instructions.insert(self._entry, f"  {value} = alloca [{count} x {kind}], align 64")
        return value

    def load(self, kind: str, at: Value, align: int) -> Value:
        """Load the value at an address."""
        return self.op(f"load {kind}, ptr {at}, align {align}")

    def store(self, kind: str, value: Value, at: Value, align: int) -> None:
        """Write a value to an address."""
        self.do(f"store {kind} {value}, ptr {at}, align {align}")

    def add(self, a: Value | int, b: Value | int) -> Value:
        """``a + b`` of int64."""
        return self.op(f"add nsw i64 {a}, {b}")

    def sub(self, a: Value | int, b: Value | int) -> Value:
        """``a - b`` of int64."""
        return self.op(f"sub nsw i64 {a}, {b}")

    def mul(self, a: Value | int, b: Value | int) -> Value:
        """``a * b`` of int64."""
        return self.op(f"mul nsw i64 {a}, {b}")

    def least(self, a: Value | int, b: Value | int) -> Value:
        """The minimum of two int64."""
        return self.op(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def at(self, base: Value, offset: Value | int) -> Value:
        """The address ``offset`` bytes after another."""
        return self.op(f"getelementptr i8, ptr {base}, i64 {offset}")

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """Emit a loop around the enclosed instructions; yields its induction variable.

        It runs from ``start`` while less than ``stop``; ``step`` must be positive.
        """
        n = self._new_label()
        index, further = f"%i{n}", f"%next{n}"
        self._instructions += [
            f"  br label %before{n}",
            f"before{n}:",
            f"  br label %look{n}",
            f"look{n}:",
            f"  {index} = phi i64 [ {start}, %before{n} ], [ {further}, %again{n} ]",
            f"  %more{n} = icmp slt i64 {index}, {stop}",
            f"  br i1 %more{n}, label %body{n}, label %end{n}",
            f"body{n}:",
        ]
        yield index
        self._instructions += [
            f"  br label %again{n}",
            f"again{n}:",
            f"  {further} = add nsw i64 {index}, {step}",
            f"  br label %look{n}",
            f"end{n}:",
        ]

    @contextmanager
    def where(self, condition: Value) -> Iterator[None]:
        """Emit a branch: the enclosed instructions run if the i1 is true."""
        n = self._new_label()
        self._instructions += [f"  br i1 {condition}, label %then{n}, label %else{n}", f"then{n}:"]
        yield
        self._instructions += [f"  br label %else{n}", f"else{n}:"]

    def _new_label(self) -> int:
        self._labels += 1
        return self._labels

    def text(self) -> str:
        """The text of the function."""
        return "\n".join([*self._instructions, "  ret void", "}", ""])
