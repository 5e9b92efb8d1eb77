"""A kernel that is loaded on a simulated GPU, with CUDA's limits of shared memory.

Source: NVIDIA, CUDA Driver API: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
cuFuncSetAttribute.
"""

from __future__ import annotations

from ptxsim.faults import PtxError
from ptxsim.kernel import PtxKernel

MOST_SHARED_BY_DEFAULT = 48 << 10


class SimKernel:
    """A loaded kernel.

    Args:
        kernel: the parsed kernel.
        most_shared: Bytes of shared memory that a block of the device may have.
    """

    def __init__(self, kernel: PtxKernel, most_shared: int) -> None:
        self.kernel, self._most_shared = kernel, most_shared
        # Static and dynamic memory share the limit, by the header's definition.
        self._most_dynamic = MOST_SHARED_BY_DEFAULT - kernel.program.shared_bytes

    def allow_shared(self, count: int) -> None:
        """Set the limit of dynamic shared memory.

        Raises:
            PtxError: if static and dynamic memory exceed the shared memory of a block.
        """
        static_bytes = self.kernel.program.shared_bytes
        if static_bytes + count > self._most_shared:
            raise self._refused(f"at most {self._most_shared}", count, "use smaller tiles")
        self._most_dynamic = count

    def check_shared(self, count: int) -> None:
        """Check the dynamic shared memory of a launch, as CUDA does.

        Raises:
            PtxError: if it exceeds the limit.
        """
        if count > self._most_dynamic:
            limit = f"at most {self._most_dynamic} dynamic"
            raise self._refused(limit, count, "allow it before the launch (allow_shared)")

    def _refused(self, limit: str, count: int, fix: str) -> PtxError:
        program = self.kernel.program
        return PtxError(
            f"[ptx {program.name}] CUDA_ERROR_INVALID_VALUE: a block may have {limit} bytes of "
            f"shared memory; got {program.shared_bytes} static and {count} dynamic. Fix: {fix}."
        )
