"""The interface of rules that fuse library calls with readers of their results.

Tests: tests/targets/cuda/test_gpu_epilogues.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from gpuflow.core.jaxpr import Eqn, Jaxpr, Var


class Match(NamedTuple):
    """A pattern among equations.

    Attributes:
        outs: the variables that are its outputs.
        operands: its inputs that were not passed to ``match``.
        eqns: its equations.
    """

    outs: tuple[Var, ...]
    operands: tuple[Any, ...]
    eqns: tuple[Eqn, ...]


class FusedCall(NamedTuple):
    """A call that replaces another one and its readers.

    Attributes:
        position: the equation before which it is inserted.
        call: the new call.
        replaces: the old one.
        outputs: its outputs by the variables that they replace.
    """

    position: Eqn
    call: Eqn
    replaces: Eqn
    outputs: dict[Var, Var]


class Matcher(Protocol):
    """The equations of a program, for rules that search them for patterns."""

    def match(self, pattern: Jaxpr, inputs: Sequence[Var]) -> Match | None:
        """The equations that compute a pattern; None: there are none.

        Args:
            pattern: a program in which each equation reads one of these inputs, or the result of
                an earlier one.
            inputs: its first inputs; others are found.
        """
        ...

    def definition(self, atom: Any) -> Eqn | None:
        """The equation that computes ``atom``; None for inputs and literals."""
        ...

    def are_read_only_by(self, variables: Sequence[Var], eqns: Sequence[Eqn]) -> bool:
        """Whether these equations alone read the variables, none of which is an output."""
        ...

    def is_read_by_kernels(self, var: Var, excluded: Sequence[Eqn] = ()) -> bool:
        """Whether a generated kernel computes with ``var`` in an equation that is not excluded."""
        ...
