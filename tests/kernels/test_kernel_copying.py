"""Copies of rows in an order, beside NumPy; their code."""

import re

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools, sass
from schedule_run import run_schedule

import gpuflow.kernels.copying as copying
from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.targets.cuda.codegen.handwritten import build_handwritten
from gpuflow.targets.cuda.library.launch_sequence import ArrayLocation, LaunchSequence, uint_pointer

pytestmark = requires_cuda_tools

ROWS = (3, 17, 5)  # outer, length, inner


@pytest.mark.parametrize("is_selected", [False, True], ids=["sorted", "selected"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64", "complex128"])
def test_take(dtype, index, is_selected):
    """The first ones of each row in an order, and where they were."""
    _, length, inner = ROWS
    kept, rng = 7, np.random.default_rng(3)
    source = np.arange(np.prod(ROWS)).reshape(ROWS).astype(dtype)
    order = np.argsort(rng.random(ROWS), 1)
    want = np.take_along_axis(source, order[:, :kept], 1)
    rows = np.moveaxis(order, 1, 2)[..., : kept if is_selected else length]
    pointer, count = uint_pointer(source.itemsize), want.size
    sequence = LaunchSequence(4)
    sequence.for_each(
        copying.take,
        [
            (pointer, ArrayLocation(0)),
            ("*uint32", ArrayLocation(1)),
            (pointer, ArrayLocation(2)),
            ("*int32", ArrayLocation(3)),
            *[(index, n) for n in (count, length, inner, kept)],
        ],
        count,
        {
            "SIZE": source.itemsize,
            "POSITIONS": 1,
            "SELECTED": int(is_selected),
            "LONG": int(index == "int64"),
        },
    )
    arrays = [source, rows.astype(np.uint32), np.zeros_like(want), np.zeros(want.shape, np.int32)]
    *_, taken, positions = run_schedule(sequence, arrays)
    np.testing.assert_array_equal(taken, want)
    np.testing.assert_array_equal(positions, order[:, :kept])


def test_machine_code(tmp_path):
    """No division of 64-bit numbers, one of 32-bit numbers for each dimension."""
    numbers, pointers, divisions = 4, ("*uint32",) * 3 + ("*int32",), 2
    for index in ("int32", "int64"):
        constants = {"SIZE": 4, "LONG": int(index == "int64")}
        kernel = build_handwritten(
            copying.take,
            (*pointers, *[index] * numbers),
            constants,
            256,
            KernelCache(tmp_path),
            (9, 0),
        )
        lines = sass(kernel.built.cubin)
        wide = [one for one in lines if re.search(r"I2F\.[US]64|CALL.*(div|rem)_[su]64", one)]
        assert bool(wide) == (index == "int64"), wide
        assert kernel.built.spill_bytes == 0
        if index == "int32":
            assert sum("I2F.U32.RP" in one for one in lines) == divisions
