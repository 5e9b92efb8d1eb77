"""What must hold for every loop program.

Tolerances come from runs of the interpreter with noise of one rounding error on every float result:
where that moves an output by d, two right ways of computing it differ by some multiple of d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from fuzzing.build_loops import build, draw
from fuzzing.loops import DRAWS, Interpreter, LoopProgram, TooClose, interpret, random_operands
from fuzzing.running import on_cpu
from hypothesis import assume

import gpuflow as gf

NOISY_RUNS = 2
SAFETY = 64.0


@cache
def draws(seed: int, kind: str) -> np.ndarray:
    """Random numbers of a key, each drawn by itself, without jit and loops."""
    with on_cpu():
        key = gf.random.key(seed)
        return np.stack([np.asarray(draw(key, n, kind)) for n in range(DRAWS)])


def meaning(program: LoopProgram, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The outputs by NumPy, and how far noise moves each. Discards what rounding could decide."""
    try:
        want = interpret(program, operands, Interpreter(draws=draws))
        noisy = [
            interpret(program, operands, Interpreter(np.random.default_rng(k), draws=draws))
            for k in range(NOISY_RUNS)
        ]
    except TooClose:
        assume(False)
    moved = [
        max(np.abs(n[k] - x).max(initial=0) if x.dtype.kind == "f" else 0 for n in noisy)
        for k, x in enumerate(want)
    ]
    return want, moved


def compare(program: LoopProgram, got: Sequence[Any], want: Any, moved: Any, what: str) -> None:
    """Integers and bools are equal; floats are as near as noise lets them be.

    Besides, libraries' sin, tanh and exp and sums of a few hundred terms err by some eps.
    """
    assert len(got) == len(want)
    for k, kind in enumerate(program.kinds):
        out = np.asarray(got[k])
        assert out.shape == want[k].shape, (what, k, out.shape, want[k].shape)
        if program.after[k] in ("none", "affine", "not"):
            assert out.dtype == kind.dtype, (what, k, out.dtype, kind)
        if not kind.is_float:
            np.testing.assert_array_equal(out, want[k], err_msg=f"{what} {k}")
            continue
        eps = float(np.finfo(kind.dtype).eps)
        size = np.abs(want[k]).max(initial=0) + 1
        error = np.abs(out - want[k]).max(initial=0)
        assert error <= SAFETY * (moved[k] + eps * size), f"{what} {k}: {out}, want {want[k]}"


def check_values(program: LoopProgram) -> None:
    """jit and eager agree with the interpreter; other values run on what was compiled."""
    function = gf.jit(lambda *xs: build(program, xs))
    operands = random_operands(program)
    want, moved = meaning(program, operands)
    compare(program, function(*operands), want, moved, "jit")
    compare(program, build(program, operands), want, moved, "eager")


# --- derivatives ---------------------------------------------------------------------------


def _scalar(program: LoopProgram, outs: Sequence[Any], weights: Sequence[Any], sum_: Any) -> Any:
    parts = [
        sum_(x * w) for x, w, k in zip(outs, weights, program.kinds, strict=True) if k.is_float
    ]
    return sum(parts[1:], parts[0])


def check_derivatives(program: LoopProgram, reverse: bool) -> None:
    """jvp is what differences of the interpreter say, and grad is what jvp says."""
    assume(any(k.is_float for k in program.kinds))
    operands = random_operands(program)
    want, _ = meaning(program, operands)
    numbers = [k for k, x in enumerate(operands) if x.dtype == np.float64]
    random = np.random.default_rng(program.seed + 1)
    along = [random.uniform(-1, 1, operands[k].shape) for k in numbers]
    weights = [random.uniform(-1, 1, x.shape) for x in want]

    def value(step: float) -> float:
        moved = list(operands)
        for k, a in zip(numbers, along, strict=True):
            moved[k] = operands[k] + step * a
        outs = interpret(program, moved, Interpreter(smooth=True))
        return float(_scalar(program, outs, weights, np.sum))

    def central(step: float) -> float:
        return (value(step) - value(-step)) / (2 * step)

    try:
        steps = [4e-4, 2e-4, 1e-4]
        coarse, middle, fine = map(central, steps)
    except TooClose:
        assume(False)
    # Differences with steps h and h/2 are extrapolated to an error of the order of h**4; rounding
    # errors of the outputs, divided by h, come on top.
    good, better = (4 * middle - coarse) / 3, (4 * fine - middle) / 3
    terms = [np.abs(x * w).sum() for x, w, k in zip(want, weights, program.kinds) if k.is_float]
    size = 1 + float(sum(terms))
    allowed = 10 * abs(better - good) + SAFETY * 2.2e-16 * size / steps[-1] + 1e-8 * abs(better)

    def loss(*xs: Any) -> Any:
        full = list(operands)
        for k, x in zip(numbers, xs, strict=True):
            full[k] = x
        return _scalar(program, build(program, full), weights, lambda x: x.sum())

    primals = tuple(operands[k] for k in numbers)
    forward = gf.jit(lambda xs, ts: gf.jvp(loss, xs, ts)[1])(primals, tuple(along))
    forward = float(forward)
    assert abs(forward - better) <= allowed, ("jvp", forward, better, allowed)
    if not reverse:
        return
    grads = gf.jit(gf.grad(loss, tuple(range(len(primals)))))(*primals)
    products = [np.asarray(g) * a for g, a in zip(grads, along, strict=True)]
    backward = float(sum(p.sum() for p in products))
    # Both add up the same products in other orders, in float64.
    scale = size + float(sum(np.abs(p).sum() for p in products))
    assert abs(backward - forward) <= 1e-10 * scale, ("grad", backward, forward)


CHECKS: dict[str, Callable[[LoopProgram], None]] = {
    "values": check_values,
    "jvp": lambda program: check_derivatives(program, reverse=False),
    "grad": lambda program: check_derivatives(program, reverse=True),
}
