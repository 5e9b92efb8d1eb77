"""Random programs: eager, jit, NumPy, vmap and derivatives must agree.

The normal run draws the same programs every time. For fresh ones:
``FUZZ_EXAMPLES=2000 pytest tests/test_fuzz_programs.py --hypothesis-seed=7``. A program that failed
once is stored in data/fuzz_programs.json by its to_json() and runs first from then on.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fuzzing.checks import (
    CHECKS,
    REAL,
    check_calls,
    check_derivatives,
    check_differences,
    check_disabled,
    check_donation,
    check_grad,
    check_jit,
    check_reference,
    check_second_order,
    check_vmap,
    check_vmap_grad,
    fuzz,
)
from fuzzing.programs import from_json
from fuzzing.strategy import control_programs, programs, reducing_programs
from hypothesis import given
from hypothesis import strategies as st

import gpuflow as gf

pytestmark = pytest.mark.simulated_gpu

STORED = json.loads((Path(__file__).parent / "data" / "fuzz_programs.json").read_text())
FLAGS = st.lists(st.booleans(), min_size=4, max_size=4)


@pytest.mark.parametrize("number", range(len(STORED)))
def test_stored_program(number):
    program = from_json(json.dumps(STORED[number]["program"]))
    with gf.enable_x64(STORED[number].get("x64", False)):
        CHECKS[STORED[number]["check"]](program)


@fuzz(20)
@given(control_programs())
def test_stored_programs_are_read_back(program):
    assert from_json(program.to_json()).to_json() == program.to_json()


# --- elementwise, reductions, layout -------------------------------------------------------


@fuzz(40)
@given(programs())
def test_jit_agrees_with_eager(program):
    check_jit(program)


@fuzz(8)
@given(programs(most_steps=8))
def test_donation_changes_nothing(program):
    check_donation(program)


@fuzz(12)
@given(reducing_programs())
def test_donation_to_reductions_changes_nothing(program):
    check_donation(program)


@fuzz(8)
@given(programs(most_steps=8), FLAGS, st.integers(1, 3))
def test_vmap_agrees_with_a_loop(program, flags, size):
    check_vmap(program, (True, *flags)[: len(program.inputs)], size)


@fuzz(10)
@given(programs(most_steps=8, dtypes=REAL))
def test_gradient_under_jit_agrees_with_eager(program):
    check_grad(program)


@fuzz(5)
@given(programs(most_steps=8, large=True))
def test_large_programs_agree_with_eager(program):
    check_jit(program)


@fuzz(25)
@given(programs(most_steps=10, dtypes=REAL))
def test_forward_and_reverse_derivatives_agree(program):
    check_derivatives(replace(program, nested=(0, 0)))


# --- indexing, sorting, control flow -------------------------------------------------------


@fuzz(14)
@given(control_programs(most_steps=9, depth=0))
def test_indexing_agrees_with_numpy(program):
    check_reference(program)


@fuzz(10)
@given(control_programs())
def test_control_flow_agrees_with_numpy(program):
    check_reference(program)


@fuzz(4)
@given(control_programs(most_steps=2, dtypes=REAL, nested=True))
def test_derivatives_inside_of_programs_agree_with_ops_one_by_one(program):
    check_calls(program)


@fuzz(10)
@given(control_programs())
def test_control_flow_without_jit_means_the_same(program):
    check_disabled(program)


@fuzz(4)
@given(control_programs(most_steps=3))
def test_donation_to_control_flow_changes_nothing(program):
    check_donation(program)


@fuzz(5)
@given(control_programs(most_steps=3), FLAGS, st.integers(1, 3))
def test_vmap_of_control_flow_agrees_with_a_loop(program, flags, size):
    check_vmap(program, (True, *flags)[: len(program.inputs)], size)


@fuzz(4)
@given(control_programs(most_steps=3, dtypes=REAL, reverse=True))
def test_gradients_of_control_flow_agree(program):
    check_grad(program)


@fuzz(4)
@given(control_programs(most_steps=3, dtypes=REAL, reverse=True, forward=True))
def test_derivatives_of_control_flow_agree(program):
    check_derivatives(replace(program, nested=(0, 0)), plain=False)


SMOOTH = {
    "dtypes": ("float64",) * 5 + ("int32", "bool"),
    "reverse": True,
    "forward": True,
    "smooth": True,
}


@fuzz(5)
@given(control_programs(**SMOOTH))
def test_derivatives_of_smooth_programs_are_differences(program):
    with gf.enable_x64():
        check_differences(program)


@fuzz(4)
@given(control_programs(most_steps=3, **SMOOTH))
def test_second_derivatives_of_control_flow_agree(program):
    with gf.enable_x64():
        check_second_order(program)


@fuzz(4)
@given(control_programs(most_steps=3, dtypes=REAL, reverse=True), FLAGS, st.integers(1, 3))
def test_mapped_gradients_of_control_flow_agree(program, flags, size):
    check_vmap_grad(program, (True, *flags)[: len(program.inputs)], size)
