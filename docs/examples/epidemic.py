"""Epidemics, one person after the other: each lane is a town, and ends when nobody is infected.

The next thing that happens is an infection or a recovery (``cond``), drawn inside the loop (the
direct method of Gillespie 1977). One case dies out without an outbreak with probability 1 / R
(Whittle 1955); an outbreak reaches the share s of the town with s = 1 - exp(-R s) (Kermack and
McKendrick 1927).

    python docs/examples/epidemic.py
"""

from __future__ import annotations

import math
from typing import Any

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

PEOPLE = 400
REPRODUCTION = 2.0  # people infected by one, while nobody is immune
MAJOR = 0.25  # the share of a town from which on it was an outbreak


def epidemic(key: Any) -> tuple[Any, Any]:
    """Of one town: the share that was infected, and how long it took in times of recovery."""

    def goes_on(state: tuple[Any, ...]) -> Any:
        return state[1] > 0

    def event(state: tuple[Any, ...]) -> tuple[Any, ...]:
        susceptible, infected, time, number = state
        infections = REPRODUCTION * susceptible * infected / PEOPLE
        total = infections + infected
        wait, which = gf.random.uniform(gf.random.fold_in(key, number), (2,))
        susceptible, infected = lax.cond(
            which * total < infections,
            lambda s, i: (s - 1, i + 1),
            lambda s, i: (s, i - 1),
            susceptible,
            infected,
        )
        return susceptible, infected, time - jnp.log1p(-wait) / total, number + 1

    start = (jnp.float32(PEOPLE - 1), jnp.float32(1), jnp.float32(0), jnp.int32(0))
    susceptible, _, time, _ = lax.while_loop(goes_on, event, start)
    return 1 - susceptible / PEOPLE, time


@gf.jit(static_argnums=1)
def simulated(key: Any, towns: int) -> tuple[Any, Any]:
    """Shares f32[towns] and times f32[towns]."""
    return gf.vmap(epidemic)(gf.random.split(key, towns))


def final_share() -> float:
    """The solution of s = 1 - exp(-R s)."""
    share = 1.0
    for _ in range(200):
        share = 1 - math.exp(-REPRODUCTION * share)
    return share


def main() -> None:
    """Simulate and print."""
    shares, times = simulated(gf.random.key(0), 4000)
    is_major = shares > MAJOR
    count = jnp.sum(is_major)
    share = jnp.sum(jnp.where(is_major, shares, 0)) / count
    print(f"died out: {1 - count / shares.size:.3f} of towns, by theory {1 / REPRODUCTION:.3f}")
    print(f"outbreaks reached {share:.3f} of the people, by theory {final_share():.3f}")
    print(f"the longest took {jnp.max(times):.1f} times of recovery")


if __name__ == "__main__":
    main()
