"""jaxopt: solvers with implicit derivatives."""

import jax
import jax.numpy as jnp
import jaxopt
from common import digits, show

POINTS, LABELS = digits()
X, Y = jnp.asarray(POINTS), jnp.asarray(LABELS % 2, jnp.float32)


def ridge(params, strength, data):
    x, y = data
    return jnp.mean((x @ params - y) ** 2) + strength * jnp.sum(params**2)


def smooth():
    results = []
    for solver in (
        jaxopt.LBFGS(ridge, maxiter=30, tol=1e-6),
        jaxopt.GradientDescent(ridge, maxiter=100),
        jaxopt.NonlinearCG(ridge, maxiter=50, tol=1e-6),
        jaxopt.BFGS(ridge, maxiter=30),
    ):
        found, _ = solver.run(jnp.zeros(16), strength=0.1, data=(X, Y))
        results.append(ridge(found, 0.1, (X, Y)))
    return results


def implicit():
    solver = jaxopt.GradientDescent(ridge, maxiter=100, tol=1e-5, implicit_diff=True)
    solution = lambda s: jnp.sum(solver.run(jnp.zeros(16), s, (X, Y)).params ** 2)  # noqa: E731
    return jax.grad(solution)(0.1), jax.jit(solution)(0.5)


def constrained():
    lasso = jaxopt.ProximalGradient(
        lambda w, data: jnp.mean((data[0] @ w - data[1]) ** 2),
        jaxopt.prox.prox_lasso,
        maxiter=200,
        tol=1e-5,
    )
    box = jaxopt.ProjectedGradient(
        lambda w, data: jnp.mean((data[0] @ w - data[1]) ** 2),
        jaxopt.projection.projection_non_negative,
        maxiter=200,
        tol=1e-5,
    )
    simplex = jaxopt.projection.projection_simplex(jnp.array([0.3, 2.0, -1.0]))
    first = lasso.run(jnp.zeros(16), hyperparams_prox=0.05, data=(X, Y)).params
    second = box.run(jnp.zeros(16), data=(X, Y)).params
    return first, second, simplex


def roots_and_losses():
    bisection = jaxopt.Bisection(lambda x, a: x**3 - x - a, lower=1, upper=2, tol=1e-5)
    fixed = jaxopt.FixedPointIteration(lambda x, a: jnp.cos(a * x), maxiter=100, tol=1e-6)
    squares = jaxopt.GaussNewton(lambda x: jnp.array([x[0] - 1.0, 10 * (x[1] - x[0] ** 2)]))
    losses = jaxopt.loss.multiclass_logistic_loss(LABELS[0], jnp.arange(5.0))
    return (
        bisection.run(a=1.0).params,
        fixed.run(jnp.array(0.5), a=0.8).params,
        squares.run(jnp.array([1.2, 1.0])).params,
        losses,
    )


if __name__ == "__main__":
    show({part.__name__: part() for part in (smooth, implicit, constrained, roots_and_losses)})
