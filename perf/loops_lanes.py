"""Workloads of bench_loops.py whose lanes each run a loop: vmaps of loops over scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ode
from reference import as_array, check_close, check_gradients
from workload import Workload

MANDELBROT_STEPS = 100
NEWTON_STEPS = 1000
NEWTON_TOLERANCE = 1e-4
NEWTON_START = 1.001  # of the root: so close that an error shrinks by 1 - damping in each step
# Lanes that are compared where the reference is slow; they are spread over all.
CHECKED = 200
Arrays = tuple[np.ndarray, ...]


def lane_row(
    name: str,
    inputs: Callable[[], Arrays],
    function: Callable[[Any], Callable[..., Any]],
    limit: float,
    check: Callable[..., None],
) -> Workload:
    """A row that calls one jitted function of float32 arrays, beside JAX alone.

    Args:
        name: the row's label.
        inputs: makes the arrays.
        function: from a JAX-like module to the function; written once.
        limit: the largest allowed ratio.
        check: from the result and the inputs in float64; raises ValueError if it is wrong.
    """

    def make(jax: Any, jnp: Any) -> Callable[[], Any]:
        arrays = [jnp.asarray(value) for value in inputs()]
        call = jax.jit(function(jax))
        return lambda: call(*arrays)

    def check_result(result: Any) -> None:
        check(result, *(value.astype(np.float64) for value in inputs()))

    return Workload(name, make, {"jax": limit}, ("jax",), {}, check_result)


def spread(count: int) -> np.ndarray:
    """The lanes that are compared, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, CHECKED)).astype(int))


# --- Mandelbrot's set --------------------------------------------------------------------------


def _plane(side: int) -> Arrays:
    real, imaginary = np.meshgrid(np.linspace(-2, 1, side), np.linspace(-1.5, 1.5, side))
    return real.astype(np.float32), imaginary.astype(np.float32)


def _escape(jax: Any) -> Callable[..., Any]:
    """How many steps each point stays within the circle of radius 2."""

    def steps(a: Any, b: Any) -> Any:
        def inside(carry: Any) -> Any:
            x, y, count = carry
            return (x * x + y * y <= 4.0) & (count < MANDELBROT_STEPS)

        def step(carry: Any) -> Any:
            x, y, count = carry
            return x * x - y * y + a, 2.0 * x * y + b, count + 1

        zero = jax.numpy.zeros_like(a)
        return jax.lax.while_loop(inside, step, (zero, zero, jax.numpy.int32(0)))[2]

    return jax.vmap(jax.vmap(steps))


def _check_escape(result: Any, a: np.ndarray, b: np.ndarray) -> None:
    points = (a + 1j * b).ravel()
    wanted, z, lanes = np.zeros(points.size), np.zeros(points.size, complex), np.arange(points.size)
    for _ in range(MANDELBROT_STEPS):
        z = z * z + points[lanes]
        wanted[lanes] += 1
        stays = np.abs(z) <= 2
        z, lanes = z[stays], lanes[stays]
    got = as_array(result).astype(np.float64)
    check_close("shape of counts", got.shape, a.shape, 0.0)
    # Beside the border a rounding error grows until it decides: 0.04 % of points differ in float32.
    check_close("share of points with another count", np.mean(got.ravel() != wanted), 0.0, 0, 0.002)


def mandelbrot_row(side: int) -> Workload:
    """The picture of so many points squared."""
    name = f"vmap(while_loop): Mandelbrot, {side} x {side}, at most {MANDELBROT_STEPS} steps"
    return lane_row(name, lambda: _plane(side), _escape, 0.08, _check_escape)


# --- Lorenz's system ---------------------------------------------------------------------------


def rk4_reference(state: np.ndarray, parameters: Any, h: Any, steps: int) -> np.ndarray:
    """The state after steps of length h, in NumPy: rows are x, y, z."""
    sigma, rho, beta = parameters

    def slope(u: np.ndarray) -> np.ndarray:
        return np.stack(
            [sigma * (u[1] - u[0]), u[0] * (rho - u[2]) - u[1], u[0] * u[1] - beta * u[2]]
        )

    for _ in range(steps):
        a = slope(state)
        b = slope(state + h / 2 * a)
        c = slope(state + h / 2 * b)
        state = state + h / 6 * (a + 2 * b + 2 * c + slope(state + h * c))
    return state


def rk4_row(lanes: int, steps: int, by_scan: bool) -> Workload:
    """Steps of fixed length."""

    def function(jax: Any) -> Callable[..., Any]:
        return ode.fixed_ensemble(jax, steps, by_scan)

    def check(result: Any, x: np.ndarray, y: np.ndarray, z: np.ndarray, rho: np.ndarray) -> None:
        start = np.stack([x, y, z])
        wanted = rk4_reference(start, (ode.SIGMA, rho, ode.BETA), ode.STEP, steps)
        # 100 steps of float32 leave errors of 1e-5 beside values of 10.
        check_close("states", np.stack([as_array(part) for part in result]), wanted, 2e-5, 2e-5)

    name = (
        f"vmap({'scan' if by_scan else 'fori_loop'}): RK4 of Lorenz, {lanes} lanes, {steps} steps"
    )
    return lane_row(
        name, lambda: ode.ensemble(np.random.default_rng(0), lanes), function, 0.08, check
    )


def _check_adaptive(result: Any, *inputs: np.ndarray) -> None:
    states, counts = result
    counts = as_array(counts)
    places = spread(counts.size)
    x, y, z, rho, end = (value[places] for value in inputs)
    # Another method with steps of its own, so short that its error is below 1e-6.
    steps = int(end.max() / 0.01) + 100
    wanted = rk4_reference(np.stack([x, y, z]), (ode.SIGMA, rho, ode.BETA), end / steps, steps)
    got = np.stack([as_array(part) for part in states])
    # Each step may be off by the tolerance, and errors of a transient add up before they shrink.
    check_close("states", got[:, places], wanted, 50 * ode.TOLERANCE, 50 * ode.TOLERANCE)
    if not np.all(np.isfinite(got)):
        raise ValueError("wrong states: some are not finite")
    # A step covers 0.05 to 0.4 of time, so that the work of lanes is as different as it should be.
    covered = inputs[4] / counts
    if not (covered.min() > 0.02 and covered.max() < 0.5):
        raise ValueError(f"wrong counts: {covered.min():.3g} to {covered.max():.3g} a step")


def adaptive_row(lanes: int, most: float = 1.0) -> Workload:
    """Steps of adapted length, 10 to 1000 of them, or up to a share of that."""
    name = f"vmap(while_loop): adaptive Tsit5 of Lorenz, {lanes} lanes, 10 to 1000 steps"

    def inputs() -> Arrays:
        generator = np.random.default_rng(1)
        return (*ode.ensemble(generator, lanes), ode.ends(generator, lanes, most))

    return lane_row(name, inputs, ode.adaptive_ensemble, 0.05, _check_adaptive)


# --- the gradient of an ensemble ---------------------------------------------------------------


def gradient_row(lanes: int, steps: int) -> Workload:
    """Of the mean square of all final states, by sigma, rho and beta."""
    parameters = np.array([ode.SIGMA, 9.0, ode.BETA], np.float32)

    def function(jax: Any) -> Callable[..., Any]:
        solve = jax.vmap(ode.rk4(jax, steps), in_axes=(0, 0, 0, None, None, None))

        def loss(parameters: Any, x: Any, y: Any, z: Any) -> Any:
            sigma, rho, beta = parameters
            return sum((part**2).mean() for part in solve(x, y, z, sigma, rho, beta))

        return jax.value_and_grad(loss)

    def check(result: Any, parameters: np.ndarray, *starts: np.ndarray) -> None:
        def loss(leaves: list[np.ndarray]) -> float:
            state = rk4_reference(np.stack(starts), leaves[0], ode.STEP, steps)
            return float((state**2).mean(axis=1).sum())

        value, gradient = result
        check_close("loss", value, loss([parameters]), 1e-5)
        check_gradients(loss, [parameters], [as_array(gradient).astype(np.float64)])

    def inputs() -> Arrays:
        return (parameters, *ode.ensemble(np.random.default_rng(0), lanes)[:3])

    name = f"gradient of RK4 of Lorenz by its parameters, {lanes} lanes, {steps} steps"
    return lane_row(name, inputs, function, 0.2, check)


# --- Newton's method ---------------------------------------------------------------------------


def _newton_inputs(lanes: int, most: int) -> Arrays:
    """Numbers, starts, and damping: log-uniform, so that lanes need 1 to ``most`` steps."""
    generator = np.random.default_rng(2)
    numbers = generator.uniform(2, 4, lanes)
    starts = NEWTON_START * np.sqrt(numbers)
    trips = np.exp(generator.uniform(0, np.log(most), lanes))
    damping = 1 - (0.9 * NEWTON_TOLERANCE / (NEWTON_START**2 - 1)) ** (1 / trips)
    return tuple(value.astype(np.float32) for value in (numbers, starts, damping))


def _newton(jax: Any) -> Callable[..., Any]:
    """Square roots by damped steps, and their number; each lane stops by itself."""

    def root(a: Any, start: Any, damping: Any) -> Any:
        def is_off(carry: Any) -> Any:
            x, _ = carry
            return abs(x * x - a) > NEWTON_TOLERANCE * a

        def step(carry: Any) -> Any:
            x, count = carry
            return x - damping * (x * x - a) / (2.0 * x), count + 1

        return jax.lax.while_loop(is_off, step, (start, jax.numpy.int32(0)))

    return jax.vmap(root)


def _check_newton(result: Any, a: np.ndarray, start: np.ndarray, damping: np.ndarray) -> None:
    roots, counts = (as_array(part) for part in result)
    check_close("roots", roots, np.sqrt(a), 0.51 * NEWTON_TOLERANCE)
    places = spread(a.size)
    x, a, damping = start[places], a[places], damping[places]
    wanted = np.zeros(places.size)
    while np.any(is_off := np.abs(x * x / a - 1) > NEWTON_TOLERANCE):
        x = np.where(is_off, x + damping * (a / x - x) / 2, x)
        wanted += is_off
    # The last of 1000 steps changes the residual by 3e-7, a few rounding errors of float32.
    check_close("counts", counts[places], wanted, 0.01, 1.0)


def newton_row(lanes: int, most: int) -> Workload:
    """Trip counts log-uniform from 1 to ``most``."""
    name = f"vmap(while_loop): Newton, {lanes} lanes, 1 to {most} steps each"
    return lane_row(name, lambda: _newton_inputs(lanes, most), _newton, 0.05, _check_newton)


# --- a scan with inputs, outputs and a branch --------------------------------------------------


def _signals(lanes: int, steps: int) -> Arrays:
    return (np.random.default_rng(3).standard_normal((lanes, steps), dtype=np.float32),)


def _envelope(jax: Any) -> Callable[..., Any]:
    """Rises fast and falls slowly behind a signal; both branches meet where they part."""

    def follow(signal: Any) -> Any:
        def step(level: Any, x: Any) -> Any:
            level = jax.lax.cond(
                x > level,
                lambda x, level: level + 0.3 * (x - level),
                lambda x, level: level + 0.01 * jax.numpy.tanh(x - level),
                x,
                level,
            )
            return level, x - level

        return jax.lax.scan(step, signal[0] * 0.0, signal)

    return jax.vmap(follow)


def _check_envelope(result: Any, signals: np.ndarray) -> None:
    last, differences = result
    level, wanted = np.zeros(len(signals)), np.empty_like(signals)
    for k, x in enumerate(signals.T):
        gap = x - level
        level = level + np.where(gap > 0, 0.3 * gap, 0.01 * np.tanh(gap))
        wanted[:, k] = x - level
    check_close("last levels", last, level, 0.0, 1e-5)
    check_close("differences", differences, wanted, 0.0, 1e-5)


def envelope_row(lanes: int, steps: int) -> Workload:
    """A scan of each lane's signal."""
    name = f"vmap(scan) with xs, ys and a cond, {lanes} lanes, {steps} steps"
    return lane_row(name, lambda: _signals(lanes, steps), _envelope, 0.2, _check_envelope)


ROWS = [
    mandelbrot_row(512),
    rk4_row(100_000, 100, by_scan=False),
    rk4_row(100_000, 100, by_scan=True),
    adaptive_row(100_000),
    newton_row(1_000_000, NEWTON_STEPS),
    gradient_row(100_000, 100),
    envelope_row(4096, 1000),
]
