"""Statistical distributions and functions, with SciPy's names; each is imported when asked for."""

from gpuflow.base.names import missing_name as _missing_name
from gpuflow.scipy.stats.density_estimate import gaussian_kde as gaussian_kde
from gpuflow.scipy.stats.samples import mode as mode
from gpuflow.scipy.stats.samples import rankdata as rankdata
from gpuflow.scipy.stats.samples import sem as sem

_MODULES = (
    "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma",
    "gennorm", "geom", "gumbel_l", "gumbel_r", "laplace", "logistic", "multinomial",
    "multivariate_normal", "nbinom", "norm", "pareto", "poisson", "t", "truncnorm", "uniform",
    "vonmises", "wrapcauchy",
)  # fmt: skip
_FUNCTIONS = ("gaussian_kde", "mode", "rankdata", "sem")
__getattr__ = _missing_name(__name__, "stats", _FUNCTIONS, _MODULES)
