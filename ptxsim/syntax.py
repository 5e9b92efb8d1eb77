"""Parsed PTX as data: modules, functions, variables, instructions.

Tests: tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ptxsim.types import TYPES


@dataclass(frozen=True)
class Instruction:
    """``@guard opcode.modifiers operands;``

    Attributes:
        opcode: the first component of the name: "ld" of ``ld.global.v2.f32``.
        modifiers: the other components, without dots: state space, types, rounding, scope.
        operands: the operands' texts without spaces; ``{a,b}`` and ``[a+4]`` are one each. The
            destination comes first.
        guard: the name of the guard predicate, a register; "" for none.
        negated: whether the guard is ``@!p``.
        text: the whole instruction with its guard, for messages.
        source: "file:line" of the kernel's source, or the line of the PTX.
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
    """A branch target; ``name`` is its name in the function."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A named variable in memory.

    Attributes:
        name: unique in its module or function; the parser renames those of inner scopes.
        space: the state space: shared, local, const, global or param.
        dtype: the type of an element, a key of ``TYPES``.
        count: elements; 0 for an array with a size from the launch (``.extern .shared``).
        align: alignment in bytes.
        values: the initializers as texts; elements after them are zero.
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
    """An entry (kernel) or a device function; the parser fills in the fields with defaults.

    Attributes:
        name: the function's name.
        is_entry: whether it is a kernel (``.entry``) rather than a ``.func``.
        parameters: the formal parameters, in order, with state space param.
        results: the return parameters of a ``.func``.
        max_threads: most threads of a thread block, by ``.maxntid`` or ``.reqntid``; 0 for any.
        registers: the type of each declared register, by its name with ``%``.
        register_families: the type of parameterized names, by their prefix: ``.reg .b32 %r<9>``
            is ``{"%r": "b32"}``.
        variables: shared, local and param variables that the body declares, by name.
        branch_tables: labels of each ``.branchtargets``, by the name of the table.
        body: instructions and labels in order.
    """

    name: str
    is_entry: bool
    parameters: list[Variable]
    results: list[Variable]
    max_threads: int = 0
    registers: dict[str, str] = field(default_factory=dict)
    register_families: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    branch_tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    body: list[Instruction | Label] = field(default_factory=list)

    def register_type(self, name: str) -> str | None:
        """The declared type of a register, or None."""
        return self.registers.get(name) or self.register_families.get(name.rstrip("0123456789"))


@dataclass
class Module:
    """A parsed text.

    Attributes:
        functions: functions with a body, by name.
        variables: variables of the module, by name.
        files: paths of ``.file`` directives, by their index as text.
    """

    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
