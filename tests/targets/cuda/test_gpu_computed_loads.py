"""Loads at computed offsets on GPUs, in branches or not: which are vectors, and what they read."""

import ml_dtypes
import numpy as np
import pytest
from cuda_harness import ANY, IN, OUT, PARALLEL, UNIT, ZERO, check, make, random_array
from cuda_tools import requires_cuda_tools, sass

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.kir.nodes import Argument, For, Mode, Operand
from gpuflow.targets.cuda.codegen.build import build_cuda
from gpuflow.targets.cuda.codegen.printing.computed_loads import computed_loads
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda
from gpuflow.targets.cuda.library.target import gpu_target

I64 = "int64"


def last_kernel(function, *avals):
    """The kernel of the last launch of a program."""
    plan, _ = compile_plan(gf.make_jaxpr(function)(*avals), target=gpu_target())
    steps = [step for step in plan.steps if step.kind == "kernel"]
    return [call.kernel for step in steps for group in step.launches for call in group][-1]


def innermost(kernel):
    """The statements of one point."""
    block = kernel.body
    while isinstance(block.body[-1], For):
        block = block.body[-1].body
    return block


# --- instructions --------------------------------------------------------------------------


def concatenated(axis):
    return lambda x, y: jnp.concatenate([x, y], axis)


# Name, function, shapes of its floating operands, whether an index follows them; vector loads.
PROGRAMS = {
    "columns": (concatenated(1), ((64, 128), (64, 64)), False, 2),
    "rows": (concatenated(0), ((64, 128), (64, 128)), False, 2),
    "a cache and a new row": (concatenated(1), ((4, 64, 32), (4, 1, 32)), False, 2),
    "stacked": (lambda x, y: jnp.stack([x, y], 1), ((64, 128), (64, 128)), False, 2),
    "rotated halves": (
        lambda x, y: x + y * jnp.concatenate([x[:, 64:], x[:, :64]], 1),
        ((64, 128), (64, 128)),
        False,
        4,
    ),
    "rows that an index selects": (lambda x, i: x[i], ((64, 128),), True, 1),
    "padded": (lambda x: jnp.pad(x, ((1, 1), (8, 8))), ((64, 128),), False, 1),
}


@requires_cuda_tools
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_thread_loads_16_bytes_at_once(name, dtype):
    """It loaded 2 bytes, eight times."""
    function, shapes, has_index, vectors = PROGRAMS[name]
    avals = [gf.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    avals += [gf.ShapeDtypeStruct((40,), "int32")] if has_index else []
    source = print_cuda(last_kernel(function, *avals))
    built = build_cuda(
        source.text, source.entry, source.signature, (9, 0), source.launch.max_threads
    )
    assert built.spill_bytes == 0
    loads = [line for line in sass(built.cubin) if "LDG." in line]
    assert sum(".128" in line for line in loads) == vectors, loads


# --- values --------------------------------------------------------------------------------

# Sizes along the axis: vectors lie in one piece; or cross borders, or have a tail.
SIZES = [(8, 16), (16, 24, 8), (4, 12), (1, 15), (5, 6), (8, 8, 8, 8)]


@requires_cuda_tools
@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "float32"])
@pytest.mark.parametrize("axis", [0, 1])
def test_concatenation(axis, dtype):
    random = np.random.default_rng(0)
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    with gf.default_device(gf.devices("cuda_sim")[0]):
        join = gf.jit(lambda *pieces: jnp.concatenate(pieces, axis))
        for sizes in SIZES:
            shapes = [(3, size) if axis else (size, 16) for size in sizes]
            pieces = [random.integers(-9, 9, shape).astype(numpy_dtype) for shape in shapes]
            got = np.asarray(join(*map(jnp.asarray, pieces)))
            np.testing.assert_array_equal(got, np.concatenate(pieces, axis), str(sizes))


@requires_cuda_tools
@pytest.mark.parametrize("skip", [0, 1, 8])
def test_rows_that_begin_anywhere(skip):
    """What is read begins at 16 bytes, or not: slices of an argument, and rows of it."""
    x = np.random.default_rng(1).integers(-9, 9, (9, 40)).astype(ml_dtypes.bfloat16)
    rows = np.array([3, 0, -1, 5], np.int32)
    with gf.default_device(gf.devices("cuda_sim")[0]):
        joined = gf.jit(lambda x: jnp.concatenate([x[:, skip : skip + 8], x[:, :16]], 1))(x)
        chosen = gf.jit(lambda x, rows: x[:, skip : skip + 24][rows])(x, rows)
        padded = gf.jit(lambda x: jnp.pad(x, ((0, 0), (skip, 24 - skip))))(x)
    want = np.concatenate([x[:, skip : skip + 8], x[:, :16]], 1)
    np.testing.assert_array_equal(np.asarray(joined), want)
    np.testing.assert_array_equal(np.asarray(chosen), x[:, skip : skip + 24][rows])
    np.testing.assert_array_equal(np.asarray(padded), np.pad(x, ((0, 0), (skip, 24 - skip))))


# --- which loads ---------------------------------------------------------------------------


def kernel_of(element, dtype="float32", index_stride=UNIT):
    """o[i, j] = element(builder, i, j): with sources x and y, and scalars a and b."""
    operands = [
        Operand("x", dtype, IN, (ZERO, ZERO)),
        Operand("y", dtype, IN, (ZERO, ZERO)),
        Operand("n", I64, IN, (ANY, ZERO)),
        Operand("m", I64, IN, (ZERO, UNIT)),
        Operand("row", I64, Mode.INDEX, (ANY, ZERO)),
        Operand("at", I64, Mode.INDEX, (ZERO, index_stride)),
        Operand("a", I64, Mode.SCALAR, (ZERO, ZERO)),
        Operand("b", I64, Mode.SCALAR, (ZERO, ZERO)),
        Operand("o", dtype, OUT, (ANY, UNIT)),
    ]

    def body(b):
        with b.for_axis("i0"), b.for_axis("i1"):
            b.store("o", element(b))

    return make("element", {"i0": PARALLEL, "i1": PARALLEL}, operands, body)


def branch(compare, left, right, swap=False):
    """x[at] or y[at - a], by a comparison of two values of the point."""

    def element(b):
        at, pair = b.load("at"), [left(b), right(b)]
        predicate = b.apply(compare, *(reversed(pair) if swap else pair))
        second = b.apply("sub", at, b.load("a"))
        return b.lazy_select(
            predicate, lambda: b.load("x", offset=at), lambda: b.load("y", offset=second)
        )

    return element


def at(b):
    return b.load("at")


def scalar(name):
    return lambda b: b.load(name)


def const(value):
    return lambda b: b.const(I64, value)


# What is loaded at once, and by which arguments it is.
COMPUTED = {
    "before": (branch("lt", at, scalar("a")), {"at", "a"}),
    "from there on": (branch("ge", at, scalar("a")), {"at", "a"}),
    "mirrored": (branch("gt", at, scalar("a"), swap=True), {"at", "a"}),
    "a constant": (branch("lt", at, const(8)), {"at", "a"}),
    "by rows": (branch("lt", scalar("row"), scalar("b")), {"at", "a"}),
    "by a number of the row": (branch("eq", scalar("n"), scalar("b")), {"at", "a"}),
    "a row that an index selects": (
        lambda b: b.load(
            "x", offset=b.apply("add", b.apply("mul", b.load("n"), b.load("b")), b.load("at"))
        ),
        {"at", "b"},
    ),
    "up to": (branch("le", at, scalar("a")), None),
    "behind": (branch("gt", at, scalar("a")), None),
    "one of them": (branch("eq", at, scalar("a")), None),
    "an odd constant": (branch("lt", at, const(7)), None),
    "a number of the row as the border": (branch("lt", at, scalar("n")), None),
    "by the point": (branch("lt", scalar("m"), scalar("a")), None),
    "every second one": (
        lambda b: b.load("x", offset=b.apply("mul", b.load("at"), b.const(I64, 2))),
        None,
    ),
    "backward": (lambda b: b.load("x", offset=b.apply("sub", b.load("a"), b.load("at"))), None),
    "what an index selects": (lambda b: b.load("x", offset=b.load("m")), None),
    "a row anywhere": (
        lambda b: b.load("x", offset=b.apply("add", b.load("n"), b.load("at"))),
        None,
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_which_loads_may_be_vectors(name):
    element, needs = COMPUTED[name]
    kernel = kernel_of(element)
    found = computed_loads(kernel, innermost(kernel), 4)
    assert bool(found) == (needs is not None)
    if found:
        assert {argument.operand for argument in found[0].required_multiples} == needs
        assert all(argument.kind in ("base", "scalar") for argument in found[0].required_multiples)
    # The index along the last axis must count by one.
    strided = kernel_of(element, index_stride=ANY)
    assert not computed_loads(strided, innermost(strided), 4)


def test_wide_elements_are_loaded_by_themselves():
    """Four elements of 8 bytes are no access of 16."""
    element = COMPUTED["before"][0]
    kernel = kernel_of(element, dtype="float64")
    assert not computed_loads(kernel, innermost(kernel), 4)
    assert computed_loads(kernel, innermost(kernel), 2)


def test_a_comparison_decides_through_other_values():
    """Both borders of padding are needed, through ``and`` and ``where``."""

    def element(b):
        at, low, high = b.load("at"), b.load("a"), b.load("b")
        inside = b.apply("and", b.apply("ge", at, low), b.apply("lt", at, high))
        return b.load("x", offset=at, where=inside)

    kernel = kernel_of(element)
    (found,) = computed_loads(kernel, innermost(kernel), 4)
    needs = {Argument("base", "at"), Argument("scalar", "a"), Argument("scalar", "b")}
    assert set(found.required_multiples) == needs


@requires_cuda_tools
@pytest.mark.parametrize("name", ["before", "mirrored", "up to", "a row that an index selects"])
def test_values_are_those_of_the_definition(name):
    """Multiples of a vector's width, and each of the arguments one that is none."""
    kernel = kernel_of(COMPUTED[name][0])
    for base, a, b, first in [
        (0, 8, 16, 0),
        (4, 8, 12, 4),
        (1, 8, 16, 0),
        (0, 6, 16, 0),
        (0, 8, 15, 0),
        (0, 8, 16, 1),
    ]:
        arrays = {
            "x": (random_array(256, "float32", 1), first),
            "o": np.zeros(64, np.float32),
            "y": (random_array(256, "float32", 2), 16),
            "m": np.arange(16),
            "n": np.array([2, 0, 1]),
            "row": 0,
            "at": base,
            "a": a,
            "b": b,
        }
        strides = {("n", "i0"): 1, ("row", "i0"): 1, ("o", "i0"): 16}
        check(kernel, arrays, {"i0": 3, "i1": 16}, strides)
