"""``jax.experimental.pallas`` can be imported; its kernels raise errors with the replacement.

``gpuflow.kernel`` and ``gpuflow.kernel.block`` (docs/kernels.md) are kernels in Python for the CPU
and the GPU, ``gpuflow.raw_kernel`` one in CUDA C++ or Numba.
"""

from gpuflow.as_jax.internals.pallas.refusing import publish_absent

_NAMES = """
ANY BlockDim BlockSpec Blocked BoundedSlice Buffered CompilerParams CostEstimate DeviceIdType
Element GridSpec HOST Indirect MemoryRef MemorySpace RevisitMode Slice Squeezed align_to
broadcast_to core_map debug_check debug_print delay ds dslice empty empty_like empty_ref_like
enable_debug_checks enable_poison_buffers estimate_cost get_global kernel loop lower_as_mlir
multiple_of no_block_spec num_programs pallas_call pallas_export_experimental program_id reciprocal
run_scoped run_state select_ref semaphore semaphore_read semaphore_signal semaphore_wait squeezed
strides_from_shape when with_scoped
"""


def cdiv(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return (a + b - 1) // b


def next_power_of_2(x: int) -> int:
    """The least power of two that is not less than ``x``."""
    return 1 << max(0, x - 1).bit_length()


publish_absent(globals(), "jax.experimental.pallas", _NAMES, ("tpu", "triton", "ops"))
