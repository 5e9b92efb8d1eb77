"""Short loops that are one vector (``vector_loops``), and names that nobody reads after a turn."""

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
LEFT_OVER = [3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15]


@pytest.fixture(autouse=True)
def avx2(monkeypatch):
    set_masks(monkeypatch, False)


def rows(first, last, *statements, dtype="float32"):
    """A short loop over the elements of rows of 16."""
    head = f"    for i in short_range({first}, {last}):"
    inner = [f"        {one}" for one in statements]
    lines = "for r in range(lo, hi):", "    at = r * 16", head, *inner
    return source(lines, x=dtype, o=dtype)


def copies(first, last, dtype="float32"):
    return rows(first, last, "v = load_x(x, at + i)", "store_o(o, at + i, v)", dtype=dtype)


@together(size=50)
@pytest.mark.parametrize("turns", range(1, 19))
def test_which_short_loops_are_written(turns):
    """Those of a power of 2 are LLVM's, which takes several rows a turn; longer ones are loops."""
    assert compile_module(copies(0, turns)).is_fully_vectorized == (
        turns in LEFT_OVER or turns > 16
    )


@together(size=50)
@pytest.mark.parametrize(
    "text",
    [
        copies(0, 3, "int8"),
        copies(0, 3, "bfloat16"),
        rows(
            0,
            3,
            "a = load_x(x, (at + i) * 2)",
            "b = load_x(x, (at + i) * 2 + 1)",
            "store_o(o, (at + i) * 2, a)",
            "store_o(o, (at + i) * 2 + 1, b)",
        ),
        rows(0, 3, "store_o(o, at + i, load_x(x, at + i * 5))"),
        source(
            [
                "for r in range(lo, hi):",
                "    s = np.int32(0)",
                "    for i in short_range(0, 3):",
                "        s = max_int32(s, load_x(x, r * 16 + i))",
                "    store_o(o, r, s)",
            ],
            x="int32",
            o="int32",
        ),
    ],
    ids=["bytes", "halves", "pairs", "strides", "maxima"],
)
def test_short_loops_that_are_left(text):
    assert not compile_module(text).is_fully_vectorized


def test_those_of_any_length_take_a_vector_a_turn():
    written = compile_module(copies(0, "hi"))
    assert written.is_fully_vectorized
    assert vectors(copies(0, "hi")) == 1


def test_processors_with_masks_leave_them(monkeypatch):
    set_masks(monkeypatch, True)
    assert not compile_module(copies(0, 7)).is_fully_vectorized


@together(size=50)
@pytest.mark.parametrize("turns", [2, *LEFT_OVER])
def test_programs_of_short_rows(turns):
    x, y = (RANDOM.standard_normal((37, turns)).astype("float32") for _ in range(2))
    x.flat[:4] = np.nan, np.inf, -0.0, 1e-42
    one = RANDOM.standard_normal((37, 1)).astype("float32")

    @gf.jit
    def program(x, y, one):
        return jnp.tanh(x) * one, jnp.where(x > one, x, y), x[:, ::-1] + y[0], (y * 100).astype(int)

    wide = x.astype("float64")
    wanted = (
        np.tanh(wide) * one,
        np.where(x > one, x, y),
        x[:, ::-1] + y[0],
        (y * np.float32(100)).astype(int),
    )
    for found, right in zip(program(x, y, one), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-6, atol=2e-45)


# --- names ------------------------------------------------------------------------------------


def is_final(*lines):
    return compile_module(source(lines)).is_fully_vectorized


COPY = ("v = load_x(x, i)", "store_o(o, i, v)")


def test_loops_one_after_the_other_may_use_the_same_names():
    """As the pieces of a concatenation do."""
    squares = "v = load_x(x, i - 5)", "store_o(o, i, v * v)"
    text = source([*loop(*COPY, bounds="lo, 5"), *loop(*squares, bounds="5, hi")])
    assert compile_module(text).is_fully_vectorized
    x, o = np.arange(100, dtype="float32"), np.zeros(100, "float32")
    called(text, x, x, o, size=100)
    np.testing.assert_array_equal(o, [*x[:5], *(x[:95] ** 2)])


@together(size=50)
@pytest.mark.parametrize(
    "lines",
    [
        # What the last turn leaves is read: behind the loop, in another one, in a later turn of
        # the loop around, or of the loop itself.
        [*loop(*COPY), "store_o(o, 0, v)"],
        [*loop(*COPY), *loop("store_o(o, i, v)")],
        [
            "v = np.float32(0.0)",
            "for r in range(lo, hi):",
            "    w = v",
            *(f"    {line}" for line in loop(*COPY, "store_o(o, i, w)")),
        ],
        ["v = np.float32(0.0)", *loop("store_o(o, i, v)", "v = load_x(x, i)")],
        ["v = np.float32(0.0)", *loop("v = v + load_x(x, i)", "store_o(o, i, v)")],
        # In a branch it may have been assigned or not.
        [
            "v = np.float32(0.0)",
            "if hi > 5:",
            *(f"    {line}" for line in loop(*COPY)),
            "store_o(o, 0, v)",
        ],
    ],
)
def test_names_that_carry_something(lines):
    assert not is_final(*lines)


def test_names_of_branches():
    """Each assigns what it reads, as kernels with borders do."""
    inside = [f"    {line}" for line in loop(*COPY)]
    assert is_final("if hi > 5:", *inside, "else:", *inside)
    assert is_final("v = np.float32(0.0)", "store_o(o, 0, v)", *loop(*COPY))
