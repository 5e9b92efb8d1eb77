"""Optional checks of a launch, and its statistics.

Tests: tests/ptxsim/test_ptx_thorough.py, tests/ptxsim/test_ptx_memory.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Checks:
    """Optional checks of a launch; bounds, alignment and freed memory are always checked.

    Attributes:
        races: accesses to shared memory that have no barrier between them.
        uninitialized_shared: reads of uninitialized shared memory.
        uninitialized_global: reads of global memory that was not written since it was allocated;
            it must have been on, by ``DeviceMemory.track_writes``, when the memory was allocated.
        global_races: accesses of different threads to global memory that nothing orders, and
            ld.global.nc of memory that the kernel writes.
        arrays: accesses that left the array whose address they were computed from, and came to
            another one: allocations, and shared variables.
        registers: reads of registers that were never set.
        divergence: bar.sync that only some lanes of a warp reach, as the others have returned.
        division: integer division by zero, and of the least integer by -1: undefined on GPUs.
        instructions: most instructions that a group of lanes may run; more are an infinite loop.
        order: the seed of a random order of blocks: a few at a time, which begin, stop and go on
            at any time. None: all that fit run together, in the order of their code.
    """

    races: bool = True
    uninitialized_shared: bool = True
    uninitialized_global: bool = False
    global_races: bool = False
    arrays: bool = False
    registers: bool = False
    divergence: bool = False
    division: bool = True
    instructions: int = 20_000_000
    order: int | None = None


# All checks; a launch takes about twice as long.
THOROUGH = Checks(
    uninitialized_global=True, global_races=True, arrays=True, registers=True, divergence=True
)


@dataclass(frozen=True)
class Statistics:
    """Statistics of a launch.

    Attributes:
        instructions: issued instructions; one for any number of lanes that run it at once.
        loads: of global memory, summed over threads.
        stores: to global memory, atomics among them, summed over threads.
        bytes: that these loads and stores moved.
    """

    instructions: int = 0
    loads: int = 0
    stores: int = 0
    bytes: int = 0

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.instructions + other.instructions,
            self.loads + other.loads,
            self.stores + other.stores,
            self.bytes + other.bytes,
        )
