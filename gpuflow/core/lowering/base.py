"""The interface of lowering rules, and defaults.

Tests: tests/ops/test_every_op.py, tests/compiler/test_regions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gpuflow.base.dtypes import is_complex
from gpuflow.base.records import record
from gpuflow.core.blocks import Block
from gpuflow.kir.builder import Builder, ComplexPair
from gpuflow.kir.nodes import Value

if TYPE_CHECKING:
    from gpuflow.core.jaxpr import Eqn, Var
    from gpuflow.core.lowering.forms import Form, LaneForm, ScanForm, WhileForm

Element = Value | ComplexPair  # a scalar of a kernel: a pair if it is complex


@record
class AsyncCall:
    """The components of a call that may overlap with later steps.

    Attributes:
        begin: a primitive with the operand and params of the call, and its result, which may not
            be read yet.
        end: a primitive of the operand and that result; it returns a scalar when both are usable.
        barrier: optimization_barrier, after which the result is read.
        merged: ``(build, operands, params) -> outputs``: several calls on operands of one dtype
            as one.
        small: the most bytes of an operand whose call is worth merging.
    """

    begin: Any
    end: Any
    barrier: Any
    merged: Callable[..., Any]
    small: int


@record
class Iteration:
    """The iteration space of an equation.

    Attributes:
        sizes: of its iteration dimensions.
        out: for each output dimension its iteration dimension.
        reads: for each operand, pairs (operand dimension, iteration dimension).
        reduced: iteration dimensions that the equation reduces.
    """

    sizes: tuple[int, ...]
    out: tuple[int, ...]
    reads: tuple[tuple[tuple[int, int], ...], ...]
    reduced: tuple[int, ...] = ()


class Context(Protocol):
    """The context in which the code of an equation is emitted, at one point of its iteration.

    Kernels of a group are one (compiler/lowering/emit.py), programs of one lane another
    (compiler/lanes/points.py). Indices are int64.

    Attributes:
        builder: receives the code.
    """

    builder: Builder

    def operand(self, number: int) -> Element:
        """An operand's element at the point."""

    def index(self, dim: int) -> Value:
        """The index along an output dimension."""

    def reduced_index(self) -> Value:
        """The index along the one axis that the equation reduces."""

    def linear_index(self, first_dim: int = 0) -> Value:
        """The row-major index over output dimensions ``first_dim`` and later."""

    def number(self, k: int) -> Value:
        """The k-th of the size expressions (``numbers``) of the op, passed at run time."""

    def bound(self, dim: int, k: int) -> Value:
        """The same, for a bound of indices along ``dim``."""

    def load(self, operand: int, indices: Sequence[Value], where: Value | None = None) -> Element:
        """An operand's element at ``indices``, one for each of its dimensions."""

    def element(self, operand: int, dims: Sequence[int]) -> Element:
        """An operand's element at the output's index; its dimension k is output ``dims[k]``."""

    def replay(self, program: Any) -> Sequence[Element]:
        """The results of a program of one lane (compiler/lanes/program.py)."""


class Lowering:
    """Defaults of lowering rules: the op is a separate step.

    Attributes:
        is_reduction: it combines values along dimensions, in a loop; see ``Folded``.
        is_update: it writes elements of an operand's memory.
        is_lane_program: it is a program of one lane, which counts its own loops.
        is_barrier, is_unwritten: it is a Barrier, or memory that is Unwritten.
        is_split: it is a program that runs in several memories.
        is_host_call: it calls Python.
        runs_programs: it is a step that runs compiled programs: a loop or a branch.
        is_continuous: its float results change little if its operands do, and it takes floats that
            are not values of their dtype.
        may_alias: the output may be its operand's memory.
        combine_shards: the function that combines outputs of shards that have summed;
            see ``partitionable``.
        costly: kernels should not compute it a second time.
        price: the operations for each element, if it may be computed again; None: it may not.

    The other attributes are documented in the subclasses that have them as fields (fused.py,
    reductions.py, steps.py). Callables are rules; None: not supported.
    """

    is_reduction = is_update = is_lane_program = shares_loop = False
    is_elementwise = is_indexed = is_library = False
    is_barrier = is_unwritten = is_split = is_host_call = runs_programs = False
    cheap = costly = selects = row_major = linear = False
    is_continuous = may_alias = False
    combine_shards: str | None = None
    price: int | None = None
    whole = by_rule = False
    rounds = False  # its code rounds its results to their dtype
    view: Callable[..., Any] | None = None
    steps: Callable[..., Sequence[int]] | None = None
    sliced: Callable[..., Any] | None = None
    summed: Callable[..., Any] | None = None
    closed_sum: Callable[..., Any] | None = None
    broadcast: Callable[..., Any] | None = None
    converted: Callable[..., Any] | None = None
    transposed: Callable[..., Any] | None = None
    image: Callable[..., Any] | None = None
    added: Callable[..., Any] | None = None
    as_updates: Callable[..., Any] | None = None
    partitionable: Callable[..., Any] | None = None
    call: Callable[..., None] | None = None
    prepare: Callable[..., Callable[..., None]] | None = None
    flops: Callable[..., int] | None = None
    what: Callable[..., Block | None] | None = None
    on_gpu: Callable[..., Any] | None = None
    on_cpu: Callable[..., Any] | None = None
    with_atomics: Callable[..., Any] | None = None
    async_call: AsyncCall | None = None
    fuse_epilogue: Callable[..., Sequence[Any]] | None = None
    updates: Callable[[dict[str, Any]], tuple[tuple[int, int], ...]] | None = None
    dtype_param: str | None = None
    form: Callable[[dict[str, Any]], ScanForm | WhileForm] | None = None
    branches: Callable[[dict[str, Any]], tuple[Any, ...]] | None = None
    jaxpr: Callable[[Sequence[Any], dict[str, Any]], Any] | None = None
    lanes: Callable[[dict[str, Any]], LaneForm] | None = None
    shared_sums: Callable[..., Any] | None = None
    independent_iterations: Callable[..., Any] | None = None
    updated: Callable[..., int | None] | None = None

    def is_fusible(self, eqn: Eqn) -> bool:
        """Whether a generated kernel can hold an equation, of dtypes that kernels have."""
        del eqn
        return False

    def uses_indices(self, eqn: Eqn) -> bool:
        """Whether its code uses indices along output dimensions."""
        del eqn
        return False

    def has_addresses(self, eqn: Eqn) -> bool:
        """Whether its code computes memory offsets, from indices along dimensions of any size."""
        del eqn
        return False

    def operands_in_memory(self, eqn: Eqn) -> int:
        """The number of leading operands that an equation needs in memory."""
        del eqn
        return 0

    def stores(self, eqn: Eqn, var: Var) -> bool:
        """Whether the equation's own code stores an output, which its kernel cannot read."""
        del eqn, var
        return False

    def block(self, eqn: Eqn) -> Block | None:
        """The description of a library call, for providers of targets; None: there is none."""
        del eqn
        return None

    def inner(self, eqn: Eqn) -> Form | None:
        """The programs that an equation holds and the compiler sees; None: it holds none."""
        del eqn
        return None

    def in_lane(self, lane: Any, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
        """The outputs in a program of one lane, by a method of its evaluator.

        Args:
            lane: a compiler.lanes.evaluate.Evaluator.
            eqn, operands: an equation, and its operands as arrays of the lane.
        """
        form = self.inner(eqn)
        return lane.reject(eqn) if form is None else form.in_lane(lane, operands)


def has_complex(eqn: Eqn) -> bool:
    """Whether an operand or a result of an equation is complex."""
    return any(is_complex(atom.aval.dtype) for atom in (*eqn.inputs, *eqn.outputs))
