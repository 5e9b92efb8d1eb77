"""The primitives of custom_vjp: the call, and its linear map, which only a transpose defines.

The jvp rule of a call runs the user's ``fwd`` and binds ``custom_vjp_linear`` on the tangents. That
equation has no value: it can only be transposed, which runs ``bwd``. Linearization records it.
Forward mode needs its value and raises an error.

Rules are flat here:

- ``fwd(perturbed, *primals) -> (*outs, *residuals)``. ``perturbed`` has a flag for each primal:
  whether it has a tangent. ``fwd.out_count`` is set once it has run.
- ``bwd(*residuals, *cotangents) -> cotangents``, with None for zero. Zero cotangents are passed as
  ``Zero`` if ``bwd.symbolic_zeros``, otherwise as arrays.

Tests: tests/control/test_custom_vjp.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.util import safe_zip
from gpuflow.control.custom.calls import (
    batch_with_zeros,
    call_checked,
    call_effects,
    call_execute,
    call_shape,
    close_call,
    map_call,
)
from gpuflow.control.mapped_axes import first_element
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.key_use import follow_programs
from gpuflow.core.lowering import HostCall, Inline
from gpuflow.core.primitive import make_primitive, register
from gpuflow.core.rules import AxisData, Uniform, Zero, is_undefined
from gpuflow.ops.collectives.varying import is_checked
from gpuflow.ops.layout.axes import reduce_sum
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.zeros import instantiate
from gpuflow.transforms.batching import batch_flat

# --- the call ------------------------------------------------------------------------------


def _call_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    fwd: Any,
    bwd: Any,
    name: str,
    num_consts: int,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    """The jvp rule: run ``fwd``, and bind the linear map on its residuals and the tangents."""
    del params
    for tangent in tangents[:num_consts]:
        if type(tangent) is not Zero:
            raise TypeError(
                f"[custom_vjp] {name} must not close over values that are differentiated; got a "
                f"tangent for a closed-over {aval_of(tangent)}. Fix: pass it as an argument, and "
                "return its cotangent from bwd."
            )
    tangents = tangents[num_consts:]
    perturbed = tuple(type(tangent) is not Zero for tangent in tangents)
    results = list(fwd(perturbed, *primals[num_consts:]))
    outs, residuals = results[: fwd.out_count], results[fwd.out_count :]
    out_avals = tuple(aval_of(out).tangent() for out in outs)
    out_tangents = iter(
        custom_vjp_linear_p.bind(
            *residuals,
            *[tangent for tangent in tangents if type(tangent) is not Zero],
            bwd=bwd,
            in_zeros=tuple(type(tangent) is Zero for tangent in tangents),
            name=name,
            num_residuals=len(residuals),
            out_avals=out_avals,
        )
    )
    return outs, [Zero(aval) if _is_float0(aval) else next(out_tangents) for aval in out_avals]


def _call_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    call_jaxpr: ClosedJaxpr,
    fwd: Any,
    bwd: Any,
    name: str,
    num_consts: int,
) -> tuple[list[Any], list[int | Uniform | None]]:
    # Every output is mapped. bwd may weight elements differently, so summing a cotangent over the
    # axis before bwd would give another gradient than a loop over the elements.
    batched_operands, call, rule_dims, out_dims = map_call(
        axis, operands, dims, call_jaxpr, name, num_consts
    )
    # In shard_map an output that does not vary is one value, with one cotangent.
    shared = tuple(axis.varies is not None and isinstance(dim, Uniform) for dim in out_dims)
    forward = _MappedForward(fwd, axis, rule_dims)
    backward = _MappedBackward(bwd, axis, lambda: forward.residual_dims, rule_dims, shared)
    outs = custom_vjp_p.bind(*batched_operands, **call, fwd=forward, bwd=backward)
    if any(shared):
        outs = [first_element(x, 0) if flag else x for x, flag in safe_zip(outs, shared)]
        out_dims = [None if flag else dim for dim, flag in safe_zip(out_dims, shared)]
    return outs, out_dims


class _MappedForward:
    """A flat fwd, batched; the batch axis of outputs is 0.

    ``residual_dims``, the batch axes of the residuals, is set by each call.
    """

    def __init__(self, forward: Any, axis: AxisData, dims: Sequence[int | None]) -> None:
        self.forward, self.axis, self.dims = forward, axis, dims
        self.residual_dims: list[int | None] = []
        self.__name__ = forward.__name__

    @property
    def out_count(self) -> int:
        return self.forward.out_count

    def __call__(self, perturbed: tuple[bool, ...], *primals: Any) -> list[Any]:
        forward = partial(self.forward, perturbed)
        results, dims = batch_flat(forward, self.axis, primals, self.dims)
        count = self.out_count
        self.residual_dims = dims[count:]
        outs = [
            batch_to_dim(out, dim, 0, self.axis.size)
            for out, dim in safe_zip(results[:count], dims[:count])
        ]
        return [*outs, *results[count:]]


class _MappedBackward:
    """A flat bwd, batched: ``(*residuals, *cotangents) -> cotangents``.

    Cotangents of outputs have batch axis 0. They are summed over it for an output that all elements
    share (``shared``). The cotangent of an operand has the operand's batch axis, and is summed over
    the batch if the operand is unmapped. In shard_map an unmapped operand is a single value: if its
    cotangent does not vary, as after psum, that is the result without a sum.
    """

    def __init__(
        self,
        backward: Any,
        axis: AxisData,
        residual_dims: Callable[[], Sequence[int | None]],
        in_dims: Sequence[int | None],
        shared: Sequence[bool] = (),
    ) -> None:
        self.backward, self.axis, self.in_dims = backward, axis, in_dims
        self.shared = shared
        self.residual_dims = residual_dims
        self.is_one = is_checked((axis.name,))
        self.symbolic_zeros = backward.symbolic_zeros
        self.__name__ = getattr(backward, "__name__", "bwd")

    def __call__(self, *operands: Any) -> list[Any]:
        dims = list(self.residual_dims())
        count = len(dims)
        inputs = list(operands)
        for k in range(count, len(operands)):
            is_shared = bool(self.shared) and self.shared[k - count]
            dims.append(None if is_shared else 0)
            if is_shared:
                inputs[k] = _total(inputs[k])
        results, out_dims = batch_with_zeros(self.backward, self.axis, inputs, dims)
        return [
            None if result is None else self._with_batch_dim(result, dim, target)
            for result, dim, target in safe_zip(results, out_dims, self.in_dims)
        ]

    def _with_batch_dim(self, result: Any, dim: int | None, target: int | None) -> Any:
        if dim is None and target is None and self.is_one:
            return result
        full = batch_to_dim(result, dim, target or 0, self.axis.size)
        return reduce_sum(full, (0,)) if target is None else full


def _total(cotangent: Any) -> Any:
    """The cotangent of a single value: the sum over the cotangents of its copies."""
    if type(cotangent) is Zero:
        return Zero(cotangent.aval.update(shape=cotangent.aval.shape[1:]))
    return reduce_sum(cotangent, (0,))


custom_vjp_p = register(
    make_primitive(
        "custom_vjp_call",
        shape=call_shape,
        execute=call_execute,
        close=close_call,
        jvp=_call_jvp,
        batch=_call_batch,
        lower=Inline(lambda _, params: params["call_jaxpr"]),
        multiple_results=True,
        effects=call_effects,
        may_communicate=True,
        checked=call_checked(lambda: custom_vjp_p, ("fwd", "bwd")),
        subjaxprs=lambda params: [params["call_jaxpr"]],
        keys=follow_programs,
    )
)

# --- the linear map, which only its transpose defines ---------------------------------------


def _linear_shape(
    *avals: ShapedArray, out_avals: tuple[ShapedArray, ...], **params: Any
) -> list[ShapedArray]:
    del avals, params
    return [aval for aval in out_avals if not _is_float0(aval)]


def _is_float0(aval: ShapedArray) -> bool:
    return aval.dtype == dtypes.float0


def _refuse_forward_mode(*operands: Any, name: str, **params: Any) -> Any:
    del operands, params
    raise TypeError(
        "[custom_vjp] forward-mode differentiation (jvp, jacfwd, linearize) cannot be applied to "
        f"a custom_vjp function; got {name}. Fix: use grad, vjp or jacrev, or give {name} a "
        "custom_jvp rule instead."
    )


def _linear_impl(xp: Any, *arrays: Any, name: str, **params: Any) -> Any:
    del xp, params
    return _refuse_forward_mode(*arrays, name=name)


def _linear_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, name: str, **params: Any
) -> Any:
    del tangents, params
    return _refuse_forward_mode(*primals, name=name)


def _linear_transpose(
    cotangents: Sequence[Any],
    *operands: Any,
    bwd: Any,
    in_zeros: tuple[bool, ...],
    num_residuals: int,
    out_avals: tuple[ShapedArray, ...],
    **params: Any,
) -> list[Any]:
    del params
    residuals, tangents = operands[:num_residuals], operands[num_residuals:]
    remaining = iter(cotangents)
    out_cotangents = [Zero(aval) if _is_float0(aval) else next(remaining) for aval in out_avals]
    if not bwd.symbolic_zeros:
        out_cotangents = [instantiate(cotangent) for cotangent in out_cotangents]
    results = bwd(*residuals, *out_cotangents)
    in_cotangents = [result for result, zero in safe_zip(results, in_zeros) if not zero]
    return [
        *[None] * num_residuals,
        *[
            _cotangent_of(tangent, result) if is_undefined(tangent) else None
            for tangent, result in safe_zip(tangents, in_cotangents)
        ],
    ]


def _cotangent_of(tangent: Any, result: Any) -> Any:
    return Zero(tangent.aval.tangent()) if result is None else result


def _linear_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    bwd: Any,
    in_zeros: tuple[bool, ...],
    num_residuals: int,
    out_avals: tuple[ShapedArray, ...],
    name: str,
) -> tuple[list[Any], list[int | None]]:
    residual_dims, tangent_dims = dims[:num_residuals], iter(dims[num_residuals:])
    in_dims = [None if zero else next(tangent_dims) for zero in in_zeros]
    outs = custom_vjp_linear_p.bind(
        *operands,
        bwd=_MappedBackward(bwd, axis, lambda: residual_dims, in_dims),
        in_zeros=in_zeros,
        name=name,
        num_residuals=num_residuals,
        out_avals=tuple(aval.update(shape=(axis.size, *aval.shape)) for aval in out_avals),
    )
    return outs, [0] * len(outs)


custom_vjp_linear_p = register(
    make_primitive(
        "custom_vjp_linear",
        shape=_linear_shape,
        impl=_linear_impl,
        jvp=_linear_jvp,
        transpose=_linear_transpose,
        batch=_linear_batch,
        lower=HostCall(),  # the call raises
        multiple_results=True,
        subjaxprs=lambda params: [],
    )
)
