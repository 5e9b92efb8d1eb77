"""Loops that carry sums, maxima and the like, written as vectors."""

import numpy as np
import pytest
from loop_texts import called, loop, set_masks, source, vectors
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.targets.cpu.codegen.loop_compiler import compile_module
from gpuflow.targets.cpu.codegen.processor import cpu_target

pytestmark = pytest.mark.skipif(
    not cpu_target().is_x86 or "avx2" not in cpu_target().features, reason="AVX2"
)
RANDOM = np.random.default_rng(0)
SIZES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129, 257, 1000)


@pytest.fixture(params=["own masks", "masks of all types", "AVX2's masks"])
def masks(request, monkeypatch):
    """With AVX-512's rules, LLVM takes their instructions apart on other processors."""
    if request.param != "own masks":
        set_masks(monkeypatch, request.param == "masks of all types")


def carrying(first, *statements, x="float32", y="float32", o="float32", bounds="lo, hi"):
    body = [f"s = {first}", *loop(*statements, bounds=bounds), "store_o(o, 0, s)"]
    return source(body, x=x, y=y, o=o)


ZERO = "np.float32(0.0)"


@together(size=50)
@pytest.mark.parametrize(
    "first, statement, count",
    [
        (ZERO, "s = accumulate_add_float32(s, load_x(x, i))", 4),
        (ZERO, "s = accumulate_mul_float32(s, load_x(x, i))", 4),
        # In the order of the text; not a sum; read once more; the other way round.
        (ZERO, "s = s + load_x(x, i)", None),
        (ZERO, "s = np.float32(s + load_x(x, i))", None),
        (ZERO, "s = s - load_x(x, i)", None),
        (ZERO, "s = accumulate_add_float32(s, s * load_x(x, i))", None),
        (ZERO, "s = accumulate_add_float32(load_x(x, i), s)", None),
        (ZERO, "s = load_x(x, i)", None),
    ],
)
def test_which_sums_are_written(first, statement, count):
    assert vectors(carrying(first, statement)) == count


def test_what_a_turn_left_is_no_sum():
    body = [f"s = {ZERO}", *loop("s = accumulate_add_float32(s, load_x(x, i))", "t = s")]
    assert vectors(source([*body, "store_o(o, 0, t)"])) is None


@pytest.mark.usefixtures("masks")
def test_what_no_element_of_memory_is_in():
    """The number of elements, their numbers, and what all have alike."""
    text = source(
        [
            "n = np.int32(3)",
            "m = np.int64(-7)",
            "b = True",
            *loop(
                "n = np.int32(n + np.int32(1))",
                "m = np.int64(m + (i * np.int64(-2)))",
                "b = b & (i < 31)",
            ),
            "store_o(o, 0, cast_int32_int64(n))",
            "store_o(o, 1, m)",
            "store_o(o, 2, select_int64(b, np.int64(1), np.int64(0)))",
        ],
        o="int64",
    )
    assert compile_module(text).is_fully_vectorized
    for size in SIZES:
        x, o = np.zeros(1, "float32"), np.zeros(3, "int64")
        called(text, x, x, o, size=size)
        assert list(o) == [3 + size, -7 - size * (size - 1), size <= 31]


@pytest.mark.usefixtures("masks")
@pytest.mark.parametrize("last", ["hi", "40"])
def test_short_loops_and_decisions_around_them(last):
    text = source(
        [
            "s = np.float32(1.0)",
            "if lo < hi:",
            f"    for i in short_range(0, {last}):",
            "        s = accumulate_add_float32(s, load_x(x, i))",
            "else:",
            "    s = np.float32(7.0)",
            "store_o(o, 0, s)",
        ]
    )
    assert compile_module(text).is_fully_vectorized
    for size in (1, 2, 17, 33, 100) if last == "hi" else (40,):
        x, o = RANDOM.standard_normal(size).astype("float32"), np.zeros(1, "float32")
        called(text, x, x, o, size=size)
        np.testing.assert_allclose(o[0], 1 + x.sum(dtype="float64"), rtol=1e-5, atol=1e-5)


SPECIAL = {
    "nan": [1, np.nan, 2],
    "inf": [1, np.inf, 2],
    "both": [np.inf, -np.inf],
    "zero": [-0.0, -0.0],
    "subnormal": [1e-45, 1e-45, 2e-45],
    "too much": [3e38, 3e38],
}


@together(size=50)
@pytest.mark.parametrize("length", [1, 40, 1000])
@pytest.mark.parametrize("special", SPECIAL)
def test_special_values(special, length):
    """At the beginning, and at the end, which a mask takes."""
    few = np.float32(SPECIAL[special])
    rest = np.full(length, few[-1] if special in ("zero", "subnormal") else 0, "float32")
    for x in (np.concatenate([few, rest]), np.concatenate([rest, few])):
        total, largest, least = gf.jit(lambda x: (jnp.sum(x), jnp.max(x), jnp.min(x)))(x)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(total, x.sum(dtype="float64").astype("float32"), rtol=1e-6)
        for found, right in ((largest, x.max()), (least, x.min())):
            np.testing.assert_array_equal(found, right)
            assert np.signbit(found) == np.signbit(right) or np.isnan(right)


@together(size=50)
@pytest.mark.parametrize("width", [2, 5, 9, 16, 17, 33, 70, 127, 128, 300, 4097])
def test_programs_over_rows(width):
    x = RANDOM.standard_normal((23, width)).astype("float32")
    wide = x.astype("float64")
    e = np.exp(wide - wide.max(1, keepdims=True))
    norm = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)

    @gf.jit
    def program(x):
        mean = x.mean(1, keepdims=True)
        normed = (x - mean) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5)
        return gf.nn.softmax(x), normed, x.argmax(1), (x > 2).any(1), (x * x[::-1]).sum(1)

    softmax, dots = e / e.sum(1, keepdims=True), (wide * wide[::-1]).sum(1)
    wanted = softmax, norm, x.argmax(1), (x > 2).any(1), dots
    for found, right in zip(program(x), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-5)
