"""Kernels of every kind for CUDA: what their PTX computes in an interpreter, and how they link.

No GPU takes part. The interpreter does not model the rounding of approximate instructions (exp2,
reciprocal square root), so tolerances of transcendental functions are those of libdevice on it.
"""

import re
from dataclasses import replace

import cuda_zoo
import numpy as np
import pytest
from cuda_harness import (
    ANY,
    ARCHITECTURES,
    IN,
    INOUT,
    OUT,
    PARALLEL,
    PROCESSORS,
    REDUCE,
    ROW,
    UNIT,
    ZERO,
    aligned,
    build,
    check,
    make,
    random_array,
    requires_cuda_tools,
    run_cuda,
)
from ptx_launch import launch_ptx

from gpuflow.kir.interpret import interpret_segments, storage_dtype
from gpuflow.kir.nodes import Mode, Operand, arguments
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda
from gpuflow.targets.cuda.codegen.schedules.launch_config import (
    full_blocks,
    launch_shape,
    scratch_bytes,
)
from ptxsim.faults import PtxError

pytestmark = requires_cuda_tools
AWKWARD = [0, 1, 3, 31, 33, 257, 1031]


@pytest.mark.parametrize("name", cuda_zoo.zoo())
def test_every_kind_links_for_every_architecture(name):
    """Without spills, without calls of what is not there, and float32 stays float32."""
    kernel = cuda_zoo.zoo()[name]
    for architecture in ARCHITECTURES:
        _, built = build(kernel, True, architecture)
        assert built.cubin.startswith(b"\x7fELF")
        assert built.spill_bytes == 0
        assert 0 < built.registers <= 128  # 512 threads then fit a multiprocessor
        assert ".extern" not in built.ptx
        # Device functions are written for brevity; they must all be inlined.
        assert not re.search(r"\bcall\b", built.ptx)
        assert not re.search(r"\.f64\b", built.ptx)


def test_vector_accesses_are_128_bits_wide_where_the_text_says_so():
    _, built = build(cuda_zoo.scaled_tanh(), True, (9, 0))
    assert len(re.findall(r"ld\.global\.nc\.v4\.f32", built.ptx)) == 2
    assert len(re.findall(r"st\.global\.v4\.f32", built.ptx)) == 1
    _, scalar = build(cuda_zoo.scaled_tanh(), False, (9, 0))
    assert ".v4" not in scalar.ptx


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("index_bits", [32, 64])
def test_map_with_a_tail(architecture, index_bits):
    kernel = cuda_zoo.scaled_tanh(index_bits=index_bits)
    for n in AWKWARD:
        x, y = random_array(n, "float32", n), random_array(n, "float32", n + 1)
        arrays = {"x": x, "y": y, "o": np.zeros(n, np.float32)}
        for vectorize in (False, True):
            run_cuda(kernel, arrays, {"i0": n}, None, vectorize, architecture)
        np.testing.assert_allclose(arrays["o"], np.tanh(x * y) + x / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_map_of_other_floats(dtype):
    for n in AWKWARD[1:5]:
        x, y = random_array(n, dtype, n), random_array(n, dtype, n + 1)
        arrays = {"x": x, "y": y, "o": np.zeros(n, storage_dtype(dtype))}
        kernel = cuda_zoo.scaled_tanh(dtype)
        run_cuda(kernel, arrays, {"i0": n})
        wide = x.astype(np.float64), y.astype(np.float64)
        want = np.tanh(wide[0] * wide[1]) + wide[0] / 2
        tolerance = {"float64": 1e-14, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
        np.testing.assert_allclose(arrays["o"].astype(np.float64), want, rtol=tolerance, atol=1e-3)


@pytest.mark.parametrize("index_bits", [32, 64])
def test_map_over_two_axes_with_two_outputs(index_bits):
    kernel = cuda_zoo.bias_relu(index_bits)
    for rows, columns in [(1, 4), (5, 8), (37, 64), (3, 33), (0, 8), (2, 0)]:
        count = rows * columns
        arrays = {
            "x": random_array(count, "bfloat16", 1),
            "row": random_array(2 * rows, "float32", 2),
            "bias": random_array(columns, "float32", 3),
            "o": np.zeros(count, storage_dtype("bfloat16")),
            "positive": np.zeros(count, bool),
        }
        strides = {("x", "i0"): columns, ("o", "i0"): columns, ("positive", "i0"): columns}
        strides["row", "i0"] = 2
        check(kernel, arrays, {"i0": rows, "i1": columns}, strides)


def test_a_misaligned_pointer_takes_the_scalar_variant():
    """And the vector variant, launched all the same, would be caught."""
    kernel, n = cuda_zoo.scaled_tanh(), 64
    x = random_array(n + 1, "float32")
    arrays = {"x": (x, 1), "y": random_array(n, "float32"), "o": np.zeros(n, np.float32)}
    check(kernel, arrays, {"i0": n}, ulps=32)  # the sum may cancel
    _, built = build(kernel, True, (9, 0))
    shifted = (np.zeros(n + 4, np.float32), 1)
    with pytest.raises(PtxError, match="misaligned 16-byte access"):
        launch_ptx(built.ptx, (1,), (256,), [shifted, shifted, shifted, n])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "float16"])
def test_storage_dtypes_in_place_and_scalars(dtype):
    for stride, strides in ((UNIT, {}), (ANY, {("y", "i0"): 2})):
        operands = [Operand("y", dtype, INOUT, (stride,)), Operand("s", dtype, Mode.SCALAR)]

        def body(b):
            with b.for_axis("i0"):
                fn = "xor" if dtype == "bool" else "add"
                b.store("y", b.apply(fn, b.load("y"), b.load("s")))

        kernel = make("in_place", {"i0": PARALLEL}, operands, body)
        scalar = np.array(3 if dtype != "bool" else True).astype(storage_dtype(dtype))[()]
        for n in (1, 35, 300):
            check(kernel, {"y": random_array(2 * n, dtype), "s": scalar}, {"i0": n}, strides)


def test_three_axes_broadcast_reversal_gather_and_index():
    """o[i, j, k] = where(k odd, table[index[k]], -p) * x[i, -j, k], p the position."""
    operands = [
        Operand("x", "float32", IN, (ANY, ANY, UNIT)),
        Operand("p", "int64", Mode.INDEX, (ANY, ANY, UNIT)),
        Operand("index", "int32", IN, (ZERO, ZERO, UNIT)),
        Operand("table", "float32", IN, (ZERO, ZERO, ZERO)),
        Operand("o", "float32", OUT, (ANY, ANY, UNIT)),
    ]

    def body(b):
        with b.for_axis("i0"), b.for_axis("i1"), b.for_axis("i2"):
            p = b.load("p")
            odd = b.apply("ne", b.apply("and", p, b.const("int64", 1)), b.const("int64", 0))
            gathered = b.load("table", b.cast(b.load("index"), "int64"), odd)
            value = b.select(odd, gathered, b.apply("neg", b.cast(p, "float32")))
            b.store("o", b.apply("mul", value, b.load("x")))

    axes = {"i0": PARALLEL, "i1": PARALLEL, "i2": PARALLEL}
    for index_bits in (32, 64):
        kernel = make("three_axes", axes, operands, body, index_bits=index_bits)
        for a, n, c in [(3, 4, 8), (2, 7, 33), (1, 1, 4)]:
            arrays = {
                "x": (random_array(a * n * c, "float32"), (n - 1) * c),
                "p": 5,
                # An index that must not be read with: the mask is false at even positions.
                "index": np.where((np.arange(c) + 5) % 2, np.arange(c) % 9, 10**6).astype("i4"),
                "table": random_array(9, "float32", 1),
                "o": np.zeros(a * n * c, np.float32),
            }
            strides = {("x", "i0"): n * c, ("x", "i1"): -c, ("p", "i0"): 2 * n, ("p", "i1"): 2}
            strides |= {("o", "i0"): n * c, ("o", "i1"): c}
            check(kernel, arrays, {"i0": a, "i1": n, "i2": c}, strides)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("block", [None, (32, 8), (64, 1), (512, 1)])
def test_softmax_by_warps_and_by_blocks(architecture, block):
    kernel = cuda_zoo.softmax()
    for rows, columns in [(1, 1), (5, 31), (17, 100), (3, 1500), (0, 5)]:
        x = random_array((rows, columns), "float32", columns)
        arrays = {"x": x.reshape(-1), "o": np.zeros(x.size, np.float32)}
        strides = {("x", "i0"): columns, ("o", "i0"): columns}
        extents = {"i0": rows, "i1": columns}
        run_cuda(kernel, arrays, extents, strides, architecture=architecture, block=block)
        shifted = np.exp(x - x.max(1, keepdims=True)) if rows else x
        want = shifted / shifted.sum(1, keepdims=True)
        np.testing.assert_allclose(arrays["o"].reshape(x.shape), want, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("block", [None, (32, 8), (64, 1), (512, 1)])
@pytest.mark.parametrize("index_bits", [32, 64])
def test_rows_in_vectors(architecture, block, index_bits):
    """In registers, or read again where 4 vectors of 4 for each thread do not hold them."""
    kernel = cuda_zoo.softmax(index_bits=index_bits)
    assert "_kept_3" in build(kernel, True, architecture)[0].text
    for rows, columns in [(1, 4), (5, 36), (17, 512), (3, 516), (3, 1500), (2, 8200), (0, 8)]:
        pitch = columns + 4
        x = random_array((rows, pitch), "float32", columns)
        arrays = {"x": aligned(x), "o": aligned(np.zeros(rows * columns, np.float32))}
        strides = {("x", "i0"): pitch, ("o", "i0"): columns}
        extents = {"i0": rows, "i1": columns}
        run_cuda(kernel, arrays, extents, strides, architecture=architecture, block=block)
        seen = x[:, :columns]
        shifted = np.exp(seen - seen.max(1, keepdims=True)) if rows else seen
        want = shifted / shifted.sum(1, keepdims=True)
        np.testing.assert_allclose(arrays["o"].reshape(rows, columns), want, rtol=2e-6, atol=1e-9)


def test_rows_and_full_reductions_use_wide_accesses_only():
    """A row in registers is read once; several vectors of a full reduction are on their way."""
    row, full = (build(cuda_zoo.zoo()[name], True, (9, 0))[1].ptx for name in ("row", "full"))
    assert not re.search(r"(?:ld|st)\.global(?:\.nc)?\.f32", row)
    kept, phases = 4, 3
    assert len(re.findall(r"ld\.global\.nc\.v4\.f32", row)) == kept + phases
    assert len(re.findall(r"st\.global\.v4\.f32", row)) == kept + 1
    accesses = re.findall(r"(?:ld|st)\.global\S*|\bbra\b", full)
    wide = ["ld.global.nc.v4.f32"] * 4
    assert any(accesses[k : k + 4] == wide for k in range(len(accesses)))
    column = build(cuda_zoo.column_sum(), True, (9, 0))[1].ptx
    accesses = re.findall(r"(?:ld|st)\.global\S*|\bbra\b", column)
    four = ["ld.global.nc.f32"] * 4
    assert any(accesses[k : k + 4] == four for k in range(len(accesses)))


def test_what_is_written_in_place_is_not_read_through_the_read_only_cache():
    for kernel in (cuda_zoo.softmax(in_place=True), cuda_zoo.update_step()):
        source, built = build(kernel, True, (9, 0))
        written = next(o.name for o in kernel.operands if o.mode is INOUT)
        assert not re.search(rf"load_\w*readonly\({written}\b", source.text)
        assert re.search(r"ld\.global\.(v4\.)?f32", built.ptx)


@pytest.mark.parametrize("block", [(32, 8), (128, 1)])
def test_a_sum_that_writes_in_place_waits_for_earlier_reads(block):
    """As a loop that stores does: members may share an earlier phase in another way."""
    x = Operand("x", "float32", INOUT, (ANY, UNIT))
    operands = [x, Operand("o", "float32", OUT, (ANY, ZERO))]

    def body(b):
        with b.for_axis("i0"):
            zero = b.const("float32", 0.0)
            first = b.reduce("i1", zero, "max", lambda: b.load("x"))

            def less():
                rest = b.apply("sub", b.load("x"), first)
                b.store("x", rest)
                return rest

            b.store("o", b.reduce("i1", zero, "add", less))

    kernel = make("centered", {"i0": PARALLEL, "i1": ROW}, operands, body, kind="row")
    text = build(kernel, True, (9, 0))[0].text
    entry = text[text.index("def centered(") :]
    assert entry.index("row_combine") < entry.index("row_barrier()") < entry.index("store_vector")
    for columns in (64, 67):
        values = random_array((5, columns), "float32")
        arrays = {"x": values.reshape(-1).copy(), "o": np.zeros(5, np.float32)}
        strides = {("x", "i0"): columns, ("o", "i0"): 1}
        check(kernel, arrays, {"i0": 5, "i1": columns}, strides, ulps=2000, block=block)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "int8"])
def test_phases_of_other_widths(dtype):
    """Two operands that two phases read, one that the last phase reads alone, an index."""
    operands = [
        Operand("x", dtype, IN, (ANY, UNIT)),
        Operand("y", dtype, IN, (ANY, UNIT)),
        Operand("z", dtype, IN, (ZERO, UNIT)),
        Operand("p", "int64", Mode.INDEX, (ZERO, UNIT)),
        Operand("o", dtype, OUT, (ANY, UNIT)),
        Operand("odd", "bool", OUT, (ANY, UNIT)),
    ]
    compute = "float32" if dtype == "bfloat16" else dtype

    def body(b):
        with b.for_axis("i0"):
            zero = b.const(compute, 0)
            largest = b.reduce("i1", zero, "max", lambda: b.apply("add", b.load("x"), b.load("y")))
            with b.for_axis("i1"):
                rest = b.apply("sub", b.apply("sub", b.load("x"), b.load("y")), largest)
                b.store("o", b.apply("add", rest, b.load("z")))
                low = b.apply("and", b.load("p"), b.const("int64", 1))
                b.store("odd", b.apply("ne", low, b.const("int64", 0)))

    kernel = make("phases", {"i0": PARALLEL, "i1": ROW}, operands, body, kind="row")
    launch = build(kernel, True, (9, 0))[0].launch
    assert (launch.vector_width, launch.register_vectors) == {
        "bfloat16": (8, 2),
        "float64": (2, 2),
        "int8": (16, 1),
    }[dtype]
    for rows, columns in [(9, 48), (3, 32 * 50), (2, 32 * 600), (2, 33)]:
        count = rows * columns
        arrays = {n: random_array(count, dtype, k) for k, n in enumerate("xy")}
        arrays |= {"z": random_array(columns, dtype, 2), "p": 3}
        arrays |= {"o": np.zeros(count, storage_dtype(dtype)), "odd": np.zeros(count, bool)}
        strides = {(name, "i0"): columns for name in ("x", "y", "o", "odd")}
        check(kernel, arrays, {"i0": rows, "i1": columns}, strides)


def test_softmax_with_32_bit_indices():
    x = random_array((17, 100), "float32")
    arrays = {"x": x.reshape(-1), "o": np.zeros(x.size, np.float32)}
    strides = {("x", "i0"): 100, ("o", "i0"): 100}
    run_cuda(cuda_zoo.softmax(index_bits=32), arrays, {"i0": 17, "i1": 100}, strides)
    shifted = np.exp(x - x.max(1, keepdims=True))
    want = shifted / shifted.sum(1, keepdims=True)
    np.testing.assert_allclose(arrays["o"].reshape(x.shape), want, rtol=2e-6, atol=1e-9)


def test_softmax_in_place_and_with_nan_and_infinity():
    kernel, rows, columns = cuda_zoo.softmax(in_place=True), 9, 70
    x = random_array((rows, columns), "float32")
    x[3, 4], x[5, 6] = np.nan, -np.inf
    arrays = {"x": x.reshape(-1).copy()}
    run_cuda(kernel, arrays, {"i0": rows, "i1": columns}, {("x", "i0"): columns})
    found = arrays["x"].reshape(rows, columns)
    shifted = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, shifted / shifted.sum(1, keepdims=True), rtol=2e-6)
    assert np.isnan(found[3]).all() and found[5, 6] == 0


@pytest.mark.parametrize("block", [(32, 8), (128, 1)])
def test_argmax_takes_the_first_of_equals(block):
    kernel, rows, columns = cuda_zoo.row_argmax(), 11, 300
    x = np.round(random_array((rows, columns), "float32"))
    arrays = {
        "x": x.reshape(-1),
        "position": 0,
        "largest": np.zeros(rows, np.float32),
        "place": np.zeros(rows, np.int32),
    }
    strides = {("x", "i0"): columns, ("largest", "i0"): 1, ("place", "i0"): 1}
    run_cuda(kernel, arrays, {"i0": rows, "i1": columns}, strides, block=block)
    np.testing.assert_array_equal(arrays["largest"], x.max(1))
    np.testing.assert_array_equal(arrays["place"], x.argmax(1))


COMBINATIONS = [
    ("and", "bool"),
    ("min", "uint8"),
    ("add", "int32"),
    ("mul", "float32"),
    ("max", "int64"),
    ("add", "float64"),
]


@pytest.mark.parametrize("kind", ["row", "column", "full"])
def test_combinations_of_every_width(kind):
    """Scalar functions that combine, on 1- to 64-bit types, in one kernel per kind."""
    neutral = {"add": 0, "mul": 1, "or": 0, "xor": 0}

    def start(b, fn, dtype):
        if dtype == "bool":
            return b.const(dtype, fn == "and")
        if fn == "and":
            return b.const(dtype, -1 if dtype[0] == "i" else int(np.iinfo(dtype).max))
        if fn in ("max", "min"):
            lowest = float("-inf") if dtype[0] == "f" else int(np.iinfo(dtype).min)
            highest = float("inf") if dtype[0] == "f" else int(np.iinfo(dtype).max)
            return b.const(dtype, lowest if fn == "max" else highest)
        return b.const(dtype, neutral[fn])

    point, members = (), {"i1": REDUCE}
    if kind != "full":
        point, members = (ANY,), {"i1": ROW if kind == "row" else REDUCE}
    axes = ({"i0": PARALLEL} if point else {}) | members
    # In a column kernel neighboring points are neighbors in memory.
    inner = ANY if kind == "column" else UNIT
    operands = []
    for number, (_, dtype) in enumerate(COMBINATIONS):
        operands.append(Operand(f"x{number}", dtype, IN, (*point, inner)))
        operands.append(Operand(f"o{number}", dtype, OUT, (*point, ZERO)))

    def results(b):
        for number, (fn, dtype) in enumerate(COMBINATIONS):
            init = start(b, fn, dtype)
            load = lambda number=number: b.load(f"x{number}")  # noqa: E731
            b.store(f"o{number}", b.reduce("i1", init, fn, load))

    def body(b):
        if point:
            with b.for_axis("i0"):
                results(b)
        else:
            results(b)

    kernel = make(f"combine_{kind}", axes, operands, body, kind=kind)
    points, count = (3, 97) if point else (1, 5000)
    arrays, strides = {}, {}
    for number, (_, dtype) in enumerate(COMBINATIONS):
        x = random_array(points * count, dtype, number)
        arrays[f"x{number}"] = np.exp2(np.round(x)).astype(dtype) if dtype == "float32" else x
        arrays[f"o{number}"] = np.zeros(points, dtype)
        if kind == "row":
            strides[f"x{number}", "i0"] = count
        elif kind == "column":
            strides |= {(f"x{number}", "i0"): 1, (f"x{number}", "i1"): points}
        strides[f"o{number}", "i0"] = 1
    # Products of powers of two are exact, sums of float64 differ in order.
    check(kernel, arrays, {"i0": points, "i1": count}, strides, ulps=2000)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("role_last", [True, False])
def test_column_sum(architecture, role_last):
    kernel = cuda_zoo.column_sum(role_last)
    for rows, columns in [(1, 1), (7, 33), (77, 70), (1100, 3), (0, 5), (5, 0)]:
        x = random_array((rows, columns), "float32", rows)
        arrays = {"x": x.reshape(-1), "o": np.ones(columns, np.float32)}
        strides = {("x", "row"): columns, ("x", "column"): 1, ("o", "column"): 1}
        extents = {"row": rows, "column": columns}
        run_cuda(kernel, arrays, extents, strides, architecture=architecture)
        np.testing.assert_allclose(arrays["o"], x.sum(0), rtol=1e-5, atol=1e-5)


def test_parallel_reduce_parallel():
    kernel = cuda_zoo.batch_center()
    for images, channels, pixels in [(4, 3, 25), (2, 5, 1), (3, 1, 1500)]:
        x = random_array((images, channels, pixels), "float32")
        arrays = {
            "x": x.reshape(-1),
            "scale": np.float32(1 / (images * pixels)),
            "mean": np.zeros(channels, np.float32),
            "o": np.zeros(x.size, np.float32),
        }
        steps = {"channel": pixels, "image": channels * pixels}
        strides = {(name, axis): step for name in "xo" for axis, step in steps.items()}
        strides["mean", "channel"] = 1
        extents = {"channel": channels, "image": images, "pixel": pixels}
        run_cuda(kernel, arrays, extents, strides)
        mean = x.mean((0, 2))
        np.testing.assert_allclose(arrays["mean"], mean, atol=1e-5)
        want = x - mean[None, :, None]
        np.testing.assert_allclose(arrays["o"].reshape(x.shape), want, atol=1e-5)


@pytest.mark.parametrize("index_bits", [32, 64])
@pytest.mark.parametrize(("images", "pixels"), [(0, 8), (3, 0), (0, 0)])
def test_an_empty_row_of_several_axes_divides_by_nothing(images, pixels, index_bits):
    """It is not kept in registers, which divides places in it by the length of its last axis."""
    kernel = replace(cuda_zoo.batch_center(), index_bits=index_bits)
    assert "if 0 < row_vectors <= " in print_cuda(kernel).text
    assert "if row_vectors <= " in print_cuda(cuda_zoo.softmax()).text  # one axis divides nothing
    arrays = {
        "x": aligned(np.zeros(4, np.float32)),
        "o": aligned(np.zeros(4, np.float32)),
        "scale": np.float32(0.5),
        "mean": np.ones(5, np.float32),
    }
    strides = {("mean", "channel"): 1}
    for name in ("x", "o"):
        strides |= {(name, "channel"): pixels, (name, "image"): 5 * pixels}
    run_cuda(kernel, arrays, {"channel": 5, "image": images, "pixel": pixels}, strides)
    np.testing.assert_array_equal(arrays["mean"], np.zeros(5, np.float32))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_full_reduction_with_epilogue_is_deterministic(architecture):
    kernel = cuda_zoo.norm_and_largest()
    for n in [1, 255, 5000, 30011]:
        x = random_array(n, "float32", n)
        results = []
        for _ in range(2):
            arrays = {"x": x, "scale": np.float32(2.0), "square": np.zeros(n, np.float32)}
            arrays |= {"norm": np.zeros(1, np.float32), "largest": np.zeros(1, np.float32)}
            run_cuda(kernel, arrays, {"i0": n}, architecture=architecture)
            results.append(arrays)
        np.testing.assert_allclose(results[0]["norm"], 2 * np.linalg.norm(x), rtol=1e-5)
        np.testing.assert_array_equal(results[0]["largest"], x.max())
        np.testing.assert_array_equal(results[0]["square"], x * x)
        assert results[0]["norm"] == results[1]["norm"]


def test_a_full_reduction_over_nothing_gives_the_initial_value():
    arrays = {"x": np.zeros(0, np.float32), "scale": np.float32(2.0)}
    arrays |= {"square": np.zeros(0, np.float32)}
    arrays |= {"norm": np.ones(1, np.float32), "largest": np.ones(1, np.float32)}
    run_cuda(cuda_zoo.norm_and_largest(), arrays, {"i0": 0})
    assert arrays["norm"] == 0 and arrays["largest"] == -np.inf


def test_loops_that_lanes_leave_by_themselves():
    x = np.arange(1, 301, dtype=np.int64)
    found = check(cuda_zoo.collatz(), {"x": x, "o": np.zeros(300, np.int32)}, {"i0": 300})
    assert found["o"][26] == 111  # 27 needs 111 steps


def test_counted_loops_and_branches_that_store():
    """o = sum of x * k for k below x, stored only where x is even; nothing elsewhere."""
    operands = [Operand("x", "int64", IN, (UNIT,)), Operand("o", "int64", INOUT, (UNIT,))]

    def body(b):
        with b.for_axis("i0"):
            x = b.load("x")

            def step(k, total):
                return b.apply("add", total, b.apply("mul", x, k))

            (total,) = b.for_count(x, [b.const("int64", 0)], step)
            odd = b.apply("ne", b.apply("and", x, b.const("int64", 1)), b.const("int64", 0))
            b.if_(odd, lambda: None, lambda: b.store("o", total))

    kernel = make("counted", {"i0": PARALLEL}, operands, body)
    arrays = {"x": np.arange(40, dtype=np.int64), "o": np.full(40, 7, np.int64)}
    found = check(kernel, arrays, {"i0": 40})["o"]
    assert (found[1::2] == 7).all() and found[4] == 4 * (1 + 2 + 3)


def test_reductions_over_short_exact_axes_take_one_thread_per_row():
    operands = [Operand("x", "float32", IN, (ANY, UNIT)), Operand("o", "float32", OUT, (ANY, ZERO))]

    def body(b):
        with b.for_axis("i0"):
            zero = b.const("float32", 0.0)
            b.store("o", b.reduce("i1", zero, "add", lambda: b.load("x")))

    kernel = make("short", {"i0": PARALLEL, "i1": (ROW, 3)}, operands, body, kind="row")
    source, built = build(kernel, True, (9, 0))
    assert source.launch.strategy == "point" and "shfl" not in built.ptx
    arrays = {"x": random_array(3 * 50, "float32"), "o": np.zeros(50, np.float32)}
    check(kernel, arrays, {"i0": 50}, {("x", "i0"): 3, ("o", "i0"): 1})


def test_a_row_kernel_of_one_row():
    """No PARALLEL axis: a small vector minus its own maximum, in one block."""
    operands = [Operand("x", "float32", IN, (UNIT,)), Operand("o", "float32", OUT, (UNIT,))]

    def body(b):
        lowest = b.const("float32", float("-inf"))
        largest = b.reduce("i0", lowest, "max", lambda: b.load("x"))
        with b.for_axis("i0"):
            b.store("o", b.apply("sub", b.load("x"), largest))

    kernel = make("one_row", {"i0": ROW}, operands, body, kind="row")
    for n in (1, 100, 3000):
        check(kernel, {"x": random_array(n, "float32"), "o": np.zeros(n, np.float32)}, {"i0": n})


def test_columns_that_disagree_do_not_meet_at_a_barrier():
    """A reduction inside a branch that only some columns take is done by each thread alone."""
    operands = [Operand("x", "float32", IN, (ANY, ANY)), Operand("o", "float32", OUT, (ANY, ZERO))]

    def body(b):
        with b.for_axis("i0"):
            zero = b.const("float32", 0.0)
            total = b.reduce("i1", zero, "add", lambda: b.load("x"))
            largest = b.if_(
                b.apply("gt", total, zero),
                lambda: b.reduce("i1", zero, "max", lambda: b.load("x")),
                lambda: zero,
            )
            b.store("o", largest[0])

    kernel = make("disagree", {"i0": PARALLEL, "i1": REDUCE}, operands, body, kind="column")
    x = random_array((40, 50), "float32")
    arrays = {"x": x.reshape(-1), "o": np.zeros(50, np.float32)}
    strides = {("x", "i0"): 1, ("x", "i1"): 50, ("o", "i0"): 1}
    run_cuda(kernel, arrays, {"i0": 50, "i1": 40}, strides)
    want = np.where(x.sum(0) > 0, np.maximum(x.max(0), 0), 0)
    np.testing.assert_array_equal(arrays["o"], want)


@pytest.mark.parametrize("index_bits", [32, 64])
def test_segments_of_all_lengths(index_bits):
    kernel = replace(cuda_zoo.update_step(), index_bits=index_bits)
    _, built = build(kernel, True, (9, 0))
    kinds = ["pointer", "pointer", "scalar", "scalar", "extent"]
    assert [argument.kind for argument in arguments(kernel)] == kinds
    sizes = [5, 0, 700, 1, 300]
    memory, blocks, interpreted = [], [], {}
    for number, size in enumerate(sizes):
        p, g = random_array(size + 1, "float32", number), random_array(size + 1, "bfloat16", number)
        rate = int(np.float32(0.1 * number).view(np.uint32))
        decay = int(np.array(0.5, storage_dtype("bfloat16")).view(np.uint16))
        blocks.append([p.ctypes.data, g.ctypes.data, rate, decay, size])
        memory += [p, g.view(np.uint16)]
        interpreted |= {p.ctypes.data: p.copy(), g.ctypes.data: g}
    words = [np.array(block, np.int64) for block in blocks]
    starts = np.cumsum([0, *sizes])
    table = [len(sizes)]
    for start, block in zip(starts, words, strict=False):
        table += [int(start), block.ctypes.data]
    table = np.array([*table, starts[-1]], np.int64)
    launch_ptx(built.ptx, (2,), (256,), [table], [*memory, *words])
    interpret_segments(kernel, blocks, interpreted)
    for block, p in zip(blocks, memory[::2], strict=True):
        np.testing.assert_array_equal(p, interpreted[block[0]])


def _norm_arrays(size):
    """What norm_and_largest is given: one element more, as addresses of nothing are not known."""
    arrays = {"x": random_array(size + 1, "float32", size)}
    arrays |= {name: np.full(1, 7, np.float32) for name in ("norm", "largest")}
    return arrays | {"square": np.full(size + 1, 7, np.float32)}


@pytest.mark.parametrize("index_bits", [32, 64])
def test_full_reductions_in_segments(index_bits):
    """Of all lengths and numbers of blocks, twice: with the bits of separate launches."""
    alone = cuda_zoo.zoo()["full"]
    kernel = replace(cuda_zoo.zoo()["full_segments"], index_bits=index_bits)
    sizes = [5, 0, 2500, 1, 9000, 700]
    scales = [np.float32(0.5 + k) for k in range(len(sizes))]
    want, given, blocks = [], [], []
    for size, scale in zip(sizes, scales, strict=True):
        want.append(_norm_arrays(size))
        run_cuda(alone, {**want[-1], "scale": scale}, {"i0": size}, vectorize=False)
        given.append(_norm_arrays(size))
        place = {name: array.ctypes.data for name, array in given[-1].items()}
        words = [place["x"], int(scale.view(np.uint32))]
        words += [place["norm"], place["largest"], place["square"], size]
        blocks.append(np.array(words, np.int64))
    lengths = [full_blocks(size, PROCESSORS) for size in sizes]
    assert lengths == [1, 1, 2, 1, 5, 1]
    starts = np.cumsum([0, *lengths])
    pairs = zip(starts, [block.ctypes.data for block in blocks], strict=False)
    words = [word for pair in pairs for word in pair]
    table = np.array([len(sizes), *words, starts[-1]], np.int64)
    source, built = build(kernel, True, (9, 0))
    grid, block = launch_shape(source.launch, {}, PROCESSORS, int(starts[-1]))
    counters = np.zeros(len(sizes), np.uint32)
    memory = [array for arrays in given for array in arrays.values()] + [*blocks, counters]
    for _ in range(2):
        scratch = np.zeros(scratch_bytes(source.launch, grid) // 8, np.uint64)
        arguments = [table, scratch, np.int64(counters.ctypes.data)]
        launch_ptx(built.ptx, grid, block, arguments, memory)
        assert not counters.any()
        for found, expected in zip(given, want, strict=True):
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array, err_msg=name)
    defined = [_norm_arrays(size) for size in sizes]
    own = {
        a.ctypes.data: b
        for arrays, copy in zip(given, defined, strict=True)
        for a, b in zip(arrays.values(), copy.values(), strict=True)
    }
    interpret_segments(kernel, [block.tolist() for block in blocks], own, (0, 2))
    interpret_segments(kernel, [block.tolist() for block in blocks], own, (2, len(sizes)))
    for found, expected in zip(given, defined, strict=True):
        np.testing.assert_allclose(found["norm"], expected["norm"], rtol=1e-6)
        np.testing.assert_array_equal(found["largest"], expected["largest"])


def test_a_kernel_without_axes():
    arrays = {"x": np.ones(1, np.float32), "y": np.float32(2), "o": np.zeros(1, np.float32)}
    assert check(cuda_zoo.two_numbers(), arrays)["o"] == 3
