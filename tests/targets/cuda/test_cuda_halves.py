"""How CUDA kernels round to 16 bits: every bit, and with which instructions."""

import ml_dtypes
import numpy as np
import pytest
from cuda_harness import ARCHITECTURES, PARALLEL, UNIT, aligned, build, make, requires_cuda_tools
from cuda_tools import sass
from ptx_launch import launch_ptx

from gpuflow.kir.nodes import Mode, Operand
from gpuflow.targets.cuda.codegen.build import build_cuda

pytestmark = requires_cuda_tools

ROUND = """
import numpy as np

def narrow(x, bits, whole, n):
    i = np.int64(cuda.blockIdx.x) * np.int64(cuda.blockDim.x) + np.int64(cuda.threadIdx.x)
    if i < n:
        bits[i] = float32_to_{storage}(x[i])
        whole[i] = {rounded}
"""
STORAGES = {
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), "round_to_bfloat16(x[i])"),
    "float16": (np.dtype(np.float16), "float16_to_float32(float32_to_float16(x[i]))"),
}


def patterns():
    """The float32 about which a rounding can err.

    Every sign and exponent, with fractions that are at, beside and between the borders of what 7
    or 10 bits hold, even and odd, and with the carries that run into the exponent; then any bits.
    """
    kept = [0, 1, 2, 3, 0x3E, 0x3F, 0x40, 0x55, 0x7E, 0x7F]
    rest = [0, 1, 2, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xEFFF,
            0xF000, 0xF001, 0xFFFF]  # fmt: skip
    fractions = [a << 16 | b for a in kept for b in rest]
    tops = np.arange(512, dtype=np.uint32) << 23
    grid = (tops[:, None] | np.array(fractions, np.uint32)).reshape(-1)
    # float16 has denormals, whose last bit moves along: each power of 2 and beside it.
    powers = (np.arange(0x600, 0xA00, dtype=np.uint32) << 19)[:, None]
    near = (powers + np.array([0, 1, 0xFFFFFFFF], np.uint32)).reshape(-1)
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 15, dtype=np.uint32)
    return np.concatenate([grid, near, random]).view(np.float32)


@pytest.mark.parametrize("storage", STORAGES)
def test_every_rounding_is_to_nearest_even(storage):
    dtype, rounded = STORAGES[storage]
    source = ROUND.format(storage=storage, rounded=rounded)
    built = build_cuda(source, "narrow", ("*float32", "*uint16", "*float32", "int64"), (9, 0))
    x = aligned(patterns())
    bits, whole = aligned(np.zeros(x.size, np.uint16)), aligned(np.zeros(x.size, np.float32))
    launch_ptx(built.ptx, (-(-x.size // 256),), (256,), [x, bits, whole, x.size])
    with np.errstate(all="ignore"):
        want = x.astype(dtype)  # by ml_dtypes and NumPy, to nearest even
    is_nan = np.isnan(x)
    assert is_nan.sum() > 100
    np.testing.assert_array_equal(bits[~is_nan], want.view(np.uint16)[~is_nan])
    np.testing.assert_array_equal(
        whole.view(np.uint32)[~is_nan], want.astype(np.float32).view(np.uint32)[~is_nan]
    )
    # Which nan is CUDA's to choose: it keeps neither sign nor payload.
    assert np.isnan(bits[is_nan].view(dtype).astype(np.float32)).all()
    assert np.isnan(whole[is_nan]).all()


def chain(storage, rounds):
    """x, y -> x * y + x, three times, rounded each time if asked; stored in 16 bits."""

    def body(b):
        with b.for_axis("i0"):
            x, y = b.load("x"), b.load("y")
            for _ in range(3):
                x = b.apply("mul", x, y)
                x = b.round(x, storage) if rounds else x
                x = b.apply("add", x, y)
                x = b.round(x, storage) if rounds else x
            b.store("o", b.unrounded(x, storage))

    operands = [
        Operand(name, storage, mode, (UNIT,))
        for name, mode in (("x", Mode.IN), ("y", Mode.IN), ("o", Mode.OUT))
    ]
    return make("map_chain", {"i0": PARALLEL}, operands, body)


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("storage", STORAGES)
def test_no_conversion_takes_the_slow_unit(storage, architecture, vectorize):
    """F2F has few units, and stood in every rounding of a single number."""
    _, built = build(chain(storage, True), vectorize, architecture)
    found = sass(built.cubin)
    slow = [line for line in found if line.split()[0].startswith("F2F.")]
    assert not slow, slow
    paired = [line for line in found if "F2FP" in line]
    assert len(paired) >= 6 * (8 if vectorize else 1)
