"""dot_general: against einsum in float64, with all its rules, errors and the library call."""

import ml_dtypes
import numpy as np
import pytest
from rule_checks import check_derivatives, check_vmap, random_array

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.core.aval import ShapedArray
from gpuflow.ops.contractions.dot_general import dot_general, dot_general_p
from gpuflow.ops.random import keys

GENERATOR = np.random.default_rng(0)

# lhs shape, rhs shape, dimension numbers, the same as einsum.
CASES = [
    ((4, 3), (3, 5), (((1,), (0,)), ((), ())), "ij,jk->ik"),
    ((3, 4), (3, 5), (((0,), (0,)), ((), ())), "ji,jk->ik"),
    ((4, 3), (5, 3), (((1,), (1,)), ((), ())), "ij,kj->ik"),
    ((3, 4), (5, 3), (((0,), (1,)), ((), ())), "ji,kj->ik"),
    ((3,), (3,), (((0,), (0,)), ((), ())), "i,i->"),
    ((4, 3), (3,), (((1,), (0,)), ((), ())), "ij,j->i"),
    ((3,), (3, 5), (((0,), (0,)), ((), ())), "j,jk->k"),
    ((3,), (4,), (((), ()), ((), ())), "i,j->ij"),
    ((), (4,), (((), ()), ((), ())), ",j->j"),
    ((2, 4, 3), (2, 3, 5), (((2,), (1,)), ((0,), (0,))), "bij,bjk->bik"),
    ((4, 2, 3), (5, 3, 2), (((2,), (1,)), ((1,), (2,))), "ibj,kjb->bik"),
    ((2, 3), (2, 3), (((), ()), ((0, 1), (0, 1))), "ab,ab->ab"),
    ((2, 3, 4), (3, 2), (((), ()), ((0, 1), (1, 0))), "abi,ba->abi"),
    ((2, 3, 4), (4, 3, 5), (((1, 2), (1, 0)), ((), ())), "ijk,kjl->il"),
    ((2, 3, 4, 5), (4, 6, 2, 3), (((2, 1), (0, 3)), ((0,), (2,))), "abcd,ceab->ade"),
    ((0, 3), (3, 5), (((1,), (0,)), ((), ())), "ij,jk->ik"),
    ((4, 0), (0, 5), (((1,), (0,)), ((), ())), "ij,jk->ik"),
    ((2, 3, 2, 3), (3, 3), (((1, 3), (0, 1)), ((), ())), "abcd,bd->ac"),
]
NAMES = [text for *_, text in CASES]
TOLERANCES = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2, "complex64": 1e-6}


def reference(lhs, rhs, text):
    if lhs.dtype.kind == "b":
        return np.einsum(text, lhs.astype(int), rhs.astype(int)) > 0
    if lhs.dtype.kind in "iu":
        return np.einsum(text, lhs, rhs)
    wide = np.complex128 if lhs.dtype.kind == "c" else np.float64
    return np.einsum(text, lhs.astype(wide), rhs.astype(wide))


@pytest.mark.parametrize("lhs_shape,rhs_shape,numbers,text", CASES, ids=NAMES)
def test_against_einsum(lhs_shape, rhs_shape, numbers, text):
    for dtype in ("float32", "float16", ml_dtypes.bfloat16, "complex64", "int32", "uint8", "bool"):
        lhs = random_array(GENERATOR, lhs_shape, dtype)
        rhs = random_array(GENERATOR, rhs_shape, dtype)
        got = dot_general(lhs, rhs, numbers)
        want = reference(lhs, rhs, text)
        assert got.shape == want.shape and got.dtype == lhs.dtype
        if got.dtype.name in TOLERANCES:
            # Results are sums of at most 12 products of size about 1, rounded once.
            tolerance = 12 * TOLERANCES[got.dtype.name]
            np.testing.assert_allclose(
                np.asarray(got).astype(want.dtype), want, rtol=tolerance, atol=tolerance
            )
        else:
            assert np.array_equal(np.asarray(got), want)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("lhs_shape,rhs_shape,numbers,text", CASES, ids=NAMES)
def test_derivatives(lhs_shape, rhs_shape, numbers, text, dtype):
    del text
    operands = [random_array(GENERATOR, shape, dtype) for shape in (lhs_shape, rhs_shape)]
    check_derivatives(lambda lhs, rhs: dot_general(lhs, rhs, numbers), operands)


@pytest.mark.parametrize("lhs_shape,rhs_shape,numbers,text", CASES, ids=NAMES)
def test_vmap(lhs_shape, rhs_shape, numbers, text):
    del text
    operands = [random_array(GENERATOR, shape, "float32") for shape in (lhs_shape, rhs_shape)]
    check_vmap(lambda lhs, rhs: dot_general(lhs, rhs, numbers), operands, tolerance=1e-5)


MATMUL = (((1,), (0,)), ((), ()))


@pytest.mark.parametrize(
    "lhs,rhs,preferred,result",
    [
        ("int8", "int8", "int32", "int32"),
        ("int8", "int8", "float32", "float32"),
        ("bfloat16", "bfloat16", "float32", "float32"),
        ("float32", "float32", "bfloat16", "bfloat16"),
        ("float32", "bfloat16", None, "float32"),
        ("bfloat16", "float16", None, "bfloat16"),
        ("float32", "int32", None, "float32"),
        ("complex64", "float32", None, "complex64"),
        ("bool", "int32", None, "int32"),
    ],
)
def test_result_dtypes(lhs, rhs, preferred, result):
    """The pairs and results that JAX 0.10 gives."""
    left = random_array(GENERATOR, (4, 3), lhs)
    right = random_array(GENERATOR, (3, 2), rhs)
    got = dot_general(left, right, MATMUL, preferred_element_type=preferred)
    assert got.dtype == result
    wide = np.complex128 if result == "complex64" else np.float64
    want = left.astype(wide) @ right.astype(wide)
    tolerance = 2e-2 if result == "bfloat16" else 1e-5
    np.testing.assert_allclose(np.asarray(got).astype(wide), want, rtol=tolerance, atol=tolerance)


def test_wider_results_do_not_wrap():
    lhs = np.full((1, 8), 100, np.int8)
    wide = dot_general(lhs, lhs.T.copy(), MATMUL, preferred_element_type=np.int32)
    assert np.asarray(wide).tolist() == [[80000]]
    assert np.asarray(dot_general(lhs, lhs.T.copy(), MATMUL)).tolist() == [[-128]]


def test_narrow_floats_add_in_float32():
    ones = np.ones((1, 4096), np.float16)
    assert float(np.asarray(dot_general(ones, ones.T.copy(), MATMUL))[0, 0]) == 4096


@pytest.mark.parametrize("preferred", ["float32", "float16"])
def test_gradients_have_the_operands_dtypes(preferred):
    lhs = random_array(GENERATOR, (4, 3), "bfloat16")
    rhs = random_array(GENERATOR, (3, 2), "float32")

    def product(lhs, rhs):
        return dot_general(lhs, rhs, MATMUL, preferred_element_type=preferred)

    out, pullback = gf.vjp(product, lhs, rhs)
    assert out.dtype == preferred
    pulled = pullback(np.ones((4, 2), preferred))
    assert [part.dtype for part in pulled] == [lhs.dtype, rhs.dtype]
    want = lhs.astype(np.float64).T @ np.ones((4, 2))
    np.testing.assert_allclose(np.asarray(pulled[1]), want, rtol=2e-2, atol=2e-2)


def test_python_scalars_take_the_other_dtype():
    x = random_array(GENERATOR, (3,), "float16")
    got = dot_general(2.0, x, (((), ()), ((), ())))
    assert got.dtype == np.float16 and np.array_equal(np.asarray(got), 2 * x)


def _library_call(operands, outs, params):
    avals = [[ShapedArray(x.shape, x.dtype) for x in arrays] for arrays in (operands, outs)]
    return dot_general_p.lower.prepare(*avals, params)


def test_library_call_takes_views_without_copies(monkeypatch):
    """A transposed operand reaches matmul as a view; the result is written in place."""
    seen = []
    real = np.matmul

    class Recorder:
        def __getattr__(self, name):
            return getattr(np, name)

        def matmul(self, left, right, out=None):
            seen.append((left, right, out))
            return real(left, right, out=out)

    lhs = random_array(GENERATOR, (3, 4), "float32")
    rhs = random_array(GENERATOR, (5, 3), "float32")
    out = np.empty((4, 5), np.float32)
    params = {"precision": None, "preferred_element_type": None}
    numbers = (((0,), (1,)), ((), ()))
    _library_call([lhs, rhs], [out], {"dimension_numbers": numbers, **params})(
        Recorder(), [out], lhs, rhs
    )
    np.testing.assert_allclose(out, lhs.T @ rhs.T, rtol=1e-6)
    batched = random_array(GENERATOR, (2, 3, 4), "float32")
    outs = np.empty((2, 4, 4), np.float32)
    numbers = (((1,), (1,)), ((0,), (0,)))
    _library_call([batched, batched], [outs], {"dimension_numbers": numbers, **params})(
        Recorder(), [outs], batched, batched
    )
    np.testing.assert_allclose(outs, batched.transpose(0, 2, 1) @ batched, rtol=1e-5)
    for (left, right, target), operands in zip(seen, ((lhs, rhs), (batched, batched))):
        assert np.shares_memory(left, operands[0]) and np.shares_memory(right, operands[1])
        assert target is not None
    assert np.shares_memory(seen[0][2], out) and np.shares_memory(seen[1][2], outs)


def test_flops():
    def flops(lhs, rhs, numbers, dtype):
        avals = [ShapedArray(shape, dtype) for shape in (lhs, rhs)]
        params = {"dimension_numbers": numbers, "precision": None, "preferred_element_type": None}
        outs = [dot_general_p.shape(*avals, **params)]
        return dot_general_p.lower.flops(avals, outs, params)

    assert flops((4, 3), (3, 5), MATMUL, np.float32) == 2 * 4 * 3 * 5
    assert flops((4, 3), (3, 5), MATMUL, np.complex64) == 8 * 4 * 3 * 5
    assert (
        flops((2, 4, 3), (2, 3, 5), (((2,), (1,)), ((0,), (0,))), np.float32) == 2 * 2 * 4 * 3 * 5
    )


X = random_array(GENERATOR, (4, 3), "float32")
ERRORS = [
    (lambda: dot_general(X, X, MATMUL), r"contracting dimensions .*lhs f32\[4,3\] along \(1,\)"),
    (lambda: dot_general(X, X.T.copy(), (((), ()), ((0,), (0,)))), r"batch dimensions must have"),
    (
        lambda: dot_general(X, X, (((2,), (0,)), ((), ()))),
        r"lhs dimensions must exist .*f32\[4",
    ),
    (lambda: dot_general(X, X, (((0,), (0,)), ((0,), (0,)))), r"lhs dimensions must .* differ"),
    (lambda: dot_general(X, X, (((0,), (0,)), ((1,), (3,)))), r"rhs dimensions must exist"),
    (
        lambda: dot_general(X.astype(int), X.T.astype(int), MATMUL, None, np.int8),
        r"preferred_element_type must not be narrower than int32; got int8",
    ),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number):
    call, message = ERRORS[number]
    with pytest.raises(TypeError, match=r"\[dot_general\] .*" + message):
        call()


def test_keys_are_no_numbers():
    seeded = keys.random_seed(np.arange(3))
    with pytest.raises(TypeError, match=r"operands must hold numbers; got key<fry>\[3\]"):
        dot_general(seeded, seeded, (((0,), (0,)), ((), ())))


# --- with a vector -----------------------------------------------------------------------------

VECTORS = [
    ("i,i->", (70_001,), (70_001,)),
    ("ij,j->i", (300, 517), (517,)),
    ("i,ij->j", (300,), (300, 517)),
    ("ji,j->i", (300, 517), (300,)),
    ("ij,ij->i", (300, 517), (300, 517)),
    ("ij,ij->j", (300, 517), (300, 517)),
    ("bikj,jkb->bi", (2, 30, 4, 70), (70, 4, 2)),
    ("kj,bjik->bi", (4, 70), (5, 70, 30, 4)),
    ("ij,j->i", (0, 5), (5,)),
    ("ij,j->i", (5, 0), (0,)),
]


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int8", "complex64"]
)
@pytest.mark.parametrize(("text", "left", "right"), VECTORS)
def test_products_with_a_vector_are_reductions(text, left, right, dtype):
    with gf.enable_x64(dtype == "float64"):
        make = np.random.default_rng(0)
        a, b = ((make.integers(-9, 9, shape) / 4).astype(dtype) for shape in (left, right))
        if dtype == "complex64":
            a, b = (x + 1j * np.roll(x, 1, -1) for x in (a, b))
        wide = {"int8": np.int64, "complex64": np.complex128}.get(dtype, np.float64)
        want = np.einsum(text, a.astype(wide), b.astype(wide))
        size = np.einsum(text, np.abs(a).astype(np.float64), np.abs(b).astype(np.float64))
        function = gf.jit(lambda a, b: jnp.einsum(text, a, b))
        got = np.asarray(function(a, b))
        assert got.dtype == dtype and got.shape == want.shape
        if dtype == "int8":
            np.testing.assert_array_equal(got, want.astype(np.int8))
            return
        eps = float(ml_dtypes.finfo(dtype).eps)
        # Rounded once, and 128 times at most while it is added up in float32.
        allowed = eps * np.abs(want) + (eps if dtype == "float64" else 1.2e-7) * 8 * size
        assert np.all(np.abs(got.astype(wide) - want) <= allowed)
        plan = function.lower(a, b).compile().explain()
        assert not got.size or dtype == "complex64" or "dot_general" not in plan
