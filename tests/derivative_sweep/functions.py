"""Public elementwise functions and what they mean in mpmath."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
from mpmath import mp, mpf

Function = Callable[..., mpf]


def _cbrt(x: mpf) -> mpf:
    return mpmath.sign(x) * mpmath.cbrt(abs(x))


def _sigmoid(x: mpf) -> mpf:
    return 1 / (1 + mp.exp(-x)) if mp.re(x) > 0 else mp.exp(x) / (1 + mp.exp(x))


def _softplus(x: mpf) -> mpf:
    return max(x, mpf(0)) + mp.log1p(mp.exp(-abs(x)))


def _elu(x: mpf, alpha: float = 1.0) -> mpf:
    return x if x > 0 else alpha * mp.expm1(x)


def _ndtr(x: mpf) -> mpf:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _gelu_tanh(x: mpf) -> mpf:
    return x * _sigmoid(2 * mp.sqrt(2 / mp.pi) * (x + mpf("0.044715") * x**3))


def _clip(x: mpf, low: float, high: float) -> mpf:
    return min(max(x, mpf(low)), mpf(high))


def _sparse_plus(x: mpf) -> mpf:
    return mpf(0) if x <= -1 else x if x >= 1 else (x + 1) ** 2 / 4


def _erfcx(x: mpf) -> mpf:
    if x > 1e6:
        return 1 / (x * mp.sqrt(mp.pi)) * (1 - 1 / (2 * x * x) + 3 / (4 * x**4))
    return mp.exp(x * x) * mp.erfc(x)


def _log_ndtr(x: mpf) -> mpf:
    if x < -1e6:
        return -x * x / 2 + mp.log(_erfcx(-x / mp.sqrt(2)) / 2)
    return mp.log(_ndtr(x)) if x < 0 else mp.log1p(-_ndtr(-x))


def _entr(x: mpf) -> mpf:
    if x < 0:
        raise ValueError
    return -x * mp.log(x) if x else mpf(0)


def _sinc(x: mpf) -> mpf:
    return mp.sin(mp.pi * x) / (mp.pi * x) if x else mpf(1)


def _dawsn(x: mpf) -> mpf:
    if abs(x) > 1e3:
        return 1 / (2 * x) * (1 + 1 / (2 * x * x) + 3 / (4 * x**4) + 15 / (8 * x**6))
    return mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x)


def _log1mexp(x: mpf) -> mpf:
    return mp.log(-mp.expm1(-x))


_EXP = {
    "exp": mp.exp,
    "exp2": lambda x: mpf(2) ** x,
    "expm1": mp.expm1,
    "log": mp.log,
    "log1p": mp.log1p,
    "log2": lambda x: mp.log(x) / mp.log(2),
    "log10": lambda x: mp.log(x) / mp.log(10),
    "sqrt": mp.sqrt,
    "rsqrt": lambda x: 1 / mp.sqrt(x),
    "cbrt": _cbrt,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
}
_CIRCULAR = {
    "sin": mp.sin,
    "cos": mp.cos,
    "tan": mp.tan,
    "asin": mp.asin,
    "acos": mp.acos,
    "atan": mp.atan,
    "sinh": mp.sinh,
    "cosh": mp.cosh,
    "tanh": mp.tanh,
    "asinh": mp.asinh,
    "acosh": mp.acosh,
    "atanh": mp.atanh,
}
_STEPS = {
    "abs": abs,
    "negative": lambda x: -x,
    "positive": lambda x: x,
    "sign": mpmath.sign,
    "floor": mp.floor,
    "ceil": mp.ceil,
    "trunc": lambda x: mpmath.sign(x) * mp.floor(abs(x)),
}
UNARY: dict[str, Function] = {
    **{f"jnp.{name}": f for name, f in {**_EXP, **_CIRCULAR, **_STEPS}.items()
       if name not in ("rsqrt",)},
    "jnp.arcsin": mp.asin, "jnp.arccosh": mp.acosh, "jnp.fabs": abs, "jnp.sinc": _sinc,
    "jnp.i0": lambda x: mp.besseli(0, x), "jnp.deg2rad": lambda x: x * mp.pi / 180,
    "jnp.rad2deg": lambda x: x * 180 / mp.pi, "jnp.nan_to_num": lambda x: x,
    **{f"lax.{name}": f for name, f in {**_EXP, **_CIRCULAR}.items()
       if name not in ("log2", "log10")},
    "lax.neg": lambda x: -x, "lax.erf": mp.erf, "lax.erfc": mp.erfc, "lax.erf_inv": mp.erfinv,
    "lax.logistic": _sigmoid, "lax.lgamma": lambda x: mp.log(abs(mp.gamma(x))),
    "lax.digamma": mp.digamma,
    "lax.bessel_i0e": lambda x: mp.exp(-abs(x)) * mp.besseli(0, x),
    "lax.bessel_i1e": lambda x: mp.exp(-abs(x)) * mp.besseli(1, x),
    "nn.relu": lambda x: max(x, mpf(0)), "nn.relu6": lambda x: _clip(x, 0, 6),
    "nn.sigmoid": _sigmoid, "nn.silu": lambda x: x * _sigmoid(x), "nn.tanh": mp.tanh,
    "nn.softplus": _softplus, "nn.log_sigmoid": lambda x: -_softplus(-x),
    "nn.soft_sign": lambda x: x / (1 + abs(x)),
    "nn.mish": lambda x: x * mp.tanh(_softplus(x)), "nn.gelu": _gelu_tanh,
    "gelu_exact": lambda x: x * _ndtr(x), "nn.leaky_relu": lambda x: x if x >= 0 else x / 100,
    "nn.elu": _elu, "nn.celu": _elu,
    "nn.selu": lambda x: mpf(1.0507009873554805) * _elu(x, mpf(1.6732632423543772)),
    "nn.hard_sigmoid": lambda x: _clip(x + 3, 0, 6) / 6,
    "nn.hard_tanh": lambda x: _clip(x, -1, 1), "nn.identity": lambda x: x,
    "nn.hard_silu": lambda x: x * _clip(x + 3, 0, 6) / 6,
    "nn.squareplus": lambda x: (x + mp.sqrt(x * x + 4)) / 2, "nn.sparse_plus": _sparse_plus,
    "nn.sparse_sigmoid": lambda x: _clip((x + 1) / 2, 0, 1), "nn.log1mexp": _log1mexp,
    "special.dawsn": _dawsn, "special.entr": _entr, "special.erfcx": _erfcx,
    "special.expit": _sigmoid, "special.logit": lambda x: mp.log(x / (1 - x)),
    "special.ndtr": _ndtr, "special.log_ndtr": _log_ndtr,
    "special.ndtri": lambda x: mp.sqrt(2) * mp.erfinv(2 * x - 1),
    "special.gamma": mp.gamma, "special.gammaln": lambda x: mp.log(abs(mp.gamma(x))),
    "special.factorial": lambda x: mp.gamma(x + 1) if x >= 0 else mpf(0),
    "special.i0": lambda x: mp.besseli(0, x), "special.i1": lambda x: mp.besseli(1, x),
    "special.i0e": lambda x: mp.exp(-abs(x)) * mp.besseli(0, x),
    "special.i1e": lambda x: mp.exp(-abs(x)) * mp.besseli(1, x),
}  # fmt: skip
# What mpmath computes for moderate operands only, with the largest.
LIMITED = {
    "jnp.i0": 50,
    "lax.bessel_i0e": 50,
    "lax.bessel_i1e": 50,
    "special.i0": 50,
    "special.i1": 50,
    "special.i0e": 50,
    "special.i1e": 50,
    "special.dawsn": 1e3,
    "jnp.sinc": 200,
    **{f"{m}.{n}": 1e10 for m in ("jnp", "lax") for n in ("sin", "cos", "tan")},
    "special.gamma": 200,
    "special.factorial": 200,
}


def _log_sum(x: mpf, y: mpf, base: mpf) -> mpf:
    return max(x, y) + mp.log1p(base ** -abs(x - y)) / mp.log(base)


def _pow(x: mpf, y: mpf) -> mpf:
    if x == 0:
        return mpf(1) if y == 0 else mpf(0) if y > 0 else mpf("inf")
    if x < 0 and y != mp.floor(y):
        raise ValueError
    return mp.power(x, y)


def _xlogy(x: mpf, y: mpf) -> mpf:
    return mpf(0) if x == 0 else x * mp.log(y)


def _copysign(x: mpf, y: mpf) -> mpf:
    return abs(x) if y >= 0 else -abs(x)


BINARY: dict[str, Function] = {
    "jnp.add": lambda x, y: x + y,
    "jnp.subtract": lambda x, y: x - y,
    "jnp.multiply": lambda x, y: x * y,
    "jnp.divide": lambda x, y: x / y,
    "jnp.power": _pow,
    "lax.pow": _pow,
    "jnp.float_power": _pow,
    "jnp.maximum": max,
    "jnp.minimum": min,
    "jnp.fmax": max,
    "jnp.fmin": min,
    "jnp.hypot": lambda x, y: mp.sqrt(x * x + y * y),
    "jnp.arctan2": mp.atan2,
    "jnp.logaddexp": lambda x, y: _log_sum(x, y, mp.e),
    "jnp.logaddexp2": lambda x, y: _log_sum(x, y, mpf(2)),
    "jnp.copysign": _copysign,
    "jnp.mod": lambda x, y: x - y * mp.floor(x / y),
    "jnp.fmod": lambda x, y: x - y * mpmath.sign(x / y) * mp.floor(abs(x / y)),
    "special.xlogy": _xlogy,
    "special.xlog1py": lambda x, y: _xlogy(x, 1 + y),
    "special.kl_div": lambda x, y: (x * mp.log(x / y) if x else 0) - x + y,
    "special.rel_entr": lambda x, y: x * mp.log(x / y) if x else mpf(0),
    "special.boxcox": lambda x, y: (_pow(x, y) - 1) / y if y else mp.log(x),
    "special.boxcox1p": lambda x, y: mp.expm1(y * mp.log1p(x)) / y if y else mp.log1p(x),
    "nn.celu": lambda x, a: max(x, mpf(0)) + min(mpf(0), a * mp.expm1(x / a)),
    "nn.elu": lambda x, a: x if x > 0 else a * mp.expm1(x),
    "nn.leaky_relu": lambda x, a: x if x >= 0 else a * x,
    "nn.squareplus": lambda x, b: (x + mp.sqrt(x * x + b)) / 2,
}
# Of these, second derivatives too.
TWICE = [
    name for name in UNARY
    if name.startswith("nn.") or name in (
        "gelu_exact", "jnp.exp", "jnp.log", "jnp.log1p", "jnp.sinh", "jnp.arctan", "jnp.sinc",
        "jnp.asinh", "jnp.atan", "jnp.square", "lax.erf", "lax.erfc", "special.ndtr",
        "special.entr", "special.i0", "special.logit",
    )
]  # fmt: skip
HOLOMORPHIC = [
    f"lax.{name}" for name in (*_EXP, *_CIRCULAR) if name not in ("cbrt", "log2", "log10", "exp2")
] + ["jnp.log2", "jnp.log10", "jnp.exp2", "jnp.sinc", "nn.silu", "lax.logistic"]
