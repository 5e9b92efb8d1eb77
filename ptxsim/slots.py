"""Slot allocation in the register file: registers, constants, parameters and addresses.

Tests: tests/ptxsim/test_ptx_flow.py, tests/ptxsim/test_ptx_memory.py.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ptxsim.geometry import geometry
from ptxsim.program import ParameterElement, Program, SymbolAddress
from ptxsim.site import Scope
from ptxsim.syntax import Module
from ptxsim.types import BOOL, U32, unsigned

_SAMPLE = geometry((1, 1, 1), (1, 1, 1), 0, 1)
_OF_THE_LAUNCH = ("%dynamic_smem_size", "%total_smem_size", "WARP_SZ")


class Slots:
    """The register file and the memory of a kernel while it is decoded.

    Equal requests give equal slots, and requests in the same order give the same slots: a kernel
    is decoded twice if some registers may be unset (decode.py).

    Attributes:
        module: the parsed module.
        entry: the kernel.
        program: the result, which methods fill in.
    """

    def __init__(self, module: Module, name: str) -> None:
        self.module = module
        self.entry = module.functions[name]
        self.program = Program(name, max_threads=self.entry.max_threads)
        self.program.variables = module.variables
        self._slots: dict[Hashable, int] = {}
        self._shared: dict[str, tuple[int, int]] = {}  # first byte, exclusive end
        self._local: dict[tuple[str, str], int] = {}
        self._parameter_offsets: dict[str, int] = {}
        self._assign_offsets()

    def _assign_offsets(self) -> None:
        """Assign offsets to parameters, and to shared and local variables."""
        index = 0
        for parameter in self.entry.parameters:
            self._parameter_offsets[parameter.name] = 8 * index
            index += -(-max(parameter.size, 1) // 8)
        self.program.parameter_slots = index
        functions = self.module.functions.values()
        everything = [*self.module.variables.values()]
        everything += [v for function in functions for v in function.variables.values()]
        shared = [v for v in everything if v.space == "shared"]
        offset = 0
        for variable in shared:
            if variable.count:
                offset = -(-offset // variable.align) * variable.align
                self._shared[variable.name] = offset, offset + variable.size
                offset += variable.size
        self.program.shared_bytes = offset
        aligned = max([v.align for v in shared if not v.count], default=1)
        self.program.dynamic_start = -(-offset // aligned) * aligned
        for variable in shared:
            if not variable.count:
                self._shared[variable.name] = self.program.dynamic_start, -1
        offset = 0
        for function in functions:
            for variable in function.variables.values():
                if variable.space == "local":
                    offset = -(-offset // variable.align) * variable.align
                    self._local[function.name, variable.name] = offset
                    offset += variable.size
        self.program.local_bytes = offset

    def slot(self, key: Hashable, dtype: np.dtype) -> int:
        """The slot of a key; a new one holds zeros."""
        if key not in self._slots:
            self._slots[key] = len(self.program.initial_values)
            held = dtype if dtype == BOOL else unsigned(dtype.itemsize)
            self.program.initial_values.append(np.zeros(1, held))
        return self._slots[key]

    def register(self, scope: Scope, name: str, dtype: np.dtype) -> int:
        """The slot of a declared register."""
        return self.slot(("register", scope.function.name, name), dtype)

    def constant(self, value: np.ndarray) -> int:
        """The slot of a constant."""
        key = ("constant", value.tobytes(), str(value.dtype))
        exists = key in self._slots
        slot = self.slot(key, value.dtype)
        if not exists:
            self.program.initial_values[slot] = value
        return slot

    def special(self, name: str) -> tuple[int | None, np.dtype]:
        """The slot of a special register and its type; None for an unknown one."""
        sample = _SAMPLE.special(name)
        if name in _OF_THE_LAUNCH:
            sample = np.zeros(1, U32)
        if sample is None:
            return None, U32
        key = ("special", name)
        exists = key in self._slots
        slot = self.slot(key, sample.dtype)
        if not exists:
            self.program.specials.append((slot, name))
        return slot, sample.dtype

    def symbol(self, scope: Scope, name: str, offset: int, dtype: np.dtype) -> int | None:
        """The slot of a variable's address in its space, or None."""
        local = self._local.get((scope.function.name, name))
        if local is not None and name not in self._shared:
            return self.constant(np.array([local + offset]).astype(dtype))
        if name in self._shared:
            return self._shared_symbol(name, offset, dtype)
        if name not in self.module.variables:
            return None
        key = ("symbol", name, offset, str(dtype))
        exists = key in self._slots
        slot = self.slot(key, dtype)
        if not exists:
            self.program.symbols.append(SymbolAddress(slot, name, offset, dtype))
        return slot

    def _shared_symbol(self, name: str, offset: int, dtype: np.dtype) -> int:
        """The slot of a shared variable's address, never shared with a constant."""
        slot, (first, end) = self.slot(("shared", name, offset, dtype), dtype), self._shared[name]
        self.program.initial_values[slot] = np.array([first + offset]).astype(dtype)
        self.program.shared_roots[slot] = first, end
        return slot

    def parameter(self, scope: Scope, name: str, offset: int, dtype: np.dtype) -> int:
        """The slot of an element of a param variable: of the launch, or of a call."""
        if scope.function.is_entry and name in self._parameter_offsets:
            key = ("word", name, offset, str(dtype))
            exists = key in self._slots
            slot = self.slot(key, dtype)
            if not exists:
                byte = self._parameter_offsets[name] + offset
                self.program.parameters.append(ParameterElement(slot, byte, dtype))
            return slot
        return self.slot(("parameter", scope.parameter(name), offset, dtype.itemsize), dtype)

    def new_site(self) -> int:
        """A new id for an instruction that accesses memory."""
        self.program.sites += 1
        return self.program.sites - 1
