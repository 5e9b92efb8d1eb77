"""Workloads of bench_loops.py whose steps are ops of small arrays that no loop kernel holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from loops_lanes import Arrays, lane_row
from reference import check_close
from workload import Workload

STEPS, POINTS, SIZE, SOME = 200, 256, 8, 8
HEAT_STEPS, DECAY = 1000, 1e-6
GAIN = 0.1  # of a result, in what the next step takes


def _vector() -> Arrays:
    return (np.random.default_rng(6).standard_normal(POINTS, dtype=np.float32),)


def _matrix() -> Arrays:
    """A matrix with eigenvalues between 1 and 2, so that factors of what it becomes are exact."""
    generator = np.random.default_rng(7)
    basis = np.linalg.qr(generator.standard_normal((SIZE, SIZE)))[0]
    return ((basis * np.linspace(1, 2, SIZE) @ basis.T).astype(np.float32),)


def _repeated(step: Callable[[Any, Any], Any], x: Any, xp: Any) -> Any:
    """What a step's result, of which a part is added to ``x``, becomes: in NumPy."""
    shift = 0.0
    for _ in range(STEPS):
        shift = GAIN * step(xp, x + shift)
    return shift


def _body_row(
    name: str, inputs: Callable[[], Arrays], step: Callable[[Any, Any], Any], limit: float
) -> Workload:
    """A scan that carries a number which each step takes and makes anew.

    ``step(module, x)`` gives the number, with a module like ``jax`` or with this file's stand-in.
    """

    def function(jax: Any) -> Callable[..., Any]:
        def run(x: Any) -> Any:
            def body(shift: Any, _: Any) -> Any:
                return GAIN * step(jax, x + shift), None

            return jax.lax.scan(body, np.float32(0), None, length=STEPS)[0]

        return run

    def check(result: Any, x: np.ndarray) -> None:
        check_close("last number", result, _repeated(step, x, _Numpy), 1e-3, 1e-6)

    return lane_row(f"scan of {STEPS} steps, {name}", inputs, function, limit, check)


class _Numpy:
    """As much of JAX's names as the steps use, by NumPy."""

    numpy = np

    class lax:
        """What is no NumPy name."""

        @staticmethod
        def top_k(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
            """The k greatest, and where they are."""
            order = np.argsort(-x, kind="stable")[:k]
            return x[order], order


def _last_of_factor(m: Any, x: Any) -> Any:
    return m.numpy.linalg.cholesky(x)[-1, -1]


def _last_of_r(m: Any, x: Any) -> Any:
    return abs(m.numpy.linalg.qr(x)[1][-1, -1])


def _smallest(m: Any, x: Any) -> Any:
    return m.numpy.linalg.eigvalsh(x)[0]


def _heat(jax: Any) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        waves = np.arange(POINTS // 2 + 1, dtype=np.float32)

        def body(u: Any, _: Any) -> Any:
            spectrum = jax.numpy.fft.rfft(u) * jax.numpy.exp(np.float32(-DECAY) * waves**2)
            return jax.numpy.fft.irfft(spectrum, POINTS), None

        return jax.lax.scan(body, x, None, length=HEAT_STEPS)[0]

    return run


def _check_heat(result: Any, x: np.ndarray) -> None:
    waves = np.arange(POINTS // 2 + 1)
    kept = np.exp(-DECAY * waves**2 * HEAT_STEPS)
    check_close("heat", result, np.fft.irfft(np.fft.rfft(x) * kept, POINTS), 0.0, 2e-4)


ROWS = [
    _body_row(f"sort of {POINTS}", _vector, lambda m, x: m.numpy.sort(x)[3], 0.5),
    _body_row(f"argsort of {POINTS}", _vector, lambda m, x: x[m.numpy.argsort(x)[3]], 0.5),
    _body_row(f"top_k of {POINTS}", _vector, lambda m, x: m.lax.top_k(x, SOME)[0][-1], 1.5),
    _body_row(f"cumsum of {POINTS}", _vector, lambda m, x: m.numpy.cumsum(x)[-1] / POINTS, 1.0),
    _body_row(f"cholesky of {SIZE} x {SIZE}", _matrix, _last_of_factor, 1.1),
    _body_row(f"qr of {SIZE} x {SIZE}", _matrix, _last_of_r, 1.0),
    _body_row(f"eigvalsh of {SIZE} x {SIZE}", _matrix, _smallest, 1.1),
    lane_row(
        f"scan of {HEAT_STEPS} steps of a spectral heat equation, {POINTS} points",
        _vector,
        _heat,
        0.5,
        _check_heat,
    ),
]
