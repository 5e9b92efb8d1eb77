"""The eager evaluator: run one primitive on concrete values.

On the CPU an op runs by its ``impl`` (NumPy), or by a program of the single op if that is faster.
A driver with ``evaluate``, as on GPUs, runs all ops itself.

Tests: tests/runtime/test_eager.py, tests/runtime/test_single_ops.py.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.caches import register_table
from gpuflow.base.config import Settings, config
from gpuflow.compiler.shardings import resolve_unconstrained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.primitive import Primitive
from gpuflow.core.sharding import Sharding
from gpuflow.core.trace import Tracer, raise_leaked_tracer, source_location
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.device import Device, common_device, default_device, in_use
from gpuflow.runtime.distributed import programs, runs_distributed
from gpuflow.runtime.driver import Driver, Program
from gpuflow.runtime.memories import is_in_one_memory
from gpuflow.runtime.scalars import array_of_scalar
from gpuflow.runtime.sharded import (
    ShardedArray,
    check_same_devices,
    evaluate_sharded,
    whole_of,
    with_sharding,
)

_MAX_CALLS = 16384


@dataclass(frozen=True, slots=True)
class Call:
    """Cached data of an op on operands of certain types.

    Attributes:
        outs: the result of the shape rule.
        is_plain: whether ``impl`` is elementwise NumPy code, which runs no code of users.
        is_silent: whether ``impl`` only moves elements, so that NumPy cannot warn.
        program: the program that runs instead of ``impl``, or None.
    """

    outs: Any
    is_plain: bool
    is_silent: bool
    program: Program | None = None


_calls: dict[Hashable, Call] = {}
register_table("eager calls", _calls, _MAX_CALLS)
# Contexts in which NumPy does not warn. Entering one costs a tenth of ``np.errstate``. A context
# serves one call at a time.
_quiet: list[Context] = []


def evaluate(primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Apply ``primitive`` to concrete values and return Arrays."""
    if primitive.execute is not None:
        _refuse_tracers(primitive, operands)
        if in_use.distributed and runs_distributed(primitive, operands, params):
            check_same_devices(primitive.name, operands)
            return programs.evaluate(primitive, operands, params)
        return primitive.execute(operands, params)
    placement = primitive.placement
    if placement.sharding is not None:
        return _in_sharding(primitive, operands[0], placement.sharding(params))
    try:
        arrays = [value._data for value in operands]
        avals = tuple([value.aval for value in operands])
        device = operands[-1].device
    except (AttributeError, IndexError):  # not all are plain Arrays, one is deleted, or no operands
        if in_use.distributed and runs_distributed(primitive, operands, params):
            check_same_devices(primitive.name, operands)
            return programs.evaluate(primitive, operands, params)
        if any(type(value) is ShardedArray for value in operands):
            return evaluate_sharded(evaluate, primitive, operands, params)
        target = None if placement.device is None else placement.device(params)
        arrays, avals, device = _converted(primitive, operands, target)
    if in_use.several and placement.device is None:
        device, arrays = on_common_device(primitive.name, operands, arrays)
    is_new = False
    if placement.device is not None:
        before = device.driver if type(operands[0]) is Array else None
        device, arrays = _on_device(arrays, device, _target_device(primitive, params) or device)
        is_new = device.driver is not before
    driver = device.driver
    if driver.evaluate is not None:
        if is_new:  # the data was copied above, so it has no other references
            out_arrays = [Array(arrays[0], avals[0], device)]
        else:
            out_arrays = driver.evaluate(primitive, avals, params, arrays, device)
        if config.may_check:
            for array in out_arrays:
                _check_result(primitive, operands, array.data, array.aval, device)
        return out_arrays if primitive.multiple_results else out_arrays[0]
    try:
        call = _calls[primitive, avals, tuple(params.items()) if params else ()]
    except (KeyError, TypeError):
        call = None
    if call is None:  # outside of the handler: errors of shape rules must not chain a KeyError
        call = cached_call(primitive, avals, params, driver)
    if call.program is not None:
        out_arrays = call.program.run(arrays, device)
        if config.may_check:
            for array in out_arrays:
                _check_result(primitive, operands, array.data, array.aval, device)
        return out_arrays if primitive.multiple_results else out_arrays[0]
    outs, xp = call.outs, driver.xp
    if call.is_plain:
        context = _quiet.pop() if _quiet else _quiet_context()
        try:
            results = context.run(primitive.impl, xp, *arrays, **params)
        finally:
            _quiet.append(context)
    elif call.is_silent:
        results = primitive.impl(xp, *arrays, **params)
    else:
        with np.errstate(all="ignore"):
            results = primitive.impl(xp, *arrays, **params)
    if not primitive.multiple_results:
        data = driver.result(results, outs, arrays)
        if config.may_check or data.shape != outs.shape:
            _check_result(primitive, operands, data, outs, device)
        return Array(data, outs, device)
    out_arrays = [
        Array(driver.result(result, aval, arrays), aval, device)
        for result, aval in zip(results, outs, strict=True)
    ]
    for array in out_arrays:
        _check_result(primitive, operands, array.data, array.aval, device)
    return out_arrays


def _converted(
    primitive: Primitive, operands: tuple[Any, ...], target: Device | None = None
) -> tuple[list[Any], tuple[ShapedArray, ...], Device]:
    """Data, types and device of operands, of which some are not Arrays, or deleted.

    Values that are not Arrays go to the device of the last Array, or else to ``target``.
    """
    used = [value.device for value in operands if type(value) is Array]
    device = used[-1] if used else target or default_device()
    # Cached scalars are shared. Results of elementwise ops never share memory with an operand.
    may_cache = bool(used) and primitive.lower.is_elementwise
    arrays, avals = [], []
    for value in operands:
        cached = array_of_scalar(value) if may_cache and type(value) is not Array else None
        if cached is not None and cached.device.driver is device.driver:
            value = cached
        aval = aval_of(value)
        if type(value) is Array:
            arrays.append(value.data)
        else:
            _refuse_tracers(primitive, (value,))
            arrays.append(device.driver.from_host(as_numpy(value, aval)))
        avals.append(aval)
    return arrays, tuple(avals), device


def on_common_device(
    name: str, operands: Sequence[Any], arrays: list[Any], counted: Sequence[Any] | None = None
) -> tuple[Device, list[Any]]:
    """The device of an operation, and the data of its operands, converted to its driver.

    Args:
        name: name of the operation.
        operands: the values, of which only Arrays have a device.
        arrays: the data of each operand. Data of other values than Arrays must belong to the
            driver of the last Array.
        counted: the operands that determine the device; None means all.

    Raises:
        ValueError: if operands are committed to different devices.
    """
    used = [x for x in (operands if counted is None else counted) if type(x) is Array]
    device = common_device(name, used)
    if len(in_use.drivers) > 1:
        homes = [x.device for x in operands if type(x) is Array]
        last = homes[-1] if homes else device
        devices = [x.device if type(x) is Array else last for x in operands]
        pairs = zip(arrays, devices, strict=True)
        arrays = [_on_device([x], home, device)[1][0] for x, home in pairs]
    return device, arrays


def _target_device(primitive: Primitive, params: dict[str, Any]) -> Device | None:
    """The device of an op's result, if its params specify a device."""
    device = None if primitive.placement.device is None else primitive.placement.device(params)
    return None if device is None else device.committed


def _on_device(arrays: list[Any], source: Device, target: Device) -> tuple[Device, list[Any]]:
    """The target device, and data converted to its driver."""
    old, new = source.driver, target.driver
    if old is not new:
        arrays = [new.from_driver(data, old) for data in arrays]
    return target, arrays


def _in_sharding(primitive: Primitive, value: Any, sharding: Sharding) -> Array:
    """Reshard an array; elements are copied only if they change memories."""
    current = value.sharding if isinstance(value, Array) else None
    sharding = resolve_unconstrained(sharding, current, aval_of(value).ndim)
    if not is_in_one_memory(sharding):
        return programs.reshard(value, sharding)
    device = sharding._devices[0].committed
    whole = whole_of(value)
    if not isinstance(whole, Array):
        (data,), (aval,), source = _converted(primitive, (value,))
        whole = Array(data, aval, source)
    if whole.device != device:
        device, (data,) = _on_device([whole.data], whole.device, device)
        whole = Array(data, whole.aval, device)
    return with_sharding(whole, sharding)


def _quiet_context() -> Context:
    context = Context()
    context.run(np.seterr, all="ignore")
    return context


def cached_call(
    primitive: Primitive, avals: tuple[ShapedArray, ...], params: dict[str, Any], driver: Driver
) -> Call:
    """Return the cached data of an op, for hashable params.

    Only drivers without ``evaluate`` use it. All such devices share one driver.
    """
    key = (primitive, avals, tuple(params.items()) if params else ())
    try:
        call = _calls.get(key)
    except TypeError:  # params cannot be hashed: without a cache, compiling is not worth it
        return _new_call(primitive, avals, params, None)
    if call is None:
        if len(_calls) > _MAX_CALLS:
            _calls.clear()
        call = _calls[key] = _new_call(primitive, avals, params, driver)
    return call


def _new_call(
    primitive: Primitive,
    avals: tuple[ShapedArray, ...],
    params: dict[str, Any],
    driver: Driver | None,
) -> Call:
    outs = primitive.shape(*avals, **params)
    rule = primitive.lower
    program = None if driver is None else driver.program_of_op(primitive, avals, params)
    return Call(outs, rule.is_elementwise, rule.view is not None, program)


def _refuse_tracers(primitive: Primitive, operands: tuple[Any, ...]) -> None:
    for value in operands:
        if isinstance(value, Tracer):
            raise_leaked_tracer(value, primitive.name)


def _check_result(
    primitive: Primitive, operands: Sequence[Any], data: Any, aval: ShapedArray, device: Device
) -> None:
    """Check a result's shape, and for nan and infinities if the settings request it."""
    if data.shape != aval.shape:
        raise RuntimeError(
            f"[{primitive.name}] impl must give shape {aval.shape}; got {data.shape}: "
            "impl and shape rule disagree."
        )
    if config.may_check and (settings := checks()) is not None:
        values = device.driver.to_host(data)
        if not is_finite(values, aval, settings):
            location = f", at {source_location()}"
            raise not_finite(primitive.name, values, aval, settings, operands, location)


class _Local(threading.local):
    """Thread-local state: whether this thread searches for the origin of a nonfinite result."""

    is_replaying = False


_local = _Local()


@contextmanager
def unchecked() -> Iterator[None]:
    """Disable the checks of results inside the block."""
    before, _local.is_replaying = _local.is_replaying, True
    try:
        yield
    finally:
        _local.is_replaying = before


def checks() -> Settings | None:
    """The settings if they request checks of results, else None. Checks wait for a GPU."""
    settings = config.trace_context()
    if _local.is_replaying or not (settings.debug_nans or settings.debug_infs):
        return None
    return settings


def is_finite(data: np.ndarray, aval: ShapedArray, settings: Settings) -> bool:
    """Whether a result has no values (nan, infinities) that the settings reject."""
    if dtypes.is_extended(aval.dtype) or not dtypes.is_inexact(aval.dtype):
        return True
    has_nan = settings.debug_nans and np.isnan(data).any()
    return not (has_nan or (settings.debug_infs and np.isinf(data).any()))


def not_finite(
    name: str,
    data: np.ndarray,
    aval: ShapedArray,
    settings: Settings,
    operands: Sequence[Any] = (),
    location: str = "",
) -> FloatingPointError:
    """The error for a result of ``name`` that is not finite.

    Args:
        name: name of the op, or of the program.
        data, aval: the result.
        settings: the settings that reject it.
        operands: the operands of the op; empty if they are unknown.
        location: a phrase for the message, such as the source line.
    """
    is_nan = settings.debug_nans and np.isnan(data).any()
    what, setting = ("nan", "debug_nans") if is_nan else ("inf", "debug_infs")
    flags = np.isnan(data) if is_nan else np.isinf(data)
    index = tuple(int(k) for k in np.argwhere(flags)[0])
    where = f" at {list(index)}" if index else ""
    values = ", ".join([_shown(value, aval.shape, index) for value in operands])
    call = f", of {name}({values})" if operands else ""
    return FloatingPointError(
        f"[{name}] results must be finite with {setting} set; got {what} in {aval}{where}{call}"
        f"{location}. Fix: check the operands of this op."
    )


def _shown(value: Any, shape: tuple[int, ...], index: tuple[int, ...]) -> str:
    """Describe an operand: its element at the index of the nonfinite result, or its range."""
    aval = aval_of(value)
    if dtypes.is_extended(aval.dtype):
        return str(aval)
    data = as_numpy(value, aval)
    if aval.shape in ((), shape):
        return f"{data[index if aval.shape else ()]:.6g}"
    if not data.size or data.dtype.kind not in "iufV":
        return str(aval)
    with np.errstate(all="ignore"):
        return f"{aval} from {data.min():.6g} to {data.max():.6g}"
