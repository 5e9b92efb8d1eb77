"""Kernels of every kind, compiled for the CPU, against the interpreter and NumPy."""

import numpy as np
import pytest
from cpu_harness import (
    ANY,
    IN,
    INOUT,
    OUT,
    UNIT,
    ZERO,
    argument_words,
    check_against_interpreter,
    make_kernel,
    random_array,
    run_cpu,
)

from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Mode, Operand, Role
from gpuflow.targets.cpu.codegen import libm
from gpuflow.targets.cpu.codegen.build import assembly, build_cpu, load_cpu
from gpuflow.targets.cpu.codegen.libm import vector_variants
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.runtime.kernels import print_cpu

PARALLEL, ROW, REDUCE = Role.PARALLEL, Role.ROW, Role.REDUCE
AWKWARD = [0, 1, 31, 33, 257, 1031]


def unary_kernel(fn, dtype="float32"):
    operands = [Operand("x", dtype, IN, (UNIT,)), Operand("o", dtype, OUT, (UNIT,))]

    def body(b):
        with b.for_axis("i0"):
            b.store("o", b.apply(fn, b.load("x")))

    return make_kernel(f"map_{fn}", {"i0": PARALLEL}, operands, body)


def test_map_over_three_axes_with_broadcast_strides_and_reversal():
    """o[i, j, k] = x[i, -j, k] * row[k] + column[j], with x read backwards along j."""
    operands = [
        Operand("x", "float32", IN, (ANY, ANY, UNIT)),
        Operand("row", "float32", IN, (ZERO, ZERO, UNIT)),
        Operand("column", "float32", IN, (ZERO, ANY, ZERO)),
        Operand("o", "float32", OUT, (ANY, ANY, UNIT)),
    ]

    def body(b):
        with b.for_axis("i0"), b.for_axis("i1"):
            column = b.load("column")
            with b.for_axis("i2"):
                b.store("o", b.apply("fma", b.load("x"), b.load("row"), column))

    axes = {"i0": PARALLEL, "i1": PARALLEL, "i2": PARALLEL}
    kernel = make_kernel("map3", axes, operands, body)
    for a, n, c in [(3, 4, 5), (1, 1, 1), (2, 7, 33), (0, 3, 4), (5, 1, 257)]:
        x = random_array((a, n, c), "float32")
        arrays = {
            "x": (x.reshape(-1), max(n - 1, 0) * c),
            "row": random_array(c, "float32", 1),
            "column": random_array(2 * n, "float32", 2),
            "o": np.zeros(a * n * c, np.float32),
        }
        strides = {("x", "i0"): n * c, ("x", "i1"): -c, ("column", "i1"): 2}
        strides |= {("o", "i0"): n * c, ("o", "i1"): c}
        extents = {"i0": a, "i1": n, "i2": c}
        # The definition of fma rounds twice, the machine once.
        found = check_against_interpreter(kernel, arrays, extents, strides, ulps=1, chunks=2)["o"]
        want = x[:, ::-1] * arrays["row"] + arrays["column"][::2][:n, None]
        np.testing.assert_allclose(found.reshape(a, n, c), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "bfloat16"])
def test_storage_dtypes_in_place(dtype):
    """One pointer is read and written at equal indices."""
    operands = [Operand("y", dtype, INOUT, (ANY,)), Operand("s", dtype, Mode.SCALAR)]

    def body(b):
        with b.for_axis("i0"):
            fn = "xor" if dtype == "bool" else "add"
            b.store("y", b.apply(fn, b.load("y"), b.load("s")))

    kernel = make_kernel(f"inplace_{dtype}", {"i0": PARALLEL}, operands, body)
    scalar = np.array(3 if dtype != "bool" else True).astype(storage_dtype(dtype))[()]
    for n in AWKWARD[:5]:
        arrays = {"y": random_array(2 * n, dtype), "s": scalar}
        check_against_interpreter(kernel, arrays, {"i0": n}, {("y", "i0"): 2}, chunks=3)


def test_masked_gather_reads_nothing_outside():
    """Rows by index, masked where the index is out of bounds; the mask keeps the read inside."""
    operands = [
        Operand("index", "int32", IN, (ANY, ZERO)),
        Operand("table", "float32", IN, (ZERO, UNIT)),
        Operand("row_stride", "int64", Mode.SCALAR),
        Operand("rows", "int64", Mode.SCALAR),
        Operand("o", "float32", OUT, (ANY, UNIT)),
    ]

    def body(b):
        with b.for_axis("i0"):
            index = b.cast(b.load("index"), "int64")
            low = b.apply("ge", index, b.const("int64", 0))
            inside = b.apply("and", low, b.apply("lt", index, b.load("rows")))
            offset = b.apply("mul", index, b.load("row_stride"))
            with b.for_axis("i1"):
                b.store("o", b.load("table", offset, inside))

    kernel = make_kernel("gather", {"i0": PARALLEL, "i1": PARALLEL}, operands, body)
    rows, columns = 7, 37
    table = random_array((rows, columns), "float32")
    # An address this far away would end the process.
    index = np.array([0, 6, -1, 3, 2**31 - 1, 5, -(2**31)], np.int32)
    arrays = {
        "index": index,
        "table": table.reshape(-1),
        "row_stride": columns,
        "rows": rows,
        "o": np.ones(len(index) * columns, np.float32),
    }
    strides = {("index", "i0"): 1, ("o", "i0"): columns}
    extents = {"i0": len(index), "i1": columns}
    found = check_against_interpreter(kernel, arrays, extents, strides)["o"]
    assert (found.reshape(-1, columns)[[2, 4, 6]] == 0).all()
    assert (found.reshape(-1, columns)[[0, 1, 3, 5]] == table[[0, 6, 3, 5]]).all()


def test_index_operands_and_masked_store():
    operands = [Operand("p", "int64", Mode.INDEX, (ANY,)), Operand("o", "int64", INOUT, (UNIT,))]

    def body(b):
        with b.for_axis("i0"):
            p = b.load("p")
            odd = b.apply("ne", b.apply("rem", p, b.const("int64", 2)), b.const("int64", 0))
            b.store("o", p, where=odd)

    kernel = make_kernel("iota", {"i0": PARALLEL}, operands, body)
    arrays = {"p": 5, "o": np.full(40, -1)}
    found = check_against_interpreter(kernel, arrays, {"i0": 40}, {("p", "i0"): -3}, chunks=3)["o"]
    want = 5 - 3 * np.arange(40)
    np.testing.assert_array_equal(found, np.where(want % 2 != 0, want, -1))


def softmax_kernel():
    operands = [
        Operand("x", "float32", IN, (ANY, UNIT)),
        Operand("o", "float32", OUT, (ANY, UNIT)),
    ]

    def body(b):
        with b.for_axis("i0"):
            top = b.reduce("i1", b.const("float32", -np.inf), "max", lambda: b.load("x"))

            def power():
                return b.apply("exp", b.apply("sub", b.load("x"), top))

            total = b.reduce("i1", b.const("float32", 0), "add", power)
            with b.for_axis("i1"):
                b.store("o", b.apply("div", power(), total))

    return make_kernel("softmax", {"i0": PARALLEL, "i1": ROW}, operands, body, kind="row")


def test_softmax_rows():
    kernel = softmax_kernel()
    for rows, columns in [(3, 1), (2, 31), (5, 33), (4, 257), (2, 9000), (0, 5)]:
        x = random_array((rows, columns), "float32") * 5
        arrays = {"x": x.reshape(-1), "o": np.zeros(x.size, np.float32)}
        strides = {("x", "i0"): columns, ("o", "i0"): columns}
        run_cpu(kernel, arrays, {"i0": rows, "i1": columns}, strides)
        wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        want = wide / wide.sum(1, keepdims=True)
        # exp 4 ulp, its argument's rounding (up to 30 times 2^-24), the sum and the division.
        np.testing.assert_allclose(arrays["o"].reshape(x.shape), want, rtol=4e-6)


def test_layernorm_has_a_pass_for_the_mean_and_one_for_the_variance():
    operands = [
        Operand("x", "float32", IN, (ANY, UNIT)),
        Operand("n", "float32", Mode.SCALAR),
        Operand("o", "float32", OUT, (ANY, UNIT)),
    ]

    def body(b):
        with b.for_axis("i0"):
            zero, n = b.const("float32", 0), b.load("n")
            mean = b.apply("div", b.reduce("i1", zero, "add", lambda: b.load("x")), n)

            def square():
                d = b.apply("sub", b.load("x"), mean)
                return b.apply("mul", d, d)

            variance = b.apply("div", b.reduce("i1", zero, "add", square), n)
            scale = b.apply("rsqrt", variance)
            with b.for_axis("i1"):
                b.store("o", b.apply("mul", b.apply("sub", b.load("x"), mean), scale))

    kernel = make_kernel("layernorm", {"i0": PARALLEL, "i1": ROW}, operands, body, kind="row")
    for rows, columns in [(3, 2), (2, 33), (4, 5001)]:
        x = random_array((rows, columns), "float32") + 100
        arrays = {"x": x.reshape(-1), "n": columns, "o": np.zeros(x.size, np.float32)}
        strides = {("x", "i0"): columns, ("o", "i0"): columns}
        run_cpu(kernel, arrays, {"i0": rows, "i1": columns}, strides)
        wide = x.astype(np.float64)
        want = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
        # The mean of numbers near 100 is rounded to 2^-18.
        np.testing.assert_allclose(arrays["o"].reshape(x.shape), want, atol=3e-5)


def full_kernel(dtype, combine, name, init=0):
    operands = [Operand("x", dtype, IN, (UNIT,)), Operand("o", dtype, OUT, (ZERO,))]

    def body(b):
        compute = "float32" if dtype in ("float16", "bfloat16") else dtype
        b.store("o", b.reduce("i0", b.const(compute, init), combine, lambda: b.load("x")))

    return make_kernel(name, {"i0": REDUCE}, operands, body, kind="full")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_are_as_accurate_as_numpys_pairwise_sums(dtype):
    kernel = full_kernel(dtype, "add", f"sum_{dtype}")
    for n in [*AWKWARD, 4095, 4097, 1_000_003]:
        # Positive numbers: the relative error is that of the additions.
        x = np.random.default_rng(n).random(n).astype(dtype)
        out = np.ones(1, dtype)
        run_cpu(kernel, {"x": x, "o": out}, {"i0": n})
        exact = np.sum(x, dtype=np.longdouble)
        error, pairwise = abs(out[0] - exact), abs(np.sum(x) - exact)
        assert error <= max(4 * pairwise, 8 * np.finfo(dtype).eps * exact)


def test_max_keeps_nan_and_orders_zeros():
    kernel = full_kernel("float32", "max", "max_float32", -np.inf)
    out = np.zeros(1, np.float32)
    for n in AWKWARD:
        x = random_array(n, "float32")
        run_cpu(kernel, {"x": x, "o": out}, {"i0": n})
        assert out[0] == (x.max() if n else -np.inf)
        if n:
            x[n // 2] = np.nan
            run_cpu(kernel, {"x": x, "o": out}, {"i0": n})
            assert np.isnan(out[0])
    zeros = np.array([-0.0, 0.0, -0.0], np.float32)
    run_cpu(kernel, {"x": zeros, "o": out}, {"i0": 3})
    assert not np.signbit(out[0])


def test_integer_sums_wrap():
    kernel = full_kernel("int32", "add", "sum_int32")
    x, out = np.full(1031, 2**30, np.int32), np.zeros(1, np.int32)
    run_cpu(kernel, {"x": x, "o": out}, {"i0": len(x)})
    assert out[0] == np.sum(x, dtype=np.int32)


def test_argmax_reduces_pairs():
    """The combine block has two running and two new values."""
    operands = [
        Operand("x", "float32", IN, (ANY, UNIT)),
        Operand("p", "int64", Mode.INDEX, (ZERO, ANY)),
        Operand("o", "int64", OUT, (ANY, ZERO)),
    ]

    def pick(b):
        def combine(best, place, value, here):
            larger = b.apply("gt", value, best)
            tie = b.apply("and", b.apply("eq", value, best), b.apply("lt", here, place))
            take = b.apply("or", larger, tie)
            return b.select(take, value, best), b.select(take, here, place)

        return combine

    def body(b):
        with b.for_axis("i0"):
            init = (b.const("float32", -np.inf), b.const("int64", 2**63 - 1))
            _, place = b.reduce("i1", init, pick(b), lambda: (b.load("x"), b.load("p")))
            b.store("o", place)

    kernel = make_kernel("argmax", {"i0": PARALLEL, "i1": ROW}, operands, body, kind="row")
    x = np.random.default_rng(0).integers(0, 9, (6, 101)).astype(np.float32)
    arrays = {"x": x.reshape(-1), "p": 0, "o": np.zeros(6, np.int64)}
    strides = {("x", "i0"): 101, ("p", "i1"): 1, ("o", "i0"): 1}
    found = check_against_interpreter(kernel, arrays, {"i0": 6, "i1": 101}, strides)["o"]
    np.testing.assert_array_equal(found, x.argmax(1))


def column_kernel():
    """Per column: sum, max and the standard deviation; and the deviations, of full rank."""
    operands = [
        Operand("x", "float32", IN, (ANY, UNIT)),
        Operand("n", "float32", Mode.SCALAR),
        Operand("total", "float32", OUT, (ZERO, UNIT)),
        Operand("top", "float32", OUT, (ZERO, UNIT)),
        Operand("std", "float32", OUT, (ZERO, UNIT)),
        Operand("deviation", "float32", OUT, (ANY, UNIT)),
    ]

    def body(b):
        with b.for_axis("i1"):
            zero, n = b.const("float32", 0), b.load("n")
            total = b.reduce("i0", zero, "add", lambda: b.load("x"))
            b.store("total", total)
            top = b.reduce("i0", b.const("float32", -np.inf), "max", lambda: b.load("x"))
            b.store("top", top)
            mean = b.apply("div", total, n)

            def square():
                d = b.apply("sub", b.load("x"), mean)
                return b.apply("mul", d, d)

            squares = b.reduce("i0", zero, "add", square)
            b.store("std", b.apply("sqrt", b.apply("div", squares, n)))
            with b.for_axis("i0"):
                b.store("deviation", b.apply("sub", b.load("x"), mean))

    return make_kernel("columns", {"i0": REDUCE, "i1": PARALLEL}, operands, body, kind="column")


@pytest.mark.parametrize("rows", [1, 31, 257, 1031])
@pytest.mark.parametrize("columns", [0, 1, 33, 1025, 2053])
def test_columns_at_awkward_sizes(rows, columns):
    kernel = column_kernel()
    x = random_array((rows, columns), "float32") + 3
    arrays = {"x": x.reshape(-1), "n": rows, "deviation": np.zeros(x.size, np.float32)}
    arrays |= {name: np.zeros(columns, np.float32) for name in ("total", "top", "std")}
    strides = {("x", "i0"): columns, ("deviation", "i0"): columns}
    run_cpu(kernel, arrays, {"i0": rows, "i1": columns}, strides, chunks=2)
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(arrays["top"], x.max(0))
    np.testing.assert_allclose(arrays["total"], wide.sum(0), rtol=2e-6)
    np.testing.assert_allclose(arrays["std"], wide.std(0), rtol=2e-5, atol=1e-6)
    deviation = arrays["deviation"].reshape(x.shape)
    np.testing.assert_allclose(deviation, wide - wide.mean(0), atol=2e-6)


def test_columns_inside_a_batch_and_over_two_outer_axes():
    """o[b, c] = sum of x[b, r, s, c] over r and s: parallel, reduce, reduce, parallel."""
    operands = [
        Operand("x", "float64", IN, (ANY, ANY, ANY, UNIT)),
        Operand("o", "float64", OUT, (ANY, ZERO, ZERO, UNIT)),
    ]

    def body(b):
        with b.for_axis("i0"), b.for_axis("i3"):
            zero = b.const("float64", 0)
            b.store("o", b.reduce(["i1", "i2"], zero, "add", lambda: b.load("x")))

    axes = {"i0": PARALLEL, "i1": REDUCE, "i2": REDUCE, "i3": PARALLEL}
    kernel = make_kernel("batch_columns", axes, operands, body, kind="column")
    shape = (3, 4, 300, 35)
    x = random_array(shape, "float64")
    arrays = {"x": x.reshape(-1), "o": np.zeros(3 * 35)}
    strides = {("x", f"i{k}"): x.strides[k] // 8 for k in range(3)} | {("o", "i0"): 35}
    extents = {f"i{k}": size for k, size in enumerate(shape)}
    run_cpu(kernel, arrays, extents, strides)
    np.testing.assert_allclose(arrays["o"].reshape(3, 35), x.sum((1, 2)), atol=1e-11)


def test_column_kernel_with_an_inner_reduction_falls_back():
    """The reduced axis is the inner one: the plain nest is right and vectorises."""
    operands = [
        Operand("x", "float32", IN, (ANY, UNIT)),
        Operand("o", "float32", OUT, (ANY, ZERO)),
    ]

    def body(b):
        with b.for_axis("i0"):
            b.store("o", b.reduce("i1", b.const("float32", 0), "add", lambda: b.load("x")))

    kernel = make_kernel("inner", {"i0": PARALLEL, "i1": REDUCE}, operands, body, kind="column")
    assert "_column" not in print_cpu(kernel).text
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    arrays = {"x": x.reshape(-1), "o": np.zeros(5, np.float32)}
    run_cpu(kernel, arrays, {"i0": 5, "i1": 7}, {("x", "i0"): 7, ("o", "i0"): 1})
    np.testing.assert_array_equal(arrays["o"], x.sum(1))


def test_exact_axes_are_written_into_the_text():
    operands = [
        Operand("x", "float32", IN, (ANY, UNIT)),
        Operand("o", "float32", OUT, (ANY, ZERO)),
    ]

    def body(b):
        with b.for_axis("i0"):
            b.store("o", b.reduce("i1", b.const("float32", 0), "add", lambda: b.load("x")))

    kernel = make_kernel("exact", {"i0": PARALLEL, "i1": (ROW, 10)}, operands, body, kind="row")
    assert "short_range(0, 10)" in print_cpu(kernel).text
    x = np.arange(130, dtype=np.float32).reshape(13, 10)
    arrays = {"x": x.reshape(-1), "o": np.zeros(13, np.float32)}
    check_against_interpreter(kernel, arrays, {"i0": 13}, {("x", "i0"): 10, ("o", "i0"): 1})


def test_loops_and_branches_per_lane():
    """Collatz steps by While; a swap of carries in a counted For; a branch that stores."""
    operands = [
        Operand("x", "int64", IN, (UNIT,)),
        Operand("steps", "int64", OUT, (UNIT,)),
        Operand("fibonacci", "int64", OUT, (UNIT,)),
        Operand("branch", "int64", OUT, (UNIT,)),
    ]

    def body(b):
        one, two, zero = (b.const("int64", k) for k in (1, 2, 0))
        with b.for_axis("i0"):
            x = b.load("x")

            def step(value, count):
                half = b.apply("div", value, two)
                triple = b.apply("add", b.apply("mul", value, b.const("int64", 3)), one)
                even = b.apply("eq", b.apply("rem", value, two), zero)
                (after,) = b.if_(even, lambda: half, lambda: triple)
                return after, b.apply("add", count, one)

            _, count = b.while_loop((x, zero), lambda v, c: b.apply("gt", v, one), step)
            b.store("steps", count)
            first, _ = b.for_count(x, (zero, one), lambda k, p, q: (q, b.apply("add", p, q)))
            b.store("fibonacci", first)
            counter, swapped, _ = b.for_count(x, (zero, one, two), lambda k, c, p, q: (k, q, p))
            large = b.apply("gt", count, b.const("int64", 10))
            b.if_(
                large,
                lambda: b.store("branch", swapped),
                lambda: b.store("branch", b.apply("sub", zero, counter)),
            )

    kernel = make_kernel("lanes", {"i0": PARALLEL}, operands, body)
    n = 60
    outs = {name: np.zeros(n, np.int64) for name in ("steps", "fibonacci", "branch")}
    arrays = {"x": np.arange(n), **outs}
    found = check_against_interpreter(kernel, arrays, {"i0": n}, chunks=4)
    assert found["steps"][27] == 111 and found["fibonacci"][50] == 12586269025


def test_kernel_without_axes_runs_once():
    operands = [Operand("x", "float32", IN), Operand("o", "float32", OUT)]

    def body(b):
        b.store("o", b.apply("sqrt", b.load("x")))

    kernel = make_kernel("scalar", {}, operands, body)
    out = np.zeros(1, np.float32)
    run_cpu(kernel, {"x": np.array([9], np.float32), "o": out})
    assert out[0] == 3


def test_inner_loops_vectorise():
    code = assembly(print_cpu(unary_kernel("exp")))
    registers = ("ymm", "zmm") if "mm0" in code else ("v0.4s",)
    assert any(register in code for register in registers)
    assert "_ZGV" not in code
    if vector_variants("cbrtf", 1, False):
        assert "_ZGV" in assembly(print_cpu(unary_kernel("cbrt")))


def test_operands_named_like_the_text_itself():
    """Operand and kernel names that the printer, Python or the intrinsics use as well."""
    names = ["words", "i0", "in", "start", "reader", "min", "n_i0"]
    operands = [Operand(name, "int32", IN, (UNIT,)) for name in names]
    operands.append(Operand("t0", "int32", OUT, (UNIT,)))

    def body(b):
        with b.for_axis("i0"):
            total = b.load("words")
            for name in names[1:]:
                total = b.apply("min", total, b.load(name))
            b.store("t0", total)

    kernel = make_kernel("abs_int32", {"i0": PARALLEL}, operands, body)
    arrays = {name: random_array(9, "int32", seed) for seed, name in enumerate(names)}
    check_against_interpreter(kernel, arrays | {"t0": np.zeros(9, np.int32)}, {"i0": 9})


def test_constants_are_exact():
    """Special floats, subnormals, and the bounds of every integer dtype."""
    floats = [0.0, -0.0, 0.1, np.inf, -np.inf, np.nan, 1e-45, -1e30, 2.0**-126]
    constants = [(dtype, value) for dtype in ("float32", "float64") for value in floats]
    constants += [("float64", 5e-324), ("bool", True), ("bool", False)]
    for bits in (8, 16, 32, 64):
        constants += [(f"int{bits}", -(2 ** (bits - 1))), (f"int{bits}", 2 ** (bits - 1) - 1)]
        constants.append((f"uint{bits}", 2**bits - 1))
    operands = [Operand(f"o{k}", dtype, OUT) for k, (dtype, _) in enumerate(constants)]

    def body(b):
        for place, (dtype, value) in enumerate(constants):
            b.store(f"o{place}", b.const(dtype, value))

    kernel = make_kernel("constants", {}, operands, body)
    arrays = {f"o{k}": np.ones(1, dtype) for k, (dtype, _) in enumerate(constants)}
    run_cpu(kernel, arrays)
    for place, (dtype, value) in enumerate(constants):
        assert arrays[f"o{place}"].tobytes() == np.array([value], dtype).tobytes()


GOLDEN = """\
def kernel_map_exp(words, lo, hi):
    use_wide_registers()
    x = word_pointer(words, 0)
    o = word_pointer(words, 1)
    n_i0 = word_int64(words, 2)
    for i0 in range(lo, hi):
        t0 = load_x(x, i0)
        t1 = exp_float32(t0)
        store_o(o, i0, t1)
"""


def test_text_is_what_a_person_would_write():
    text = print_cpu(unary_kernel("exp")).text
    assert text.endswith(GOLDEN) and "#   for i0:" in text


def test_without_vector_functions_the_scalar_ones_are_called(monkeypatch):
    monkeypatch.setattr(libm, "vector_variants", lambda *arguments: ())
    kernel = softmax_kernel()
    built = build_cpu(print_cpu(kernel))
    assert not any(name.startswith("_ZGV") for name in built.imports)
    x = random_array((3, 40), "float32")
    out = np.zeros_like(x)
    strides = {("x", "i0"): 40, ("o", "i0"): 40}
    words = argument_words(kernel, {"x": x, "o": out}, {"i0": 3, "i1": 40}, strides)
    load_cpu(built).call(words.ctypes.data, 0, 3)
    want = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(out, want, rtol=2e-6)


def test_built_kernels_need_only_mathematical_functions():
    """No symbol of Python or of Numba's run-time library: a kernel cannot raise."""
    for kernel in (softmax_kernel(), column_kernel()):
        for name in build_cpu(print_cpu(kernel)).imports:
            assert name.startswith(("_ZGV", "gpuflow_")), name


def test_masked_loads_and_selects_vectorise():
    """x where positive, else y read only there: masked vector loads, no branch per element.

    Processors whose loads have no masks (AVX2) read y element by element.
    """
    operands = [Operand(name, "float32", IN, (UNIT,)) for name in "xy"]
    operands.append(Operand("o", "float32", OUT, (UNIT,)))

    def body(b):
        with b.for_axis("i0"):
            x = b.load("x")
            negative = b.apply("lt", x, b.const("float32", 0))
            b.store("o", b.select(negative, b.load("y", where=negative), x))

    kernel = make_kernel("masked", {"i0": PARALLEL}, operands, body)
    n = 1031
    arrays = {"x": random_array(n, "float32"), "y": random_array(n, "float32", 1)}
    arrays["o"] = np.zeros(n, np.float32)
    check_against_interpreter(kernel, arrays, {"i0": n})
    code = assembly(print_cpu(kernel))
    if cpu_target().has_masks:
        assert "{z}" in code or "{%k" in code
