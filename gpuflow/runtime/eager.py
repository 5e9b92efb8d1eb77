"""The eager evaluator: one op at a time, through its ``impl``."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.config import Settings, config
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.trace import Tracer, check_not_leaked
from gpuflow.runtime.array import Array, as_numpy, raise_deleted
from gpuflow.runtime.device import Device, default_device

_out_avals: dict[Any, Any] = {}
_MAX_SHAPES = 16384


def evaluate(primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Apply ``primitive`` to concrete values and return Arrays."""
    if primitive.execute is not None:
        _refuse_tracers(primitive, operands)
        return primitive.execute(operands, params)
    arrays, avals, device = [], [], None
    for value in operands:
        if type(value) is Array:
            if value._data is None:
                raise_deleted(value)
            arrays.append(value._data)
            avals.append(value.aval)
            device = value.device
        else:
            _refuse_tracers(primitive, (value,))
            aval = aval_of(value)
            arrays.append(as_numpy(value, aval))
            avals.append(aval)
    if primitive.device is not None:
        device = primitive.device(params) or device
    device = device or default_device()
    outs = out_avals(primitive, tuple(avals), params)
    with np.errstate(all="ignore"):
        results = primitive.impl(np, *arrays, **params)
    if not primitive.multiple_results:
        return _wrap(primitive, results, outs, device, arrays)
    return [
        _wrap(primitive, result, aval, device, arrays)
        for result, aval in zip(results, outs, strict=True)
    ]


def out_avals(primitive: Any, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Any:
    """The shape rule, remembered for hashable params."""
    try:
        key = (primitive, avals, tuple(params.items()))
        found = _out_avals.get(key)
    except TypeError:
        return primitive.shape(*avals, **params)
    if found is None:
        if len(_out_avals) > _MAX_SHAPES:
            _out_avals.clear()
        found = _out_avals[key] = primitive.shape(*avals, **params)
    return found


def _refuse_tracers(primitive: Any, operands: tuple[Any, ...]) -> None:
    for value in operands:
        if isinstance(value, Tracer):
            check_not_leaked(value, primitive.name)


def _wrap(
    primitive: Any, result: Any, aval: ShapedArray, device: Device, operands: list[np.ndarray]
) -> Array:
    dtype = storage_dtype(aval.dtype)
    data = np.asarray(result)
    shared = data.base is not None or any(data is operand for operand in operands)
    if shared or data.dtype != dtype or not data.flags.c_contiguous:
        # Results own their memory, so that donation can never reach another array's buffer.
        data = np.array(data, dtype=dtype, order="C", copy=True)
    if data.shape != aval.shape:
        raise RuntimeError(
            f"[{primitive.name}] impl must give shape {aval.shape}; got {data.shape}: "
            "impl and shape rule disagree."
        )
    settings = config.trace_context()
    if settings.debug_nans or settings.debug_infs:
        check_finite(primitive.name, data, aval, settings)
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
