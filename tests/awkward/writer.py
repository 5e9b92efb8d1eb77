"""Programs as source text: what a user of jax.numpy and jax.lax could have typed.

A program is the text of a function ``program`` that runs under gpuflow and under JAX alike. Values
have a grade, which says how closely two right ways of computing them agree.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from awkward.values import FLOATS, INTEGERS, Operand, draw_operand, size

BITS = 3  # numbers that were only moved: equal to the bit, payloads of nan included
EXACT = 2  # equal numbers, signs of zeros included
ROUGH = 1  # rounded differently by different ways of computing; only moved from then on

MAX_ELEMENTS = 2000
MAX_RANK = 8


@dataclass(frozen=True)
class Value:
    """A name in the program's text with its type."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    grade: int

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return size(self.shape)

    @property
    def is_integer(self) -> bool:
        return self.dtype in INTEGERS

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


@dataclass(frozen=True)
class Case:
    """A program with its operands and the grades of what it returns."""

    source: str
    operands: tuple[Operand, ...]
    results: tuple[Value, ...]


class Counter:
    """Numbers for names, each used once in a program."""

    def __init__(self) -> None:
        self.last = -1

    def next(self) -> int:
        self.last += 1
        return self.last


class Writer:
    """A block of a program: lines that are written, and values that they may use."""

    def __init__(
        self, rng: random.Random, values: Sequence[Value], depth: int, counter: Counter, indent: int
    ) -> None:
        self.rng, self.values, self.depth = rng, list(values), depth
        self.counter, self.indent = counter, indent
        self.lines: list[str] = []

    # --- choices ---------------------------------------------------------------------------

    def pick(self, choices: Sequence) -> object:
        return self.rng.choice(list(choices))

    def chance(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    def find(self, accepts: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """An accepted value; the latest are as likely as all others together."""
        accepted = [v for v in self.values if accepts(v)]
        return self.rng.choice(accepted + accepted[-3:] + accepted[-1:]) if accepted else None

    def axis(self, rank: int) -> tuple[int, int]:
        """A dimension, and a number for it that may be negative."""
        d = self.rng.randrange(rank)
        return d, d - rank if self.chance() else d

    # --- text ------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def name(self, prefix: str = "v") -> str:
        return f"{prefix}{self.counter.next()}"

    def add(self, text: str, shape: Sequence[int], dtype: str, grade: int) -> Value | None:
        """Write ``name = text``, unless the result would be too large."""
        if size(shape) > MAX_ELEMENTS or len(shape) > MAX_RANK:
            return None
        value = Value(self.name(), tuple(shape), dtype, grade)
        self.line(f"{value.name} = {text}")
        self.values.append(value)
        return value

    def inner(self, values: Sequence[Value]) -> Writer:
        """A block inside of this one, which sees only what it is given."""
        return Writer(self.rng, values, self.depth - 1, self.counter, self.indent + 1)

    def define(self, name: str, parameters: Sequence[str], body: Writer, returned: str) -> None:
        """Write a function of a block that was made by ``inner``."""
        self.line(f"def {name}({', '.join(parameters)}):")
        self.lines += body.lines
        self.line(f"    return {returned}")

    # --- values that fit -------------------------------------------------------------------

    def integers(self, low: int, high: int, shape: Sequence[int], dtype: str) -> str:
        """The text of an array of integers from low to high, as far as the dtype holds them."""
        low = max(low, 0) if dtype.startswith("u") else max(low, -100)
        high = max(min(high, 100), low)
        flat = [self.rng.randint(low, high) for _ in range(size(shape))]
        text = f"jnp.array({flat}, dtype={dtype!r})"
        return text if len(shape) == 1 else f"{text}.reshape({tuple(shape)})"

    def fitted(self, value: Value, shape: Sequence[int], dtype: str) -> str:
        """The text of a value cast and brought to a type by repeating or cutting its elements."""
        text = value.name
        if value.dtype == "complex64" and dtype != "complex64":
            text = f"jnp.real({text})"
        if value.dtype != dtype:
            text = f"{text}.astype({dtype!r})"
        if value.shape == tuple(shape):
            return text
        if value.size == 0:
            return f"jnp.zeros({tuple(shape)}, {dtype!r})"
        return f"jnp.resize({text}, {tuple(shape)})"


# JAX hands NumPy arrays through where nothing is to be done, so that each ends with an Array.
CONVERSIONS = (
    "jnp.asarray({0})",
    "jnp.array({0})",
    "jnp.asarray({0}, copy=True)",
    "jnp.asarray(jnp.reshape({0}, {1}))",
    "jnp.asarray(jnp.transpose(jnp.transpose({0})))",
    "jnp.asarray(jnp.flip(jnp.flip({0})))",
    "jnp.asarray(jnp.concatenate([jnp.atleast_1d({0})])).reshape({1})",
)


def write_case(
    rng: random.Random,
    draws: Callable[[int], Sequence[Callable[[Writer], None]]],
    subnormal: bool,
    steps: int = 9,
    depth: int = 3,
) -> Case:
    """A program of some steps; ``draws(depth)`` are the steps that may stand at a depth."""
    operands = tuple(draw_operand(rng, subnormal) for _ in range(rng.randint(1, 3)))
    writer = Writer(rng, [], depth, Counter(), 1)
    for k, operand in enumerate(operands):
        conversion = writer.pick(CONVERSIONS).format(f"x{k}", operand.shape)
        writer.add(conversion, operand.shape, operand.dtype, BITS)
    count = len(writer.values)
    choices = draws(depth)
    for _ in range(rng.randint(4, steps)):
        writer.pick(choices)(writer)
    text = "\n".join(writer.lines)
    unused = [v for v in writer.values[count:] if len(re.findall(rf"\b{v.name}\b", text)) == 1]
    results = tuple([*unused, rng.choice(writer.values)])
    names = ", ".join(f"x{k}" for k in range(len(operands)))
    returned = "".join(f"{v.name}, " for v in results)
    return Case(f"def program({names}):\n{text}\n    return ({returned})\n", operands, results)
