"""The words of handwritten kernels.

A kernel is a Python function that is never called:
``gpuflow.targets.cuda.runtime.driver.handwritten_kernels`` takes its text, with those of the
functions and the numbers that it names, through the compile path of generated kernels.

Two constructs are done to the text before it is compiled:

- ``for k in unrolled(4):`` is the body, four times, with numbers in place of ``k``;
- ``if CONSTANT:`` keeps only the branch that is taken, where the test is made of constants alone.

Numba's rules for numbers hold: ``int32 op int32`` is int64, and float literals are float64; write
``float32(0.5)``. Statements and expressions are those of
``gpuflow/targets/cuda/codegen/function_emitter.py``.
"""

from __future__ import annotations

from typing import Any


class _Word:
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
        return _Word(f"{self._name}.{name}")


def _word(name: str) -> Any:
    return _Word(name)


# In the text alone.
unrolled = _word("unrolled")

# Threads, blocks, fences: numba.cuda.
cuda = _word("cuda")

# Types; called, they convert.
boolean = _word("boolean")
int8, int16, int32, int64 = (_word(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_word(f"uint{bits}") for bits in (8, 16, 32, 64))
float32, float64 = _word("float32"), _word("float64")

# gpuflow/targets/cuda/codegen/intrinsics/namespace.py
shared_array = _word("shared_array")
barrier = _word("barrier")
shuffle_xor = _word("shuffle_xor")
count_block_done = _word("count_block_done")

# gpuflow/targets/cuda/codegen/intrinsics/memory_access.py
load_readonly = _word("load_readonly")
load_vector = _word("load_vector")
load_vector_readonly = _word("load_vector_readonly")
store_vector = _word("store_vector")
load_shared_by_gpu = _word("load_shared_by_gpu")
pointer_from_address = _word("pointer_from_address")

# gpuflow/targets/cuda/codegen/intrinsics/arithmetic.py
maximum, minimum = _word("maximum"), _word("minimum")
bitcast, saturate = _word("bitcast"), _word("saturate")
bfloat16_to_float32 = _word("bfloat16_to_float32")
float32_to_bfloat16 = _word("float32_to_bfloat16")
float16_to_float32 = _word("float16_to_float32")
float32_to_float16 = _word("float32_to_float16")
divide_integers = _word("divide_integers")
remainder_integers = _word("remainder_integers")
split_index = _word("split_index")
shift_left_bits = _word("shift_left_bits")
shift_right_zeros = _word("shift_right_zeros")
shift_right_sign = _word("shift_right_sign")
count_ones = _word("count_ones")
count_leading_zeros = _word("count_leading_zeros")

# gpuflow/targets/cuda/codegen/intrinsics/matrices.py
local_array, dynamic_shared = _word("local_array"), _word("dynamic_shared")
copy_async, copy_commit, copy_wait = map(_word, ("copy_async", "copy_commit", "copy_wait"))
load_matrices = _word("load_matrices")
load_matrices_transposed = _word("load_matrices_transposed")
multiply_bfloat16 = _word("multiply_bfloat16")
multiply_float16 = _word("multiply_float16")
multiply_tensorfloat32 = _word("multiply_tensorfloat32")
round_tensorfloat32 = _word("round_tensorfloat32")
pack_bfloat16, pack_float16 = _word("pack_bfloat16"), _word("pack_float16")
exp2_approximate = _word("exp2_approximate")

# gpuflow/targets/cuda/codegen/intrinsics/atomics.py
atomic_add, atomic_increment = _word("atomic_add"), _word("atomic_increment")
load_relaxed, store_relaxed = _word("load_relaxed"), _word("store_relaxed")
