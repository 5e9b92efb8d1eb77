"""jaxtyping with beartype: shapes and dtypes in annotations, checked inside jit and vmap too."""

import jax
import jax.numpy as jnp
from beartype import beartype
from common import show
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, jaxtyped

Left, Right = Float[Array, "rows inner"], Float[Array, "inner columns"]
Product, Draws = Float[Array, "rows columns"], Int[Array, " count"]
Floats, Scalar = Float[Array, "..."], Float[Array, ""]


@jaxtyped(typechecker=beartype)
def product(a: Left, b: Right) -> Product:
    return a @ b


@jaxtyped(typechecker=beartype)
def draw(key: PRNGKeyArray, count: int) -> Draws:
    return jax.random.randint(key, (count,), 0, 10)


@jaxtyped(typechecker=beartype)
def total(tree: PyTree[Floats]) -> Scalar:
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))


def refused(call):
    try:
        call()
    except Exception as error:
        return int("jaxtyping" in type(error).__module__ or "TypeCheckError" in str(type(error)))
    return 0


def checks():
    a, b = jnp.arange(6.0).reshape(2, 3), jnp.ones((3, 4))
    return (
        product(a, b),
        jax.jit(product)(a, b),
        jax.vmap(product, (0, None))(a[None], b),
        draw(jax.random.key(0), 4),
        total({"x": a, "y": (b,)}),
        jax.grad(total)({"x": a})["x"],
        refused(lambda: product(a, b.T)),
        refused(lambda: product(a.astype(int), b)),
        refused(lambda: jax.jit(product)(a, b.T)),
        refused(lambda: total({"x": jnp.arange(3)})),
        isinstance(jnp.ones((2, 3)), Float[jax.Array, "2 3"]),
    )


if __name__ == "__main__":
    show({"checks": checks()})
