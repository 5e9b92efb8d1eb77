"""Run kernels of users on isolated copies of their arrays, to detect accesses out of bounds.

Arrays of a program are adjacent in memory, so an access past the end of one would reach the next.
Here each array is a separate allocation, and operands are read-only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuflow.targets.cuda.codegen.build import Touched
from ptxsim.checks import Checks, Statistics
from ptxsim.faults import Location, PtxError
from ptxsim.kernel import PtxKernel
from ptxsim.memory import DeviceMemory
from ptxsim.types import Array


class WatchedKernel:
    """A kernel that may only access declared arrays, and must write its outputs completely.

    Args:
        kernel: the kernel to launch.
        touches: the arrays among its parameters.
    """

    def __init__(self, kernel: PtxKernel, touches: Sequence[Touched]) -> None:
        self._kernel, self._touches = kernel, touches

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
        own, copies = slots.copy(), []
        try:
            for touched in self._touches:
                copy = memory.allocate(touched.count, counted=False)
                copies.append(copy)
                if touched.is_read and touched.count:
                    source = memory.view(int(slots[touched.slot]), touched.count, writes=False)
                    memory.view(copy, touched.count)[:] = source
                memory.lock(copy, not touched.is_written)
                own[touched.slot] = copy
            done = self._kernel.launch(grid, block, own, memory, shared_bytes, checks)
            for touched, copy in zip(self._touches, copies, strict=True):
                if touched.is_written and touched.count:
                    self._check_written(memory, touched, copy, grid, block)
                    target = memory.view(int(slots[touched.slot]), touched.count)
                    target[:] = memory.view(copy, touched.count, writes=False)
        finally:
            for copy in copies:
                memory.free(copy)
        return done

    def _check_written(
        self,
        memory: DeviceMemory,
        touched: Touched,
        copy: int,
        grid: Sequence[int],
        block: Sequence[int],
    ) -> None:
        allocation = memory.find(copy)
        written = None if allocation is None else allocation.written
        if written is None or written.all():
            return
        first = int(np.argmin(written))
        name = self._kernel.program.name
        raise PtxError(
            f"[ptx {name}] a kernel must write all elements of its results; got "
            f"{int((~written).sum())} of {touched.count} bytes of {touched.what} without a value, "
            f"the first of them byte {first}. The grid was {tuple(grid)}, the block "
            f"{tuple(block)}. Fix: a grid that covers it, or inout= for an array of which it "
            "changes only some elements.",
            Location(name),
        )
