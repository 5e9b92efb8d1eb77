"""Operands of the calls of sweep.py: names for domains, at all sizes, dtypes and layouts."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

SIZES = (100, 10_000, 1_000_000)
MODES = ("jit", "eager")
SMALLER = SIZES[:2]  # where a million elements take seconds, in both
EAGER, JIT = ("eager",), ("jit",)
DTYPES = ("bfloat16", "float16", "int32", "bool", "complex64")
FLOATS = ("bfloat16", "float16")
LAYOUTS = ("transposed", "narrow", "strided")
NUMERIC = (*FLOATS, "int32", "complex64", *LAYOUTS)
REALS = (*FLOATS, "int32", *LAYOUTS)
# What the program makes of an operand before it calls the function.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda a: a.T,
    "narrow": lambda a: a,
    "strided": lambda a: a[..., ::2],
}


@dataclass(frozen=True)
class Section:
    """Calls that are timed in the same way.

    Attributes:
        calls: expressions, one a line.
        grad: whether their cotangents are timed as well.
        sizes: numbers of elements.
        modes: "jit", "eager" or both.
        variants: further dtypes and layouts.
        compared: what of `result` both frameworks must agree on, where not on all of it.
        free: why results may differ; empty where they may not.
    """

    calls: str
    grad: bool = False
    sizes: tuple[int, ...] = SIZES
    modes: tuple[str, ...] = MODES
    variants: tuple[str, ...] = ()
    compared: str = ""
    free: str = ""

    @property
    def expressions(self) -> list[str]:
        return [line.strip() for line in self.calls.strip().splitlines()]


Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Shape = Callable[[int], tuple[int, ...]]


def _uniform(low: float, high: float) -> Draw:
    return lambda generator, shape: generator.uniform(low, high, shape)


def _integers(low: int, high: int) -> Draw:
    return lambda generator, shape: generator.integers(low, high, shape)


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.standard_normal(shape)


def _complex(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.standard_normal(shape) + 1j * generator.standard_normal(shape)


def _square(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Well conditioned matrices."""
    return generator.standard_normal(shape) / math.sqrt(shape[-1]) + 2 * np.eye(shape[-1])


def _spd(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    a = generator.standard_normal(shape)
    return a @ np.swapaxes(a, -1, -2) / shape[-1] + np.eye(shape[-1])


def _flat(n: int) -> tuple[int, ...]:
    return (n,)


def _matrix(n: int) -> tuple[int, ...]:
    return (math.isqrt(n), math.isqrt(n))


def _side(n: int) -> tuple[int, ...]:
    return (math.isqrt(n),)


def _column(n: int) -> tuple[int, ...]:
    return (n, 1)


def _stack(n: int) -> tuple[int, ...]:
    return (n // 16, 4, 4)


def _few(n: int) -> tuple[int, ...]:
    del n
    return (20,)


def _scalar(n: int) -> tuple[int, ...]:
    del n
    return ()


def _below_size(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return generator.integers(0, shape[0], shape)


def _chances(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    values = generator.uniform(1.0, 2.0, shape)
    return values / values.sum()


def _near_one(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Factors whose products are neither large nor small."""
    return np.exp(generator.standard_normal(shape) / math.sqrt(math.prod(shape)))


# Numbers, of which there are variants: their values and shapes.
NUMBERS: dict[str, tuple[Draw, Shape]] = {
    "x": (_normal, _flat),
    "y": (_normal, _flat),
    "z": (_normal, _flat),
    "positive": (_uniform(0.1, 3.0), _flat),
    "large": (_uniform(1.1, 10.0), _flat),
    "unit": (_uniform(-0.95, 0.95), _flat),
    "share": (_uniform(0.05, 0.95), _flat),
    "near": (_near_one, _flat),
    "rows": (_normal, _matrix),
    "square": (_square, _matrix),
}
# Operands that stay as they are: values, shapes and dtypes.
FIXED: dict[str, tuple[Draw, Shape, str]] = {
    "waves": (_complex, _flat, "complex64"),
    "bools": (lambda g, shape: g.random(shape) > 0.5, _flat, "bool"),
    "mask": (lambda g, shape: g.random(shape) > 0.3, _matrix, "bool"),
    "ints": (_integers(-100, 100), _flat, "int32"),
    "nats": (_integers(1, 100), _flat, "int32"),
    "shifts": (_integers(0, 8), _flat, "int32"),
    "digits": (_integers(0, 10), _flat, "int32"),
    "bytes": (_integers(0, 256), _flat, "uint8"),
    "state": (_integers(0, 1 << 31), lambda n: (4,), "uint32"),
    "words": (_integers(0, 1 << 31), _flat, "uint32"),
    "bits": (_integers(0, 2), _flat, "int32"),
    # Indices: of vectors, in a column for gathers and scatters, and of the columns of matrices.
    "places": (_below_size, _flat, "int32"),
    "place_rows": (_below_size, _column, "int32"),
    "first": (lambda g, shape: g.permutation(100)[:20], _few, "int32"),
    "first_rows": (lambda g, shape: g.permutation(100)[:20, None], lambda n: (20, 1), "int32"),
    "columns": (_below_size, _side, "int32"),
    "column": (_below_size, lambda n: (math.isqrt(n), 1), "int32"),
    "column_rows": (_below_size, _matrix, "int32"),
    "ones": (_integers(1, 2), _flat, "int32"),
    "twos": (_integers(2, 3), _flat, "int32"),
    "index": (_integers(3, 4), _scalar, "int32"),
    "branch": (_integers(1, 2), _scalar, "int32"),
    "is_so": (lambda g, shape: np.asarray(True), _scalar, "bool"),
    "others": (lambda g, shape: g.random(shape) > 0.5, _flat, "bool"),
    "grid": (lambda g, shape: np.sort(g.standard_normal(shape)), _flat, "float32"),
    "spd": (_spd, _matrix, "float32"),
    "stack": (_square, _stack, "float32"),
    "row": (_normal, _side, "float32"),
    "other_row": (_normal, _side, "float32"),
    "weights": (_uniform(1.0, 2.0), _side, "float32"),
    "few": (_normal, _few, "float32"),
    "scalar": (_uniform(1.0, 2.0), _scalar, "float32"),
    "single": (_normal, lambda n: (1, n), "float32"),
    "orders": (_integers(0, 10), _flat, "float32"),
    "wave_rows": (_complex, _matrix, "complex64"),
    "near_rows": (_near_one, _matrix, "float32"),
    "chances": (_chances, _flat, "float32"),
    "nine_chances": (_chances, lambda n: (9,), "float32"),
    "concentrations": (_uniform(1.0, 2.0), lambda n: (9,), "float32"),
    "covariance": (_spd, lambda n: (9, 9), "float32"),
    "experts": (_normal, lambda n: (2, math.isqrt(n), math.isqrt(n)), "float32"),
    "pairs": (_normal, lambda n: (n // 2, 2), "float32"),
    "small": (_normal, lambda n: (5, 5), "float32"),
    "right": (_normal, lambda n: (n // 10,), "float32"),
    "other_triples": (_normal, lambda n: (n // 3, 3), "float32"),
    "divisor": (_normal, lambda n: (4,), "float32"),
    "tall": (_normal, lambda n: (n // 10, 10), "float32"),
    "triples": (_normal, lambda n: (n // 3, 3), "float32"),
    "taps": (_normal, lambda n: (9,), "float32"),
    "images": (_normal, lambda n: (1, 4, math.isqrt(n // 4), math.isqrt(n // 4)), "float32"),
    "filters": (_normal, lambda n: (4, 4, 3, 3), "float32"),
    "queries": (_normal, lambda n: (1, max(4, n // 32), 2, 16), "float32"),
}


def _drawn(name: str, draw: Draw, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Values that depend on nothing but what is asked for."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    values = draw(generator, shape)
    if dtype == "bool":
        values = values > np.median(values) if values.dtype != bool else values
    elif dtype == "int32" and values.dtype.kind == "f":
        values = np.rint(values * 30) + np.where(values > 0, 1, 0)
    elif dtype == "complex64" and values.dtype.kind == "f":
        values = values + 1j * draw(generator, shape)
    return values.astype(getattr(ml_dtypes, dtype, dtype))


def _stored_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The shape of the operand that a view is taken of."""
    n = math.prod(shape)
    if layout == "transposed":
        return _matrix(n)
    if layout == "narrow":
        return (n // 4, 4)
    if layout == "strided":
        return (*shape[:-1], 2 * shape[-1])
    return shape


def operand(name: str, n: int, variant: str) -> np.ndarray:
    """The values of an operand for about n elements."""
    if name in NUMBERS:
        draw, shape_of = NUMBERS[name]
        dtype = variant if variant in DTYPES else "float32"
        return _drawn(name, draw, _stored_shape(shape_of(n), variant), dtype)
    draw, shape_of, dtype = FIXED[name]
    shape = shape_of(n)
    if name == "bools":
        shape = _stored_shape(shape, variant)
    return _drawn(name, draw, shape, dtype)


def has_view(name: str, variant: str) -> bool:
    """Whether the program takes a view of the operand."""
    return variant in VIEWS and (name in NUMBERS or name == "bools")


def constants(jax: Any, n: int) -> dict[str, Any]:
    """What calls know beside their operands."""
    lax = jax.lax
    return {
        "n": n,
        "side": math.isqrt(n),
        "numpy_array": np.arange(n, dtype=np.float32),
        "buffer": bytes(4 * n),
        "group_sizes": np.array([3, math.isqrt(n) - 3], np.int32),
        "channels_first": ("NCHW", "OIHW", "NCHW"),
        "gather_numbers": lax.GatherDimensionNumbers((), (0,), (0,)),
        "scatter_numbers": lax.ScatterDimensionNumbers((), (0,), (0,)),
    }
