"""Random programs as data: what the fuzz tests run, compare and store.

A program is a list of steps over numbered values, inputs first. Values that are equal to the bit
however they are computed are called exact; the others are compared with a tolerance that comes
from running the program with noise of one rounding error on every operand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np

import gpuflow as gf
from gpuflow import lax

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int32", "uint8")
# A rounding error moves a result by as much as noise of one rounding error does, give or take
# the number of terms in a sum: programs here add up to some thirty.
SAFETY = 64.0


@dataclass(frozen=True)
class Step:
    """``value = op(values[k] for k in args, **params)``."""

    op: str
    args: tuple[int, ...]
    params: dict[str, Any]
    exact: bool


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
        return value < len(self.inputs) or self.steps[value - len(self.inputs)].exact


def from_json(text: str) -> Program:
    """The program that ``to_json`` wrote."""
    data = json.loads(text)
    steps = tuple(
        Step(s["op"], tuple(s["args"]), s["params"], s["exact"]) for s in data["steps"]
    )
    inputs = tuple((tuple(shape), dtype) for shape, dtype in data["inputs"])
    outputs, nested = tuple(data["outputs"]), tuple(data["nested"])
    return Program(inputs, steps, outputs, nested, data["seed"])


# --- running -------------------------------------------------------------------------------


def dtype_of(name: str) -> np.dtype:
    """The dtype of a name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _spread(x: Any, axes: Sequence[int], shape: Sequence[int]) -> Any:
    kept = [d for d in range(len(shape)) if d not in axes]
    return lax.broadcast_in_dim(x, shape, kept)


def _contract(x: Any, y: Any, axes: Any, batch: Any) -> Any:
    return lax.dot_general(x, y, (axes, batch))


SPECIAL: dict[str, Callable[..., Any]] = {
    "convert": lambda x, dtype: lax.convert_element_type(x, dtype_of(dtype)),
    "iota": lambda dtype, shape, dimension: lax.iota(dtype_of(dtype), shape, dimension),
    "spread": _spread,
    "dot": _contract,
    "argmax": lambda x, axis: lax.argmax(x, axis, np.dtype("int32")),
    "argmin": lambda x, axis: lax.argmin(x, axis, np.dtype("int32")),
    "pad": lambda x, value, config: lax.pad(x, np.asarray(value).astype(x.dtype), config),
    "concatenate": lambda *xs, dimension: lax.concatenate(xs, dimension),
    "add_number": lambda x, value: lax.add(x, np.asarray(value).astype(x.dtype)),
    "mul_number": lambda x, value: lax.mul(x, np.asarray(value).astype(x.dtype)),
    "clamp": lambda x: lax.clamp(np.asarray(-1).astype(x.dtype), x, np.asarray(2).astype(x.dtype)),
}


def _apply(step: Step, operands: Sequence[Any]) -> Any:
    function = SPECIAL.get(step.op) or getattr(lax, step.op)
    return function(*operands, **step.params)


def _noisy(x: Any, noise: np.random.Generator) -> Any:
    dtype = np.dtype(x.dtype)
    if dtype.name not in (*FLOATS, "complex64"):
        return x
    real = np.dtype("float32") if dtype.kind == "c" else dtype
    step = float(ml_dtypes.finfo(real).eps)
    factors = 1 + step * noise.choice([-1.0, 1.0], np.shape(x))
    return lax.mul(x, factors.astype(dtype))


def _run_steps(
    program: Program, values: list[Any], first: int, last: int, noise: Any = None
) -> list[Any]:
    values = list(values)
    for step in program.steps[first:last]:
        operands = [values[k] for k in step.args]
        if noise is not None and not step.exact:
            operands = [_noisy(x, noise) for x in operands]
        values.append(_apply(step, operands))
    return values


def run(program: Program, inputs: Sequence[Any], noise: Any = None) -> list[Any]:
    """The outputs of a program; with noise, every inexact step gets slightly wrong operands."""
    first, last = program.nested
    values = _run_steps(program, list(inputs), 0, first, noise)
    if last > first:

        def inner(*xs: Any) -> list[Any]:
            return _run_steps(program, list(xs), first, last, noise)[len(xs) :]

        values += (inner if noise is not None else gf.jit(inner))(*values)
    values = _run_steps(program, values, max(first, last), len(program.steps), noise)
    return [values[k] for k in program.outputs]


def random_inputs(program: Program, lead: Sequence[int | None] | None = None) -> list[np.ndarray]:
    """Operands from the program's seed; ``lead`` gives a leading size for those that are mapped."""
    random = np.random.default_rng(program.seed)
    result = []
    for k, (shape, dtype) in enumerate(program.inputs):
        full = shape if lead is None or lead[k] is None else (lead[k], *shape)
        result.append(random_array(random, full, dtype))
    return result


def random_array(random: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Numbers up to 3, with some zeros and equal ones."""
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        return random.integers(0 if dtype == "uint8" else -5, 9, shape).astype(dtype)
    values = np.round(random.uniform(-3, 3, shape), 1)
    if dtype == "complex64":
        values = values + 1j * np.round(random.uniform(-3, 3, shape), 1)
    return np.asarray(values).astype(dtype_of(dtype))


# --- comparing -----------------------------------------------------------------------------


def _kinds(x: np.ndarray) -> np.ndarray:
    """0 finite, 1 nan, 2 infinite, 3 minus infinite."""
    return np.where(np.isnan(x), 1, np.where(np.isinf(x), np.where(x.real < 0, 3, 2), 0))


def wide(x: Any) -> np.ndarray:
    """As float64 or complex128."""
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def check_close(
    got: Any, want: Any, noisy: Sequence[Any], exact: bool, what: str, unit: float = 0.0
) -> None:
    """Compare one output with the reference and its noisy runs.

    ``unit`` is the magnitude whose float32 rounding errors are allowed besides.
    """
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype, (what, got, want)
    if exact:
        # NumPy knows no nan of bfloat16.
        is_float = want.dtype.name in FLOATS
        got, want = (wide(got), wide(want)) if is_float else (got, want)
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    eps = float(ml_dtypes.finfo(want.dtype).eps)
    got, want, noisy = wide(got), wide(want), [wide(x) for x in noisy]
    kinds = _kinds(want)
    stable = np.all([_kinds(x) == kinds for x in noisy], axis=0)
    np.testing.assert_array_equal(_kinds(got)[stable], kinds[stable], err_msg=what)
    finite = stable & (kinds == 0)
    if not finite.any():
        return
    moved = max(np.abs(x - want)[finite].max() for x in noisy)
    allowed = SAFETY * (moved + 1.2e-7 * unit) + 8 * eps * np.abs(want)[finite]
    wrong = np.abs(got - want)[finite] > allowed
    assert not wrong.any(), f"{what}: got {got}, want {want}, noise moves it by {moved}"


def compare(program: Program, got: Sequence[Any], inputs: Sequence[Any], what: str) -> None:
    """Compare the outputs of a program with its eager run."""
    want = run(program, inputs)
    noisy = [run(program, inputs, np.random.default_rng(k)) for k in range(4)]
    assert len(got) == len(want)
    for k, value in enumerate(program.outputs):
        check_close(
            got[k], want[k], [outs[k] for outs in noisy], program.is_exact(value), f"{what} {k}"
        )


