"""The arguments of rules that rewrite equations: ``(eqn, definition, build) -> atoms or None``.

``compiler/passes/program.py`` implements both, and its ``simplify`` calls most of these rules.

Tests: tests/ops/test_identities.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gpuflow.core.aval import ShapedArray
    from gpuflow.core.jaxpr import Atom, Eqn, Literal, Var
    from gpuflow.core.primitive import Primitive


class DefinitionLookup(Protocol):
    """The definitions and readers of values; the argument ``definition`` of a rule."""

    def __call__(self, atom: Atom, /) -> Eqn | None:
        """The equation that computes ``atom``; None for inputs and literals."""
        ...

    def is_read_once(self, atom: Atom) -> bool:
        """Whether one equation reads ``atom``, and it is not an output of the program."""
        ...

    def is_read_only_by(self, primitive: Primitive, atom: Atom) -> bool:
        """Whether only equations of ``primitive`` read ``atom``, and it is not an output."""
        ...

    def readers(self, atom: Atom) -> list[Eqn] | None:
        """The equations that read ``atom``; None if it is an output, or rules added readers."""
        ...

    def is_read(self, atom: Var) -> bool:
        """Whether an equation reads ``atom``, or it is an output of the program."""
        ...


class EqnBuilder(Protocol):
    """The equations that replace one; the argument ``build`` of a rule.

    Attributes:
        eqns: the equations so far.
    """

    eqns: list[Eqn]

    def apply(self, primitive: Primitive, *inputs: Atom, **params: Any) -> Any:
        """Append an equation; returns its output variable, or a tuple of them."""
        ...

    def literal(self, value: Any, aval: ShapedArray) -> Literal:
        """A scalar literal of the dtype of ``aval``."""
        ...
