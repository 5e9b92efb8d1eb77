"""Factorization of Fourier transform lengths: radices, splits, and tables of twiddle factors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.targets.cpu.library.fourier_passes import LARGEST_RADIX, lanes_of, roots
from gpuflow.targets.cpu.library.fourier_rows import rows_of_lanes

LONGEST = 1 << 15  # most elements of a row in a block: more would exceed every cache
_CACHED = 1 << 12  # most elements of a row for which a block fits a core's cache
_MOVES = 3  # reading and writing a block cost about as much as this number of passes


# --- lengths -----------------------------------------------------------------------------------


@lru_cache(1024)
def radices(length: int) -> tuple[int, ...] | None:
    """Return the radices of the passes for a length; None if a prime factor is too large.

    Radix 4 is fastest per factor of two. If the number of twos is odd, three of them become a radix
    8; a single two is combined with a 3 or a 5, if there is one.
    """
    powers, remaining = {}, length
    for factor in (2, *range(3, LARGEST_RADIX + 1, 2)):
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
def padded(length: int) -> int | None:
    """Return the length of the convolution in Bluestein's algorithm; None if it is not needed."""
    if radices(length) is not None:
        return None
    least = 2 * length - 1
    candidates = (
        twos * odd
        for odd in (1, 3, 5, 9, 15, 25)
        for twos in (1 << (-(-least // odd) - 1).bit_length(),)
    )
    return min(candidates)


def memory_length(length: int) -> int:
    """Most elements of a row between passes."""
    return padded(length) or length


def _cost(length: int, batch: int, lanes: int) -> float:
    """Estimate the cost of transforming rows in blocks, as passes times elements."""
    longest = memory_length(length)
    if longest > LONGEST:
        return np.inf
    transforms = 2 if longest > length else 1
    passes = transforms * sum(max(1.0, radix / 16) for radix in radices(longest) or ())
    slow = 1.0 if longest <= _CACHED else 2.0
    return -(-batch // lanes) * (longest * (passes + transforms - 1) * slow + length * _MOVES)


@lru_cache(256)
def split(length: int, batch: int, dtype: str) -> tuple[int, int] | None:
    """Return the matrix (rows, columns) that each row is split into.

    It is (length, 1) if whole rows in blocks are fastest, and None if no split is possible.
    """
    lanes = lanes_of(dtype)
    best_cost, shape = _cost(length, batch, lanes), (length, 1)
    # Neither rows nor columns may exceed LONGEST.
    least, most = max(2, -(-length // LONGEST)), min(length // 2, LONGEST)
    for columns in range(least, most + 1 if length >= 4 * lanes else 0):
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
    """The twiddle factors w^(p j) of a pass, for 0 < p < m and 0 < j < r."""
    return _table(np.outer(np.arange(1, remaining), np.arange(1, radix)), radix * remaining, dtype)


@lru_cache(64)
def pairs(radix: int, dtype: str) -> np.ndarray:
    """Cosines and sines of 2 pi j k / r for 0 < j, k <= r // 2."""
    steps = np.arange(1, radix // 2 + 1)
    return _table(-np.outer(steps, steps), radix, dtype)


@lru_cache(64)
def mirror(length: int, dtype: str) -> np.ndarray:
    """e^(-2 pi i k / n) for 0 <= k <= n // 4, padded by a vector that loads may read."""
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
    total = padded(length) or 0
    re, im = roots(np.arange(length) ** 2, 2 * length)
    chirp = np.zeros(total, np.complex128)
    chirp[:length] = re - 1j * im
    chirp[total - length + 1 :] = chirp[length - 1 : 0 : -1]
    out = np.fft.fft(chirp) / total
    return np.stack([out.real, out.imag], -1).astype(dtype)


@lru_cache(16)
def twiddles(rows: int, columns: int, dtype: str) -> np.ndarray:
    """The twiddle factors e^(-2 pi i b k / (A B)) of a split row, as ``fourier_rows`` reads them.

    Its axes are block of columns b, row k, component, and lane.
    """
    lanes = lanes_of(dtype)
    blocks = -(-columns // lanes)
    of_lanes = np.array(rows_of_lanes(dtype))
    column = np.minimum(np.arange(blocks)[:, None] * lanes + of_lanes, columns - 1)
    powers = column[:, None, :] * np.arange(rows)[None, :, None]
    return np.stack(roots(powers, rows * columns), 2).astype(dtype)
