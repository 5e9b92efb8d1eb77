"""The names that handwritten kernels may use.

A kernel is a Python function that is never called:
``gpuflow.targets.cuda.runtime.driver.handwritten_kernels`` compiles its text, with the
functions and constants that it names, by the path of generated kernels.

Two constructs are expanded before compilation:

- ``for k in unrolled(4):`` is the body, four times, with literals for ``k``;
- ``if CONSTANT:`` is replaced by the branch that is taken, if the test only has constants.

Numba's rules for numbers hold: ``int32 op int32`` is int64, and float literals are float64; write
``float32(0.5)``. Statements and expressions are those of
``gpuflow/targets/cuda/codegen/function_emitter.py``.

Tests: tests/targets/cuda/test_handwritten.py, tests/targets/cuda/test_cuda_intrinsics.py.
"""

from __future__ import annotations

from typing import Any


class _DeviceName:
    """A name that only kernels use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(
            f"[kernels] {self._name} must be called in a kernel; got a call from Python. "
            "Fix: launch the kernel by gpuflow.targets.cuda.runtime.driver.handwritten_kernels."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _DeviceName(f"{self._name}.{name}")


def _device_name(name: str) -> Any:
    return _DeviceName(name)


# Expanded in the text.
unrolled = _device_name("unrolled")

# Threads, blocks, fences: numba.cuda.
cuda = _device_name("cuda")

# Types; called, they convert.
boolean = _device_name("boolean")
int8, int16, int32, int64 = (_device_name(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_device_name(f"uint{bits}") for bits in (8, 16, 32, 64))
float32, float64 = _device_name("float32"), _device_name("float64")

# gpuflow/targets/cuda/codegen/intrinsics/namespace.py
shared_array = _device_name("shared_array")
barrier = _device_name("barrier")
shuffle_xor = _device_name("shuffle_xor")
count_block_done = _device_name("count_block_done")

# gpuflow/targets/cuda/codegen/intrinsics/memory_access.py
load_readonly = _device_name("load_readonly")
load_vector = _device_name("load_vector")
load_vector_readonly = _device_name("load_vector_readonly")
store_vector = _device_name("store_vector")
load_shared_by_gpu = _device_name("load_shared_by_gpu")
pointer_from_address = _device_name("pointer_from_address")

# gpuflow/targets/cuda/codegen/intrinsics/arithmetic.py
maximum, minimum = _device_name("maximum"), _device_name("minimum")
bitcast, saturate = _device_name("bitcast"), _device_name("saturate")
bfloat16_to_float32 = _device_name("bfloat16_to_float32")
float32_to_bfloat16 = _device_name("float32_to_bfloat16")
float16_to_float32 = _device_name("float16_to_float32")
float32_to_float16 = _device_name("float32_to_float16")
divide_integers = _device_name("divide_integers")
remainder_integers = _device_name("remainder_integers")
split_index = _device_name("split_index")
shift_left_bits = _device_name("shift_left_bits")
shift_right_zeros = _device_name("shift_right_zeros")
shift_right_sign = _device_name("shift_right_sign")
count_ones = _device_name("count_ones")
count_leading_zeros = _device_name("count_leading_zeros")

# gpuflow/targets/cuda/codegen/intrinsics/matrices.py
local_array, dynamic_shared = _device_name("local_array"), _device_name("dynamic_shared")
copy_async, copy_commit, copy_wait = map(_device_name, ("copy_async", "copy_commit", "copy_wait"))
load_matrices = _device_name("load_matrices")
load_matrices_transposed = _device_name("load_matrices_transposed")
multiply_bfloat16 = _device_name("multiply_bfloat16")
multiply_float16 = _device_name("multiply_float16")
multiply_tensorfloat32 = _device_name("multiply_tensorfloat32")
round_tensorfloat32 = _device_name("round_tensorfloat32")
pack_bfloat16, pack_float16 = _device_name("pack_bfloat16"), _device_name("pack_float16")
exp2_approximate = _device_name("exp2_approximate")

# gpuflow/targets/cuda/codegen/intrinsics/atomics.py
atomic_add, atomic_increment = _device_name("atomic_add"), _device_name("atomic_increment")
load_relaxed, store_relaxed = _device_name("load_relaxed"), _device_name("store_relaxed")
