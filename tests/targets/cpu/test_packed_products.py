"""Products that BLAS has not, by the kernel of packed blocks; inside jit and outside."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.blocks import Product
from gpuflow.core.views import View, contiguous
from gpuflow.targets.cpu.codegen import processor, product_tiles
from gpuflow.targets.cpu.codegen.build import assembly
from gpuflow.targets.cpu.codegen.printing.packed_products import PRODUCT_ARGUMENTS, product_text
from gpuflow.targets.cpu.library.blas import private_blas
from gpuflow.targets.cpu.library.packed_products import ProductFormats, packed_call, product_formats
from gpuflow.targets.cpu.runtime.native.pool import pool

BFLOAT16 = ml_dtypes.bfloat16
PLAIN = Product(((), (0,), (1,)), ((), (0,), (1,)))
# Around tiles, groups and slices, on any processor.
SHAPES = [
    (1, 1, 1),
    (1, 600, 9),
    (700, 90, 1),
    (5, 7, 3),
    (14, 33, 64),
    (65, 2, 31),
    (130, 600, 70),
    (3, 1100, 270),
    (270, 2100, 3),
    (40, 0, 30),
    (0, 5, 4),
    (4, 5, 0),
]
FORMATS = [
    (BFLOAT16, None), ("float16", None), (BFLOAT16, "float32"), ("float16", "float32"),
    ("int8", None), ("int8", "int16"), ("int8", "int32"), ("uint8", None), ("uint8", "int32"),
    ("int16", None), ("int16", "int32"), ("uint16", None), ("uint16", "uint32"), ("int32", None),
    ("uint32", None), ("int32", "int64"), ("int64", None), ("uint64", None), ("bool", None),
]  # fmt: skip


@pytest.fixture(autouse=True)
def wide_types():
    with gf.enable_x64(True):
        yield


def drawn(rng, shape, dtype):
    """Integers of all sizes, so that products and sums of them wrap."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.1
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def check(spec, left, right, made):
    """A result against NumPy's with 64 bits."""
    made = np.asarray(made)
    if left.dtype.kind in "iub":
        wide = [x.astype(np.uint64) for x in (left, right)]  # wraps as all narrower ones do
        exact = np.einsum(spec, *wide)
        expected = exact != 0 if made.dtype.kind == "b" else exact.astype(made.dtype)
        np.testing.assert_array_equal(made, expected)
        return
    wide = [x.astype(np.float64) for x in (left, right)]
    expected = np.einsum(spec, *wide)
    terms = np.einsum(spec, *map(abs, wide))
    # One rounding of the result, and of each sum in float32.
    last = float(ml_dtypes.finfo(made.dtype).eps) / 2 if made.dtype.itemsize == 2 else 0
    depth = max(left.shape, default=1)
    bound = last * abs(expected) + (depth + 2) * 2**-24 * terms + 1e-30
    assert (abs(made.astype(np.float64) - expected) <= 1.01 * bound).all()


@together(size=10)
@pytest.mark.parametrize("dtype,result", FORMATS, ids=lambda d: np.dtype(d).name if d else "same")
@pytest.mark.parametrize("shape", SHAPES)
def test_dtypes_and_sizes(dtype, result, shape):
    rng = np.random.default_rng(0)
    m, k, n = shape
    left, right = drawn(rng, (m, k), dtype), drawn(rng, (k, n), dtype)
    product = partial(lax.dot, preferred_element_type=result)
    for f in (gf.jit(product), product):
        made = f(jnp.asarray(left), jnp.asarray(right))
        assert made.shape == (m, n) and made.dtype == np.dtype(result or dtype)
        check("mk,kn->mn", left, right, made)


@pytest.mark.parametrize("dtype", [BFLOAT16, "int8", "int32", "int64"])
@pytest.mark.parametrize(
    "spec",
    [
        "km,kn->mn",
        "mk,nk->mn",
        "km,nk->mn",
        "bmk,bkn->bmn",
        "mbk,bnk->bmn",
        "bhmk,bhkn->bhmn",
        "mk,k->m",
        "k,kn->n",
        "k,k->",
        "m,n->mn",
        "mab,abn->mn",
        "mab,nba->mn",
        "bmk,kn->bmn",
    ],
)
def test_orders_of_dimensions(dtype, spec):
    rng = np.random.default_rng(1)
    sizes = dict(zip("mnkabh", (19, 70, 37, 3, 5, 2)))
    left, right = (
        drawn(rng, [sizes[d] for d in dims], dtype) for dims in spec.split("->")[0].split(",")
    )
    for f in (gf.jit(partial(jnp.einsum, spec)), partial(jnp.einsum, spec)):
        check(spec, left, right, f(jnp.asarray(left), jnp.asarray(right)))


@pytest.mark.parametrize("dtype", [BFLOAT16, "float16", "int8", "uint16", "int32", "float32"])
def test_views_with_gaps_mirrored_and_repeated(dtype):
    rng = np.random.default_rng(2)
    x = drawn(rng, (40, 66), dtype)
    row = drawn(rng, (1, 33), dtype)

    def products(xp, x, row):
        gaps, mirrored = x[::2, ::2], x[::-1, 32::-1]
        return (
            gaps @ mirrored.T,
            mirrored.T @ mirrored,
            gaps[:, ::-1].T @ gaps,
            xp.broadcast_to(row, (20, 33)) @ gaps.T,
            gaps @ xp.broadcast_to(row.T, (33, 20)),
        )

    made = gf.jit(partial(products, jnp))(x, row)
    gaps, mirrored = x[::2, ::2], x[::-1, 32::-1]
    pairs = [
        (gaps, mirrored.T),
        (mirrored.T, mirrored),
        (gaps[:, ::-1].T, gaps),
        (np.broadcast_to(row, (20, 33)), gaps.T),
        (gaps, np.broadcast_to(row.T, (33, 20))),
    ]
    for (left, right), result in zip(pairs, made, strict=True):
        check("mk,kn->mn", left, right, result)


def test_operands_of_different_dtypes():
    rng = np.random.default_rng(3)
    pairs = [("int8", "uint16"), ("int16", "int8"), ("uint8", "int32"), (BFLOAT16, "float32")]
    for one, other in pairs:
        left, right = drawn(rng, (20, 70), one), drawn(rng, (70, 40), other)
        check("mk,kn->mn", left, right, gf.jit(lax.dot)(left, right))
        check("mk,kn->mn", left, right, lax.dot(jnp.asarray(left), jnp.asarray(right)))


def test_the_extreme_pairs_wrap():
    """The one sum of two products of int16 that leaves int32, and the largest of all others."""
    low, high = np.full((3, 64), -(2**15), np.int16), np.full((64, 40), -(2**15), np.int16)
    check("mk,kn->mn", low, high, lax.dot(low, high, preferred_element_type=np.int32))
    check("mk,kn->mn", low, high, lax.dot(low, high))


@pytest.mark.parametrize("dtype", [BFLOAT16, "float16"])
def test_nan_and_infinities_come_through(dtype):
    left = np.array([[np.nan, 1], [np.inf, 1], [np.inf, -np.inf], [3e4, 3e4], [1, 1]], dtype)
    right = np.array([[1, 1], [1, 2]], dtype)
    with np.errstate(all="ignore"):
        expected = (left.astype(np.float32) @ right.astype(np.float32)).astype(dtype)
    made = np.asarray(lax.dot(jnp.asarray(left), jnp.asarray(right)))
    np.testing.assert_array_equal(made.astype(np.float32), expected.astype(np.float32))


@pytest.mark.skipif(private_blas() is None, reason="NumPy has no OpenBLAS of its own here")
@pytest.mark.parametrize("dtype", ["float32", "complex128", BFLOAT16, "float16", "int8", "bool"])
def test_no_product_is_numpys(dtype, monkeypatch):
    def matmul(*args, **kwargs):
        raise AssertionError("np.matmul was called")

    monkeypatch.setattr(np, "matmul", matmul)
    x = jnp.ones((18, 17), dtype)
    column, stack = jnp.ones((17, 1), dtype), jnp.ones((5, 17, 6), dtype)
    for f in (lambda f: f, gf.jit):
        assert f(lax.dot)(x, column).shape == (18, 1)
        assert f(lambda x: x @ x.T)(x).shape == (18, 18)
        assert f(lambda x: x[::-1, ::2] @ x[::-2].T[:9])(x).shape == (18, 9)
        assert f(jnp.matmul)(x, stack).shape == (5, 18, 6)


def test_results_do_not_depend_on_threads(monkeypatch):
    rng = np.random.default_rng(4)
    left, right = drawn(rng, (300, 1500), BFLOAT16), drawn(rng, (1500, 40), BFLOAT16)
    results = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(pool(), "threads", threads)
        f = gf.jit(lambda a, b: a @ b)
        results.append(np.asarray(f(left, right)))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_blocks_are_shared_and_what_is_packed_fits_their_memory():
    form = ProductFormats("int8", "int8", "int8", "pairs")
    for shape in ((300, 900, 700), (7, 33, 9), (2000, 64, 2), (2, 64, 2000)):
        m, k, n = shape
        call = packed_call(PLAIN, contiguous((m, k)), contiguous((k, n)), form, 4)
        words = dict(zip(PRODUCT_ARGUMENTS, call.arguments, strict=True))
        rows, columns = product_tiles.tile_shape("pairs")
        assert call.extent * words["part_blocks"] >= words["blocks"]
        panels = -(-min(n, words["column_block"]) // columns) * columns
        panels += -(-min(m, words["row_group"]) // rows) * rows
        steps = -(-min(k, words["slice_depth"]) // 2) * 2
        assert panels * steps <= words["part_memory"]
        assert call.packed_bytes == call.extent * words["part_memory"] * 2
    assert packed_call(PLAIN, contiguous((900, 900)), contiguous((900, 900)), form, 4).extent > 3


def test_dimensions_that_do_not_collapse_are_no_axes():
    apart = View((4, 5, 6), (1, 100, 7), 0, (False, False, False))
    product = Product(((), (0,), (1, 2)), ((), (0, 1), (2,)))
    form = ProductFormats("int8", "int8", "int8", "pairs")
    assert packed_call(product, apart, contiguous((5, 6, 3)), form, 1) is None


def test_which_dtypes_are_left_to_others():
    f4, f8, i4 = (np.dtype(d) for d in ("float32", "float64", "int32"))
    half, c8 = np.dtype("float16"), np.dtype("complex64")
    left_out = [(f4, f4, f4), (half, half, f8), (i4, f4, f4), (c8, c8, c8), (i4, i4, f4)]
    assert not any(product_formats(*dtypes) for dtypes in left_out)


@pytest.mark.parametrize(
    "target,instruction",
    [
        ("x86-64", "pmaddwd"),
        ("x86-64-v3", "vpmaddwd"),
        ("x86-64-v4", "vpmaddwd"),
    ],
)
def test_pairs_are_one_instruction(target, instruction, monkeypatch):
    features = processor._features_of(target)
    level = processor.CpuTarget(target, target, "", features)
    monkeypatch.setattr(product_tiles, "cpu_target", lambda: level)
    if not level.is_x86 or not features <= processor.cpu_target().features:
        pytest.skip("code is built for a processor without the instructions of the level")
    product_text.cache_clear()
    try:
        text = product_text("int8", "int8", "int32", "pairs")
        code = assembly(text)
        # With VNNI it is one with the sum that follows.
        assert instruction in code or "pdpwssd" in code
    finally:
        product_text.cache_clear()
