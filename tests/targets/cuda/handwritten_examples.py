"""Small kernels for test_handwritten.py; their text is read from this file."""

from gpuflow.kernels.language import (
    barrier,
    cuda,
    dynamic_shared,
    float32,
    int64,
    load_matrices,
    load_matrices_transposed,
    local_array,
    multiply_bfloat16,
    multiply_float16,
    shared_array,
    uint16,
    uint32,
    unrolled,
)

FACTOR = 3
SCALED = NEVER = False
BFLOAT16 = True


def scaled(x):
    """What one kernel calls."""
    return x * float32(FACTOR)


def never_called(x):
    """Stands in no text where NEVER is false."""
    return x


def sum_up(x, out, count):
    """Sums constants, in ways that the text is folded."""
    place = int64(cuda.blockIdx.x) * 32 + int64(cuda.threadIdx.x)
    total = float32(0)
    for k in unrolled(WIDTH - 1):  # noqa: F821
        for j in unrolled(1, 3):
            total += float32(10 * k + j)
        if k == 1:
            total += float32(100)
        elif NEVER:
            total = never_called(total)
    if SCALED and place < count:
        total = scaled(total)
    if NEVER or place < count:
        out[place] = x[place] + total


def reverse(x, out):
    """Reverses a block through dynamic shared memory."""
    shared = dynamic_shared(float32)
    place = cuda.threadIdx.x
    shared[place] = x[place]
    barrier()
    out[place] = shared[cuda.blockDim.x - 1 - place]


def multiply(left, right, out):
    """out[16, 8] += left[16, 16] @ right[16, 8], by one warp, with fragments from shared memory."""
    a_tile, b_tile = shared_array(uint16, 256), shared_array(uint16, 256)
    lane = cuda.threadIdx.x
    for k in range(8):
        a_tile[8 * lane + k] = left[8 * lane + k]
    for k in range(4):
        # Rows have 8 elements; ldmatrix reads four matrices, of which two are used.
        b_tile[4 * lane + k] = right[4 * lane + k]
        b_tile[128 + 4 * lane + k] = uint16(0)
    barrier()
    a, b, sums = local_array(uint32, 4), local_array(uint32, 4), local_array(float32, 4)
    load_matrices(a, 0, a_tile, (lane & 15) * 16 + 8 * (lane >> 4))
    load_matrices_transposed(b, 0, b_tile, 8 * lane)
    row, column = lane >> 2, 2 * (lane & 3)
    for k in range(4):
        sums[k] = out[8 * (row + 8 * (k // 2)) + column + k % 2]
    if BFLOAT16:
        multiply_bfloat16(sums, 0, a, 0, b, 0)
    else:
        multiply_float16(sums, 0, a, 0, b, 0)
    for k in range(4):
        out[8 * (row + 8 * (k // 2)) + column + k % 2] = sums[k]
