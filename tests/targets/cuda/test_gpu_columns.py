"""Columns of 16-bit floats on GPUs: a thread reads two neighbors in 32 bits, with the same bits."""

import ml_dtypes
import numpy as np
import pytest
from cuda_harness import (
    ANY,
    ARCHITECTURES,
    IN,
    OUT,
    REDUCE,
    UNIT,
    VECTOR,
    ZERO,
    aligned,
    build,
    make,
    requires_cuda_tools,
    run_cuda,
)
from cuda_tools import sass
from late_gpu import shifted

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.kir.nodes import Operand
from gpuflow.targets.cuda.codegen.schedules.launch_config import (
    launch_shape,
    leaves_processors_idle,
    may_launch,
    schedule_cuda,
)
from gpuflow.targets.cuda.runtime.driver import launch as launches

HALVES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


def column_sum(dtype, out="float32", bits=64, exact=None):
    def body(b):
        with b.for_axis("column"):
            zero = b.const("float32", 0.0)
            b.store("o", b.reduce("row", zero, "add", lambda: b.load("x")))

    axes = {"row": REDUCE, "column": VECTOR if exact is None else (VECTOR, exact)}
    operands = [Operand("x", dtype, IN, (ANY, UNIT)), Operand("o", out, OUT, (ZERO, UNIT))]
    return make("column_sum", axes, operands, body, kind="column", index_bits=bits)


# --- what is launched ----------------------------------------------------------------------


def test_what_goes_in_pairs():
    for dtype in HALVES:
        wide = schedule_cuda(column_sum(dtype), vectorize=True)
        assert (wide.strategy, wide.vector_width, wide.vector_operands) == ("column", 2, ("x",))
        assert schedule_cuda(column_sum(dtype), vectorize=False).vector_width == 1
    assert schedule_cuda(column_sum("float32"), vectorize=True).vector_width == 1
    assert schedule_cuda(column_sum("float32", "bfloat16"), vectorize=True).vector_width == 1


def test_pairs_fill_half_as_many_blocks_of_the_same_height():
    """The height decides the order of a sum."""
    wide, narrow = (schedule_cuda(column_sum("bfloat16"), which) for which in (True, False))
    for rows in (100, 5000):
        for columns, blocks in ((2, 1), (64, 1), (66, 2), (4096, 64), (0, 0)):
            extents = {"row": rows, "column": columns}
            (count, _), block = launch_shape(wide, extents, 132)
            assert count == blocks and block == launch_shape(narrow, extents, 132)[1]


def test_pairs_must_fill_a_device():
    """Fewer blocks than it has multiprocessors are those of one column for each thread."""
    wide, narrow = (schedule_cuda(column_sum("bfloat16"), which) for which in (True, False))
    for columns, idle in ((2, True), (131 * 64, True), (131 * 64 + 2, False), (1 << 20, False)):
        assert leaves_processors_idle(wide, {"row": 100, "column": columns}, 132) == idle
        assert not leaves_processors_idle(narrow, {"row": 100, "column": columns}, 132)


def test_when_pairs_may_be_read():
    kernel = column_sum("bfloat16")
    launch = schedule_cuda(kernel, vectorize=True)

    def may(address=4, rows=3, columns=6, pitch=6):
        strides = {("x", "row"): pitch}
        extents = {"row": rows, "column": columns}
        return may_launch(launch, kernel, {"x": address, "o": 4}, extents, strides)

    assert may() and may(rows=4) and may(address=8) and may(pitch=-8) and may(pitch=0)
    assert not may(address=2) and not may(address=6)
    assert not may(columns=5) and not may(pitch=7) and not may(pitch=-7)


# --- machine code --------------------------------------------------------------------------


def loads(kernel, architecture, vectorize=True):
    """The loads of global memory, with how many bits each has."""
    _, built = build(kernel, vectorize, architecture)
    assert built.spill_bytes == 0
    names = [word for line in sass(built.cubin) for word in line.split() if word.startswith("LDG.")]
    sizes = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
    return [next((sizes[p] for p in n.split(".") if p in sizes), 32) for n in names]


@requires_cuda_tools
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", HALVES)
def test_pairs_are_loads_of_32_bits(dtype, architecture):
    """As many loads as before, of twice the size."""
    kernel = column_sum(dtype)
    narrow, wide = (loads(kernel, architecture, which) for which in (False, True))
    assert set(narrow) == {16} and set(wide) == {32} and len(wide) == len(narrow)


# --- the kernel alone ----------------------------------------------------------------------


@requires_cuda_tools
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("rows", "columns", "pitch", "first"),
    [
        (5, 64, 64, 0),
        (300, 70, 72, 0),
        (1100, 2, 2, 0),
        (7, 130, 130, 2),
        (0, 6, 6, 0),
        (37, 66, -66, 36 * 66),
        (9, 33, 33, 0),
        (9, 34, 34, 1),
        (9, 34, 35, 0),
    ],
)
def test_two_columns_are_as_one(rows, columns, pitch, first, dtype, bits):
    """Bit for bit what one column for each thread gives; the last three are done so."""
    kernel = column_sum(dtype, bits=bits)
    x = (
        np.random.default_rng(8)
        .standard_normal(abs(pitch) * max(rows, 1) + columns + first)
        .astype(HALVES[dtype])
    )
    results = []
    for vectorize in (False, True):
        # What lies behind the columns must stay as it is.
        out = aligned(np.full(columns + 64, 7, np.float32))
        arrays = {"x": (aligned(x), first), "o": out}
        extents = {"row": rows, "column": columns}
        run_cuda(kernel, arrays, extents, {("x", "row"): pitch}, vectorize)
        results.append(out)
    places = first + pitch * np.arange(rows)[:, None] + np.arange(columns)
    want = x[places].astype(np.float64).sum(0) if rows else np.zeros(columns)
    np.testing.assert_array_equal(results[0].view(np.uint32), results[1].view(np.uint32))
    np.testing.assert_allclose(results[1][:columns], want, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(results[1][columns:], 7)


# --- programs ------------------------------------------------------------------------------


class Variants:
    """Which variants of kernels of columns were launched, by name.

    Attributes:
        refuses: launch no pairs, which makes the other variant.
    """

    def __init__(self):
        self.wide, self.narrow, self.refuses = set(), set(), False

    def build(self, kernel, device, vectorize):
        built = BUILD(kernel, device, vectorize and not self.refuses)
        launch = built.source.launch
        if launch.strategy == "column":
            (self.wide if launch.vector_width > 1 else self.narrow).add(kernel.name)
        return built

    @property
    def reads_pairs(self):
        """The narrow variant is built when it is to run."""
        return bool(self.wide - self.narrow)


BUILD = launches._build_kernel


@pytest.fixture
def variants(monkeypatch):
    one = Variants()
    monkeypatch.setattr(launches, "_build_kernel", one.build)
    return one


def norm(x):
    centered = x - x.mean(0)
    return abs(centered).sum(0), (centered * centered).mean(0)


# Name, function, shape; whether a launch reads pairs.
PROGRAMS = {
    "sum": (lambda x: x.sum(0), (70, 96), True),
    "sum in parts": (lambda x: x.sum(0), (8200, 34), True),
    "sum of two axes": (lambda x: x.sum((0, 1)), (6, 9, 66), True),
    "sum between": (lambda x: x.sum(1), (5, 40, 34), True),
    "sum of odd columns": (lambda x: x.sum(0), (40, 67), False),
    "odd start": (lambda x: x[:, 1:65].sum(0), (40, 66), False),
    "even start": (lambda x: x[:, 2:].sum(0), (40, 68), True),
    "odd pitch": (lambda x: x[:, :66].sum(0), (40, 67), False),
    "every second row": (lambda x: x[1::2].sum(0), (41, 66), True),
    "rows backwards": (lambda x: x[::-1].sum(0), (40, 66), True),
    "columns backwards": (lambda x: x[:, ::-1].sum(0), (40, 66), False),
    "no rows": (lambda x: x.sum(0), (0, 66), True),
    "no columns": (lambda x: x.sum(0), (40, 0), False),
    "mean": (lambda x: x.mean(0), (70, 96), True),
    "prod": (lambda x: (1 + x / 64).prod(0), (70, 66), True),
    "max and min": (lambda x: (x.max(0), x.min(0)), (70, 66), True),
    "argmax": (lambda x: jnp.argmax(x, 0), (70, 66), False),
    "few columns": (lambda x: x.sum(0), (70, 64), False),
    "any": (lambda x: (x > 1.5).any(0), (70, 66), True),
    "var": (lambda x: x.var(0), (70, 66), True),
    "norm": (norm, (70, 66), True),
    "where": (lambda x: jnp.where(x > 0, x, 2 * x).sum(0) * jnp.arange(66), (70, 66), True),
    "counted": (lambda x: (x * jnp.arange(66.0)).sum(0), (70, 66), True),
}


@requires_cuda_tools
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, dtype, variants):
    function, shape, reads_pairs = PROGRAMS[name]
    x = (np.random.default_rng(8).integers(-8, 9, shape) / 4).astype(HALVES[dtype])

    def results(device, x):
        with gf.default_device(device):
            out = gf.jit(lambda x: function(x))(x)
            return [np.asarray(one) for one in gf.tree_util.tree_leaves(out)]

    device = gf.devices("cuda_sim")[0]
    wide = results(device, x)
    assert variants.reads_pairs == reads_pairs, vars(variants)
    variants.wide.clear()
    variants.refuses = True
    narrow = results(device, x)
    assert not variants.wide
    wants = results(gf.devices("cpu")[0], x.astype(np.float32))
    for one, other, want in zip(wide, narrow, wants, strict=True):
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes()
        # Both round to 16 bits: the result, and what each operation gives.
        np.testing.assert_allclose(
            np.asarray(one, np.float64), np.asarray(want, np.float64), rtol=2e-2, atol=0.1
        )


@requires_cuda_tools
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_where_arrays_begin_is_seen_at_run_time(count, dtype, variants):
    """One program, for arrays that other libraries made: pairs where these lie at 4 bytes."""
    device = gf.devices("cuda_sim")[0]
    x = (np.random.default_rng(8).integers(-8, 9, (50, 66)) / 4).astype(HALVES[dtype])
    with gf.default_device(device):
        total = gf.jit(lambda x: x.sum(0, dtype="float32"))
        got = [np.asarray(total(shifted(device, x, dtype, k))) for k in (0, count, 0)]
    assert variants.wide and bool(variants.narrow) == bool(count % 2)
    for one in got:
        np.testing.assert_array_equal(one, x.astype(np.float64).sum(0))


@requires_cuda_tools
def test_a_mean_of_many_is_rounded_once():
    """Sums of bfloat16 are float32 until the end."""
    x = np.random.default_rng(8).standard_normal((4096, 66)).astype(HALVES["bfloat16"]) + HALVES[
        "bfloat16"
    ].type(3)
    with gf.default_device(gf.devices("cuda_sim")[0]):
        got = np.asarray(gf.jit(lambda x: x.mean(0))(jnp.asarray(x, "bfloat16")), np.float64)
    np.testing.assert_allclose(got, x.astype(np.float64).mean(0), rtol=2**-8)
