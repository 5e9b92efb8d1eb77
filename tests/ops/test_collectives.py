"""Collectives under vmap: against a simulation of lanes, derivatives, groups, nesting, errors."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from collective_programs import programs
from together import together

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.config import extend_axes
from gpuflow.compiler.passes.program import cse, dce
from gpuflow.core.effects import AxisUse, is_observable

RANDOM = np.random.default_rng(11)
SIZES = {"i": 2, "j": 3}
NAMES = ["i", "j", ("i", "j"), ("j", "i")]
# Two named axes in front; the others are multiples of both sizes, so that everything can be dealt.
X = RANDOM.normal(size=(2, 3, 6, 12, 2)).astype("f")
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}  # sums of at most 6 float32 numbers, in another order


# --- the simulation: each rule sees the values of its peers and its own number among them -------


def _simulate(rule, names, x, groups=None):
    """``rule(peers, own)`` in every lane of ``x[i, j, ...]``."""
    names = names if isinstance(names, tuple) else (names,)
    results = np.empty((2, 3), object)
    for lane in np.ndindex(2, 3):
        place = dict(zip("ij", lane, strict=True))
        peers, own = [], 0
        for number, index in enumerate(itertools.product(*[range(SIZES[n]) for n in names])):
            there = {**place, **dict(zip(names, index, strict=True))}
            own = number if there == place else own
            peers.append(x[there["i"], there["j"]])
        if groups is not None:
            group = next(group for group in groups if own in group)
            peers, own = [peers[k] for k in group], group.index(own)
        results[lane] = rule(peers, own)
    rows = [np.stack([np.asarray(out) for out in row]) for row in results]
    return np.stack(rows)


def _part(x, number, count, axis):
    return np.split(x, count, axis)[number]


def _permuted(peers, own, pairs):
    sources = [source for source, target in pairs if target == own]
    return peers[sources[0]] if sources else np.zeros_like(peers[0])


# name -> (op(x, names), rule(peers, own)); n is the number of peers
OPS = {
    "psum": (lax.psum, lambda p, k: sum(p)),
    "pmean": (lax.pmean, lambda p, k: sum(p) / len(p)),
    "pmax": (lax.pmax, lambda p, k: np.max(p, axis=0)),
    "pmin": (lax.pmin, lambda p, k: np.min(p, axis=0)),
    "gather": (lax.all_gather, lambda p, k: np.stack(p)),
    "gather last": (lambda x, n: lax.all_gather(x, n, axis=-1), lambda p, k: np.stack(p, -1)),
    "gather tiled": (
        lambda x, n: lax.all_gather(x, n, axis=1, tiled=True),
        lambda p, k: np.concatenate(p, 1),
    ),
    "scatter": (lambda x, n: lax.psum_scatter(x[: lax.axis_size(n)], n), lambda p, k: sum(p)[k]),
    "scatter tiled": (
        lambda x, n: lax.psum_scatter(x, n, scatter_dimension=1, tiled=True),
        lambda p, k: _part(sum(p), k, len(p), 1),
    ),
    "all to all": (
        lambda x, n: lax.all_to_all(x[: lax.axis_size(n)], n, 0, 0),
        lambda p, k: np.stack([x[k] for x in p]),
    ),
    "all to all forward": (
        lambda x, n: lax.all_to_all(x[: lax.axis_size(n)], n, 0, 2),
        lambda p, k: np.stack([x[k] for x in p], 2),
    ),
    "all to all back": (
        lambda x, n: lax.all_to_all(x[:, : lax.axis_size(n)], n, 1, 0),
        lambda p, k: np.stack([x[:, k] for x in p], 0),
    ),
    "all to all tiled": (
        lambda x, n: lax.all_to_all(x, n, 1, 0, tiled=True),
        lambda p, k: np.concatenate([_part(x, k, len(p), 1) for x in p], 0),
    ),
    "all to all tiled forward": (
        lambda x, n: lax.all_to_all(x, n, 0, 2, tiled=True),
        lambda p, k: np.concatenate([_part(x, k, len(p), 0) for x in p], 2),
    ),
    "all to all tiled same": (
        lambda x, n: lax.all_to_all(x, n, 1, 1, tiled=True),
        lambda p, k: np.concatenate([_part(x, k, len(p), 1) for x in p], 1),
    ),
    "permute": (
        lambda x, n: lax.ppermute(x, n, [(0, 1), (1, 0)]),
        lambda p, k: _permuted(p, k, [(0, 1), (1, 0)]),
    ),
    "shift": (
        lambda x, n: lax.ppermute(x, n, [(k, k + 1) for k in range(lax.axis_size(n) - 1)]),
        lambda p, k: p[k - 1] if k else np.zeros_like(p[0]),
    ),
    "shuffle": (
        lambda x, n: lax.pshuffle(x, n, list(range(lax.axis_size(n)))[::-1]),
        lambda p, k: p[-1 - k],
    ),
    "broadcast": (lambda x, n: lax.pbroadcast(x, n, 1), lambda p, k: p[1]),
    "index": (lambda x, n: lax.axis_index(n), lambda p, k: np.int32(k)),
    "index times": (lambda x, n: lax.axis_index(n) * x, lambda p, k: np.float32(k) * p[k]),
}
LINEAR = [name for name in OPS if name not in ("pmax", "pmin", "index")]


def _both(f, in_axes=(0, 0), out_axes=(0, 0)):
    inner = gf.vmap(f, in_axes[1], out_axes[1], axis_name="j")
    return gf.vmap(inner, in_axes[0], out_axes[0], axis_name="i")


@together(size=21)
@pytest.mark.parametrize("names", NAMES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_values(name, names):
    op, rule = OPS[name]
    got = _both(lambda x: op(x, names))(X)
    want = _simulate(rule, names, X)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, **TOLERANCE)


@pytest.mark.parametrize("names", ["i", ("j", "i")], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_under_jit_and_with_axes_elsewhere(name, names):
    op, rule = OPS[name]
    want = _simulate(rule, names, X)
    placed = np.moveaxis(X, (0, 1), (-1, 1))
    inside = _both(gf.jit(lambda x: op(x, names)), in_axes=(-1, 1))(placed)
    np.testing.assert_allclose(inside, want, **TOLERANCE)
    outside = gf.jit(_both(lambda x: op(x, names), in_axes=(-1, 1)))(placed)
    np.testing.assert_allclose(outside, want, **TOLERANCE)


@pytest.mark.parametrize("names", ["j", ("i", "j")], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_other_axes_are_mapped_through(name, names):
    """An anonymous vmap inside or outside of the named ones changes nothing."""
    op, rule = OPS[name]
    many = np.stack([X, X + 1, 2 * X], -1)
    want = np.stack([_simulate(rule, names, many[..., k]) for k in range(3)])
    outside = gf.vmap(_both(lambda x: op(x, names)), in_axes=-1)(many)
    np.testing.assert_allclose(outside, want, **TOLERANCE)
    for dim in (0, 1, 3):
        moved = np.moveaxis(many, -1, 2 + dim)
        inner = gf.vmap(lambda x: op(x, names), in_axes=dim)
        np.testing.assert_allclose(_both(inner, out_axes=(1, 1))(moved), want, **TOLERANCE)


@together(size=21)
@pytest.mark.parametrize("names", NAMES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_values_that_all_lanes_share(name, names):
    op, rule = OPS[name]
    shared = X[0, 0]
    got = _both(lambda x: op(shared, names))(X)
    want = _simulate(rule, names, np.broadcast_to(shared, X.shape))
    np.testing.assert_allclose(got, want, **TOLERANCE)
    staged = _both(lambda x: gf.jit(lambda y: op(y, names))(shared))(X)
    np.testing.assert_allclose(staged, want, **TOLERANCE)


@together(size=18)
@pytest.mark.parametrize("names", NAMES, ids=str)
@pytest.mark.parametrize("name", LINEAR)
def test_linear_derivatives(name, names):
    """jvp is the op itself; transposed inside the lanes it gives what transposing all gives."""
    op, _ = OPS[name]
    f = _both(lambda x: op(x, names))
    tangent = RANDOM.normal(size=X.shape).astype("f")
    out, out_tangent = gf.jvp(f, (X,), (tangent,))
    np.testing.assert_allclose(out_tangent, f(tangent), **TOLERANCE)
    inner = _both(lambda x, t: gf.jvp(lambda v: op(v, names), (x,), (t,))[1])
    np.testing.assert_allclose(inner(X, tangent), out_tangent, **TOLERANCE)
    cotangent = RANDOM.normal(size=out.shape).astype("f")
    whole = gf.vjp(f, X)[1](cotangent)[0]
    left, right = np.vdot(cotangent, out_tangent), np.vdot(whole, tangent)
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-3)  # thousands of products
    lanes = _both(lambda x, ct: gf.vjp(lambda v: op(v, names), x)[1](ct)[0])
    np.testing.assert_allclose(lanes(X, cotangent), whole, **TOLERANCE)


@pytest.mark.parametrize("extremum", ["pmax", "pmin"])
def test_derivatives_of_extrema(extremum):
    """Central differences: random values have no ties."""
    f = _both(lambda x: jnp.sin(OPS[extremum][0](x, "j")) * x)
    with gf.enable_x64():
        x = X.astype("d")
        tangent = RANDOM.normal(size=X.shape)
        got = gf.jvp(f, (x,), (tangent,))[1]
        step = 1e-6
        want = (np.asarray(f(x + step * tangent)) - np.asarray(f(x - step * tangent))) / (2 * step)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
        cotangent = RANDOM.normal(size=X.shape)
        whole = gf.vjp(f, x)[1](cotangent)[0]
        np.testing.assert_allclose(np.vdot(cotangent, got), np.vdot(whole, tangent), rtol=1e-9)
        lanes = _both(
            lambda v, ct: gf.vjp(lambda u: jnp.sin(OPS[extremum][0](u, "j")) * u, v)[1](ct)[0]
        )
        np.testing.assert_allclose(lanes(x, cotangent), whole, rtol=1e-9)


def test_ties_share_the_derivative():
    g = gf.grad(lambda x: gf.vmap(lambda v: lax.pmax(v, "i"), axis_name="i", out_axes=None)(x))
    np.testing.assert_array_equal(g(np.array([1.0, 3.0, 3.0, 2.0], "f")), [0, 0.5, 0.5, 0])


# --- groups --------------------------------------------------------------------------------

GROUPS = [[0, 3], [2, 1], [5, 4]]
UNEVEN = [[3], [0, 5, 1], [4, 2]]
G = np.moveaxis(X[:, 0], 0, -1).reshape(6, 12, 4)  # six lanes under one name


def _simulate_one(rule, x, groups):
    results = []
    for own in range(len(x)):
        group = next(group for group in groups if own in group)
        results.append(rule([x[k] for k in group], group.index(own)))
    return np.stack(results)


GROUP_OPS = {
    "psum": (lax.psum, lambda p, k: sum(p)),
    "pmean": (lax.pmean, lambda p, k: sum(p) / len(p)),
    "pmax": (lax.pmax, lambda p, k: np.max(p, axis=0)),
    "gather": (lax.all_gather, lambda p, k: np.stack(p)),
    "gather tiled": (
        lambda x, n, **g: lax.all_gather(x, n, axis=1, tiled=True, **g),
        lambda p, k: np.concatenate(p, 1),
    ),
    "scatter": (
        lambda x, n, **g: lax.psum_scatter(x[:, :2], n, scatter_dimension=1, **g),
        lambda p, k: sum(p)[:, k],
    ),
    "scatter tiled": (
        lambda x, n, **g: lax.psum_scatter(x, n, tiled=True, **g),
        lambda p, k: _part(sum(p), k, 2, 0),
    ),
    "all to all": (
        lambda x, n, **g: lax.pswapaxes(x[:2], n, 0, **g),
        lambda p, k: np.stack([x[k] for x in p]),
    ),
    "all to all tiled": (
        lambda x, n, **g: lax.all_to_all(x, n, 0, 1, tiled=True, **g),
        lambda p, k: np.concatenate([_part(x, k, 2, 0) for x in p], 1),
    ),
}


@pytest.mark.parametrize("name", GROUP_OPS)
def test_groups(name):
    op, rule = GROUP_OPS[name]
    f = gf.vmap(lambda x: op(x, "i", axis_index_groups=GROUPS), axis_name="i")
    np.testing.assert_allclose(f(G), _simulate_one(rule, G, GROUPS), **TOLERANCE)
    shared = gf.vmap(lambda x: op(G[0], "i", axis_index_groups=GROUPS), axis_name="i")
    want = _simulate_one(rule, np.broadcast_to(G[0], G.shape), GROUPS)
    np.testing.assert_allclose(shared(G), want, **TOLERANCE)
    if name == "pmax":
        return
    cotangent = RANDOM.normal(size=want.shape).astype("f")

    def backward(x, ct):
        return gf.vjp(lambda v: op(v, "i", axis_index_groups=GROUPS), x)[1](ct)[0]

    inner = gf.vmap(backward, axis_name="i")(G, cotangent)
    np.testing.assert_allclose(inner, gf.vjp(f, G)[1](cotangent)[0], **TOLERANCE)


@pytest.mark.parametrize("name", ["psum", "pmax"])
def test_groups_of_different_sizes(name):
    op, rule = GROUP_OPS[name]
    f = gf.vmap(lambda x: op(x, "i", axis_index_groups=UNEVEN), axis_name="i")
    np.testing.assert_allclose(f(G), _simulate_one(rule, G, UNEVEN), **TOLERANCE)
    ones = gf.vmap(lambda x: lax.psum(1.0, "i", axis_index_groups=UNEVEN), axis_name="i")
    np.testing.assert_array_equal(ones(G), [3, 3, 2, 1, 2, 3])


# --- constants, trees, dtypes, names ---------------------------------------------------------


def _mapped(f, x=None, **options):
    return gf.vmap(f, axis_name="i", **options)(np.arange(4.0, dtype="f") if x is None else x)


def test_constants_are_known_while_tracing():
    seen = []

    def f(x):
        seen.extend([lax.psum(1, "i"), lax.psum(2.5, "i"), lax.axis_size("i")])
        return jnp.zeros(lax.psum(1, "i")) + x

    assert gf.jit(gf.vmap(f, axis_name="i"))(np.ones(4, "f")).shape == (4, 4)
    assert seen == [4, 10.0, 4] and [type(value) for value in seen] == [int, float, int]
    sizes = gf.vmap(gf.vmap(lambda x: lax.axis_size(("i", "j")) * x, axis_name="j"), axis_name="i")
    np.testing.assert_array_equal(sizes(np.ones((2, 3), "f")), np.full((2, 3), 6))
    np.testing.assert_array_equal(
        _mapped(lambda x: lax.psum(np.ones(2, "f"), "i"), out_axes=None), [4, 4]
    )


def test_trees_and_dtypes():
    tree = {"a": np.arange(4), "b": [np.array([True, False, True, True])]}
    out = _mapped(lambda t: lax.psum(t, "i"), tree, out_axes=None)
    assert int(out["a"]) == 6 and int(out["b"][0]) == 3
    assert out["a"].dtype == out["b"][0].dtype == np.int32
    assert _mapped(lambda x: lax.pmean(x, "i"), np.arange(4), out_axes=None) == 1.5
    flags = _mapped(lambda x: lax.pmax(x, "i"), np.array([False, True]), out_axes=None)
    assert bool(flags) is True
    keys = gf.random.split(gf.random.key(0), 3)
    turned = _mapped(lambda k: lax.pshuffle(k, "i", [1, 2, 0]), keys)
    np.testing.assert_array_equal(
        gf.random.key_data(turned), np.roll(gf.random.key_data(keys), -1, 0)
    )


def test_positional_axes_beside_names():
    x = X[0, :, :, 0]
    got = gf.vmap(lambda v: lax.psum(v, ("i", 0)), axis_name="i")(x)
    np.testing.assert_allclose(got, np.broadcast_to(x.sum((0, 1)), got.shape), **TOLERANCE)
    np.testing.assert_allclose(lax.psum(x, (0, -1)), x.sum((0, -1)), **TOLERANCE)
    np.testing.assert_allclose(lax.pmax(x, 1), x.max(1))


def test_an_inner_name_hides_an_equal_outer_one():
    f = gf.vmap(gf.vmap(lambda v: lax.psum(v, "i"), axis_name="i"), axis_name="i")
    x = X[:, :, 0, 0, 0]
    np.testing.assert_allclose(f(x), np.broadcast_to(x.sum(1, keepdims=True), x.shape), **TOLERANCE)
    sizes = []
    inner = gf.vmap(lambda v: sizes.append(lax.axis_size("i")) or v, axis_name="i")
    gf.vmap(lambda v: (inner(v), sizes.append(lax.axis_size("i")))[0], axis_name="i")(x)
    assert sizes == [3, 2]


def test_axes_without_elements():
    empty = np.zeros((0, 3), "f")
    assert _mapped(lambda x: lax.psum(x, "i"), empty).shape == (0, 3)
    np.testing.assert_array_equal(_mapped(lambda x: lax.psum(x, "i"), empty, out_axes=None), 0)
    assert _mapped(lambda x: lax.axis_index("i") + x[0], empty).shape == (0,)
    assert _mapped(lambda x: lax.all_gather(x, "i"), empty, out_axes=None).shape == (0, 3)
    assert _mapped(lambda x: lax.ppermute(x, "i", []), empty).shape == (0, 3)


# --- with other transformations --------------------------------------------------------------


def test_jit_traces_again_under_other_axes():
    traces = []

    @gf.jit
    def size(x):
        traces.append(0)
        return x + lax.axis_size("i")

    for count in (4, 3, 4):
        got = _mapped(size, np.zeros(count, "f"))
        np.testing.assert_array_equal(got, np.full(count, count))
    assert len(traces) == 2
    with pytest.raises(NameError, match="'i' must be bound"):
        size(1.0)


def test_jit_of_operands_that_are_not_mapped():
    got = _mapped(lambda x: gf.jit(lambda c: lax.axis_index("i") + lax.psum(c, "i"))(2.0))
    np.testing.assert_array_equal(got, [8, 9, 10, 11])


def test_custom_rules_with_collectives():
    @gf.custom_jvp
    def normalized(x):
        return x / lax.psum(x, "i")

    @normalized.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        total = lax.psum(x, "i")
        return x / total, t / total - x * lax.psum(t, "i") / total**2

    @gf.custom_vjp
    def centered(x):
        return x - lax.pmean(x, "i")

    def backward(residual, ct):
        return (ct - lax.pmean(ct, "i"),)

    centered.defvjp(lambda x: (centered(x), None), backward)
    x = np.array([1.0, 2.0, 4.0], "f")
    weights = np.array([1.0, -1.0, 3.0], "f")
    plain = {"n": lambda v: v / lax.psum(v, "i"), "c": lambda v: v - lax.pmean(v, "i")}
    for f, reference in ((normalized, plain["n"]), (centered, plain["c"])):
        for g in (f, gf.jit(f)):
            np.testing.assert_allclose(_mapped(g, x), _mapped(reference, x), **TOLERANCE)
            outside = gf.grad(lambda v, g=g: jnp.vdot(_mapped(g, v), weights))
            expected = gf.grad(lambda v, r=reference: jnp.vdot(_mapped(r, v), weights))(x)
            np.testing.assert_allclose(outside(x), expected, **TOLERANCE)
            inside = gf.vmap(gf.grad(lambda v, w, g=g: g(v) * w), axis_name="i")
            np.testing.assert_allclose(inside(x, weights), expected, **TOLERANCE)
        constant = _mapped(lambda v, f=f: f(2.0) + 0 * v, x)
        np.testing.assert_allclose(constant, _mapped(lambda v, r=reference: r(2.0) + 0 * v, x))


def test_second_derivatives():
    def loss(x):
        return jnp.sum(_mapped(lambda v: jnp.sin(lax.psum(v * v, "i")) * v, x))

    def plain(x):
        return jnp.sum(jnp.sin(jnp.sum(x * x)) * x)

    x = np.array([0.5, -1.0, 0.25], "f")
    np.testing.assert_allclose(gf.hessian(loss)(x), gf.hessian(plain)(x), rtol=1e-4, atol=1e-5)


STORED = json.loads((Path(__file__).parents[1] / "data" / "collective_values.json").read_text())
PROGRAMS = programs(gf, jnp, lax)


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_branches_and_derivatives_as_in_jax(name):
    got = gf.tree_util.tree_leaves(PROGRAMS[name]())
    for leaf, want in zip(got, STORED[name], strict=True):
        np.testing.assert_allclose(leaf, want, **TOLERANCE)


def _by_name(flag, inside, x):
    return lax.cond(flag, inside, lambda u: u, x)


BRANCHES = {
    "psum": lambda v: _by_name(v > 1.5, lambda u: lax.psum(u * u, "i"), v),
    "gather": lambda v: _by_name(v > 1.5, lambda u: jnp.sum(lax.all_gather(u, "i") ** 3) * u, v),
    "while": lambda v: lax.while_loop(
        lambda c: c < 20, lambda c: c * 1.5 + lax.psum(c, "i") * 0.125, v
    ),
    "two names": lambda v: lax.psum(
        gf.vmap(
            lambda a: _by_name(a > 1.5, lambda u: lax.psum(u * v, ("i", "j")), a), axis_name="j"
        )(jnp.array([1.0, 2.0]) * v),
        "i",
    )[1],
}


@pytest.mark.parametrize("name", BRANCHES)
def test_derivatives_reach_lanes_that_took_another_branch(name):
    """A lane outside of the branch is still an operand of its collectives.

    (JAX stops gradients into lanes that did not take a branch, and so loses these.) Once the
    one-lane branches were transposed, which also counted cotangents of lanes outside the branch.
    """
    weights = np.array([1.0, 10.0, 100.0])
    with gf.enable_x64():
        x, tangent = np.array([1.0, 2.0, 4.0]), np.array([0.5, -1.0, 0.25])

        def loss(z):
            return jnp.sum(weights * gf.vmap(BRANCHES[name], axis_name="i")(z))

        step = 1e-5
        want = (float(loss(x + step * tangent)) - float(loss(x - step * tangent))) / (2 * step)
        np.testing.assert_allclose(gf.jvp(loss, (x,), (tangent,))[1], want, rtol=1e-7)
        if name != "while":
            np.testing.assert_allclose(np.vdot(gf.grad(loss)(x), tangent), want, rtol=1e-7)


# --- what equations say of it ------------------------------------------------------------------


def test_passes_treat_collectives_like_any_op():
    def f(x):
        lax.psum(x * 2, "i")  # nobody reads it
        return lax.psum(x, "i") + lax.psum(x, "i")

    jaxpr = gf.make_jaxpr(f, axis_env=[("i", 4)])(1.0).jaxpr
    names = [eqn.primitive.name for eqn in dce(cse(jaxpr)).eqns]
    assert len(jaxpr.eqns) == 5 and names == ["psum", "add"]


def test_effects_name_the_axis_until_it_is_mapped():
    inner = []

    def f(x):
        inner.append(gf.make_jaxpr(gf.jit(lambda v: lax.psum(v, "i")))(x))
        return gf.jit(lambda v: lax.psum(v, "i"))(x)

    outer = gf.make_jaxpr(gf.vmap(f, axis_name="i"))(np.ones(3, "f"))
    assert inner[0].effects == {AxisUse("i")} and not is_observable(inner[0].effects)
    assert outer.effects == frozenset()
    text = str(gf.make_jaxpr(lambda x: lax.psum(x, "i"), axis_env=[("i", 4)])(1.0))
    assert "psum[axes=('i',)" in text


# --- errors --------------------------------------------------------------------------------

OUTSIDE = {
    "psum": lambda n: lax.psum(1.0, n),
    "pmean": lambda n: lax.pmean(1.0, n),
    "all_gather": lambda n: lax.all_gather(1.0, n),
    "psum_scatter": lambda n: lax.psum_scatter(np.ones(2, "f"), n),
    "all_to_all": lambda n: lax.all_to_all(np.ones(2, "f"), n, 0, 0),
    "ppermute": lambda n: lax.ppermute(1.0, n, []),
    "pshuffle": lambda n: lax.pshuffle(1.0, n, []),
    "pbroadcast": lambda n: lax.pbroadcast(1.0, n, 0),
    "axis_index": lambda n: lax.axis_index(n),
    "axis_size": lambda n: lax.axis_size(n),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_unbound_names(name):
    op = "psum" if name == "pmean" else name
    message = rf"\[{op}\] the axis name 'q' must be bound; got {{}} in scope. Fix: vmap\(..., axis"
    with pytest.raises(NameError, match=message.format("no named axes")):
        OUTSIDE[name]("q")
    with pytest.raises(NameError, match=message.format("'i'")):
        _mapped(lambda x: OUTSIDE[name](("i", "q")))


def test_programs_do_not_run_without_their_axes():
    """A jaxpr that was traced in a scope runs in it only."""
    for op in (lax.psum, lax.all_gather, lambda x, n: lax.axis_index(n)):
        jaxpr = gf.make_jaxpr(lambda x, op=op: op(x, "i"), axis_env=[("i", 4)])(1.0)
        with pytest.raises(NameError, match="'i' must be bound"):
            jaxpr(1.0)


V3 = np.ones((4, 3), "f")
ERRORS = [
    (lambda x: lax.psum(x, ("i", "i")), ValueError, "[psum] axis names must differ"),
    (lambda x: lax.psum(x, "i", axis_index_groups=[[0, 1], [1, 2]]), ValueError, "each index of"),
    (lambda x: lax.psum(x, ("i", 0), axis_index_groups=[[0, 1], [2, 3]]), ValueError, "named axes"),
    (lambda x: lax.all_gather(x, "i", axis_index_groups=[[0], [1, 2, 3]]), ValueError, "one size"),
    (lambda x: lax.all_gather(x, "i", axis=3), ValueError, "[all_gather] axis must be in"),
    (lambda x: lax.psum_scatter(x, "i"), ValueError, "must be the size 4 of ('i',)"),
    (lambda x: lax.psum_scatter(x, "i", tiled=True), ValueError, "must be a multiple of the size"),
    (lambda x: lax.psum_scatter(x > 0, "i"), TypeError, "[psum_scatter] the operand must be"),
    (lambda x: lax.all_to_all(x, "i", 0, 0), ValueError, "must be the size 4 of 'i'"),
    (lambda x: lax.all_to_all(x, "i", 0, 0, tiled=True), ValueError, "a multiple of the size 4"),
    (lambda x: lax.ppermute(x, "i", [(0, 1), (0, 2)]), ValueError, "distinct indices below 4"),
    (lambda x: lax.ppermute(x, "i", [(0, 4)]), ValueError, "distinct indices below 4"),
    (lambda x: lax.pshuffle(x, "i", [0, 1, 2]), ValueError, "[pshuffle] perm must hold each"),
    (lambda x: lax.pbroadcast(x, "i", 4), ValueError, "source must be an index below 4"),
    (lambda x: lax.psum(gf.vmap(gf.random.key)(jnp.arange(2)), "i"), TypeError, "a number"),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number):
    call, error, text = ERRORS[number]
    with pytest.raises(error) as caught:
        gf.vmap(call, axis_name="i")(V3)
    assert text in str(caught.value) and "Fix: " in str(caught.value)


GROUPED = {
    "psum": lambda x, n, **g: lax.psum(x, n, **g),
    "pmax": lambda x, n, **g: lax.pmax(x, n, **g),
    "all_gather": lambda x, n, **g: lax.all_gather(x, n, axis=1, tiled=True, **g),
    "psum_scatter": lambda x, n, **g: lax.psum_scatter(x, n, **g),
    "pswapaxes": lambda x, n, **g: lax.pswapaxes(x, n, 0, **g),
}


@pytest.mark.parametrize("name", GROUPED)
def test_groups_over_several_names_are_those_of_one_axis(name):
    """Two names are one row-major axis; so they are for groups, and for derivatives in groups."""
    op, groups = GROUPED[name], [[5, 0, 3], [1, 4, 2]]
    x = np.random.default_rng(0).standard_normal((2, 3, 3, 4)).astype(np.float32)
    flat = x.reshape(6, 3, 4)

    def one(v):
        return jnp.sin(op(v * v, "k", axis_index_groups=groups))

    def two(v):
        return jnp.sin(op(v * v, ("i", "j"), axis_index_groups=groups))

    want = gf.vmap(one, axis_name="k")(flat)
    got = gf.jit(_both(two))(x)
    np.testing.assert_allclose(np.asarray(got).reshape(want.shape), want, **TOLERANCE)
    slope = gf.grad(lambda v: jnp.sum(gf.vmap(one, axis_name="k")(v)))(flat)
    result = gf.grad(lambda v: jnp.sum(_both(two)(v)))(x)
    np.testing.assert_allclose(np.asarray(result).reshape(flat.shape), slope, **TOLERANCE)


def test_an_alias_stands_for_its_parts():
    """The parts are one row-major axis; a vmap that binds the name again hides the alias."""
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)

    def f(v):
        inner = gf.vmap(lambda u: lax.psum(u, "whole"), axis_name="whole")(jnp.ones(5))
        return lax.psum(v, "whole"), lax.axis_index("whole"), lax.axis_size("whole"), inner

    with extend_axes(aliases={"whole": ("i", "j")}):
        total, index, size, inner = gf.jit(_both(f))(x)
    np.testing.assert_array_equal(total, np.full((2, 3), 15.0))
    np.testing.assert_array_equal(index, np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(size, np.full((2, 3), 6))
    np.testing.assert_array_equal(inner, np.full((2, 3, 5), 5.0))
