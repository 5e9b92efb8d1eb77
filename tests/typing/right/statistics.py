"""scipy: distributions, special functions, linear algebra, optimization, signals."""

import gpuflow.numpy as jnp
import gpuflow.scipy as scipy
from gpuflow import Array
from gpuflow.scipy import stats
from gpuflow.scipy.optimize import minimize
from gpuflow.scipy.special import gammaln, logsumexp


def rosenbrock(x: Array) -> Array:
    return ((1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2).sum()


x = jnp.linspace(0.1, 1.0, 5)
print(stats.norm.logpdf(x, loc=0.5, scale=2.0), stats.beta.pdf(x, 2.0, 3.0), gammaln(x))
print(logsumexp(x), scipy.special.erf(x), scipy.special.expit(x), scipy.signal.convolve(x, x))
factor = scipy.linalg.cho_factor(jnp.eye(2))
print(scipy.linalg.cho_solve(factor, jnp.ones(2)), scipy.linalg.expm(jnp.eye(2)))
result = minimize(rosenbrock, jnp.zeros(2), method="BFGS")
print(result.x, result.success, scipy.fft.dct(x), stats.poisson.pmf(2, 1.5))
