"""Alias check by reference counts, before a program overwrites a donated operand.

Users who donate an Array may still have references to its memory: a NumPy view or a slice of one, a
memoryview, DLPack, another Array with the same data. All of these refer to the data, or to the
underlying memory:

    Array --> data --> memory (a pool's block, or the data's own)
                ^         ^
    a second Array,       a NumPy view, a slice, DLPack
    a variable

So an operand is overwritten only if data and memory have no more references than those of one Array
and the list of operands. Otherwise the program gets a copy to write to, and other references see
the old values. Conditions for that:

- Code that creates an Array on memory that another library reads must keep a second reference to
  the memory. It must live as long as the Array (``numpy/exports.py``,
  ``targets/cuda/runtime/driver/exchange.py``).
- The base count, of an unshared array, is measured by the same calls instead of assumed: Python
  versions count differently.
- Without the global interpreter lock, a reference count does not include references of other
  threads: they may take one after the check. Importing gpuflow is refused there (base/system.py).

Tests: tests/runtime/test_holders.py.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np

from gpuflow.base.cached import cached_property
from gpuflow.core.aval import ShapedArray
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device


class Holders:
    """Counts references to the data of one driver.

    Args:
        memory_of: from data to the object that owns its memory; None if there is no such object.
        make: creates data of one byte, without other references, to measure the base counts.
    """

    def __init__(self, memory_of: Callable[[Any], Any], make: Callable[[], Any]) -> None:
        self._memory_of, self._make = memory_of, make

    def is_shared(self, arrays: list[Any], k: int) -> bool:
        """Whether anything besides one Array and ``arrays`` may refer to the memory of data k."""
        to_data, to_memory = self._references(arrays[k])
        most_to_data, most_to_memory = self._of_nobody_else
        return to_data > most_to_data or to_memory > most_to_memory

    def _references(self, data: Any) -> tuple[int, int]:
        memory = self._memory_of(data)
        return getrefcount(data), 0 if memory is None else getrefcount(memory)

    @cached_property
    def _of_nobody_else(self) -> tuple[int, int]:
        """The base counts: of data that only its Array and a list of operands refer to."""
        array = Array(self._make(), ShapedArray((1,), np.uint8), Device("cpu", 0))
        arrays: list[Any] = [array._data]
        return self._references(arrays[0])
