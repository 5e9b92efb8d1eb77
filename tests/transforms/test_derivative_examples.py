"""Derivatives at points where formulas have infinity times 0, one example each."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest
import scipy.linalg

import gpuflow as gf
import gpuflow.numpy as jnp
import gpuflow.scipy.linalg as linalg
from gpuflow import lax, nn
from gpuflow.scipy import special

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.fixture(autouse=True)
def wide():
    with gf.enable_x64(True):
        yield


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("jitted", [False, True])
def test_powers_of_zero(dtype, jitted):
    """x ** n at 0 by the base is 0, but 1 for n = 1; exponents are arrays of floats or ints."""
    for exponents in (np.array([0, 1, 2, 3], dtype), np.array([0, 1, 2, 3])):

        def by_base(x, exponents=exponents):
            return gf.jvp(lambda x: x ** jnp.asarray(exponents), (x,), (jnp.ones_like(x),))[1]

        def reverse(x, exponents=exponents):
            return gf.grad(lambda x: (x ** jnp.asarray(exponents)).sum())(x)

        for way in (by_base, reverse):
            way = gf.jit(way) if jitted else way
            assert way(jnp.zeros(4, dtype)).tolist() == [0, 1, 0, 0]
    y = jnp.array([1.0, 2.0, 3.0], dtype)
    assert gf.grad(lambda y: (jnp.zeros(3, dtype) ** y).sum())(y).tolist() == [0, 0, 0]


def test_second_derivatives_of_powers_of_zero():
    def function(x):
        return x ** jnp.array([0.0, 1.0, 2.0, 3.0])

    second = gf.jacfwd(gf.jacfwd(function))(0.0)
    assert second.tolist() == [0, 0, 2, 0]
    assert gf.jacrev(gf.jacrev(function))(0.0).tolist() == [0, 0, 2, 0]
    assert gf.grad(jnp.power)(jnp.float16(6e-8), jnp.float16(0)) == 0  # 1 / x is infinite
    # Away from 0 the mixed derivative at the exponent 0 is 1 / x.
    assert gf.grad(gf.grad(lambda x, y: x**y), 1)(4.0, 0.0) == 0.25


SATURATED = {
    "exact gelu": partial(nn.gelu, approximate=False),
    "gelu": nn.gelu,
    "silu": nn.silu,
    "mish": nn.mish,
    "softplus": nn.softplus,
    "hard_silu": nn.hard_silu,
    "elu": nn.elu,
    "celu": nn.celu,
    "leaky_relu": lambda x: nn.leaky_relu(x, 0.0),
    "relu": nn.relu,
    "squareplus": nn.squareplus,
    "sparse_plus": nn.sparse_plus,
    "-log_sigmoid(-x)": lambda x: -nn.log_sigmoid(-x),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", SATURATED)
def test_activations_far_out(name, dtype):
    """The slope is 0 on the left and 1 on the right, and bends nowhere."""
    function = SATURATED[name]
    largest = float(ml_dtypes.finfo(dtype).max)
    x = jnp.array(
        [-np.inf, -largest, -min(1e30, largest / 2), min(1e30, largest / 2), largest, np.inf], dtype
    )

    def slope(x):
        return gf.grad(lambda x: function(x).sum())(x)

    def forward(x):
        return gf.jvp(function, (x,), (jnp.ones_like(x),))[1]

    def check(got, want):  # squareplus is not quite flat: 1e-60
        np.testing.assert_allclose(np.asarray(got, float), want, rtol=0, atol=1e-50)

    for way in (slope, forward, gf.jit(slope)):
        check(way(x), [0, 0, 0, 1, 1, 1])
        check(gf.jvp(way, (x,), (jnp.ones_like(x),))[1], [0] * 6)
        check(gf.grad(lambda x, way=way: way(x).sum())(x), [0] * 6)


def test_entropy_bends_downwards_at_both_zeros():
    """At -0.0 the second derivative, -1 / x, was inf."""
    assert gf.vmap(gf.grad(gf.grad(special.entr)))(jnp.array([0.0, -0.0])).tolist() == [-np.inf] * 2


@pytest.mark.parametrize("function", [jnp.logaddexp, jnp.logaddexp2])
def test_sums_of_infinite_logarithms(function):
    x = jnp.array([np.inf, -np.inf, np.inf, 3.0, -np.inf, 3.0])
    y = jnp.array([np.inf, -np.inf, 3.0, np.inf, 3.0, -np.inf])
    by_x, by_y = gf.grad(lambda x, y: function(x, y).sum(), (0, 1))(x, y)
    assert by_x.tolist() == [0.5, 0.5, 1, 0, 0, 1] and by_y.tolist() == [0.5, 0.5, 0, 1, 1, 0]
    # Of large numbers the share depends on their distance, which the sum has lost.
    assert abs(gf.grad(jnp.logaddexp)(jnp.float32(1e7), jnp.float32(1e7)) - 0.5) < 1e-6


def test_complex_inverse_functions_keep_to_their_branch():
    """The derivative of acosh in the left half-plane has the sign of its square roots."""
    for z in (-2 + 0.5j, -2 - 0.5j, 1e30 + 1e30j):
        want = 1 / (np.sqrt(z - 1) * np.sqrt(z + 1))
        np.testing.assert_allclose(gf.grad(lax.acosh, holomorphic=True)(z), want, rtol=1e-12)


def test_a_rule_is_not_called_with_zero_tangents():
    """Infinity times a tangent that is 0 by construction is no part of the sum."""
    function = gf.custom_jvp(lambda x, y: x * jnp.log(y))
    function.defjvps(lambda t, out, x, y: t * jnp.log(y), lambda t, out, x, y: t * x / y)
    assert gf.jvp(lambda x: function(x, 0.0), (2.0,), (1.0,))[1] == -np.inf
    assert gf.jvp(lambda x: function(x, 2.0), (np.inf,), (1.0,))[1] == np.log(2.0)


# --- matrices ------------------------------------------------------------------------------

_Q = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
_G = np.random.default_rng(1).normal(size=(4, 4))
REPEATED = {
    "identity": np.eye(4),
    "zero": np.zeros((4, 4)),
    "diagonal": np.diag([2.0, 2.0, 1.0, 1.0]),
    "turned": _Q @ np.diag([1.0, 1.0, 1.0, 2.0]) @ _Q.T,
}


@pytest.mark.parametrize("name", REPEATED)
def test_functions_of_equal_eigenvalues(name):
    """The trace of the exponential, whose derivative is the exponential itself."""
    a = REPEATED[name]
    total = gf.grad(lambda a: jnp.exp(jnp.linalg.eigvalsh(a)).sum())(jnp.asarray(a))
    np.testing.assert_allclose(total, scipy.linalg.expm(a), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("order", [None, 1.5, 2, 3])
@pytest.mark.parametrize("zero", [0.0, -0.0, 0j])
def test_norms_of_zeros(order, zero):
    """Slopes along a direction have both signs: 0 lies between, as for abs."""

    def norm(x):
        return jnp.linalg.norm(x, order)

    x = jnp.full(3, zero)
    for way in (gf.grad(norm), gf.jit(gf.grad(norm))):
        assert way(x).tolist() == [0, 0, 0]
    assert norm(x) == 0 and norm(jnp.zeros(0)) == 0
    if order != 1.5:
        assert gf.hessian(norm)(jnp.zeros(2)).tolist() == [[0, 0], [0, 0]]
    x = jnp.array([[0.0, 0.0], [3.0, 4.0]])  # other rows have their own
    slope = gf.grad(lambda x: jnp.linalg.norm(x, axis=1).sum())(x)
    np.testing.assert_allclose(slope, [[0, 0], [0.6, 0.8]], rtol=1e-6)
    assert np.isnan(gf.grad(norm)(jnp.array([np.nan, 1.0]))).all()


def test_norms_of_matrices_with_equal_singular_values():
    """The nuclear norm is smooth there; the largest value has a subgradient of trace 1."""
    a = jnp.asarray(3.0 * _Q)
    np.testing.assert_allclose(gf.grad(lambda a: jnp.linalg.norm(a, "nuc"))(a), _Q, atol=1e-12)
    slope = np.asarray(gf.grad(lambda a: jnp.linalg.norm(a, 2))(a))
    np.testing.assert_allclose((slope * _Q).sum(), 1.0, atol=1e-12)


def differences(function, at):
    out = np.zeros(at.shape)
    for k in np.ndindex(at.shape):
        step = np.zeros(at.shape)
        step[k] = 1e-6
        out[k] = (function(jnp.asarray(at + step)) - function(jnp.asarray(at - step))) / 2e-6
    return out


@pytest.mark.parametrize("method", ["qdwh", "svd"])
@pytest.mark.parametrize("shape", [(4, 4), (4, 2)])
def test_polar(shape, method):
    general, equal = np.random.default_rng(2).normal(size=shape), 2.0 * _Q[:, : shape[1]]
    for a in (general, equal) if method == "qdwh" else (general,):

        def function(a):
            unitary, definite = linalg.polar(a, method=method)
            size = a.shape[1]
            return (_G[:, :size] * unitary).sum() + (_G[:size, :size] * definite).sum()

        want = differences(function, a)
        for way in (gf.grad(function), gf.jit(gf.grad(function)), gf.jacfwd(function)):
            np.testing.assert_allclose(way(jnp.asarray(a)), want, atol=1e-6)


@pytest.mark.parametrize(
    "a",
    [
        np.eye(3),
        np.diag([1.0, 1.0, 2.0]),
        np.eye(3) * 2 + np.eye(3, k=1),
        np.random.default_rng(3).normal(size=(3, 3)) + 4 * np.eye(3),
    ],
    ids=["identity", "equal", "defective", "general"],
)
def test_sqrtm(a):
    def function(a):
        root = linalg.sqrtm(a)
        return (_G[:3, :3] * root.real).sum() + (_G[1:, 1:] * root.imag).sum()

    want = differences(function, a)
    for way in (gf.grad(function), gf.jit(gf.grad(function)), gf.jacfwd(function)):
        np.testing.assert_allclose(way(jnp.asarray(a)), want, atol=1e-7)
    many = gf.vmap(gf.grad(function))(jnp.stack([jnp.asarray(a)] * 2))
    np.testing.assert_allclose(many[1], want, atol=1e-7)


# --- custom_vjp ----------------------------------------------------------------------------


@partial(gf.custom_vjp, nondiff_argnums=(0,))
def applied(function, x):
    return function(x)


applied.defvjp(
    lambda function, x: (function(x), x),
    lambda function, x, ct: (2 * ct * gf.grad(function)(x),),
)


def test_custom_vjp_of_closures_over_traced_values():
    """jit and vmap around the derivative may trace what a nondiff function closes over."""

    def outer(z, x):
        return applied(lambda v: v * v * z, x)

    slope = gf.grad(outer, 1)
    assert gf.jit(slope)(2.0, 3.0) == 24
    for mapped in (gf.vmap(slope, (0, None)), gf.jit(gf.vmap(slope, (0, None)))):
        assert mapped(jnp.array([1.0, 2.0]), 3.0).tolist() == [12, 24]
    assert gf.vmap(gf.jit(slope))(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])).tolist() == [12, 32]
    with pytest.raises(gf.errors.UnexpectedTracerError, match="pass it as an argument"):
        gf.grad(outer)(2.0, 3.0)
