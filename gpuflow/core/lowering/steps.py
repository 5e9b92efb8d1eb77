"""Ops that are separate steps, or no step: library calls, loops, branches, calls of the host.

Tests: tests/control/test_kernel.py, tests/ops/test_on_host.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gpuflow.base.records import record
from gpuflow.core.blocks import Block
from gpuflow.core.lowering.base import AsyncCall, Lowering
from gpuflow.core.lowering.forms import BranchForm, Form, LaneForm, ProgramForm, ScanForm, WhileForm

if TYPE_CHECKING:
    from gpuflow.core.jaxpr import Eqn


@record
class Library(Lowering):
    """A call of ``impl`` on whole arrays (GEMM, FFT, sort, ...).

    Attributes:
        call: ``(xp, out_arrays, *arrays, **params) -> None`` writing into given outputs; None:
            call ``impl`` and copy its result. NumPy's warnings are disabled.
        prepare: ``(in_avals, out_avals, params) -> (xp, out_arrays, *arrays) -> None``, instead of
            ``call``: computations that depend only on types are done once.
        flops: ``(in_avals, out_avals, params) -> int``.
        what: ``(in_avals, out_avals, params) -> Block``, or None: the description of the call, for
            the providers of targets. The annotation of its result names the class.
        transposed: ``(eqn, permutation, build) -> atom``, the output with permuted dimensions made
            directly, or None if not possible.
        on_gpu: as ``Primitive.simplify``, for platforms of GPUs and before it.
        on_cpu: the same for other platforms.
        summed: ``(eqn, axes, build) -> atom``, the output summed over axes made directly, or None
            if not possible.
        async_call: its asynchronous form, if any; see compiler/passes/overlap.py.
        partitionable: as in Indexed.
        updates: ``params -> ((operand, output), ...)``: outputs that initially hold their operand's
            elements, in its memory if that is free. ``impl`` copies them.
        row_major: the call requires operands that are row-major without gaps, as loops do; others
            are copied first.
        expanded: ``eqn -> ClosedJaxpr``, the call as ops that a lane of a kernel can run, on its
            small state; or None if not possible.
        dtype_param: the param that sets the dtype of the result, of calls that sum.
        fuse_epilogue: ``(eqn, matcher, build) -> calls`` that compute readers of the result as
            well, for targets that have such calls; see epilogue_rules.py.
    """

    call: Callable[..., None] | None = None
    prepare: Callable[..., Callable[..., None]] | None = None
    flops: Callable[..., int] | None = None
    what: Callable[..., Block | None] | None = None
    on_gpu: Callable[..., Any] | None = None
    on_cpu: Callable[..., Any] | None = None
    transposed: Callable[..., Any] | None = None
    summed: Callable[..., Any] | None = None
    async_call: AsyncCall | None = None
    partitionable: Callable[..., Any] | None = None
    updates: Callable[[dict[str, Any]], tuple[tuple[int, int], ...]] | None = None
    row_major: bool = False
    expanded: Callable[[Any], Any] | None = None
    dtype_param: str | None = None
    fuse_epilogue: Callable[..., Sequence[Any]] | None = None
    is_library = True
    combine_shards = "add"

    def block(self, eqn: Eqn) -> Block | None:
        if self.what is None:
            return None
        ins, outs = [atom.aval for atom in eqn.inputs], [var.aval for var in eqn.outputs]
        return self.what(ins, outs, eqn.params)

    def in_lane(self, lane: Any, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
        program = None if self.expanded is None else self.expanded(eqn)
        if program is None:
            return lane.product(eqn, operands)
        return ProgramForm(program).in_lane(lane, operands)


def block_of(eqn: Any) -> Block | None:
    """The block of an equation, for providers of targets; None if it has none."""
    return eqn.primitive.lower.block(eqn)


@record
class Inline(Lowering):
    """An op that is its inner jaxpr; the compiler inlines it.

    Attributes:
        jaxpr: ``(in_avals, params) -> ClosedJaxpr``.
        lanes: ``params -> LaneForm``, of an op that keeps a loop or branch of one element; a kernel
            may contain it unmodified. None: not supported.
        whole: whether differentiation keeps its equations, which have their own transpose rules;
            other programs are split by known values.
        by_rule: derivatives are those of the op's jvp rule, which may not be those of the program.
    """

    jaxpr: Callable[[Sequence[Any], dict[str, Any]], Any] = field()
    lanes: Callable[[dict[str, Any]], LaneForm] | None = None
    whole: bool = False
    by_rule: bool = False

    def program(self, eqn: Any) -> Any:
        """The inner jaxpr of an equation."""
        return self.jaxpr([atom.aval for atom in eqn.inputs], eqn.params)

    def inner(self, eqn: Eqn) -> Form:
        return ProgramForm(self.program(eqn)) if self.lanes is None else self.lanes(eqn.params)


@record
class Loop(Lowering):
    """While, for and scan: a step that runs compiled bodies.

    Attributes:
        form: ``params -> ScanForm or WhileForm``.
        shared_sums: ``(eqn, lanes, definition) -> (equations, outputs)``, for a loop that
            accumulates sums over the batch per element, and the sums after it; None if there are
            none. ``lanes`` are sizes of dimensions. None as the field: never.
        independent_iterations: ``eqn -> (equations, outputs)`` for a loop without carries, and the
            shared computations of its iterations before and after it; None if iterations depend on
            each other, or share nothing. None as the field: never.
        updated: ``(eqn, definition) -> count``, for a loop whose in-place updates of carries follow
            from the surrounding program: the approximate number of elements that an iteration
            computes; None for other loops. None as the field: never.
    """

    form: Callable[[dict[str, Any]], ScanForm | WhileForm] = field()
    shared_sums: Callable[..., Any] | None = None
    independent_iterations: Callable[..., Any] | None = None
    updated: Callable[..., int | None] | None = None
    runs_programs = True

    def inner(self, eqn: Eqn) -> Form:
        return self.form(eqn.params)


@record
class Branch(Lowering):
    """Cond and switch: a step that runs one of several compiled programs.

    Attributes:
        branches: ``params -> programs``; the first operand is the index of the one to run.
    """

    branches: Callable[[dict[str, Any]], tuple[Any, ...]] = field()
    runs_programs = True

    def inner(self, eqn: Eqn) -> Form:
        return BranchForm(self.branches(eqn.params))


@record
class Barrier(Lowering):
    """Each output is its operand, in place: no step runs, and nothing is copied.

    Whatever reads an output runs after all operands were computed, and no pass looks through.
    """

    is_barrier = may_alias = True


@record
class Unwritten(Lowering):
    """Uninitialized memory for the output: no step runs. Updates write all of it."""

    is_unwritten = True


@record
class Distributed(Lowering):
    """A program of one memory that runs in several at once; see parallel/mapping/shard_map_call.py.

    Plans do not contain it: the runner of programs over several memories splits it.
    """

    is_split = True


@record
class HostCall(Lowering):
    """A call of Python on the host, in a separate step; ``impl`` makes it."""

    is_host_call = True


class OnHost(Exception):
    """Raised by an op's code for arrays of a device: this call is one for the host.

    The call then runs on the host, with NumPy, and the user is warned once; other calls of the op
    are unchanged.

    Args:
        which: the affected calls, after the op's name, as "with pivoting"; "": all.
        why: the missing feature.
    """

    def __init__(self, which: str, why: str) -> None:
        super().__init__(why)
        self.which = which
