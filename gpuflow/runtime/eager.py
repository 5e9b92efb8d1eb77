"""The eager evaluator: one op at a time, through its ``impl``."""

from __future__ import annotations

from contextvars import Context
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.config import Settings, config
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.lowering import Elementwise
from gpuflow.core.trace import Tracer, check_not_leaked
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.device import Device, default_device

_MAX_CALLS = 16384


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of an op on operands of certain types.

    Attributes:
        outs: what the shape rule gave.
        is_plain: one op of NumPy on each element, which runs nobody else's code.
    """

    outs: Any
    is_plain: bool


_calls: dict[Any, Call] = {}
# Contexts in which NumPy warns of nothing. To enter one costs a tenth of ``np.errstate``; it
# serves one call at a time.
_quiet: list[Context] = []


def evaluate(primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Apply ``primitive`` to concrete values and return Arrays."""
    if primitive.execute is not None:
        _refuse_tracers(primitive, operands)
        return primitive.execute(operands, params)
    device = None
    try:
        arrays = [value._data for value in operands]
        avals = [value.aval for value in operands]
        if operands:
            device = operands[-1].device
    except AttributeError:
        arrays, avals, device = _converted(primitive, operands)
    if primitive.device is not None:
        device = primitive.device(params) or device
    device = device or default_device()
    call = known_call(primitive, tuple(avals), params)
    outs = call.outs
    if call.is_plain:
        context = _quiet.pop() if _quiet else _quiet_context()
        try:
            results = context.run(primitive.impl, np, *arrays, **params)
        finally:
            _quiet.append(context)
    else:
        with np.errstate(all="ignore"):
            results = primitive.impl(np, *arrays, **params)
    if not primitive.multiple_results:
        return _wrap(primitive, results, outs, device, arrays)
    return [
        _wrap(primitive, result, aval, device, arrays)
        for result, aval in zip(results, outs, strict=True)
    ]


def _converted(
    primitive: Any, operands: tuple[Any, ...]
) -> tuple[list[np.ndarray], list[ShapedArray], Device | None]:
    """Data, types and device of operands of which some are no Arrays, or deleted ones."""
    arrays, avals, device = [], [], None
    for value in operands:
        aval = aval_of(value)
        if type(value) is Array:
            arrays.append(value.data)
            device = value.device
        else:
            _refuse_tracers(primitive, (value,))
            arrays.append(as_numpy(value, aval))
        avals.append(aval)
    return arrays, avals, device


def _quiet_context() -> Context:
    context = Context()
    context.run(np.seterr, all="ignore")
    return context


def known_call(primitive: Any, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Call:
    """The shape rule's answer, remembered for hashable params."""
    key = (primitive, avals, tuple(params.items()) if params else ())
    try:
        found = _calls.get(key)
    except TypeError:
        return _new_call(primitive, avals, params)
    if found is None:
        if len(_calls) > _MAX_CALLS:
            _calls.clear()
        found = _calls[key] = _new_call(primitive, avals, params)
    return found


def _new_call(primitive: Any, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Call:
    outs = primitive.shape(*avals, **params)
    return Call(outs, isinstance(primitive.lower, Elementwise))


def _refuse_tracers(primitive: Any, operands: tuple[Any, ...]) -> None:
    for value in operands:
        if isinstance(value, Tracer):
            check_not_leaked(value, primitive.name)


def _wrap(
    primitive: Any, result: Any, aval: ShapedArray, device: Device, operands: list[np.ndarray]
) -> Array:
    data = result if type(result) is np.ndarray else np.asarray(result)
    shared = data.base is not None
    for operand in operands:
        shared = shared or data is operand
    dtype = aval.dtype
    if data.dtype is not dtype:
        dtype = storage_dtype(dtype)
    if shared or data.dtype != dtype or not data.flags.c_contiguous:
        # Results own their memory, so that donation can never reach another array's buffer.
        data = np.array(data, dtype=dtype, order="C", copy=True)
    if data.shape != aval.shape:
        raise RuntimeError(
            f"[{primitive.name}] impl must give shape {aval.shape}; got {data.shape}: "
            "impl and shape rule disagree."
        )
    if config.may_check:
        check_finite(primitive.name, data, aval, config.trace_context())
    return Array(data, aval, device)


def check_finite(name: str, data: np.ndarray, aval: ShapedArray, settings: Settings) -> None:
    """Refuse nan or inf in a result of ``name`` where the settings ask for it.

    Raises:
        FloatingPointError: there is one.
    """
    if dtypes.is_extended(aval.dtype) or not dtypes.is_inexact(aval.dtype):
        return
    found_nan = settings.debug_nans and np.isnan(data).any()
    found_inf = settings.debug_infs and np.isinf(data).any()
    if found_nan or found_inf:
        what = "nan" if found_nan else "inf"
        raise FloatingPointError(
            f"[{name}] results must be finite with debug_nans or debug_infs set; "
            f"got {what} in {aval}. Fix: check the operands of this op; in a compiled program, "
            "find it with disable_jit."
        )
