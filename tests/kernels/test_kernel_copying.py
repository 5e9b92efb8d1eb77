"""Copies of parts of space with margins, beside NumPy."""

from math import prod

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import run_schedule

from gpuflow.targets.cuda.dnn.calls import FORWARD, ConvolutionCall
from gpuflow.targets.cuda.providers.convolution_margins import Margins, add_margins, cut_margins
from gpuflow.targets.cuda.providers.launch_sequence import At, Schedule

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
