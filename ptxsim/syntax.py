"""Parsed PTX as data: modules, functions, variables, instructions."""

from __future__ import annotations

from dataclasses import dataclass, field

from ptxsim.types import TYPES


@dataclass(frozen=True)
class Instruction:
    """``@guard opcode.modifiers operands;``

    Attributes:
        opcode: the first component of the name.
        modifiers: the other components.
        operands: the operands' texts; ``{a, b}`` and ``[a+4]`` are one each.
        guard: the predicate register, or empty.
        negated: whether the guard is ``@!p``.
        text: the whole instruction.
        source: file and line.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str
    negated: bool
    text: str
    source: str

    def types(self) -> list[str]:
        """The types among the modifiers, in order."""
        return [modifier for modifier in self.modifiers if modifier in TYPES]

    def has(self, *modifiers: str) -> bool:
        """Whether any of these is in the name."""
        return any(modifier in self.modifiers for modifier in modifiers)


@dataclass(frozen=True)
class Label:
    """A branch target."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A named variable in memory.

    Attributes:
        space: shared, local, const, global or param.
        count: elements; 0 for an array with a size from the launch.
        values: the initial elements as texts, ``[]`` where there are none.
    """

    name: str
    space: str
    dtype: str
    count: int
    align: int
    values: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.count * TYPES[self.dtype].itemsize


@dataclass
class Function:
    """An entry or a device function in the text."""

    name: str
    is_entry: bool
    parameters: list[Variable]
    results: list[Variable]
    most_threads: int = 0
    registers: dict[str, str] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    body: list[Instruction | Label] = field(default_factory=list)

    def register_type(self, name: str) -> str | None:
        """The declared type of a register, or None."""
        return self.registers.get(name) or self.families.get(name.rstrip("0123456789"))


@dataclass
class Module:
    """A parsed text."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
