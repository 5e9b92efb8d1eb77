"""Reductions: ops that combine values along dimensions, in loops of kernels.

Tests: tests/ops/test_every_op.py, tests/ops/test_contractions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpuflow.base.records import record
from gpuflow.core.aval import storage_dtype, storage_name
from gpuflow.core.lowering.base import Context, Element, Iteration
from gpuflow.core.lowering.fused import Fused
from gpuflow.kir.builder import Builder, ComplexPair
from gpuflow.kir.nodes import Value
from gpuflow.kir.scalar import COMPONENT_DTYPES, compute_dtype

if TYPE_CHECKING:
    from gpuflow.core.jaxpr import Eqn


class Folded(Fused):
    """Reductions over ``params["axes"]``: each element is mapped to values, which are combined.

    Attributes:
        shares_loop: several of them may be computed in one loop.
    """

    is_reduction = True

    def iteration(self, eqn: Eqn) -> Iteration:
        operand, axes = eqn.inputs[0].aval, tuple(eqn.params["axes"])
        remaining = tuple(d for d in range(operand.ndim) if d not in axes)
        identity = tuple((d, d) for d in range(operand.ndim))
        return Iteration(operand.shape, remaining, (identity,), axes)

    def starts(self, builder: Builder, eqn: Eqn) -> Sequence[Value]:
        """The neutral values."""
        raise NotImplementedError

    def values(self, context: Context, eqn: Eqn) -> Sequence[Value]:
        """The values of the operand's element at the context's point."""
        raise NotImplementedError

    def combined(
        self, builder: Builder, running: Sequence[Value], new: Sequence[Value], eqn: Eqn
    ) -> Sequence[Value]:
        """The combined values of two sets of elements."""
        raise NotImplementedError

    def folded(self, builder: Builder, values: Sequence[Value], eqn: Eqn) -> Element:
        """The output's element, from the values of all elements."""
        raise NotImplementedError


@record
class Reduction(Folded):
    """Combine over ``params["axes"]``.

    Attributes:
        combine: a commutative, associative function of kir.scalar.
        init: ``dtype -> neutral element``.
        by_components: complex values are combined by combining real and imaginary components.
    """

    combine: str
    init: Callable[[Any], Any]
    by_components: bool = False
    shares_loop = True

    @property
    def combine_shards(self) -> str | None:  # type: ignore[override]
        return self.combine

    @property
    def is_continuous(self) -> bool:  # type: ignore[override]
        return self.combine in ("add", "mul")  # others give one of the values

    def takes_complex(self, eqn: Eqn) -> bool:
        del eqn
        return self.by_components

    def starts(self, builder: Builder, eqn: Eqn) -> Sequence[Value]:
        dtype = eqn.inputs[0].aval.dtype
        storage = storage_name(dtype)
        start = builder.const(compute_dtype(storage), self.init(storage_dtype(dtype)))
        return [start] * (2 if storage in COMPONENT_DTYPES else 1)

    def values(self, context: Context, eqn: Eqn) -> Sequence[Value]:
        del eqn
        element = context.operand(0)
        return (element,) if isinstance(element, Value) else (element.real, element.imag)

    def combined(
        self, builder: Builder, running: Sequence[Value], new: Sequence[Value], eqn: Eqn
    ) -> Sequence[Value]:
        del eqn
        pairs = zip(running, new, strict=True)
        return [builder.apply(self.combine, one, other) for one, other in pairs]

    def folded(self, builder: Builder, values: Sequence[Value], eqn: Eqn) -> Element:
        del builder, eqn
        return ComplexPair(*values) if len(values) > 1 else values[0]


@record
class TupleReduction(Folded):
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

    def starts(self, builder: Builder, eqn: Eqn) -> Sequence[Value]:
        return self.init(builder, eqn.inputs[0].aval, eqn.params)

    def values(self, context: Context, eqn: Eqn) -> Sequence[Value]:
        index = context.reduced_index()
        return self.element(context.builder, context.operand(0), index, eqn.params)

    def combined(
        self, builder: Builder, running: Sequence[Value], new: Sequence[Value], eqn: Eqn
    ) -> Sequence[Value]:
        del eqn
        return self.combine(builder, *running, *new)

    def folded(self, builder: Builder, values: Sequence[Value], eqn: Eqn) -> Element:
        return self.result(builder, values, eqn.outputs[0].aval)
