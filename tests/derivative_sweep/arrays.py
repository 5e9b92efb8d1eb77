"""Public functions of arrays, and what they mean on lists of mpmath's numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mpmath
from mpmath import mp, mpf

import gpuflow.numpy as jnp
from gpuflow import lax, nn, ops
from gpuflow.scipy import special

Numbers = list[mpf]
SEGMENTS = [1, 0, 1, 1]
WEIGHTS = [1.0, 3.0, 2.0, 2.0]


def _log_sum(x: Numbers) -> mpf:
    largest = max(x)
    return largest + mp.log(sum(mp.exp(v - largest) for v in x))


def _softmax(x: Numbers) -> Numbers:
    total = _log_sum(x)
    return [mp.exp(v - total) for v in x]


def _running(combine: Callable[[Numbers], mpf]) -> Callable[[Numbers], Numbers]:
    return lambda x: [combine(x[: k + 1]) for k in range(len(x))]


def _norm(p: float) -> Callable[[Numbers], mpf]:
    return lambda x: sum(abs(v) ** p for v in x) ** (1 / mpf(p))


def _mean(x: Numbers) -> mpf:
    return sum(x) / len(x)


def _variance(x: Numbers) -> mpf:
    return _mean([(v - _mean(x)) ** 2 for v in x])


def _segments(combine: Callable[[Numbers], mpf]) -> Callable[[Numbers], Numbers]:
    return lambda x: [
        combine([v for v, k in zip(x, SEGMENTS, strict=True) if k == segment]) for segment in (0, 1)
    ]


def _matrix(function: Callable[[Any], Any]) -> Callable[[Numbers], Any]:
    """A function of 2x2 matrices that are given row by row."""

    def of_list(x: Numbers) -> Any:
        out = function(mpmath.matrix([x[:2], x[2:]]))
        return [out[k, j] for k in range(2) for j in range(2)] if hasattr(out, "rows") else out

    return of_list


def _det(a: Any) -> mpf:
    return a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0]


def _inverse(a: Any) -> Any:
    return mpmath.matrix([[a[1, 1], -a[0, 1]], [-a[1, 0], a[0, 0]]]) / _det(a)


def _nuclear(a: Any) -> mpf:
    """The sum of both singular values: its square is ``|A|_F^2 + 2 |det A|``."""
    return mp.sqrt(sum(v * v for v in a) + 2 * abs(_det(a)))


def _eigenvalues(a: Any) -> Numbers:
    """Of the symmetric part."""
    off = (a[0, 1] + a[1, 0]) / 2
    mean, half = (a[0, 0] + a[1, 1]) / 2, (a[0, 0] - a[1, 1]) / 2
    root = mp.sqrt(half * half + off * off)
    return [mean - root, mean + root]


def _square(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(x.reshape(2, 2))


def _ids() -> Any:
    return jnp.array(SEGMENTS)


# name -> (function of a vector of 4 numbers, its meaning)
VECTORS: dict[str, tuple[Callable[[Any], Any], Callable[[Numbers], Any]]] = {
    "sum": (jnp.sum, sum), "mean": (jnp.mean, _mean), "prod": (jnp.prod, mpmath.fprod),
    "max": (jnp.max, max), "min": (jnp.min, min), "ptp": (jnp.ptp, lambda x: max(x) - min(x)),
    "nansum": (jnp.nansum, sum), "nanmax": (jnp.nanmax, max), "nanprod": (jnp.nanprod, mp.fprod),
    "var": (jnp.var, _variance), "std": (jnp.std, lambda x: mp.sqrt(_variance(x))),
    "median": (jnp.median, lambda x: _mean(sorted(x)[1:3])),
    "quantile": (lambda x: jnp.quantile(x, 0.25),
                 lambda x: sorted(x)[0] * 0.25 + sorted(x)[1] * 0.75),
    "average": (lambda x: jnp.average(x, weights=jnp.array(WEIGHTS, x.dtype)),
                lambda x: sum(v * w for v, w in zip(x, WEIGHTS, strict=True)) / 8),
    "cumsum": (jnp.cumsum, _running(sum)), "cumprod": (jnp.cumprod, _running(mpmath.fprod)),
    "cummax": (lax.cummax, _running(max)), "cummin": (lax.cummin, _running(min)),
    "cumlogsumexp": (lax.cumlogsumexp, _running(_log_sum)),
    "logsumexp": (special.logsumexp, _log_sum), "softmax": (nn.softmax, _softmax),
    "log_softmax": (nn.log_softmax, lambda x: [v - _log_sum(x) for v in x]),
    "logaddexp.reduce": (jnp.logaddexp.reduce, _log_sum),
    "norm": (jnp.linalg.norm, _norm(2)), "norm 1": (lambda x: jnp.linalg.norm(x, 1), _norm(1)),
    "norm 3": (lambda x: jnp.linalg.norm(x, 3), _norm(3)),
    "norm inf": (lambda x: jnp.linalg.norm(x, jnp.inf), lambda x: max(map(abs, x))),
    # Away from 0, where abs has a kink in the kink of the minimum.
    "norm -inf": (lambda x: jnp.linalg.norm(x * x + 1, -jnp.inf),
                  lambda x: min(v * v + 1 for v in x)),
    "sort": (jnp.sort, sorted),
    "diff": (jnp.diff, lambda x: [b - a for a, b in pairwise(x)]),
    "top_k": (lambda x: lax.top_k(x, 2)[0], lambda x: sorted(x)[:1:-1]),
    "dot": (lambda x: jnp.dot(x, x), lambda x: sum(v * v for v in x)),
    "trapezoid": (jnp.trapezoid, lambda x: sum(x) - (x[0] + x[-1]) / 2),
    "glu": (nn.glu, lambda x: [x[0] / (1 + mp.exp(-x[2])), x[1] / (1 + mp.exp(-x[3]))]),
    "segment_sum": (lambda x: ops.segment_sum(x, _ids(), 2), _segments(sum)),
    "segment_prod": (lambda x: ops.segment_prod(x, _ids(), 2), _segments(mpmath.fprod)),
    "segment_max": (lambda x: ops.segment_max(x, _ids(), 2), _segments(max)),
    "segment_min": (lambda x: ops.segment_min(x, _ids(), 2), _segments(min)),
    "at multiply": (lambda x: jnp.full((2,), 3.0, x.dtype).at[_ids()].multiply(x),
                    _segments(lambda x: 3 * mpmath.fprod(x))),
    "at max": (lambda x: jnp.zeros(2, x.dtype).at[_ids()].max(x),
               _segments(lambda x: max(mpf(0), *x))),
}  # fmt: skip

# name -> (function of a vector of 4 numbers that are a matrix, its meaning)
MATRICES: dict[str, tuple[Callable[[Any], Any], Callable[[Numbers], Any]]] = {
    "trace": (_square(jnp.trace), _matrix(lambda a: a[0, 0] + a[1, 1])),
    "det": (_square(jnp.linalg.det), _matrix(_det)),
    "slogdet": (
        _square(lambda a: jnp.linalg.slogdet(a)[1]),
        _matrix(lambda a: mp.log(abs(_det(a)))),
    ),
    "inv": (_square(lambda a: jnp.linalg.inv(a).ravel()), _matrix(_inverse)),
    "matrix_power": (
        _square(lambda a: jnp.linalg.matrix_power(a, 3).ravel()),
        _matrix(lambda a: a * a * a),
    ),
    "norm fro": (_square(jnp.linalg.norm), lambda x: _norm(2)(x)),
    "norm nuc": (_square(lambda a: jnp.linalg.norm(a, "nuc")), _matrix(_nuclear)),
    "eigvalsh": (_square(jnp.linalg.eigvalsh), _matrix(_eigenvalues)),
    "sum of exp of eigenvalues": (
        _square(lambda a: jnp.exp(jnp.linalg.eigh(a)[0]).sum()),
        _matrix(lambda a: sum(map(mp.exp, _eigenvalues(a)))),
    ),
}
