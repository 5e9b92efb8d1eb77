"""Straight loops that are written as loops of vectors (``vector_loops``)."""

import ctypes
import re
from types import SimpleNamespace

import numpy as np
import pytest
from cpu_harness import calls_of
from loop_texts import HEAD_Z, called, loop, set_masks, source, vectors
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.targets.cpu.codegen import build, libm, vector_loops
from gpuflow.targets.cpu.codegen.build import assembly, build_cpu, load_cpu
from gpuflow.targets.cpu.codegen.loop_compiler import compile_module
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.runtime.kernels import print_cpu

pytestmark = pytest.mark.skipif(
    not cpu_target().is_x86 or "avx2" not in cpu_target().features, reason="AVX2"
)
SIZES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 257)


@pytest.fixture(params=["own masks", "masks of all types"])
def masks(request, monkeypatch):
    """With AVX-512's rules, LLVM takes their instructions apart on other processors."""
    if request.param == "masks of all types":
        set_masks(monkeypatch, True)
    return request.param


# --- which loops ------------------------------------------------------------------------------


@together(size=50)
@pytest.mark.parametrize(
    "body, count",
    [
        (loop("store_o(o, i, load_x(x, i) + load_y(y, i))"), 4),
        (loop("store_o(o, i, load_x(x, i + 3) + load_y(y, i - 1))"), 4),
        (loop("store_o(o, i, load_x(x, 5) + load_y(y, i))"), 4),
        (loop("store_o(o, i, exp_float32(log1p_float32(load_x(x, i))))"), 2),
        (loop("store_o(o, i, lgamma_float32(load_x(x, i)))"), 1),
        (
            loop(
                "a = digamma_float32(load_x(x, i))",
                "b = lgamma_float32(a)",
                "store_o(o, i, digamma_float32(b))",
            ),
            0,
        ),
        # A list of indices, every second element, the other way round, and one for all.
        (loop("store_o(o, i, load_x(x, i * 2))"), 4),
        (loop("store_o(o, i, load_x(x, i * 5))"), None),
        (loop("store_o(o, i, load_x(x, hi - i))"), None),
        (loop("store_o(o, i * 2, load_x(x, i))"), None),
        (loop("store_o(o, 0, load_x(x, i))"), None),
        # Either of two for all elements: LLVM leaves the work for the other one out.
        (
            ["c = hi < 9", *loop("store_o(o, i, select_float32(c, load_x(x, i), load_y(y, i)))")],
            None,
        ),
        (["c = True", *loop("store_o(o, i, select_float32(c, load_x(x, i), load_y(y, i)))")], 4),
        # A few turns; a sum in this order; a decision.
        (loop("store_o(o, i, load_x(x, i))", bounds="7"), None),
        (["s = np.float32(0.0)", *loop("s = s + load_x(x, i)"), "store_o(o, 0, s)"], None),
        (loop("if i < 3:", "    store_o(o, i, load_x(x, i))"), None),
    ],
)
def test_which_loops_are_written(body, count):
    assert vectors(source(body)) == count


@together(size=50)
@pytest.mark.parametrize(
    "statements, is_written",
    [
        (("store_o(o, i, load_z(o, i) + load_x(x, i))",), True),
        (("store_o(o, i, load_z(o, i + 1) + load_x(x, i))",), False),
        (("store_o(o, i, load_z(o, 0) + load_x(x, i))",), False),
        (("store_o(o, i, load_x(x, i))", "store_o(o, i + 1, load_x(x, i))"), False),
        # Nobody says that they are apart.
        (("store_float32(o, i, load_float32(x, i))",), False),
    ],
    ids=["in place", "ahead", "the first", "twice", "anywhere"],
)
def test_accesses_that_may_meet(statements, is_written):
    assert (vectors(source(loop(*statements), head=HEAD_Z)) is not None) == is_written


@together(size=50)
@pytest.mark.parametrize("size", [1, 13, 64])
@pytest.mark.parametrize("read", ["load_z(o, i)", "load_float32(o, i)"])
def test_what_a_turn_stores_it_may_read(read, size):
    body = loop("store_o(o, i, load_x(x, i))", f"store_o(o, i, {read} + load_y(y, i))")
    x, y, out = np.arange(64, dtype="float32"), np.ones(64, "float32"), np.zeros(64, "float32")
    called(source(body, head=HEAD_Z), x, y, out, size=size)
    np.testing.assert_array_equal(out, np.where(np.arange(64) < size, x + 1, 0))


def test_what_the_last_turn_leaves():
    after = [*loop("t = load_x(x, i)", "store_o(o, i, t)"), "store_o(o, 0, t)"]
    assert vectors(source(after)) is None
    x, out = np.arange(9, dtype="float32"), np.zeros(9, "float32")
    called(source(after), x, x, out, size=9)
    np.testing.assert_array_equal(out, [8, *range(1, 9)])


def test_an_array_on_the_stack_that_is_another_one():
    text = source(["t = local_float32(64)", "t = o", *loop("store_float32(t, i, load_y(y, i))")])
    out = np.zeros(64, "float32")
    called(text, out, out + 1, out, size=3)
    np.testing.assert_array_equal(out, np.arange(64) < 3)


def test_one_array_as_two_types():
    body = ["t = local_float32(64)"]
    body += loop("store_float32(t, i, load_x(x, i))", "store_o(o, i, load_int32(t, i))")
    x, out = np.arange(40, dtype="float32"), np.zeros(40, "int32")
    called(source(body, o="int32"), x, x, out, size=40)
    np.testing.assert_array_equal(out, x.view("int32"))


def test_bytes_need_masks(masks):
    text = source(loop("store_o(o, i, load_x(x, i))"), x="int8", o="int8")
    assert (vectors(text) is not None) == (masks == "masks of all types" or cpu_target().has_masks)
    whole = loop("store_o(o, i, load_x(x, i))", bounds="lo, lo + 256")
    assert vectors(source(whole, x="int8", o="int8")) == 4


@together(size=50)
@pytest.mark.parametrize(
    "index, bounds, has_masks",
    [
        ("i - lo", "lo, hi", False),
        ("(i - lo) * 1", "lo, hi", True),
        ("i", "lo, hi", True),
        ("i - lo", "lo, hi + 8", True),
    ],
)
def test_arrays_on_the_stack_have_room_behind(index, bounds, has_masks, monkeypatch):
    """Of one that is accessed in another way as well, an element behind may be another's."""
    target = SimpleNamespace(
        is_x86=True, has_masks=False, features=("avx2",), vector_registers=(16, 256)
    )
    monkeypatch.setattr(vector_loops, "cpu_target", lambda: target)
    text = source(
        [
            "t = local_float32(512)",
            *loop("store_float32(t, (i - lo), load_x(x, i))"),
            *loop(f"store_o(o, i, load_float32(t, {index}))", bounds=bounds),
        ]
    )
    rest = str(compile_module(text)).split("rest:")[1].split("bulk:")[0]
    assert ("part:" in rest) == has_masks


# --- results ----------------------------------------------------------------------------------


def test_large_arguments_of_sin_in_some_lanes(masks):
    text = source(loop("store_o(o, i, sin_float32(load_x(x, i)))"))
    x, out = np.linspace(-9, 9, 101, dtype="float32"), np.zeros(101, "float32")
    x[[3, 50, 100]] = 1e30, np.inf, -3e6
    called(text, x, x, out, size=101)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(out, np.sin(x.astype("float64")), rtol=0, atol=3e-7)


# --- series that wait for each other ----------------------------------------------------------


def chain(*functions, x="float32"):
    """A loop in which functions are called one after the other."""
    lines = ["t = load_x(x, i)", *(f"t{k} = {f}" for k, f in enumerate(functions))]
    return source(loop(*lines, f"store_o(o, i, t{len(functions) - 1})"), x=x, y=x, o=x)


def copies(text):
    """The functions that a text's loops call, without what those are for."""
    names = re.findall(r"^define internal .*?@\"?([\w.]+)", str(compile_module(text)), re.MULTILINE)
    return sorted(name.partition(".")[0] for name in names if "." in name)


def test_series_of_a_chain_are_called():
    links = "sin_float32(t)", "sin_float32(t0)", "exp_float32(t1)", "sin_float32(t2)"
    assert copies(chain(*links[:3])) == []
    assert copies(chain(*links)) == ["exp_float32", "sin_float32"]
    assert vectors(chain(*links)) == 4
    assert str(compile_module(chain(*links))).count(" noinline ") == 2
    # What has no name of its own waits as well, what is beside it does not.
    nested = "sin_float32(sin_float32(t))", "sin_float32(exp_float32(t0))"
    assert copies(chain(*nested)) == ["exp_float32", "sin_float32"]
    beside = [f"sin_float32(t * np.float32({k}))" for k in range(8)]
    assert copies(chain(*beside)) == []


@together(size=50)
@pytest.mark.parametrize("size", SIZES)
def test_chains_of_all_sizes(size, masks):
    links = "sin_float32(t)", "exp_float32(t0)", "log1p_float32(t1)", "tanh_float32(t2)"
    x = np.random.default_rng(0).standard_normal(300).astype("float32")
    x[[0, 8, 40, 64]] = 1e30, np.inf, -3e6, np.nan
    out = np.zeros(300, "float32")
    called(chain(*links, "cos_float32(t3)"), x, x, out, size=size)
    with np.errstate(invalid="ignore"):
        wanted = np.cos(np.tanh(np.log1p(np.exp(np.sin(x[:size].astype("float64"))))))
    np.testing.assert_allclose(out[:size], wanted, rtol=3e-7, atol=0)
    assert (out[size:] == 0).all()


def test_constants_are_a_part_of_what_is_called():
    exponents = "np.float32(1.5)", "np.float32(-0.5)", "np.float32(1.5)", "t"
    bases = "t", "t0", "t1", "t2"
    text = chain(*(f"pow_float32({pair})" for pair in map(", ".join, zip(bases, exponents))))
    assert copies(text) == ["pow_float32"] * 3
    x, out = np.linspace(0.5, 2, 101, dtype="float32"), np.zeros(101, "float32")
    called(text, x, x, out, size=101)
    wide = x.astype("float64")
    np.testing.assert_allclose(out, (((wide**1.5) ** -0.5) ** 1.5) ** wide, rtol=1e-6)


def test_chains_where_the_library_has_no_vectors(monkeypatch):
    """The loop is LLVM's then, and what was begun of it is gone."""
    monkeypatch.setattr(libm, "vector_variants", lambda *_: ())
    text = chain(*(f"asinh_float64({t})" for t in ("t", "t0", "t1", "t2")), x="float64")
    assert vectors(text) is None
    assert copies(text) == []
    x, out = np.linspace(-9, 9, 37), np.zeros(37)
    called(text, x, x, out, size=37)
    np.testing.assert_allclose(out, np.arcsinh(np.arcsinh(np.arcsinh(np.arcsinh(x)))), rtol=1e-14)


def test_a_copy_that_cannot_be_made_is_not_tried_again():
    """Of float64 beside float32 vectors have more elements than the library has functions for."""

    def long(x):
        for _ in range(8):
            x = jnp.arcsinh(x)
        return x

    def function(x, y):
        start = long(x.astype("float64"))
        step = gf.lax.fori_loop(0, 3, lambda i, t: long(t) + y * i, start)
        return step.astype("float32")

    x, y = np.random.default_rng(0).standard_normal((2, 64, 300)).astype("float32")
    wanted = x.astype("float64")
    for k in range(4):
        for _ in range(8):
            wanted = np.arcsinh(wanted)
        wanted = wanted + y * max(k - 1, 0)
    with gf.enable_x64():
        found = gf.jit(function)(x, y)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_copies_for_vectors_of_two_lengths():
    head = """
load_x = reader("float32", 0, 3)
load_w = reader("float64", 0, 3)
store_o = writer("float32", 1, 3)
store_p = writer("float64", 2, 3)

def kernel_f(words, lo, hi):
    x = word_pointer(words, 0)
    w = word_pointer(words, 1)
    o = word_pointer(words, 2)
    p = word_pointer(words, 3)
"""
    links = [f"u{k + 1} = sin_float32(u{k})" for k in range(4)]
    first = loop("u0 = load_x(x, i)", *links, "store_o(o, i, u4)")
    links = [f"v{k + 1} = sin_float32(v{k})" for k in range(4)]
    second = ["v0 = cast_float64_float32(load_w(w, i))", *links, "r = cast_float32_float64(v4)"]
    text = source([*first, *loop(*second, "store_p(p, i, r)")], head=head)
    assert copies(text) == ["sin_float32"] * 2
    x, w = np.linspace(-2, 2, 101, dtype="float32"), np.linspace(-1, 3, 101)
    out, other = np.zeros(101, "float32"), np.zeros(101)
    called(text, x, w, out, other, size=101)
    for got, start in ((out, x.astype("float64")), (other, w)):
        np.testing.assert_allclose(got, np.sin(np.sin(np.sin(np.sin(start)))), atol=3e-7)


@pytest.mark.parametrize("length, is_called", [(5, False), (10, True)])
def test_chains_in_rows(length, is_called):
    def function(x, row):
        x = x + row
        for k in range(length):
            x = jnp.sin(x) if k % 2 else jnp.tanh(x) * 3
        return x

    (call,) = calls_of(function, (70, 33), (33,))
    assert copies(print_cpu(call.kernel)) == ["sin_float32", "tanh_float32"] * is_called
    x = np.random.default_rng(0).standard_normal((70, 33)).astype("float32")
    wanted = x.astype("float64") + x[0]
    for k in range(length):
        wanted = np.sin(wanted) if k % 2 else np.tanh(wanted) * 3
    np.testing.assert_allclose(gf.jit(function)(x, x[0]), wanted, rtol=1e-4, atol=1e-5)


def test_chains_of_programs():
    def function(x, y):
        for k in range(12):
            x = jnp.sin(x) * 1.5 + jnp.tanh(y + k) if k % 3 else jnp.exp(-x * x) + y
        return x, x * y

    x, y = np.random.default_rng(0).standard_normal((2, 7, 33))
    wide = x, y
    for k in range(12):
        sine = np.sin(wide[0]) * 1.5 + np.tanh(y + k)
        wide = (sine if k % 3 else np.exp(-(wide[0] ** 2)) + y), y
    for shape in ((7, 33), (231,), (77, 3)):
        a, b = (one.astype("float32").reshape(shape) for one in (x, y))
        found = gf.jit(function)(a, b)
        np.testing.assert_allclose(found[0].ravel(), wide[0].ravel(), rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(found[1], np.asarray(found[0]) * b, rtol=1e-6)


def many_constants(count):
    words = [f"c{k} = word_float32(words, {k + 3})" for k in range(count)]
    steps = [f"t{k + 1} = t{k} * u + c{k}" for k in range(count)]
    body = ["t0 = load_x(x, i)", "u = load_y(y, i)", *steps, f"store_o(o, i, t{count})"]
    return source([*words, *loop(*body)])


@pytest.mark.parametrize("count, turn", [(3, 4), (12, 4), (40, 4), (150, 4), (220, 0)])
def test_constants_beyond_the_registers(count, turn, masks):
    """Most are read from memory, and do not keep four vectors from being worked on at once."""
    text = many_constants(count)
    assert vectors(text) == turn
    before = str(compile_module(text)).split("vectors:")[1].split("rest:")[0]
    assert before.count("store <") == (max(count - 6, 0) if turn else 0)
    generator = np.random.default_rng(0)
    x, y = generator.uniform(-1, 1, (2, 101)).astype("float32")
    constants, out = generator.standard_normal(count).astype("float32"), np.zeros(101, "float32")
    words = [array.ctypes.data for array in (x, y, out)]
    words = np.array([*words, *constants.view("uint32")], "int64")
    load_cpu(build_cpu(text)).call(words.ctypes.data_as(ctypes.c_void_p), 0, 101)
    wanted = x.astype("float64")
    for constant in constants:
        wanted = wanted * y + constant
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


# --- pairs of neighbors -----------------------------------------------------------------------

PAIR = ("a = load_x(x, (i) * 2)", "b = load_x(x, (i) * 2 + 1)")


@together(size=50)
@pytest.mark.parametrize(
    "statements, is_written",
    [
        ((*PAIR, "store_o(o, i, a - b)"), True),
        ((*PAIR, "store_o(o, (i) * 2, b)", "store_o(o, (i) * 2 + 1, a)"), True),
        (("a = load_x(x, (i + 3) * 2)", "b = load_x(x, (i + 3) * 2 + 1)", "store_o(o, i, a)"),
         True),
        # In place, in another pair of the same array, and as a part of what no pair is.
        ((*PAIR, "c = load_z(o, i * 2)", "d = load_z(o, i * 2 + 1)",
          "store_o(o, i * 2, a + d)", "store_o(o, i * 2 + 1, b - c)"), True),
        ((*PAIR, "c = load_z(o, (i + 1) * 2)", "d = load_z(o, (i + 1) * 2 + 1)",
          "store_o(o, i * 2, a + d)", "store_o(o, i * 2 + 1, b - c)"), False),
        ((*PAIR, "c = load_z(o, i)", "store_o(o, i * 2, a + c)", "store_o(o, i * 2 + 1, b)"),
         False),
        # Halves: loads alone, the other way round and of two pairs are of every second element.
        (("a = load_x(x, i * 2)", "store_o(o, i, a)"), True),
        ((*PAIR[::-1], "store_o(o, i, a - b)"), True),
        ((PAIR[0], "b = load_y(y, i * 2 + 1)", "store_o(o, i, a - b)"), True),
        ((*PAIR, "store_o(o, i * 2, a)", "c = load_y(y, i)", "store_o(o, i * 2 + 1, b + c)"),
         False),
        ((*PAIR, "store_o(o, i * 2, a)"), False),
        # What is in a call is made before it.
        ((*PAIR, "store_o(o, i * 2, a)",
          "store_o(o, i * 2 + 1, load_x(x, i * 2) + load_x(x, i * 2 + 1))"), False),
        ((*PAIR, "store_o(o, i * 2, a)", "store_o(o, i * 2 + 1, load_z(o, i * 2))",
          "c = load_z(o, i * 2 + 1)", "store_o(o, i * 2, c)", "store_o(o, i * 2 + 1, b)"), False),
        # Every fourth element, and neighbors that are apart: no pairs either.
        (("a = load_x(x, i * 4)", "b = load_x(x, i * 4 + 1)", "store_o(o, i, a - b)"), True),
        (("a = load_x(x, i * 2)", "b = load_x(x, i * 2 + 2)", "store_o(o, i, a - b)"), True),
        (("a = load_x(x, i * 2)", "b = load_x(x, i * 2 + 1 + 1)", "store_o(o, i, a - b)"), True),
    ],
)  # fmt: skip
def test_which_pairs_are_written(statements, is_written):
    assert (vectors(source(loop(*statements), head=HEAD_Z)) is not None) == is_written


@together(size=50)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("shape", [(1,), (5,), (67,), (1003,), (3, 40), (7, 33)])
def test_complex_programs(shape, dtype):
    rng = np.random.default_rng(0)
    with gf.enable_x64():
        z = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
        z.flat[0] = complex(-0.0, np.nan)
        program = gf.jit(lambda z, row: (z * jnp.conj(z) + row, jnp.real(z), z.imag * (1 - 2j), -z))
        row = z[..., ::-1][..., :1, :] if z.ndim > 1 else z[::-1]
        found = program(z, np.ascontiguousarray(row))
        wanted = z * np.conj(z) + row, z.real, z.imag * (1 - 2j), -z
        for one, other in zip(found, wanted, strict=True):
            kind = np.asarray(one).dtype
            scale = 1e-6 if kind.itemsize < 16 and kind != "float64" else 1e-14
            np.testing.assert_allclose(one, other.astype(kind), rtol=scale, atol=scale)
        assert np.signbit(np.asarray(found[1]).flat[0])


# --- memory -----------------------------------------------------------------------------------


@together(size=50)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (70, 9), (65, 33), (200, 100), (5, 1500)])
def test_columns(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    wide = x.astype("float64")
    found = gf.jit(lambda x: (x.sum(0), x.max(0), x.argmin(0), x.var(0), (x * x).mean(0)))(x)
    wanted = wide.sum(0), x.max(0), x.argmin(0), wide.var(0), (wide * wide).mean(0)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=2e-5, atol=2e-5)


# --- how they are built -----------------------------------------------------------------------


def test_what_is_the_same_for_all_is_computed_before():
    """A divisor's reciprocal, and what the text says itself."""
    body = ["s = word_int32(words, 3)", *loop("store_o(o, i, div_int32(load_x(x, i), s + s))")]
    module = str(compile_module(source(body, x="int32", o="int32")))
    before, inside = module.split("rest:")[0], module.split("rest:")[1]
    assert "fdiv" in before and "fdiv" not in inside
    assert "add" in before


def test_levels():
    def level(function, *shapes):
        (call,) = calls_of(function, *shapes)
        text = print_cpu(call.kernel)
        return build._optimization_level(text, compile_module(text))

    assert level(jnp.tanh, (1000,)) == 0
    assert level(lambda x: x.sum(0), (20, 300)) == 0
    assert level(lambda x: x[x.astype(int)] + 1, (1000,)) == 3
    assert level(lambda x: x.sum(1), (100, 100)) == 0


def test_loops_that_run_seldom_are_written_once():
    (call,) = calls_of(lambda x: x.sum(0), (20, 300))
    module = str(compile_module(print_cpu(call.kernel)))
    assert len(re.findall(r"^rest[.\d]*:", module, re.MULTILINE)) == 5
    assert len(re.findall(r"^bulk[.\d]*:", module, re.MULTILINE)) == 1


@pytest.mark.skipif(cpu_target().has_masks, reason="AVX2 alone")
def test_no_masked_stores_where_they_are_many():
    (call,) = calls_of(lambda x, row: x + row, (500, 300), (300,))
    text = assembly(print_cpu(call.kernel))
    assert not re.search(r"maskmov\w+\t(?:%[xy]mm\d+, ){2}", text)
