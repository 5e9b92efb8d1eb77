"""jnp functions against NumPy in float64, over awkward shapes; derivatives; jit equals eager."""

from __future__ import annotations

import numpy as np
import pytest
from together import together

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import Array
from gpuflow.core.trace import Tracer
from gpuflow.numpy.methods import METHODS, PROPERTIES

SHAPES = [(), (1,), (0,), (7,), (1, 5), (4, 1), (3, 0), (2, 3, 5), (1, 1, 2), (17, 31)]
EPS = np.finfo(np.float32).eps


def random_array(shape, seed=0, low=-3.0, high=3.0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def compare(got, want, count=1):
    """float32 results of ``count`` additions: the error grows at most with their number."""
    want = np.asarray(want)
    assert got.shape == want.shape
    tolerance = 8 * EPS * max(1, count)
    scale = np.abs(want).max(initial=1.0)
    np.testing.assert_allclose(np.asarray(got), want, rtol=tolerance, atol=tolerance * scale)


UNARY = ["exp", "sin", "cos", "tanh", "floor", "ceil", "square", "abs", "sign", "negative", "rint"]
BINARY = ["add", "subtract", "multiply", "maximum", "minimum", "arctan2", "hypot", "logaddexp"]
REDUCTIONS = ["sum", "mean", "max", "min", "var", "std", "prod"]


@together(size=55)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, shape):
    x = random_array(shape)
    compare(getattr(jnp, name)(x), getattr(np, name)(x.astype(np.float64)))


@pytest.mark.parametrize("shapes", [((3, 1), (4,)), ((2, 1, 5), (3, 1)), ((), (0,)), ((7,), (7,))])
@pytest.mark.parametrize("name", BINARY)
def test_binary_broadcasts(name, shapes):
    x, y = (random_array(shape, seed) for seed, shape in enumerate(shapes))
    want = getattr(np, name)(x.astype(np.float64), y.astype(np.float64))
    compare(getattr(jnp, name)(x, y), want)
    compare(gpuflow.jit(getattr(jnp, name))(x, y), want)


@together(size=49)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (-1, 0), (), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, axis, keepdims):
    x = random_array((2, 3, 5), low=0.5, high=1.5)
    got = getattr(jnp, name)(x, axis=axis, keepdims=keepdims)
    want = getattr(np, name)(x.astype(np.float64), axis=axis, keepdims=keepdims)
    compare(got, want, count=30)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_reductions_with_where(name):
    x, mask = random_array((4, 6)), random_array((4, 6), 1) > 0
    mask[:, 0] = True
    options = {} if name in ("sum", "mean") else {"initial": -5.0 if name == "max" else 5.0}
    got = getattr(jnp, name)(x, axis=1, where=mask, **options)
    compare(got, getattr(np, name)(x.astype(np.float64), axis=1, where=mask, **options), count=6)


@pytest.mark.parametrize(
    "index",
    [
        0, -1, slice(None), slice(1, None, 2), slice(None, None, -1), slice(10, 0, -3),
        (slice(None), None, 2), (..., 1), (1, ..., None), (slice(2, 2),), (slice(-2, None), 0, -1),
        np.array([2, 0, 0]), (slice(None), np.array([3, -1])), (np.array([0, 1]), np.array([2, 3])),
        (0, slice(None), np.array([[1], [0]])), (np.array([[0, 1]]), slice(1, 3), np.array([0])),
        (slice(None), np.array([0, 1]), 1), (None, np.array([1]), None), (np.array([0]), None, 1),
        np.array([True, False, True]), (slice(None), np.array([True, False, True, True])),
    ],
    ids=str,
)  # fmt: skip
def test_indexing_agrees_with_numpy(index):
    x = random_array((3, 4, 5))
    got = jnp.asarray(x)[index]
    np.testing.assert_array_equal(np.asarray(got), x[index])
    assert got.shape == x[index].shape
    np.testing.assert_array_equal(np.asarray(gpuflow.jit(lambda v: v[index])(x)), x[index])
    want = np.zeros_like(x)
    np.add.at(want, index, 1)
    gradient = gpuflow.grad(lambda v: jnp.sum(v[index]))(jnp.asarray(x))
    np.testing.assert_array_equal(np.asarray(gradient), want)


@pytest.mark.parametrize(
    "index",
    [0, -1, slice(1, 3), slice(None, None, 2), (slice(None), 1), (1, slice(3, 0, -1))],
    ids=str,
)
def test_updates_agree_with_numpy(index):
    x = random_array((4, 5))
    values = random_array(x[index].shape, 1)
    for name in ("set", "add", "multiply", "max"):
        want = x.copy()
        change = {"set": lambda o, v: v, "add": np.add, "multiply": np.multiply, "max": np.maximum}
        want[index] = change[name](want[index], values)
        got = getattr(jnp.asarray(x).at[index], name)(values)
        np.testing.assert_array_equal(np.asarray(got), want)


def test_update_by_a_mask():
    x = random_array((4, 3))
    want = np.where(x > 0, -1, x)
    np.testing.assert_array_equal(np.asarray(jnp.asarray(x).at[x > 0].set(-1)), want)
    compiled = gpuflow.jit(lambda v: v.at[v > 0].set(-1))
    np.testing.assert_array_equal(np.asarray(compiled(x)), want)
    rows = jnp.asarray(x).at[jnp.array([True, False, False, True])].multiply(0)
    np.testing.assert_array_equal(np.asarray(rows), x * [[0], [1], [1], [0]])


def test_update_by_a_traced_position():
    x = random_array((4, 3))

    def put(v, k):
        return v.at[k].set(9.0), v[k]

    updated, row = gpuflow.jit(put)(x, 2)
    want = x.copy()
    want[2] = 9
    np.testing.assert_array_equal(np.asarray(updated), want)
    np.testing.assert_array_equal(np.asarray(row), x[2])


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("bij,bkj->bki", [(2, 3, 4), (2, 5, 4)]),
        ("ij,ij->i", [(3, 4), (3, 4)]),
        ("i,i", [(7,), (7,)]),
        ("ij,k->kij", [(2, 3), (4,)]),
        ("ij,jk,kl,lm->im", [(3, 4), (4, 2), (2, 5), (5, 3)]),
        ("...i,...i->...", [(2, 3, 4), (3, 4)]),
        ("ijj->i", [(2, 3, 3)]),
        ("abc->ca", [(2, 3, 4)]),
        ("ij,ij,ij->j", [(3, 4)] * 3),
        ("ab,b->a", [(3, 1), (4,)]),
    ],
)
def test_einsum(spec, shapes):
    operands = [random_array(shape, seed) for seed, shape in enumerate(shapes)]
    if spec == "ab,b->a":
        # Sizes of 1 broadcast here and in JAX, not in NumPy.
        want = operands[0].astype(float) @ operands[1].astype(float).sum(keepdims=True)
    else:
        want = np.einsum(spec, *[x.astype(np.float64) for x in operands])
    compare(jnp.einsum(spec, *operands), want, count=20)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 5)),
        ((1, 3, 4), (6, 4, 2)),
        ((5, 1, 3, 4), (2, 4, 3)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
        ((1, 3), (3, 1)),
    ],
    ids=str,
)
def test_matmul(shapes):
    x, y = (random_array(shape, seed) for seed, shape in enumerate(shapes))
    want = x.astype(np.float64) @ y.astype(np.float64)
    compare(jnp.matmul(x, y), want, count=5)
    compare(gpuflow.jit(jnp.matmul)(x, y), want, count=5)


SMOOTH = {
    "logaddexp": lambda x: jnp.logaddexp(x, x * 0.5),
    "var": lambda x: jnp.var(x, axis=0),
    "std": lambda x: jnp.std(x, axis=1),
    "mean": lambda x: jnp.mean(x, axis=(0, 1)),
    "hypot": lambda x: jnp.hypot(x, 2.0),
    "power": lambda x: (x * x) ** 1.5,
    "prod": lambda x: jnp.prod(x, axis=1),
    "take": lambda x: jnp.take(x, jnp.array([0, 2, 0]), axis=1),
    "tile": lambda x: jnp.tile(x, (2, 1)) * 2,
    "roll": lambda x: jnp.roll(x, 1, axis=1) * x,
    "pad": lambda x: jnp.pad(x, 1) ** 2,
    "clip": lambda x: jnp.clip(x, -1.0, 1.0),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives(name):
    """The gradient against central differences in float64."""
    with gpuflow.enable_x64():
        x = np.random.default_rng(3).uniform(-1.4, 1.6, (3, 4))
        direction = np.random.default_rng(4).normal(size=(3, 4))

        def total(v):
            return jnp.sum(jnp.sin(SMOOTH[name](v)))

        gradient = np.asarray(gpuflow.grad(total)(jnp.asarray(x)))
        step = 1e-6
        difference = float(total(x + step * direction) - total(x - step * direction)) / (2 * step)
    np.testing.assert_allclose((gradient * direction).sum(), difference, rtol=1e-6, atol=1e-8)


def test_every_method_is_on_arrays_and_tracers():
    for name in (*METHODS, *PROPERTIES):
        assert hasattr(Array, name)
        assert hasattr(Tracer, name)


def test_operators_with_numpy_operands_on_the_left():
    x = jnp.arange(3)
    for out in (np.float32(2) * x, np.ones(3, np.float32) + x, np.arange(3) @ x, 2 - x, 2**x):
        assert isinstance(out, Array)
    assert (np.arange(3) == x).all()


def test_comparison_with_other_types_is_false():
    assert (jnp.arange(2) == "text") is False
    assert (jnp.arange(2) == None) is False  # noqa: E711


def test_array_of_traced_values_is_stacked():
    out = gpuflow.jit(lambda a, b: jnp.array([[a, 1], [2, b]]))(3, 4.5)
    np.testing.assert_array_equal(np.asarray(out), [[3, 1], [2, 4.5]])


def test_copies_do_not_share_memory():
    x = jnp.arange(3)
    assert jnp.array(x).data is not x.data
    assert jnp.asarray(x) is x
    assert x.copy().data is not x.data
    host = np.zeros(3, np.float32)
    array = jnp.asarray(host)
    host[0] = 5
    assert float(array[0]) == 0


@pytest.mark.parametrize("shape", [np.array([2, 3]), jnp.array([2, 3]), (np.int8(2), jnp.int8(3))])
def test_shapes_may_be_arrays(shape):
    """An array of sizes was taken for a single size, as every array can be asked to be one."""
    arrays = [
        jnp.zeros(shape),
        jnp.broadcast_to(1.0, shape),
        jnp.ones(6).reshape(shape),
        gpuflow.random.normal(gpuflow.random.key(0), shape),
        gpuflow.lax.broadcasted_iota(int, shape, 1),
    ]
    assert [x.shape for x in arrays] == [(2, 3)] * 5
    assert jnp.zeros(jnp.array(3)).shape == gpuflow.lax.iota(int, jnp.array(3)).shape == (3,)


def test_initial_does_not_change_the_dtype():
    """As in JAX: with 2.5 the maximum of integers became a weak float."""
    x = jnp.arange(3)
    for reduce, expected in [(jnp.max, 2), (jnp.min, 0), (jnp.sum, 5), (jnp.prod, 0)]:
        got = reduce(x, initial=2.5)
        assert (int(got), got.dtype, got.weak_type) == (expected, np.int32, False)


@pytest.mark.parametrize("spec", ["ij,jk", "ij->i", "ij->", "ii->i", "iij->j", "ij,kj,kl->il"])
def test_einsum_of_bools(spec):
    """Sums of bools are ``or``, in those over single operands too, which were refused."""
    shapes = {"ii->i": [(3, 3)], "iij->j": [(3, 3, 2)], "ij,kj,kl->il": [(2, 3), (4, 3), (4, 5)]}
    sizes = shapes.get(spec, [(2, 3), (3, 4)][: spec.count(",") + 1])
    random = np.random.default_rng(0)
    arrays = [random.random(shape) < 0.4 for shape in sizes]
    expected = np.einsum(spec, *[x.astype(int) for x in arrays]) > 0
    for einsum in (jnp.einsum, gpuflow.jit(jnp.einsum, static_argnums=0)):
        got = einsum(spec, *arrays)
        assert got.dtype == bool
        np.testing.assert_array_equal(got, expected)


def test_parts_of_complex_numbers_are_replaced_and_rounded():
    """nan_to_num gave complex numbers back as they were; rint refused them."""
    z = np.array([1.5 + 2.5j, complex(np.inf, np.nan), complex(-2.5, -np.inf)], np.complex64)
    for call in (lambda f: f(z), lambda f: gpuflow.jit(f)(z)):
        np.testing.assert_array_equal(call(jnp.nan_to_num), np.nan_to_num(z))
        got = call(lambda z: jnp.nan_to_num(z, nan=7, posinf=5, neginf=-3))
        np.testing.assert_array_equal(got, np.nan_to_num(z, nan=7, posinf=5, neginf=-3))
        np.testing.assert_array_equal(call(lambda z: jnp.rint(z[:1])), np.rint(z[:1]))


def test_logaddexp_of_complex_numbers():
    """It was refused; the angle is that of the sum, in one turn, as in JAX."""
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(2, 20)) + 3j * random.normal(size=(2, 20))).astype(np.complex64)
    exact = [v.astype(np.complex128) for v in (x, y)]
    expected = np.log(np.exp(exact[0]) + np.exp(exact[1]))
    for function in (jnp.logaddexp, gpuflow.jit(jnp.logaddexp)):
        np.testing.assert_allclose(function(x, y), expected, rtol=1e-5, atol=1e-6)
    tangent = gpuflow.jvp(jnp.logaddexp, (x, y), (np.ones_like(x), np.zeros_like(y)))[1]
    np.testing.assert_allclose(tangent, np.exp(exact[0] - expected), rtol=1e-5, atol=1e-6)
    powers = jnp.exp2(jnp.logaddexp2(x, y))
    np.testing.assert_allclose(powers, 2 ** exact[0] + 2 ** exact[1], rtol=1e-5, atol=1e-5)
