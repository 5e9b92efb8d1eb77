"""Comparing the outputs of a program.

The tolerance comes from runs of the program with noise of one rounding error on every operand of
every inexact step: where such noise moves a result by d, two right ways of computing it differ by
some multiple of d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from fuzzing.programs import FLOATS, Program
from fuzzing.running import on_cpu, run

# A rounding error moves a result by as much as noise of one rounding error does, give or take
# the number of terms in a sum: programs here add up to some thirty.
SAFETY = 64.0
NOISY_RUNS = 4


def _kinds(x: np.ndarray) -> np.ndarray:
    """0 finite, 1 nan, 2 infinite, 3 minus infinite."""
    return np.where(np.isnan(x), 1, np.where(np.isinf(x), np.where(x.real < 0, 3, 2), 0))


def wide(x: Any) -> np.ndarray:
    """As float64 or complex128."""
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def check_close(
    got: Any,
    want: Any,
    noisy: Sequence[Any],
    exact: bool,
    what: str,
    unit: float = 0.0,
    singular: bool = False,
) -> None:
    """Compare one output with the reference and its noisy runs.

    ``unit`` is the magnitude whose float32 rounding errors are allowed besides. With ``singular``
    an element may be nan or infinite where the reference is finite.
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
    stable &= (_kinds(got) == 0) | (kinds != 0) | (not singular)
    np.testing.assert_array_equal(_kinds(got)[stable], kinds[stable], err_msg=what)
    finite = stable & (kinds == 0)
    if not finite.any():
        return
    moved = max(np.abs(x[finite] - want[finite]).max() for x in noisy)
    allowed = SAFETY * (moved + 1.2e-7 * unit) + 8 * eps * np.abs(want[finite])
    wrong = np.abs(got[finite] - want[finite]) > allowed
    assert not wrong.any(), f"{what}: got {got}, want {want}, noise moves it by {moved}"


def compare(
    program: Program,
    got: Sequence[Any],
    inputs: Sequence[Any],
    what: str,
    want: Any = None,
    singular: bool = False,
) -> None:
    """Compare the outputs of a program with those of another way, by default its eager run."""
    with on_cpu():
        want = run(program, inputs) if want is None else want
        noisy = [run(program, inputs, np.random.default_rng(k)) for k in range(NOISY_RUNS)]
    assert len(got) == len(want)
    for k, value in enumerate(program.outputs):
        check_close(
            got[k],
            want[k],
            [outs[k] for outs in noisy],
            program.is_exact(value),
            f"{what} {k}",
            singular=singular,
        )
