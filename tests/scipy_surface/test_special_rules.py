"""Special functions: derivatives, special values, dtypes, transformations and errors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.scipy import special

# name, operands; those that are ints are not differentiated.
DERIVATIVES = [
    ("erf", (0.4,)), ("erfc", (1.4,)), ("erfinv", (0.4,)), ("erfcx", (0.7,)), ("erfcx", (30.0,)),
    ("dawsn", (1.3,)), ("dawsn", (20.0,)), ("ndtr", (-2.0,)), ("log_ndtr", (-30.0,)),
    ("ndtri", (0.03,)), ("owens_t", (0.7, 1.8)), ("expi", (0.5,)), ("exp1", (2.0,)),
    ("expn", (3, 0.7)), ("expn", (0, 0.7)), ("sici", (2.0,)), ("fresnel", (2.3,)),
    ("spence", (0.4,)), ("spence", (1.2,)), ("gamma", (3.3,)), ("gamma", (-1.3,)),
    ("beta", (2.0, 3.0)), ("betaln", (20.0, 0.3)), ("comb", (7.0, 3.0)), ("poch", (2.5, 1.7)),
    ("factorial", (3.5,)), ("gammaln", (3.3,)), ("digamma", (2.2,)), ("gammainc", (2.0, 1.5)),
    ("gammaincc", (2.0, 1.5)), ("zeta", (2.5, 1.3)), ("i0", (1.2,)), ("i1", (0.7,)), ("i1", (0.0,)),
    ("i0e", (-9.0,)), ("i1e", (9.0,)), ("hyp1f1", (1.2, 2.3, -4.0)), ("hyp1f1", (1.2, 2.3, 4.0)),
    ("hyp2f1", (0.3, 1.4, 2.2, 0.4)), ("hyp2f1", (0.3, 1.4, 2.2, -3.0)), ("kl_div", (0.5, 0.7)),
    ("rel_entr", (0.5, 0.7)), ("entr", (0.3,)), ("xlogy", (2.0, 3.0)), ("xlog1py", (2.0, 3.0)),
    ("logit", (0.3,)), ("expit", (0.3,)), ("boxcox", (2.0, 0.3)), ("boxcox1p", (2.0, 0.0)),
    ("polygamma", (2, 3.0)), ("loggamma", (2.2,)),
]  # fmt: skip


def _difference_quotient(function, operands, position):
    """With an error of the fourth order."""
    x = operands[position]
    step = 1e-3 * max(abs(x), 0.1)

    def at(offset):
        moved = (*operands[:position], x + offset, *operands[position + 1 :])
        return float(function(*moved))

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


def _total(name):
    function = getattr(special, name)

    def total(*operands):
        out = function(*operands)
        return sum(out) if isinstance(out, tuple) else out

    return total


@pytest.mark.parametrize(("name", "operands"), DERIVATIVES)
def test_derivatives(name, operands):
    function = _total(name)
    with gpuflow.enable_x64(True):
        for position, operand in enumerate(operands):
            if isinstance(operand, int):
                continue
            want = _difference_quotient(function, operands, position)
            gradient = gpuflow.grad(function, argnums=position)
            # The quotient is good to step**4.
            np.testing.assert_allclose(gradient(*operands), want, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(
                gpuflow.jit(gradient)(*operands), gradient(*operands), rtol=1e-12
            )


def test_second_derivatives():
    """Rules are made of functions that have rules."""
    for name, x in (
        ("erfcx", 0.7),
        ("dawsn", 1.3),
        ("log_ndtr", -3.0),
        ("ndtri", 0.2),
        ("i0", 1.1),
        ("expi", 0.8),
        ("gamma", 2.7),
        ("spence", 0.6),
    ):
        with gpuflow.enable_x64(True):
            slope = gpuflow.grad(_total(name))
            want = _difference_quotient(slope, (x,), 0)
            np.testing.assert_allclose(gpuflow.grad(slope)(x), want, rtol=1e-7, err_msg=name)


def test_derivatives_of_bessel_jn():
    with gpuflow.enable_x64(True):
        _, slopes = gpuflow.jvp(lambda z: special.bessel_jn(z, v=3), (3.0,), (1.0,))
    np.testing.assert_allclose(slopes, [scipy.special.jvp(k, 3.0) for k in range(4)], rtol=1e-12)


def test_derivatives_where_values_are_dropped():
    """A choice between formulas must not bring nan from the one that was not taken."""
    for name, x in (
        ("xlogy", (0.0, 0.0)),
        ("entr", (-1.0,)),
        ("rel_entr", (0.0, 1.0)),
        ("kl_div", (0.0, 1.0)),
        ("comb", (3.0, 5.0)),
        ("i1e", (0.0,)),
        ("spence", (1.0,)),
        ("sici", (1e-3,)),
        ("dawsn", (0.0,)),
    ):
        last = len(x) - 1
        slope = gpuflow.grad(_total(name), argnums=last)(*x)
        assert not np.isnan(slope) or name == "entr" or x == (0.0, 0.0), name


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 1e30, -1e30, 1e-30])
UNARY = [
    "erf", "erfc", "erfcx", "dawsn", "log_ndtr", "ndtr", "ndtri", "expi", "exp1", "fresnel",
    "gamma", "entr", "logit", "expit", "i0e", "i1e", "digamma", "gammasgn", "erfinv", "sici",
]  # fmt: skip
# What SciPy has there is no limit, or not what its documentation says.
EXCEPT = {
    "gammasgn": (1e30, -1e30),
    "digamma": (-1e30, -np.inf),
    "gamma": (-1e30, 1e30),
    "expi": (np.inf,),  # nan before SciPy 1.17
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("wide", [False, True])
def test_special_values(name, wide):
    dtype = np.float64 if wide else np.float32
    x = SPECIAL[~np.isin(SPECIAL, EXCEPT.get(name, ()))].astype(dtype)
    with gpuflow.enable_x64(wide):
        got = getattr(special, name)(jnp.asarray(x))
    with np.errstate(all="ignore"):
        want = getattr(scipy.special, name)(x.astype(np.float64))
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    for part, truth in pairs:
        with np.errstate(over="ignore"):
            narrow = np.asarray(truth).astype(dtype)
        np.testing.assert_allclose(part, narrow, rtol=1e-6, atol=np.finfo(dtype).tiny)


def test_special_values_where_scipy_differs():
    inf = np.inf
    # The limits; SciPy has nan, for expi before 1.17.
    assert float(special.expi(inf)) == inf
    assert float(special.i0(inf)) == inf and float(special.i1(-inf)) == -inf
    assert float(special.spence(jnp.float32(inf))) == -inf
    # At infinity T(h, a) is the upper tail by half.
    np.testing.assert_allclose(
        special.owens_t(1.0, inf), 0.5 * (1 - scipy.special.ndtr(1.0)), rtol=1e-6
    )
    assert np.isnan(special.sici(-inf)[1]) and np.isnan(special.expn(-1, 1.0))
    assert float(special.poch(-5.0, -2.0)) == pytest.approx(1 / 42, rel=1e-6)
    assert float(special.poch(1.0, -2.0)) == inf


def test_functions_that_stay_finite():
    """Where a direct formula overflows, or loses its digits."""
    np.testing.assert_allclose(special.erfcx(1e30), 1 / (np.sqrt(np.pi) * 1e30), rtol=1e-6)
    np.testing.assert_allclose(special.log_ndtr(jnp.float32(-1e10)), -0.5e20, rtol=1e-6)
    tiny = np.float32(1e-37)
    np.testing.assert_allclose(
        special.ndtri(tiny), scipy.special.ndtri(np.float64(tiny)), rtol=1e-6
    )
    np.testing.assert_allclose(special.kl_div(1.0, 1.0001), 4.9998e-9, rtol=1e-2)
    np.testing.assert_allclose(special.gamma(35.0), scipy.special.gamma(35.0), rtol=1e-6)
    np.testing.assert_allclose(
        special.fresnel(1000.5)[0], scipy.special.fresnel(1000.5)[0], rtol=1e-6
    )


def test_logsumexp_and_softmax():
    x = np.array([[1.0, -np.inf, 1000.0], [-np.inf] * 3], np.float32)
    np.testing.assert_array_equal(special.logsumexp(x, axis=1), [1000.0, -np.inf])
    got, sign = special.logsumexp(np.array([1.0, 1.0]), b=np.array([1.0, -2.0]), return_sign=True)
    np.testing.assert_allclose((got, sign), (1.0, -1.0))
    row = np.array([[1.0, 2.0], [3.0, 0.5]], np.float32)
    np.testing.assert_allclose(special.softmax(row), scipy.special.softmax(row), rtol=1e-6)
    np.testing.assert_allclose(
        special.log_softmax(row, axis=1), scipy.special.log_softmax(row, axis=1), rtol=1e-6
    )


# --- dtypes and transformations -------------------------------------------------------------

ELEMENTWISE = [
    "bessel",
    "erfcx",
    "dawsn",
    "owens_t",
    "expi",
    "sici",
    "fresnel",
    "gamma",
    "betaln",
    "i0e",
    "logit",
    "kl_div",
    "hyp1f1",
]


def _call(name, x):
    if name == "bessel":
        return special.bessel_jn(x, v=1)
    if name in ("owens_t", "betaln", "kl_div"):
        return getattr(special, name)(x, 0.7)
    return special.hyp1f1(0.5, 1.5, x) if name == "hyp1f1" else getattr(special, name)(x)


def _leaves(out):
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_shapes_and_transformations(name):
    x = np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(3, 4)
    for plain, compiled in zip(
        _leaves(_call(name, x)), _leaves(gpuflow.jit(lambda x: _call(name, x))(x)), strict=True
    ):
        np.testing.assert_allclose(plain, compiled, rtol=1e-6)
    mapped = _leaves(gpuflow.vmap(lambda row: _call(name, row), out_axes=-2)(x))
    for plain, rows in zip(_leaves(_call(name, x)), mapped, strict=True):
        np.testing.assert_allclose(plain, rows, rtol=1e-6)
    for odd in (x[::-1, ::2], x[:0], x[0, 0]):
        (first, *_) = _leaves(_call(name, jnp.asarray(odd)))
        assert first.shape[-odd.ndim :] == odd.shape if odd.ndim else True
        (whole, *_) = _leaves(_call(name, x))
        if odd.size == 6:
            np.testing.assert_allclose(first, whole[..., ::-1, ::2], rtol=1e-6)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_dtypes(name):
    (first, *_) = _leaves(_call(name, 0.5))
    assert first.dtype == np.float32
    (first, *_) = _leaves(_call(name, jnp.ones(2, jnp.int32)))
    assert first.dtype == np.float32
    for narrow in (jnp.bfloat16, jnp.float16):
        (first, *_) = _leaves(_call(name, jnp.full(3, 0.5, narrow)))
        (want, *_) = _leaves(_call(name, jnp.full(3, 0.5, jnp.float32)))
        assert first.dtype == narrow
        # Rounded once, from float32; operations beside the kernel round once more.
        np.testing.assert_allclose(first.astype(jnp.float32), want, rtol=4 * jnp.finfo(narrow).eps)


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["dawsn", "expi", "exp1", "sici", "fresnel", "entr", "gammasgn", "factorial"]
)
def test_complex_numbers_are_refused(name):
    with pytest.raises(ValueError, match=rf"\[{name}\] operands must be real.*Fix: jnp.real"):
        getattr(special, name)(1j)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: special.ndtr(1), TypeError, r"\[ndtr\] x must be float32 or float64.*got i32"),
        (lambda: special.ndtri(jnp.float16(0.5)), TypeError, r"\[ndtri\] x must be float32"),
        (lambda: special.spence(jnp.int32(1)), TypeError, r"\[spence\] x must be float32"),
        (lambda: special.log_ndtr(0.0, 1.5), TypeError, r"must be a Python integer; got 1.5"),
        (lambda: special.log_ndtr(0.0, 31), ValueError, r"must be non-negative and <= 30; got 31"),
        (lambda: special.zeta(2.0), NotImplementedError, r"Fix: zeta\(x, 1\)"),
        (lambda: special.bernoulli(-1), ValueError, r"non-negative integer; got -1"),
        (lambda: special.polygamma(1.5, 1.0), ValueError, r"must be of integer type"),
        (lambda: special.factorial(3, exact=True), NotImplementedError, r"exact must be False"),
        (lambda: special.sph_harm_y(1, 0, 0.1, 0.1, diff_n=1), NotImplementedError, r"diff_n"),
        (
            lambda: gpuflow.jit(lambda n: special.sph_harm_y(n, 0, 0.1, 0.1))(1),
            ValueError,
            r"n_max must be given where n is traced",
        ),
        (lambda: special.lpmn_values(1, 2, jnp.ones(1), True), NotImplementedError, r"be equal"),
        (lambda: special.lpmn_values(1, 1, 0.5, True), ValueError, r"z must be a vector"),
        (lambda: special.lpmn_values(1, 1, jnp.arange(2), True), TypeError, r"z must be float32"),
        (lambda: special.erfcx([1.0]), TypeError, r"operands must be arrays or numbers"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_one_kernel():
    """A function under jit is one kernel, whatever its pieces."""
    program = gpuflow.jit(lambda x: 2 * special.expi(lax.exp(x)))
    text = program.lower(jnp.ones(8)).compile().as_text()
    assert text.count("kernel ") == 1


def test_logsumexp_of_complex_numbers():
    """It was refused; the expected values are logarithms of sums in double precision."""
    random = np.random.default_rng(0)
    z = (random.normal(size=(3, 4)) + 1j * random.normal(size=(3, 4))).astype(np.complex64)
    expected = np.log(np.exp(z.astype(np.complex128)).sum(0))
    for function in (special.logsumexp, gpuflow.jit(special.logsumexp, static_argnums=1)):
        np.testing.assert_allclose(function(z, 0), expected, rtol=1e-5)
        np.testing.assert_allclose(function(z + 200, 0), expected + 200, rtol=1e-6)
    log_size, sign = special.logsumexp(z, 0, return_sign=True)
    assert log_size.dtype == np.float32
    np.testing.assert_allclose(np.exp(log_size) * sign, np.exp(expected), rtol=1e-5)


def test_logsumexp_of_a_mask_has_a_derivative_beside_nan():
    """What the mask leaves out has derivative 0, and not nan."""
    x, mask = jnp.array([1.0, np.nan, 2.0]), np.array([True, False, True])
    got = gpuflow.grad(lambda x: special.logsumexp(x, where=mask))(x)
    weights = np.exp([1.0, -np.inf, 2.0])
    np.testing.assert_allclose(got, weights / weights.sum(), rtol=1e-6)
