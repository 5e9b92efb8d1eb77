"""Margins of zeros that are not the same on both sides, which a library's formula does not have.

``SAME`` with stride 2 on an even size is the common case: it needs one zero more after the image
than before it. The interface of cuDNN that is called has one number for both sides, so the image is
copied into one of the padded size, and the gradient with respect to it is cut out of such a one.
That costs two passes over the image, so it is done if the convolution itself is much more work. The
graph interface has a number for each side, and engines that support two that differ: see
docs/design/0028.
"""

from __future__ import annotations

from math import prod

import gpuflow.kernels.copying as copying
from gpuflow.base.records import record
from gpuflow.targets.cuda.dnn.calls import ConvolutionCall, Dims
from gpuflow.targets.cuda.providers.copy_forms import index_reaching
from gpuflow.targets.cuda.providers.launch_sequence import At, Schedule, word_pointer
from gpuflow.targets.layouts.convolution_axes import MOST_SPACE

# Products of numbers for each element that is copied: a guess, as nothing was measured. A 3 x 3
# convolution with stride 2 has 2 for each of its outputs, a depthwise one 2 in all.
FEWEST_PRODUCTS = 64


@record
class Margins:
    """Position of an image in its zero padding, or of a part of it without padding.

    Attributes:
        sizes, padded: spatial sizes of the image and of the padded image.
        low: offset from the beginning of the padded image to that of the image, of any sign.
    """

    sizes: Dims
    padded: Dims
    low: Dims


def are_cheap(call: ConvolutionCall) -> bool:
    """Whether copies are cheap compared with the call, for a padded x."""
    batch, outputs, *places = call.y
    products = batch * outputs * prod(places) * prod(call.w[1:])
    return products >= FEWEST_PRODUCTS * prod(call.x)


def add_margins(
    schedule: Schedule, source: At, target: At, call: ConvolutionCall, margins: Margins
) -> None:
    """Add a copy of the image into the operand of the call.

    Args:
        schedule: to which.
        source, target: the image and the padded image, both packed in the layout of the call.
        call: the call, with the padded sizes.
        margins: around the image.
    """
    _add(schedule, source, target, call, margins.sizes, margins.padded, margins.low)


def cut_margins(
    schedule: Schedule, source: At, target: At, call: ConvolutionCall, margins: Margins
) -> None:
    """Add a copy of the image out of the call's result; arguments as of ``add_margins``."""
    low = tuple(-places for places in margins.low)
    _add(schedule, source, target, call, margins.padded, margins.sizes, low)


def _add(
    schedule: Schedule, source: At, target: At, call: ConvolutionCall, sizes: Dims,
    wanted: Dims, low: Dims,
) -> None:  # fmt: skip
    batch, channels, *_ = call.x
    outer, inner = (batch, channels) if call.channels_last else (batch * channels, 1)
    still = MOST_SPACE - len(sizes)
    numbers = [
        outer * inner * prod(wanted), *(1,) * still, *wanted, inner, *(1,) * still, *sizes,
        *(0,) * still, *low,
    ]  # fmt: skip
    # Places count from as far before the image as its margins reach.
    shifts = [size + abs(shift) for size, shift in zip(wanted, low, strict=True)]
    index, is_long = index_reaching(max(numbers[0], outer * inner * prod(sizes), *shifts))
    pointer = word_pointer(call.dtype.itemsize)
    arguments = [(pointer, source), (pointer, target), *[(index, number) for number in numbers]]
    constants = {"SIZE": call.dtype.itemsize, "LONG": is_long}
    schedule.for_each(copying.copy_shifted, arguments, numbers[0], constants)
