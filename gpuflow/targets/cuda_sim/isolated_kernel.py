"""Run kernels of users on isolated copies of their arrays, to detect accesses out of bounds.

Arrays of a program are adjacent in memory, so an access past the end of one would reach the next.
Here each array is a separate allocation, and operands are read-only.

Tests: tests/targets/cuda/test_user_kernels.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuflow.targets.cuda.codegen.build import KernelArrayAccess
from ptxsim.checks import Checks, Statistics
from ptxsim.faults import Location, PtxError
from ptxsim.kernel import PtxKernel
from ptxsim.memory import DeviceMemory
from ptxsim.types import Array


class IsolatedKernel:
    """A kernel that may access only declared arrays, and must write its outputs completely.

    Args:
        kernel: the kernel to launch.
        array_accesses: the arrays among its parameters.
    """

    def __init__(self, kernel: PtxKernel, array_accesses: Sequence[KernelArrayAccess]) -> None:
        self._kernel, self._array_accesses = kernel, array_accesses

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        slots: Array,
        memory: DeviceMemory,
        shared_bytes: int,
        checks: Checks,
    ) -> Statistics:
        """Run the whole grid on copies, as ``PtxKernel.launch``, and copy its writes back.

        Raises:
            PtxError: if it accesses other memory, or leaves elements of an output unwritten.
        """
        isolated_slots, copies = slots.copy(), []
        try:
            for access in self._array_accesses:
                copy = memory.allocate(access.byte_count, counted=False)
                copies.append(copy)
                if access.is_read and access.byte_count:
                    source = memory.view(int(slots[access.slot]), access.byte_count, writes=False)
                    memory.view(copy, access.byte_count)[:] = source
                memory.lock(copy, not access.is_written)
                isolated_slots[access.slot] = copy
            statistics = self._kernel.launch(
                grid, block, isolated_slots, memory, shared_bytes, checks
            )
            for access, copy in zip(self._array_accesses, copies, strict=True):
                if access.is_written and access.byte_count:
                    self._check_written(memory, access, copy, grid, block)
                    target = memory.view(int(slots[access.slot]), access.byte_count)
                    target[:] = memory.view(copy, access.byte_count, writes=False)
        finally:
            for copy in copies:
                memory.free(copy)
        return statistics

    def _check_written(
        self,
        memory: DeviceMemory,
        access: KernelArrayAccess,
        copy: int,
        grid: Sequence[int],
        block: Sequence[int],
    ) -> None:
        """Raise PtxError if the kernel left bytes of ``copy``, an output, unwritten."""
        allocation = memory.find(copy)
        written = None if allocation is None else allocation.written
        if written is None or written.all():
            return
        first, missing = int(np.argmin(written)), int((~written).sum())
        name = self._kernel.program.name
        raise PtxError(
            f"[ptx {name}] a kernel must write all elements of its results; got "
            f"{missing} of {access.byte_count} bytes of {access.label} without a value, "
            f"the first of them byte {first}. The grid was {tuple(grid)}, the block "
            f"{tuple(block)}. Fix: a grid that covers it, or inout= for an array of which it "
            "changes only some elements.",
            Location(name),
        )
