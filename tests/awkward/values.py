"""Operands that are awkward: layouts, places in memory and numbers that are easily overlooked.

Everything here is a function of a seed, in NumPy alone, so that the same operands are made where
gpuflow runs and where JAX does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np

BOOL = ("bool",)
SIGNED = ("int8", "int16", "int32")
UNSIGNED = ("uint8", "uint16", "uint32")
FLOATS = ("float32", "float16", "bfloat16")
COMPLEX = ("complex64",)
INTEGERS = SIGNED + UNSIGNED
DTYPES = BOOL + INTEGERS + FLOATS + COMPLEX
WIDTHS = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex64": 8,
}

SHAPES: tuple[tuple[int, ...], ...] = (
    (), (0,), (1,), (2,), (7,), (16,), (33,), (3, 4), (4, 3), (1, 5), (5, 1), (0, 3), (3, 0),
    (8, 8), (2, 3, 4), (3, 1, 2), (1, 1, 1), (5, 17), (40, 3), (2, 0, 2), (1, 2, 1, 2, 1, 2, 1, 3),
    (2, 2, 2, 2, 1, 2), (129,), (19, 31),
)  # fmt: skip

LAYOUTS = ("plain", "fortran", "reversed", "strided", "unaligned", "read-only", "broadcast", "view")
CONTENTS = ("plain", "plain", "special", "special", "extreme", "small", "subnormal")


@dataclass(frozen=True)
class Operand:
    """What one operand of a program is; ``content`` says which numbers it holds."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    content: str
    seed: int


def dtype_of(name: str) -> np.dtype:
    """The dtype of a name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def draw_operand(rng: random.Random, subnormal: bool = True) -> Operand:
    """Any operand; without ``subnormal`` none holds subnormal numbers, which JAX flushes."""
    contents = CONTENTS if subnormal else CONTENTS[:-1]
    return Operand(
        rng.choice(SHAPES),
        rng.choice(DTYPES),
        rng.choice(LAYOUTS),
        rng.choice(contents),
        rng.randrange(1 << 30),
    )


# --- numbers -------------------------------------------------------------------------------

SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0)


def _real(
    state: np.random.RandomState, shape: Sequence[int], dtype: str, content: str
) -> np.ndarray:
    values = np.round(state.uniform(-4, 4, tuple(shape)), 1)
    if content == "small":
        return np.round(values)
    limits = ml_dtypes.finfo(dtype_of(dtype))
    if content == "special":
        others = state.choice(SPECIAL, tuple(shape))
    elif content == "extreme":
        largest, least = float(limits.max), float(limits.tiny)
        ends = (largest, -largest, least, -least, largest / 2, 1e9, -129.0)
        others = state.choice(ends, tuple(shape))
    elif content == "subnormal":
        step = float(limits.smallest_subnormal)
        others = state.choice((step, -step, 3 * step, float(limits.tiny) / 2), tuple(shape))
    else:
        return values
    return np.where(state.uniform(size=tuple(shape)) < 0.4, others, values)


def numbers(seed: int, shape: Sequence[int], dtype: str, content: str) -> np.ndarray:
    """A plain array of the numbers that ``content`` names."""
    state = np.random.RandomState(seed)  # its stream never changes
    shape = tuple(shape)
    if dtype == "bool":
        return np.asarray(state.randint(0, 2, shape)).astype(bool)
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        values = np.asarray(state.randint(0 if dtype in UNSIGNED else -9, 10, shape))
        if content in ("special", "extreme"):
            ends = (limits.min, limits.max, limits.max - 1, limits.min + 1, 1, 0)
            others = state.choice(ends, shape)
            values = np.where(state.uniform(size=shape) < 0.4, others, values)
        return np.asarray(values).astype(dtype)
    if dtype == "complex64":
        parts = [_real(state, shape, "float32", content) for _ in range(2)]
        result = np.empty(shape, np.complex64)
        result.real, result.imag = parts
        return result
    return np.asarray(_real(state, shape, dtype, content)).astype(dtype_of(dtype))


# --- layouts -------------------------------------------------------------------------------


def place(values: np.ndarray, layout: str) -> np.ndarray:
    """The same values, somewhere else or otherwise in memory."""
    if layout == "fortran" and values.ndim:
        return np.asfortranarray(values)
    if layout == "reversed":
        turn = (slice(None, None, -1),) * values.ndim
        return np.ascontiguousarray(values[turn])[turn] if values.ndim else values
    if layout == "strided" and values.ndim:
        wide = np.zeros([2 * n + 1 for n in values.shape], values.dtype)
        window = tuple(slice(1, 2 * n + 1, 2) for n in values.shape)
        wide[window] = values
        return wide[window]
    if layout == "unaligned":
        memory = np.zeros(values.nbytes + 1, np.uint8)
        result = memory[1:].view(values.dtype).reshape(values.shape)
        result[...] = values
        return result
    if layout == "read-only":
        result = values.copy()
        result.flags.writeable = False
        return result
    if layout == "broadcast" and values.ndim and values.size:
        return np.broadcast_to(values[:1], values.shape)
    if layout == "view" and values.ndim:
        wide = np.concatenate([values, values, values])
        return wide[values.shape[0] : 2 * values.shape[0]]
    return values


def make_operand(operand: Operand) -> np.ndarray:
    """The array that an Operand describes."""
    plain = numbers(operand.seed, operand.shape, operand.dtype, operand.content)
    return place(plain, operand.layout)


def size(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return prod(shape)
