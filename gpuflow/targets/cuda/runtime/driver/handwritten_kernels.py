"""Load and launch handwritten kernels on a GPU, real or simulated.

    kernel = load(scan_rows, ("*float32", "*float32", "int64"), device, {"WIDTH": 4}, 256)
    launch(kernel, device, grid=(rows,), block=(256,), arguments=[x, out, length])

Programs use ``prepare``, which binds a launch that may run many times.

Tests: tests/targets/cuda/test_handwritten.py.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence

from gpuflow.runtime.device_array import DeviceArray
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cuda.codegen.handwritten import (
    HandwrittenKernel,
    LaunchBounds,
    Scalar,
    build_handwritten,
)
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

LaunchArgument = DeviceArray | int | float

_NO_CONSTANTS: dict[str, Scalar] = {}


def load(
    kernel: Callable[..., None],
    signature: Sequence[str],
    device: GpuDevice,
    constants: Mapping[str, Scalar] = _NO_CONSTANTS,
    launch_bounds: LaunchBounds = None,
) -> HandwrittenKernel:
    """Return a kernel built for a device: from memory, the cache's folder, or compiled now.

    Args:
        kernel: a function of kernels/; see kernels/language.py.
        signature: one type per parameter: ``"int64"``, or ``"*float32"`` for a pointer. Pointers to
            16-bit floats are ``"*uint16"``, to bools ``"*uint8"``.
        device: the driver of the GPU.
        constants: values of names in the kernel and the functions that it calls; SHARED_BYTES is
            the dynamic shared memory of a block.
        launch_bounds: most threads per block, or (threads, blocks per multiprocessor).

    Raises:
        CudaBuildError: as ``build.build_cuda``.
        CudaToolchainError: if the kernel must be built and packages are missing.
    """
    return build_handwritten(
        kernel, signature, constants, launch_bounds, kernel_cache(), device.compute_capability
    )


def launch(
    kernel: HandwrittenKernel,
    device: GpuDevice,
    grid: Dim,
    block: Dim,
    arguments: Sequence[LaunchArgument],
) -> None:
    """Enqueue one launch of a kernel on the compute stream of the device.

    Args:
        kernel: from ``load``.
        device: the device that it was loaded for.
        grid, block: blocks, and threads of a block, in x, y and z. Without blocks nothing runs.
        arguments: for each parameter an array, which is passed as its address, or a scalar.
    """
    slots = argument_slots(kernel.signature, arguments)
    prepare(kernel, device, grid, block, slots)()


def prepare(
    kernel: HandwrittenKernel, device: GpuDevice, grid: Dim, block: Dim, slots: array[int]
) -> Callable[[], None]:
    """Bind a launch: each call enqueues it with the current contents of ``slots``.

    The device must be the current one, and ``slots`` must keep its size. Without blocks a call does
    nothing.
    """
    if 0 in grid:
        return lambda: None
    return device.prepare(kernel, grid, block, slots, kernel.shared_bytes)


def argument_slots(signature: Sequence[str], arguments: Sequence[LaunchArgument]) -> array[int]:
    """The argument block: an 8-byte slot for each parameter, with its bits in the low bytes."""
    assert len(signature) == len(arguments), (signature, arguments)
    return array("q", map(_slot, signature, arguments))


def _slot(parameter_type: str, argument: LaunchArgument) -> int:
    """The value of an argument slot: an address, an integer, or the bits of a float."""
    if isinstance(argument, DeviceArray):
        return argument.address
    if parameter_type in ("float32", "float64"):
        code = "f" if parameter_type == "float32" else "d"
        return int.from_bytes(struct.pack(f"<{code}", argument), "little", signed=True)
    return int(argument)
