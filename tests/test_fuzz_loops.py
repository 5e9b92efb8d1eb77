"""Random loops: jit, eager and derivatives agree with NumPy, run one lane after the other.

The normal run draws the same programs every time. For fresh ones:
``FUZZ_EXAMPLES=300 pytest tests/test_fuzz_loops.py --hypothesis-seed=7``. The program of a failing
example is printed as Python, which can be pasted into a test.
"""

from fuzzing.check_loops import check_derivatives, check_values
from fuzzing.checks import fuzz
from fuzzing.draw_loops import Options, loop_programs
from hypothesis import given

import gpuflow as gf

LANES = ((3,), (1,), (0,), (5,), (33,))
TWO_AXES = ((2, 3), (3, 1), (0, 2), (2, 0), (5, 4))
ARRAYS = ((4,), (33,), (1,), (0,), (3, 5), (1, 7), (0, 3))
FEW = ((3,), (1,), (2, 2))
MIXED = ("float32", "float64")


@fuzz(30)
@given(loop_programs(Options(sizes=LANES)))
def test_loops_of_lanes(program):
    check_values(program)


@fuzz(20)
@given(loop_programs(Options(sizes=TWO_AXES)))
def test_loops_of_lanes_of_two_axes(program):
    check_values(program)


@fuzz(15)
@given(loop_programs(Options(sizes=((),))))
def test_loops_without_lanes(program):
    check_values(program)


@fuzz(20)
@given(loop_programs(Options(sizes=ARRAYS, vmapped=False)))
def test_loops_of_arrays(program):
    check_values(program)


@fuzz(8)
@given(loop_programs(Options(sizes=LANES, floats=MIXED)))
def test_loops_of_two_floats(program):
    with gf.enable_x64():
        check_values(program)


@fuzz(12)
@given(loop_programs(Options(sizes=((2,), (33,), (2, 3)), draws=True)))
def test_random_numbers_in_loops(program):
    check_values(program)


@fuzz(15)
@given(loop_programs(Options(sizes=FEW, floats=("float64",))))
def test_forward_derivatives_are_differences(program):
    with gf.enable_x64():
        check_derivatives(program, reverse=False)


@fuzz(18)
@given(loop_programs(Options(sizes=FEW, floats=("float64",), reverse=True)))
def test_gradients_are_forward_derivatives(program):
    with gf.enable_x64():
        check_derivatives(program, reverse=True)


@fuzz(10)
@given(
    loop_programs(Options(sizes=((4,), (2, 3)), floats=("float64",), reverse=True, vmapped=False))
)
def test_gradients_of_loops_of_arrays(program):
    with gf.enable_x64():
        check_derivatives(program, reverse=True)
