"""Forms: the programs that an equation holds, as loops, branches, or one program.

Tests: tests/control/test_partial_eval.py, tests/compiler/test_lanes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Any

from gpuflow.base.records import record

if TYPE_CHECKING:
    from gpuflow.core.jaxpr import ClosedJaxpr


class Form:
    """Programs that an equation holds and the compiler sees.

    Attributes:
        is_loop: whether they run more than once.
        is_parallel: whether iterations of a loop are independent.
        kernel: as of a LaneForm.
        sizes: of the lanes' dimensions, if each lane runs them separately.
        programs: the programs.
    """

    is_loop = is_parallel = False
    sizes: tuple[int, ...] = ()
    kernel: str | None = None
    programs: tuple[ClosedJaxpr, ...]

    def trip_count(self, inner: int) -> int | None:
        """The trip count, if one run of the programs has ``inner``; None: unknown."""
        return inner

    def total(self, costs: Sequence[int]) -> int:
        """A lower bound of the cost of all iterations, from the costs of each program."""
        return max(costs)

    def in_lane(self, lane: Any, operands: Sequence[Any]) -> Sequence[Any]:
        """Its results in a program of one lane; see ``Lowering.in_lane``."""
        raise NotImplementedError


@record
class ProgramForm(Form):
    """One program, which runs once."""

    program: ClosedJaxpr

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:  # type: ignore[override]
        return (self.program,)

    def in_lane(self, lane: Any, operands: Sequence[Any]) -> Sequence[Any]:
        return lane.run(self.program.jaxpr, operands, self.program.consts)


@record
class BranchForm(Form):
    """Several programs, one of which runs: the first operand is its index."""

    programs: tuple[ClosedJaxpr, ...]

    def in_lane(self, lane: Any, operands: Sequence[Any]) -> Sequence[Any]:
        return lane.branch(self.programs, operands)


@record
class LaneForm(Form):
    """A loop or branch that each lane runs separately.

    Attributes:
        form: of one lane: a WhileForm, BranchForm, or ProgramForm.
        sizes: of the lanes' dimensions, outermost first. Results have all of them in front.
        lanes: for each of these dimensions, the operands that have it before inner ones.
        first_index: of a kernel, the index of the innermost dimensions' indices among its program's
            inputs; they are not operands.
        indices: their count.
        kernel: the name of a program that must become one kernel; None: it may be several steps.
    """

    form: Form
    sizes: tuple[int, ...] = field()
    lanes: tuple[tuple[bool, ...], ...] = field()
    first_index: int = 0
    indices: int = 0
    kernel: str | None = None

    @property
    def is_loop(self) -> bool:  # type: ignore[override]
        return self.form.is_loop

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:  # type: ignore[override]
        return self.form.programs

    @property
    def is_program(self) -> bool:
        """Whether the lanes run one program, once each."""
        return isinstance(self.form, ProgramForm)

    def trip_count(self, inner: int) -> int | None:
        return prod(self.sizes) * max(inner, 1) if self.is_program else self.form.trip_count(inner)

    def in_lane(self, lane: Any, operands: Sequence[Any]) -> Sequence[Any]:
        return lane.lane_form(self, operands)


@record
class ScanForm(Form):
    """A loop of known length.

    Attributes:
        body: ``(*consts, *carry, *x) -> (*carry, *y)``.
        num_consts, num_carry: how many of its inputs are which.
        length: the number of iterations.
        reverse: whether it starts at the last element.
    """

    body: Any
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    is_loop = True

    @property
    def is_parallel(self) -> bool:  # type: ignore[override]
        return not self.num_carry

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:  # type: ignore[override]
        return (self.body,)

    @property
    def first_carry(self) -> int:
        """The first operand that is a carry."""
        return self.num_consts

    def trip_count(self, inner: int) -> int | None:
        return self.length * max(inner, 1)

    def total(self, costs: Sequence[int]) -> int:
        return costs[0] * self.length

    def in_lane(self, lane: Any, operands: Sequence[Any]) -> Sequence[Any]:
        return lane.scan(self, operands)


@record
class WhileForm(Form):
    """A loop as long as ``condition`` holds.

    Attributes:
        condition: ``(*condition consts, *carry) -> (bool scalar,)``.
        body: ``(*body consts, *carry) -> (*carry,)``.
        num_condition_consts, num_body_consts: how many of the operands are which, in this order.
    """

    condition: Any
    body: Any
    num_condition_consts: int
    num_body_consts: int
    is_loop = True
    length = None  # unknown before it has run

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:  # type: ignore[override]
        return (self.condition, self.body)

    @property
    def num_carry(self) -> int:
        """The number of carries: all outputs are carries."""
        return len(self.body.out_avals)

    @property
    def first_carry(self) -> int:
        """The first operand that is a carry."""
        return self.num_condition_consts + self.num_body_consts

    def trip_count(self, inner: int) -> int | None:
        del inner
        return None

    def in_lane(self, lane: Any, operands: Sequence[Any]) -> Sequence[Any]:
        return lane.while_loop(self, operands)
