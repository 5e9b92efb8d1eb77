"""Solvers for ensembles beside SciPy's DOP853, their orders, events, derivatives and ends."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.integrate

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.lanes.program import lane_program_p
from gpuflow.compiler.pipeline import run_passes
from gpuflow.core.lowering import Loop
from gpuflow.experimental import runge_kutta
from gpuflow.experimental.ensemble import RK4, Solution, Status, Tsit5, solve
from gpuflow.targets.cpu.target import NativeTarget

TIGHT = Tsit5(rtol=1e-10, atol=1e-10)
METHODS = {"tsit5": TIGHT, "equal tsit5": Tsit5(step=0.01), "rk4": RK4(step=0.005)}


@pytest.fixture(autouse=True)
def wide_dtypes():
    with gf.enable_x64(True):
        yield


def lorenz(t, y, rho):
    del t
    a, b, c = y
    return 10.0 * (b - a), a * (rho - c) - b, a * b - 8 / 3 * c


def driven(t, y, damping):
    """A pendulum that is pushed: the slope depends on time."""
    return jnp.stack([y[1], -jnp.sin(y[0]) - damping * y[1] + 0.5 * jnp.cos(2 * t)])


def reference(f, y0, ts, *args):
    """States (times, n) by a method of order 8."""

    def slope(t, y):
        return np.asarray(f(t, y, *args), float)

    out = scipy.integrate.solve_ivp(
        slope, (ts[0], ts[-1]), y0, "DOP853", t_eval=ts, rtol=1e-12, atol=1e-12
    )
    return out.y.T


def driven_in_numpy(t, y, damping):
    return [y[1], -np.sin(y[0]) - damping * y[1] + 0.5 * np.cos(2 * t)]


# --- beside SciPy --------------------------------------------------------------------------------


@pytest.mark.parametrize("ts", [np.linspace(0, 5, 23), np.linspace(5, 0, 23)], ids=["on", "back"])
@pytest.mark.parametrize("method", METHODS)
def test_states_at_times(method, ts):
    """Steps of 0.005 and 0.01 have errors below 1e-7; rows add those of interpolants."""
    out = gf.jit(lambda y0: solve(driven, y0, ts, 0.2, method=METHODS[method]))(np.array([1.0, 0]))
    want = reference(driven_in_numpy, [1.0, 0.0], ts, 0.2)
    assert isinstance(out, Solution) and out.status == Status.DONE
    np.testing.assert_array_equal(out.ts, ts)
    np.testing.assert_array_equal(out.ys[0], [1.0, 0.0])
    np.testing.assert_allclose(out.ys, want, atol=2e-7)
    assert np.isnan(out.event_time)


@pytest.mark.parametrize("method", METHODS)
def test_the_state_at_the_end(method):
    out = solve(lorenz, (1.0, 1, 1.5), (0, 2.0), 9.0, method=METHODS[method])
    want = reference(lorenz, [1.0, 1.0, 1.5], [0, 2.0], 9.0)[-1]
    np.testing.assert_allclose(np.stack(out.ys), want, atol=2e-7)
    assert [leaf.shape for leaf in out.ys] == [()] * 3
    assert out.ts == 2.0 and out.ys[1].dtype == np.float64


def test_float32_keeps_its_digits():
    y0 = tuple(np.float32(x) for x in (1.0, 1.0, 1.5))
    with gf.enable_x64(False):
        out = solve(lorenz, y0, (0.0, 2.0), 9.0, method=Tsit5(rtol=1e-6, atol=1e-6))
    want = reference(lorenz, [1.0, 1.0, 1.5], [0, 2.0], 9.0)[-1]
    assert out.ys[0].dtype == out.ts.dtype == np.float32
    # 40 steps, each off by the tolerance.
    np.testing.assert_allclose(np.stack(out.ys), want, rtol=4e-5)


def test_trees_matrices_and_complex_states():
    def slope(t, y):
        return {"turn": 1j * y["turn"], "grow": (2 * t * y["grow"][0],)}

    y0 = {"turn": np.array([[1.0 + 0j, 2j]]), "grow": (np.ones(()),)}
    out = gf.jit(lambda y0: solve(slope, y0, [0.0, 0.5, 1.0], method=TIGHT))(y0)
    np.testing.assert_allclose(out.ys["turn"][2], np.exp(1j) * y0["turn"], rtol=1e-8)
    np.testing.assert_allclose(out.ys["grow"][0], np.exp([0, 0.25, 1.0]), rtol=1e-8)


# --- orders --------------------------------------------------------------------------------------


def errors(method_of, steps, ts=(0.0, 3.0)):
    want = reference(driven_in_numpy, [1.0, 0.0], np.asarray(ts), 0.2)
    got = [
        solve(driven, np.array([1.0, 0.0]), jnp.asarray(ts), 0.2, method=method_of(h)).ys
        for h in steps
    ]
    return np.array([np.abs(np.asarray(y) - want).max() for y in got])


@pytest.mark.parametrize(
    ("method_of", "order"), [(lambda h: RK4(step=h), 4), (lambda h: Tsit5(step=h), 5)]
)
def test_order_of_convergence(method_of, order):
    """Of Lorenz's system: with the pendulum the leading term of Tsit5's error almost cancels."""
    y0 = (1.0, 1.0, 1.5)
    want = reference(lorenz, y0, [0, 2.0], 9.0)[-1]
    ends = [solve(lorenz, y0, (0.0, 2.0), 9.0, method=method_of(h)).ys for h in (0.1, 0.05, 0.025)]
    found = np.array([np.abs(np.stack(end) - want).max() for end in ends])
    rates = np.log2(found[:-1] / found[1:])
    assert np.all(np.abs(rates - order) < 0.5), rates


@pytest.mark.parametrize("method_of", [lambda h: RK4(step=h), lambda h: Tsit5(step=h)])
def test_order_within_steps(method_of):
    """Both polynomials have errors of order 4 in a step's length, where the steps have them."""
    times = np.linspace(0, 3, 41)  # no multiples of the steps
    found = errors(method_of, [0.3, 0.15, 0.075], times)
    rates = np.log2(found[:-1] / found[1:])
    assert np.all(rates > 3.6), rates


def test_the_interpolant_satisfies_the_conditions_of_order_4():
    """The eight conditions, at each place of a step, and those of the slopes at its ends."""
    rows = runge_kutta.TSITOURAS.rows
    stages = np.zeros((7, 7))
    for k, row in enumerate(rows):
        stages[k + 1, : len(row)] = row
    nodes = np.array([0.0, *runge_kutta.TSITOURAS.nodes])
    np.testing.assert_allclose(stages.sum(1), nodes, atol=1e-13)
    for theta in np.linspace(0, 1, 7):
        weights = np.array(runge_kutta.tsitouras_weights(theta))
        inner = stages @ nodes
        sums = [
            weights.sum(),
            weights @ nodes,
            weights @ nodes**2,
            weights @ inner,
            weights @ nodes**3,
            weights @ (nodes * inner),
            weights @ (stages @ nodes**2),
            weights @ (stages @ inner),
        ]
        powers = theta ** np.array([1, 2, 3, 3, 4, 4, 4, 4])
        np.testing.assert_allclose(sums, powers / [1, 2, 3, 6, 4, 8, 12, 24], atol=2e-12)
    np.testing.assert_allclose(runge_kutta.tsitouras_weights(1.0)[:6], rows[-1], atol=1e-12)
    np.testing.assert_allclose(np.sum(runge_kutta.TSITOURAS.error), 0, atol=1e-15)


def test_tolerances_bound_the_error_and_cost_steps():
    y0, want = np.array([1.0, 0.0]), reference(driven_in_numpy, [1.0, 0.0], [0, 10.0], 0.2)[-1]
    counts = []
    for tolerance in (1e-4, 1e-6, 1e-8):
        out = solve(driven, y0, (0.0, 10.0), 0.2, method=Tsit5(rtol=tolerance, atol=tolerance))
        assert np.abs(np.asarray(out.ys) - want).max() < 20 * tolerance
        counts.append(int(out.steps))
    # A hundredth of the error takes 2.5 times the steps of a method of order 5.
    ratios = np.array(counts[1:]) / counts[:-1]
    assert np.all((ratios > 1.7) & (ratios < 3.5)), counts


# --- events --------------------------------------------------------------------------------------


def fall(t, y):
    del t
    return jnp.stack([y[1], jnp.asarray(-9.81, y.dtype)])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("back", [False, True])
def test_an_event_stops_the_solve(method, back):
    height, end = 2.0, -3.0 if back else 3.0
    out = solve(
        fall, np.array([height, 1.0]), (0.0, end), method=METHODS[method], event=lambda t, y: y[0]
    )
    roots = np.roots([-9.81 / 2, 1.0, height])
    want = roots.min() if back else roots.max()
    assert out.status == Status.EVENT
    # The state is a polynomial of degree 2, which all interpolants have exactly.
    np.testing.assert_allclose(out.event_time, want, rtol=1e-12)
    np.testing.assert_allclose(out.ts, want, rtol=1e-12)
    np.testing.assert_allclose(out.ys, [0, 1 - 9.81 * want], atol=1e-12)


def test_rows_behind_an_event_are_those_of_the_event():
    ts = np.linspace(0, 2, 9)
    out = gf.jit(
        lambda y0: solve(
            driven, y0, ts, 0.1, method=TIGHT, event=lambda t, y, d: jnp.cos(t) - d - y[0]
        )
    )(np.array([0.2, 0.0]))
    path = scipy.integrate.solve_ivp(
        driven_in_numpy,
        (0, 2),
        [0.2, 0.0],
        "DOP853",
        rtol=1e-12,
        atol=1e-12,
        args=(0.1,),
        events=lambda t, y, d: np.cos(t) - d - y[0],
        dense_output=True,
    )
    want = path.t_events[0][0]
    np.testing.assert_allclose(out.event_time, want, atol=1e-8)
    np.testing.assert_allclose(out.ts, np.minimum(ts, want), atol=1e-8)
    np.testing.assert_allclose(out.ys, path.sol(np.minimum(ts, want)).T, atol=1e-7)
    assert out.status == Status.EVENT and 0.3 < want < 1.7


def test_an_event_at_the_start_is_none_and_one_that_never_comes_neither():
    up = solve(fall, np.array([0.0, 1.0]), (0.0, 3.0), event=lambda t, y: y[0], method=TIGHT)
    np.testing.assert_allclose(up.event_time, 2 / 9.81, rtol=1e-12)
    never = solve(fall, np.array([0.0, 1.0]), (0.0, 3.0), event=lambda t, y: y[0] - 9.0)
    assert never.status == Status.DONE and np.isnan(never.event_time)
    np.testing.assert_allclose(never.ys[0], 3 - 9.81 * 4.5, rtol=1e-10)


# --- ensembles -----------------------------------------------------------------------------------


def ensemble(count):
    rng = np.random.default_rng(count)
    y0 = tuple(rng.uniform(1, 2, (3, count)))
    return y0, rng.uniform(5, 13, count), np.exp(rng.uniform(-3, 3, count))


KINDS = {
    "span": lambda y, r, end: solve(lorenz, y, (0.0, end), r),
    "rk4": lambda y, r, end: solve(lorenz, y, (0.0, end), r, method=RK4(step=0.02)),
    "rows": lambda y, r, end: solve(lorenz, y, np.linspace(0, 1, 12) * end, r),
    "event": lambda y, r, end: solve(
        lorenz, y, (0.0, end), r, event=lambda t, y, r: y[2] - 0.7 * r
    ),
    "rows and event": lambda y, r, end: solve(
        lorenz, y, np.linspace(0, 1, 12) * end, r, event=lambda t, y, r: y[2] - 0.7 * r
    ),
    "vector": lambda y, r, end: solve(
        lambda t, y, r: jnp.stack(lorenz(t, (y[0], y[1], y[2]), r)), jnp.stack(y), (0.0, end), r
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_are_the_single_solves(kind):
    """Lanes of 9 to 600 steps, or of 5 to 12 up to an event; they may differ by roundings."""
    y0, rho, end = ensemble(20)
    one = gf.jit(KINDS[kind])
    many = gf.jit(gf.vmap(KINDS[kind]))(y0, rho, end)
    assert np.ptp(many.steps) > (5 if "event" in kind else 100)
    for k in range(20):
        single = one(tuple(leaf[k] for leaf in y0), rho[k], end[k])
        lane = gf.tree.map(lambda leaf, k=k: np.asarray(leaf[k]), many)
        assert lane.steps == single.steps and lane.status == single.status
        for a, b in zip(gf.tree.leaves(lane), gf.tree.leaves(single), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


class Lanes(NativeTarget):
    lane_loops = True


def loops_of(function, *args):
    """How many loops a program has inside of kernels, and outside."""
    program, _ = run_passes(gf.make_jaxpr(function)(*args), Lanes(), lambda *_: None)
    inside = sum(eqn.primitive is lane_program_p for eqn in program.eqns)
    outside = sum(isinstance(eqn.primitive.lower, Loop) for eqn in program.eqns)
    return inside, outside


@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_is_one_lane_loop(kind):
    """An event is located by a second one."""
    want = 2 if "event" in kind else 1
    assert loops_of(gf.vmap(KINDS[kind]), *ensemble(5)) == (want, 0)


def test_derivatives_of_an_ensemble_are_lane_loops():
    """Two forward: of the solve and of the tangents. Two in reverse: there and back."""
    y0, rho, end = ensemble(5)

    def last(y, r, end):
        return solve(lorenz, y, (0.0, end), r, method=Tsit5(), max_steps=200).ys[0]

    def tangent(y, r, end):
        return gf.jvp(lambda r: last(y, r, end), (r,), (jnp.ones_like(r),))

    assert loops_of(gf.vmap(tangent), y0, rho, end) == (2, 0)
    assert loops_of(gf.vmap(gf.grad(last, 1)), y0, rho, end) == (2, 0)


# --- derivatives ---------------------------------------------------------------------------------


def difference(f, x, k, h=1e-5):
    step = np.zeros_like(x)
    step[k] = h
    return (np.asarray(f(x + step)) - np.asarray(f(x - step))) / (2 * h)


def unpacked(kind, method):
    """A function of (y0, y1, rho, t0, t1), which are all that a solve depends on."""

    def span(x):
        return solve(driven, x[:2], (x[3], x[4]), x[2], method=method, max_steps=150).ys

    def rows(x):
        ts = x[3] + (x[4] - x[3]) * np.linspace(0, 1, 7) ** 2
        return solve(driven, x[:2], ts, x[2], method=method, max_steps=150).ys.ravel()

    def event(x):
        out = solve(
            driven,
            x[:2],
            (x[3], x[4] + 3),
            x[2],
            method=method,
            max_steps=400,
            event=lambda t, y, d: y[0] - 0.2 * t - d,
        )
        return jnp.append(out.ys, out.event_time)

    return {"span": span, "rows": rows, "event": event}[kind]


@pytest.mark.parametrize("method", ["tsit5", "rk4"])
@pytest.mark.parametrize("kind", ["span", "rows", "event"])
def test_derivatives(kind, method):
    """Forward, reverse and finite differences, in y0, an argument and the times.

    Lengths of steps are constants in the first two, and are not in differences: these differ by
    some tolerances.
    """
    f = unpacked(kind, {"tsit5": Tsit5(rtol=1e-9, atol=1e-9), "rk4": RK4(step=0.0101)}[method])
    x = np.array([1.0, 0.3, 0.2, 0.1, 1.3])
    f = gf.jit(f)
    forward, reverse = gf.jit(gf.jacfwd(f))(x), gf.jit(gf.jacrev(f))(x)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-9)
    want = np.stack([difference(f, x, k) for k in range(5)], -1)
    assert np.all(np.abs(want).max(0)[: 4 if kind == "event" else 5] > 1e-3)
    np.testing.assert_allclose(forward, want, rtol=1e-5, atol=2e-6)


def test_gradients_of_lanes_and_of_what_functions_close_over():
    y0, rho, end = ensemble(6)
    end = np.minimum(end, 2.0)

    def total(scale):
        def slope(t, y, rho):
            return tuple(scale * part for part in lorenz(t, y, rho))

        out = gf.vmap(lambda y, r, e: solve(slope, y, (0.0, e), r, method=TIGHT, max_steps=400))(
            y0, rho, end
        )
        return jnp.mean(out.ys[0] ** 2)

    got = gf.jit(gf.grad(total))(1.1)
    np.testing.assert_allclose(got, difference(gf.jit(total), np.array(1.1), ()), rtol=1e-6)
    np.testing.assert_allclose(got, gf.jit(gf.jacfwd(total))(1.1), rtol=1e-9)


def test_second_derivatives():
    def end_of(rate):
        return solve(lambda t, y, r: -r * y, 1.0, (0.0, 1.0), rate, method=TIGHT, max_steps=60).ys

    for second in (
        gf.grad(gf.grad(end_of)),
        gf.jacfwd(gf.grad(end_of)),
        gf.jacfwd(gf.jacfwd(end_of)),
    ):
        np.testing.assert_allclose(gf.jit(second)(0.7), np.exp(-0.7), rtol=1e-7)
    with pytest.raises(ValueError, match="loop of known length"):
        gf.jacrev(gf.jacfwd(end_of))(0.7)


def test_second_derivatives_of_the_time_of_an_event():
    """The time at which 1 decays to 1/2 is log(2) / rate."""

    def time(rate):
        return solve(
            lambda t, y, r: -r * y,
            1.0,
            (0.0, 5.0),
            rate,
            method=TIGHT,
            max_steps=60,
            event=lambda t, y, r: y - 0.5,
        ).event_time

    for order, function in enumerate((time, gf.grad(time), gf.grad(gf.grad(time)))):
        want = np.log(2) * [1, -1, 2][order] / 0.7 ** (order + 1)
        np.testing.assert_allclose(gf.jit(function)(0.7), want, rtol=1e-7)
    np.testing.assert_allclose(gf.jacfwd(gf.jacfwd(time))(0.7), np.log(2) * 2 / 0.7**3, rtol=1e-7)


def test_integers_among_arguments_have_no_derivative():
    def end_of(rate, power):
        out = solve(lambda t, y, r, p: -r * y**p, 1.0, (0.0, 1.0), rate, power, max_steps=60)
        return out.ys

    # dy/dt = -r y**2 has the solution 1 / (1 + r t).
    np.testing.assert_allclose(gf.grad(end_of)(0.5, 2), -1 / 1.5**2, rtol=1e-4)


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Tsit5(), RK4(step=0.01), Tsit5(step=0.01)])
@pytest.mark.parametrize("by_scan", [False, True])
def test_too_few_steps_are_said(method, by_scan):
    """One lane of two gets to its end; the other's state is nan, in reverse mode too."""
    ends = np.array([0.02, 50.0])

    def run(y):
        return gf.vmap(
            lambda e: solve(lambda t, y: -y * jnp.cos(t), y, (0.0, e), method=method, max_steps=9)
        )(ends)

    out = run(1.0)
    if by_scan:  # what reverse mode computes has no status, but values
        total, pull = gf.vjp(lambda y: run(y).ys, 1.0)
        np.testing.assert_allclose(pull(np.array([1.0, 0.0]))[0], np.exp(-np.sin(0.02)), rtol=1e-5)
        np.testing.assert_array_equal(np.isnan(total), [False, True])
    assert list(out.status) == [Status.DONE, Status.MAX_STEPS] and out.steps[1] == 9
    np.testing.assert_allclose(out.ys[0], np.exp(-np.sin(0.02)), rtol=1e-5)
    assert np.isnan(out.ys[1]) and np.isnan(out.event_time).all()


def test_rows_that_were_not_reached_are_nan():
    ts = np.linspace(0, 40, 21)
    out = solve(lambda t, y: -y * jnp.cos(t), 1.0, ts, method=TIGHT, max_steps=200)
    reached = ~np.isnan(np.asarray(out.ys))
    assert out.status == Status.MAX_STEPS and out.steps == 200
    assert 3 < reached.sum() < 18 and reached[: reached.sum()].all()
    np.testing.assert_allclose(out.ys[reached], np.exp(-np.sin(ts[reached])), atol=1e-7)


@pytest.mark.parametrize("method", [Tsit5(), RK4(step=0.1), Tsit5(step=0.1)])
def test_states_that_are_not_finite_fail(method):
    """A start that is nan, a slope that becomes nan, and a state that goes to infinity."""

    def run(f, y0):
        return gf.jit(lambda y: solve(f, y, (0.0, 2.0), method=method))(np.float64(y0))

    cases = [
        (lambda t, y: -y, np.nan),
        (lambda t, y: -jnp.sqrt(y) - 1, 1.0),
        (lambda t, y: y**2, 1.0),
    ]
    for f, y0 in cases:
        out = run(f, y0)
        assert out.status in (Status.FAILED, Status.MAX_STEPS) and np.isnan(out.ys)
    assert run(*cases[0]).status == Status.FAILED
    assert run(*cases[1]).status == Status.FAILED
    assert int(run(*cases[2]).steps) < 4096 or method.step is not None


@pytest.mark.parametrize("method", [Tsit5(), RK4(step=0.1)])
def test_times_and_events_that_are_wrong_fail(method):
    """Where they are traced, so that nothing can be raised."""

    def run(ts):
        return solve(lambda t, y: -y, 1.0, ts, method=method, max_steps=30)

    ts = np.array([0.0, 1.0, 0.05, 2.0])
    out = gf.jit(run)(ts)
    assert out.status == Status.FAILED
    np.testing.assert_allclose(out.ys, np.where(ts == 0.05, np.nan, np.exp(-ts)), rtol=1e-4)
    for end in (np.nan, np.inf):
        out = gf.jit(lambda end: run((0.0, end)))(end)
        assert out.status != Status.DONE and np.isnan(out.ys)
    out = solve(
        lambda t, y: -y, 1.0, (0.0, 2.0), method=method, event=lambda t, y: jnp.log(y - 0.5)
    )
    assert out.status == Status.FAILED and np.isnan(out.ys) and np.isnan(out.event_time)


@pytest.mark.parametrize("method", [Tsit5(), RK4(step=0.1)])
def test_a_span_of_nothing(method):
    for event in (None, lambda t, y: y - 3.0):
        out = solve(lambda t, y: -y, 2.0, (1.0, 1.0), method=method, event=event)
        assert out.status == Status.DONE and out.steps == 0 and out.ys == 2.0 and out.ts == 1.0
    rows = solve(lambda t, y: -y, 2.0, [1.0, 1.0, 1.5, 1.5], method=method)
    np.testing.assert_allclose(rows.ys, 2 * np.exp([0, 0, -0.5, -0.5]), rtol=1e-4)
    for ts in ((1.0, 1.0), [1.0, 1.0]):
        slope = gf.grad(lambda y, ts=ts: solve(lambda t, y: -y, y, ts, method=method).ys.sum())(2.0)
        assert slope == (1.0 if isinstance(ts, tuple) else 2.0)


def test_an_ensemble_of_nothing():
    out = gf.jit(gf.vmap(lambda y: solve(lambda t, y: -y, y, [0.0, 1.0, 2.0])))(np.zeros((0, 2)))
    assert out.ys.shape == (0, 3, 2) and out.status.shape == (0,)


def test_a_first_step_is_taken_and_equal_steps_are_counted():
    def steps_of(method, end=1.0):
        out = gf.jit(lambda e: solve(lambda t, y: -y, 1.0, (0.0, e), method=method))(end)
        return int(out.steps)

    assert steps_of(Tsit5(first_step=1e-6)) > steps_of(Tsit5(first_step=0.1)) + 3
    for end, count in ((1.0, 10), (0.3, 3), (1.01, 11), (-0.7, 7), (0.0, 0)):
        assert steps_of(RK4(step=0.1), end) == count
        assert int(solve(lambda t, y: -y, 1.0, (0.0, end), method=RK4(step=0.1)).steps) == count


def test_times_in_lists_and_of_other_dtypes():
    def end_of(ts):
        return solve(lambda t, y: -y, 1.0, ts, method=TIGHT)

    ends = [
        end_of([0, 1]).ys[1],
        end_of(np.array([0, 1])).ys[1],
        end_of((np.float32(0), 1)).ys,
        gf.jit(lambda a, b: end_of([a, 0.5, b]))(0.0, 1.0).ys[2],
        gf.jit(end_of)((0, 1)).ys,
    ]
    np.testing.assert_allclose(ends, np.exp(-1), rtol=1e-7)
    assert end_of((np.float32(0), np.float32(1))).ts.dtype == np.float32


def test_without_jit():
    with gf.disable_jit():
        out = solve(lorenz, (1.0, 1.0, 1.5), [0.0, 0.1, 0.2], 9.0)
    want = reference(lorenz, [1.0, 1.0, 1.5], np.array([0, 0.1, 0.2]), 9.0)
    np.testing.assert_allclose(np.stack(out.ys, 1), want, rtol=1e-4)


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: solve(f, 1.0, 3.0), ValueError, r"tuple \(t0, t1\) of scalars"),
        (lambda f: solve(f, 1.0, (0.0, 1.0, 2.0)), ValueError, "Fix: .t0, t1. for one state"),
        (lambda f: solve(f, 1.0, [0.0]), ValueError, "vector of two times or more"),
        (lambda f: solve(f, 1.0, [0.0, 2.0, 1.0]), ValueError, "ascend or descend; got .0. 2. 1"),
        (lambda f: solve(f, 1.0, (0.0, 1j)), TypeError, "times must be real"),
        (lambda f: solve(f, 1.0, (0.0, "1")), TypeError, "real numbers; got '1'"),
        (lambda f: solve(f, "y", (0.0, 1.0)), TypeError, "y0 must be an array"),
        (lambda f: solve(f, (), (0.0, 1.0)), TypeError, "y0 must have arrays"),
        (lambda f: solve(f, 1.0, (0.0, 1.0), "a"), TypeError, "args must be arrays"),
        (lambda f: solve(f, 1.0, (0.0, 1.0), max_steps=0), ValueError, "max_steps must be a posi"),
        (lambda f: solve(f, 1.0, (0.0, 1.0), method="RK4"), TypeError, "Tsit5 or an RK4; got 'RK4"),
        (lambda f: solve(f, 1.0, (0.0, 1.0), method=RK4(step=0)), ValueError, "step of a method"),
        (lambda f: solve(f, 1.0, (0.0, 1.0), method=RK4(step=None)), ValueError, "got None"),
        (lambda f: solve(f, 1.0, (0.0, 1.0), method=Tsit5(rtol=-1)), ValueError, "rtol of a meth"),
        (lambda f: solve(lambda t, y: (y, y), 1.0, (0.0, 1.0)), TypeError, "tree like the state"),
        (lambda f: solve(lambda t, y: y[None], 1.0, (0.0, 1.0)), TypeError, r"shape \(\)"),
        (lambda f: solve(lambda t, y: 1j * y, 1.0, (0.0, 1.0)), TypeError, "reals for a real"),
        (
            lambda f: solve(f, jnp.ones(2), (0.0, 1.0), event=lambda t, y: y),
            TypeError,
            "event must return a real scalar",
        ),
    ],
)
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call(lambda t, y: -y)
