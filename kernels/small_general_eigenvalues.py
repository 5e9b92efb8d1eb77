"""Eigenvalues and eigenvectors of batches of small general matrices: a warp for each.

    balance          rows with isolated eigenvalues are set aside, others scaled by powers of two
    to_hessenberg    small_schur.py: reflections
    ..._schur        small_schur_real.py, small_schur_complex.py: shifted QR
    store_vectors    small_eigenvectors.py: substitution, a lane for each vector

A warp, not a thread, has a matrix: 32 x 32 numbers do not fit into the registers of a thread, and
local memory of threads would pass through the caches in every step; 32 lanes mix a row or
a column at once. Matrices of a few rows leave lanes idle.

Real matrices have double shifts, so that their real eigenvalues are exactly real, and complex ones
exactly conjugate.

Contract: float32 or float64, real or complex; row-major batches of matrices of at most 32 rows.
Complex arrays are pairs of scalars. Values of a matrix with nan or inf, or that takes more than
MAX_ITERATIONS * max(10, size) iterations, are nan, and so are its vectors. Values are unordered,
but of a pair the one with a positive imaginary part comes first.
Launch: WARPS warps in a block, which takes as many matrices.
Shared memory: SHARED_BYTES, WARPS * TILES * 1056 scalars. TILES is 1, or 4 with vectors; 2 or 6 for
complex matrices.
Reads each matrix once, and writes values once and vectors twice.
Source: LAPACK's geev and what it calls; balancing as James, Langou and Lowery 2014, "On matrix
balancing and eigenvector computation".

Tests: tests/kernels/test_kernel_eig.py.
"""

from __future__ import annotations

import math

from gpuflow.kernels.language import cuda, float64, int32, int64
from gpuflow.kernels.small_complex import (
    COMPLEX,
    T_IMAG,
    Z_IMAG,
    Z,
    absolute,
    ballot,
    element,
    element_size,
    last_lane,
    shared_scalars,
    sqrt,
)
from gpuflow.kernels.small_eigenvectors import LIMIT, store_vectors
from gpuflow.kernels.small_matrices import (
    PITCH,
    WARPS,
    lane_of_warp,
    real,
    warp_largest,
    warp_sum,
)
from gpuflow.kernels.small_schur import VECTORS, to_hessenberg
from gpuflow.kernels.small_schur_complex import complex_schur
from gpuflow.kernels.small_schur_real import real_schur

# Given for each build, with the constants of these modules.
TILES = 1  # of each matrix
LEFT, RIGHT = 0, 0  # the vectors that are requested

_MAX_SWEEPS = 16  # of balancing


def find_general_eigenvalues(source, values, left, right, count, size):
    """A v = w v, and u^H A = w u^H.

    Args:
        source: (count, size, size).
        values: complex (count, size).
        left, right: complex (count, size, size), vectors in columns, with LEFT and with RIGHT.
        count, size: sizes.
    """
    memory = shared_scalars()
    warp, lane = int32(cuda.threadIdx.x >> 5), lane_of_warp()
    base = int32(warp * (TILES * 32 * PITCH))
    matrix = int64(cuda.blockIdx.x) * WARPS + warp
    if matrix >= count:
        return
    largest = load_general(memory, base, source, matrix * size * size, size)
    w, w_imag = real(math.nan), real(math.nan)
    is_done = False
    if largest < real(math.inf):
        shift = scale_general(memory, base, largest, size)
        low, high, source_row, power = balance(memory, base, size)
        if VECTORS:
            begin_basis(memory, base, source_row, power)
        to_hessenberg(memory, base, low, high)
        if COMPLEX:
            is_done = complex_schur(memory, base, size, low, high)
        else:
            is_done = real_schur(memory, base, size, low, high)
        if is_done and lane < size:
            w, w_imag = eigenvalue_of_lane(memory, base, size)
            values[2 * (matrix * size + lane)] = w / shift
            values[2 * (matrix * size + lane) + 1] = w_imag / shift
    if is_done:
        if LEFT:
            store_vectors(memory, base, left, matrix, size, w, w_imag, True)
        if RIGHT:
            store_vectors(memory, base, right, matrix, size, w, w_imag, False)
    else:
        fill(values, matrix * size, size)
        for i in range(size):
            if LEFT:
                fill(left, (matrix * size + i) * size, size)
            if RIGHT:
                fill(right, (matrix * size + i) * size, size)


def fill(out, start, size):
    """Set a row of complex numbers to nan."""
    lane = lane_of_warp()
    if lane < size:
        out[2 * (start + lane)] = real(math.nan)
        out[2 * (start + lane) + 1] = real(0.0)


def load_general(memory, base, source, start, size):
    """Copy a matrix to T, with zeros around it.

    Returns:
        The largest magnitude of a number; inf if there is nan.
    """
    lane = lane_of_warp()
    largest = real(0.0)
    for i in range(32):
        re, im = real(0.0), real(0.0)
        if lane < size and i < size:
            index = start + i * size + lane
            if COMPLEX:
                re, im = source[2 * index], source[2 * index + 1]
            else:
                re = source[index]
        largest = max(largest, max(absolute(re), absolute(im)))
        if re - re != real(0.0) or im - im != real(0.0):
            largest = real(math.inf)
        memory[element(base, i, lane)] = re
        if COMPLEX:
            memory[element(base, i, lane) + T_IMAG] = im
    largest = warp_largest(largest)
    cuda.syncwarp()
    return largest


def power_of_two(exponent):
    """2 ** exponent, exactly."""
    return real(math.ldexp(1.0, int32(exponent)))


def exponent_of(value):
    """The exponent of a positive number."""
    return int32(math.floor(math.log2(float64(value))))


def scale_general(memory, base, largest, size):
    """Bring the largest number between 2 ** -LIMIT and 2 ** LIMIT; returns the power of two."""
    lane = lane_of_warp()
    shift = real(1.0)
    if largest > real(0.0):
        exponent = exponent_of(largest)
        shift = power_of_two(max(min(exponent, LIMIT), -LIMIT) - exponent)
    if shift != real(1.0):
        for i in range(size):
            memory[element(base, i, lane)] *= shift
            if COMPLEX:
                memory[element(base, i, lane) + T_IMAG] *= shift
        cuda.syncwarp()
    return shift


# --- balancing -----------------------------------------------------------------------------


def balance(memory, base, size):
    """Set rows with isolated eigenvalues aside, and scale the others.

    Returns:
        The first and the last row between which T is not triangular; the matrix row at the lane's
        position; and the exponent of the factor of its column.
    """
    lane = lane_of_warp()
    source_row, low, high = lane, int32(0), int32(size - 1)
    is_found = True
    while is_found and high > 0:
        alone = lane <= high
        for j in range(high + 1):
            if j != lane and element_size(memory, element(base, lane, j)) != real(0.0):
                alone = False
        row = last_lane(ballot(alone))
        is_found = row >= 0
        if is_found:
            source_row = exchange(memory, base, source_row, row, high)
            high = int32(high - 1)
    is_found = True
    while is_found and low < high:
        alone = lane >= low and lane <= high
        for i in range(low, high + 1):
            if i != lane and element_size(memory, element(base, i, lane)) != real(0.0):
                alone = False
        row = last_lane(ballot(alone))
        is_found = row >= 0
        if is_found:
            source_row = exchange(memory, base, source_row, row, low)
            low = int32(low + 1)
    return low, high, source_row, scale_rows(memory, base, low, high)


def exchange(memory, base, source_row, row, other):
    """Exchange two rows and columns of T; returns the row at the lane's position."""
    lane = lane_of_warp()
    if row != other:
        cuda.syncwarp()
        swap(memory, element(base, lane, row), element(base, lane, other))
        cuda.syncwarp()
        swap(memory, element(base, row, lane), element(base, other, lane))
        cuda.syncwarp()
        of_row = cuda.shfl_sync(0xFFFFFFFF, source_row, row)
        of_other = cuda.shfl_sync(0xFFFFFFFF, source_row, other)
        if lane == row:
            source_row = of_other
        elif lane == other:
            source_row = of_row
    return source_row


def swap(memory, index, other):
    """Exchange two elements of T."""
    memory[index], memory[other] = memory[other], memory[index]
    if COMPLEX:
        index, other = index + T_IMAG, other + T_IMAG
        memory[index], memory[other] = memory[other], memory[index]


def scale_rows(memory, base, low, high):
    """Balance the norms of rows and columns; returns the exponent of the lane's column."""
    lane = lane_of_warp()
    power, sweep, is_changed = int32(0), int32(0), True
    while is_changed and sweep < _MAX_SWEEPS:
        is_changed = False
        for i in range(low, high + 1):
            is_inside = lane >= low and lane <= high
            column = square(memory, element(base, lane, i)) if is_inside else real(0.0)
            row = square(memory, element(base, i, lane)) if is_inside else real(0.0)
            column, row = sqrt(warp_sum(column)), sqrt(warp_sum(row))
            if column > real(0.0) and row > real(0.0):
                change = math.log2(float64(row)) - math.log2(float64(column))
                step = int32(math.floor(float64(0.5) * change + float64(0.5)))
                before = cuda.shfl_sync(0xFFFFFFFF, power, i)
                factor = power_of_two(step)
                is_less = column * factor + row / factor < real(0.95) * (column + row)
                if is_less and abs(before + step) <= LIMIT * 3 // 4:
                    is_changed = True
                    if lane == i:
                        power = int32(power + step)
                    cuda.syncwarp()
                    multiply(memory, element(base, i, lane), real(1.0) / factor)
                    cuda.syncwarp()
                    multiply(memory, element(base, lane, i), factor)
                    cuda.syncwarp()
        sweep = int32(sweep + 1)
    return power


def square(memory, index):
    """The squared magnitude of an element of T."""
    total = memory[index] * memory[index]
    if COMPLEX:
        total += memory[index + T_IMAG] * memory[index + T_IMAG]
    return total


def multiply(memory, index, factor):
    """Multiply an element of T."""
    memory[index] *= factor
    if COMPLEX:
        memory[index + T_IMAG] *= factor


# --- results -------------------------------------------------------------------------------


def begin_basis(memory, base, source_row, power):
    """Z of the balanced matrix: permuted and scaled.

    Its rows end with their factors for left vectors, whose scaling is the inverse.
    """
    lane = lane_of_warp()
    for i in range(32):
        memory[element(base, i, lane) + Z] = real(0.0)
        if COMPLEX:
            memory[element(base, i, lane) + Z_IMAG] = real(0.0)
    cuda.syncwarp()
    memory[element(base, source_row, lane) + Z] = power_of_two(power)
    memory[element(base, source_row, PITCH - 1) + Z] = power_of_two(-2 * power)
    cuda.syncwarp()


def eigenvalue_of_lane(memory, base, size):
    """The eigenvalue at the lane's position on the diagonal."""
    lane = lane_of_warp()
    index = element(base, lane, lane)
    if COMPLEX:
        return memory[index], memory[index + T_IMAG]
    else:
        imag = real(0.0)
        if lane + 1 < size and memory[index + PITCH] != real(0.0):
            imag = sqrt(absolute(memory[index + 1])) * sqrt(absolute(memory[index + PITCH]))
        elif lane > 0 and memory[index - 1] != real(0.0):
            imag = -(sqrt(absolute(memory[index - 1])) * sqrt(absolute(memory[index - PITCH])))
        return memory[index], imag
