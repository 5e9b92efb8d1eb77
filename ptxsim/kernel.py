"""Modules of PTX and their kernels, ready to be launched on simulated device memory.

Tests: tests/ptxsim/test_ptx_flow.py, tests/ptxsim/test_ptx_memory.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ptxsim import instructions  # noqa: F401  fills the table
from ptxsim.checks import Checks, Statistics
from ptxsim.decode import decode
from ptxsim.faults import PtxError
from ptxsim.geometry import Extents, Geometry, geometry
from ptxsim.memory import DeviceMemory
from ptxsim.parser import parse
from ptxsim.program import Program
from ptxsim.races import GlobalRaces
from ptxsim.run import Run
from ptxsim.site import immediate
from ptxsim.syntax import Function, Module, Variable
from ptxsim.types import TYPES, U8, U64, Array

MAX_THREADS = 1024
MAX_SHARED = 227 << 10
_LANES = 1 << 14  # most threads of blocks that run at once: registers stay in the cache
_STANDARD = Checks()


class _Loaded:
    """A parsed text, and its decoded kernels."""

    def __init__(self, ptx: str) -> None:
        self.module: Module = parse(ptx)
        self.programs: dict[str, Program] = {}
        self.lock = threading.Lock()


_load = lru_cache(512)(_Loaded)


class PtxModule:
    """A text of PTX; its kernels are decoded when they are first asked for."""

    def __init__(self, ptx: str) -> None:
        """Parse the text, once for equal texts.

        Raises:
            PtxError: if the text cannot be parsed.
        """
        self._loaded = _load(ptx)

    def entry(self, name: str) -> PtxKernel:
        """A kernel of the module.

        Raises:
            PtxError: if there is no kernel of this name, or it contains unsupported instructions.
        """
        loaded = self._loaded
        with loaded.lock:
            if name not in loaded.programs:
                if name not in self.entries():
                    raise PtxError(
                        f"[ptx] a module must have the entry that is asked for; got {name!r}, and "
                        f"it has {self.entries()}. Fix: use one of these names."
                    )
                loaded.programs[name] = decode(loaded.module, name)
        return PtxKernel(self, loaded.programs[name])

    def entries(self) -> list[str]:
        """The names of all kernels."""
        functions = self._loaded.module.functions.items()
        return [name for name, function in functions if function.is_entry]

    def function(self, name: str) -> Function:
        """The text of a function: parameters, registers, instructions."""
        return self._loaded.module.functions[name]

    def image(self, memory: DeviceMemory) -> dict[str, int]:
        """The addresses of the module's variables in a memory; allocated there once."""
        loaded = self._loaded
        with loaded.lock:
            image = memory.images.get(loaded)
            if image is None:
                image = memory.images[loaded] = {}
                for variable in loaded.module.variables.values():
                    if variable.space in ("global", "const"):
                        image[variable.name] = _allocate_variable(variable, memory)
            return image


def _allocate_variable(variable: Variable, memory: DeviceMemory) -> int:
    """Allocate a variable and store its initial values."""
    dtype = TYPES[variable.dtype]
    values = np.zeros(variable.count, dtype)
    for index, text in enumerate(variable.values):
        value = immediate(text, dtype)
        if value is None:
            raise PtxError(
                f"[ptx] a variable's initial values must be numbers; got {text} for "
                f"{variable.name}. Fix: spell the kernel without the address in a table."
            )
        values[index] = value[0]
    address = memory.allocate(values.nbytes, counted=False)
    memory.copy_in(address, values)
    memory.lock(address, variable.space == "const")
    return address


class PtxKernel:
    """A kernel that can be launched any number of times, from any thread."""

    def __init__(self, module: PtxModule, program: Program) -> None:
        self.module = module
        self.program = program

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[int] | Array,
        memory: DeviceMemory,
        shared_bytes: int = 0,
        checks: Checks = _STANDARD,
    ) -> Statistics:
        """Run the whole grid.

        Args:
            grid: blocks in x, y and z; missing ones are 1.
            block: threads in x, y and z.
            arguments: the parameters, 8 bytes each; a narrower one is the low bytes of its slot,
                and a larger one takes several slots.
            memory: the memory of the addresses among the parameters.
            shared_bytes: of dynamic shared memory.
            checks: the checks.

        Raises:
            PtxError: if the kernel did an operation that a GPU forbids; the error contains the
                location.
        """
        program = self.program
        full, threads = _extents(grid), _extents(block)
        arguments = _argument_slots(arguments)
        self._check(full, threads, arguments, shared_bytes)
        per_block = threads[0] * threads[1] * threads[2]
        blocks = full[0] * full[1] * full[2]
        resident = max(1, _LANES // per_block)
        image = self.module.image(memory) if program.variables else {}
        done = Statistics()
        races = None
        if checks.global_races:
            races = GlobalRaces(blocks, per_block, program.global_granule)
        with np.errstate(all="ignore"):
            for first in range(0, blocks, resident):
                lanes = geometry(full, threads, first, min(resident, blocks - first))
                registers = self._registers(lanes, arguments, image, shared_bytes)
                if races is not None:
                    races.begin(lanes)
                run = Run(program, lanes, memory, registers, shared_bytes, checks, races)
                done = done + run.execute()
        return done

    def _registers(
        self, lanes: Geometry, arguments: Array, image: dict[str, int], shared_bytes: int
    ) -> list[Array]:
        """The initial values of the slots."""
        program = self.program
        registers = program.initial_values.copy()
        for slot, name in program.specials:
            values = lanes.special(name)
            if values is None:
                value = {
                    "WARP_SZ": 32,
                    "%dynamic_smem_size": shared_bytes,
                    "%total_smem_size": program.shared_bytes + shared_bytes,
                }[name]
                values = np.array([value], np.uint32)
            registers[slot] = values
        data = arguments.view(U8)
        for slot, byte, dtype in program.parameters:
            registers[slot] = data[byte : byte + dtype.itemsize].copy().view(dtype)
        for slot, name, offset, dtype in program.symbols:
            registers[slot] = np.array([image[name] + offset], U64).astype(dtype)
        return registers

    def _check(self, grid: Extents, block: Extents, arguments: Array, shared_bytes: int) -> None:
        program = self.program
        threads = block[0] * block[1] * block[2]
        most = program.max_threads or MAX_THREADS
        if not 0 < threads <= most or block[2] > 64:
            self._refuse(f"a block must have 1 to {most} threads; got {block}", "change the block")
        if min(grid) < 1 or grid[0] >= 1 << 31 or max(grid[1:]) >= 1 << 16:
            self._refuse(f"a grid must have 1 or more blocks; got {grid}", "change the grid")
        if len(arguments) != program.parameter_slots:
            self._refuse(
                f"it must have {program.parameter_slots} parameter slots; got {len(arguments)}",
                "pass 8 bytes for each parameter",
            )
        if program.shared_bytes + shared_bytes > MAX_SHARED:
            self._refuse(
                f"a block must have at most {MAX_SHARED} bytes of shared memory; got "
                f"{program.shared_bytes} + {shared_bytes}",
                "use smaller tiles",
            )

    def _refuse(self, what: str, fix: str) -> None:
        raise PtxError(f"[ptx {self.program.name}] {what}. Fix: {fix}.")


def _extents(shape: Sequence[int]) -> Extents:
    x, y, z = (*(int(extent) for extent in shape), 1, 1)[:3]
    return x, y, z


def _argument_slots(parameters: Sequence[int] | Array) -> Array:
    if isinstance(parameters, np.ndarray):
        return np.ascontiguousarray(parameters).view(U64)
    return np.array([int(value) & (2**64 - 1) for value in parameters], U64)
