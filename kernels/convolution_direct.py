"""Convolutions with a thread for each element of the result, and the addition of partial sums.

For cases in which tiles of matrices would waste work: one channel in each group (depthwise), few
elements altogether; and for dtypes that tensor cores and tiles do not support.

    convolve_directly   a thread computes one element of the result, or a partial sum of it
    sum_partials        adds such partial sums, in order

Contract
    lhs, rhs      arrays by strides, of one dtype; their spans, like the result's, less than 2^31
                  elements, or LONG and indices of 64 bits
    out           row-major; with partials, (partials, *result) of the dtype of sums
    sums          float32 for 16-bit floats, 64-bit integers for integers, else the dtype itself
    launch        threads in x; neighbors have neighboring elements of the result

Rows of the sum are taps of the first two slides and depth; a row has the taps of the last slide. A
partial sum has consecutive rows, so that the order of additions follows from the shape.

Tests: tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from gpuflow.kernels.convolution_axes import as_index, is_inside, split, without_holes
from gpuflow.kernels.language import (
    cuda,
    float32,
    float32_to_bfloat16,
    float32_to_float16,
    float64,
    int64,
    uint64,
)
from gpuflow.kernels.scan import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, SIGNED, widened

# Set for each build.
KIND = FLOAT32  # of operands, as in scan.py
OUT_KIND = FLOAT32  # of stored elements


def nothing():
    """The empty sum."""
    if KIND == FLOAT64:
        return float64(0)
    elif KIND == SIGNED:
        return int64(0)
    elif KIND in (FLOAT32, BFLOAT16, FLOAT16):
        return float32(0)
    else:
        return uint64(0)


def narrowed(value):
    """The element to store for a sum; integers lose their upper bits."""
    if OUT_KIND == BFLOAT16:
        return float32_to_bfloat16(value)
    elif OUT_KIND == FLOAT16:
        return float32_to_float16(value)
    else:
        return value


def coordinate(element, step, size):
    """The index of an element of a row-major array along an axis."""
    if size == 1:
        return as_index(0)
    above, _ = split(element, step)
    _, remainder = split(above, size)
    return remainder


def convolve_directly(
    lhs, rhs, out, partials, partial_rows, count,
    a0, a0_l, a0_r, a0_o, a1, a1_l, a1_r, a1_o, a2, a2_l, a2_r, a2_o,
    m0, m0_l, m0_o, m1, m1_l, m1_o, n0, n0_r, n0_o, n1, n1_r, n1_o, depth, depth_l, depth_r,
    size0, taps0, positions0, lhs0, rhs0, out0, step0, pad0, hole0, gap0, every0, skip0,
    size1, taps1, positions1, lhs1, rhs1, out1, step1, pad1, hole1, gap1, every1, skip1,
    size2, taps2, positions2, lhs2, rhs2, out2, step2, pad2, hole2, gap2, every2, skip2,
):  # fmt: skip
    """One element of the result, or a partial sum of it.

    Args:
        lhs, rhs, out: see above.
        partials: of each sum. partial_rows: rows of a partial sum. count: elements of the result.
        a0 to a2: axes of all three arrays; m0, m1: of lhs and out; n0, n1: of rhs and out; depth:
            of lhs and rhs, summed; each with its strides.
        size0 to skip2: three slides, see convolution_axes.py.
    """
    thread = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if thread >= int64(count) * partials:
        return
    partial_id, element = split(thread, count)
    i0, i1 = coordinate(element, a0_o, a0), coordinate(element, a1_o, a1)
    i2, j0 = coordinate(element, a2_o, a2), coordinate(element, m0_o, m0)
    j1, k0 = coordinate(element, m1_o, m1), coordinate(element, n0_o, n0)
    k1 = coordinate(element, n1_o, n1)
    first0, own0, _, _, near0, start0 = without_holes(
        taps0, positions0, step0, pad0, hole0, gap0, every0, skip0,
        coordinate(element, out0, positions0),
    )  # fmt: skip
    first1, own1, _, _, near1, start1 = without_holes(
        taps1, positions1, step1, pad1, hole1, gap1, every1, skip1,
        coordinate(element, out1, positions1),
    )  # fmt: skip
    first2, own2, _, _, near2, start2 = without_holes(
        taps2, positions2, step2, pad2, hole2, gap2, every2, skip2,
        coordinate(element, out2, positions2),
    )  # fmt: skip
    lhs_at = as_index(i0 * a0_l + i1 * a1_l + i2 * a2_l + j0 * m0_l + j1 * m1_l + start2 * lhs2)
    rhs_at = as_index(
        i0 * a0_r + i1 * a1_r + i2 * a2_r + k0 * n0_r + k1 * n1_r + first0 * rhs0 + first1 * rhs1
        + first2 * rhs2
    )  # fmt: skip
    # The most taps of any position, so that partial sums have the same rows everywhere.
    most0, most1 = as_index((taps0 + skip0 - 1) // skip0), as_index((taps1 + skip1 - 1) // skip1)
    row = as_index(partial_id * partial_rows)
    end = as_index(min(row + partial_rows, depth * most0 * most1))
    rest, t1 = split(row, most1)
    c, t0 = split(rest, most0)
    total = nothing()
    while row < end:
        p0, p1 = as_index(start0 + t0 * near0), as_index(start1 + t1 * near1)
        if t0 < own0 and t1 < own1 and is_inside(p0, size0) and is_inside(p1, size1):
            x = as_index(lhs_at + c * depth_l + p0 * lhs0 + p1 * lhs1)
            w = as_index(rhs_at + c * depth_r + t0 * skip0 * rhs0 + t1 * skip1 * rhs1)
            p2, x_step, w_step = start2, as_index(near2 * lhs2), as_index(skip2 * rhs2)
            for _ in range(own2):
                if is_inside(p2, size2):
                    total = total + widened(lhs[x]) * widened(rhs[w])
                p2, x, w = as_index(p2 + near2), as_index(x + x_step), as_index(w + w_step)
        row, t1 = as_index(row + 1), as_index(t1 + 1)
        if t1 == most1:
            t1, t0 = as_index(0), as_index(t0 + 1)
            if t0 == most0:
                t0, c = as_index(0), as_index(c + 1)
    out[thread] = narrowed(total)


def sum_partials(partial, out, count, partials):
    """``out[i] = partial[0, i] + partial[1, i] + ...`` for ``count`` elements, in this order."""
    thread = cuda.grid(1)
    if thread >= count:
        return
    total = partial[thread]
    for partial_id in range(1, partials):
        total = total + partial[partial_id * count + thread]
    out[thread] = narrowed(total)
