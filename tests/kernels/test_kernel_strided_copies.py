"""Copies of views: every form against NumPy, what is launched for which view, and its code."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools, sass
from schedule_run import run_schedule

from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.core.views import View
from gpuflow.targets.cuda.codegen.handwritten import build_handwritten
from gpuflow.targets.cuda.library import copy_launches
from gpuflow.targets.cuda.library.copy_launches import copy_launch
from gpuflow.targets.cuda.library.launch_sequence import ArrayLocation, LaunchSequence, uint_pointer

DTYPES = ["uint8", "uint16", "uint32", "uint64", "complex128"]
# What is taken of an array of (4, 40, 48) elements.
VIEWS = {
    "vectors of rows": lambda x: x[:, 3:35, 16:],
    "vectors at odd places": lambda x: x[:, 3:35, 1:33],
    "rows of odd length": lambda x: x[1:, 1:, 1:],
    "short vectors": lambda x: x[:, :, 4:44],
    "steps": lambda x: x[::2, ::3, ::5],
    "steps of whole rows": lambda x: x[::2, ::3],
    "one row backwards": lambda x: x.reshape(-1)[::-1],
    "backwards": lambda x: x[::-1, :, ::-1],
    "one number": lambda x: x[2:3, 4:5, 5:6],
    "one repeated": lambda x: np.broadcast_to(x[0, 0, :1], (37, 300)),
    "columns repeated": lambda x: np.broadcast_to(x[0, :, 3][:, None], (40, 200)),
    "turned": lambda x: x[0].T,
    "turned planes": lambda x: x.transpose(2, 0, 1),
    "turned parts": lambda x: x.transpose(0, 2, 1)[:, 5:, 2:],
    "rows in another order": lambda x: x.transpose(1, 0, 2),
    "four dimensions": lambda x: x.reshape(4, 5, 8, 48)[:, ::2, ::-1, 5:].transpose(2, 0, 1, 3),
    "thin columns": lambda x: x.transpose(2, 1, 0)[:, :, :3],
}


def view_of(name, dtype):
    """An array, and what NumPy takes of it as a view."""
    size = np.dtype(dtype).itemsize
    numbers = np.random.default_rng(5).integers(0, 256, (4, 40, 48 * size), np.uint8)
    x = numbers.view(dtype)
    part = VIEWS[name](x)
    offset = (part.__array_interface__["data"][0] - x.__array_interface__["data"][0]) // size
    strides = tuple(stride // size for stride in part.strides)
    broadcast = tuple(stride == 0 and n > 1 for stride, n in zip(strides, part.shape, strict=True))
    return x, part, View(part.shape, strides, offset, broadcast)


def check_copy(name, dtype):
    x, part, view = view_of(name, dtype)
    sequence = LaunchSequence(2)
    source = ArrayLocation(0, view.offset * x.itemsize)
    sequence.copy(source, ArrayLocation(1), view, np.dtype(dtype))
    got = run_schedule(sequence, [x, np.zeros(part.shape, dtype)])[1]
    np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(part).view(np.uint8))


@requires_cuda_tools
@pytest.mark.parametrize("name", VIEWS)
def test_values(name):
    check_copy(name, "uint32")


@requires_cuda_tools
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["vectors of rows", "four dimensions", "turned parts"])
def test_values_of_other_sizes(name, dtype):
    check_copy(name, dtype)


@requires_cuda_tools
@pytest.mark.parametrize("name", ["vectors of rows", "four dimensions"])
def test_values_with_64_bits(name, monkeypatch):
    monkeypatch.setattr(copy_launches, "_MAX_INDEX", 0)
    assert copy_launch(view_of(name, "uint32")[2], 4).index_type == "int64"
    check_copy(name, "uint32")


def form(shape, strides, itemsize=4):
    return copy_launch(View(shape, strides, 0, (False,) * len(shape)), itemsize)


def test_what_is_launched():
    """A slice moves vectors; in rows of 2049 a thread moves 4 numbers one by one."""
    vectors = form((4096, 2048), (4096, 1))
    assert vectors.constants == {"SIZE": 4, "EACH": 4, "VECTORS": 1, "DIMS": 2, "LONG": 0}
    assert vectors.unaligned_constants == {**vectors.constants, "VECTORS": 0}
    assert (vectors.grid, vectors.threads) == ((2, 4096, 1), 256)
    odd = form((4096, 2049), (4096, 1))
    assert (odd.constants["VECTORS"], odd.constants["EACH"], odd.unaligned_constants) == (
        0,
        4,
        None,
    )
    assert odd.grid == (3, 4096, 1)
    # Short rows: a block has several, all threads busy.
    short = form((1 << 20, 8), (17, 2))
    assert short.grid == (1, 1 << 15, 1) and short.scalars[0] == 3
    assert form((1 << 20, 8), (16, 1)).scalars[0] == 1  # two vectors
    assert form((1 << 22, 2), (5, 2)).grid == (1, 1 << 15, 1)
    # bfloat16 in rows that 16 bytes do not divide, but 8 and 4 do.
    assert [form((9, n), (4096, 1), 2).constants["EACH"] for n in (128, 132, 130, 129)] == [
        8,
        4,
        2,
        4,
    ]
    assert form((9, 130), (4096, 1), 2).constants["VECTORS"] == 1
    assert form((9, 129), (4096, 1), 2).constants["VECTORS"] == 0
    tiles = form((4096, 2048), (1, 4096))
    assert tiles.kernel.__name__ == "copy_transposed" and tiles.grid == (64 * 32, 1, 1)
    assert form((4096, 15), (1, 4096)).kernel.__name__ == "copy_strided"
    assert form((4096, 4096), (1, 0)).kernel.__name__ == "copy_strided"  # one number for each row


@pytest.mark.parametrize("count", [2**30, 2**31 - 2**24, 2**31 - 2**24 + 1, 2**33])
def test_the_width_of_indices(count):
    fits = count <= 2**31 - 2**24
    assert form((count,), (1,), 1).index_type == ("int32" if fits else "int64")
    # Steps count as well as elements.
    even = -(-count // 1024)
    assert form((even,), (1024,)).index_type == ("int32" if fits else "int64")
    assert form((even,), (-1024,)).index_type == ("int32" if fits else "int64")


def test_no_launch_counts_further_past_the_end():
    for shape in [(2**25, 3), (3, 2**25 - 1), (2**20 + 1, 33), (2**26 - 1,), (5, 2**12 + 1, 129)]:
        one = form(shape, tuple(2 * n for n in copy_launches.row_major_strides(shape)))
        bits, rows, *_, last = one.scalars[: copy_launches.MAX_DIMS + 1]
        x, y, z = one.grid
        assert 0 <= y * z * (one.threads >> bits) - rows < 2**24
        assert 0 <= (x * one.constants["EACH"] << bits) - last < 2**24
        assert z < 2**16


@requires_cuda_tools
@pytest.mark.parametrize("name", ["vectors of rows", "rows of odd length", "steps", "turned"])
def test_machine_code(name, tmp_path):
    """No 64-bit division, and none at all in two dimensions; vectors are 128 bits."""
    one = copy_launch(view_of(name, "uint32")[2], 4)
    signature = (*[uint_pointer(4)] * 2, *[one.index_type] * len(one.scalars))
    kernel = build_handwritten(
        one.kernel, signature, one.constants, one.threads, KernelCache(tmp_path), (9, 0)
    )
    lines = sass(kernel.built.cubin)
    assert not [line for line in lines if "CALL" in line or "I2F.U64" in line or "I2F.S64" in line]
    wide = [line for line in lines if "LDG.E.128" in line or "STG.E.128" in line]
    assert len(wide) == (2 if name == "vectors of rows" else 0)
    assert kernel.built.spill_bytes == 0
