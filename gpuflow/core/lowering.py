"""The lowering classes: the ways in which an op may reach a kernel.

``Primitive.lower`` is an instance of one of these. The compiler dispatches on the class, never on
the op. Bodies emit KernelIR through a ``Builder``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.core.blocks import Block


@record
class Elementwise:
    """One output element from the operands' elements at the same index.

    Operands have the output's shape, sizes of 1 that repeat, or rank 0.

    Attributes:
        body: the name of a function in kir.scalar, or
            ``(builder, values, in_avals, out_aval, params) -> value or tuple of values``.
        cheap: cheap enough to be computed again in each kernel that wants it.
        image: ``(eqn, map, build) -> atom``, the image of the output under a linear map of integer
            arrays, made from images of operands, or None where it cannot; see ops/linear_maps.py.
        pair: the body where an operand or the output is complex, in the second form; complex values
            are ``kir.builder.Pair``. None: kernels hold the op for real numbers only.
        holds: ``(*in_avals, out_aval) -> bool``, whether kernels hold the op for these; None: they
            do for all dtypes that they have.
        continuous: of a body in the second form: its float results change little if its operands
            do, and it takes floats that are not values of their dtype.
    """

    body: str | Callable[..., Any]
    cheap: bool = False
    image: Callable[..., Any] | None = None
    pair: Callable[..., Any] | None = None
    holds: Callable[..., bool] | None = None
    continuous: bool = False


@record
class Reduction:
    """Combine over ``params["axes"]``.

    Attributes:
        combine: a commutative, associative function of kir.scalar.
        init: ``dtype -> neutral element``.
        by_parts: complex numbers are combined by combining their parts.
    """

    combine: str
    init: Callable[[Any], Any]
    by_parts: bool = False


@record
class TupleReduction:
    """Combine several values for each element over the one axis of ``params["axes"]``.

    Attributes:
        element: ``(builder, value, index, params) -> values``; the index along the axis is int64.
        init: ``(builder, in_aval, params) -> neutral values``.
        combine: ``(builder, *running, *new) -> values``, associative and commutative.
        result: ``(builder, values, out_aval) -> value``.
    """

    element: Callable[..., Any]
    init: Callable[..., Any]
    combine: Callable[..., Any]
    result: Callable[..., Any]


@record
class Layout:
    """A rearrangement without arithmetic.

    Attributes:
        view: ``(operand_view, out_aval, **params) -> View``, or None where no view exists.
        links: ``(in_aval, out_aval, **params) -> [(operand dim, output dim), ...]`` of dimensions
            that are the same axis, or None: the op needs its operand in memory. Operand
            dimensions that are not named must have size 1.
        steps: ``(in_aval, out_aval, **params) -> steps``, for an op that takes every n-th element
            of each dimension from a start index; negative steps run backwards. None: its views
            follow the links, or are row-major views of row-major data.
        sliced: as in Indexed.
        apart: as in Indexed, if links do not define it.
    """

    view: Callable[..., Any]
    links: Callable[..., list[tuple[int, int]] | None]
    steps: Callable[..., Sequence[int]] | None = None
    sliced: Callable[..., Any] | None = None
    apart: Callable[..., Any] | None = None


@record
class Indexed:
    """A map that computes for itself which elements of its operands to load.

    Attributes:
        body: ``(context, in_avals, out_aval, params) -> value or tuple of values``. The context has
            ``builder``, ``index(dim)``, ``linear_index()``, ``number(k)`` and ``border(dim, k)``,
            ``load(operand, indices, where=None)``, ``element(operand, dims)``; see
            compiler/lowering/emit.py. A kernel serves all sizes, so a body may branch on ranks,
            dtypes, params that are not ``size_params``, and on which sizes are 0, 1 or equal: on
            nothing else of its avals.
        numbers: ``(in_avals, params) -> numbers``, ints that follow from sizes; a kernel gets those
            that the body asks for when it runs. None: there are none.
        in_memory: how many leading operands it chooses elements of; None: all. The others it reads
            at the output's index along its first dimensions, so that its kernel may compute them.
        cheap: as in Elementwise; for ops without array operands.
        moves: it only chooses elements and selects between them, so that kernels hold it for
            complex numbers too.
        linear: it asks for the linear index over all output dimensions and for nothing else that
            depends on an index, so that its axes may collapse.
        sliced: ``(eqn, bounds, cut, definition, build) -> atom``, a slice of the output made
            directly, or None where it cannot or that would not be less. Bounds are (start, limit,
            stride) of each dimension; ``cut(atom, bounds)`` slices an operand.
        summed: as in Library.
        broadcast: ``(eqn, shape, dims, build) -> atom``, the output broadcast, made directly.
        converted: ``(eqn, dtype, build) -> atom``, the output in another dtype, made directly.
        added: ``(eqn, other eqn, definition, build) -> atom``, the sum of the outputs of two
            equations of the op, made directly, or None.
        in_parts: ``(eqn, build) -> atom``, of an op each of whose operands is a part of the output:
            the same by updates of memory that is Unwritten, one for each operand, which their
            kernels may compute; or None where that cannot be.
        apart: ``(in_avals, out_aval, params) -> [(operand dim, output dim), ...]`` for each
            operand: partitionable dimensions, of equal sizes, along which the op does the same at
            each index, and needs nothing else. None: unknown. Dimensions "of the output" after its
            last one are summed over: outputs of shards are summed. The same lists for outputs after
            the first one follow.
    """

    body: Callable[..., Any]
    numbers: Callable[..., Sequence[int]] | None = None
    in_memory: int | None = None
    cheap: bool = False
    moves: bool = False
    linear: bool = False
    sliced: Callable[..., Any] | None = None
    summed: Callable[..., Any] | None = None
    broadcast: Callable[..., Any] | None = None
    converted: Callable[..., Any] | None = None
    added: Callable[..., Any] | None = None
    in_parts: Callable[..., Any] | None = None
    apart: Callable[..., Any] | None = None


@record
class Update:
    """Elements of the first operand combined with others, in its own memory where that is free.

    The operands are the array; indices (int64), the row-major elements at which windows start;
    inside (bool), the validity of windows; and the windows, of shape (*indices' shape, *window).

    Attributes:
        combine: ``params -> name``, a function of kir.scalar, or None: elements are replaced.
        window: ``params -> dims``, the array's dimensions along which windows extend.
        repeats: ``params -> bool``: elements may be updated more than once, and are in order.
        only_if: ``(eqn, flag, build) -> variable``: the same, where a bool scalar holds; where not,
            the result is the first operand.
        on_gpu: as ``Primitive.simplify``, for platforms of GPUs and before it.
        with_atomics: the same before that, where users allow sums to differ from run to run.
    """

    combine: Callable[[dict[str, Any]], str | None]
    window: Callable[[dict[str, Any]], tuple[int, ...]]
    repeats: Callable[[dict[str, Any]], bool]
    only_if: Callable[..., Any]
    on_gpu: Callable[..., Any] | None = None
    with_atomics: Callable[..., Any] | None = None


@record
class Begun:
    """The components of a call that may overlap with later steps.

    Attributes:
        begin: a primitive with the operand and params of the call, and its result, which may not
            be read yet.
        end: a primitive of the operand and that result; it gives a number when both may be used.
        barrier: optimization_barrier, after which the result is read.
        joined: ``(build, operands, params) -> outputs``: several calls on operands of one dtype
            as one.
        small: the most bytes of an operand whose call is worth joining.
    """

    begin: Any
    end: Any
    barrier: Any
    joined: Callable[..., Any]
    small: int


@record
class Library:
    """A call of ``impl`` on whole arrays (GEMM, FFT, sort, ...).

    Attributes:
        call: ``(xp, out_arrays, *arrays, **params) -> None`` writing into given outputs; None:
            call ``impl`` and copy its result. NumPy's warnings are off.
        prepare: ``(in_avals, out_avals, params) -> (xp, out_arrays, *arrays) -> None``, instead of
            ``call``: computations that depend only on types are done once.
        flops: ``(in_avals, out_avals, params) -> int``.
        what: ``(in_avals, out_avals, params) -> Block``, or None: the description of the call, for
            the providers of targets. The annotation of its result names the class.
        transposed: ``(eqn, permutation, build) -> atom``, the output with permuted dimensions made
            directly, or None where it cannot.
        on_gpu: as ``Primitive.simplify``, for platforms of GPUs and before it.
        on_cpu: the same for other platforms.
        summed: ``(eqn, axes, build) -> atom``, the output summed over axes made directly, or None
            where it cannot.
        begun: how it overlaps with other calls; see compiler/passes/overlap.py.
        apart: as in Indexed.
        updates: ``params -> ((operand, output), ...)``: outputs that the call finds with their
            operand's elements in them, in its memory where that is free. ``impl`` copies them.
        row_major: the call requires operands that are row-major without gaps, as loops do; others
            are copied first.
        lanes: ``eqn -> ClosedJaxpr``, the call of ops that a lane of a kernel can do, on its small
            state; or None where it cannot.
        dtype_param: the param that sets the dtype of the result, of calls that sum.
    """

    call: Callable[..., None] | None = None
    prepare: Callable[..., Callable[..., None]] | None = None
    flops: Callable[..., int] | None = None
    what: Callable[..., Block | None] | None = None
    on_gpu: Callable[..., Any] | None = None
    on_cpu: Callable[..., Any] | None = None
    transposed: Callable[..., Any] | None = None
    summed: Callable[..., Any] | None = None
    begun: Begun | None = None
    apart: Callable[..., Any] | None = None
    updates: Callable[[dict[str, Any]], tuple[tuple[int, int], ...]] | None = None
    row_major: bool = False
    lanes: Callable[[Any], Any] | None = None
    dtype_param: str | None = None


def block_of(eqn: Any) -> Block | None:
    """The block of an equation, for providers of targets; None if it has none."""
    rule = eqn.primitive.lower
    if not isinstance(rule, Library) or rule.what is None:
        return None
    ins, outs = [atom.aval for atom in eqn.inputs], [var.aval for var in eqn.outputs]
    return rule.what(ins, outs, eqn.params)


@record
class Inline:
    """An op that is its inner jaxpr; the compiler inlines it.

    Attributes:
        jaxpr: ``(in_avals, params) -> ClosedJaxpr``.
        lanes: ``params -> LaneForm``, of an op that keeps a loop or branch of one element; a kernel
            may contain it unmodified. None: not supported.
        whole: whether differentiation keeps its equations, which have their own transpose rules;
            other programs are split by known values.
        by_rule: derivatives are those of the op's jvp rule, which may not be those of the program.
    """

    jaxpr: Callable[[Sequence[Any], dict[str, Any]], Any]
    lanes: Callable[[dict[str, Any]], LaneForm] | None = None
    whole: bool = False
    by_rule: bool = False

    def program(self, eqn: Any) -> Any:
        """The inner jaxpr of an equation."""
        return self.jaxpr([atom.aval for atom in eqn.inputs], eqn.params)


@record
class LaneForm:
    """A loop or branch that each lane does for itself.

    Attributes:
        form: of one lane: a WhileForm, the programs of a branch, or one program alone.
        sizes: of the lanes' dimensions, outermost first. Results have all of them in front.
        lanes: for each of these dimensions, the operands that have it before inner ones.
        first_index: of a kernel, the index of the innermost dimensions' indices among its program's
            inputs; they are not operands.
        indices: how many there are.
        kernel: the name of a program that must become one kernel; None: it may be several steps.
    """

    form: Any
    sizes: tuple[int, ...]
    lanes: tuple[tuple[bool, ...], ...]
    first_index: int = 0
    indices: int = 0
    kernel: str | None = None


@record
class Laned:
    """A program of one lane at each index of the lanes: loops and branches inside of a kernel.

    Equations of it are made by compiler/lanes/; see docs/design/0029-lanes.md.

    Attributes:
        program: ``params -> LaneProgram``.
        sizes: ``params -> sizes of the lanes``.
        numbers: as in Indexed: the lengths of its loops.
    """

    program: Callable[[dict[str, Any]], Any]
    sizes: Callable[[dict[str, Any]], tuple[int, ...]]
    numbers: Callable[..., Sequence[int]]


@record
class Barrier:
    """Each output is its operand, in place: no step runs, and nothing is copied.

    Whatever reads an output runs after all operands were computed, and no pass looks through.
    """


@record
class Unwritten:
    """Memory for the output, whatever is in it: no step runs. Updates write all of it."""


@record
class Distributed:
    """A program of one memory that runs in several at once; see parallel/mapping/shard_map_call.py.

    Plans do not contain it: the runner of programs over several memories splits it.
    """


@record
class HostCall:
    """A call of Python on the host, in a separate step; ``impl`` makes it."""


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


@record
class ScanForm:
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


@record
class WhileForm:
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


@record
class Loop:
    """While, for and scan: a step that runs compiled bodies.

    Attributes:
        form: ``params -> ScanForm or WhileForm``.
        shared_sums: ``(eqn, lanes, definition) -> (equations, outputs)``, for a loop that
            accumulates sums over the batch per element, and the sums after it; None if there are
            none. ``lanes`` are sizes of dimensions. None as the field: never.
        turns_apart: ``eqn -> (equations, outputs)`` for a loop without carries, and the shared
            computations of its iterations before and after it; None if iterations depend on each
            other, or share nothing. None as the field: never.
        updated: ``(eqn, definition) -> number``, for a loop that learns from the surrounding
            program where it updates its carries in place: the approximate number of elements
            computed by an iteration; None if it does not. None as the field: never.
    """

    form: Callable[[dict[str, Any]], ScanForm | WhileForm]
    shared_sums: Callable[..., Any] | None = None
    turns_apart: Callable[..., Any] | None = None
    updated: Callable[..., int | None] | None = None


@record
class Branch:
    """Cond and switch: a step that runs one of several compiled programs.

    Attributes:
        branches: ``params -> programs``; the first operand is the number of the one to run.
    """

    branches: Callable[[dict[str, Any]], tuple[Any, ...]]
