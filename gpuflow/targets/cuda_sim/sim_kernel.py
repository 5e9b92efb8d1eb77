"""A kernel that is loaded on a simulated GPU, with CUDA's limits of shared memory.

Source: NVIDIA, CUDA Driver API: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
cuFuncSetAttribute.

Tests: tests/targets/cuda/test_block_programs.py.
"""

from __future__ import annotations

from ptxsim.faults import PtxError
from ptxsim.kernel import PtxKernel

DEFAULT_SHARED_BYTES = 48 << 10  # most shared memory of a block without ``allow_shared``


class SimKernel:
    """A loaded kernel.

    Args:
        kernel: the parsed kernel.
        max_shared_bytes: most shared memory of a block of the device, static and dynamic.
    """

    def __init__(self, kernel: PtxKernel, max_shared_bytes: int) -> None:
        self.kernel, self._max_shared_bytes = kernel, max_shared_bytes
        # Static and dynamic memory share the limit, by the header's definition.
        self._max_dynamic_bytes = DEFAULT_SHARED_BYTES - kernel.program.shared_bytes

    def allow_shared(self, byte_count: int) -> None:
        """Set the limit of dynamic shared memory to ``byte_count``.

        Raises:
            PtxError: if static and dynamic memory exceed the shared memory of a block.
        """
        static_bytes = self.kernel.program.shared_bytes
        if static_bytes + byte_count > self._max_shared_bytes:
            raise self._refused(
                f"at most {self._max_shared_bytes}", byte_count, "use smaller tiles"
            )
        self._max_dynamic_bytes = byte_count

    def check_shared(self, byte_count: int) -> None:
        """Check the dynamic shared memory of a launch, as CUDA does.

        Raises:
            PtxError: if it exceeds the limit.
        """
        if byte_count > self._max_dynamic_bytes:
            limit = f"at most {self._max_dynamic_bytes} dynamic"
            raise self._refused(limit, byte_count, "allow it before the launch (allow_shared)")

    def _refused(self, limit: str, byte_count: int, fix: str) -> PtxError:
        program = self.kernel.program
        got = f"{program.shared_bytes} static and {byte_count} dynamic"
        return PtxError(
            f"[ptx {program.name}] CUDA_ERROR_INVALID_VALUE: a block may have {limit} bytes of "
            f"shared memory; got {got}. Fix: {fix}."
        )
