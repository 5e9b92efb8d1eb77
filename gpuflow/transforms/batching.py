"""Batching: vmap as rules that move one mapped axis through every op.

Tests: tests/transforms/test_batching.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from gpuflow.base.config import extend_axes
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.effects import AxisUse
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.primitive import no_effects
from gpuflow.core.rules import AxisData, Uniform
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.core.trace import Trace, Tracer, current_trace, thread_state, with_trace
from gpuflow.ops.layout.batch_dims import batch_to_dim


class BatchTracer(Tracer):
    """A value with a mapped dimension that the program does not see."""

    __slots__ = ("dim", "is_uniform", "value")

    def __init__(self, trace: BatchTrace, value: Any, dim: int, is_uniform: bool = False) -> None:
        self._trace = trace
        self.value = value
        self.dim = dim
        self.is_uniform = is_uniform
        full = aval_of(value)
        shape = full.shape[:dim] + full.shape[dim + 1 :]
        aval = ShapedArray(shape, full.dtype, full.weak_type, full.mat)
        varies = trace.axis.varies
        self.aval = aval if varies is None or is_uniform else _varying_too(aval, varies)

    @property
    def val(self) -> Any:
        """The value with its mapped dimension, under the name of JAX's."""
        return self.value

    @property
    def batch_dim(self) -> int:
        """The mapped dimension, under the name of JAX's."""
        return self.dim

    def describe(self) -> str:
        origin = self.value.describe() if isinstance(self.value, Tracer) else ""
        return ", ".join(text for text in (origin, "mapped by vmap") if text)


def _varying_too(aval: ShapedArray, name: Any) -> ShapedArray:
    return aval.varying(aval.mat.varying | {name})


class BatchTrace(Trace):
    """Applies batch rules; they run under the parent."""

    __slots__ = ("axis", "use")
    adds = "mapped"
    axis: AxisData
    parent: Trace

    def __init__(self, parent: Trace, axis: AxisData) -> None:
        super().__init__(parent)
        self.axis = axis
        self.use = AxisUse(axis.name)

    def split(self, value: Any) -> tuple[Any, int | None]:
        """The full value and its mapped dimension, None if it has none."""
        if self.maps(value):
            return value.value, value.dim
        return value, None

    def maps(self, value: Any) -> bool:
        """Whether ``value`` is mapped here.

        A user's rule is mapped by a separate trace, with the axis of the vmap under which the
        function was called: captured values of the rule are mapped by that one.
        """
        return type(value) is BatchTracer and value._trace.axis is self.axis

    def is_uniform(self, value: Any) -> bool:
        """Whether the elements of a mapped value are known to be equal."""
        return self.maps(value) and value.is_uniform

    def join(self, value: Any, dim: int | Uniform | None) -> Any:
        """A tracer, or the value itself when it is not mapped."""
        if isinstance(dim, Uniform):
            return BatchTracer(self, value, dim.dim, True)
        return value if dim is None else BatchTracer(self, value, dim)

    def _is_used(self, primitive: Any, params: dict[str, Any]) -> bool:
        """Whether the op communicates over this axis, so that its rule must run in any case."""
        if self.axis.name is None or primitive.effects is no_effects:
            return False
        if primitive.programs.may_communicate and self.axis.has_devices:
            return True
        return self.use in primitive.effects(params)

    def process(self, primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if primitive.programs.close is not None:
            operands, params = primitive.programs.close(operands, params)
        pairs = [self.split(value) for value in operands]
        values = [value for value, _ in pairs]
        dims = [dim for _, dim in pairs]
        with current_trace(self.parent):
            if all(dim is None for dim in dims) and not self._is_used(primitive, params):
                return self.parent.process(primitive, tuple(values), params)
            if primitive.batch is None:
                raise NotImplementedError(
                    f"[{primitive.name}] vmap needs a batching rule; got a primitive without one. "
                    "Fix: call it in a Python loop and jnp.stack the results."
                )
            outs, out_dims = primitive.batch(self.axis, values, dims, **params)
        if not primitive.multiple_results:
            return self.join(outs, out_dims)
        return [self.join(out, dim) for out, dim in safe_zip(outs, out_dims)]


def batch_flat(
    function: Callable[..., Sequence[Any]],
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    uniform: list[bool] | None = None,
) -> tuple[list[Any], list[int | None]]:
    """Outputs of a mapped flat function, each with its mapped dimension or None.

    Which outputs are the same for all elements though they are mapped is added to ``uniform``.
    """
    return with_trace(
        lambda: BatchTrace(thread_state.trace, axis),
        lambda trace: _batched(trace, function, operands, dims, uniform),
    )


def _batched(
    trace: BatchTrace,
    function: Callable[..., Sequence[Any]],
    operands: Sequence[Any],
    dims: Sequence[int | None],
    uniform: list[bool] | None,
) -> tuple[list[Any], list[int | None]]:
    axis = trace.axis
    mapped = [trace.join(value, dim) for value, dim in safe_zip(operands, dims)]
    scope = nullcontext() if axis.name is None else extend_axes((axis.name, axis.size))
    try:
        with current_trace(trace), scope:
            outs = function(*mapped)
        pairs = [trace.split(out) for out in outs]
        if uniform is not None:
            uniform += [trace.is_uniform(out) for out in outs]
    finally:
        trace.finished = True
    return [value for value, _ in pairs], [dim for _, dim in pairs]


def batch_jaxpr(
    jaxpr: ClosedJaxpr,
    axis: AxisData,
    batched: tuple[bool, ...],
    instantiate_outs: tuple[bool, ...] | None = None,
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """The mapped jaxpr, with mapped dimensions in front.

    Returns:
        The jaxpr, and which of its outputs are mapped; ``instantiate_outs`` forces some to be.
    """
    mapped, dims = batch_jaxpr_dims(jaxpr, axis, batched, instantiate_outs)
    return mapped, tuple(dim is not None for dim in dims)


def batch_jaxpr_dims(
    jaxpr: ClosedJaxpr,
    axis: AxisData,
    batched: tuple[bool, ...],
    instantiate_outs: tuple[bool, ...] | None = None,
) -> tuple[ClosedJaxpr, tuple[int | Uniform | None, ...]]:
    """``batch_jaxpr`` that returns for each output 0, ``Uniform(0)``, or None if it is not mapped.

    Outputs that are mapped only because of ``instantiate_outs`` are uniform.
    """
    key = ("batch", axis, batched, instantiate_outs)
    return jaxpr.jaxpr.memo(key, lambda: _make_batched(jaxpr, axis, batched, instantiate_outs))


def _make_batched(
    jaxpr: ClosedJaxpr,
    axis: AxisData,
    batched: tuple[bool, ...],
    instantiate_outs: tuple[bool, ...] | None,
) -> tuple[ClosedJaxpr, tuple[int | Uniform | None, ...]]:
    forced = instantiate_outs or (False,) * len(jaxpr.out_avals)
    front_dims: list[int | Uniform | None] = []

    def mapped(*operands: Any) -> list[Any]:
        dims = [0 if flag else None for flag in batched]
        outs, front_dims[:] = batch_to_front(jaxpr, axis, operands, dims, forced)
        return outs

    # Values that vary along the axis are mapped from here on.
    avals = [aval.varying(aval.mat.varying - {axis.varies}) for aval in jaxpr.in_avals]
    avals = [
        aval.update(shape=(axis.size, *aval.shape)) if flag else aval
        for aval, flag in safe_zip(avals, batched)
    ]
    result, consts = trace_to_jaxpr(mapped, avals)
    return ClosedJaxpr(result, tuple(consts)), tuple(front_dims)


def batch_to_front(
    function: Callable[..., Sequence[Any]],
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    forced: Sequence[bool],
) -> tuple[list[Any], list[int | Uniform | None]]:
    """Outputs of a mapped flat function with mapped dimensions in front, and these as above."""
    uniform: list[bool] = []
    outs, out_dims = batch_flat(function, axis, operands, dims, uniform)
    result, front_dims = [], []
    for out, dim, is_uniform, force in safe_zip(outs, out_dims, uniform, forced):
        is_mapped = dim is not None or force
        result.append(batch_to_dim(out, dim, 0, axis.size) if is_mapped else out)
        is_uniform = is_uniform or dim is None
        front_dims.append((Uniform(0) if is_uniform else 0) if is_mapped else None)
    return result, front_dims
