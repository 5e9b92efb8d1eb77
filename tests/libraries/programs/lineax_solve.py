"""lineax: linear solves of several structures, with derivatives and vmap."""

import jax
import jax.numpy as jnp
import jax.random as jr
import lineax as lx
from common import show

MATRIX = jr.normal(jr.key(0), (5, 5)) + 5 * jnp.eye(5)
SPD = MATRIX @ MATRIX.T
VECTOR = jnp.arange(1.0, 6.0)
TALL = jr.normal(jr.key(1), (8, 5))


def solvers():
    results = []
    spd = lx.MatrixLinearOperator(SPD, lx.positive_semidefinite_tag)
    plain = lx.MatrixLinearOperator(MATRIX)
    for operator, solver in (
        (plain, lx.LU()),
        (plain, lx.QR()),
        (plain, lx.SVD()),
        (spd, lx.Cholesky()),
        (spd, lx.CG(rtol=1e-3, atol=1e-3)),
        (plain, lx.AutoLinearSolver(well_posed=True)),
    ):
        results.append(lx.linear_solve(operator, VECTOR, solver).value)
    tall = lx.MatrixLinearOperator(TALL)
    results.append(lx.linear_solve(tall, jnp.arange(8.0), lx.QR()).value)
    results.append(
        lx.linear_solve(tall, jnp.arange(8.0), lx.AutoLinearSolver(well_posed=False)).value
    )
    return results


def structured():
    diagonal = lx.DiagonalLinearOperator(VECTOR)
    tridiagonal = lx.TridiagonalLinearOperator(VECTOR + 3, jnp.ones(4), -jnp.ones(4))
    triangular = lx.MatrixLinearOperator(jnp.tril(MATRIX), lx.lower_triangular_tag)
    function = lx.FunctionLinearOperator(
        lambda x: MATRIX @ x, jax.ShapeDtypeStruct((5,), VECTOR.dtype)
    )
    jacobian = lx.JacobianLinearOperator(lambda x, _: x + 0.1 * jnp.sin(MATRIX @ x), VECTOR)
    operators = (diagonal, tridiagonal, triangular, function, jacobian)
    return [lx.linear_solve(operator, VECTOR).value for operator in operators]


def derivatives():
    @jax.jit
    def loss(matrix, vector):
        operator = lx.MatrixLinearOperator(matrix)
        return jnp.sum(lx.linear_solve(operator, vector).value ** 2)

    grads = jax.grad(loss, argnums=(0, 1))(MATRIX, VECTOR)
    _, tangent = jax.jvp(loss, (MATRIX, VECTOR), (jnp.ones((5, 5)), VECTOR))
    mapped = jax.vmap(loss, in_axes=(None, 0))(MATRIX, jnp.stack([VECTOR, 2 * VECTOR]))
    many = jax.vmap(jax.grad(loss), in_axes=(0, None))(jnp.stack([MATRIX, SPD]), VECTOR)
    hessian = jax.hessian(lambda v: loss(MATRIX, v))(VECTOR)
    return grads, tangent, mapped, many, hessian


if __name__ == "__main__":
    show({part.__name__: part() for part in (solvers, structured, derivatives)})
