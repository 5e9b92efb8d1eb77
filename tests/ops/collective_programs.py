"""Programs with collectives in loops, branches and derivatives, for a library with JAX's names.

`tests/data/make_collective_values.py` stores what JAX gives; `test_collectives.py` compares.
"""

import numpy as np

X = np.array([1.0, 2.0, 4.0], "f")
COUNTS = np.array([1, 3, 2], "i")
STEPS = np.arange(3, dtype="f")
WEIGHTS = np.array([1.0, 10.0, 100.0], "f")


def programs(jax, jnp, lax):
    """Each program as a function of nothing; ``jax`` is the library, the others its modules."""

    def mapped(function):
        return jax.vmap(function, axis_name="i")

    def total(v):
        return lax.psum(v, "i")

    def branch(v):
        return lax.cond(v > 1.5, total, lambda u: u, v)

    def counted(v, count):
        def step(state):
            return state[0] + 1, total(state[1]) * 0.5

        return lax.while_loop(lambda state: state[0] < count, step, (0, v))

    def wave(v):
        return lax.scan(lambda c, s: (jnp.sin(c + total(v) * s), None), v, STEPS)[0]

    def indexed(v):
        return lax.scan(lambda c, s: (c + lax.axis_index("i") * s, lax.pmax(c, "i")), 0.0, STEPS)

    def doubled(v):
        return lax.while_loop(lambda c: total(c) < 50, lambda c: c * 2, v)

    def squares(v):
        return lax.cond(v > 1.5, lambda u: total(u * u), lambda u: u, v)

    def both_names(v, u):
        def sums(a, b):
            return lax.cond(a > 1.5, lambda t: lax.psum(t * b, ("i", "j")), lambda t: t, a)

        return jax.vmap(sums, axis_name="j")(v, u)

    pairs = np.stack([X, X[::-1]])
    cases = [total, lambda u: lax.pmax(u, "i"), lambda u: u]
    return {
        "cond": lambda: mapped(branch)(X),
        "jit of cond": lambda: jax.jit(mapped(branch))(X),
        "while": lambda: mapped(counted)(X, COUNTS),
        "jit of while": lambda: jax.jit(mapped(counted))(X, COUNTS),
        "while with a collective condition": lambda: mapped(doubled)(X),
        "while of a shared value": lambda: mapped(lambda v: v + doubled(1.0))(X),
        "while up to the index": lambda: mapped(
            lambda v: lax.while_loop(lambda c: c < lax.axis_index("i"), lambda c: c + 1, 0)
        )(X),
        "scan of the index": lambda: mapped(indexed)(X),
        "grad of scan": lambda: mapped(jax.grad(wave))(X),
        "grad through vmap of scan": lambda: jax.grad(lambda x: jnp.sum(mapped(wave)(x)))(X),
        "grad of cond": lambda: mapped(jax.grad(squares))(X),
        "jvp of while": lambda: jax.jvp(lambda x: mapped(counted)(x, COUNTS)[1], (X,), (WEIGHTS,)),
        "cond over two names": lambda: mapped(both_names)(pairs, pairs * 3),
        "switch": lambda: mapped(lambda v, k: lax.switch(k, cases, v))(X, np.arange(3)),
        "map": lambda: mapped(lambda v: lax.map(lambda t: total(t * v), STEPS))(X),
        "jacfwd": lambda: mapped(jax.jacfwd(lambda u: total(u) * u))(X),
        "hessian": lambda: mapped(jax.hessian(lambda u: total(u**3)))(X),
        "linearize": lambda: mapped(
            lambda v: jax.linearize(lambda u: total(jnp.sin(u)), v)[1](1.0)
        )(X),
        "cond on the index": lambda: mapped(
            lambda v: lax.cond(lax.axis_index("i") == 0, lambda u: u * 2, lambda u: u, v)
        )(X),
        "cond of a shared value": lambda: mapped(lambda v: lax.cond(True, total, lambda u: u, 1.0))(
            X
        ),
    }
