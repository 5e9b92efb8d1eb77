"""Constant folding while code is emitted: a builder that folds static integers and bools.

Tests: tests/compiler/test_lanes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.compiler.lanes.arrays import NotLanesError
from gpuflow.core.aval import ShapedArray, storage_name
from gpuflow.kir.builder import Builder, ComplexPair
from gpuflow.kir.nodes import Value
from gpuflow.kir.scalar import (
    COMPONENT_DTYPES,
    COMPUTE_DTYPES,
    FUNCTIONS,
    NARROW_DTYPES,
    compute_dtype,
    dtype_kind,
)

MAX_VALUES = 4000  # including those of failed attempts; long texts compile slowly

_IDENTITIES = {("add", 0), ("sub", 0), ("mul", 1), ("or", 0), ("xor", 0)}  # right identities
_COMMUTATIVE = {"add", "mul", "or", "xor"}  # commutative functions


class FoldingBuilder(Builder):
    """KernelIR builder that folds functions of static integers and bools, and dead branches.

    Indices of small arrays are static, so most address computations fold. Floats are never folded:
    their results would depend on the host.

    Raises:
        NotLanesError: if the code defines more than MAX_VALUES values.
    """

    def __init__(self, operands: Any) -> None:
        super().__init__(operands)
        self._static: dict[Value, int] = {}

    def _new_values(self, dtypes: Sequence[str]) -> tuple[Value, ...]:
        if self._next_number > MAX_VALUES:
            raise NotLanesError(f"it takes more than {MAX_VALUES} statements")
        return super()._new_values(dtypes)

    def static_value(self, value: Value) -> int | None:
        """The static integer or bool of a value; None if it is not static."""
        return self._static.get(value)

    def const(self, dtype: str, value: bool | int | float) -> Value:
        out = super().const(dtype, value)
        if dtype_kind(dtype) != "float":
            self._static[out] = int(value)
        return out

    def apply(self, fn: str, *args: Value) -> Any:
        static = tuple([self._static.get(arg) for arg in args])
        if None not in static:
            folded = _folded(fn, tuple([arg.dtype for arg in args]), static)
            if folded is not None:
                return self.const(*folded)
        if len(args) == 2:
            if (fn, static[1]) in _IDENTITIES:
                return args[0]
            if fn in _COMMUTATIVE and (fn, static[0]) in _IDENTITIES:
                return args[1]
        return super().apply(fn, *args)

    def cast(self, value: Value, dtype: str) -> Value:
        static = self._static.get(value)
        if static is None or dtype_kind(dtype) == "float":
            return super().cast(value, dtype)
        if dtype == "bool":
            return self.const(dtype, bool(static))
        return self.const(dtype, int(np.asarray(static, value.dtype).astype(dtype)))

    def select(self, predicate: Value, on_true: Any, on_false: Any) -> Any:
        static = self._static.get(predicate)
        if static is not None:
            return on_true if static else on_false
        return on_true if on_true == on_false else super().select(predicate, on_true, on_false)

    def if_(self, predicate: Value, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        static = self._static.get(predicate)
        if static is None:
            return super().if_(predicate, then, orelse)
        results = then() if static else orelse()
        if results is None:
            return ()
        return (results,) if isinstance(results, Value) else tuple(results)


def values_of_elements(elements: Sequence[Value | ComplexPair]) -> list[Value]:
    """The values of elements: one of a real element, two components of a complex one."""
    return [
        value
        for element in elements
        for value in (
            (element.real, element.imag) if isinstance(element, ComplexPair) else (element,)
        )
    ]


def elements_of_values(
    values: Sequence[Value], like: Sequence[Value | ComplexPair]
) -> list[Value | ComplexPair]:
    """The inverse of ``values_of_elements``: elements, each real or complex as in ``like``."""
    remaining = iter(values)
    return [
        ComplexPair(next(remaining), next(remaining))
        if isinstance(element, ComplexPair)
        else next(remaining)
        for element in like
    ]


def zero_element(builder: FoldingBuilder, dtype: str) -> Value | ComplexPair:
    """The zero element of a storage dtype."""
    if dtype in COMPONENT_DTYPES:
        component = builder.const(COMPONENT_DTYPES[dtype], 0.0)
        return ComplexPair(component, component)
    convert = bool if dtype == "bool" else (float if "float" in dtype else int)
    return builder.const(compute_dtype(dtype), convert(0))


def storage_of(aval: ShapedArray) -> str:
    """The storage dtype of an array; raises NotLanesError if kernels do not support it."""
    name = storage_name(aval.dtype)
    if name not in (*COMPUTE_DTYPES, *NARROW_DTYPES, *COMPONENT_DTYPES):
        raise NotLanesError(f"kernels do not hold {aval.dtype}")
    return name


@lru_cache(16384)
def _folded(
    fn: str, dtypes: tuple[str, ...], numbers: tuple[int, ...]
) -> tuple[str, bool | int] | None:
    """Dtype and value of a function of static values; None for floats and multiple results.

    Args:
        fn: a name in ``kir.scalar.FUNCTIONS``.
        dtypes, numbers: compute dtype and value of each argument; bools are 0 and 1.
    """
    arrays = [np.asarray(n, dtype) for n, dtype in zip(numbers, dtypes, strict=True)]
    results = FUNCTIONS[fn](*arrays)
    dtype = results[0].dtype.name
    if len(results) > 1 or dtype_kind(dtype) == "float":
        return None
    return dtype, results[0].item()
