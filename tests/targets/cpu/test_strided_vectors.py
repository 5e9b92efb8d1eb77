"""Straight loops that read every second to fourth element, by whole loads (``vector_loops``)."""

import numpy as np
import pytest
from guarded_memory import guarded, needs_guards
from loop_texts import loop, set_masks, source, vectors
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import dlpack
from gpuflow.targets.cpu.codegen.processor import cpu_target

pytestmark = pytest.mark.skipif(
    not cpu_target().is_x86 or "avx2" not in cpu_target().features, reason="AVX2"
)
RANDOM = np.random.default_rng(0)
SIZES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 257)


@pytest.fixture(params=["AVX2", "AVX-512"])
def masks(request, monkeypatch):
    """With AVX-512's rules, LLVM takes their instructions apart on other processors."""
    set_masks(monkeypatch, request.param == "AVX-512")
    return request.param


@together(size=50)
@pytest.mark.parametrize(
    "statements, is_written",
    [
        (("store_o(o, i, load_x(x, i * 2))",), True),
        (("store_o(o, i, load_x(x, i * 3 + 5))",), True),
        (("store_o(o, i, load_x(x, (i + 2) * 2 - 3))",), True),
        (("store_o(o, i, load_x(x, i * 2) - load_y(y, 4 * i))",), True),
        (("k = i * 2", "store_o(o, i, load_x(x, k * 2))"), True),
        (("store_o(o, i, np.float32(cast_int64_int32(i * 3 + 1)))",), True),
        # Farther apart, the other way round, products of two numbers; stores; both in one array.
        (("store_o(o, i, load_x(x, i * 5))",), False),
        (("k = i * 3", "store_o(o, i, load_x(x, k * 2))"), False),
        (("store_o(o, i, load_x(x, i * -1))",), False),
        (("store_o(o, i, load_x(x, i * hi))",), False),
        (("store_o(o, i, load_x(x, i * i))",), False),
        (("store_o(o, i * 2, load_x(x, i))",), False),
        (("store_o(o, i * 2, load_x(x, i))", "store_o(o, i * 2 + 3, load_x(x, i))"), False),
        # Every second pair, and every third.
        (
            (
                "a = load_x(x, (i * 2) * 2)",
                "b = load_x(x, (i * 2) * 2 + 1)",
                "store_o(o, i * 2, a)",
                "store_o(o, i * 2 + 1, b)",
            ),
            True,
        ),
        (
            (
                "a = load_x(x, (i * 3) * 2)",
                "b = load_x(x, (i * 3) * 2 + 1)",
                "store_o(o, i, a * b)",
            ),
            False,
        ),
    ],
)
def test_which_are_written(statements, is_written, masks):
    assert (vectors(source(loop(*statements))) is not None) == is_written


def test_which_types_are_written(masks):
    """Short elements need AVX-512's masks."""
    text = source(loop("store_o(o, i, load_x(x, i * 2))"), x="int8", o="int8")
    assert (vectors(text) is not None) == (masks == "AVX-512")


def test_an_array_that_is_written():
    """What one turn reads another one may have written."""
    head = """
load_x = reader("float32", 1, 2)
store_o = writer("float32", 1, 2)

def kernel_f(words, lo, hi):
    x = word_pointer(words, 0)
    o = word_pointer(words, 2)
"""
    assert vectors(source(loop("store_o(o, i, load_x(x, i * 2))"), head=head)) is None


@together(size=50)
@needs_guards
@pytest.mark.parametrize("step", [-2, -1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float16", "bool"])
def test_programs(dtype, step):
    x = RANDOM.standard_normal(5000 * abs(step) + 1) * 10
    x = (x > 0) if dtype == "bool" else x.astype(dtype)
    rows = x[:-1].reshape(50, -1)

    @gf.jit
    def program(x, rows):
        return x[::step], jnp.concatenate([x[1::step], x[::step]]), rows[:, ::step], rows[::step]

    for at_end in (False, True):
        whole = dlpack.from_dlpack(guarded(x, at_end))
        wanted = x[::step], np.concatenate([x[1::step], x[::step]])
        for found, right in zip(
            program(whole, rows), (*wanted, rows[:, ::step], rows[::step]), strict=True
        ):
            np.testing.assert_array_equal(found, right)
        power = gf.jit(lambda x: x[::step] * x[::step])(whole)
        np.testing.assert_allclose(power, x[::step] * x[::step], rtol=2e-3)
