"""float32 products on GPUs: rounded to TF32 by default, as in JAX, and where that must not be.

STEP is less than TF32 tells apart from 1, so sums of NEAR_ONE say whether operands were rounded.
"""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.config import config
from gpuflow.base.dtypes import bfloat16
from gpuflow.core.jaxpr import all_eqns
from gpuflow.ops.contractions.precision import canonical_precision, may_round
from gpuflow.scipy import linalg, optimize, stats
from gpuflow.scipy.sparse import linalg as sparse
from gpuflow.scipy.spatial.transform import Rotation

STEP = 2.0**-12
NEAR_ONE = np.float32(1 + STEP)
ROWS, DEPTH, COLUMNS = 16, 8, 24
HIGHEST = lax.Precision.HIGHEST
F32 = np.dtype(np.float32)

# What may be named as a precision, and whether GPUs may round with it.
# Source: XLA's rules, see may_round; JAX 0.10.2 takes these names.
ROUNDS = {
    None: True, "default": True, "fastest": True, "bfloat16": True, "high": True,
    "tensorfloat32": True, "bfloat16_3x": True, "highest": False, "float32": False,
    lax.Precision.DEFAULT: True, lax.Precision.HIGH: True, HIGHEST: False,
    ("default", "high"): True, ("high", "highest"): False, ("highest", "default"): False,
    lax.DotAlgorithmPreset.DEFAULT: True, "TF32_TF32_F32": True, "TF32_TF32_F32_X3": False,
    "F32_F32_F32": False, "BF16_BF16_F32_X9": False, lax.DotAlgorithm(F32, F32, F32): False,
}  # fmt: skip


@pytest.fixture
def exact_products():
    """Here the default counts (conftest.py)."""


@pytest.fixture
def gpu():
    (device,) = gf.devices("cuda_sim")
    with gf.default_device(device):
        yield device


def operands(dtype="float32", batch=()):
    left = np.full((*batch, ROWS, DEPTH), NEAR_ONE).astype(dtype)
    return left, np.ones((*batch, DEPTH, COLUMNS), dtype)


def was_rounded(out):
    """Whether sums of DEPTH terms are those of rounded operands; all of them are one or other."""
    out = np.asarray(out)
    rounded, exact = np.full_like(out, DEPTH), np.full_like(out, DEPTH * (1 + STEP))
    is_rounded = bool((out == rounded).all())
    np.testing.assert_array_equal(out, rounded if is_rounded else exact)
    return is_rounded


PRODUCTS = {
    "matmul": jnp.matmul,
    "operator": lambda x, y: x @ y,
    "dot": jnp.dot,
    "lax.dot": lax.dot,
    "tensordot": lambda x, y: jnp.tensordot(x, y, 1),
    "inner": lambda x, y: jnp.inner(x, y.T),
    "einsum": lambda x, y: jnp.einsum("ij,jk->ki", x, y),
    "vmap left": lambda x, y: gf.vmap(lambda row: jnp.dot(row, y))(x),
    "vmap right": lambda x, y: gf.vmap(lambda column: jnp.dot(x, column), in_axes=1)(y),
    "remat": gf.checkpoint(jnp.matmul),
    "with bias": lambda x, y: gf.nn.relu(x @ y + np.zeros(COLUMNS, x.dtype)),
    "scan": lambda x, y: lax.scan(lambda c, rows: (c, rows @ y), 0, x.reshape(4, -1, DEPTH))[1],
}


@requires_cuda_tools
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_rounded_by_default(name, gpu):
    call = PRODUCTS[name]
    for function in (call, gf.jit(call)):
        assert was_rounded(function(*map(jnp.asarray, operands())))
        with gf.default_matmul_precision("highest"):
            assert not was_rounded(function(*map(jnp.asarray, operands())))


@requires_cuda_tools
def test_both_operands_are_rounded(gpu):
    left, right = operands()
    assert was_rounded(jnp.matmul(right.T, left.T))
    assert was_rounded(jnp.matmul(left, left.T))


@requires_cuda_tools
def test_ties_go_away_from_zero_and_what_tf32_holds_stays(gpu):
    tie, held = np.float32(2.0**-11), np.float32(1 + 2.0**-10)
    above = held + 2 * tie
    for x, want in ((1 + tie, held), (-1 - tie, -held), (1 + 3 * tie, above), (held, held)):
        left, right = np.full((ROWS, DEPTH), x, np.float32), np.eye(DEPTH, dtype=np.float32)
        np.testing.assert_array_equal(jnp.matmul(left, right), np.full((ROWS, DEPTH), want))


@requires_cuda_tools
def test_infinities_and_nan_stay(gpu):
    left, right = operands()
    left[0, 0], left[1, 1], left[2, 2], left[2, 3] = np.inf, np.nan, np.inf, -np.inf
    out = np.asarray(jnp.matmul(left, right))
    assert (out[0] == np.inf).all() and np.isnan(out[1:3]).all()
    assert was_rounded(out[3:])


@requires_cuda_tools
@pytest.mark.parametrize("part", [1, 1j, 1 + 1j])
def test_both_parts_of_complex_numbers_are_rounded(part, gpu):
    left, right = operands("complex64")
    assert was_rounded(np.asarray(jnp.matmul(left * part, right)) / np.complex64(part))
    exact = jnp.matmul(left * part, right, precision="highest")
    assert not was_rounded(np.asarray(exact) / np.complex64(part))


@requires_cuda_tools
@pytest.mark.parametrize("dtype", ["float64", "complex128", "bfloat16", "float16", "int32"])
def test_other_dtypes_are_as_exact_as_ever(dtype, gpu):
    """Products of 16-bit floats are exact in float32, in which they are added."""
    step = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "int32": 2**12}.get(dtype, 2.0**-40)
    kind = bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x = np.full((ROWS, DEPTH), 1 + step).astype(kind)
    result = np.dtype(np.float32) if kind.itemsize == 2 else kind
    with gf.enable_x64():
        got = lax.dot(x, x.T, preferred_element_type=result)
    want = (x[:1].astype(result) ** 2).sum(dtype=result)
    assert np.asarray(got).dtype == result
    np.testing.assert_array_equal(got, np.full((ROWS, ROWS), want))


# --- what is asked for ------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ROUNDS, ids=str)
def test_which_precisions_may_round(precision):
    assert may_round(canonical_precision(precision)) is ROUNDS[precision]


@requires_cuda_tools
@pytest.mark.parametrize("precision", ROUNDS, ids=str)
def test_products_do_as_their_precision_says(precision, gpu):
    left, right = operands()
    assert was_rounded(lax.dot(left, right, precision=precision)) is ROUNDS[precision]
    with gf.default_matmul_precision(precision):
        assert was_rounded(jnp.matmul(left, right)) is ROUNDS[precision]


@requires_cuda_tools
@pytest.mark.parametrize("setting", ["high", "highest", None])
def test_what_a_call_names_wins(setting, gpu):
    left, right = operands()
    with gf.default_matmul_precision(setting):
        assert was_rounded(jnp.matmul(left, right, precision="default"))
        assert not was_rounded(jnp.matmul(left, right, precision="float32"))
        assert was_rounded(jnp.matmul(left, right)) is (setting != "highest")


@requires_cuda_tools
def test_a_changed_setting_counts_in_functions_that_ran_before(gpu, monkeypatch):
    step = gf.jit(lambda x, y: jnp.tanh(x @ y * 0) + x @ y)
    left, right = map(jnp.asarray, operands())
    answers = []
    try:
        for setting in (None, "highest", "tensorfloat32", "float32", None):
            config.update("jax_default_matmul_precision", setting)
            answers.append((was_rounded(step(left, right)), was_rounded(left @ right)))
    finally:
        config.update("jax_default_matmul_precision", None)
    assert answers == [(True, True), (False, False), (True, True), (False, False), (True, True)]


@pytest.mark.parametrize("precision", [*ROUNDS, "setting"], ids=str)
def test_the_cpu_never_rounds(precision):
    left, right = operands()
    setting, named = ("high", None) if precision == "setting" else (None, precision)
    (cpu, *_) = gf.devices("cpu")
    with gf.default_device(cpu), gf.default_matmul_precision(setting):
        for call in (lax.dot, gf.jit(lax.dot, static_argnames="precision")):
            assert not was_rounded(call(left, right, precision=named))


# --- derivatives, convolutions and others ------------------------------------------------------


@requires_cuda_tools
@pytest.mark.parametrize("precision", ["high", "highest", None])
def test_derivatives_are_rounded_as_their_product(precision, gpu):
    """Of a sum of products with x, the gradients by y sum x over rows, and tangents go along."""
    x = np.full((DEPTH, ROWS), NEAR_ONE)
    y = np.ones((ROWS, COLUMNS), np.float32)

    def total(y):
        return jnp.sum(jnp.matmul(x, y, precision=precision))

    rounds = precision != "highest"
    gradient = gf.grad(total)
    assert was_rounded(gradient(y)) is was_rounded(gf.jit(gradient)(y)) is rounds
    tall = np.ones((DEPTH, COLUMNS), np.float32)
    _, tangent = gf.jvp(lambda y: jnp.matmul(x.T, y, precision=precision), (tall,), (tall,))
    assert was_rounded(tangent) is rounds
    named = {
        str(eqn.params["precision"])
        for eqn in all_eqns(gf.make_jaxpr(gradient)(y).jaxpr)
        if eqn.primitive.name == "dot_general"
    }
    assert named == {str(canonical_precision(precision))}


@requires_cuda_tools
@pytest.mark.parametrize("precision", ["highest", None])
def test_convolutions_are_rounded_as_products(precision, gpu):
    """One by one: each output sums DEPTH channels. So do the gradients by the kernel, over places.

    The sizes are such that tiles are used: a thread for each number adds in float32.
    """
    numbers = ("NHWC", "HWIO", "NHWC")
    x, w = np.full((1, 2, 64, DEPTH), NEAR_ONE), np.ones((1, 1, DEPTH, 32), np.float32)

    def call(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "VALID", dimension_numbers=numbers, precision=precision
        )

    assert was_rounded(gf.jit(call)(x, w)) is was_rounded(call(x, w)) is (precision is None)
    slope = np.ones((1, 2, 64, 32), np.float32)
    by_kernel = gf.jit(lambda x, w: gf.vjp(lambda w: call(x, w), w)[1](slope)[0])(x, w)
    assert was_rounded(np.asarray(by_kernel) / 16) is (precision is None)


@requires_cuda_tools
def test_patches_are_elements_as_they_are(gpu):
    x = np.random.default_rng(0).normal(size=(1, 3, 9, 70)).astype(np.float32)
    for setting in (None, "high"):
        with gf.default_matmul_precision(setting):
            got = np.asarray(lax.conv_general_dilated_patches(x, (1, 2), (1, 1), "VALID"))
        want = np.stack([x[..., :-1], x[..., 1:]], 2).reshape(1, 6, 9, 69)
        np.testing.assert_array_equal(got, want)


@requires_cuda_tools
@pytest.mark.parametrize("name", ["vector", "small", "ragged"])
def test_what_other_kernels_multiply_stays_float32(name, gpu):
    """As docs/gpu.md says: rounding is allowed there too, and would save nothing."""
    left, right = operands()
    calls = {
        "vector": lambda: jnp.dot(left, right[:, 0]),
        "small": lambda: left.reshape(8, 2, DEPTH)[..., :4] @ jnp.ones((8, 4, 3)) * 2,
        "ragged": lambda: lax.ragged_dot(left, np.stack([right] * 2), np.array([10, 6], np.int32)),
    }
    assert not was_rounded(gf.jit(calls[name])())


# --- algorithms that multiply inside -----------------------------------------------------------

RNG = np.random.default_rng(1)
SQUARE = RNG.normal(size=(6, 6)).astype(np.float32) + 4 * np.eye(6, dtype=np.float32)
POSITIVE = SQUARE @ SQUARE.T
TALL = RNG.normal(size=(9, 5)).astype(np.float32)
SIDES = RNG.normal(size=(6, 3)).astype(np.float32)
VECTOR = SIDES[:, 0].copy()
BATCH = np.stack([POSITIVE, POSITIVE + 1])


def quadratic(x):
    """A form with its least value away from 0."""
    return jnp.sum(jnp.square(x - 1) * np.arange(1, 7, dtype=np.float32))


ALGORITHMS = {
    "solve": (jnp.linalg.solve, SQUARE, SIDES), "inv": (jnp.linalg.inv, SQUARE),
    "det": (jnp.linalg.det, SQUARE), "lstsq": (lambda a, b: jnp.linalg.lstsq(a, b)[:2], TALL, TALL),
    "pinv": (jnp.linalg.pinv, TALL), "pinv of a hermitian": (
        lambda a: jnp.linalg.pinv(a, hermitian=True), POSITIVE),
    "cholesky": (jnp.linalg.cholesky, POSITIVE), "qr": (jnp.linalg.qr, TALL),
    "complete qr": (lambda a: jnp.linalg.qr(a, "complete"), TALL),
    "svd": (lambda a: jnp.linalg.svd(a, full_matrices=False), TALL),
    "eigh": (jnp.linalg.eigh, POSITIVE), "lu": (lax.linalg.lu, SQUARE),
    "permuted lu": (lambda a: linalg.lu(a, permute_l=True), SQUARE),
    "triangular_solve": (lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), SQUARE,
                         SIDES),
    "cho_solve": (lambda a, b: linalg.cho_solve(linalg.cho_factor(a), b), POSITIVE, SIDES),
    "solve of a positive one": (lambda a, b: linalg.solve(a, b, assume_a="pos"), POSITIVE, SIDES),
    "expm": (linalg.expm, SQUARE), "sqrtm": (linalg.sqrtm, POSITIVE),
    "funm": (lambda a: linalg.funm(a, jnp.exp), SQUARE),
    "polar": (linalg.polar, SQUARE), "lax polar": (lambda a: lax.linalg.qdwh(a)[0], SQUARE),
    "solve_sylvester": (linalg.solve_sylvester, SQUARE, POSITIVE, SQUARE),
    "sylvester by eig": (
        lambda a, b, c: linalg.solve_sylvester(a, b, c, method="eigen"), POSITIVE, POSITIVE,
        SQUARE),
    "polyfit": (lambda x, y: jnp.polyfit(x, y, 3, cov=True), TALL[:, 0], TALL[:, 1]),
    "cg": (lambda a, b: sparse.cg(a, b)[0], POSITIVE, VECTOR),
    "bicgstab": (lambda a, b: sparse.bicgstab(a, b)[0], POSITIVE, VECTOR),
    "gmres": (lambda a, b: sparse.gmres(a, b)[0], SQUARE, VECTOR),
    "gmres, one at a time": (
        lambda a, b: sparse.gmres(a, b, solve_method="incremental")[0], SQUARE, VECTOR),
    "mapped cg": (lambda a, b: gf.vmap(lambda b: sparse.cg(a, b)[0])(b), POSITIVE, SIDES.T),
    "bfgs": (lambda x: optimize.minimize(quadratic, x, method="BFGS").x, VECTOR),
    "lbfgs": (lambda x: optimize.minimize(
        quadratic, x, method="l-bfgs-experimental-do-not-rely-on-this").x, VECTOR),
    "rotations": (lambda q, x: Rotation.from_quat(q).apply(x), TALL[:, :4], TALL[:, :3]),
    "mean of rotations": (lambda q: Rotation.from_quat(q).mean().as_quat(), TALL[:, :4]),
    "kernel density": (lambda x, inv: stats.gaussian_kde(x).logpdf(inv), TALL.T, TALL.T),
}  # fmt: skip
# What derivatives there are; of others both. A loop has none in reverse.
DERIVATIVES = {
    "sqrtm": (),
    "funm": (),
    "solve_sylvester": (),
    "sylvester by eig": (),
    "polar": ("jvp",),
    "lax polar": ("jvp",),
    "bfgs": ("jvp",),
    "lbfgs": ("jvp",),
    "kernel density": (),
}
# Of the covariance that the user's data have; its product is one of the user's, as in JAX.
NOT_OURS = {"kernel density": 1}


def derivative(function, mode):
    """A function of the same operands: results, and tangents or gradients."""

    def tangents(*xs):
        return gf.jvp(function, xs, xs)

    def gradients(*xs):
        out, back = gf.vjp(function, *xs)
        return out, back(gf.tree.map(jnp.ones_like, out))

    return tangents if mode == "jvp" else gradients


def rounding_products(function, *args):
    """The products in a program that GPUs may round."""
    program = gf.make_jaxpr(function)(*args)
    return [
        eqn
        for eqn in all_eqns(program.jaxpr)
        if eqn.primitive.name in ("dot_general", "conv_general_dilated")
        and may_round(eqn.params["precision"])
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_ask_for_all_digits(name):
    """Whatever a user has set; so do their derivatives."""
    function, *args = ALGORITHMS[name]
    for setting in (None, "high"):
        with gf.default_matmul_precision(setting):
            assert len(rounding_products(function, *args)) == NOT_OURS.get(name, 0)
            for mode in DERIVATIVES.get(name, ("jvp", "vjp")):
                assert not rounding_products(derivative(function, mode), *args), mode


@requires_cuda_tools
@pytest.mark.parametrize("name", ["solve", "inv", "lstsq", "expm", "cho_solve", "qr"])
def test_algorithms_lose_no_digits(name, gpu):
    """By default they give the bits that they give with products of float32."""
    function, *args = ALGORITHMS[name]
    result = gf.jit(derivative(function, "vjp"))(*args)
    with gf.default_matmul_precision("highest"):
        exact = gf.jit(derivative(function, "vjp"))(*args)
    for got, want in zip(gf.tree.leaves(result), gf.tree.leaves(exact), strict=True):
        np.testing.assert_array_equal(got, want)
