"""The No-U-Turn sampler: many chains, each of which finds for itself how far to go.

The target is Neal's, as in hmc.py: ten coordinates, normal, with standard deviations from 0.1 to 1
and the first two correlated by 0.8. A trajectory is doubled until it turns back. No function calls
itself: of a subtree, the momenta are kept at which a turn may have begun, one for each height.

The doublings of all chains are one kernel, with the loop over leaves inside; the scan over draws is
a loop of steps, for a draw takes more operations than a kernel of lanes may have (gf.explain).

    python docs/examples/nuts.py
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

DIMENSION, CHAINS, DRAWS, WARMUP = 10, 256, 200, 50
STEP, MAX_DOUBLINGS = 0.1, 6
MAX_LOST = 1000.0  # of energy, before a trajectory is given up
CORRELATION = 0.8
DEVIATIONS = np.linspace(1, 0.1, DIMENSION).astype(np.float32)


class Point(NamedTuple):
    """A place and a momentum, f32[DIMENSION] each, and the force there."""

    place: Any
    momentum: Any
    force: Any


class Subtree(NamedTuple):
    """Leaves that lie behind each other in one direction.

    Attributes:
        leaves: how many there are.
        last: the latest of them.
        chosen: the place of one, drawn by weight.
        weight: the logarithm of the sum of exp(-energy).
        momenta, sums: f32[MAX_DOUBLINGS, DIMENSION], for each height the momentum at which the
            subtree of that height began, and the sum of all momenta up to it.
        sum: of all momenta.
        goes_on: it has not turned, and lost no energy.
    """

    leaves: Any
    last: Point
    chosen: Any
    weight: Any
    momenta: Any
    sums: Any
    sum: Any
    goes_on: Any


def log_density(x: Any) -> Any:
    """Up to a constant, of a vector f32[DIMENSION]."""
    z = x / DEVIATIONS
    pair = (z[0] ** 2 - 2 * CORRELATION * z[0] * z[1] + z[1] ** 2) / (1 - CORRELATION**2)
    return -0.5 * (pair + jnp.sum(z[2:] ** 2))


force_at = gf.grad(log_density)


def log_weight(point: Point) -> Any:
    """The energy of a point with another sign."""
    return log_density(point.place) - 0.5 * jnp.sum(point.momentum**2)


def leapfrog(point: Point, length: Any) -> Point:
    """A step along a trajectory; back where the length is below 0."""
    momentum = point.momentum + 0.5 * length * point.force
    place = point.place + length * momentum
    force = force_at(place)
    return Point(place, momentum + 0.5 * length * force, force)


def turns(first: Any, last: Any, total: Any) -> Any:
    """Whether a trajectory turns back, by the momenta at its ends and the sum of all.

    Source: Betancourt 2017, "A conceptual introduction to Hamiltonian Monte Carlo", A.4.2.
    """
    middle = total - 0.5 * (first + last)
    return (jnp.dot(first, middle) <= 0) | (jnp.dot(last, middle) <= 0)


def add_leaf(tree: Subtree, length: Any, start: Any, key: Any) -> Subtree:
    """The subtree with one leaf more, and whether any of the trees that end there has turned.

    Leaf n ends as many trees as n has ones at its end, in base 2, each of which began at a leaf
    whose number is n with some of these ones gone. Such leaves are even, and an even leaf is kept
    at the height that is the number of ones in it but for the last digit: nothing that a later
    leaf asks for is overwritten.

    Source: Phan, Pradhan, Jankowiak 2019, "Composable effects for flexible and accelerated
    probabilistic programming in NumPyro", algorithm 2.
    """
    point = leapfrog(tree.last, length)
    gained = log_weight(point) - start
    weight = jnp.logaddexp(tree.weight, gained)
    is_chosen = jnp.log(gf.random.uniform(gf.random.fold_in(key, tree.leaves))) < gained - weight
    total = tree.sum + point.momentum
    height = lax.population_count(tree.leaves >> 1)
    ones = lax.population_count(tree.leaves & ~(tree.leaves + 1))
    heights = jnp.arange(MAX_DOUBLINGS)
    is_even = tree.leaves % 2 == 0
    is_kept = (is_even & (heights == height))[:, None]
    momenta = jnp.where(is_kept, point.momentum, tree.momenta)
    sums = jnp.where(is_kept, total, tree.sums)
    turned = gf.vmap(lambda m, s: turns(m, point.momentum, total - s + m))(momenta, sums)
    ends = ~is_even & (heights <= height) & (heights > height - ones)
    goes_on = ~jnp.any(ends & turned) & (gained > -MAX_LOST)
    chosen = jnp.where(is_chosen, point.place, tree.chosen)
    return Subtree(tree.leaves + 1, point, chosen, weight, momenta, sums, total, goes_on)


def subtree(last: Point, leaves: Any, length: Any, start: Any, key: Any) -> Subtree:
    """So many leaves behind ``last``, or as many as there are before they turn."""
    none = jnp.zeros((MAX_DOUBLINGS, DIMENSION))
    empty = Subtree(
        jnp.int32(0), last, last.place, -jnp.inf, none, none, jnp.zeros(DIMENSION), True
    )
    return lax.while_loop(
        lambda tree: (tree.leaves < leaves) & tree.goes_on,
        lambda tree: add_leaf(tree, length, start, key),
        empty,
    )


class Trajectory(NamedTuple):
    """All that was seen; both ends, the place that was chosen, how often it was doubled."""

    left: Point
    right: Point
    chosen: Any
    weight: Any
    sum: Any
    doublings: Any
    leaves: Any
    goes_on: Any


def transition(x: Any, key: Any) -> tuple[Any, tuple[Any, Any]]:
    """One step of a chain: the next place, again, and how many leapfrog steps it took."""
    momentum_key, key = gf.random.split(key)
    momentum = gf.random.normal(momentum_key, (DIMENSION,))
    point = Point(x, momentum, force_at(x))
    start = log_weight(point)

    def double(old: Trajectory) -> Trajectory:
        side_key, tree_key, choice_key = gf.random.split(gf.random.fold_in(key, old.doublings), 3)
        is_right = gf.random.bernoulli(side_key)
        end = gf.tree.map(lambda a, b: jnp.where(is_right, a, b), old.right, old.left)
        length = jnp.where(is_right, STEP, -STEP)
        new = subtree(end, 1 << old.doublings, length, start, tree_key)
        left = gf.tree.map(lambda a, b: jnp.where(is_right, a, b), old.left, new.last)
        right = gf.tree.map(lambda a, b: jnp.where(is_right, b, a), old.right, new.last)
        # The new half is preferred, so that chains move far.
        is_taken = jnp.log(gf.random.uniform(choice_key)) < new.weight - old.weight
        chosen = jnp.where(new.goes_on & is_taken, new.chosen, old.chosen)
        total = old.sum + new.sum
        goes_on = new.goes_on & ~turns(left.momentum, right.momentum, total)
        weight = jnp.logaddexp(old.weight, new.weight)
        leaves = old.leaves + new.leaves
        return Trajectory(left, right, chosen, weight, total, old.doublings + 1, leaves, goes_on)

    first = Trajectory(point, point, x, jnp.float32(0), momentum, jnp.int32(0), jnp.int32(0), True)
    last = lax.while_loop(lambda t: t.goes_on & (t.doublings < MAX_DOUBLINGS), double, first)
    return last.chosen, (last.chosen, last.leaves)


@gf.jit
def sampled(key: Any) -> tuple[Any, Any]:
    """Places f32[CHAINS, DRAWS, DIMENSION], and leapfrog steps of each i32[CHAINS, DRAWS]."""

    def chain(key: Any) -> tuple[Any, Any]:
        start_key, key = gf.random.split(key)
        start = gf.random.normal(start_key, (DIMENSION,)) * DEVIATIONS
        _, (places, steps) = lax.scan(transition, start, gf.random.split(key, WARMUP + DRAWS))
        return places[WARMUP:], steps[WARMUP:]

    return gf.vmap(chain)(gf.random.split(key, CHAINS))


def main() -> None:
    """Sample and print."""
    places, steps = sampled(gf.random.key(0))
    flat = np.asarray(places).reshape(-1, DIMENSION)
    deviations = flat.std(axis=0) / DEVIATIONS
    correlation = np.corrcoef(flat[:, 0], flat[:, 1])[0, 1]
    means = np.abs(flat.mean(axis=0)).max()
    print(f"leapfrog steps {jnp.mean(steps):.1f}; means {means:.3f} or less")
    print(f"deviations {deviations.min():.3f} to {deviations.max():.3f} of the true ones")
    print(f"correlation {correlation:.3f}, truly {CORRELATION}")


if __name__ == "__main__":
    main()
