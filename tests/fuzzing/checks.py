"""What must hold for every program."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fuzzing.comparing import compare
from fuzzing.derivatives import (
    check_derivatives,
    check_differences,
    check_grad,
    check_second_order,
    check_vmap_grad,
    may_be_singular,
)
from fuzzing.programs import Program, all_steps, random_inputs
from fuzzing.reference import evaluate
from fuzzing.running import on_cpu, run
from hypothesis import HealthCheck, settings

import gpuflow as gf

FRESH = int(os.environ.get("FUZZ_EXAMPLES", "0"))
REAL = ("float32",) * 6 + ("float16", "bfloat16", "int32", "bool")


def fuzz(examples: int) -> Any:
    """Settings of a property: a fixed set of examples, or FUZZ_EXAMPLES fresh ones."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(
        max_examples=FRESH or examples,
        derandomize=not FRESH,
        database=None,
        deadline=None,
        print_blob=bool(FRESH),
        suppress_health_check=checks,
    )


# --- values --------------------------------------------------------------------------------


def check_reference(program: Program) -> None:
    """Ops one by one, control flow that runs by itself, and jit agree with NumPy."""
    inputs = random_inputs(program)
    want = evaluate(program, inputs)
    with on_cpu():
        plain = run(program, inputs)
    compare(program, plain, inputs, "op by op", want)
    compare(program, run(program, inputs, plain=False), inputs, "with control flow", want)
    got = gf.jit(lambda *xs: run(program, xs, plain=False))(*inputs)
    compare(program, got, inputs, "jit", want)


def check_disabled(program: Program) -> None:
    """Without jit loops run in Python, and mean the same."""
    inputs = random_inputs(program)
    if any(step.params.get("length") == 0 for step in all_steps(program)):
        return  # the types of stacked results are then unknown
    with gf.disable_jit():
        got = run(program, inputs, plain=False)
    compare(program, got, inputs, "disable_jit")


def check_calls(program: Program) -> None:
    """Control flow that runs by itself, and jit, agree with ops one by one."""
    inputs, singular = random_inputs(program), may_be_singular(program)
    got = run(program, inputs, plain=False)
    compare(program, got, inputs, "with control flow", singular=singular)
    check_jit(program, singular)


def check_jit(program: Program, singular: bool = False) -> None:
    """``jit`` agrees with ops one by one; ``singular`` as for ``check_close``."""
    inputs = random_inputs(program)
    got = gf.jit(lambda *xs: run(program, xs, plain=False))(*inputs)
    compare(program, got, inputs, "jit", singular=singular)


def check_donation(program: Program) -> None:
    """Outputs may take the memory of donated operands, unless someone still looks at it."""
    inputs = random_inputs(program)
    function = gf.jit(
        lambda *xs: run(program, xs, plain=False), donate_argnums=tuple(range(len(inputs)))
    )
    compare(program, function(*map(_fresh_array, inputs)), inputs, "donated")
    arrays = [_fresh_array(x) for x in inputs]
    views = [np.asarray(x) for x in arrays]
    compare(program, function(*arrays), inputs, "donated and seen")
    for view, x in zip(views, inputs, strict=True):
        assert view.tobytes() == np.asarray(x).tobytes()  # NumPy knows no nan of bfloat16


def _fresh_array(x: Any) -> Any:
    """An Array with memory of its own."""
    return gf.jit(lambda x: x)(np.array(x))


def check_vmap(program: Program, mapped: Sequence[bool], size: int) -> None:
    """jit(vmap) and vmap(jit) of the operands that ``mapped`` marks agree with a loop.

    Another size follows, which runs on what was compiled for the first one where that fits.
    """
    axes = tuple(0 if flag else None for flag in mapped)

    def function(*xs: Any) -> list[Any]:
        return run(program, xs, plain=False)

    ways = {
        "jit of vmap": gf.jit(gf.vmap(function, in_axes=axes)),
        "vmap of jit": gf.vmap(gf.jit(function), in_axes=axes),
    }
    for count in (size, size + 2):
        inputs = random_inputs(program, [count if flag else None for flag in mapped])
        results = {what: way(*inputs) for what, way in ways.items()}
        for k in sorted({0, count - 1}):
            lane = [x[k] if flag else x for x, flag in zip(inputs, mapped, strict=True)]
            for what, outs in results.items():
                name = f"{what} of {count} at {k}"
                compare(program, [out[k] for out in outs], lane, name)


CHECKS: dict[str, Callable[[Program], None]] = {
    "reference": check_reference,
    "disabled": check_disabled,
    "calls": check_calls,
    "jit": check_jit,
    "donation": check_donation,
    "vmap": lambda program: check_vmap(program, (True,) * len(program.inputs), 2),
    "grad": check_grad,
    "derivatives": check_derivatives,
    "control derivatives": lambda program: check_derivatives(program, plain=False),
    "vmap grad": lambda program: check_vmap_grad(program, (True,) * len(program.inputs), 2),
    "differences": check_differences,
    "second order": check_second_order,
}
