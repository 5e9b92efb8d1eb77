"""optimistix: roots, least squares, minima and fixed points, with derivatives through them."""

import jax
import jax.numpy as jnp
import optimistix as optx
from common import show

GUESS = jnp.array([1.5, -0.5])


def rosenbrock(x, args):
    return jnp.array([10 * (x[1] - x[0] ** 2), args - x[0]])


def least_squares():
    solvers = (
        optx.GaussNewton(1e-5, 1e-5),
        optx.LevenbergMarquardt(1e-5, 1e-5),
        optx.Dogleg(1e-5, 1e-5),
    )
    return [optx.least_squares(rosenbrock, s, GUESS, args=1.0).value for s in solvers]


def roots():
    def f(x, args):
        return jnp.tanh(x) + args * x - 0.5

    found = [
        optx.root_find(f, s, jnp.array(0.1), args=0.3).value
        for s in (optx.Newton(1e-5, 1e-5), optx.Chord(1e-5, 1e-5))
    ]
    bisected = optx.root_find(
        f, optx.Bisection(1e-5, 1e-5), jnp.array(0.1), args=0.3, options={"lower": -3, "upper": 3}
    )

    def solution(args):
        return optx.root_find(f, optx.Newton(1e-5, 1e-5), jnp.array(0.1), args=args).value

    gradient = jax.jit(jax.grad(solution))(0.3)
    mapped = jax.vmap(solution)(jnp.array([0.1, 0.2, 0.3]))
    return found, bisected.value, gradient, mapped


def minima():
    def f(x, args):
        return jnp.sum(rosenbrock(x, args) ** 2)

    bfgs = optx.minimise(f, optx.BFGS(1e-4, 1e-4), GUESS, args=1.0, max_steps=512)
    simplex = optx.minimise(f, optx.NelderMead(1e-4, 1e-4), GUESS, args=1.0, max_steps=1024)
    return jnp.round(bfgs.value, 2), jnp.round(simplex.value, 2)


def fixed_points():
    def f(x, args):
        return 0.5 * jnp.cos(x) * args

    solver = optx.FixedPointIteration(1e-5, 1e-5)
    value = optx.fixed_point(f, solver, jnp.zeros(3), args=jnp.arange(1.0, 4.0) / 3).value
    gradient = jax.grad(lambda a: jnp.sum(optx.fixed_point(f, solver, jnp.zeros(3), args=a).value))(
        jnp.arange(1.0, 4.0) / 3
    )
    return value, gradient


if __name__ == "__main__":
    show({part.__name__: part() for part in (least_squares, roots, minima, fixed_points)})
