"""Special functions. Each family is imported when one of its functions is first used.

Tests: tests/scipy_surface/test_special_rules.py, tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from gpuflow.base.names import missing_name as _missing_name

if TYPE_CHECKING:
    from gpuflow.scipy.special.bessel import bessel_jn as bessel_jn
    from gpuflow.scipy.special.bessel import i0 as i0
    from gpuflow.scipy.special.bessel import i0e as i0e
    from gpuflow.scipy.special.bessel import i1 as i1
    from gpuflow.scipy.special.bessel import i1e as i1e
    from gpuflow.scipy.special.complex_gamma import gamma as gamma
    from gpuflow.scipy.special.complex_gamma import loggamma as loggamma
    from gpuflow.scipy.special.error_functions import dawsn as dawsn
    from gpuflow.scipy.special.error_functions import erf as erf
    from gpuflow.scipy.special.error_functions import erfc as erfc
    from gpuflow.scipy.special.error_functions import erfcx as erfcx
    from gpuflow.scipy.special.error_functions import erfinv as erfinv
    from gpuflow.scipy.special.error_functions import log_ndtr as log_ndtr
    from gpuflow.scipy.special.error_functions import ndtr as ndtr
    from gpuflow.scipy.special.error_functions import ndtri as ndtri
    from gpuflow.scipy.special.error_functions import owens_t as owens_t
    from gpuflow.scipy.special.exponential_integrals import exp1 as exp1
    from gpuflow.scipy.special.exponential_integrals import expi as expi
    from gpuflow.scipy.special.exponential_integrals import expn as expn
    from gpuflow.scipy.special.exponential_integrals import sici as sici
    from gpuflow.scipy.special.faddeeva import wofz as wofz
    from gpuflow.scipy.special.gammas import beta as beta
    from gpuflow.scipy.special.gammas import betainc as betainc
    from gpuflow.scipy.special.gammas import betaln as betaln
    from gpuflow.scipy.special.gammas import comb as comb
    from gpuflow.scipy.special.gammas import digamma as digamma
    from gpuflow.scipy.special.gammas import factorial as factorial
    from gpuflow.scipy.special.gammas import gammainc as gammainc
    from gpuflow.scipy.special.gammas import gammaincc as gammaincc
    from gpuflow.scipy.special.gammas import gammaln as gammaln
    from gpuflow.scipy.special.gammas import gammasgn as gammasgn
    from gpuflow.scipy.special.gammas import multigammaln as multigammaln
    from gpuflow.scipy.special.gammas import poch as poch
    from gpuflow.scipy.special.gammas import polygamma as polygamma
    from gpuflow.scipy.special.harmonics import lpmn_values as lpmn_values
    from gpuflow.scipy.special.harmonics import sph_harm_y as sph_harm_y
    from gpuflow.scipy.special.hypergeometric import hyp1f1 as hyp1f1
    from gpuflow.scipy.special.hypergeometric import hyp2f1 as hyp2f1
    from gpuflow.scipy.special.integrals import fresnel as fresnel
    from gpuflow.scipy.special.integrals import spence as spence
    from gpuflow.scipy.special.logarithms import boxcox as boxcox
    from gpuflow.scipy.special.logarithms import boxcox1p as boxcox1p
    from gpuflow.scipy.special.logarithms import entr as entr
    from gpuflow.scipy.special.logarithms import expit as expit
    from gpuflow.scipy.special.logarithms import kl_div as kl_div
    from gpuflow.scipy.special.logarithms import logit as logit
    from gpuflow.scipy.special.logarithms import rel_entr as rel_entr
    from gpuflow.scipy.special.logarithms import xlog1py as xlog1py
    from gpuflow.scipy.special.logarithms import xlogy as xlogy
    from gpuflow.scipy.special.softmaxes import log_softmax as log_softmax
    from gpuflow.scipy.special.softmaxes import softmax as softmax
    from gpuflow.scipy.special.sums import logsumexp as logsumexp
    from gpuflow.scipy.special.zetas import bernoulli as bernoulli
    from gpuflow.scipy.special.zetas import zeta as zeta

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
    "harmonics": ("lpmn_values", "sph_harm_y"),
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


def _named(name: str) -> Any:
    family = _HOMES.get(name)
    if family is None:
        return _refuse(name)
    value = getattr(_import_module(f"{__name__}.{family}"), name)
    globals()[name] = value
    return value


# Not written down as such: type checkers would take the module for one that has every name.
globals().update(__getattr__=_named, __dir__=lambda: sorted(_HOMES))
