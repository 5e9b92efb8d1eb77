"""The functions that printed CUDA source calls, in small hand-written kernels."""

import re

import numpy as np
import pytest
from cuda_harness import aligned, requires_cuda_tools
from ptx_launch import launch_ptx

from gpuflow.kir.reference import threefry2x32
from gpuflow.targets.cuda.codegen.build import build_cuda

pytestmark = requires_cuda_tools

COPY = """
import numpy as np

def copy(x, y, o, n):
    i = np.int64(cuda.threadIdx.x) * {width}
    if i < n:
        a = load_vector{readonly}(x, i, {width})
        b = load_vector(y, i, {width})
        store_vector(o, i, ({items}))
"""

VECTORS = [
    ("float32", 4, "v4.f32"),
    ("int32", 4, "v4.u32"),
    ("float64", 2, "v2.f64"),
    ("int64", 2, "v2.u64"),
    ("uint16", 8, "v4.u32"),
    ("uint8", 16, "v4.u32"),
    ("uint16", 4, "v2.u32"),
    ("uint8", 4, "u32"),
    ("uint8", 2, "u16"),
]


@pytest.mark.parametrize(("dtype", "width", "access"), VECTORS)
@pytest.mark.parametrize("readonly", ["", "_readonly"])
def test_vectors_of_every_width_are_one_access(dtype, width, access, readonly):
    """Lanes keep their order, also those that travel packed in 32-bit words."""
    items = ", ".join(f"a[{lane}] if b[{lane}] else b[{lane}]" for lane in range(width))
    source = COPY.format(width=width, readonly=readonly, items=items)
    pointer = f"*{dtype}"
    built = build_cuda(source, "copy", (pointer, pointer, pointer, "int64"), (9, 0))
    hint = r"\.nc" if readonly else ""
    assert re.search(rf"ld\.global{hint}\.{access}\s", built.ptx), built.ptx
    assert len(re.findall(rf"st\.global\.{access}\s", built.ptx)) == 1
    assert not re.search(r"(ld|st)\.global(\.nc)?\.[us]8", built.ptx)
    count = 7 * width
    x = aligned(np.arange(1, count + 1).astype(dtype))
    y = aligned(np.ones(count, dtype))
    y[::3] = 0
    o = aligned(np.zeros(count, dtype))
    launch_ptx(built.ptx, (1,), (32,), [x, y, o, count])
    np.testing.assert_array_equal(o, np.where(y != 0, x, y))


def test_shuffles_of_every_width():
    dtypes = ["float32", "float64", "int8", "uint16", "int64"]
    parameters = ", ".join(f"x{n}, o{n}" for n in range(len(dtypes)))
    lines = ["import numpy as np", f"def exchange({parameters}):", "    i = cuda.threadIdx.x"]
    lines += [f"    o{n}[i] = shuffle_xor(x{n}[i], 5)" for n in range(len(dtypes))]
    signature = [f"*{dtype}" for dtype in dtypes for _ in "xo"]
    built = build_cuda("\n".join(lines), "exchange", signature, (9, 0))
    assert len(re.findall(r"shfl\.sync\.bfly", built.ptx)) == 3 + 2 * 2
    arrays = []
    for dtype in dtypes:
        big = 1e300 if dtype == "float64" else 2**40 if dtype == "int64" else 1
        x = (np.arange(64) - (20 if dtype[0] != "u" else 0)).astype(dtype) * np.array(big, dtype)
        arrays += [x, np.zeros(64, dtype)]
    launch_ptx(built.ptx, (1,), (64,), arrays)
    for x, o in zip(arrays[::2], arrays[1::2], strict=True):
        np.testing.assert_array_equal(o, x[np.arange(64) ^ 5])


def test_shared_memory_and_barrier():
    """Without the barrier the interpreter reports a race, so that it would be seen."""
    source = """
import numpy as np

def reverse(x, o):
    kept = shared_array(np.float64, 64)
    i = cuda.threadIdx.x
    kept[i] = x[i]
    barrier()
    o[i] = kept[63 - i]
"""
    built = build_cuda(source, "reverse", ("*float64", "*float64"), (9, 0))
    assert built.shared_bytes == 512 and "bar.sync" in built.ptx
    x, o = np.arange(64.0), np.zeros(64)
    launch_ptx(built.ptx, (2,), (64,), [x, o])
    np.testing.assert_array_equal(o, x[::-1])


def test_the_last_block_is_told_once_and_the_counter_wraps():
    source = """
import numpy as np

def count(counter, o):
    o[cuda.blockIdx.x] = count_block_done(counter, np.uint32(cuda.gridDim.x - 1))
"""
    built = build_cuda(source, "count", ("*uint32", "*uint32"), (9, 0))
    assert "atom.global.acq_rel.gpu.inc.u32" in built.ptx
    counter, o = np.zeros(1, np.uint32), np.zeros(5, np.uint32)
    for _ in range(2):
        launch_ptx(built.ptx, (5,), (1,), [counter, o])
        assert sorted(o) == [0, 1, 2, 3, 4] and counter[0] == 0


def test_threefry_matches_its_definition():
    source = """
import numpy as np

def bits(k0, k1, x0, x1, o0, o1):
    i = cuda.threadIdx.x
    o0[i], o1[i] = threefry2x32(k0[i], k1[i], x0[i], x1[i])
"""
    built = build_cuda(source, "bits", ["*uint32"] * 6, (9, 0))
    words = np.random.default_rng(0).integers(0, 2**32, (4, 64), dtype=np.uint32)
    # Random123's known answers for all zeros and all ones.
    words[:, 0], words[:, 1] = 0, 0xFFFFFFFF
    found = np.zeros((2, 64), np.uint32)
    launch_ptx(built.ptx, (1,), (64,), [*words, found[0], found[1]])
    np.testing.assert_array_equal(found, threefry2x32(*words))
    assert [hex(v) for v in found[:, 0]] == ["0x6b200159", "0x99ba4efe"]
    assert [hex(v) for v in found[:, 1]] == ["0x1cb996fc", "0xbb002be7"]
