"""Lengths of Fourier transforms: radices, splits, and tables of roots."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.targets.cpu.library.fourier_passes import LARGEST_RADIX, lanes_of, roots
from gpuflow.targets.cpu.library.fourier_rows import rows_of_lanes

LONGEST = 1 << 15  # elements of a row in a block: more would exceed every cache
_CACHED = 1 << 12  # so many stay in a core's cache
_MOVES = 3  # reading and writing a block cost as much as so many passes


# --- lengths -----------------------------------------------------------------------------------


@lru_cache(1024)
def radices(length: int) -> tuple[int, ...] | None:
    """The radices of the passes of a length, or None if it has too large a factor.

    Passes of 4 are fastest per power of two. Of an odd number of twos, three make an 8; a single
    one is combined with a 3 or a 5.
    """
    powers, remaining = {}, length
    for factor in (2, *range(3, LARGEST_RADIX + 1, 2)):
        while remaining % factor == 0:
            powers[factor] = powers.get(factor, 0) + 1
            remaining //= factor
    if remaining > 1:
        return None
    twos, found = powers.pop(2, 0), []
    if twos == 1:
        partner = next((factor for factor in (5, 3) if factor in powers), None)
        found.append(2 * (partner or 1))
        if partner is not None:
            powers[partner] -= 1
    elif twos % 2:
        found.append(8)
    found += [4] * ((twos - 3 * (twos % 2)) // 2)
    return (*found, *(factor for factor, count in powers.items() for _ in range(count)))


@lru_cache(1024)
def padded(length: int) -> int | None:
    """The length of the transforms that make one of a length with a large factor, or None."""
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
    """Elements of a row between passes, at most."""
    return padded(length) or length


def _cost(length: int, batch: int, lanes: int) -> float:
    """Estimated cost of rows in blocks: passes over all elements."""
    longest = memory_length(length)
    if longest > LONGEST:
        return np.inf
    transforms = 2 if longest > length else 1
    passes = transforms * sum(max(1.0, radix / 16) for radix in radices(longest) or ())
    slow = 1.0 if longest <= _CACHED else 2.0
    return -(-batch // lanes) * (longest * (passes + transforms - 1) * slow + length * _MOVES)


@lru_cache(256)
def split(length: int, batch: int, dtype: str) -> tuple[int, int] | None:
    """The matrix (rows, columns) of each row, (length, 1) for blocks of whole rows.

    None if neither is possible.
    """
    lanes = lanes_of(dtype)
    best, found = _cost(length, batch, lanes), (length, 1)
    # Neither is longer than a block allows.
    least, most = max(2, -(-length // LONGEST)), min(length // 2, LONGEST)
    for columns in range(least, most + 1 if length >= 4 * lanes else 0):
        if length % columns:
            continue
        rows = length // columns
        cost = batch * (_cost(rows, columns, lanes) + _cost(columns, rows, lanes))
        if cost < best:
            best, found = cost, (rows, columns)
    return None if best == np.inf else found


# --- tables ------------------------------------------------------------------------------------


def _table(powers: Any, order: int, dtype: str) -> np.ndarray:
    return np.stack(roots(powers, order), -1).astype(dtype)


@lru_cache(64)
def pass_twiddles(radix: int, remaining: int, dtype: str) -> np.ndarray:
    """The roots of a pass for 0 < p < m and 0 < j < r."""
    return _table(np.outer(np.arange(1, remaining), np.arange(1, radix)), radix * remaining, dtype)


@lru_cache(64)
def pairs(radix: int, dtype: str) -> np.ndarray:
    """Cosines and sines of 2 pi j k / r for 0 < j, k <= r // 2."""
    steps = np.arange(1, radix // 2 + 1)
    return _table(-np.outer(steps, steps), radix, dtype)


@lru_cache(64)
def mirror(length: int, dtype: str) -> np.ndarray:
    """e^(-2 pi i k / n) for 0 <= k <= n // 4, and the elements that a vector reads beyond."""
    return _table(np.arange(length // 4 + 1 + lanes_of(dtype)), length, dtype)


@lru_cache(64)
def chirp(length: int, dtype: str) -> np.ndarray:
    """e^(-i pi k^2 / n)."""
    return _table(np.arange(length) ** 2, 2 * length, dtype)


@lru_cache(64)
def chirp_transform(length: int, dtype: str) -> np.ndarray:
    """The transform of the chirp's conjugate, which continues on both sides, over its length."""
    total = padded(length) or 0
    re, im = roots(np.arange(length) ** 2, 2 * length)
    chirp = np.zeros(total, np.complex128)
    chirp[:length] = re - 1j * im
    chirp[total - length + 1 :] = chirp[length - 1 : 0 : -1]
    out = np.fft.fft(chirp) / total
    return np.stack([out.real, out.imag], -1).astype(dtype)


@lru_cache(16)
def twiddles(rows: int, columns: int, dtype: str) -> np.ndarray:
    """e^(-2 pi i b k / (A B)) by block of columns, row and lane, deinterleaved."""
    lanes = lanes_of(dtype)
    blocks = -(-columns // lanes)
    of_lanes = np.array(rows_of_lanes(dtype))
    column = np.minimum(np.arange(blocks)[:, None] * lanes + of_lanes, columns - 1)
    powers = column[:, None, :] * np.arange(rows)[None, :, None]
    return np.stack(roots(powers, rows * columns), 2).astype(dtype)
