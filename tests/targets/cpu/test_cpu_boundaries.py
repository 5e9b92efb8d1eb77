"""Loops that are cut where the conditions of their loads change; nothing outside is touched."""

from __future__ import annotations

import itertools
import re
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from cpu_harness import (
    ANY,
    IN,
    OUT,
    UNIT,
    ZERO,
    check_against_interpreter,
    make_kernel,
    random_array,
)
from guarded_memory import guarded, needs_guards

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import dlpack, lax
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.compiler.schedules.schedule import scheduled
from gpuflow.kir.nodes import Mode, Operand, Role
from gpuflow.targets.cpu.codegen import libm, loop_compiler, vector_loops
from gpuflow.targets.cpu.codegen.loop_compiler import compile_module
from gpuflow.targets.cpu.codegen.machine_code import optimized_text
from gpuflow.targets.cpu.codegen.schedules.pipeline import CPU_SCHEDULES
from gpuflow.targets.cpu.runtime.kernels import print_cpu

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int32",
    "int64",
    "bool",
    "complex64",
)


def _window(x, size=3, stride=1):
    start = jnp.asarray(0, x.dtype)
    ones = (stride,) * x.ndim
    return lax.reduce_window(x, start, lax.max, (size,) * x.ndim, ones, "SAME")


def _pooled(x):
    """An extreme of windows and its derivative, which spreads over them."""
    return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (3,) * x.ndim, (2,) * x.ndim, "SAME"))


# Everything that loads under a condition: of the index, of data, of both.
PROGRAMS = {
    "roll": lambda x: jnp.roll(x, 1, -1),
    "roll back": lambda x: jnp.roll(x, -3, 0),
    "append": lambda x: jnp.append(x, x[:1]),
    "concatenate": lambda x: jnp.concatenate([x, x[:0], x[1:], x, x[:2]]),
    "columns": lambda x: jnp.concatenate([x, x[..., :2], x], axis=-1),
    "stack": lambda x: jnp.stack([x, x, x], axis=-1),
    "pad": lambda x: jnp.pad(x, 2),
    "edge": lambda x: jnp.pad(x, 2, mode="edge"),
    "wrap": lambda x: jnp.pad(x, 2, mode="wrap"),
    "reflect": lambda x: jnp.pad(x, 2, mode="reflect"),
    "holes": lambda x: lax.pad(x, x.ravel()[0], [(1, -1, 1)] + [(0, 1, 2)] * (x.ndim - 1)),
    "reversed": lambda x: jnp.concatenate([x[::-1], x[::2], x[-2::-3]]),
    "fill": lambda x: jnp.take(x, jnp.arange(-3, 8), axis=0, mode="fill", fill_value=1),
    "clip": lambda x: jnp.take(x, jnp.arange(90, 120), axis=0, mode="clip"),
    "slice": lambda x: lax.dynamic_slice(x, [jnp.int32(99)] * x.ndim, (2,) * x.ndim),
    "update": lambda x: lax.dynamic_update_slice(x, x[:3], [jnp.int32(2)] * x.ndim),
    "scatter": lambda x: x.at[jnp.arange(5) + 98].set(x[:5], mode="drop"),
    "summed": lambda x: jnp.sum(jnp.roll(x, 2, -1) * x, axis=0),
    "turned": lambda x: jnp.pad(x, 3).T + 1,
}
OF_NUMBERS = {
    "window": _window,
    "rows": lambda x: jnp.argmax(jnp.roll(x, 2, -1), axis=-1),
    "window by two": lambda x: _window(x, 4, 2),
    "long window": lambda x: _window(x, 40) if x.ndim == 1 else _window(x, 6),
    "softmax": lambda x: gf.nn.softmax(jnp.roll(x, 1, -1).astype("float32")),
}
OF_FLOATS = {"pooled": gf.grad(_pooled), "sloped": gf.grad(lambda x: jnp.sum(jnp.pad(x, 3) ** 2))}
SHAPES = ((101,), (40, 33), (13, 5, 3))


def _programs(dtype):
    yield from PROGRAMS.items()
    if dtype not in ("bool", "complex64"):
        yield from OF_NUMBERS.items()
    if dtype.startswith("float"):
        yield from OF_FLOATS.items()


@needs_guards
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ("float32", "int8", "complex64"))
def test_arrays_between_pages_that_may_not_be_read(dtype, shape):
    # A read outside is a crash where it counts, and the values are those of the same array in the
    # middle of other memory.
    with gf.enable_x64():
        plain = random_array(shape, dtype.replace("complex", "float"), 1).astype(dtype)
        inside = jnp.asarray(plain)
        begins, ends = (dlpack.from_dlpack(guarded(plain, at_end)) for at_end in (False, True))
        for name, program in _programs(dtype):
            expected = np.asarray(gf.jit(program)(inside))
            for x in (begins, ends):
                np.testing.assert_array_equal(np.asarray(gf.jit(program)(x)), expected, name)


@needs_guards
@pytest.mark.parametrize("dtype", DTYPES)
def test_moved_arrays_against_numpy(dtype):
    with gf.enable_x64():
        values = random_array((67,), "bool" if dtype == "bool" else "int8")
        plain = np.asarray(jnp.asarray(values).astype(dtype))
        shared = plain if dtype == "bfloat16" else guarded(plain, at_end=True)
        x = jnp.asarray(plain) if dtype == "bfloat16" else dlpack.from_dlpack(shared)
        pairs = {
            "roll": (lambda x: jnp.roll(x, 5), np.roll(plain, 5)),
            "append": (lambda x: jnp.append(x, x[:1]), np.append(plain, plain[:1])),
            "pad": (lambda x: jnp.pad(x, (3, 4)), np.pad(plain, (3, 4))),
            "edge": (lambda x: jnp.pad(x, 3, mode="edge"), np.pad(plain, 3, mode="edge")),
            "wrap": (lambda x: jnp.pad(x, 70, mode="wrap"), np.pad(plain, 70, mode="wrap")),
            "four": (lambda x: jnp.concatenate([x] * 4), np.concatenate([plain] * 4)),
        }
        for name, (program, expected) in pairs.items():
            np.testing.assert_array_equal(np.asarray(gf.jit(program)(x)), expected, name)


def test_nothing_is_read_of_an_array_without_elements():
    # Its address may be anything.
    empty, full = jnp.zeros((0, 3)), jnp.ones((2, 3))
    index = jnp.array([0, 1, -1])
    np.testing.assert_array_equal(gf.jit(lambda x: jnp.concatenate([x, full, x]))(empty), full)
    np.testing.assert_array_equal(gf.jit(lambda x: jnp.pad(x, 2))(empty), np.zeros((4, 7)))
    # An index of 0 counted as inside, or was clipped to be: what lay in memory came out.
    for mode in ("fill", "clip", "promise_in_bounds"):
        for wrap in (gf.jit, lambda f: f):
            taken = wrap(lambda x, mode=mode: x.at[index].get(mode=mode))(empty)
            np.testing.assert_array_equal(taken, np.full((3, 3), np.nan), mode)
    windows = gf.jit(
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), [(3, 3), (1, 1)])
    )(empty)
    np.testing.assert_array_equal(windows, np.zeros((5, 4)))


def _kernels(function, *avals):
    plan, _ = compile_plan(gf.make_jaxpr(function)(*avals))
    numbers = itertools.count(1000)
    for step in plan.steps:
        for call in step.calls if isinstance(step, KernelStep) else ():
            launches = scheduled(call, lambda count: next(numbers), CPU_SCHEDULES)
            yield from (launch.kernel for launch in launches)


def _masked(kernel):
    """Its masked accesses; not those of a short row, whose mask is known."""
    module = compile_module(print_cpu(kernel))
    text = optimized_text(str(module), late_passes=libm.inline_variants)
    access = r"call [^@\n]*@(llvm\.masked\.(?:load|store|expandload|compressstore))"
    known = "x i1> <i1 true"
    return [found[1] for found in re.finditer(access + ".*", text) if known not in found[0]]


@pytest.mark.parametrize("dtype", ("float32", "int8"))
def test_no_masked_access_in_long_loops(dtype, monkeypatch):
    """LLVM makes masked accesses of three more kinds, which this leaves out.

    Of a short row, whose size stands in the text, it makes one vector: what it covers behind the
    last rows of an array is one vector at most. Neither do the masks of long bodies cover more.
    And where an update replaces some elements, the places of all of them are read, which are
    inside.
    """
    monkeypatch.setattr(loop_compiler, "LONG_BODY", sys.maxsize)
    # The vectors that are written for LLVM have masks that cover one vector's elements at most.
    monkeypatch.setattr(vector_loops, "cpu_target", lambda: SimpleNamespace(is_x86=False))
    for name, program in _programs(dtype):
        if name in ("scatter", "update", "stack"):
            continue
        for shape in ((1000,), (300, 200), (30, 40, 50)):
            for kernel in _kernels(program, gf.ShapeDtypeStruct(shape, dtype)):
                assert not _masked(kernel), (name, shape, kernel.name)


@pytest.mark.parametrize("bounds", [(0, 0), (-5, 3), (40, 7), (200, -9), (13, 90), (90, 13)])
@pytest.mark.parametrize("multiple", [1, 3, -2])
def test_borders_anywhere(bounds, multiple):
    # Two conditions, one of them of a multiple of the index, in whatever order their borders lie.
    operands = [
        Operand("x", "float32", IN, (UNIT,)),
        Operand("y", "float32", IN, (UNIT,)),
        Operand("o", "float32", OUT, (UNIT,)),
        Operand("j", "int64", Mode.INDEX, (UNIT,)),
        Operand("a", "int64", Mode.SCALAR),
        Operand("b", "int64", Mode.SCALAR),
    ]

    def body(builder):
        with builder.for_axis("i0"):
            index, a, b = builder.load("j"), builder.load("a"), builder.load("b")
            scaled = builder.apply("mul", index, builder.const("int64", multiple))
            low, high = builder.apply("ge", scaled, a), builder.apply("le", index, b)
            both = builder.apply("and", low, high)
            found = builder.lazy_select(
                builder.apply("lt", index, b),
                lambda: builder.load("x"),
                lambda: builder.lazy_select(
                    builder.apply("gt", a, index),
                    lambda: builder.load("y"),
                    lambda: builder.const("float32", 7),
                ),
            )
            guarded_one = builder.load("y", where=both)
            builder.store("o", builder.apply("add", found, guarded_one))

    kernel = make_kernel("borders", {"i0": Role.PARALLEL}, operands, body)
    arrays = {
        "x": random_array(77, "float32"),
        "y": random_array(77, "float32", 1),
        "o": np.zeros(77, np.float32),
        "j": 0,
        "a": bounds[0],
        "b": bounds[1],
    }
    for chunks in (1, 5):
        check_against_interpreter(kernel, arrays, {"i0": 77}, chunks=chunks)


@pytest.mark.parametrize("base", (0, 2, -3))
def test_short_rows_that_count_from_anywhere(base):
    # A row from 0 on has borders that are numbers; another is one loop of guarded loads.
    operands = [
        Operand("x", "float32", IN, (ANY, UNIT)),
        Operand("y", "float32", IN, (ANY, UNIT)),
        Operand("o", "float32", OUT, (ANY, UNIT)),
        Operand("j", "int64", Mode.INDEX, (ZERO, UNIT)),
    ]

    def body(builder):
        with builder.for_axis("i0"), builder.for_axis("i1"):
            index = builder.load("j")
            border = builder.const("int64", 4)
            doubled = builder.apply("mul", index, builder.const("int64", 2))
            found = builder.lazy_select(
                builder.apply("lt", index, border),
                lambda: builder.load("x"),
                lambda: builder.load("y"),
            )
            where = builder.apply("ge", doubled, builder.const("int64", 3))
            builder.store("o", builder.apply("add", found, builder.load("x", where=where)))

    axes = {"i0": Role.PARALLEL, "i1": (Role.PARALLEL, 7)}
    kernel = make_kernel("short", axes, operands, body, kind="map")
    arrays = {
        "x": random_array(5 * 7, "float32"),
        "y": random_array(5 * 7, "float32", 1),
        "o": np.zeros(5 * 7, np.float32),
        "j": base,
    }
    strides = {(name, "i0"): 7 for name in ("x", "y", "o")}
    check_against_interpreter(kernel, arrays, {"i0": 5}, strides, chunks=2)
    assert {"short_range(0, 2)", "short_range(2, 4)", "short_range(4, 7)"} <= set(
        re.findall(r"short_range\(\d, \d\)", print_cpu(kernel).text)
    )


def test_a_row_of_windows_is_cut_by_few_numbers():
    # Each tap had its own sizes and strides, 125 in all, which no compiler could know to be equal;
    # a pool of short rows took three times as long as before loops were cut.
    def pool(x):
        return lax.reduce_window(x, 0.0, lax.add, (1, 1, 5, 5), (1, 1, 1, 1), "SAME")

    (kernel,) = _kernels(pool, gf.ShapeDtypeStruct((2, 3, 28, 28), "float32"))
    scalars = [operand for operand in kernel.operands if operand.mode is Mode.SCALAR]
    assert len(scalars) == 5  # two sizes, three strides
    # Two columns on either side need a condition in each of five rows; the middle one needs none.
    assert print_cpu(kernel).text.count("_where(x0") == 20


def test_more_borders_than_are_worth_a_loop_each():
    # Conditions of twelve unrelated borders and one on data: the loads take their addresses from
    # them outside of where all hold.
    count = 12
    operands = [
        Operand("x", "float32", IN, (UNIT,)),
        Operand("m", "bool", IN, (UNIT,)),
        Operand("o", "float32", OUT, (UNIT,)),
        Operand("j", "int64", Mode.INDEX, (UNIT,)),
        *[Operand(f"s{k}", "int64", Mode.SCALAR) for k in range(count)],
    ]

    def body(builder):
        with builder.for_axis("i0"):
            total, index = builder.load("x", where=builder.load("m")), builder.load("j")
            for k in range(count):
                fn = "lt" if k % 2 else "ge"
                where = builder.apply(fn, index, builder.load(f"s{k}"))
                total = builder.apply("add", total, builder.load("x", where=where))
            builder.store("o", total)

    kernel = make_kernel("many", {"i0": Role.PARALLEL}, operands, body)
    generator = np.random.default_rng(3)
    for _ in range(5):
        arrays = {
            "x": random_array(90, "float32"),
            "m": random_array(90, "bool"),
            "o": np.zeros(90, np.float32),
            "j": 0,
            **{f"s{k}": int(generator.integers(-10, 100)) for k in range(count)},
        }
        check_against_interpreter(kernel, arrays, {"i0": 90}, chunks=3)


def _seconds(function, arrays):
    begin = time.process_time()
    for _ in range(3):
        out = function(*arrays)
    out.block_until_ready()
    return time.process_time() - begin


@needs_guards
def test_moving_a_million_elements_takes_as_long_as_a_multiply_add():
    # It took 30 to 200 times as long: masked loads that reached beyond what is mapped.
    count = 1_000_000
    whole = dlpack.from_dlpack(guarded(np.ones(count, np.float32), at_end=True))
    parts = [
        dlpack.from_dlpack(guarded(np.ones(count // 4, np.float32), at_end=True)) for _ in range(4)
    ]
    cases = {
        "roll": (gf.jit(lambda x: jnp.roll(x, 1)), [whole]),
        "roll back": (gf.jit(lambda x: jnp.roll(x, -1)), [whole]),
        "append": (gf.jit(lambda x: jnp.append(x, 1.0)), [whole]),
        "pad": (gf.jit(lambda x: jnp.pad(x, 1)), [whole]),
        "edge": (gf.jit(lambda x: jnp.pad(x, 1, mode="edge")), [whole]),
        "wrap": (gf.jit(lambda x: jnp.pad(x, 3, mode="wrap")), [whole]),
        "concatenate": (gf.jit(lambda *pieces: jnp.concatenate(pieces)), parts),
    }
    unit = gf.jit(lambda x: x * 2 + 1)
    _seconds(unit, [whole])
    for name, (function, arrays) in cases.items():
        _seconds(function, arrays)
        for _ in range(4):  # a machine with other work needs several tries
            pairs = [(_seconds(function, arrays), _seconds(unit, [whole])) for _ in range(9)]
            ratio = min(own for own, _ in pairs) / min(other for _, other in pairs)
            if ratio <= 3:
                break
        assert ratio <= 3, (name, ratio)


def _text_of(function, *args):
    return gf.jit(function).lower(*args).compile().explain(stage="text")


@pytest.mark.parametrize(("count", "loops"), [(2, 1), (4, 1), (5, 5), (16, 16), (32, 32)])
def test_pieces_along_an_outer_axis(count, loops):
    # Sixteen pieces had a guarded load for each, and took 13 times as long as a copy. Few are
    # chosen before one loop; of many each has one.
    xs = [np.zeros((20 + k, 30), np.float32) for k in range(count)]
    text = _text_of(lambda *xs: jnp.concatenate(xs), *xs)
    assert "= load_x0_where(" not in text
    assert text.count("for i1 in range") == loops
    got = gf.jit(lambda *xs: jnp.concatenate(xs))(*[x + k for k, x in enumerate(xs)])
    np.testing.assert_array_equal(got, np.concatenate([x + k for k, x in enumerate(xs)]))


def test_a_stencil_of_rolls_has_a_loop_for_each_piece_of_a_row():
    def stencil(xp, x):
        around = [xp.roll(x, by, axis) for axis in range(x.ndim) for by in (1, -1)]
        return sum(around) - 2 * x.ndim * x

    for shape in ((40, 50), (9, 10, 33), (5, 4, 3, 30)):
        x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
        text = _text_of(lambda x: stencil(jnp, x), x)
        assert "= load_x0_where(" not in text
        assert len(re.findall(r"for i\d in range", text)) == len(shape) - 1 + 4
        np.testing.assert_array_equal(gf.jit(lambda x: stencil(jnp, x))(x), stencil(np, x))


def test_what_a_piece_does_not_need_is_not_in_its_loop():
    xs = [np.arange(40, dtype=np.int8) + k for k in range(8)]
    text = _text_of(lambda *xs: jnp.stack(xs, -1), *xs)
    first = text[text.index("for i1 in short_range(0, 1)") :]
    first = first[: first.index("store_")]
    assert "load_x0(" in first
    assert not re.search(r"load_x[1-7]|select", first)
    np.testing.assert_array_equal(gf.jit(lambda *xs: jnp.stack(xs, -1))(*xs), np.stack(xs, -1))


def test_branches_in_branches_that_do_not_vary():
    # Each choice, with values that are computed of what is loaded, and gaps between pieces.
    xs = [np.arange(12, dtype=np.float32).reshape(3, 4) + 20 * k for k in range(5)]

    def function(xp, *xs):
        whole = xp.concatenate([xs[0], xs[1][:0], xs[2], xp.concatenate(xs[3:], 0)[1:]], 0)
        columns = xp.concatenate([whole[:, 1:], whole[:, :1]], 1)
        return columns * 2 + xp.roll(whole, 1, 0), whole[::-1] + columns

    got = gf.jit(lambda *xs: function(jnp, *xs))(*xs)
    for mine, truth in zip(got, function(np, *xs), strict=True):
        np.testing.assert_array_equal(mine, truth)
