"""One instruction in its context: the slots of its operands.

Tests: tests/ptxsim/test_ptx_data.py, tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ptxsim.faults import unreadable
from ptxsim.frame import Frame, Step
from ptxsim.syntax import Function, Instruction
from ptxsim.types import (
    BOOL,
    F32,
    F64,
    TYPES,
    U32,
    U64,
    is_float,
    resized,
    unsigned,
)

if TYPE_CHECKING:
    from ptxsim.decode import Decoder

_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?")


@dataclass(frozen=True)
class Scope:
    """A function's body at one call: device functions are inlined.

    Attributes:
        function: the function.
        instance: a unique id, so that labels and parameters of two calls differ.
        actual: the caller's argument for each parameter and result.
        after: the label to return to; empty in the entry.
        callers: the functions around it, to find recursion.
    """

    function: Function
    instance: int
    actual: dict[str, str] = field(default_factory=dict)
    after: str = ""
    callers: tuple[str, ...] = ()

    def label(self, name: str) -> str:
        """A label's name in the whole program."""
        return f"{self.instance}:{name}"

    def parameter(self, name: str) -> str:
        """A param variable's name in the whole program."""
        return self.actual.get(name, f"{self.instance}:{name}")


class Site:
    """An instruction that is being decoded.

    Attributes:
        instruction: the parsed instruction.
        reads, writes: the requested slots.
        before, after: steps that bring operands to the width that the instruction works on, and
            its result to the width of the register.
        temporaries: slots that hold a value only within the instruction.
        accesses: whether it reaches memory.
        chooses: whether its result is one of its first two operands, selected by the third.
        may_be_undefined: whether some operands leave its result undefined.
    """

    def __init__(self, decoder: Decoder, scope: Scope, instruction: Instruction) -> None:
        self.decoder = decoder
        self.scope = scope
        self.instruction = instruction
        self.reads: list[int] = []
        self.writes: list[int] = []
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.temporaries: list[int] = []
        self.accesses = self.chooses = self.may_be_undefined = False

    # --- the instruction's name ---

    def has(self, *modifiers: str) -> bool:
        """Whether any of these is in the name."""
        return self.instruction.has(*modifiers)

    def one_of(self, choices: Sequence[str], otherwise: str = "") -> str:
        """The modifier that is among the choices."""
        for modifier in self.instruction.modifiers:
            if modifier in choices:
                return modifier
        return otherwise

    def type_name(self, position: int = -1) -> str:
        """A type in the name, by default the last."""
        names = self.instruction.types()
        if not names:
            self.refuse("must name a type")
        return names[position]

    def dtype(self, position: int = -1) -> np.dtype:
        """A type in the name, by default the last."""
        return TYPES[self.type_name(position)]

    def refuse(self, what: str) -> NoReturn:
        """Raise an error for a form that the interpreter does not support."""
        raise unreadable(
            f"instruction `{self.instruction.text}` {what}",
            self.instruction.source,
            "spell the kernel without it, or add it to ptxsim",
        )

    # --- operands ---

    def count(self) -> int:
        """The number of operands."""
        return len(self.instruction.operands)

    def text(self, position: int) -> str:
        """An operand's text."""
        if not -self.count() <= position < self.count():
            self.refuse(f"must have an operand {position}")
        return self.instruction.operands[position]

    def source(self, position: int, dtype: np.dtype) -> int:
        """The slot of an operand that is read as a type."""
        return self.source_of(self.text(position), dtype)

    def sources(self, position: int, dtype: np.dtype) -> list[int]:
        """The slots of an operand in braces, or of a plain one."""
        return [self.source_of(name, dtype) for name in _names_in(self.text(position))]

    def target(self, position: int, dtype: np.dtype) -> int:
        """The slot of an operand that is set to a value of a type."""
        return self.target_of(self.text(position), dtype)

    def targets(self, position: int, dtype: np.dtype) -> list[int]:
        """The slots of an operand in braces, or of a plain one."""
        return [self.target_of(name, dtype) for name in _names_in(self.text(position))]

    def source_of(self, text: str, dtype: np.dtype) -> int:
        """The slot of an operand, given its text."""
        if text.startswith("!"):
            return self._negated(self.source_of(text[1:], BOOL))
        declared = self.scope.function.register_type(text)
        if declared is not None:
            slot = self.decoder.register(self.scope, text, TYPES[declared])
            self.reads.append(slot)
            return self._as_type(slot, TYPES[declared], dtype)
        if text.startswith("%") or text == "WARP_SZ":
            slot, held = self.decoder.special(text)
            if slot is None:
                self.refuse(f"must read a register that is declared or special; got {text}")
            self.reads.append(slot)
            return self._as_type(slot, held, dtype)
        slot = self._constant(text, dtype)
        self.reads.append(slot)
        return slot

    def target_of(self, text: str, dtype: np.dtype) -> int:
        """The slot of a register that is set, given its text; ``_`` sets nothing."""
        if text == "_":
            return self.temporary()
        declared = self.scope.function.register_type(text)
        if declared is None:
            self.refuse(f"must set a register that is declared; got {text}")
        register_dtype = TYPES[declared]
        slot = self.decoder.register(self.scope, text, register_dtype)
        self.writes.append(slot)
        if register_dtype.itemsize == dtype.itemsize and (register_dtype == BOOL) == (
            dtype == BOOL
        ):
            return slot
        if register_dtype.itemsize < dtype.itemsize:
            self.refuse(f"must set a register of {dtype.itemsize} bytes; {text} has fewer")
        narrow = self.temporary()

        def extend(frame: Frame) -> None:
            frame.registers[slot] = resized(
                frame.registers[narrow], unsigned(register_dtype.itemsize)
            )

        self.after.append(extend)
        return narrow

    def temporary(self) -> int:
        """A slot that is used within this instruction only."""
        slot = self.decoder.slot(("temporary", len(self.temporaries)), U64)
        self.temporaries.append(slot)
        return slot

    def constant(self, value: int, dtype: np.dtype) -> int:
        """The slot of a number."""
        slot = self.decoder.constant(np.array([value]).astype(dtype))
        self.reads.append(slot)
        return slot

    def flag(self) -> int:
        """The slot of the carry flag; the caller notes whether it reads or writes."""
        return self.decoder.slot(("carry",), BOOL)

    def address(self, position: int) -> tuple[int, int]:
        """The slot of the base of ``[base+offset]`` as 64 bits, and the offset."""
        match = re.fullmatch(r"\[([\w$%]+)(?:(?:\+|(?=-))(-?\w+))?\]", self.text(position))
        if match is None:
            self.refuse(f"must have an address of a known form; got {self.text(position)}")
        return self.source_of(match[1], U64), int(match[2] or "0", 0)

    def _as_type(self, slot: int, declared: np.dtype, requested: np.dtype) -> int:
        """The slot itself, or a temporary that is truncated or extended by zeros."""
        if declared.itemsize == requested.itemsize and (declared == BOOL) == (requested == BOOL):
            return slot
        converted, bits = self.temporary(), unsigned(declared.itemsize)

        def convert(frame: Frame) -> None:
            values = frame.registers[slot]
            if requested == BOOL:
                frame.registers[converted] = values.view(bits) != 0
            else:
                frame.registers[converted] = resized(values.view(bits), requested)

        self.before.append(convert)
        return converted

    def _negated(self, slot: int) -> int:
        result = self.temporary()

        def negate(frame: Frame) -> None:
            frame.registers[result] = ~frame.registers[slot]

        self.before.append(negate)
        return result

    def _constant(self, text: str, dtype: np.dtype) -> int:
        value = immediate(text, dtype)
        if value is not None:
            return self.decoder.constant(value)
        name, _, offset = text.partition("+")
        slot = self.decoder.symbol(self.scope, name, int(offset or "0", 0), dtype)
        if slot is None:
            self.refuse(f"must have operands that are declared; got {text}")
        return slot


def _names_in(text: str) -> list[str]:
    return text.strip("{}").split(",")


def immediate(text: str, dtype: np.dtype) -> np.ndarray | None:
    """A literal as an array of one element, or None if it is not a literal."""
    if re.fullmatch(r"0[fFdD][0-9a-fA-F]{8,16}", text):
        single = text[1] in "fF"
        raw = np.array([int(text[2:], 16)], U32 if single else U64)
        value = raw.view(F32 if single else F64)
        if is_float(dtype):
            return value.astype(dtype)
        return resized(raw, dtype)
    if _INTEGER.fullmatch(text):
        number = int(text.rstrip("U"), 0 if text.lstrip("-")[:2].lower() in ("0x", "0b") else 10)
        if dtype == BOOL:
            return np.array([number != 0])
        if dtype in (F32, F64):
            return np.array([number], dtype)
        mask = (1 << 8 * dtype.itemsize) - 1
        return np.array([number & mask], unsigned(dtype.itemsize)).view(dtype)
    if re.fullmatch(r"-?\d+\.\d*(e[+-]?\d+)?", text):
        return np.array([float(text)]).astype(dtype)
    return None
