"""Collectives over parts of axes between memories: what is asked of communicators, and in which
order. One process plays all ranks: each of the others has the same data as this one."""

import math
from collections import Counter

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.config import extend_axes
from gpuflow.base.errors import CommunicationError
from gpuflow.core.communicator import Across, Within, serving
from gpuflow.core.effects import COMMUNICATION

RANKS = 3
PART, LANES = Across("i"), Within("i")
X = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)


class Mirror:
    """A communicator whose other ranks do what this one does; it writes down all calls."""

    def __init__(self, size=RANKS, rank=1, calls=None):
        self.size, self.rank, self.name = size, rank, "mirror"
        self.calls = [] if calls is None else calls

    def _note(self, *what):
        self.calls.append(what)

    def all_reduce(self, data, op, out=None):
        self._note(op, data.shape)
        if out is None:
            return data * self.size if op == "sum" else data + 0
        out[...] = 0  # a ring writes its result while it reads: they must not share memory
        np.copyto(out, data * self.size if op == "sum" else data)
        return out

    def all_gather(self, data):
        self._note("gather", data.shape)
        return np.stack([data] * self.size)

    def reduce_scatter(self, data):
        self._note("scatter", data.shape)
        return data[self.rank] * self.size

    def all_to_all(self, data):
        self._note("exchange", data.shape)
        return np.stack([data[self.rank]] * self.size)

    def permute(self, data, pairs):
        self._note("permute", tuple(pairs))
        return data.copy()

    def broadcast(self, data, root):
        self._note("broadcast", root)
        return data.copy()

    def split(self, groups):
        (own,) = [group for group in groups if self.rank in group]
        return Mirror(len(own), own.index(self.rank), self.calls)


@pytest.fixture
def mirror():
    driver = Mirror()
    with serving("processes", driver), extend_axes((PART, RANKS), aliases={"i": (PART,)}):
        yield driver


def whole(function):
    """The same over an axis of three equal elements; the result of the middle one."""
    mapped = gf.vmap(function, axis_name="i")

    def one(x):
        return gf.tree.map(lambda leaf: leaf[1], mapped(np.stack([x] * RANKS)))

    return one


def looped(x):
    def body(carry, number):
        return jnp.sin(lax.pmean(carry, "i") * number), lax.pmax(carry, "i")

    return lax.scan(body, x, jnp.arange(3, dtype=jnp.float32))


PROGRAMS = {
    "psum": lambda x: lax.psum(x, "i"),
    "psum of a tree and a bool": lambda x: lax.psum({"a": x, "b": x > 0}, "i"),
    "pmean": lambda x: lax.pmean(x, "i"),
    "pmax": lambda x: lax.pmax(x, "i") + lax.pmin(x, "i"),
    "all_gather": lambda x: lax.all_gather(x, "i", axis=1),
    "all_gather tiled": lambda x: lax.all_gather(x, "i", axis=1, tiled=True),
    "psum_scatter": lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True),
    "psum_scatter of rows": lambda x: lax.psum_scatter(x[:3], "i"),
    "all_to_all": lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True),
    "all_to_all of elements": lambda x: lax.all_to_all(x[:3], "i", 0, 1),
    "ppermute": lambda x: lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)]),
    "pbroadcast": lambda x: lax.pbroadcast(x, "i", 2),
    "axis_index": lambda x: x + lax.axis_index("i"),
    "axis_size": lambda x: x * lax.axis_size("i") + lax.psum(1, "i"),
    "groups": lambda x: lax.psum(x, "i", axis_index_groups=[[0], [2, 1]]),
    "loop": looped,
    "while": lambda x: lax.while_loop(lambda c: lax.psum(c, "i").sum() < 99, lambda c: c * 2, x**2),
    "cond": lambda x: lax.cond(
        lax.psum(x, "i").sum() > 99, lambda v: v, lambda v: lax.pmax(v, "i"), x
    ),
    "grad": gf.grad(lambda x: jnp.sum(lax.psum(jnp.sin(x), "i") ** 2)),
    "jvp": lambda x: gf.jvp(lambda v: lax.pmax(v * 2, "i") * lax.psum(v, "i"), (x,), (x + 1,)),
    "vmap": gf.vmap(lambda v: lax.all_gather(v, "i", axis=0, tiled=True)),
    "of a transposed operand": lambda x: lax.psum(x.T[::-1], "i") + lax.psum(x, "i").T,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, mirror):
    """Eagerly and compiled, with the calls of an eager run; small sums are made together."""
    program = PROGRAMS[name]
    want = whole(gf.jit(program))(X)
    assert not mirror.calls  # the vmap binds the name again, which hides the part
    eager = program(jnp.asarray(X))
    calls = list(mirror.calls)
    mirror.calls.clear()
    compiled = gf.jit(program)(X)
    for got in (eager, compiled):
        for result, wanted in zip(gf.tree.leaves(got), gf.tree.leaves(want), strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
            assert result.dtype == wanted.dtype and result.shape == wanted.shape
    if name == "jvp":
        assert len(mirror.calls) < len(calls) and elements(mirror.calls) == elements(calls)
    elif name != "of a transposed operand":  # there a view is summed in another layout
        assert mirror.calls == calls


def elements(calls):
    """How many elements go into calls of each kind."""
    counts = Counter()
    for what, shape in calls:
        counts[what] += math.prod(shape)
    return counts


def test_calls_of_a_plan_are_in_the_order_of_tracing(mirror):
    """Though results are used in the opposite order, and kernels of many shapes lie between."""

    def program(x):
        first = lax.psum(jnp.sin(x), "i")
        second = lax.pmax(x[:1], "i")
        third = lax.all_gather(x.sum(0), "i")
        fourth = lax.pmin(x[:, :2] + 1, "i")
        return fourth * second[:, :2], third.sum(), jnp.cos(second), first.sum(1)

    gf.jit(program)(X)
    assert [call[0] for call in mirror.calls] == ["sum", "max", "gather", "min"]


def test_loops_keep_their_place_among_calls(mirror):
    """A loop that holds collectives is in the order too, whoever needs its result, and when."""

    def program(x):
        first = lax.psum(jnp.sin(x), "i")
        second = looped(x[:1])
        third = lax.cond(x[0, 0] < 9, lambda v: lax.pmin(v, "i"), lambda v: v, x[:2])
        return lax.all_gather(x[:, 0], "i"), third, second, first

    gf.jit(program)(X)
    names = [call[0] for call in mirror.calls]
    assert names == ["sum", *["sum", "max"] * 3, "min", "gather"]


def test_equal_calls_are_made_once_and_unused_ones_not(mirror):
    """As in any program; all ranks compile the same one, so that they agree about it."""

    def program(x):
        lax.pmax(x, "i")
        return lax.psum(x, "i") + lax.psum(x, "i")

    gf.jit(program)(X)
    assert [call[0] for call in mirror.calls] == ["sum"]


def test_small_leaves_of_a_tree_share_a_call(mirror):
    """A call costs more than a small array; a large one is not copied for the others' sake."""
    tree = {
        "a": jnp.arange(6.0).reshape(2, 3),
        "b": jnp.ones(()),
        "c": jnp.arange(4),
        "d": 2.5,
        "e": jnp.ones((200, 100)),
        "f": jnp.zeros((0, 2)),
        "g": jnp.ones(2, jnp.bfloat16),
        "h": jnp.array([True, False]),
        "i": jnp.arange(3),
    }
    total = gf.jit(lambda tree: lax.psum(tree, "i"))(tree)
    assert sorted(shape for _, shape in mirror.calls) == [(0, 2), (2,), (8,), (9,), (200, 100)]
    for name, leaf in tree.items():
        want = 7.5 if name == "d" else RANKS * np.asarray(leaf, total[name].dtype)
        np.testing.assert_array_equal(total[name], want)
        assert np.shape(total[name]) == np.shape(leaf)

    def loss(tree):
        low, high = lax.pmean((tree["a"], tree["b"]), "i")
        return jnp.sum(jnp.sin(low)) * high

    numbers = {"a": tree["a"], "b": tree["b"]}
    slopes = gf.jit(gf.grad(loss))(numbers)
    np.testing.assert_allclose(slopes["a"], np.cos(tree["a"]), rtol=1e-6)
    np.testing.assert_allclose(slopes["b"], np.sin(tree["a"]).sum(), rtol=1e-5)


def test_effects():
    with extend_axes((PART, RANKS), aliases={"i": (PART,)}):
        jaxpr = gf.make_jaxpr(lambda x: lax.psum(x, "i"))(X)
        index = gf.make_jaxpr(lambda: lax.axis_index("i"))()
    assert COMMUNICATION in jaxpr.effects and COMMUNICATION not in index.effects
    assert not COMMUNICATION.is_observable and COMMUNICATION.ordered


@pytest.mark.parametrize("lanes", [1, 2])
def test_parts_of_both_kinds_are_one_axis(lanes):
    """Ranks first, then lanes: index, size, and the order of gathered values."""
    driver = Mirror()
    x = np.arange(lanes, dtype=np.float32)

    def program(v):
        return lax.axis_index("i"), lax.all_gather(v, "i"), lax.psum(v, "i")

    parts = {"i": (PART, LANES)}
    with serving("processes", driver), extend_axes((PART, RANKS), aliases=parts):
        index, rows, total = gf.jit(gf.vmap(program, axis_name=LANES))(x)
    np.testing.assert_array_equal(index, driver.rank * lanes + np.arange(lanes))
    np.testing.assert_array_equal(rows[0], np.tile(x, RANKS))
    np.testing.assert_array_equal(total, np.full(lanes, RANKS * x.sum()))
    # Lanes are summed first: what goes between memories is as small as it can be.
    assert ("sum", ()) in driver.calls


def test_an_array_may_differ_between_ranks(mirror):
    """Under vmap a closed-over array is the same for all; between memories only a number is."""
    assert lax.psum(2, "i") == 2 * RANKS and not mirror.calls
    lax.psum(jnp.ones(3), "i")
    assert [call[0] for call in mirror.calls] == ["sum"]


def test_a_donated_operand_is_not_the_result(mirror):
    """A sum is written while its operand is read, so that it cannot take its memory."""
    step = gf.jit(lambda x: lax.psum(x, "i"), donate_argnums=0)
    both = gf.jit(lambda x: jnp.sin(lax.psum(jnp.cos(x), "i")), donate_argnums=0)
    big = np.linspace(0, 1, 1 << 17, dtype=np.float32)
    np.testing.assert_allclose(step(jnp.asarray(big)), RANKS * big, rtol=1e-6)
    np.testing.assert_allclose(both(jnp.asarray(big)), np.sin(RANKS * np.cos(big)), atol=1e-5)


def test_errors():
    with extend_axes((PART, RANKS), aliases={"i": (PART,)}):
        with pytest.raises(CommunicationError, match=r"\[psum\] the axis 'i' must be served.*Fix"):
            lax.psum(jnp.ones(3), "i")
        with pytest.raises(NameError, match=r"\[psum\] the axis name 'j' must be bound"):
            lax.psum(jnp.ones(3), ("i", "j"))
        with pytest.raises(ValueError, match="axis names must differ"):
            lax.psum(jnp.ones(3), ("i", PART))
