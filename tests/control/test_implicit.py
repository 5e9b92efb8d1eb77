"""custom_root and custom_linear_solve: derivatives of what was solved, not of the solver."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

RANDOM = np.random.default_rng(0)
A = RANDOM.normal(size=(3, 3)) + 3 * np.eye(3)
B = RANDOM.normal(size=3)


def by_elimination(matvec, b):
    """Solves with the matrix of ``matvec``."""
    matrix = gf.jacobian(matvec)(jnp.zeros_like(b))
    return jnp.linalg.solve(matrix, b)


def solve(a, b):
    return lax.custom_linear_solve(
        lambda x: a @ x, b, by_elimination, transpose_solve=by_elimination
    )


def solve_symmetric(a, b):
    return lax.custom_linear_solve(lambda x: (a + a.T) @ x, b, by_elimination, symmetric=True)


def solve_by_iteration(a, b):
    """Jacobi's iteration, in a while_loop that reverse mode could not go through."""

    def iterate(matvec, b):
        diagonal = jnp.diag(gf.jacobian(matvec)(jnp.zeros_like(b)))

        def step(state):
            x, k = state
            return x + (b - matvec(x)) / diagonal, k + 1

        return lax.while_loop(lambda state: state[1] < 200, step, (0 * b, 0))[0]

    return lax.custom_linear_solve(lambda x: a @ x + 7 * x, b, iterate, iterate)


CASES = {
    "plain": (solve, lambda a, b: jnp.linalg.solve(a, b)),
    "symmetric": (solve_symmetric, lambda a, b: jnp.linalg.solve(a + a.T, b)),
    "iteration": (solve_by_iteration, lambda a, b: jnp.linalg.solve(a + 7 * jnp.eye(3), b)),
}

TRANSFORMS = {
    "value": lambda f: f,
    "jit": gf.jit,
    "grad": lambda f: gf.grad(lambda a, b: jnp.sum(f(a, b) ** 2), argnums=(0, 1)),
    "grad of b": lambda f: gf.grad(lambda a, b: jnp.sum(f(a, b) ** 2), argnums=1),
    "jacfwd": lambda f: gf.jacfwd(f, argnums=(0, 1)),
    "jacrev": lambda f: gf.jit(gf.jacrev(f, argnums=(0, 1))),
    "second order": lambda f: gf.jacfwd(
        gf.grad(lambda a, b: jnp.sum(f(a, b) ** 3), argnums=(0, 1)), argnums=(0, 1)
    ),
    "reverse twice": lambda f: gf.jacrev(
        gf.grad(lambda a, b: jnp.sum(f(a, b) ** 3)), argnums=(0, 1)
    ),
}


# The iteration runs loops inside of loops at second order, which takes long.
PAIRS = [
    (case, transform)
    for case in CASES
    for transform in TRANSFORMS
    if case != "iteration" or transform not in ("second order", "reverse twice")
]


@pytest.mark.parametrize(("case", "transform"), PAIRS)
def test_linear_solves_are_differentiated_as_solutions(x64, case, transform):
    f, reference = CASES[case]
    got = TRANSFORMS[transform](f)(A, B)
    expected = TRANSFORMS[transform](reference)(A, B)
    for a, b in zip(gf.tree.leaves(got), gf.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (2, 1)])
def test_mapped_linear_solves(x64, axes):
    def stacked(value, axis):
        return value if axis is None else np.stack([value, 1.5 * value, value + 0.2], axis)

    args = stacked(A, axes[0]), stacked(B, axes[1])
    for transform in (lambda f: f, TRANSFORMS["grad"], lambda f: gf.jit(gf.jacfwd(f))):
        got = gf.vmap(transform(solve), in_axes=axes)(*args)
        expected = gf.vmap(transform(jnp.linalg.solve), in_axes=axes)(*args)
        for a, b in zip(gf.tree.leaves(got), gf.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)

    def total(f):
        return lambda a, b: jnp.sum(gf.vmap(f, in_axes=axes)(a, b) ** 2)

    got = gf.grad(total(solve), argnums=(0, 1))(*args)
    expected = gf.grad(total(jnp.linalg.solve), argnums=(0, 1))(*args)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_auxiliary_data_has_no_derivative(x64):
    def f(a, b):
        def with_aux(matvec, b):
            x = by_elimination(matvec, b)
            return x, {"norm": jnp.sum(x * x), "steps": 3}

        return lax.custom_linear_solve(lambda x: a @ x, b, with_aux, with_aux, has_aux=True)

    x, aux = f(A, B)
    np.testing.assert_allclose(x, np.linalg.solve(A, B), rtol=1e-10)
    assert aux["steps"] == 3 and aux["norm"].item() == pytest.approx(np.sum(np.square(x)))
    _, (x_tangent, aux_tangent) = gf.jvp(lambda b: f(A, b), (B,), (B,))
    np.testing.assert_allclose(x_tangent, x, rtol=1e-10)
    assert aux_tangent["norm"] == 0 and aux_tangent["steps"].dtype == gf.float0
    grads = gf.grad(lambda b: jnp.sum(f(A, b)[0]))(B)
    np.testing.assert_allclose(grads, np.linalg.solve(A.T, np.ones(3)), rtol=1e-10)
    mapped = gf.vmap(f, in_axes=(None, 0))(A, np.stack([B, 2 * B]))
    np.testing.assert_allclose(mapped[0][1], 2 * x, rtol=1e-10)
    assert mapped[1]["norm"].shape == (2,)


def test_right_hand_sides_may_be_trees(x64):
    def matvec(x):
        return {"p": 2.0 * x["p"] + x["q"], "q": x["p"] - x["q"]}

    def both(matvec, b):
        # By Cramer's rule, for [[2, 1], [1, -1]], which is its own transpose.
        return {"p": (b["p"] + b["q"]) / 3, "q": (b["p"] - 2 * b["q"]) / 3}

    b = {"p": np.array([1.0, 2.0]), "q": np.array([0.5, -1.0])}
    x = lax.custom_linear_solve(matvec, b, both, symmetric=True)
    np.testing.assert_allclose(matvec(x)["p"], b["p"], rtol=1e-12)
    grads = gf.grad(
        lambda b: jnp.sum(lax.custom_linear_solve(matvec, b, both, symmetric=True)["q"])
    )(b)
    np.testing.assert_allclose(grads["p"], [1 / 3, 1 / 3], rtol=1e-12)
    np.testing.assert_allclose(grads["q"], [-2 / 3, -2 / 3], rtol=1e-12)


def test_errors_of_linear_solves():
    def halve(matvec, b):
        return b / 2

    def double(x):
        return 2 * x

    b = np.ones(2, "f")
    with pytest.raises(TypeError, match=r"\[custom_linear_solve\] reverse mode needs a solver"):
        gf.grad(lambda b: jnp.sum(lax.custom_linear_solve(double, b, halve)))(b)
    forward = gf.jvp(lambda b: lax.custom_linear_solve(double, b, halve), (b,), (b,))[1]
    np.testing.assert_array_equal(forward, b / 2)
    with pytest.raises(ValueError, match="solve must return the shapes of b"):
        lax.custom_linear_solve(double, b, lambda matvec, b: b[:1])
    with pytest.raises(ValueError, match="matvec must return the shapes of b"):
        lax.custom_linear_solve(lambda x: x[:1], b, halve)
    with pytest.raises(TypeError, match="matvec must return the tree of b"):
        lax.custom_linear_solve(lambda x: (x,), b, halve)
    with pytest.raises(TypeError, match=r"transpose_solve must return the tree of b"):
        lax.custom_linear_solve(double, b, halve, lambda matvec, b: (b,))
    with pytest.raises(TypeError, match=r"with has_aux solve must return a pair"):
        lax.custom_linear_solve(double, b, halve, has_aux=True)


# --- roots ---------------------------------------------------------------------------------


def newton(f, x):
    def step(state):
        x, k = state
        return x - f(x) / gf.grad(f)(x), k + 1

    return lax.while_loop(lambda state: state[1] < 30, step, (x, 0))[0]


def square_root(a):
    return lax.custom_root(lambda x: x * x - a, 1.0 + 0 * a, newton, lambda g, y: y / g(1.0))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        gf.grad,
        gf.jacfwd,
        lambda f: gf.jit(gf.grad(f)),
        lambda f: gf.grad(gf.grad(f)),
        lambda f: gf.jacfwd(gf.grad(f)),
        lambda f: gf.grad(gf.grad(gf.grad(f))),
        lambda f: lambda a: gf.vmap(gf.grad(f))(jnp.stack([a, 2 * a])),
        lambda f: gf.grad(lambda a: jnp.sum(gf.vmap(f)(jnp.stack([a, 2 * a])))),
    ],
)
def test_a_scalar_root(x64, transform):
    got, expected = transform(square_root)(2.3), transform(jnp.sqrt)(2.3)
    np.testing.assert_allclose(got, expected, rtol=1e-10)


def test_a_system_with_auxiliary_data(x64):
    def f(a):
        def equations(x):
            return {"u": x["u"] ** 3 - a[0], "v": x["v"] * x["u"] - a[1]}

        def solved(equations, guess):
            del equations, guess
            u = lax.stop_gradient(jnp.cbrt(a[0]))
            return {"u": u, "v": lax.stop_gradient(a[1]) / u}, {"steps": 5}

        def tangent_solve(g, y):
            columns = [g({"u": 1.0, "v": 0.0}), g({"u": 0.0, "v": 1.0})]
            (p, q), (r, s) = [(c["u"], c["v"]) for c in columns]
            determinant = p * s - q * r
            return {
                "u": (s * y["u"] - r * y["v"]) / determinant,
                "v": (p * y["v"] - q * y["u"]) / determinant,
            }

        guess = {"u": 1.0, "v": 1.0}
        return lax.custom_root(equations, guess, solved, tangent_solve, has_aux=True)

    def reference(a):
        return jnp.cbrt(a[0]) * 2 + a[1] / jnp.cbrt(a[0])

    def total(a):
        x, aux = f(a)
        return x["u"] * 2 + x["v"] + 0 * aux["steps"]

    a = np.array([1.7, 0.6])
    for transform in (lambda f: f, gf.grad, gf.jacfwd):
        np.testing.assert_allclose(transform(total)(a), transform(reference)(a), rtol=1e-8)


def test_errors_of_roots():
    def tangent_solve(g, y):
        return y / g(1.0)

    with pytest.raises(TypeError, match=r"\[custom_root\] f must return the tree"):
        lax.custom_root(lambda x: (x,), 1.0, lambda f, x: x, tangent_solve)
    with pytest.raises(TypeError, match=r"\[custom_root\] solve must return the tree"):
        lax.custom_root(lambda x: x, 1.0, lambda f, x: (x,), tangent_solve)
    with pytest.raises(TypeError, match=r"\[custom_root\] tangent_solve must return the tree"):
        lax.custom_root(lambda x: x, 1.0, lambda f, x: x, lambda g, y: (y,))
    with pytest.raises(ValueError, match=r"\[custom_root\] f must return the shapes"):
        lax.custom_root(lambda x: jnp.ones(2), 1.0, lambda f, x: x, tangent_solve)
    with pytest.raises(TypeError, match="with has_aux solve must return a pair"):
        lax.custom_root(lambda x: x, 1.0, lambda f, x: x, tangent_solve, has_aux=True)
