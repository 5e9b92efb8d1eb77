"""Special functions. Each family is imported when one of its functions is first asked for."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any

from gpuflow.base.names import missing_name as _missing_name

_FAMILIES = {
    "bessel": ("bessel_jn", "i0", "i0e", "i1", "i1e"),
    "complex_gamma": ("gamma", "loggamma"),
    "error_functions": (
        "dawsn", "erf", "erfc", "erfcx", "erfinv", "log_ndtr", "ndtr", "ndtri", "owens_t",
    ),
    "exponential_integrals": ("exp1", "expi", "expn", "sici"),
    "faddeeva": ("wofz",),
    "integrals": ("fresnel", "spence"),
    "gammas": (
        "beta", "betainc", "betaln", "comb", "digamma", "factorial", "gammainc", "gammaincc",
        "gammaln", "gammasgn", "multigammaln", "poch", "polygamma",
    ),
    "harmonics": ("sph_harm_y",),
    "hypergeometric": ("hyp1f1", "hyp2f1"),
    "logarithms": (
        "boxcox", "boxcox1p", "entr", "expit", "kl_div", "logit", "rel_entr", "xlog1py", "xlogy",
    ),
    "softmaxes": ("log_softmax", "softmax"),
    "sums": ("logsumexp",),
    "zetas": ("bernoulli", "zeta"),
}  # fmt: skip

_HOMES = {name: family for family, names in _FAMILIES.items() for name in names}
_refuse = _missing_name(__name__, "special", _HOMES)


def __getattr__(name: str) -> Any:
    family = _HOMES.get(name)
    if family is None:
        return _refuse(name)
    value = getattr(_import_module(f"{__name__}.{family}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
