"""Loops and branches under all pairs of transformations, against finite differences.

Rules of control flow map programs to programs, so most tests interpret what comes out; a few nests
run compiled.
"""

import itertools

import numpy as np
import pytest
from nesting import TRANSFORMS, Case, expected, result

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

VECTOR = np.array([0.4, -0.7, 0.9])


def _recurrence(w, x):
    def step(h, e):
        h = jnp.tanh(h * w + e)
        return h, h * w

    return lax.scan(step, jnp.zeros(2), jnp.stack([x, -x, 0.5 * x]))


def _recurrence_reference(v):
    w, x = v[0], v[1:]
    h, ys = np.zeros(2), []
    for e in (x, -x, 0.5 * x):
        h = np.tanh(h * w + e)
        ys.append(h * w)
    return np.concatenate([h, np.ravel(ys)])


def _backwards(x):
    """A carry with a counter and a constant part, ys that depend on xs alone, in reverse."""

    def step(carry, e):
        count, total, fixed = carry
        total = jnp.sin(total) + e * count + fixed
        return (count + 1, total, fixed), (e**2, total)

    return lax.scan(step, (0, jnp.float64(0.1), x[0]), x, reverse=True)


def _backwards_reference(x):
    total, fixed, squares, totals = 0.1, x[0], [], []
    for count, e in enumerate(x[::-1]):
        total = np.sin(total) + e * count + fixed
        squares.append(e**2)
        totals.append(total)
    return np.array([3, total, fixed, *squares[::-1], *totals[::-1]])


def _branches(x, k):
    """Branches that share residuals, drop operands and give zeros; the index depends on x."""
    y = lax.cond(x[0] > -0.1, lambda a, b: (a * jnp.sin(b), 1.0), lambda a, b: (b, 2.0 * a), *x[:2])
    z = lax.switch(
        k, [lambda v: v * v, lambda v: jnp.exp(v) * x[1], lambda v: jnp.zeros_like(v)], x
    )
    return y, z


def _branches_reference(x, k):
    y = (x[0] * np.sin(x[1]), 1.0) if x[0] > -0.1 else (x[1], 2.0 * x[0])
    z = [x * x, np.exp(x) * x[1], 0 * x][k]
    return np.array([*y, *z])


def _scan_of_cond(w, x):
    """A branch in each iteration whose predicate depends on the carry, with a jitted body."""

    @gf.jit
    def step(h, e):
        h = lax.cond(h > 0, lambda h: h * w + e, lambda h: jnp.cos(h) * e - w, h)
        return h, lax.cond(e > 0, lambda: e * h, lambda: w)

    return lax.scan(step, x[0], x)


def _scan_of_cond_reference(v):
    w, x = v[0], v[1:]
    h, ys = x[0], []
    for e in x:
        h = h * w + e if h > 0 else np.cos(h) * e - w
        ys.append(e * h if e > 0 else w)
    return np.array([h, *ys])


def _nested_loops(x):
    """A scan in a fori_loop in a branch, and a mapped scan."""

    def outer(k, c):
        return lax.scan(lambda h, e: (h * e + k, None), c, x)[0]

    inside = lax.cond(x[1] < 0, lambda: lax.fori_loop(0, 2, outer, x[0]), lambda: x[0])
    return inside, lax.map(lambda e: lax.fori_loop(1, 3, lambda k, c: c * e + k, e), x)


def _nested_loops_reference(x):
    c = x[0]
    if x[1] < 0:
        for k in range(2):
            for e in x:
                c = c * e + k
    mapped = [(e * e + 1) * e + 2 for e in x]
    return np.array([c, *mapped])


def _bounded_while(x):
    return lax.while_loop(
        lambda v: v[0] < 3, lambda v: (v[0] + 1, v[1] * x[0] + x[1]), (0, x[2]), max_steps=5
    )[1]


def _bounded_while_reference(x):
    c = x[2]
    for _ in range(3):
        c = c * x[0] + x[1]
    return c


def _prefixes(x):
    return lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, x**2))


def _prefixes_reference(x):
    a, b = [x[0]], [x[0] ** 2]
    for e in x[1:]:
        a.append(a[-1] * e)
        b.append(b[-1] * e + e**2)
    return np.array([*a, *b])


def _mapped_predicates(x):
    """vmap of branches and loops whose predicates differ from element to element."""
    shared = x[0]

    def one(e):
        y = lax.cond(e > 0, lambda v: jnp.sin(v) * shared, lambda v: v * v, e)
        z = lax.while_loop(
            lambda v: v[0] < jnp.where(e > 0, 3, 1),
            lambda v: (v[0] + 1, v[1] * e + shared),
            (0, e),
            max_steps=4,
        )[1]
        return y, z

    return gf.vmap(one)(x)


def _mapped_predicates_reference(x):
    ys, zs = [], []
    for e in x:
        ys.append(np.sin(e) * x[0] if e > 0 else e * e)
        z = e
        for _ in range(3 if e > 0 else 1):
            z = z * e + x[0]
        zs.append(z)
    return np.array([*ys, *zs])


CASES = [
    Case(
        "recurrence", _recurrence, _recurrence_reference, (np.float64(0.6), np.array([0.4, -0.7]))
    ),
    Case("backwards", _backwards, _backwards_reference, (VECTOR,)),
    Case("branches", _branches, _branches_reference, (VECTOR,), (1,)),
    Case("scan_of_cond", _scan_of_cond, _scan_of_cond_reference, (np.float64(0.6), VECTOR)),
    Case("nested_loops", _nested_loops, _nested_loops_reference, (VECTOR,)),
    Case("bounded_while", _bounded_while, _bounded_while_reference, (VECTOR,)),
    Case("prefixes", _prefixes, _prefixes_reference, (VECTOR,)),
    Case("mapped_predicates", _mapped_predicates, _mapped_predicates_reference, (VECTOR,)),
]
NAMES = tuple(TRANSFORMS)


def _check(case, names, tolerance):
    got = result(case, names)
    np.testing.assert_allclose(got, expected(case, names), rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("x64", "interpreted")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", NAMES)
def test_single(case, name):
    _check(case, (name,), 1e-6)


@pytest.mark.usefixtures("x64", "interpreted")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("outer", NAMES)
def test_pairs(case, outer):
    for inner in NAMES:
        # The second difference of a function of size 1 with this step is good to about 1e-6.
        _check(case, (outer, inner), 1e-5)


@pytest.mark.usefixtures("x64", "interpreted")
@pytest.mark.parametrize("case", [CASES[3], CASES[7]], ids=lambda case: case.name)
@pytest.mark.parametrize("names", list(itertools.permutations(("jit", "vmap", "grad"))))
def test_triples(case, names):
    _check(case, names, 2e-4)
    _check(case, ("grad", *names), 1e-3)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("names", [("jit",), ("jit", "vmap", "grad"), ("grad", "jit"), ("vmap",)])
def test_compiled(case, names):
    _check(case, names, 1e-5)
