"""Maps that read transposed operands on GPUs: what goes in tiles, its launch, its values."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_harness import (
    ANY,
    ARCHITECTURES,
    IN,
    OUT,
    PARALLEL,
    UNIT,
    ZERO,
    build,
    check,
    make,
    random_array,
    requires_cuda_tools,
)

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.schedules.tiles import tile_innermost
from gpuflow.kir.nodes import (
    Apply,
    Axis,
    Block,
    Copy,
    For,
    Kernel,
    Load,
    Local,
    Mode,
    Operand,
    Store,
    Strip,
    Value,
)
from gpuflow.kir.verify import verify
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda
from gpuflow.targets.cuda.codegen.schedules import tiled_maps
from gpuflow.targets.cuda.codegen.schedules.launch_config import launch_shape, schedule_cuda
from gpuflow.targets.cuda.codegen.schedules.tiled_maps import SIDE
from gpuflow.targets.cuda.library.target import gpu_target


def strategies(function, *shapes):
    """How each launch of a plan is spread, and whether its points are pieces."""
    avals = [gf.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    plan, _ = compile_plan(gf.make_jaxpr(function)(*avals), target=gpu_target())
    steps = [step for step in plan.steps if step.kind == "kernel"]
    calls = [call for step in steps for group in step.launches for call in group]
    launches = [schedule_cuda(call.kernel, vectorize=True) for call in calls]
    return ["piece" if launch.block_tile else launch.strategy for launch in launches]


def test_what_goes_in_tiles():
    square = (256, 256)
    assert strategies(lambda x, y: x + y.T, square, square) == ["piece"]
    assert strategies(lambda x: jnp.sin(x.T), square) == ["piece"]
    assert strategies(lambda x: jnp.sin(x.transpose(0, 2, 1)), (8, 64, 64)) == ["piece"]
    # Rows as they lie, and too few points or rows to gain.
    assert strategies(lambda x: jnp.sin(x.transpose(1, 0, 2)), (64, 8, 64)) == ["point"]
    assert strategies(lambda x: jnp.sin(x[::2, ::2]), square) == ["point"]
    assert strategies(lambda x: jnp.sin(x.T), (127, 128)) == ["point"]
    assert strategies(lambda x: jnp.sin(x.T), (4096, 15)) == ["point"]
    # One of each would be read across memory either way.
    assert strategies(lambda x, y: x[:, ::2] + y.T, (256, 512), square) == ["point"]


def turned(dtype="float32", index_bits=64, batch=False):
    """o[b, i, j] = where(x[b, j, i] > row[i], x[b, j, i], y[j] + z[b, j, i]) + p % 2."""
    first = (ANY,) if batch else ()
    nothing = (ZERO,) if batch else ()
    operands = [
        Operand("x", dtype, IN, (*first, ANY, ANY)),
        Operand("row", "float32", IN, (*nothing, ANY, ZERO)),
        Operand("y", dtype, IN, (*nothing, ZERO, UNIT)),
        Operand("p", "int64", Mode.INDEX, (*nothing, ANY, UNIT)),
        Operand("z", dtype, IN, (*first, ANY, ANY)),
        Operand("o", dtype, OUT, (*first, ANY, UNIT)),
        Operand("positive", "bool", OUT, (*first, ANY, UNIT)),
    ]

    def rows(b):
        with b.for_axis("i0"):
            row = b.load("row")
            with b.for_axis("i1"):
                x = b.load("x")
                more = b.apply("gt", x, b.cast(row, x.dtype))
                odd = b.apply("and", b.load("p"), b.const("int64", 1))
                chosen = b.select(more, x, b.apply("add", b.load("y"), b.load("z")))
                b.store("o", b.apply("add", chosen, b.cast(odd, x.dtype)))
                b.store("positive", more)

    def body(b):
        if not batch:
            rows(b)
            return
        with b.for_axis("b0"):
            rows(b)

    axes = {**({"b0": PARALLEL} if batch else {}), "i0": PARALLEL, "i1": PARALLEL}
    return make("turned", axes, operands, body, index_bits=index_bits)


def check_turned(kernel, dtype, count, rows, columns, architecture=(9, 0)):
    whole, stored = count * rows * columns, np.zeros(1, random_array(1, dtype).dtype).dtype
    arrays = {
        "x": random_array(whole, dtype, 1),
        "z": random_array(whole, dtype, 2),
        "row": random_array(rows, "float32", 3),
        "y": random_array(columns, dtype, 4),
        "p": 7,
        "o": np.zeros(whole, stored),
        "positive": np.zeros(whole, bool),
    }
    strides = {("x", "i0"): 1, ("x", "i1"): rows, ("z", "i0"): 1, ("z", "i1"): rows}
    strides |= {("row", "i0"): 1, ("p", "i0"): columns}
    strides |= {(name, "i0"): columns for name in ("o", "positive")}
    strides |= {(name, "b0"): rows * columns for name in ("x", "z", "o", "positive")}
    extents = {"b0": count, "i0": rows, "i1": columns}
    # The untiled kernel says what must come out.
    names = [axis.name for axis in kernel.axes]
    extents = {name: extents[name] for name in names}
    strides = {key: step for key, step in strides.items() if key[1] in names}
    plain = check(kernel, arrays, extents, strides, architecture=architecture)
    in_tiles = check(
        tile_innermost(kernel, SIDE), arrays, extents, strides, architecture=architecture
    )
    for name in ("o", "positive"):
        np.testing.assert_array_equal(in_tiles[name], plain[name])


@requires_cuda_tools
@pytest.mark.parametrize("index_bits", [32, 64])
@pytest.mark.parametrize("shape", [(1, 1), (31, 33), (64, 32), (100, 7), (3, 130), (0, 5)])
def test_values(shape, index_bits):
    check_turned(turned(index_bits=index_bits), "float32", 1, *shape)


@requires_cuda_tools
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "int64"])
def test_values_of_other_dtypes(dtype):
    check_turned(turned(dtype), dtype, 1, 37, 45)


@requires_cuda_tools
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_values_of_several_matrices(architecture):
    check_turned(turned(batch=True), "float32", 3, 34, 40, architecture)


@requires_cuda_tools
@pytest.mark.parametrize("dtype", [bool, np.float32, np.int32, "bfloat16"])
def test_programs(dtype, monkeypatch):
    monkeypatch.setattr(tiled_maps, "MIN_TILED_SIZE", 1)
    x, y = np.random.default_rng(2).integers(0, 3, (2, 40, 40)).astype(jnp.dtype(dtype))
    with gf.default_device(gf.devices("cuda_sim")[0]):
        got = gf.jit(lambda x, y: jnp.where(x == y.T, x, y.T))(x, y)
    np.testing.assert_array_equal(np.asarray(got), np.where(x == y.T, x, y.T))


def written_by_nests():
    """o[b, i, j] = z[b, j, i] - x[b, j, i] + one[b], both by way of the same array."""
    operands = (
        Operand("x", "float32", IN, (ANY, ANY, ANY)),
        Operand("z", "float32", IN, (ANY, ANY, ANY)),
        Operand("one", "float32", IN, (ANY, ZERO, ZERO)),
        Operand("o", "float32", OUT, (ANY, ANY, UNIT)),
    )
    shape = (("i0", SIDE), ("i1", SIDE))
    tiles = (Local("tile", "float32", shape), Local("negated", "float32", shape))
    x, minus, one, kept, z, difference, total = (Value(k, "float32") for k in range(7))
    negate = (
        Load(x, "tile"),
        Apply((minus,), "neg", (x,)),
        Apply((kept,), "add", (minus, one)),
        Store("negated", kept),
    )
    add = (
        Load(difference, "negated"),
        Load(z, "tile"),
        Apply((total,), "add", (z, difference)),
        Store("o", total),
    )

    def nest(outer, inner, body):
        return For(outer, Block(body=(For(inner, Block(body=body)),)))

    body = (Copy("tile", "x"), nest("i0", "i1", negate), Copy("tile", "z"), nest("i1", "i0", add))
    strips = Strip("i0", SIDE, Block(body=(Strip("i1", SIDE, Block(body=body)),)))
    outer = For("b0", Block(body=(Load(one, "one"), strips)))
    axes = tuple(Axis(name, PARALLEL) for name in ("b0", "i0", "i1"))
    kernel = Kernel("written_by_nests", axes, operands, Block(body=(outer,)), locals=tiles)
    verify(kernel)
    return kernel


@requires_cuda_tools
@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (40, 70)])
def test_nests_wait_for_each_other(rows, columns):
    kernel, size = written_by_nests(), 2 * rows * columns
    x, z = np.random.default_rng(3).integers(0, 100, (2, size)).astype("float32")
    strides = {(name, "i1"): rows for name in ("x", "z")} | {("o", "i0"): columns, ("one", "b0"): 1}
    strides |= {(name, "i0"): 1 for name in ("x", "z")}
    strides |= {(name, "b0"): rows * columns for name in ("x", "z", "o")}
    arrays = {"x": x, "z": z, "one": np.array([1, 5], "float32"), "o": np.zeros(size, "float32")}
    found = check(kernel, arrays, {"b0": 2, "i0": rows, "i1": columns}, strides)["o"]
    turned_around = (z - x).reshape(2, columns, rows).transpose(0, 2, 1)
    wanted = turned_around + np.array([1, 5], "float32")[:, None, None]
    np.testing.assert_array_equal(found, wanted.reshape(-1))
    assert print_cuda(kernel).text.count("barrier()") == 4  # behind each copy and each nest


def test_launch_shapes():
    launch = schedule_cuda(tile_innermost(turned(batch=True), SIDE), vectorize=True)
    assert (launch.strategy, launch.block_tile, launch.vector_width) == ("point", (1, 32, 32), 1)
    assert launch.max_threads == 256

    def shape(*sizes):
        return launch_shape(launch, dict(zip(("b0", "i0", "i1"), sizes, strict=True)), 132)

    assert shape(1, 32, 32) == ((1, 1), (32, 8))
    assert shape(3, 33, 65) == ((3 * 2 * 3, 1), (32, 8))
    assert shape(1, 4096, 4096) == ((2112, 1), (32, 8))  # 16 blocks for each multiprocessor
    assert shape(5, 0, 32)[0][0] == 0


def test_lanes_are_neighbors_in_memory_and_in_different_banks():
    text = print_cuda(tile_innermost(turned(), SIDE)).text
    fill = text.index("x_tile[")
    before = text[:fill]
    # The copy goes along the operand's own neighbors; the work, behind a barrier, along the rows.
    assert before.count("cuda.threadIdx.x") == 1
    assert "i0 = i0_start + np.int64(cuda.threadIdx.x)" in before
    assert "x_tile[(i0 - i0_start) * 33 + i1 - i1_start]" in text
    assert "i1 = i1_start + np.int64(cuda.threadIdx.x)" in text[text.index("barrier()") :]


@requires_cuda_tools
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_machine_code(architecture):
    """Four loads of a tile are on their way at once; index arithmetic divides 32-bit numbers."""
    _, built = build(tile_innermost(turned(index_bits=32), SIDE), True, architecture)
    assert built.spill_bytes == 0
    assert built.shared_bytes == 2 * 4 * SIDE * (SIDE + 1)
    assert built.ptx.count("bar.sync") == 2
    assert not any(word in built.ptx for word in ("div.s64", "div.u64", "rem.s64", "rem.u64"))
    accesses = [line for line in built.ptx.splitlines() if "ld.global" in line or "bar" in line]
    barrier = next(k for k, line in enumerate(accesses) if "bar.sync" in line)
    assert barrier == 2 * SIDE // 8, "the loops over the rows of a tile must be unrolled"


def test_other_local_arrays_stay():
    kept = Local("kept", "float32", (("i0", 64),))
    kernel = tile_innermost(replace(turned(), locals=(kept,)), SIDE)
    verify(kernel)
    assert [local.name for local in kernel.locals] == ["kept", "x_tile", "z_tile"]
