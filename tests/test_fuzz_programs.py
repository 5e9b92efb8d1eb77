"""Random programs: eager, jit, vmap and derivatives must agree.

The normal run draws the same programs every time. For fresh ones:
``FUZZ_EXAMPLES=2000 pytest tests/test_fuzz_programs.py --hypothesis-seed=7``. A program that failed
once is stored in data/fuzz_programs.json by its to_json() and runs first from then on.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_strategy import programs
from random_programs import (
    SAFETY,
    check_close,
    compare,
    from_json,
    random_array,
    random_inputs,
    run,
    wide,
)

import gpuflow as gf
from gpuflow import lax

FRESH = int(os.environ.get("FUZZ_EXAMPLES", "0"))
STORED = json.loads((Path(__file__).parent / "data" / "fuzz_programs.json").read_text())
EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
REAL = ("float32",) * 6 + ("float16", "bfloat16", "int32", "bool")


def fuzz(examples):
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


def check_jit(program):
    inputs = random_inputs(program)
    got = gf.jit(lambda *xs: run(program, xs))(*inputs)
    compare(program, got, inputs, "jit")


def check_donation(program):
    """Outputs may take the memory of donated operands, unless someone still looks at it."""
    inputs = random_inputs(program)
    function = gf.jit(lambda *xs: run(program, xs), donate_argnums=tuple(range(len(inputs))))
    compare(program, function(*map(fresh_array, inputs)), inputs, "donated")
    arrays = [fresh_array(x) for x in inputs]
    views = [np.asarray(x) for x in arrays]
    compare(program, function(*arrays), inputs, "donated and seen")
    for view, x in zip(views, inputs, strict=True):
        np.testing.assert_array_equal(view, x)


def fresh_array(x):
    """An Array with memory of its own."""
    return gf.jit(lambda x: x)(np.array(x))


def check_vmap(program, mapped, size):
    """jit(vmap) and vmap(jit) of the operands that ``mapped`` marks agree with a loop."""
    inputs = random_inputs(program, [size if flag else None for flag in mapped])
    axes = tuple(0 if flag else None for flag in mapped)

    def function(*xs):
        return run(program, xs)

    both = {
        "jit of vmap": gf.jit(gf.vmap(function, in_axes=axes))(*inputs),
        "vmap of jit": gf.vmap(gf.jit(function), in_axes=axes)(*inputs),
    }
    for what, outs in both.items():
        for k in range(size):
            own = [x[k] if flag else x for x, flag in zip(inputs, mapped, strict=True)]
            compare(program, [out[k] for out in outs], own, f"{what} at {k}")


def float_positions(program):
    return tuple(k for k, (_, dtype) in enumerate(program.inputs) if "float" in dtype)


def make_loss(program, weights, noise=None):
    """A scalar of the real outputs, bounded so that it does not overflow."""

    def loss(*xs):
        outs = run(program, xs, noise)
        total = np.float32(0)
        for out, weight in zip(outs, weights, strict=True):
            if "float" in str(out.dtype):
                out = lax.sin(lax.convert_element_type(out, np.float32))
                total = total + lax.reduce_sum(lax.mul(out, weight), tuple(range(out.ndim)))
        return total

    return loss


def output_weights(program, inputs):
    random = np.random.default_rng(program.seed)
    return [random_array(random, np.shape(out), "float32") for out in run(program, inputs)]


def check_grad(program):
    """The gradient under jit is the eager one."""
    inputs, numbers = random_inputs(program), float_positions(program)
    if not numbers:
        return
    weights = output_weights(program, inputs)
    got = gf.jit(gf.grad(make_loss(program, weights), numbers))(*inputs)
    want = gf.grad(make_loss(program, weights), numbers)(*inputs)
    noisy = [
        gf.grad(make_loss(program, weights, np.random.default_rng(k)), numbers)(*inputs)
        for k in range(4)
    ]
    # The derivative of tanh is a difference from 1, whatever it is multiplied with; between
    # equations of one kernel narrow cotangents are not rounded.
    unit = max(EPSILONS.get(dtype, 1.2e-7) for dtype in all_dtypes(program)) / 1.2e-7
    for n, number in enumerate(numbers):
        others = [grads[n] for grads in noisy]
        check_close(got[n], want[n], others, False, f"gradient of operand {number}", unit)


def check_derivatives(program):
    """<cotangent, J tangent> from jvp is <J^T cotangent, tangent> from vjp."""
    inputs, numbers = random_inputs(program), float_positions(program)
    random = np.random.default_rng(program.seed + 1)
    tangents = [random_array(random, inputs[k].shape, inputs[k].dtype.name) for k in numbers]

    def products(noise):
        def function(*xs):
            full = list(inputs)
            for k, x in zip(numbers, xs, strict=True):
                full[k] = x
            return [out for out in run(program, full, noise) if "float" in str(out.dtype)]

        primals = [inputs[k] for k in numbers]
        outs, moved = gf.jvp(function, primals, tangents)
        generator = np.random.default_rng(program.seed)
        weights = [random_array(generator, out.shape, out.dtype.name) for out in outs]
        grads = gf.vjp(function, *primals)[1](weights)
        forward = [wide(w) * wide(m) for w, m in zip(weights, moved, strict=True)]
        backward = [wide(g) * wide(t) for g, t in zip(grads, tangents, strict=True)]
        return forward, backward

    def total(parts):
        return sum(float(part.sum()) for part in parts)

    with np.errstate(all="ignore"):
        forward, backward = products(None)
        noisy = [products(np.random.default_rng(k)) for k in range(3)]
        left, right = total(forward), total(backward)
        sums = [total(parts) for pair in noisy for parts in pair]
        size = sum(float(np.abs(part).sum()) for part in (*forward, *backward))
    if not np.isfinite([*sums, size, left, right]).all():
        return
    narrow = any("float32" not in d for d in all_dtypes(program))
    spread = max(abs(s - t) for s in sums for t in (left, right))
    # Cotangents are rounded to the dtype of their values in other places than tangents are.
    allowed = SAFETY * spread + (0.1 if narrow else 1e-4) * size + 1e-30
    assert abs(left - right) <= allowed, (left, right)


def all_dtypes(program):
    """Names of the dtypes of inputs and conversions."""
    converted = [step.params["dtype"] for step in program.steps if "dtype" in step.params]
    return {dtype for _, dtype in program.inputs} | set(converted)


CHECKS = {
    "jit": check_jit,
    "donation": check_donation,
    "vmap": lambda program: check_vmap(program, (True,) * len(program.inputs), 2),
    "grad": check_grad,
    "derivatives": check_derivatives,
}


@pytest.mark.parametrize("number", range(len(STORED)))
def test_stored_program(number):
    program = from_json(json.dumps(STORED[number]["program"]))
    CHECKS[STORED[number]["check"]](program)


@fuzz(60)
@given(programs())
def test_jit_agrees_with_eager(program):
    check_jit(program)


@fuzz(15)
@given(programs(most_steps=8))
def test_donation_changes_nothing(program):
    check_donation(program)


@fuzz(15)
@given(programs(most_steps=8), st.lists(st.booleans(), min_size=4, max_size=4), st.integers(1, 3))
def test_vmap_agrees_with_a_loop(program, flags, size):
    mapped = (True, *flags)[: len(program.inputs)]
    check_vmap(replace(program), mapped, size)


@fuzz(15)
@given(programs(most_steps=8, dtypes=REAL))
def test_gradient_under_jit_agrees_with_eager(program):
    check_grad(program)


@fuzz(25)
@given(programs(most_steps=10, dtypes=REAL))
def test_forward_and_reverse_derivatives_agree(program):
    check_derivatives(replace(program, nested=(0, 0)))
