"""Kernel density estimates with normal kernels.

Tests: tests/scipy_surface/test_stats_samples.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import gpuflow.numpy as jnp
from gpuflow import lax, random
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.numpy.exact_products import exact_matmul
from gpuflow.numpy.promotion import check_arraylike, promote_dtypes_inexact
from gpuflow.scipy.special.error_functions import ndtr
from gpuflow.scipy.special.sums import logsumexp
from gpuflow.tree_util import register_pytree_node_class

BandwidthMethod = None | str | float | Callable[["gaussian_kde"], Any]
_LOG_2_PI = math.log(2.0 * math.pi)


def _real(what: str, x: Any) -> Any:
    if dtypes.is_complex(aval_of(x).dtype):
        raise NotImplementedError(
            f"[gaussian_kde] {what} must be real, complex numbers are not supported; got "
            f"{aval_of(x)}. Fix: stack real and imaginary part as two dimensions."
        )
    return x


def _weights_of(weights: Any, count: int) -> Any:
    weights = jnp.atleast_1d(jnp.asarray(weights))
    check(
        weights.ndim == 1,
        lambda: (
            "[gaussian_kde] `weights` input should be one-dimensional; got "
            f"{aval_of(weights)}. Fix: jnp.ravel(weights)."
        ),
        ValueError,
    )
    check(
        weights.shape[0] == count,
        lambda: (
            f"[gaussian_kde] `weights` input should be of length {count}, the number of points; "
            f"got {weights.shape[0]}. Fix: one weight a point."
        ),
        ValueError,
    )
    return weights / jnp.sum(weights)


@register_pytree_node_class
class gaussian_kde:
    """A density estimate: normal distributions around the points of a sample.

    Args:
        dataset: f32[d, n] or f32[n], n points of d dimensions.
        bw_method: bandwidth: "scott" (default), "silverman", a number, or a function of the
            estimate.
        weights: f32[n], weights of the points; equal by default.

    Raises:
        NotImplementedError: if points are complex.
        ValueError: if there are fewer than two points, weights do not match, or the method is
            unknown.
    """

    __slots__ = ("covariance", "dataset", "inv_cov", "neff", "weights")

    neff: Any
    dataset: Any
    weights: Any
    covariance: Any
    inv_cov: Any

    def __init__(
        self, dataset: Any, bw_method: BandwidthMethod = None, weights: Any = None
    ) -> None:
        (dataset,) = check_arraylike("gaussian_kde", dataset)
        dataset = _real("dataset", jnp.atleast_2d(jnp.asarray(dataset)))
        check(
            dataset.size > 1,
            lambda: (
                "[gaussian_kde] `dataset` input should have multiple elements; got "
                f"{aval_of(dataset)}. Fix: at least two points."
            ),
            ValueError,
        )
        if weights is None:
            (dataset,) = promote_dtypes_inexact(dataset)
            weights = jnp.full(dataset.shape[1], 1.0 / dataset.shape[1], dataset.dtype)
        else:
            (weights,) = check_arraylike("gaussian_kde", weights)
            dataset, weights = promote_dtypes_inexact(dataset, weights)
            weights = _weights_of(weights, dataset.shape[1])
        self._set("dataset", dataset)
        self._set("weights", weights)
        self._set("neff", 1.0 / jnp.sum(jnp.square(weights)))
        factor = jnp.square(self._factor("scott" if bw_method is None else bw_method))
        covariance = jnp.atleast_2d(jnp.cov(dataset, rowvar=True, bias=False, aweights=weights))
        self._set("covariance", covariance * factor)
        self._set("inv_cov", jnp.linalg.inv(covariance) / factor)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        del value
        raise AttributeError(
            f"[gaussian_kde] estimates must not be changed; got a value for {name!r}. "
            "Fix: make another one."
        )

    def _factor(self, method: Any) -> Any:
        power = -1.0 / (self.d + 4)
        if isinstance(method, str):
            if method == "scott":
                return jnp.power(self.neff, power)
            if method == "silverman":
                return jnp.power(self.neff * (self.d + 2) / 4.0, power)
        elif callable(method):
            return method(self)
        elif jnp.isscalar(method):
            return method
        raise ValueError(
            "[gaussian_kde] `bw_method` should be 'scott', 'silverman', a scalar, or a callable; "
            f"got {method!r}. Fix: bw_method='scott'."
        )

    def tree_flatten(self) -> tuple[Any, None]:
        """Return the arrays, without static data."""
        return (self.neff, self.dataset, self.weights, self.covariance, self.inv_cov), None

    @classmethod
    def tree_unflatten(cls, aux_data: None, children: Any) -> gaussian_kde:
        """Create the estimate from its arrays."""
        del aux_data
        estimate = cls.__new__(cls)
        names = ("neff", "dataset", "weights", "covariance", "inv_cov")
        for name, child in zip(names, children, strict=True):
            estimate._set(name, child)
        return estimate

    @property
    def d(self) -> int:
        """The number of dimensions."""
        return self.dataset.shape[0]

    @property
    def n(self) -> int:
        """The number of points."""
        return self.dataset.shape[1]

    def _points(self, points: Any) -> Any:
        points = jnp.atleast_2d(_real("points", jnp.asarray(points)))
        d, m = points.shape
        if d != self.d and d == 1 and m == self.d:
            return points.reshape(self.d, 1)
        check(
            d == self.d,
            lambda: (
                f"[gaussian_kde] points must have the dimension of the dataset; points have "
                f"dimension {d}, dataset has dimension {self.d}. Fix: points of shape "
                f"({self.d}, m)."
            ),
            ValueError,
        )
        return points

    def _log_kernels(self, points: Any) -> Any:
        """The logarithm of each point's term, f32[m, n]."""
        data, points, precision = promote_dtypes_inexact(
            self.dataset.T, self._points(points).T, self.inv_cov
        )
        whitening = lax.linalg.cholesky(precision)
        data, points = exact_matmul(data, whitening), exact_matmul(points, whitening)
        log_norm = jnp.sum(jnp.log(jnp.diagonal(whitening))) - 0.5 * self.d * _LOG_2_PI
        squares = jnp.sum(jnp.square(points[:, None, :] - data[None, :, :]), -1)
        return log_norm - 0.5 * squares

    def evaluate(self, points: Any) -> Any:
        """Return the density at points f32[d, m] or f32[m]."""
        (points,) = check_arraylike("evaluate", points)
        return jnp.sum(self.weights[None, :] * jnp.exp(self._log_kernels(points)), -1)

    def __call__(self, points: Any) -> Any:
        return self.evaluate(points)

    def pdf(self, x: Any) -> Any:
        """Return the density at points f32[d, m] or f32[m]."""
        return self.evaluate(x)

    def logpdf(self, x: Any) -> Any:
        """Return the logarithm of the density at points f32[d, m] or f32[m]."""
        (x,) = check_arraylike("logpdf", x)
        return logsumexp(self._log_kernels(x) + jnp.log(self.weights)[None, :], axis=-1)

    def integrate_gaussian(self, mean: Any, cov: Any) -> Any:
        """Return the integral of the estimate times a normal density.

        Raises:
            ValueError: if the mean or covariance has another number of dimensions.
        """
        mean, cov = jnp.atleast_1d(jnp.squeeze(mean)), jnp.atleast_2d(cov)
        for name, value, shape in (("mean", mean, (self.d,)), ("covariance", cov, (self.d,) * 2)):
            check(
                value.shape == shape,
                lambda name=name, value=value, shape=shape: (
                    f"[integrate_gaussian] {name} does not have dimension {self.d}; got shape "
                    f"{value.shape}. Fix: shape {shape}."
                ),
                ValueError,
            )
        return self._convolve(self.covariance + cov, mean[:, None])[0]

    def _convolve(self, covariance: Any, centers: Any) -> Any:
        """The weighted sum of normal densities at the distances from each center, f32[m]."""
        root = lax.linalg.cholesky(covariance)
        offsets = centers[:, :, None] - self.dataset[:, None, :]
        flat = offsets.reshape(self.d, -1)
        scaled = lax.linalg.triangular_solve(root, flat, left_side=True, lower=True)
        squares = jnp.sum(jnp.square(scaled), 0).reshape(offsets.shape[1:])
        log_norm = jnp.sum(jnp.log(jnp.diagonal(root))) + 0.5 * self.d * _LOG_2_PI
        return jnp.sum(self.weights[None, :] * jnp.exp(-0.5 * squares - log_norm), -1)

    def integrate_box_1d(self, low: Any, high: Any) -> Any:
        """Return the probability of an interval.

        Raises:
            ValueError: if there are several dimensions, or limits are not scalars.
        """
        check(
            self.d == 1,
            lambda: (
                "[integrate_box_1d] the estimate must have one dimension, integrate_box_1d() only "
                f"handles 1D pdfs; got {self.d}. Fix: a one-dimensional dataset."
            ),
            ValueError,
        )
        check(
            jnp.ndim(low) == 0 and jnp.ndim(high) == 0,
            lambda: (
                "[integrate_box_1d] the limits of integration in integrate_box_1d must be scalars; "
                f"got {aval_of(low)}, {aval_of(high)}. Fix: vmap over the limits."
            ),
            ValueError,
        )
        sigma = jnp.sqrt(self.covariance[0, 0])
        low, high = ((limit - self.dataset[0]) / sigma for limit in (low, high))
        return jnp.sum(self.weights * (ndtr(high) - ndtr(low)))

    def integrate_kde(self, other: gaussian_kde) -> Any:
        """Return the integral of the product of two estimates.

        Raises:
            ValueError: if the estimates differ in dimension.
        """
        check(
            other.d == self.d,
            lambda: (
                "[integrate_kde] KDEs are not the same dimensionality; got "
                f"{self.d} and {other.d}. Fix: estimates of one dimension."
            ),
            ValueError,
        )
        small, large = (self, other) if self.n < other.n else (other, self)
        terms = large._convolve(self.covariance + other.covariance, small.dataset)
        return jnp.sum(terms * small.weights)

    def resample(self, key: Any, shape: tuple[int, ...] = ()) -> Any:
        """Return random samples of the estimate, f32[d, *shape]."""
        point_key, noise_key = random.split(key)
        indices = random.choice(point_key, self.n, shape=shape, p=self.weights)
        noise = random.multivariate_normal(
            noise_key,
            jnp.zeros(self.d, self.covariance.dtype),
            self.covariance,
            shape=shape,
            dtype=self.dataset.dtype,
        )
        return self.dataset[:, indices] + noise.T

    def integrate_box(self, low_bounds: Any, high_bounds: Any, maxpts: Any = None) -> NoReturn:
        """Not supported: there is no closed form; use ``integrate_box_1d``."""
        del low_bounds, high_bounds, maxpts
        raise NotImplementedError(
            "[integrate_box] only 1D box integrations are supported; got a box. "
            "Fix: use `integrate_box_1d`."
        )

    def set_bandwidth(self, bw_method: BandwidthMethod = None) -> NoReturn:
        """Not supported: estimates are immutable."""
        del bw_method
        raise NotImplementedError(
            "[set_bandwidth] dynamically changing the bandwidth method is not supported; got a "
            "method. Fix: gaussian_kde(dataset, bw_method)."
        )
