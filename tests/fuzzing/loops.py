"""Random loop programs as data, and what they mean: one lane at a time, in Python and NumPy.

A program says what one lane computes: a block of statements over numbered values, which loops and
branches may see from inside. Lanes are added from outside, by vmap over up to two axes or by giving
whole arrays to a program of scalars. ``interpret`` runs the lanes one after the other in float64
and knows nothing of gpuflow; ``build_loops`` makes the same program of gpuflow's loops.

The repr of a program is Python that makes it again: a failing one is pasted into a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

MAX_TRIPS = 4  # of loops whose bounds are computed
DRAWS = 8  # how many numbers are folded into a key
MARGIN = 2e-3  # no decision lies nearer to where it changes


@dataclass(frozen=True)
class Kind:
    """The type of a value in one lane.

    ``wide`` counts in programs without vmap only: the value is an array with an element for each
    lane, and loop bounds and predicates must not be.
    """

    shape: tuple[int, ...]
    dtype: str
    wide: bool = False

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype


@dataclass(frozen=True)
class Block:
    """Statements that see their params and all values before the block, and what they give."""

    params: tuple[int, ...]
    statements: tuple[Statement, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Statement:
    """``outs = op(*args, **params)``; loops and branches have blocks."""

    op: str
    args: tuple[int, ...]
    outs: tuple[int, ...]
    kinds: tuple[Kind, ...]
    params: dict[str, Any] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Input:
    """An operand, with an extra leading axis for each lane axis that ``mapped`` marks."""

    kind: Kind
    mapped: tuple[bool, ...]
    before: str = "none"  # what the program computes of it ahead of the loops


@dataclass(frozen=True)
class LoopProgram:
    """``vmap`` over axes of ``sizes``, or arrays of that shape; ``after`` is done to outputs."""

    inputs: tuple[Input, ...]
    block: Block
    kinds: tuple[Kind, ...]  # of the results
    after: tuple[str, ...]
    sizes: tuple[int, ...]
    vmapped: bool
    seed: int

    def dtypes(self) -> set[str]:
        """Of all values."""
        names = {i.kind.dtype for i in self.inputs}
        return names | {k.dtype for s in statements_of(self.block) for k in s.kinds}


def statements_of(block: Block) -> Iterator[Statement]:
    """All statements, those of inner blocks included."""
    for statement in block.statements:
        yield statement
        for inner in statement.blocks:
            yield from statements_of(inner)


def random_operands(program: LoopProgram) -> list[np.ndarray]:
    """Floats up to 1.5, integers up to 5 and seeds of keys."""
    random = np.random.default_rng(program.seed)
    operands = []
    for i in program.inputs:
        lead = [n for n, mapped in zip(program.sizes, i.mapped, strict=True) if mapped]
        shape = (*lead, *i.kind.shape)
        if i.kind.dtype == "bool":
            x = random.integers(0, 2, shape).astype(bool)
        elif i.kind.dtype == "key":
            x = random.integers(0, 4, shape)
        elif i.kind.dtype == "int32":
            x = random.integers(-3, 6, shape).astype(np.int32)
        else:
            x = random.uniform(-1.5, 1.5, shape).astype(i.kind.dtype)
        operands.append(np.asarray(x))
    return operands


# --- the meaning ---------------------------------------------------------------------------


class TooClose(Exception):
    """A decision that rounding errors could change."""


def _apart(x: Any, y: Any) -> None:
    if np.any(np.abs(x - y) < MARGIN):
        raise TooClose


def _above(x: Any, limit: float) -> Any:
    _apart(x, limit)
    return x > limit


def _steps(x: Any) -> Any:
    _apart(2 * x, np.round(2 * x))
    return np.floor(2 * x).astype(np.int64)


def _gather(table: Any, index: Any) -> Any:
    return table[np.clip(index, 0, len(table) - 1)]


def _put(x: Any, index: Any, value: Any, add: bool) -> Any:
    x, k = x.copy(), int(np.clip(index, 0, len(x) - 1))
    x[k] = x[k] + value if add else value
    return x


NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "sin": np.sin, "tanh": np.tanh, "exp": np.exp, "abs": np.abs,
    "scale": lambda x, by: x * by,
    "mod": lambda x, by: np.mod(x, by), "div": lambda x, by: np.floor_divide(x, by),
    "clip": lambda x, low, high: np.clip(x, low, high),
    "sum": lambda x: x.sum(0), "largest": lambda x: x.max(0),
    "lt": np.less, "eq": np.equal, "and": np.logical_and, "or": np.logical_or,
    "xor": np.logical_xor, "not": np.logical_not, "where": np.where,
    "above": _above, "steps": _steps, "gather": _gather, "put": _put,
    "number": lambda x: np.asarray(x, np.float64), "int": lambda x: np.asarray(x, np.int64),
    "cast": lambda x: x, "constant": lambda value: np.asarray(value),
    "read": lambda x, at: x[at],
}  # fmt: skip
KINKS = ("min", "max")


@dataclass(frozen=True)
class Interpreter:
    """Runs one lane.

    Args:
        noise: a generator of relative errors of one rounding for every float result, or None.
        smooth: raise TooClose where a derivative jumps, too.
        draws: ``draws(seed, kind)``, the random numbers of all numbers folded into a key.
    """

    noise: np.random.Generator | None = None
    smooth: bool = False
    draws: Callable[[int, str], np.ndarray] | None = None

    def block(self, block: Block, args: Sequence[Any], outer: dict[int, Any]) -> list[Any]:
        values = {**outer, **dict(zip(block.params, args, strict=True))}
        for s in block.statements:
            outs = self.statement(s, [values[k] for k in s.args], values)
            values.update(zip(s.outs, outs, strict=True))
        return [values[k] for k in block.results]

    def statement(self, s: Statement, args: list[Any], values: dict[int, Any]) -> list[Any]:
        if s.op in LOOPS:
            outs = LOOPS[s.op](self, s, args, values)
        elif s.op in ("bits", "uniform"):
            assert self.draws is not None
            outs = [self.draws(int(args[0]), s.op)[np.clip(args[1], 0, DRAWS - 1)]]
        else:
            if self.smooth and s.op in KINKS and s.kinds[0].is_float and s.args[0] != s.args[1]:
                _apart(args[0], args[1])
            outs = [NUMPY[s.op](*args, **s.params)]
        return [self.rounded(x, k) for x, k in zip(outs, s.kinds, strict=True)]

    def rounded(self, x: Any, kind: Kind) -> np.ndarray:
        """In the shape of its kind, with noise."""
        return self.noisy(np.broadcast_to(np.asarray(x), kind.shape), kind)

    def noisy(self, x: np.ndarray, kind: Kind) -> np.ndarray:
        """With a relative error of one rounding, if it is a float."""
        if kind.is_float and self.noise is not None:
            eps = np.finfo(kind.dtype).eps
            return x * (1 + eps * self.noise.uniform(-1, 1, np.shape(x)))
        return x

    def fori(self, s: Statement, args: list[Any], values: dict[int, Any]) -> list[Any]:
        low, high = s.params["low"], s.params["high"]
        if high is None:
            limit, *args = args
            high = int(np.clip(limit, 0, MAX_TRIPS))
        args = fitted(args, s.kinds)
        for i in range(low, high):
            args = fitted(self.block(s.blocks[0], [np.asarray(i), *args], values), s.kinds)
        return args

    def while_(self, s: Statement, args: list[Any], values: dict[int, Any]) -> list[Any]:
        limit = int(np.clip(args[0], 0, MAX_TRIPS))
        most = s.params["max_steps"]
        condition, body = s.blocks
        count, args = 0, fitted(args[1:], s.kinds[1:])
        while most is None or count < most:
            carry = [np.asarray(count), *args]
            if count >= limit or not self.block(condition, carry, values)[0]:
                break
            args = fitted(self.block(body, carry, values), s.kinds[1:])
            count += 1
        return [np.asarray(count), *args]

    def scan(self, s: Statement, args: list[Any], values: dict[int, Any]) -> list[Any]:
        count = s.params["carries"]
        carry, xs = fitted(args[:count], s.kinds[:count]), args[count:]
        rows: list[Any] = [None] * s.params["length"]
        order = range(s.params["length"])
        for k in reversed(order) if s.params["reverse"] else order:
            outs = self.block(s.blocks[0], [*carry, *[x[k] for x in xs]], values)
            carry, rows[k] = fitted(outs[:count], s.kinds[:count]), outs[count:]
        ys = [
            np.stack([row[n] for row in rows]) if rows else np.zeros(kind.shape)
            for n, kind in enumerate(s.kinds[count:])
        ]
        return [*carry, *ys]

    def switch(self, s: Statement, args: list[Any], values: dict[int, Any]) -> list[Any]:
        choice, *args = args
        k = int(np.clip(int(choice), 0, len(s.blocks) - 1))
        return fitted(self.block(s.blocks[k], args, values), s.kinds)


def fitted(xs: Sequence[Any], kinds: Sequence[Kind]) -> list[Any]:
    """Values in the shapes that a loop or branch has for them."""
    return [np.broadcast_to(np.asarray(x), k.shape) for x, k in zip(xs, kinds, strict=True)]


LOOPS = {
    "fori": Interpreter.fori,
    "while": Interpreter.while_,
    "scan": Interpreter.scan,
    "cond": Interpreter.switch,
    "switch": Interpreter.switch,
}


def interpret(
    program: LoopProgram, operands: Sequence[np.ndarray], interpreter: Interpreter
) -> list[np.ndarray]:
    """The outputs of a program, floats as float64 and integers as int64."""
    operands = [_widened(x) for x in operands]
    operands = [
        x if i.before == "none" else interpreter.noisy(_before(i.before, x), i.kind)
        for i, x in zip(program.inputs, operands, strict=True)
    ]
    lanes = []
    for place in product(*map(range, program.sizes)):
        args = [
            x[tuple(k for k, mapped in zip(place, i.mapped, strict=True) if mapped)]
            for i, x in zip(program.inputs, operands, strict=True)
        ]
        lanes.append(interpreter.block(program.block, args, {}))
    outs = []
    for n, (kind, after) in enumerate(zip(program.kinds, program.after, strict=True)):
        shape = (*program.sizes, *kind.shape)
        values = [np.asarray(lane[n]) for lane in lanes]
        dtype = np.float64 if kind.is_float else bool if kind.dtype == "bool" else np.int64
        whole = np.stack(values).reshape(shape) if values else np.zeros(shape)
        outs.append(_after(after, whole.astype(dtype)))
    return outs


def _widened(x: np.ndarray) -> np.ndarray:
    return x.astype({"f": np.float64, "i": np.int64}.get(x.dtype.kind, x.dtype))


def _before(what: str, x: np.ndarray) -> np.ndarray:
    """What is computed of a whole operand ahead of the loops."""
    return {"none": lambda: x, "sin": lambda: np.sin(2 * x), "next": lambda: x + 1}[what]()


def _after(what: str, x: np.ndarray) -> np.ndarray:
    """What is computed of a whole result behind the loops."""
    ways = {
        "none": lambda: x,
        "sum": lambda: x.sum(),
        "rows": lambda: x.sum(-1),
        "affine": lambda: 3 * x - 1,
        "not": lambda: ~x,
    }
    return ways[what]()
