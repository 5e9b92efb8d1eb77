"""The incomplete gamma functions and their derivatives by ``a`` in kernels, of at most 32 bits.

P is the lower and Q = 1 - P the upper function. Each region has one method for the smaller of the
two, a power exp(e) times a factor f, or for P if it is at most about 1 - 1e-3:

    x <= 3/2            P: e = a log(x) - lgamma(a + 1), f = 1 + sum of (-x)^n a / (n! (a + n))
    x < a + 1           P: e as above minus x, f = sum of x^n / ((a + 1) ... (a + n))
    x >= a + 1          Q: e as above, f = a / (x + 1 - a - 1 (1 - a) / (x + 3 - a - ...))
    abs(x - a) < a / 2  the smaller one by an error function: e = -y^2 if a >= 20,
                        f = erfcx(y) / 2 and a series in 1 / a, whose terms are series in eta

In float64, the sums and the fraction converge to a relative change of 3e-10. All formulas use
``Dual``, which also gives the derivatives by ``a``.

Sources: DLMF 8.7.1, 8.7.3, 8.9.2 and 8.12.3 to 8.12.11 (Temme, 1979); W. Gautschi, A computational
procedure for incomplete gamma functions, 1979, for the regions.

Tests: tests/ops/test_special_functions.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.ops.special import duals, expressions
from gpuflow.ops.special.duals import Dual
from gpuflow.ops.special.expressions import Expression, where, widened_operands

_NEGLIGIBLE = 3e-10
_MAX_ITERATIONS = 400.0
# Error functions are used from this ``a`` on, for x within a / 2 of it.
_LARGE = 20.0
_AROUND = 0.5
# Above, results not computed by error functions are 0 or 1.
_FAR = 2000.0
_EULER = 0.5772156649015329
# lgamma(1 + a) / a for a < 0.01: DLMF 5.7.3.
_NEAR_ONE = (
    -1.03692775514337 / 5,
    1.0823232337111382 / 4,
    -1.2020569031595942 / 3,
    1.6449340668482264 / 2,
    -_EULER,
)
# (x + 2) erfcx(x) in powers of (x - 2) / (x + 2): the series of scipy/special/tables.py.
_ERFCX = (
    7.779097770560446e-08, 3.222064444887862e-08, -6.140428115101622e-07, -6.211708111379397e-07,
    1.974508502773901e-06, 4.314254439462292e-06, -1.0655778232346977e-06, -1.6585853089804725e-05,
    -2.17402403706464e-05, 3.435861799172826e-05, 0.000144488566434599, 3.4311002431236735e-05,
    -0.0006630777264127392, -0.0008372854584419719, 0.0030906126238103297, 0.006479184035624645,
    -0.021510661927482713, -0.03644223146050587, 0.2794720925570399, -0.6871606844144273,
    1.0215827052420188,
)  # fmt: skip
# (atanh(s) - s) / s^3 in powers of s^2.
_ATANH = tuple(1.0 / k for k in range(23, 2, -2))
# c_k of DLMF 8.12.10 in powers of eta, as many as needed for abs(eta) < 0.62 and a >= 20.
TEMME = (
    (
        -4.382036018453353e-09, 1.0261809784240309e-08, 6.707853543401498e-09,
        -1.7665952736826078e-07, 8.296711340953087e-07, -1.85406221071516e-06,
        -2.185448510679992e-06, 3.919263178522438e-05, -0.0001787551440329218,
        0.0003527336860670194, 0.0011574074074074073, -0.014814814814814815, 0.08333333333333333,
        -0.3333333333333333,
    ),
    (
        -5.752545603517705e-08, 1.378633446915721e-07, 4.647127802807434e-09,
        -1.6120900894563446e-06, 7.64916091608111e-06, -1.8098550334489977e-05,
        -4.018775720164609e-07, 0.00020576131687242798, -0.0009902263374485596,
        0.0026455026455026454, -0.003472222222222222, -0.001851851851851852,
    ),
    (
        -6.298992138380055e-07, 1.3721957309062934e-06, 3.423578734096138e-08,
        -1.2760635188618728e-05, 5.2923448829120125e-05, -0.0001073665322636516,
        2.0093878600823047e-06, 0.0007716049382716049, -0.0026813271604938273, 0.004133597883597883,
    ),
    (
        1.4230900732435883e-06, -5.6749528269915965e-06, 1.1082654115347302e-05,
        -2.396505113867297e-07, -7.561801671883977e-05, 0.00026772063206283885,
        -0.0004691894943952557, 0.00022947209362139917, 0.0006494341563786008,
    ),
    (
        1.1375726970678419e-05, -3.968365047179435e-05, 6.641498215465122e-05,
        -1.4638452578843418e-06, -0.0002990724803031902, 0.0007840392217200666,
        -0.0008618882909167117,
    ),
)  # fmt: skip


@record(eq=False)
class _Evaluation:
    """Intermediate results for P and Q at (a, x).

    Attributes:
        is_upper: whether ``exp(exponent) factor`` is Q; else it is P.
        exponent, factor: see above.
        density: the density over ``exp(exponent)``.
        is_small: whether x is at most 3/2: Q is ``-expm1(exponent) - exp(exponent) rest`` there.
        rest: the factor less 1.
    """

    is_upper: Expression
    exponent: Dual
    factor: Dual
    density: Expression
    is_small: Expression
    rest: Dual


@record
class _Ends:
    """Limits: at x = 0, for infinite ``a``, at infinite x, and at a = 0."""

    low: float
    large: float
    infinite: float
    zero: float


def igamma_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """P, like SciPy's at infinities and for ``a`` = 0."""
    del in_avals, out_aval, params
    a, x = widened_operands(builder, values)
    terms = _evaluate(*_safe_operands(a, x), with_slope=False)
    power = terms.exponent.exp().value * terms.factor.value
    result = where(terms.is_upper, 1.0 - power, power)
    result = _at_ends(a, x, result, _Ends(0.0, 0.0, 1.0, 1.0))
    return builder.cast(result.value, values[0].dtype)


def igammac_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """Q, like SciPy's at infinities and for ``a`` = 0."""
    del in_avals, out_aval, params
    a, x = widened_operands(builder, values)
    terms = _evaluate(*_safe_operands(a, x), with_slope=False)
    exp = terms.exponent.exp().value
    power = exp * terms.factor.value
    small = -_expm1(terms.exponent.value, exp) - exp * terms.rest.value
    result = where(terms.is_upper, power, where(terms.is_small, small, 1.0 - power))
    result = _at_ends(a, x, result, _Ends(1.0, 1.0, 0.0, 0.0))
    return builder.cast(result.value, values[0].dtype)


def igamma_grad_a_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """Derivative of P by ``a``."""
    del in_avals, out_aval, params
    a, x = widened_operands(builder, values)
    terms = _evaluate(*_safe_operands(a, x), with_slope=True)
    result = terms.exponent.exp().value * _slope(terms)
    result = _at_ends(a, x, result, _Ends(0.0, 0.0, 0.0, math.nan))
    return builder.cast(result.value, values[0].dtype)


def random_gamma_grad_body(
    builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any
) -> Any:
    """``- d P / da`` over the density, in which the power cancels."""
    del in_avals, out_aval, params
    a, x = widened_operands(builder, values)
    terms = _evaluate(*_safe_operands(a, x), with_slope=True)
    result = -_slope(terms) / terms.density
    result = _at_ends(a, x, result, _Ends(0.0, math.nan, math.inf, math.nan))
    return builder.cast(result.value, values[0].dtype)


def _safe_operands(a: Expression, x: Expression) -> tuple[Expression, Expression]:
    """Replace operands that ``_at_ends`` handles by ones that formulas can take."""
    return (
        where((a > 0.0) & (a < math.inf), a, 1.0),
        where((x > 0.0) & (x < math.inf), x, 1.0),
    )


def _at_ends(a: Expression, x: Expression, regular: Expression, ends: _Ends) -> Expression:
    """Set the limits at the ends of the domain; nan at two of them and out of the domain."""
    is_low, is_infinite = x.equals(0.0), x.equals(math.inf)
    result = where(is_infinite, ends.infinite, where(a.equals(math.inf), ends.large, regular))
    result = where(a.equals(0.0), ends.zero, where(is_low, ends.low, result))
    both = (a.equals(0.0) & is_low) | (a.equals(math.inf) & is_infinite)
    valid = (a >= 0.0) & (x >= 0.0)
    return where(valid, where(both, math.nan, result), math.nan)


def _slope(terms: _Evaluation) -> Expression:
    """Derivative of P by ``a`` over ``exp(exponent)``."""
    exponent, factor = terms.exponent, terms.factor
    assert exponent.slope is not None and factor.slope is not None
    slope = exponent.slope * factor.value + factor.slope
    return where(terms.is_upper, -slope, slope)


def _expm1(x: Expression, exp: Expression) -> Expression:
    """``exp(x) - 1``; a series for small x."""
    coefficients = [1.0 / math.factorial(k) for k in range(9, 0, -1)]
    near = x * expressions.polynomial(x, coefficients)
    return where(x.apply("abs") < 0.1, near, exp - 1.0)


def _evaluate(a: Expression, x: Expression, with_slope: bool) -> _Evaluation:
    order = Dual(a, a.number(1.0) if with_slope else None)
    distance = (x - a).apply("abs")
    by_error = (a >= _LARGE) & (distance <= _AROUND * a)
    by_loops = where(by_error, 0.0, 1.0)
    is_small = x <= 1.5
    upper = (x >= a + 1.0) & (x > 1.5)
    by_series = where(is_small | upper, 0.0, by_loops) > 0.0
    rest = _alternating_series(order, x, is_small)
    series = _series(order, x, by_series)
    fraction = _fraction(order, x, where(upper, by_loops, 0.0) > 0.0)
    factor = duals.where(upper, order * fraction, duals.where(is_small, rest + 1.0, series))
    exponent = order * x.apply("log") - _lgamma_of_next(order)
    exponent = exponent - where(is_small, 0.0, x)
    # For large a, the difference of these large numbers consists of errors.
    value = where(a >= _FAR, -1e4, exponent.value)
    exponent = Dual(value, exponent.slope)
    density = a / x * where(is_small, (-x).apply("exp"), 1.0)

    def iterate(n: Expression, carries: list[Dual]) -> tuple[list[Dual], Expression, Expression]:
        del carries
        return _by_error_function(order, x, by_error), n.number(0.0), n

    # One iteration, which is skipped if no lane of a block needs it.
    starts = [_started(order, 0.0), _started(order, 0.0), order.lifted(1.0)]
    near_exponent, near_factor, near_density = _loop(by_error, starts, iterate)
    return _Evaluation(
        where(by_error, where(x >= a, 1.0, 0.0), where(upper, 1.0, 0.0)) > 0.0,
        duals.where(by_error, near_exponent, exponent),
        duals.where(by_error, near_factor, factor),
        where(by_error, near_density.value, density),
        is_small,
        rest,
    )


def _lgamma_of_next(a: Dual) -> Dual:
    """``lgamma(a + 1)``; a multiple of ``a`` if that is small."""
    far = (a + 1.0).lgamma()
    near = a.value * expressions.polynomial(a.value, _NEAR_ONE)
    return Dual(where(a.value < 0.01, near, far.value), far.slope)


def _loop(
    active: Expression,
    carries: Sequence[Dual],
    iterate: Callable[[Expression, list[Dual]], tuple[list[Dual], Expression, Expression]],
) -> list[Dual]:
    """Iterate n = 1, 2, ... until the step is negligible compared with the size.

    ``iterate(n, carries)`` returns the next carries, the step and the size. There are no iterations
    unless ``active``.
    """
    builder = active.builder
    number = active.number

    def flat(duals_: Sequence[Dual]) -> list[Any]:
        components = [component for d in duals_ for component in (d.value, d.slope)]
        return [component.value for component in components if component is not None]

    def unflat(values: Sequence[Any]) -> list[Dual]:
        rest = iter(Expression(builder, value) for value in values)
        return [Dual(next(rest), None if d.slope is None else next(rest)) for d in carries]

    def body(n: Any, going: Any, *values: Any) -> tuple[Any, ...]:
        del going
        count = Expression(builder, n)
        following, step, size = iterate(count, unflat(values))
        is_large = step.apply("abs") > _NEGLIGIBLE * size.apply("abs")
        continues = is_large & (count < _MAX_ITERATIONS)
        return (count + 1.0).value, where(continues, 1.0, 0.0).value, *flat(following)

    first = (number(1.0).value, where(active, 1.0, 0.0).value, *flat(carries))
    last = builder.while_loop(
        first, lambda n, going, *_: (Expression(builder, going) > 0.0).value, body
    )
    return unflat(last[2:])


def _started(a: Dual, value: Expression | float) -> Dual:
    """Initial value of a carry, with a derivative if ``a`` has one."""
    start = a.lifted(value).value
    return Dual(start, None if a.slope is None else start.number(0.0))


def _alternating_series(a: Dual, x: Expression, active: Expression) -> Dual:
    """The sum of ``(-x)^n a / (n! (a + n))`` for n >= 1."""

    def iterate(n: Expression, carries: list[Dual]) -> tuple[list[Dual], Expression, Expression]:
        power, total = carries[0].value * (-x / n), carries[1]
        term = a / (a + n) * power
        return [Dual(power), total + term], _magnitude(term), _magnitude(total + term)

    return _loop(active, [a.lifted(1.0), _started(a, 0.0)], iterate)[1]


def _series(a: Dual, x: Expression, active: Expression) -> Dual:
    """The sum of ``x^n / ((a + 1) ... (a + n))`` for n >= 0."""

    def iterate(n: Expression, carries: list[Dual]) -> tuple[list[Dual], Expression, Expression]:
        term, total = carries
        term = term * (x / (a + n))
        return [term, total + term], _magnitude(term), _magnitude(total + term)

    return _loop(active, [_started(a, 1.0), _started(a, 1.0)], iterate)[1]


def _fraction(a: Dual, x: Expression, active: Expression) -> Dual:
    """``1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / ...))``, for x >= a + 1 or x > 3/2.

    Numerators and denominators follow the same recurrence; all are divided by the last denominator.
    """

    def iterate(n: Expression, carries: list[Dual]) -> tuple[list[Dual], Expression, Expression]:
        numerator, denominator, value = carries
        partial = (a - n) * n
        base = (x + (2.0 * n + 1.0)) - a
        inverse = (base + partial * denominator).reciprocal()
        following = (base * value + partial * numerator) * inverse
        step = following - value
        return [value * inverse, inverse, following], _magnitude(step), _magnitude(following)

    safe = where(active, x, a.value + 2.0)
    first = (a.lifted(safe + 1.0) - a).reciprocal()
    return _loop(active, [_started(a, 0.0), first, first], iterate)[2]


def _magnitude(dual: Dual) -> Expression:
    """Convergence measure: sum of the magnitudes of a value and its derivative."""
    size = dual.value.apply("abs")
    return size if dual.slope is None else size + dual.slope.apply("abs")


def _by_error_function(a: Dual, x: Expression, active: Expression) -> list[Dual]:
    """The exponent, the factor and the density of the smaller of P and Q, for x near a large a."""
    order = Dual(where(active, a.value, 1.0), a.slope)
    inverse = order.reciprocal()
    mu = (where(active, x, 1.0) - order) * inverse
    # mu - log(1 + mu) = mu^2 g^2 / 2, with log(1 + mu) = 2 atanh(s).
    half = (mu + 2.0).reciprocal()
    s = mu * half
    rest = duals.polynomial(s * s, _ATANH)
    root = ((half - 2.0 * (s * half * half) * rest) * 2.0).sqrt()
    eta = mu * root
    scale = (order * 0.5).sqrt()
    sign = where(mu.value < 0.0, -1.0, 1.0)
    y = eta * scale * sign
    exponent = -(y * y)
    corrections = duals.polynomial(eta, TEMME[-1])
    for coefficients in TEMME[-2::-1]:
        corrections = corrections * inverse + duals.polynomial(eta, coefficients)
    # 1 / sqrt(2 pi a) = 1 / (2 sqrt(pi) scale).
    correction = corrections * scale.reciprocal() * sign * (0.5 / math.sqrt(math.pi))
    inverse_y = Dual(1.0 / (y.value + 2.0))
    value = (inverse_y * duals.polynomial(1.0 - 4.0 * inverse_y, _ERFCX)).value
    # This derivative, and not that of the polynomial, cancels with that of the exponent.
    erfcx = y.with_slope(2.0 * y.value * value - 2.0 / math.sqrt(math.pi), value)
    # a^a exp(-a) / Gamma(a + 1) is sqrt(1 / (2 pi a)) without Stirling's series.
    stirling = inverse.value * (1.0 / 12.0 - inverse.value * inverse.value * (1.0 / 360.0))
    density = (-stirling).apply("exp") * scale.value / (math.sqrt(math.pi) * x)
    return [exponent, erfcx * 0.5 + correction, Dual(density)]
