"""ott-jax: Sinkhorn distances with derivatives."""

import jax
import jax.numpy as jnp
from common import digits, show
from ott.geometry import pointcloud
from ott.problems.linear import linear_problem
from ott.solvers.linear import sinkhorn

POINTS, _ = digits(count=24, size=3)
X, Y = jnp.asarray(POINTS[:12]), jnp.asarray(POINTS[12:]) + 0.5


def transport():
    def cost(x):
        geometry = pointcloud.PointCloud(x, Y, epsilon=0.5)
        out = sinkhorn.Sinkhorn(threshold=1e-3)(linear_problem.LinearProblem(geometry))
        return out.reg_ot_cost, out

    value, out = cost(X)
    return value, out.matrix, jax.jit(jax.grad(lambda x: cost(x)[0]))(X)


if __name__ == "__main__":
    show({"transport": transport()})
