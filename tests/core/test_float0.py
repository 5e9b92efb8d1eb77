"""float0, the dtype of tangents of integers: arrays move, and hold nothing to compute with."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

NOTHING = np.zeros((4, 3), gf.float0)

# What moves elements, and the shape of the result.
MOVES = {
    "transpose": (jnp.transpose, (3, 4)),
    "reshape": (lambda a: a.reshape(12), (12,)),
    "slice": (lambda a: a[1:3, ::2], (2, 2)),
    "reversed": (lambda a: a[::-1, ::-1].T, (3, 4)),
    "flip": (jnp.flip, (4, 3)),
    "roll": (lambda a: jnp.roll(a, 1, 0), (4, 3)),
    "pad": (lambda a: jnp.pad(a, 1), (6, 5)),
    "concatenate": (lambda a: jnp.concatenate([a, a]), (8, 3)),
    "stack": (lambda a: jnp.stack([a, a]), (2, 4, 3)),
    "broadcast": (lambda a: jnp.broadcast_to(a[:, None], (4, 2, 3)).transpose(1, 2, 0), (2, 3, 4)),
    "rows": (lambda a: a[np.array([1, 0])], (2, 3)),
    "take": (lambda a: jnp.take(a, np.array([1, 9]), axis=0), (2, 3)),
    "dynamic_slice": (lambda a: lax.dynamic_slice(a, (1, 0), (2, 2)), (2, 2)),
    "select": (lambda a: lax.select(np.ones((4, 3), bool), a, a), (4, 3)),
    "branch": (lambda a: lax.cond(True, lambda x: x[::-1].T, lambda x: x.T, a), (3, 4)),
    "loop": (lambda a: lax.fori_loop(0, 3, lambda k, x: x[::-1], a), (4, 3)),
    "scan": (lambda a: lax.scan(lambda c, x: (c, x), 0.0, a)[1], (4, 3)),
    "vmap": (lambda a: gf.vmap(lambda row: row[::-1], in_axes=1)(a), (3, 4)),
}


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", MOVES)
def test_moves(name, jitted):
    move, shape = MOVES[name]
    out = (gf.jit(move) if jitted else move)(NOTHING)
    assert (np.asarray(out).dtype, np.shape(out)) == (gf.float0, shape)


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "compute",
    [
        jnp.equal,
        jnp.add,
        jnp.greater,
        jnp.maximum,
        lambda a, b: jnp.sin(a),
        lambda a, b: a.T @ b,
        lambda a, b: jnp.sum(a),
        lambda a, b: jnp.any(a),
        lambda a, b: jnp.isnan(a),
    ],
    ids=["equal", "add", "greater", "maximum", "sin", "matmul", "sum", "any", "isnan"],
)
def test_what_computes_refuses(compute, jitted):
    if jitted:
        compute = gf.jit(compute)
    with pytest.raises(TypeError, match=r"number|integer"):
        compute(jnp.asarray(NOTHING), jnp.asarray(NOTHING))


def test_numbers_of_its_shape_are_zeros():
    np.testing.assert_array_equal(jnp.astype(NOTHING, jnp.float32), np.zeros((4, 3)), strict=False)
    assert gf.jit(lambda a: jnp.astype(a, jnp.int8))(NOTHING).dtype == np.int8
    assert jnp.zeros_like(NOTHING, dtype=jnp.float32).shape == (4, 3)


def test_gradients_of_integers_under_vmap_and_jit():
    """They were copied by elements of no bits."""

    def weighted(x, n):
        return (x * n.T).sum()

    x, n = np.ones((5, 3, 2), np.float32), np.arange(30).reshape(5, 2, 3)
    of_x, of_n = gf.jit(gf.vmap(gf.grad(weighted, argnums=(0, 1), allow_int=True)))(x, n)
    np.testing.assert_array_equal(of_x, n.transpose(0, 2, 1))
    assert (of_n.dtype, of_n.shape) == (gf.float0, n.shape)
