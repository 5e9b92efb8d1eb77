"""Helpers of the CPU tests: run a kernel compiled and interpreted on the same arguments."""

from __future__ import annotations

import ctypes
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

import gpuflow as gf
from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.compiler.schedules.schedule import scheduled
from gpuflow.kir.builder import Builder
from gpuflow.kir.interpret import run, scalar_to_slot, storage_dtype
from gpuflow.kir.nodes import Axis, Kernel, Mode, Operand, Role, Stride, arguments
from gpuflow.targets.cpu.codegen.schedules.pipeline import CPU_SCHEDULES
from gpuflow.targets.cpu.runtime.kernels import compile_cpu

ZERO, UNIT, ANY = Stride.ZERO, Stride.UNIT, Stride.ANY
IN, OUT, INOUT = Mode.IN, Mode.OUT, Mode.INOUT


@cache
def shared_cache() -> KernelCache:
    """One cache for all CPU tests of a run: equal kernels are built once."""
    return KernelCache(tempfile.mkdtemp(prefix="gpuflow-test-"))


def make_kernel(
    name: str, axes: Mapping[str, Any], operands: Sequence[Operand], body: Any, **settings: Any
) -> Kernel:
    """A kernel whose body ``body(builder)`` emits; ``axes`` maps names to a role or (role, n)."""
    listed = tuple(
        Axis(axis, *(role if isinstance(role, tuple) else (role,))) for axis, role in axes.items()
    )
    builder = Builder({operand.name: operand for operand in operands}, list(axes))
    body(builder)
    return Kernel(name, listed, tuple(operands), builder.finish(), **settings)


def argument_words(
    kernel: Kernel,
    arrays: Mapping[str, Any],
    extents: Mapping[str, int],
    strides: Mapping[tuple[str, str], int],
) -> np.ndarray:
    """The argument block for arrays given as in ``kir.interpret.run``."""
    dtypes = {operand.name: operand.dtype for operand in kernel.operands}
    words = []
    for argument in arguments(kernel):
        given = arrays.get(argument.operand)
        if argument.kind == "pointer":
            array, first = given if isinstance(given, tuple) else (given, 0)
            words.append(array.ctypes.data + first * array.dtype.itemsize)
        elif argument.kind == "base":
            words.append(int(given))
        elif argument.kind == "scalar":
            words.append(scalar_to_slot(dtypes[argument.operand], given))
        elif argument.kind == "extent":
            words.append(extents[argument.axis])
        else:
            words.append(strides[argument.operand, argument.axis])
    return np.array(words, np.int64)


def split_extent(kernel: Kernel, extents: Mapping[str, int]) -> int:
    """The extent of the axis that a launch splits; 1 without one."""
    for axis in kernel.axes:
        if axis.role is Role.PARALLEL:
            return extents[axis.name] if axis.exact is None else axis.exact
    return 1


def run_cpu(
    kernel: Kernel,
    arrays: Mapping[str, Any],
    extents: Mapping[str, int] | None = None,
    strides: Mapping[tuple[str, str], int] | None = None,
    chunks: int = 1,
) -> None:
    """Run the compiled kernel in ``chunks`` calls."""
    extents, strides = extents or {}, strides or {}
    loaded = compile_cpu(kernel, shared_cache(), check=True)
    words = argument_words(kernel, arrays, extents, strides)
    total = split_extent(kernel, extents)
    edges = [total * place // chunks for place in range(chunks + 1)]
    for lo, hi in itertools.pairwise(edges):
        loaded.call(words.ctypes.data_as(ctypes.c_void_p), lo, hi)


def check_against_interpreter(
    kernel: Kernel,
    arrays: Mapping[str, Any],
    extents: Mapping[str, int] | None = None,
    strides: Mapping[tuple[str, str], int] | None = None,
    ulps: int = 0,
    chunks: int = 1,
) -> dict[str, np.ndarray]:
    """Run a kernel both ways on copies; what they write must agree. Returns the compiled ones."""
    compiled, interpreted = _copies(arrays), _copies(arrays)
    run_cpu(kernel, compiled, extents, strides, chunks)
    run(kernel, interpreted, extents or {}, strides)
    written = [o.name for o in kernel.operands if o.mode in (OUT, INOUT)]
    for name in written:
        assert_close(_array(compiled[name]), _array(interpreted[name]), ulps)
    return {name: _array(compiled[name]) for name in written}


def _array(given: Any) -> np.ndarray:
    return given[0] if isinstance(given, tuple) else given


def _copies(arrays: Mapping[str, Any]) -> dict[str, Any]:
    copies = {}
    for name, given in arrays.items():
        if isinstance(given, tuple):
            copies[name] = (given[0].copy(), given[1])
        else:
            copies[name] = given.copy() if isinstance(given, np.ndarray) else given
    return copies


def ulp_distance(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """How many floats lie between; 0 for two nan, huge for nan beside a number."""
    dtype = expected.dtype
    integer = np.dtype(f"i{dtype.itemsize}")
    lowest = np.iinfo(integer).min

    def order(values: np.ndarray) -> np.ndarray:
        bits = values.view(integer).astype(object)
        return np.where(bits < 0, int(lowest) - bits, bits)

    distance = np.abs(order(found.reshape(-1)) - order(expected.reshape(-1)))
    nan = np.isnan(found.reshape(-1)), np.isnan(expected.reshape(-1))
    distance = np.where(nan[0] & nan[1], 0, np.where(nan[0] ^ nan[1], 10**9, distance))
    return distance.astype(float)


def assert_close(found: np.ndarray, expected: np.ndarray, ulps: float = 0) -> None:
    """Equal dtypes and values, floats within ``ulps``; narrow floats by their bits."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if found.dtype.kind == "f" and found.dtype.itemsize >= 4:
        distance = ulp_distance(found, expected)
        worst = int(np.argmax(distance)) if distance.size else 0
        assert distance.size == 0 or distance[worst] <= ulps, (
            f"{distance[worst]} ulps at {worst}: {found.reshape(-1)[worst]!r} "
            f"against {expected.reshape(-1)[worst]!r}"
        )
        return
    if found.dtype.kind in "fV":
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(found, expected)


def random_array(shape: Any, dtype: str, seed: int = 0) -> np.ndarray:
    """Random numbers of a storage dtype, small integers and bools included."""
    generator = np.random.default_rng(seed)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        low = 0 if dtype.startswith("uint") else -50
        return generator.integers(low, 50, shape).astype(dtype)
    return generator.standard_normal(shape).astype(storage_dtype(dtype))


def call_of(function: Any, *shapes: Any, dtype: Any = np.float32) -> KernelCall:
    """The one kernel call of a function's plan."""
    avals = [gf.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    plan, _ = compile_plan(gf.make_jaxpr(function)(*avals))
    (step,) = plan.steps
    assert isinstance(step, KernelStep)
    (call,) = step.calls
    return call


def calls_of(function: Any, *shapes: Any, dtype: Any = np.float32) -> tuple[KernelCall, ...]:
    """What is launched for a function; scratch memory has buffers that no plan has."""
    numbers = itertools.count(1000)
    call = call_of(function, *shapes, dtype=dtype)
    return scheduled(call, lambda count: next(numbers), CPU_SCHEDULES)


def normals(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
