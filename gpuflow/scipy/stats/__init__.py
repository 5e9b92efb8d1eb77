"""Statistical distributions and functions, with SciPy's names, imported on first use."""

from typing import TYPE_CHECKING

from gpuflow.base.names import publish as _publish
from gpuflow.scipy.stats.density_estimate import gaussian_kde as gaussian_kde
from gpuflow.scipy.stats.samples import mode as mode
from gpuflow.scipy.stats.samples import rankdata as rankdata
from gpuflow.scipy.stats.samples import sem as sem

if TYPE_CHECKING:
    from gpuflow.scipy.stats import bernoulli as bernoulli
    from gpuflow.scipy.stats import beta as beta
    from gpuflow.scipy.stats import betabinom as betabinom
    from gpuflow.scipy.stats import binom as binom
    from gpuflow.scipy.stats import cauchy as cauchy
    from gpuflow.scipy.stats import chi2 as chi2
    from gpuflow.scipy.stats import dirichlet as dirichlet
    from gpuflow.scipy.stats import expon as expon
    from gpuflow.scipy.stats import gamma as gamma
    from gpuflow.scipy.stats import gennorm as gennorm
    from gpuflow.scipy.stats import geom as geom
    from gpuflow.scipy.stats import gumbel_l as gumbel_l
    from gpuflow.scipy.stats import gumbel_r as gumbel_r
    from gpuflow.scipy.stats import laplace as laplace
    from gpuflow.scipy.stats import logistic as logistic
    from gpuflow.scipy.stats import multinomial as multinomial
    from gpuflow.scipy.stats import multivariate_normal as multivariate_normal
    from gpuflow.scipy.stats import nbinom as nbinom
    from gpuflow.scipy.stats import norm as norm
    from gpuflow.scipy.stats import pareto as pareto
    from gpuflow.scipy.stats import poisson as poisson
    from gpuflow.scipy.stats import t as t
    from gpuflow.scipy.stats import truncnorm as truncnorm
    from gpuflow.scipy.stats import uniform as uniform
    from gpuflow.scipy.stats import vonmises as vonmises
    from gpuflow.scipy.stats import wrapcauchy as wrapcauchy

_MODULES = (
    "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma",
    "gennorm", "geom", "gumbel_l", "gumbel_r", "laplace", "logistic", "multinomial",
    "multivariate_normal", "nbinom", "norm", "pareto", "poisson", "t", "truncnorm", "uniform",
    "vonmises", "wrapcauchy",
)  # fmt: skip
_FUNCTIONS = ("gaussian_kde", "mode", "rankdata", "sem")
_publish(globals(), "stats", _FUNCTIONS, _MODULES)
