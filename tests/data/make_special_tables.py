"""Write gpuflow/scipy/special/tables.py: Chebyshev series of functions without closed form.

Run it with mpmath installed. Each series is the interpolant at Chebyshev nodes in 40 digits, cut
where its terms no longer count in float64. ``x = low + reach (1 + t) / (1 - t)`` maps -1 <= t < 1
to all x >= low; ``LOW`` and ``REACH`` are named beside the tables that use them.

Source: J. P. Boyd, Chebyshev and Fourier Spectral Methods, 2001, section 17.8 (rational maps).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpmath import mp, mpf

mp.dps = 40
_TARGET = Path(__file__).parents[2] / "gpuflow" / "scipy" / "special" / "tables.py"
_NODES = 72
_EI_ROOT = mp.findroot(mp.ei, 0.3725)
_CI_ROOT = mp.findroot(mp.ci, 0.6165)


def chebyshev(function: Callable[[Any], Any]) -> list[Any]:
    """The coefficients of ``function`` on [-1, 1], the first one halved already."""
    angles = [mp.pi * (k + mpf(1) / 2) / _NODES for k in range(_NODES)]
    values = [function(mp.cos(angle)) for angle in angles]
    coefficients = [
        2 * mp.fsum(v * mp.cos(j * a) for v, a in zip(values, angles, strict=True)) / _NODES
        for j in range(_NODES)
    ]
    coefficients[0] /= 2
    scale = max(map(abs, coefficients))
    while abs(coefficients[-1]) < scale * mpf(2) ** -56:
        coefficients.pop()
    if len(coefficients) > _NODES - 4:
        raise ValueError("the series does not converge: split the interval")
    return coefficients


def line(low: Any, high: Any) -> Callable[[Any], Any]:
    return lambda t: (mpf(high) + mpf(low)) / 2 + (mpf(high) - mpf(low)) / 2 * t


def ray(low: Any, reach: Any) -> Callable[[Any], Any]:
    return lambda t: mpf(low) + mpf(reach) * (1 + t) / (1 - t)


def _erfcx(x: Any) -> Any:
    return (x + 2) * mp.exp(x * x) * mp.erfc(x)


def _dawson(x: Any) -> Any:
    return mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x)


def _si_f(x: Any) -> Any:
    return x * (mp.ci(x) * mp.sin(x) + (mp.pi / 2 - mp.si(x)) * mp.cos(x))


def _si_g(x: Any) -> Any:
    return x * x * (-mp.ci(x) * mp.cos(x) + (mp.pi / 2 - mp.si(x)) * mp.sin(x))


def _fresnel_f(square: Any) -> Any:
    x, angle = mp.sqrt(square), mp.pi * square / 2
    s, c = mpf(1) / 2 - mp.fresnels(x), mpf(1) / 2 - mp.fresnelc(x)
    return mp.pi * x * (s * mp.cos(angle) - c * mp.sin(angle))


def _fresnel_g(square: Any) -> Any:
    x, angle = mp.sqrt(square), mp.pi * square / 2
    s, c = mpf(1) / 2 - mp.fresnels(x), mpf(1) / 2 - mp.fresnelc(x)
    return mp.pi**2 * x**3 * (c * mp.cos(angle) + s * mp.sin(angle))


def _normal_quantile(p: Any) -> Any:
    return mp.sqrt(2) * mp.erfinv(2 * p - 1)


def _quantile_of_depth(z: Any) -> Any:
    """``z - x`` where the normal distribution below -x is ``exp(-z**2 / 2)``."""
    goal = -z * z / 2
    x = z - mp.log(z * mp.sqrt(2 * mp.pi)) / z
    for _ in range(60):
        tail = mp.erfc(x / mp.sqrt(2)) / 2
        step = (mp.log(tail) - goal) * tail * mp.sqrt(2 * mp.pi) * mp.exp(x * x / 2)
        x += step
        if abs(step) < mpf(10) ** -36:
            break
    return z - x


def _stirling(x: Any) -> Any:
    rest = mp.loggamma(x) - ((x - mpf(1) / 2) * mp.log(x) - x + mp.log(2 * mp.pi) / 2)
    return (x + 1) * rest


def _atanh_rest(square: Any) -> Any:
    v = mp.sqrt(square)
    return (mp.atanh(v) - v) / v**3


def _bessel_far(order: int) -> Callable[[Any], Any]:
    return lambda u: mp.exp(-1 / u) * mp.besseli(order, 1 / u) / mp.sqrt(u)


TABLES = {
    "ERFCX": ("(x + 2) erfcx(x), x = ray(0, 2)", _erfcx, ray(0, 2)),
    "NORMAL": ("(ndtr(x) - 1/2) / x, x**2 in (0, 1)",
               lambda u: mp.erf(mp.sqrt(u / 2)) / mp.sqrt(u) / 2, line(0, 1)),
    "DAWSON_NEAR": ("dawsn(x) / x, x**2 in (0, 6.25)",
                    lambda u: _dawson(mp.sqrt(u)) / mp.sqrt(u), line(0, 6.25)),
    "DAWSON_MIDDLE": ("x dawsn(x), x in (2.5, 5)", lambda x: x * _dawson(x), line(2.5, 5)),
    "DAWSON_FAR": ("x dawsn(x), 1 / x**2 in (0, 1/25)",
                   lambda u: _dawson(1 / mp.sqrt(u)) / mp.sqrt(u), line(0, mpf(1) / 25)),
    "E1_NEAR": ("exp1(x) + log(x), x in (0, 1)", lambda x: mp.e1(x) + mp.log(x), line(0, 1)),
    "E1_FAR": ("x exp(x) exp1(x), x = ray(1, 4)", lambda x: x * mp.exp(x) * mp.e1(x), ray(1, 4)),
    "EI_NEAR": ("(expi(x) - log(x / root)) / (x - root), x in (0, 4)",
                lambda x: (mp.ei(x) - mp.log(x / _EI_ROOT)) / (x - _EI_ROOT), line(0, 4)),
    "EI_MIDDLE": ("x exp(-x) expi(x), x in (4, 12)",
                  lambda x: x * mp.exp(-x) * mp.ei(x), line(4, 12)),
    "EI_LARGE": ("x exp(-x) expi(x), 1 / x in (1/40, 1/12)",
                 lambda u: mp.exp(-1 / u) * mp.ei(1 / u) / u, line(mpf(1) / 40, mpf(1) / 12)),
    "EI_FAR": ("x exp(-x) expi(x), 1 / x in (0, 1/40)",
               lambda u: mp.exp(-1 / u) * mp.ei(1 / u) / u, line(0, mpf(1) / 40)),
    "SI_NEAR": ("Si(x) / x, x**2 in (0, 16)",
                lambda u: mp.si(mp.sqrt(u)) / mp.sqrt(u), line(0, 16)),
    "CI_NEAR": ("(Ci(x) - log(x / root)) / (x - root), x in (0, 4)",
                lambda x: (mp.ci(x) - mp.log(x / _CI_ROOT)) / (x - _CI_ROOT), line(0, 4)),
    "SI_F": ("x f(x), x = ray(4, 12)", _si_f, ray(4, 12)),
    "SI_G": ("x**2 g(x), x = ray(4, 12)", _si_g, ray(4, 12)),
    "FRESNEL_C": ("C(x) / x, x**4 in (0, 6.25)",
                  lambda u: mp.fresnelc(u ** mpf(0.25)) / u ** mpf(0.25), line(0, 6.25)),
    "FRESNEL_S": ("S(x) / x**3, x**4 in (0, 6.25)",
                  lambda u: mp.fresnels(u ** mpf(0.25)) / u ** mpf(0.75), line(0, 6.25)),
    "FRESNEL_F": ("pi x f(x), x**2 = ray(2.5, 6)", _fresnel_f, ray(2.5, 6)),
    "FRESNEL_G": ("pi**2 x**3 g(x), x**2 = ray(2.5, 6)", _fresnel_g, ray(2.5, 6)),
    "DILOGARITHM": ("-spence(1 + w) / w, w in (-1/2, 1/2)",
                    lambda w: -mp.polylog(2, -w) / w, line(-0.5, 0.5)),
    "QUANTILE_CENTER": ("ndtri(w + 1/2) / w, w**2 in (0, 0.1406)",
                        lambda u: _normal_quantile(mp.sqrt(u) + mpf(1) / 2) / mp.sqrt(u),
                        line(0, mpf("0.140625"))),
    "QUANTILE_TAIL": ("z + ndtri(exp(-z**2 / 2)), z in (1.99, 8)",
                      _quantile_of_depth, line("1.99", 8)),
    "QUANTILE_FAR": ("z + ndtri(exp(-z**2 / 2)), 1 / z in (1/40, 1/8)",
                     lambda u: _quantile_of_depth(1 / u), line(mpf(1) / 40, mpf(1) / 8)),
    "INVERSE_GAMMA": ("1 / gamma(x), x in (1, 2)", mp.rgamma, line(1, 2)),
    "STIRLING": ("(x + 1) delta(x), x = ray(1, 2); delta is gammaln less Stirling's formula",
                 _stirling, ray(1, 2)),
    "ATANH": ("(atanh(v) - v) / v**3, v**2 in (0, 1/9)", _atanh_rest, line(0, mpf(1) / 9)),
    "I0E_NEAR": ("i0e(x), x in (0, 4)", lambda x: mp.exp(-x) * mp.besseli(0, x), line(0, 4)),
    "I0E_FAR": ("sqrt(x) i0e(x), 1 / x in (0, 1/4)", _bessel_far(0), line(0, mpf(1) / 4)),
    "I1E_NEAR": ("i1e(x) / x, x in (0, 4)",
                 lambda x: mp.exp(-x) * mp.besseli(1, x) / x, line(0, 4)),
    "I1E_FAR": ("sqrt(x) i1e(x), 1 / x in (0, 1/4)", _bessel_far(1), line(0, mpf(1) / 4)),
}  # fmt: skip


def _two_parts(x: Any) -> tuple[float, float]:
    """``x`` as a float32 and the rest, for differences without cancellation."""
    high = float(np.float32(float(x)))
    return high, float(x - mpf(high))


def main() -> None:
    """Write the file."""
    lines = [
        '"""Chebyshev series, written by tests/data/make_special_tables.py, which says how."""',
        "",
        "from __future__ import annotations",
        "",
        "# ray(low, reach): x = low + reach (1 + t) / (1 - t); (a, b): a line, -1 is a and 1 is b.",
        "",
        "# Where expi and the cosine integral are 0, in two parts.",
        f"EI_ROOT = {_two_parts(_EI_ROOT)}",
        f"CI_ROOT = {_two_parts(_CI_ROOT)}",
    ]
    for name, (text, function, place) in TABLES.items():
        series = chebyshev(lambda t, f=function, p=place: f(p(t)))
        print(name, len(series))
        numbers = ", ".join(repr(float(c)) for c in series) + ","
        lines += ["", f"# {text}", f"{name} = ("]
        lines += textwrap.wrap(
            numbers, 96, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
        )
        lines.append(")  # fmt: skip")
    _TARGET.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
