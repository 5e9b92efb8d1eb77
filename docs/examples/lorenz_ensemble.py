"""An ensemble of Lorenz's system: how fast neighbors part, and a picture of where they go.

Every lane solves the system with steps of its own, together with a tangent, by ``jvp``: a small
displacement, which grows by exp(0.906 t) in the mean (Lyapunov's exponent; Sprott 2003). The
picture, lorenz.png, shows how often lanes are where.

    python docs/examples/lorenz_ensemble.py [folder]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from pictures import save_png

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.experimental.ensemble import Tsit5, solve

EXPONENT = 0.9056
METHOD = Tsit5(rtol=1e-4, atol=1e-4)


def slope(t: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Lorenz's system (1963), with his parameters."""
    del t
    x, y, z = state
    return 10.0 * (y - x), x * (28.0 - z) - y, x * y - 8 / 3 * z


def growth(start: tuple[Any, Any, Any], windows: int) -> tuple[Any, Any]:
    """Of one lane: the states after each unit of time, and by how much a displacement grew."""

    def window(carry: Any, _: Any) -> tuple[Any, Any]:
        state, displacement = carry
        state, moved = gf.jvp(
            lambda y: solve(slope, y, (0.0, 1.0), method=METHOD).ys, (state,), (displacement,)
        )
        size = jnp.sqrt(sum(part * part for part in moved))
        return (state, tuple(part / size for part in moved)), jnp.log(size)

    one = jnp.ones_like(start[0])
    return lax.scan(window, (start, (one, 0 * one, 0 * one)), None, length=windows)


@gf.jit
def exponents(starts: Any) -> Any:
    """Of each lane f32[n], over 30 units of time after 20 to settle; starts are f32[3, n]."""
    _, logs = gf.vmap(lambda *start: growth(start, 50))(*starts)
    return jnp.mean(logs[:, 20:], axis=1)


@gf.jit
def paths(starts: Any) -> Any:
    """States f32[n, 400, 3] at equal times, after some time to settle."""
    times = np.concatenate([[0.0], np.linspace(8.0, 20.0, 400)]).astype(np.float32)
    states = gf.vmap(lambda *start: solve(slope, start, times, method=METHOD).ys)(*starts)
    return jnp.stack(states, -1)[:, 1:]


def picture(starts: Any, side: int = 400) -> np.ndarray:
    """Brightness f64[side, side]: how often lanes are at a place in x (right) and z (up)."""
    states = np.asarray(paths(starts)).reshape(-1, 3)
    counts, _, _ = np.histogram2d(
        -states[:, 2], states[:, 0], bins=side, range=[(-50, 0), (-25, 25)]
    )
    return np.log1p(counts) / np.log1p(counts.max())


def starts_of(lanes: int, seed: int = 0) -> np.ndarray:
    """f32[3, lanes], wide: near the fixed points lanes would stay for long."""
    spread = np.random.default_rng(seed).normal(0, 10, (3, lanes))
    return (spread + np.array([[0], [0], [25]])).astype(np.float32)


def main(folder: str = ".") -> None:
    """Solve, draw and print."""
    found = exponents(starts_of(1000))
    error = jnp.std(found) / found.size**0.5
    print(f"Lyapunov's exponent {jnp.mean(found):.3f} +- {error:.3f}, known to be {EXPONENT}")
    save_png(Path(folder) / "lorenz.png", picture(starts_of(1000, seed=1)))
    print("the picture is lorenz.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
