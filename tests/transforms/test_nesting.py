"""All pairs and triples of transformations, against finite differences in float64.

The functions have several arguments, trees, integers, closures over tracers, custom rules and
nested derivatives. See tests/nesting.py for what each transformation means here.
"""

import collections
import dataclasses
import itertools

import numpy as np
import pytest
from nesting import TRANSFORMS, Case, expected, result
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base import tree

pytestmark = pytest.mark.usefixtures("x64", "interpreted_jit")

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Layer:
    w: object
    b: object


tree.register_node(Layer, lambda x: ((x.w, x.b), None), lambda aux, children: Layer(*children))


def _several(x, y, k):
    return {"a": jnp.sin(x) * y + x**2 * k, "b": (jnp.sum(x) * jnp.exp(y), None)}


def _several_reference(v, k):
    x, y = v[:2], v[2]
    return np.concatenate([np.sin(x) * y + x**2 * k, [x.sum() * np.exp(y)]])


def _trees(params, pair):
    hidden = jnp.tanh(params["layers"][0].w * pair.left + params["layers"][0].b)
    return Pair(hidden * pair.right, [None, hidden - params["shift"]])


def _trees_reference(v):
    # Leaves in order: layers (w, b), shift, left, right.
    w, b, shift, left, right = v
    hidden = np.tanh(w * left + b)
    return np.array([hidden * right, hidden - shift])


@gf.custom_jvp
def _soft(x):
    return jnp.log(1 + jnp.exp(x))


@_soft.defjvp
@gf.jit
def _soft_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return _soft(x), t / (1 + jnp.exp(-x))


def _custom(x):
    y = gf.jit(lambda z: _soft(z) * x[0])(x)
    return y * jnp.max(jnp.stack([x[1], x[0] - 5.0]))


def _custom_reference(x):
    return np.log(1 + np.exp(x)) * x[0] * x[1]


@gf.custom_vjp
def _product(p, k):
    return jnp.sin(p["a"]) * p["b"] * k


def _product_fwd(p, k):
    return _product(p, k), (p, k)


@gf.jit
def _product_bwd(residuals, g):
    p, k = residuals
    return {"a": g * jnp.cos(p["a"]) * p["b"] * k, "b": g * jnp.sin(p["a"]) * k}, None


_product.defvjp(_product_fwd, _product_bwd)


def _reverse_rule(x, y, k):
    rows = gf.vmap(_product, in_axes=({"a": 0, "b": None}, None))({"a": x, "b": y}, k)
    return rows * gf.jit(_product)({"a": y, "b": x[0]}, 2)


def _reverse_rule_reference(v, k):
    x, y = v[:2], v[2]
    return np.sin(x) * y * k * np.sin(y) * x[0] * 2


def _closures(x, y):
    """Derivatives of functions that close over the outer arguments: perturbation confusion."""
    inner = gf.grad(lambda z: x * z * z * y)(x)  # 2 x x y
    along = gf.jvp(lambda z: jnp.sin(z) * y, (x,), (y,))[1]  # cos(x) y y
    mapped = gf.vmap(lambda z: z * x)(jnp.stack([y, x]))  # [x y, x x]
    staged = gf.jit(lambda z: z + x * y)(y)
    return inner, along, mapped, staged, x * gf.grad(lambda z: x + z)(1.0)


def _closures_reference(v):
    x, y = v
    return np.array([2 * x * x * y, np.cos(x) * y * y, x * y, x * x, y + x * y, x])


def _linear_algebra(w, x):
    logits = jnp.dot(w, x)
    shifted = logits - jnp.max(logits)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted)))


def _linear_algebra_reference(v):
    w, x = v[:2].reshape(2, 1), v[2:]
    logits = w @ x
    return logits - np.log(np.exp(logits).sum())


def _indexing(x, n):
    doubled = jnp.concatenate([x[::-1], x[:1] * n])
    return jnp.where(doubled > 0.1, doubled**3, doubled[jnp.asarray([0, 0, 1])]).reshape(1, 3).T


def _indexing_reference(x, n):
    doubled = np.concatenate([x[::-1], x[:1] * n])
    return np.where(doubled > 0.1, doubled**3, doubled[[0, 0, 1]])


CASES = [
    Case("several", _several, _several_reference, (np.array([0.4, -0.7]), 0.6), (3,)),
    Case(
        "trees",
        _trees,
        _trees_reference,
        (
            {"layers": [Layer(np.float64(0.5), np.float64(0.2))], "shift": np.float64(0.3)},
            Pair(np.float64(0.7), np.float64(-0.4)),
        ),
    ),
    Case("custom", _custom, _custom_reference, (np.array([0.3, 0.8]),)),
    Case("closures", _closures, _closures_reference, (np.float64(0.7), np.float64(0.4))),
    Case(
        "linear_algebra",
        _linear_algebra,
        _linear_algebra_reference,
        (np.array([[0.3], [0.9]]), np.array([0.5])),
    ),
    Case("indexing", _indexing, _indexing_reference, (np.array([0.6, -0.5]),), (2,)),
]
NAMES = tuple(TRANSFORMS)

REVERSE = Case(
    "reverse_rule", _reverse_rule, _reverse_rule_reference, (np.array([0.4, -0.7]), 0.6), (3,)
)
REVERSE_NAMES = ("vjp", "grad", "vmap", "jit", "jaxpr", "jacrev")


def _check(case, names, tolerance):
    got = result(case, names)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected(case, names), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", NAMES)
def test_single(case, name):
    _check(case, (name,), 1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("outer", NAMES)
def test_pairs(case, outer):
    for inner in NAMES:
        # The second difference of a function of size 1 with this step is good to about 1e-6.
        _check(case, (outer, inner), 1e-5)


@together(by="outer", size=5)
@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=lambda case: case.name)
@pytest.mark.parametrize("outer", NAMES)
@pytest.mark.parametrize("middle", NAMES)
def test_triples(case, outer, middle):
    for inner in NAMES:
        _check(case, (outer, middle, inner), 2e-4)


@pytest.mark.parametrize(
    "names", [*itertools.permutations(("jit", "vmap", "grad")), ("jit", "jacfwd", "jacrev")]
)
def test_triples_of_custom_rules_and_trees(names):
    for case in (CASES[1], CASES[2]):
        _check(case, names, 2e-4)


@pytest.mark.parametrize("outer", REVERSE_NAMES)
def test_pairs_of_reverse_rules(outer):
    """custom_vjp under all that does not need its tangents."""
    for inner in REVERSE_NAMES:
        _check(REVERSE, (outer, inner), 1e-5)


@pytest.mark.parametrize("names", [*itertools.permutations(("jit", "vmap", "grad"))])
def test_triples_of_reverse_rules(names):
    _check(REVERSE, names, 2e-4)
    _check(REVERSE, ("grad", *names), 2e-4)
