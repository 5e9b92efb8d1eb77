"""Lines that type checkers must refuse: each ends in ``# wrong``, and no other line may be refused.

It is read by tests/typing/test_checkers.py and never run.
"""

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array, lax, nn, random, tree
from gpuflow.scipy import stats


def loss(w: Array, x: Array) -> Array:
    return (x @ w).sum()


def pair(carry: Array, x: Array) -> tuple[Array, Array]:
    return carry, x


x = jnp.ones((2, 3))
key = random.key(0)

# Names that do not exist.
jnp.sofmax(x)  # wrong
gf.jitt(loss)  # wrong
gf.api  # wrong
nn.Dense(3)  # wrong
lax.scann(pair, x, x)  # wrong
random.randn(key, (3,))  # wrong
jnp.linalg.inverse(x)  # wrong
stats.normal.pdf(x)  # wrong
tree.mapp(jnp.sin, x)  # wrong
x.summ()  # wrong
x.at[0].sett(1.0)  # wrong
gf.sharding.Meshh  # wrong

# Keywords that a function does not have.
jnp.sum(x, dim=1)  # wrong
jnp.concatenate([x, x], dim=0)  # wrong
x.mean(axes=0)  # wrong
jnp.zeros((2,), dtyp=jnp.float32)  # wrong
nn.softmax(x, dim=-1)  # wrong
random.normal(key, size=(3,))  # wrong
gf.jit(loss, static_args=(0,))  # wrong
gf.vmap(loss, in_axis=0)  # wrong
gf.grad(loss, argnum=1)  # wrong
lax.scan(pair, x[0], x, lenght=3)  # wrong
x.at[0].set(1.0, unique=True)  # wrong
jnp.median(x, ax=0)  # wrong
gf.checkpoint(loss, policies=None)  # wrong

# Arguments of another kind.
jnp.sum(x, axis="rows")  # wrong
x.sum("rows")  # wrong
jnp.sin("1.0")  # wrong
jnp.sin([1.0, 2.0])  # wrong
jnp.add(x, "1")  # wrong
x + "1"  # wrong
x @ [1.0]  # wrong
x["a"]  # wrong
x[[0, 1]]  # wrong
x.at["a"]  # wrong
x[0] = 1.0  # wrong
jnp.zeros("3")  # wrong
jnp.reshape(x, "ab")  # wrong
x.astype(3)  # wrong
random.split(key, "2")  # wrong
lax.cond(x.sum() > 0, 1.0, 2.0)  # wrong
gf.jit(3)  # wrong
gf.grad("loss")  # wrong
nn.relu()  # wrong
jnp.where(x > 0, x)  # wrong
jnp.exp(x, x)  # wrong
gf.jit(loss)(x)  # wrong
gf.jit(loss)(x, x, x)  # wrong
gf.vmap(loss)(x, "a")  # wrong
gf.value_and_grad(loss)(x)  # wrong
gf.pmap(loss)(x, y=x)  # wrong
gf.checkpoint(loss)(x, 1, 2)  # wrong
tree.map(lambda a: a, x, x)  # wrong

# Results of another kind.
number: int = x.sum()  # wrong
name: str = jnp.exp(x)  # wrong
value, gradient, rest = gf.value_and_grad(loss)(x, x)  # wrong
shape: list[int] = x.shape  # wrong
nn.relu(x).shape.foo  # wrong
jnp.linalg.eigh(x).vectors  # wrong
