"""Derivatives of jnp's composed functions, against differences of their values."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp

X = np.random.default_rng(7).permutation(12).astype(np.float32).reshape(3, 4) / 4 + 0.3
V = X[0]
# Places between the points of V, where nothing jumps.
Q = np.array([0.1, 0.45, 0.8], np.float32)
NAN = np.where(X > 2.4, np.nan, X)

scaled_sums = jnp.vectorize(lambda a, b: a * b.sum(), signature="(),(n)->()")

# Functions of one array that are smooth around the given one.
CASES = {
    "angle": (lambda x: jnp.angle(x + 1j), X),
    "average": (lambda x: jnp.average(x, 0, weights=x[:, 0] + 1), X),
    "convolve": (lambda x: jnp.convolve(x[0], x[1]), X),
    "copysign": (lambda x: jnp.copysign(x, -1.0), X),
    "corrcoef": (jnp.corrcoef, X),
    "correlate": (lambda x: jnp.correlate(x[0], x[1], "full"), X),
    "cov": (jnp.cov, X),
    "cumulative_prod": (lambda x: jnp.cumulative_prod(x, axis=1), X),
    "cumulative_sum": (lambda x: jnp.cumulative_sum(x, axis=0, include_initial=True), X),
    "diff": (lambda x: jnp.diff(x, 2), X),
    "fmax": (lambda x: jnp.fmax(x, 1.4), X),
    "frexp": (lambda x: jnp.frexp(x)[0], X),
    "geomspace": (lambda x: jnp.geomspace(x[0], 9.0, 5), X),
    "gradient": (lambda x: jnp.gradient(x, axis=1), X),
    "histogram": (lambda x: jnp.histogram(V, 4, weights=x[0])[0], X),
    "i0": (jnp.i0, X),
    "insert": (lambda x: jnp.insert(x, 1, x[:, 0], 1), X),
    "interp": (lambda x: jnp.interp(Q, jnp.array([0.0, 0.4, 0.6, 1.0]), x[0]), X),
    "interp at": (lambda x: jnp.interp(x, jnp.array([0.01, 1.13, 1.97, 4.0]), V), X),
    "kaiser": (lambda x: jnp.kaiser(5, x[0, 0]), X),
    "ldexp": (lambda x: jnp.ldexp(x, 3), X),
    "logaddexp2": (lambda x: jnp.logaddexp2(x, 1.0), X),
    "logspace": (lambda x: jnp.logspace(x[0], 1.0, 4), X),
    "logaddexp.reduce": (jnp.logaddexp.reduce, X),
    "median": (lambda x: jnp.median(x, 1), X),
    "modf": (lambda x: jnp.modf(x)[0], X + 0.01),
    "multiply.accumulate": (jnp.multiply.accumulate, X),
    "nanmean": (lambda x: jnp.nanmean(jnp.where(NAN == NAN, x, jnp.nan), 1), X),
    "nanprod": (lambda x: jnp.nanprod(jnp.where(NAN == NAN, x, jnp.nan), 1), X),
    "nanvar": (lambda x: jnp.nanvar(jnp.where(NAN == NAN, x, jnp.nan)), X),
    "pad linear_ramp": (lambda x: jnp.pad(x, 2, "linear_ramp"), X),
    "pad mean": (lambda x: jnp.pad(x, 2, "mean"), X),
    "pad reflect": (lambda x: jnp.pad(x, 3, "reflect", reflect_type="odd"), X),
    "pad wrap": (lambda x: jnp.pad(x, ((1, 7), (0, 5)), "wrap"), X),
    "partition": (lambda x: jnp.partition(x, 1), X),
    "percentile": (lambda x: jnp.percentile(x, 30, axis=0), X),
    "piecewise": (lambda x: jnp.piecewise(x, [x < 1.4], [jnp.sin, jnp.cos]), X),
    "polyfit": (lambda x: jnp.polyfit(jnp.arange(4.0), x.T, 2), X),
    "polyint": (lambda x: jnp.polyint(x[0], 2), X),
    "polyval": (lambda x: jnp.polyval(x[0], x[1]), X),
    "polyval long": (lambda x: jnp.polyval(jnp.tile(x[0] / 9, 10), 0.9), X),
    "put_along_axis": (
        lambda x: jnp.put_along_axis(
            x, jnp.array([[1], [0], [2]]), x[:, :1] ** 2, 1, inplace=False
        ),
        X,
    ),
    "quantile": (lambda x: jnp.quantile(x, jnp.array([0.2, 0.7]), axis=1), X),
    "roll": (lambda x: jnp.roll(x, (1, -2), (0, 1)), X),
    "select": (lambda x: jnp.select([x < 1.1, x < 2.1], [x**2, x**3], 1.0), X),
    "sinc": (jnp.sinc, X),
    "subtract.reduce": (lambda x: jnp.subtract.reduce(x**2, 1), X),
    "trapezoid": (lambda x: jnp.trapezoid(x, jnp.array([0.0, 1, 3, 4])), X),
    "unwrap": (lambda x: jnp.unwrap(x * 1.7), X),
    "vectorize": (lambda x: scaled_sums(x[:, 0], x), X),
}


@pytest.mark.parametrize("name", list(CASES))
def test_derivative(name):
    """Along a random direction, forwards and backwards; differences in float64."""
    function, x = CASES[name]
    rng = np.random.default_rng(3)
    direction = rng.normal(size=x.shape)
    with gpuflow.enable_x64(True):
        at = jnp.asarray(x.astype(np.float64))

        def scalar(x):
            outs = function(x)
            outs = outs if isinstance(outs, list | tuple) else [outs]
            return sum(
                jnp.sum(jnp.real(out) * (1 + jnp.arange(out.size).reshape(out.shape) % 5))
                for out in outs
            )

        step = 1e-6
        ahead, behind = (float(scalar(at + s * step * direction)) for s in (1, -1))
        want = (ahead - behind) / (2 * step)
        backwards = float(jnp.sum(gpuflow.grad(scalar)(at) * direction))
        forwards = float(gpuflow.jvp(scalar, (at,), (jnp.asarray(direction),))[1])
        compiled = float(jnp.sum(gpuflow.jit(gpuflow.grad(scalar))(at) * direction))
    # Central differences of float64 lose half of its digits.
    np.testing.assert_allclose([backwards, forwards, compiled], want, rtol=1e-6, atol=1e-7)


def test_sinc_has_all_derivatives_at_zero():
    orders, function = [], jnp.sinc
    for _ in range(5):
        orders.append(float(function(0.0)))
        function = gpuflow.grad(function)
    np.testing.assert_allclose(orders, [1, 0, -(np.pi**2) / 3, 0, np.pi**4 / 5], rtol=1e-6)


def test_positions_have_no_derivative():
    def function(x):
        return (x * jnp.searchsorted(jnp.sort(x), x)).sum() + jnp.argsort(x).sum()

    np.testing.assert_allclose(gpuflow.grad(function)(jnp.asarray(V)), np.argsort(np.argsort(V)))
