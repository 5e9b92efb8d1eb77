"""Random programs as data: what the fuzz tests draw, run, compare and store.

A program is a list of steps over numbered values, inputs first. Loops, branches and mapped
functions are steps whose params hold programs. Values that are equal to the bit however they are
computed are called exact; the others are compared with a tolerance (see comparing.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int32", "uint8", "int8", "uint16", "uint32")
UNSIGNED = ("uint8", "uint16", "uint32")
SPECIAL_SEEDS = 80  # from this seed on inputs hold nan, infinities and -0.0


@dataclass(frozen=True)
class Step:
    """``value = op(values[k] for k in args, **params)``; with a tuple of flags, several values."""

    op: str
    args: tuple[int, ...]
    params: dict[str, Any]
    exact: bool | tuple[bool, ...]

    @property
    def exact_results(self) -> tuple[bool, ...]:
        return self.exact if isinstance(self.exact, tuple) else (self.exact,)


@dataclass(frozen=True)
class Program:
    """Inputs are (shape, dtype); the steps of the range ``nested`` run under their own jit."""

    inputs: tuple[tuple[tuple[int, ...], str], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    nested: tuple[int, int] = (0, 0)
    seed: int = 0

    def to_json(self) -> str:
        """The program as a line of text."""
        return json.dumps(asdict(self))

    def is_exact(self, value: int) -> bool:
        """Whether a value must be equal to the bit."""
        flags = [True] * len(self.inputs)
        for step in self.steps:
            flags += step.exact_results
        return flags[value]


def from_json(text: str) -> Program:
    """The program that ``to_json`` wrote."""
    return _program(json.loads(text))


def _program(data: dict[str, Any]) -> Program:
    steps = []
    for s in data["steps"]:
        exact = tuple(s["exact"]) if isinstance(s["exact"], list) else s["exact"]
        steps.append(Step(s["op"], tuple(s["args"]), _params(s["params"]), exact))
    inputs = tuple((tuple(shape), dtype) for shape, dtype in data["inputs"])
    outputs, nested = tuple(data["outputs"]), tuple(data["nested"])
    return Program(inputs, tuple(steps), outputs, nested, data["seed"])


def _params(value: Any) -> Any:
    """Params with programs in place of what was read for them."""
    if isinstance(value, dict):
        if "steps" in value:
            return _program(value)
        return {name: _params(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_params(part) for part in value]
    return value


def all_steps(program: Program) -> list[Step]:
    """The steps of a program and of the programs that they hold."""
    steps = []
    for step in program.steps:
        steps.append(step)
        for inner in inner_programs(step):
            steps += all_steps(inner)
    return steps


def inner_programs(step: Step) -> list[Program]:
    """The programs that a step holds."""
    held = [step.params.get(name) for name in ("body", "condition")]
    return [part for part in (*held, *step.params.get("branches", ())) if part is not None]


# --- values --------------------------------------------------------------------------------


def dtype_of(name: str) -> np.dtype:
    """The dtype of a name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def random_inputs(program: Program, lead: Sequence[int | None] | None = None) -> list[np.ndarray]:
    """Operands from the program's seed; ``lead`` gives a leading size for those that are mapped."""
    random = np.random.default_rng(program.seed)
    result = []
    for k, (shape, dtype) in enumerate(program.inputs):
        full = shape if lead is None or lead[k] is None else (lead[k], *shape)
        values = random_array(random, full, dtype)
        if program.seed >= SPECIAL_SEEDS and "float" in dtype:
            values = _with_specials(random, values)
        result.append(values)
    return result


def _with_specials(random: np.random.Generator, values: np.ndarray) -> np.ndarray:
    """One element in eight is nan, infinite or -0.0."""
    others = random.choice([np.nan, np.inf, -np.inf, -0.0], values.shape)
    return np.where(random.uniform(size=values.shape) < 0.125, others.astype(values.dtype), values)


def random_array(random: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Numbers up to 3, with some zeros and equal ones."""
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        return random.integers(0 if dtype in UNSIGNED else -5, 9, shape).astype(dtype)
    values = np.round(random.uniform(-3, 3, shape), 1)
    if dtype == "complex64":
        values = values + 1j * np.round(random.uniform(-3, 3, shape), 1)
    return np.asarray(values).astype(dtype_of(dtype))
