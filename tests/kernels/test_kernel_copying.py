"""Copies of parts of space with margins, and of rows in an order, beside NumPy; their code."""

import re
from math import prod

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools, sass
from schedule_run import run_schedule

import gpuflow.kernels.copying as copying
from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.targets.cuda.codegen.handwritten import build_handwritten
from gpuflow.targets.cuda.dnn.calls import FORWARD, ConvolutionCall
from gpuflow.targets.cuda.providers import copy_forms
from gpuflow.targets.cuda.providers.convolution_margins import Margins, add_margins, cut_margins
from gpuflow.targets.cuda.providers.launch_sequence import At, Schedule, word_pointer

pytestmark = requires_cuda_tools

# Sizes of the image, of what is read, and where the image begins there.
MARGINS = {
    "one": ((1, 1), (1, 1), (0, 0)),
    "behind": ((4, 6), (5, 7), (0, 0)),
    "around": ((3, 5), (8, 9), (2, 1)),
    "cut": ((7, 5), (4, 2), (-2, -3)),
    "apart": ((3, 2), (2, 4), (5, 1)),
    "a line": ((33,), (31,), (-1,)),
    "a volume": ((2, 3, 5), (4, 3, 7), (1, -1, 2)),
}


def _moved(image, wanted, low):
    """The image ``low`` places further in an array of zeros, of the last dimensions."""
    moved = np.zeros((*image.shape[: -len(wanted)], *wanted), image.dtype)
    for place in np.ndindex(*wanted):
        source = tuple(p - n for p, n in zip(place, low, strict=True))
        sizes = image.shape[-len(wanted) :]
        if all(0 <= p < size for p, size in zip(source, sizes, strict=True)):
            moved[(..., *place)] = image[(..., *source)]
    return moved


@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", MARGINS)
def test_margins(name, dtype, is_last):
    check_margins(name, dtype, is_last)


@pytest.mark.parametrize("name", ["cut", "a volume"])
def test_margins_with_64_bits(name, monkeypatch):
    monkeypatch.setattr(copy_forms, "_LARGEST", 0)
    check_margins(name, np.float32, True)


def check_margins(name, dtype, is_last):
    sizes, padded, low = MARGINS[name]
    margins, batch = Margins(sizes, padded, low), (2, 3)
    ones = (1,) * len(sizes)
    call = ConvolutionCall(
        FORWARD, (*batch, *padded), (1, 3, *ones), (2, 1, *padded), is_last, (0,) * len(sizes),
        ones, ones, 1, False, np.dtype(dtype), False,
    )  # fmt: skip

    def packed(array):
        return np.moveaxis(array, 1, -1).copy() if is_last else array

    for add, source, wanted, shift in (
        (add_margins, sizes, padded, low),
        (cut_margins, padded, sizes, [-n for n in low]),
    ):
        image = np.arange(1, 1 + 6 * prod(source)).reshape(*batch, *source).astype(dtype)
        want = packed(_moved(image, wanted, shift))
        schedule = Schedule(2)
        add(schedule, At(0), At(1), call, margins)
        _, result = run_schedule(schedule, [packed(image), np.full(want.shape, 77, dtype)])
        np.testing.assert_array_equal(result, want)


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
    pointer, count = word_pointer(source.itemsize), want.size
    schedule = Schedule(4)
    schedule.for_each(
        copying.take,
        [
            (pointer, At(0)), ("*uint32", At(1)), (pointer, At(2)), ("*int32", At(3)),
            *[(index, n) for n in (count, length, inner, kept)],
        ],
        count,
        {
            "SIZE": source.itemsize, "POSITIONS": 1, "SELECTED": int(is_selected),
            "LONG": int(index == "int64"),
        },
    )  # fmt: skip
    arrays = [source, rows.astype(np.uint32), np.zeros_like(want), np.zeros(want.shape, np.int32)]
    *_, taken, positions = run_schedule(schedule, arrays)
    np.testing.assert_array_equal(taken, want)
    np.testing.assert_array_equal(positions, order[:, :kept])


@pytest.mark.parametrize("count, index", [(2**31 - 2**24, "int32"), (2**31 - 2**24 + 1, "int64")])
def test_the_width_of_indices(count, index):
    """That of the margins' kernel follows from both of its arrays."""
    for sizes, padded in (((count,), (1,)), ((1,), (count,))):
        schedule = Schedule(2)
        call = ConvolutionCall(
            FORWARD, (1, 1, *padded), (1, 1, 1), (1, 1, *padded), False, (0,), (1,), (1,), 1,
            False, np.dtype(np.float32), False,
        )  # fmt: skip
        add_margins(schedule, At(0), At(1), call, Margins(sizes, padded, (0,)))
        (one,) = schedule.launches
        assert set(one.signature[2:]) == {index}
        assert dict(one.constants)["LONG"] == (index == "int64")


@pytest.mark.parametrize("name", ["take", "copy_shifted"])
def test_machine_code(name, tmp_path):
    """No division of 64-bit numbers, one of 32-bit numbers for each dimension."""
    numbers, pointers, divisions = {
        "take": (4, ("*uint32",) * 3 + ("*int32",), 2), "copy_shifted": (11, ("*uint32",) * 2, 4)
    }[name]  # fmt: skip
    for index in ("int32", "int64"):
        constants = {"SIZE": 4, "LONG": int(index == "int64")}
        kernel = build_handwritten(
            getattr(copying, name), (*pointers, *[index] * numbers), constants, 256,
            KernelCache(tmp_path), (9, 0),
        )  # fmt: skip
        lines = sass(kernel.built.cubin)
        wide = [one for one in lines if re.search(r"I2F\.[US]64|CALL.*(div|rem)_[su]64", one)]
        assert bool(wide) == (index == "int64"), wide
        assert kernel.built.spill_bytes == 0
        if index == "int32":
            assert sum("I2F.U32.RP" in one for one in lines) == divisions
