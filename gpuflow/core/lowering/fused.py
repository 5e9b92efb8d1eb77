"""Ops that generated kernels compute, point by point.

Tests: tests/ops/test_every_op.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering.base import Context, Element, Iteration, Lowering, has_complex
from gpuflow.kir.scalar import CONTINUOUS

if TYPE_CHECKING:
    from gpuflow.core.jaxpr import Eqn, Var


class Fused(Lowering):
    """Base class of ops that generated kernels compute."""

    def is_fusible(self, eqn: Eqn) -> bool:
        return self.takes_complex(eqn) or not has_complex(eqn)

    def takes_complex(self, eqn: Eqn) -> bool:
        """Whether it has a form for complex operands or results."""
        del eqn
        return False

    def iteration(self, eqn: Eqn) -> Iteration:
        """The iteration of a fusible equation: over its output, with operands at its indices."""
        return self._over(eqn, eqn.outputs[0].aval.shape)

    def _over(self, eqn: Eqn, sizes: tuple[int, ...]) -> Iteration:
        in_memory = self.operands_in_memory(eqn)
        reads = tuple(
            () if k < in_memory else tuple((d, d) for d in range(atom.aval.ndim))
            for k, atom in enumerate(eqn.inputs)
        )
        return Iteration(sizes, tuple(range(len(sizes))), reads)

    def emit(self, context: Context, eqn: Eqn) -> Element | Sequence[Element]:
        """The element of each output at the context's point."""
        raise NotImplementedError

    def in_lane(self, lane: Any, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
        return lane.pointwise(eqn, operands)


@record
class Elementwise(Fused):
    """One output element from the operands' elements at the same index.

    Operands have the output's shape, sizes of 1 that repeat, or rank 0.

    Attributes:
        body: the name of a function in kir.scalar, or
            ``(builder, values, in_avals, out_aval, params) -> value or tuple of values``.
        cheap: cheap enough to be computed again in each kernel that reads it.
        image: ``(eqn, map, build) -> atom``, the image of the output under a linear map of integer
            arrays, made from images of operands, or None where it cannot; see ops/linear_maps.py.
        pair: the body where an operand or the output is complex, in the second form; complex values
            are ``kir.builder.ComplexPair``. None: kernels support the op for real values only.
        holds: ``(*in_avals, out_aval) -> bool``, whether kernels support the op for these; None:
            they do for all dtypes that they have.
        continuous: of a body in the second form: its float results change little if its operands
            do, and it takes floats that are not values of their dtype.
    """

    body: str | Callable[..., Any]
    cheap: bool = False
    image: Callable[..., Any] | None = None
    pair: Callable[..., Any] | None = None
    holds: Callable[..., bool] | None = None
    continuous: bool = False
    is_elementwise = True

    @property
    def is_continuous(self) -> bool:  # type: ignore[override]
        return self.continuous or self.body in CONTINUOUS

    @property
    def costly(self) -> bool:  # type: ignore[override]
        return not self.cheap

    @property
    def price(self) -> int | None:  # type: ignore[override]
        return 1 if self.cheap else None

    def is_fusible(self, eqn: Eqn) -> bool:
        if self.holds is not None:
            avals = [atom.aval for atom in (*eqn.inputs, *eqn.outputs)]
            return super().is_fusible(eqn) and self.holds(*avals)
        return super().is_fusible(eqn)

    def takes_complex(self, eqn: Eqn) -> bool:
        del eqn
        return self.pair is not None

    def iteration(self, eqn: Eqn) -> Iteration:
        out = eqn.outputs[0].aval
        reads = tuple(_same_index(atom.aval, out) for atom in eqn.inputs)
        return Iteration(out.shape, tuple(range(out.ndim)), reads)

    def emit(self, context: Context, eqn: Eqn) -> Element | Sequence[Element]:
        body = self.pair if has_complex(eqn) else self.body
        values = [context.operand(k) for k in range(len(eqn.inputs))]
        if isinstance(body, str):
            return context.builder.apply(body, *values)
        avals = [atom.aval for atom in eqn.inputs]
        return body(context.builder, values, avals, eqn.outputs[0].aval, eqn.params)


def _same_index(operand: ShapedArray, out: ShapedArray) -> tuple[tuple[int, int], ...]:
    """The dimensions of an elementwise op's operand that are its output's."""
    if operand.ndim != out.ndim:
        return ()
    pairs = enumerate(zip(operand.shape, out.shape, strict=True))
    return tuple((d, d) for d, (size, full) in pairs if size == full)


@record
class Layout(Fused):
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
        partitionable: as in Indexed, if links do not define it.
    """

    view: Callable[..., Any] = field()
    links: Callable[..., list[tuple[int, int]] | None] = field()
    steps: Callable[..., Sequence[int]] | None = None
    sliced: Callable[..., Any] | None = None
    partitionable: Callable[..., Any] | None = None
    selects = is_continuous = may_alias = True
    price = 0

    def is_fusible(self, eqn: Eqn) -> bool:
        return self.links(eqn.inputs[0].aval, eqn.outputs[0].aval, **eqn.params) is not None

    def iteration(self, eqn: Eqn) -> Iteration:
        out = eqn.outputs[0].aval
        links = self.links(eqn.inputs[0].aval, out, **eqn.params)
        assert links is not None  # or it would not be fusible
        return Iteration(out.shape, tuple(range(out.ndim)), (tuple(links),))

    def emit(self, context: Context, eqn: Eqn) -> Element | Sequence[Element]:
        del eqn
        return context.operand(0)

    def in_lane(self, lane: Any, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
        return [lane.layout_op(eqn, operands[0])]


@record
class Indexed(Fused):
    """A map whose code computes the indices of the operand elements to load.

    Attributes:
        body: ``(context, in_avals, out_aval, params) -> value or tuple of values``, with a
            ``core.lowering.Context``. A kernel serves all sizes, so a body may branch on ranks,
            dtypes, params that are not ``size_params``, and on which sizes are 0, 1 or equal: on
            nothing else of its avals.
        numbers: ``(in_avals, params) -> ints``, size expressions; a kernel gets those that the body
            uses at run time. None: there are none.
        in_memory: the number of leading operands that it indexes; None: all. It reads others at
            the output's index along its first dimensions, so that its kernel may compute them.
        cheap: as in Elementwise; for ops without array operands.
        selects: it only loads elements and selects between them, so that kernels support it for
            complex values too.
        linear: it uses the linear index over all output dimensions and nothing else that depends
            on an index, so that its axes may collapse.
        sliced: ``(eqn, bounds, cut, definition, build) -> atom``, a slice of the output made
            directly, or None where it cannot or that would not be less. Bounds are (start, limit,
            stride) of each dimension; ``cut(atom, bounds)`` slices an operand.
        closed_sum: ``(eqn, axes, build) -> atom``, the output summed over axes, without a loop.
        broadcast: ``(eqn, shape, dims, build) -> atom``, the output broadcast, made directly.
        converted: ``(eqn, dtype, build) -> atom``, the output in another dtype, made directly.
        added: ``(eqn, other eqn, definition, build) -> atom``, the sum of the outputs of two
            equations of the op, made directly, or None.
        as_updates: ``(eqn, build) -> atom``, of an op each of whose operands is a chunk of the
            output: equivalent updates of memory that is Unwritten, one for each operand, which
            their kernels may compute; or None if not possible.
        partitionable: ``(in_avals, out_aval, params) -> [(operand dim, output dim), ...]`` for each
            operand: partitionable dimensions, of equal sizes, along which the op computes each
            index independently. None: unknown. Dimensions "of the output" after its
            last one are summed over: outputs of shards are summed. The same lists for outputs after
            the first one follow.
    """

    body: Callable[..., Any]
    numbers: Callable[..., Sequence[int]] | None = None
    in_memory: int | None = None
    cheap: bool = False
    selects: bool = False
    linear: bool = False
    sliced: Callable[..., Any] | None = None
    closed_sum: Callable[..., Any] | None = None
    broadcast: Callable[..., Any] | None = None
    converted: Callable[..., Any] | None = None
    added: Callable[..., Any] | None = None
    as_updates: Callable[..., Any] | None = None
    partitionable: Callable[..., Any] | None = None
    is_indexed = True
    combine_shards = "add"

    @property
    def is_continuous(self) -> bool:  # type: ignore[override]
        return self.selects

    @property
    def price(self) -> int | None:  # type: ignore[override]
        return 1 if self.cheap else None

    def uses_indices(self, eqn: Eqn) -> bool:
        del eqn
        return True

    def has_addresses(self, eqn: Eqn) -> bool:
        return bool(eqn.inputs)

    def takes_complex(self, eqn: Eqn) -> bool:
        del eqn
        return self.selects

    def operands_in_memory(self, eqn: Eqn) -> int:
        return len(eqn.inputs) if self.in_memory is None else self.in_memory

    def emit(self, context: Context, eqn: Eqn) -> Element | Sequence[Element]:
        avals = [atom.aval for atom in eqn.inputs]
        return self.body(context, avals, eqn.outputs[0].aval, eqn.params)


@record
class Update(Fused):
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
    is_update = True

    def has_addresses(self, eqn: Eqn) -> bool:
        del eqn
        return True

    def takes_complex(self, eqn: Eqn) -> bool:
        return self.combine(eqn.params) in (None, "add")

    def operands_in_memory(self, eqn: Eqn) -> int:
        del eqn
        return 1

    def iteration(self, eqn: Eqn) -> Iteration:
        # It goes through the windows, not through the array that it changes.
        windows = eqn.inputs[3].aval
        dims = tuple(range(windows.ndim))
        identity = tuple((d, d) for d in dims)
        reads = ((), *[identity[: eqn.inputs[k].aval.ndim] for k in (1, 2)], identity)
        return Iteration(windows.shape, dims, reads)

    def in_lane(self, lane: Any, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
        return lane.reject(eqn)


@record
class Laned(Fused):
    """A program of one lane at each index of the lanes: loops and branches inside of a kernel.

    Its equations are made by compiler/lanes/; see docs/design/0029-lanes.md.

    Attributes:
        program: ``params -> LaneProgram``.
        sizes: ``params -> sizes of the lanes``.
        numbers: as in Indexed: the lengths of its loops.
    """

    program: Callable[[dict[str, Any]], Any]
    sizes: Callable[[dict[str, Any]], tuple[int, ...]]
    numbers: Callable[..., Sequence[int]]
    is_lane_program = rounds = costly = True

    def uses_indices(self, eqn: Eqn) -> bool:
        return self.program(eqn.params).uses_lane_index

    def has_addresses(self, eqn: Eqn) -> bool:
        del eqn
        return True

    def is_fusible(self, eqn: Eqn) -> bool:
        del eqn
        return True

    def operands_in_memory(self, eqn: Eqn) -> int:
        return len(self.program(eqn.params).reads)

    def stores(self, eqn: Eqn, var: Var) -> bool:
        return self.program(eqn.params).writes[eqn.outputs.index(var)] is not None

    def iteration(self, eqn: Eqn) -> Iteration:
        return self._over(eqn, self.sizes(eqn.params))

    def emit(self, context: Context, eqn: Eqn) -> Element | Sequence[Element]:
        return context.replay(self.program(eqn.params))

    def in_lane(self, lane: Any, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
        return lane.reject(eqn)
