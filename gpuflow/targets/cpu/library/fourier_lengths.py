"""Factorization of Fourier transform lengths: radices, splits, and tables of twiddle factors.

Lengths are those of complex transforms, positive, in elements. Tables are contiguous arrays with
real and imaginary components, in the dtype of a component ("float32" or "float64"). Calls share
them, so nothing may write to them. Results depend on the length and the batch only.

Tests: tests/targets/cpu/test_fourier_rows.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.targets.cpu.library.fourier_passes import MAX_RADIX, lanes_of, roots
from gpuflow.targets.cpu.library.fourier_rows import lane_rows

MAX_LENGTH = 1 << 15  # most elements of a row in a block: more would exceed every cache
_MAX_CACHED = 1 << 12  # most elements of a row for which a block fits a core's cache
_COPY_PASSES = 3  # reading and writing a block cost about as much as this number of passes
_ONE_PASS_RADIX = 16  # the cost of a pass is in proportion to larger radices


# --- lengths -----------------------------------------------------------------------------------


@lru_cache(1024)
def radices(length: int) -> tuple[int, ...] | None:
    """Return the radices of the passes for a length; None if a prime factor exceeds MAX_RADIX.

    Radix 4 is fastest per factor of two. If the number of twos is odd, three of them become a radix
    8; a single two is combined with a 3 or a 5, if there is one.
    """
    powers, remaining = {}, length
    for factor in (2, *range(3, MAX_RADIX + 1, 2)):
        while remaining % factor == 0:
            powers[factor] = powers.get(factor, 0) + 1
            remaining //= factor
    if remaining > 1:
        return None
    twos, factors = powers.pop(2, 0), []
    if twos == 1:
        partner = next((factor for factor in (5, 3) if factor in powers), None)
        factors.append(2 * (partner or 1))
        if partner is not None:
            powers[partner] -= 1
    elif twos % 2:
        factors.append(8)
    factors += [4] * ((twos - 3 * (twos % 2)) // 2)
    return (*factors, *(factor for factor, count in powers.items() for _ in range(count)))


@lru_cache(1024)
def bluestein_length(length: int) -> int | None:
    """Return the length of the convolution in Bluestein's algorithm; None if it is not needed."""
    if radices(length) is not None:
        return None
    shortest = 2 * length - 1
    # For each odd factor, the smallest multiple by a power of two that is long enough.
    return min(odd << (-(-shortest // odd) - 1).bit_length() for odd in (1, 3, 5, 9, 15, 25))


def memory_length(length: int) -> int:
    """Number of elements of a row between passes: ``bluestein_length``, or else the length."""
    return bluestein_length(length) or length


def _cost(length: int, batch: int, lanes: int) -> float:
    """Estimate the cost of transforming rows in blocks, as passes times elements; inf: too long."""
    stored = memory_length(length)
    if stored > MAX_LENGTH:
        return np.inf
    transforms = 2 if stored > length else 1
    passes = transforms * sum(max(1.0, radix / _ONE_PASS_RADIX) for radix in radices(stored) or ())
    cache_penalty = 1.0 if stored <= _MAX_CACHED else 2.0
    pass_cost = stored * (passes + transforms - 1) * cache_penalty
    return -(-batch // lanes) * (pass_cost + length * _COPY_PASSES)


@lru_cache(256)
def split_shape(length: int, batch: int, dtype: str) -> tuple[int, int] | None:
    """Return the matrix (rows, columns) that each row is split into.

    It is (length, 1) if whole rows in blocks are fastest, and None if no split is possible. Rows
    are split only if they have at least four vectors of lanes.
    """
    lanes = lanes_of(dtype)
    best_cost, shape = _cost(length, batch, lanes), (length, 1)
    # Neither rows nor columns may exceed MAX_LENGTH.
    fewest_columns, most_columns = max(2, -(-length // MAX_LENGTH)), min(length // 2, MAX_LENGTH)
    for columns in range(fewest_columns, most_columns + 1 if length >= 4 * lanes else 0):
        if length % columns:
            continue
        rows = length // columns
        cost = batch * (_cost(rows, columns, lanes) + _cost(columns, rows, lanes))
        if cost < best_cost:
            best_cost, shape = cost, (rows, columns)
    return None if best_cost == np.inf else shape


# --- tables ------------------------------------------------------------------------------------


def _table(powers: Any, order: int, dtype: str) -> np.ndarray:
    return np.stack(roots(powers, order), -1).astype(dtype)


@lru_cache(64)
def pass_twiddles(radix: int, remaining: int, dtype: str) -> np.ndarray:
    """The twiddle factors w^(p j) of a pass, for 0 < p < m and 0 < j < r, see ``fourier_passes``.

    ``remaining`` is m.
    """
    return _table(np.outer(np.arange(1, remaining), np.arange(1, radix)), radix * remaining, dtype)


@lru_cache(64)
def pair_roots(radix: int, dtype: str) -> np.ndarray:
    """Cosines and sines of 2 pi j k / r for 0 < j, k <= r // 2."""
    steps = np.arange(1, radix // 2 + 1)
    return _table(-np.outer(steps, steps), radix, dtype)


@lru_cache(64)
def mirror_roots(length: int, dtype: str) -> np.ndarray:
    """e^(-2 pi i k / n) for 0 <= k <= n // 4, padded by a vector that loads may read.

    ``length`` is n, the length of the real transform.
    """
    return _table(np.arange(length // 4 + 1 + lanes_of(dtype)), length, dtype)


@lru_cache(64)
def chirp(length: int, dtype: str) -> np.ndarray:
    """The chirp of Bluestein's algorithm, e^(-i pi k^2 / n) for 0 <= k < n."""
    return _table(np.arange(length) ** 2, 2 * length, dtype)


@lru_cache(64)
def chirp_transform(length: int, dtype: str) -> np.ndarray:
    """The transform of the chirp's conjugate, extended to negative k, divided by its length.

    It is computed by NumPy in complex128.
    """
    total = bluestein_length(length) or 0
    re, im = roots(np.arange(length) ** 2, 2 * length)
    extended = np.zeros(total, np.complex128)
    extended[:length] = re - 1j * im
    extended[total - length + 1 :] = extended[length - 1 : 0 : -1]
    out = np.fft.fft(extended) / total
    return np.stack([out.real, out.imag], -1).astype(dtype)


@lru_cache(16)
def split_row_twiddles(rows: int, columns: int, dtype: str) -> np.ndarray:
    """The twiddle factors e^(-2 pi i b k / (A B)) of a split row, as ``fourier_rows`` reads them.

    Its axes are block of columns b, row k, component, and lane.
    """
    lanes = lanes_of(dtype)
    blocks = -(-columns // lanes)
    of_lanes = np.array(lane_rows(dtype))
    column = np.minimum(np.arange(blocks)[:, None] * lanes + of_lanes, columns - 1)
    powers = column[:, None, :] * np.arange(rows)[None, :, None]
    return np.stack(roots(powers, rows * columns), 2).astype(dtype)
