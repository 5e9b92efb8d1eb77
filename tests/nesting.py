"""Transformations with one shape, (function of trees) -> (function of the same trees), so that
they nest in any order, and what each means by finite differences.

Every function returns a vector. A case has float arguments, which may be trees, and integer ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base import tree

SCALES = np.array([1.0, 0.5, -0.8])


@dataclass(frozen=True)
class Case:
    """A function in gpuflow and in NumPy with example arguments."""

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]  # of one flat float vector and the integers
    floats: tuple[Any, ...]
    integers: tuple[int, ...] = ()

    @property
    def args(self) -> tuple[Any, ...]:
        return (*self.floats, *self.integers)

    @property
    def float_argnums(self) -> tuple[int, ...]:
        return tuple(range(len(self.floats)))


def to_vector(value: Any) -> Any:
    """All leaves as one vector; float0 leaves hold nothing."""
    leaves = [leaf for leaf in tree.leaves(value) if jnp.result_type(leaf) != gf.float0]
    return jnp.concatenate([jnp.ravel(jnp.asarray(leaf)) for leaf in leaves])


def flat_floats(case: Case) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(x, float)) for x in tree.leaves(case.floats)])


def base(case: Case) -> Callable[..., Any]:
    """The case's function, returning a vector."""
    return lambda *args: to_vector(case.function(*args))


def _weights(count: int) -> np.ndarray:
    return 1.0 + 0.5 * np.cos(np.arange(count))


def _direction(case: Case) -> tuple[Any, ...]:
    """Tangents: a fixed direction for floats, float0 for integers."""
    floats = tree.tree_map(lambda x: 0.3 + 0.1 * np.ones(np.shape(x)), case.floats)
    return (*floats, *[np.zeros((), gf.float0) for _ in case.integers])


# --- in gpuflow ----------------------------------------------------------------------------


def t_jvp(case, f):
    return lambda *args: gf.jvp(f, args, _direction(case))[1]


def t_linearize(case, f):
    return lambda *args: gf.linearize(f, *args)[1](*_direction(case))


def t_vjp(case, f):
    def pulled(*args):
        out, f_vjp = gf.vjp(f, *args)
        return to_vector(f_vjp(jnp.asarray(_weights(out.size)))[: len(case.floats)])

    return pulled


def t_grad(case, f):
    def scalar(*args):
        out = f(*args)
        return jnp.sum(out * _weights(out.size))

    return lambda *args: to_vector(gf.grad(scalar, argnums=case.float_argnums)(*args))


def t_vmap(case, f):
    axes = (*[0] * len(case.floats), *[None] * len(case.integers))

    def mapped(*args):
        floats = tree.tree_map(
            lambda x: jnp.stack([scale * x for scale in SCALES]), args[: len(case.floats)]
        )
        return to_vector(gf.vmap(f, in_axes=axes)(*floats, *args[len(case.floats) :]))

    return mapped


def t_jit(case, f):
    return gf.jit(f)


def t_jaxpr(case, f):
    def evaluated(*args):
        return gf.make_jaxpr(f)(*args)(*tree.leaves(args))[0]

    return evaluated


def _jacobian(transform):
    def wrapped(case, f):
        def jacobian(*args):
            blocks = tree.leaves(transform(f, argnums=case.float_argnums)(*args))
            rows = blocks[0].shape[0]
            return jnp.ravel(jnp.concatenate([b.reshape(rows, -1) for b in blocks], axis=1))

        return jacobian

    return wrapped


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "jvp": t_jvp,
    "linearize": t_linearize,
    "vjp": t_vjp,
    "grad": t_grad,
    "vmap": t_vmap,
    "jit": t_jit,
    "jacfwd": _jacobian(gf.jacfwd),
    "jacrev": _jacobian(gf.jacrev),
    "jaxpr": t_jaxpr,
}

# --- by finite differences -----------------------------------------------------------------

# Fourth-order central differences: with this step three of them nested are good to about 1e-6.
STEP = 0.02
_STENCIL = ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12))


def _derivative(f, x, direction):
    return sum(weight * f(x + k * STEP * direction) for k, weight in _STENCIL) / STEP


def _jacobian_columns(f, x):
    return np.stack([_derivative(f, x, unit) for unit in np.eye(x.size)], axis=1)


def _d(f):
    return lambda x: _derivative(f, x, np.full(x.size, 0.4))


def _g(f):
    return lambda x: _jacobian_columns(f, x).T @ _weights(f(x).size)


def _v(f):
    return lambda x: np.concatenate([f(scale * x) for scale in SCALES])


def _j(f):
    return lambda x: _jacobian_columns(f, x).ravel()


def _same(f):
    return f


MEANINGS = {
    "jvp": _d,
    "linearize": _d,
    "vjp": _g,
    "grad": _g,
    "vmap": _v,
    "jit": _same,
    "jaxpr": _same,
    "jacfwd": _j,
    "jacrev": _j,
}

_known: dict[Any, np.ndarray] = {}


def expected(case: Case, names: tuple[str, ...]) -> np.ndarray:
    """What the nest of transformations ``names``, the outermost first, means."""
    meanings = tuple(MEANINGS[name] for name in names if MEANINGS[name] is not _same)
    if (case.name, meanings) not in _known:

        def f(x):
            return np.ravel(case.reference(x, *case.integers))

        for meaning in reversed(meanings):
            f = meaning(f)
        _known[case.name, meanings] = f(flat_floats(case))
    return _known[case.name, meanings]


def result(case: Case, names: tuple[str, ...]) -> np.ndarray:
    """The nest in gpuflow."""
    f = base(case)
    for name in reversed(names):
        f = TRANSFORMS[name](case, f)
    return np.asarray(f(*case.args))
