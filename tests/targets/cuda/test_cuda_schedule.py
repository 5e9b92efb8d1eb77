"""How kernels are spread over a GPU, the limits of vector variants, and the printed text."""

import os
import subprocess
import sys
from pathlib import Path

import cuda_zoo
import numpy as np
import pytest
from cuda_harness import ANY, IN, OUT, PARALLEL, REDUCE, UNIT, make

from gpuflow.kir.nodes import Mode, Operand
from gpuflow.targets.cuda.codegen.printing.point_printer import CudaPrintError
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda
from gpuflow.targets.cuda.codegen.schedules.launch_config import (
    full_blocks,
    launch_shape,
    may_launch,
    schedule_cuda,
    scratch_bytes,
)

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "strategy", "width"),
    [
        ("map", "point", 4),
        ("map_two_axes", "point", 4),
        ("row", "row", 4),
        ("row_tuple", "row", 4),
        ("column", "column", 1),
        ("column_first", "column", 1),
        ("column_between", "row", 4),
        ("full", "full", 4),
        ("loop", "point", 1),
        ("segments", "point", 1),
        ("full_segments", "full", 1),
        ("no_axes", "point", 1),
    ],
)
def test_strategy_and_width(name, strategy, width):
    """batch_center is contiguous along its reduction, so its threads go there, as in a row."""
    launch = schedule_cuda(cuda_zoo.zoo()[name], vectorize=True)
    assert (launch.strategy, launch.vector_width) == (strategy, width)
    assert schedule_cuda(cuda_zoo.zoo()[name], vectorize=False).vector_width == 1


def shape(name, processors=10, **extents):
    launch = schedule_cuda(cuda_zoo.zoo()[name], vectorize=True)
    (columns, rows), block = launch_shape(launch, extents, processors)
    assert rows == 1
    return columns, block


def test_launch_shapes():
    assert shape("map", i0=0) == (0, (256, 1))
    assert shape("map", i0=1024) == (1, (256, 1))
    assert shape("map", i0=1025) == (2, (256, 1))
    assert shape("map", i0=10**9) == (160, (256, 1))  # 16 blocks for each processor
    # Points with loops of their own: each has a thread, and small blocks use many processors.
    assert shape("loop", i0=3000) == (47, (64, 1))
    assert shape("loop", i0=10**9) == (640, (64, 1))
    assert shape("row", i0=100, i1=512) == (13, (32, 8))  # 4 vectors of 4 for each thread
    assert shape("row", i0=100, i1=1024) == (100, (64, 1))
    assert shape("row", i0=10**6, i1=1024) == (640, (64, 1))  # as many threads as of 256
    assert shape("row", i0=100, i1=1028) == (100, (96, 1))
    assert shape("row", i0=100, i1=8192) == (100, (512, 1))
    assert shape("row", i0=100, i1=10**6) == (100, (512, 1))  # read again for every phase
    assert shape("row_in_place", i0=100, i1=1024) == (13, (32, 8))  # nothing stays in registers
    assert shape("row_in_place", i0=100, i1=1025) == (100, (256, 1))
    assert shape("row_in_place", i0=100, i1=10**6) == (100, (512, 1))
    assert shape("column", row=100, column=70) == (3, (32, 8))
    assert shape("column", row=5000, column=70) == (3, (32, 32))
    assert shape("full", i0=0) == (1, (256, 1))
    assert shape("full", i0=10**9) == (80, (256, 1))  # 8 blocks for each processor
    assert shape("no_axes") == (1, (1, 1))
    launch = schedule_cuda(cuda_zoo.zoo()["segments"], vectorize=True)
    assert launch_shape(launch, {}, 10, segment_points=513)[0] == (3, 1)
    launch = schedule_cuda(cuda_zoo.zoo()["full_segments"], vectorize=True)
    blocks = [full_blocks(members, 10) for members in (0, 1, 2048, 2049, 10**9)]
    assert blocks == [1, 1, 1, 2, 80]
    assert launch_shape(launch, {}, 10, segment_points=sum(blocks)) == ((85, 1), (256, 1))
    full = schedule_cuda(cuda_zoo.zoo()["full"], vectorize=True)
    assert scratch_bytes(full, (20, 1)) == 8 * 2 * 20


def test_threads_of_a_block_are_whole_warps_within_the_bounds():
    for kernel in cuda_zoo.zoo().values():
        launch = schedule_cuda(kernel, vectorize=True)
        for extent in (1, 100, 10**4, 10**7):
            extents = {axis.name: extent for axis in kernel.axes}
            _, (x, y) = launch_shape(launch, extents, 10)
            assert x * y <= launch.max_threads
            assert (x * y) % 32 == 0 or not kernel.axes


def test_what_a_vector_variant_must_be_given():
    kernel = cuda_zoo.zoo()["map_two_axes"]
    launch = schedule_cuda(kernel, vectorize=True)
    assert launch.vector_operands == ("x", "bias", "o", "positive")
    addresses = {"x": 8, "row": 4, "bias": 16, "o": 24, "positive": 4}
    extents = {"i0": 3, "i1": 8}
    strides = {("x", "i0"): 8, ("o", "i0"): 12, ("positive", "i0"): 8, ("row", "i0"): 1}
    assert may_launch(launch, kernel, addresses, extents, strides)
    assert not may_launch(launch, kernel, addresses | {"bias": 8}, extents, strides)
    assert not may_launch(launch, kernel, addresses | {"positive": 2}, extents, strides)
    assert not may_launch(launch, kernel, addresses, extents | {"i1": 6}, strides)
    assert not may_launch(launch, kernel, addresses, extents, strides | {("o", "i0"): 10})
    scalar = schedule_cuda(kernel, vectorize=False)
    assert may_launch(scalar, kernel, addresses | {"bias": 4}, {"i0": 3, "i1": 7}, strides)


def test_what_vectors_of_rows_must_be_given():
    kernel = cuda_zoo.zoo()["row"]
    launch = schedule_cuda(kernel, vectorize=True)
    operands = launch.vector_operands, launch.register_operands
    assert (*operands, launch.register_vectors) == (("x", "o"), ("x",), 4)
    strides = {("x", "i0"): 12, ("o", "i0"): 8}
    assert may_launch(launch, kernel, {"x": 16, "o": 32}, {"i0": 3, "i1": 8}, strides)
    assert not may_launch(launch, kernel, {"x": 8, "o": 32}, {"i0": 3, "i1": 8}, strides)
    assert not may_launch(launch, kernel, {"x": 16, "o": 32}, {"i0": 3, "i1": 7}, strides)
    odd = strides | {("x", "i0"): 9}
    assert not may_launch(launch, kernel, {"x": 16, "o": 32}, {"i0": 3, "i1": 8}, odd)
    full = cuda_zoo.zoo()["full"]
    launch = schedule_cuda(full, vectorize=True)
    addresses = {"x": 16, "square": 32}
    assert launch.register_vectors == 0 and may_launch(launch, full, addresses, {"i0": 8}, {})
    assert not may_launch(launch, full, addresses, {"i0": 9}, {})
    between = schedule_cuda(cuda_zoo.zoo()["column_between"], vectorize=True)
    assert (between.register_operands, between.register_vectors) == (("x",), 4)


def test_an_operand_that_is_read_after_it_was_written_is_not_vectorized():
    operands = [Operand("x", "float32", Mode.INOUT, (UNIT,)), Operand("o", "float32", OUT, (UNIT,))]

    def body(b):
        with b.for_axis("i0"):
            b.store("x", b.apply("exp", b.load("x")))
            b.store("o", b.load("x"))

    kernel = make("again", {"i0": PARALLEL}, operands, body)
    assert schedule_cuda(kernel, vectorize=True).vector_width == 1


_GOLDEN = [
    "map",
    "map_two_axes",
    "row",
    "column",
    "column_between",
    "full",
    "segments",
    "full_segments",
]


@pytest.mark.parametrize("name", _GOLDEN)
def test_golden_text(name):
    """The printed module, as a person reads it; it is also what the kernel cache stores.

    Where a change is meant, write ``print_cuda(kernel).text`` to the file.
    """
    text = print_cuda(cuda_zoo.zoo()[name]).text
    assert text == (GOLDEN / f"cuda_{name}.py.txt").read_text()


_TWO_ROWS = """
import gpuflow as gf
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda
rows = [gf.ShapeDtypeStruct((64, 300), "float32")] * 2
plan, _ = compile_plan(gf.make_jaxpr(lambda x, y: gf.nn.softmax(x * y))(*rows))
print(*[print_cuda(call.kernel).text for step in plan.steps for call in step.calls])
"""


def test_a_text_is_the_same_in_each_process():
    """Two operands stay in registers; which is loaded first was up to hashes of their names."""

    def text(seed):
        run = subprocess.run(
            [sys.executable, "-c", _TWO_ROWS],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
        )
        return run.stdout

    assert "x0_kept_0" in text(1)
    assert len({text(seed) for seed in range(1, 5)}) == 1


def test_names_of_operands_hide_nothing():
    operands = [
        Operand("cuda", "float32", IN, (UNIT,)),
        Operand("maximum", "float32", Mode.SCALAR),
        Operand("t0", "float32", OUT, (UNIT,)),
    ]

    def body(b):
        with b.for_axis("i0"):
            b.store("t0", b.apply("max", b.load("cuda"), b.load("maximum")))

    source = print_cuda(make("names", {"i0": PARALLEL}, operands, body))
    assert "def names(cuda_, maximum_, t0_, n_i0):" in source.text
    assert source.signature == ("*float32", "float32", "*float32", "int64")


def test_names_of_operands_are_not_those_of_axes():
    operands = [Operand("i0", "float32", IN, (UNIT,)), Operand("o", "float32", OUT, (UNIT,))]

    def body(b):
        with b.for_axis("i0"):
            b.store("o", b.load("i0"))

    assert (
        "def axes(i0_, o, n_i0):" in print_cuda(make("axes", {"i0": PARALLEL}, operands, body)).text
    )


def test_parameters_have_the_types_of_their_words():
    operands = [
        Operand("x", "float8_e5m2", IN, (ANY,)),
        Operand("p", "int64", Mode.INDEX, (ANY,)),
        Operand("s", "float16", Mode.SCALAR),
        Operand("o", "bool", OUT, (ANY,)),
    ]

    def body(b):
        with b.for_axis("i0"):
            wide = b.apply("add", b.load("x"), b.load("s"))
            b.store("o", b.apply("gt", wide, b.cast(b.load("p"), "float32")))

    kernel = make("words", {"i0": PARALLEL}, operands, body, index_bits=32)
    expected = ("*uint8", "int64", "uint16", "*uint8", "int32", "int32", "int32", "int32")
    assert print_cuda(kernel).signature == expected


def test_a_full_reduction_that_is_used_over_its_own_axes_is_refused():
    operands = [Operand("x", "float32", IN, (UNIT,)), Operand("o", "float32", OUT, (UNIT,))]

    def body(b):
        total = b.reduce("i0", b.const("float32", 0.0), "add", lambda: b.load("x"))
        with b.for_axis("i0"):
            b.store("o", b.apply("sub", b.load("x"), total))

    kernel = make("center", {"i0": REDUCE}, operands, body, kind="full")
    with pytest.raises(CudaPrintError, match=r"\[cuda\] the result of a full reduction must"):
        print_cuda(kernel)


def test_loops_over_different_points_are_refused():
    operands = [Operand(n, "float32", OUT, (ANY, UNIT)) for n in "xy"]
    operands[1] = Operand("y", "float32", OUT, (ANY, UNIT))

    def body(b):
        zero = b.const("float32", 0.0)
        with b.for_axis("i0"), b.for_axis("i1"):
            b.store("x", zero)
        with b.for_axis("i1"):
            b.store("y", zero)

    kernel = make("different", {"i0": PARALLEL, "i1": PARALLEL}, operands, body)
    with pytest.raises(CudaPrintError, match=r"must have the axes \['i0', 'i1'\]; got \['i1'\]"):
        print_cuda(kernel)


def test_two_vector_loops_that_differ_are_refused():
    operands = [Operand(n, "float32", OUT, (UNIT,)) for n in "xy"]

    def body(b):
        zero, one = b.const("float32", 0.0), b.const("float32", 1.0)
        with b.for_axis("i0"):
            b.store("x", zero)
        with b.for_axis("i0"):
            b.store("y", one)

    kernel = make("two_loops", {"i0": PARALLEL}, operands, body)
    with pytest.raises(CudaPrintError, match="must have one loop over points to use vectors"):
        print_cuda(kernel)
    assert np.size(print_cuda(kernel, vectorize=False).signature) == 3
