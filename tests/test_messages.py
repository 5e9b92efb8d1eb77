"""Typical mistakes: each message names what must hold, what was got and what to write, in a few
lines, whatever the operands are."""

import dataclasses

import numpy as np
import pytest
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import checkpointing, lax, nn, random
from gpuflow.sharding import NamedSharding, PartitionSpec

MAX_LINES, MAX_CHARACTERS = 15, 1500
X = jnp.ones((2, 3))
KEY = random.key(0)


@dataclasses.dataclass
class Parameters:
    w: object
    b: object


class Tensor:
    """An array of another library, with a long text."""

    shape = (300, 4)

    def __array__(self, dtype=None, copy=None):
        return np.ones(self.shape, dtype)

    def __repr__(self):
        return "tensor(\n" + "    [0., 0., 0.],\n" * 300 + ")"


class DataFrame(Tensor):
    pass


Tensor.__module__, DataFrame.__module__ = "torch", "pandas.core.frame"
PARAMETERS = Parameters(X, X)
MANY = {f"layer{k}": {"w": X, "b": X[0]} for k in range(200)}


def nested(depth):
    result = 1.0
    for _ in range(depth):
        result = [result]
    return result


def branching(x):
    if x.sum() > 0:
        return x
    return -x


def leak():
    seen = []
    gf.jit(seen.append)(X)
    return seen[0] + 1


def donated():
    x = X * 2
    gf.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x + 1


def nan_in_a_loop():
    with gf.debug_nans(True):
        return gf.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: jnp.log(c), x))(X)


def carried():
    return lax.scan(lambda c, t: (c.astype(int), t), X, jnp.arange(3))


MISTAKES = {
    "shapes": (lambda: X + jnp.ones(4), TypeError, "[add]"),
    "product": (lambda: X @ X, TypeError, "[matmul]"),
    "axis": (lambda: jnp.sum(X, axis=5), ValueError, "[sum]"),
    "reshape": (lambda: X.reshape(7), TypeError, "[reshape]"),
    "concatenate": (lambda: jnp.concatenate([X, X.T]), TypeError, "[concatenate]"),
    "arrays": (lambda: jnp.concatenate(X, X), TypeError, "Fix: jnp.concatenate([x, y])."),
    "stack of arguments": (lambda: jnp.stack(X, X), TypeError, "Fix: jnp.stack([x, y])."),
    "vstack of arguments": (lambda: jnp.vstack(X, X), TypeError, "Fix: jnp.vstack([x, y])."),
    "lax.concatenate": (lambda: lax.concatenate(X, X), TypeError, "lax.concatenate([x, y], 0)"),
    "sizes": (lambda: jnp.zeros(2, 3), TypeError, "Fix: jnp.zeros((2, 3))."),
    "sizes after a tuple": (lambda: jnp.ones((2, 3), 4), TypeError, "Fix: jnp.ones((2, 3, 4))."),
    "axes": (lambda: X.mean(0, 1), TypeError, "several sizes or axes are one tuple, (2, 3)."),
    "view as in PyTorch": (lambda: X.view(3, 2), TypeError, "Fix: x.reshape(3, 2)."),
    "view of a tuple": (lambda: X.view((3, 2)), TypeError, "Fix: x.reshape((3, 2))."),
    "shape as a key": (lambda: random.normal((3,)), TypeError, "random.normal(random.key(0), ...)"),
    "size as a key": (lambda: random.uniform(3), TypeError, "random.uniform(random.key(0), ...)"),
    "list as an operand": (lambda: jnp.add(X, [1] * 10_000), TypeError, "[add]"),
    "list beside an array": (lambda: X + [1] * 10_000, TypeError, "[__add__]"),
    "text": (lambda: jnp.sin("a" * 10_000), TypeError, "[sin]"),
    "assignment": (lambda: X.__setitem__(0, 1), TypeError, ".at["),
    "condition": (lambda: gf.jit(branching)(X), TypeError, "jnp.where"),
    "range": (lambda: gf.jit(lambda n: list(range(n)))(3), TypeError, "static"),
    "NumPy": (lambda: gf.jit(lambda x: np.asarray(x))(X), TypeError, "numpy"),
    "mask": (lambda: gf.jit(lambda x: x[x > 0])(X), IndexError, "jnp.where"),
    "leak": (leak, TypeError, "return the value"),
    "donated": (donated, RuntimeError, "donate"),
    "tensor in jit": (lambda: gf.jit(jnp.sin)(Tensor()), TypeError, "Fix: jnp.asarray(x)"),
    "frame in a tree": (lambda: gf.jit(lambda t: t)({"a": [DataFrame()]}), TypeError,
                        "got a pandas DataFrame of shape (300, 4) as t['a'][0]. Fix: jnp.asarray("),
    "tensor in an op": (lambda: jnp.exp(Tensor()), TypeError, "Fix: jnp.asarray(x)"),
    "tensor beside an array": (lambda: X * Tensor(), TypeError, "Fix: jnp.asarray(x)"),
    "tensor in grad": (lambda: gf.grad(jnp.sum)(Tensor()), TypeError, "Fix: jnp.asarray(x)"),
    "tensor in a branch": (lambda: lax.cond(True, jnp.sin, jnp.cos, Tensor()), TypeError,
                           "Fix: jnp.asarray(x)"),
    "tensor in vmap": (lambda: gf.vmap(jnp.sin)(Tensor()), TypeError, "Fix: jnp.asarray(x)"),
    "tensor in lax": (lambda: lax.sin(Tensor()), TypeError, "Fix: jnp.asarray(x)"),
    "dataclass in jit": (lambda: gf.jit(lambda p: p.w)(PARAMETERS), TypeError,
                         "got the dataclass Parameters as p. Fix: write @gpuflow.tree_util.reg"),
    "dataclass in grad": (lambda: gf.grad(lambda p: p.w.sum())(PARAMETERS), TypeError,
                          "register_dataclass"),
    "dataclass as a carry": (lambda: lax.scan(lambda c, t: (c, t), PARAMETERS, jnp.arange(3)),
                             TypeError, "register_dataclass"),
    "dataclass as a result": (lambda: gf.jit(lambda x: PARAMETERS)(X), TypeError,
                              "register_dataclass"),
    "dataclass beside an array": (lambda: X + PARAMETERS, TypeError, "register_dataclass"),
    "optimizer's name": (lambda: gf.jit(lambda x, how: x)(X, "adam"), TypeError, "static"),
    "gradient of a vector": (lambda: gf.grad(jnp.sin)(X), TypeError, "scalar"),
    "gradient of integers": (lambda: gf.grad(lambda x: x * 1.0)(3), TypeError, "float"),
    "carry of another type": (carried, TypeError, "[scan]"),
    "branches that differ": (lambda: lax.cond(True, lambda x: x, lambda x: x.sum(), X), TypeError,
                             "[cond]"),
    "trees that differ": (lambda: gf.tree.map(jnp.add, MANY, {**MANY, "more": X}), ValueError,
                          "with keys none and with keys more beside 200 that both have"),
    "large trees that differ": (lambda: lax.cond(True, lambda p: p, lambda p: [*p.values()], MANY),
                                TypeError, "[cond]"),
    "mapped sizes": (lambda: gf.vmap(jnp.add)(X, jnp.ones((4, 3))), ValueError, "[vmap]"),
    "a seed for a key": (lambda: random.normal(0, (3,)), TypeError, "key"),
    "class of arrays": (lambda: jnp.ndarray([1, 2]), TypeError, "Fix: jnp.array([1, 2])."),
    "more than memory": (lambda: jnp.zeros((10**13,)), RuntimeError, "[memory]"),
    "more than addresses": (lambda: jnp.zeros((2**40, 2**40)), MemoryError, "[memory]"),
    "an int beyond floats": (lambda: jnp.sin(10**400), OverflowError, "[promote]"),
    "rank": (lambda: jnp.zeros((1,) * 70), ValueError, "at most 64 dimensions"),
    "deep lists": (lambda: jnp.array(nested(900)), ValueError, "nested at most 64 deep"),
    "deep trees": (lambda: gf.tree.leaves(nested(3000)), RecursionError, "[tree]"),
    "rows of other lengths": (lambda: jnp.array([[1, 2], [3]]), ValueError, "rows of one length"),
    "unknown name": (lambda: jnp.sofmax, AttributeError, "use nn.softmax"),
    "torch's name": (lambda: jnp.cat, AttributeError, "jnp.concatenate"),
    "JAX's module": (lambda: jnp.random, AttributeError, "gpuflow.random"),
    "module of layers": (lambda: nn.Linear, AttributeError, "flax"),
    "setting": (lambda: gf.config.update("jax_nothing", True), AttributeError, "[config]"),
    "value of a setting": (lambda: gf.config.update("numpy_rank_promotion", "loud"), ValueError,
                           "[config]"),
    "sharding": (lambda: gf.device_put(jnp.ones(3), NamedSharding(gf.make_mesh((1,), ("x",)),
                                                                PartitionSpec("y"))),
                 ValueError, "y"),
    "einsum": (lambda: jnp.einsum("ij,jk->ik", X, X), ValueError, "[einsum]"),
    "nan": (nan_in_a_loop, FloatingPointError, "[log]"),
    "checkpoint": (lambda: checkpointing.restore("/nowhere/at/all"), Exception, "Fix:"),
}  # fmt: skip


@together()
@pytest.mark.parametrize("name", MISTAKES)
def test_form_and_length(name):
    call, kind, part = MISTAKES[name]
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert part in text, text
    assert text.startswith("[") and "Fix:" in text, text
    assert len(text.splitlines()) <= MAX_LINES and len(text) <= MAX_CHARACTERS, text
    assert not hasattr(caught.value, "__notes__")


FOREIGN = [name for name in MISTAKES if name.startswith(("tensor", "frame", "dataclass"))]


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_objects_take_three_lines(name):
    with pytest.raises(MISTAKES[name][1]) as caught:
        MISTAKES[name][0]()
    assert len(str(caught.value)) <= 3 * 100
