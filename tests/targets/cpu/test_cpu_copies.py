"""Copies between memory and local arrays, which go through registers where they can."""

import numpy as np
import pytest
from copy_kernels import ROWS, slices
from cpu_harness import check_against_interpreter, random_array
from together import together

# Of elements of 1, 2, 4 and 8 bytes; all are moved as they are.
DTYPES = ("bool", "uint8", "float16", "bfloat16", "int32", "float32", "float64", "int64")


def check(kernel, dtype, lanes, rows, steps, pitches, formula=lambda r, s: r * s, chunks=1):
    """Each lane's row begins ``pitch`` elements behind the last; nothing else is written."""
    places = {"x": formula(np.arange(rows), steps[0]), "o": np.arange(rows) * steps[1]}
    arrays = {"n": np.int64(rows), "sx": np.int64(steps[0]), "so": np.int64(steps[1])}
    reach = {}
    for name, pitch in zip("xo", pitches, strict=True):
        at = np.arange(lanes)[:, None] * pitch + places[name]
        low, high = (at.min(), at.max()) if at.size else (0, 0)
        reach[name] = at - low + 3  # not aligned, with elements around
        memory = random_array(int(high - low) + 8, dtype, seed=ord(name))
        arrays[name] = memory, int(3 - low)
    strides = {("x", "i"): pitches[0], ("o", "i"): pitches[1]}
    (out,) = check_against_interpreter(
        kernel, arrays, {"i": lanes}, strides, chunks=chunks
    ).values()
    want = arrays["o"][0].copy()
    want[reach["o"]] = arrays["x"][0][reach["x"]]
    np.testing.assert_array_equal(out.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", [(1, 1), (-1, 1), (1, -1), (3, 1), (70, 1), (1, 70)])
def test_directions(dtype, steps):
    pitches = [1 if abs(step) == 70 else 40 * abs(step) + 1 for step in steps]
    check(slices(dtype), dtype, 70, 40, steps, pitches)


@together(by="lanes")
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 15, 16, 17, 31, 33, ROWS])
@pytest.mark.parametrize("lanes", [0, 1, 15, 16, 17, 31, 32, 33, 71])
def test_sizes(rows, lanes):
    check(slices("float32"), "float32", lanes, rows, (1, 1), (41, 43))


@pytest.mark.parametrize("dtype", ["int8", "float64"])
def test_lanes_backwards_and_in_chunks(dtype):
    check(slices(dtype), dtype, 71, 33, (1, -1), (-50, -33), chunks=3)


def test_one_lane_for_all():
    check(slices("float32"), "float32", 70, 33, (1, 1), (0, 33))


@pytest.mark.parametrize(
    ("formula", "meaning", "step"),
    [("min", np.minimum, 29), ("max", np.maximum, 3), ("and", np.bitwise_and, 7)],
)
def test_rows_that_are_neighbours_only_at_first(formula, meaning, step):
    check(slices("float32", formula), "float32", 70, 40, (step, 1), (64, 40), meaning)
