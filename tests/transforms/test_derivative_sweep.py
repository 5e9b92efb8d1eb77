"""Derivatives of public functions at awkward points, against limits in mpmath.

Points are zeros of both signs, infinities, the largest and the least numbers, equal arguments,
ties, and those between, in all floats and complex numbers. A derivative has to lie between the
limits of the difference quotients from both sides, wherever these exist
(``derivative_sweep/limits.py``). Elsewhere the point may be ill-conditioned: then it has to
lie between the limits at operands that differ from the given ones by a rounding. Forward, reverse
and second derivatives are compared, eagerly and jitted. The normal run draws a dtype and points for
each function, about 5000; ``FUZZ_SEED=7`` draws others, and ``FUZZ_EXAMPLES=1`` takes all dtypes,
eagerly and jitted.
"""

import os
import warnings
import zlib

import ml_dtypes
import mpmath
import numpy as np
import pytest
from derivative_sweep import arrays, functions, limits
from derivative_sweep.exceptions import EXCUSES, OF_VALUES, ONLY_WIDE, ORDER, SLOW, STEPS
from mpmath import mp, mpf

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, nn
from gpuflow.scipy import special

MANY = int(os.environ.get("FUZZ_EXAMPLES", "0")) > 0
SEED = int(os.environ.get("FUZZ_SEED", "0"))
MODULES = {"jnp": jnp, "lax": lax, "nn": nn, "special": special}
DTYPES = [np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]
# Formulas of several steps, each rounded, and conditions of up to a hundred.
TOLERANCES = {"float16": 4e-2, "bfloat16": 2e-1, "float32": 2e-4, "float64": 1e-8}
FEW, PAIRS, VECTORS = 12, 12, 5


def function_of(name):
    if name == "gelu_exact":
        return lambda x: nn.gelu(x, approximate=False)
    module, _, attribute = name.partition(".")
    return getattr(MODULES[module], attribute)


def generator(name):
    return np.random.default_rng([SEED, zlib.crc32(name.encode())])


def dtypes_of(name):
    """The dtypes in which to look, and whether jitted: one of each in a normal run."""
    allowed = DTYPES[2:] if name.split()[0] in ONLY_WIDE else DTYPES
    if MANY:
        return [(dtype, jitted) for dtype in allowed for jitted in (False, True)]
    rng = generator(name + " dtype")
    return [(allowed[rng.integers(len(allowed))], rng.random() < 0.2)]


def special_numbers(dtype):
    info = ml_dtypes.finfo(dtype)
    largest, least = float(info.max), float(info.smallest_normal)
    if dtype.itemsize == 8:  # further out mpmath would need thousands of digits
        largest, least = 1e40, 1e-40
    sizes = [
        0, 0.5, 1, 2, 3, 6, 1 + float(info.eps), 1 - float(info.eps) / 2, 0.1, 1.5, 5, 9, 20, 88,
        100, largest, largest / 3, largest**0.5, 2 * largest**0.5, largest**0.3, least, 8 * least,
        least**0.5, max(float(info.smallest_subnormal), 1e-60), np.inf, 1e30, 1e-30, 1e-5,
    ]  # fmt: skip
    return np.array([*sizes, *(-v for v in sizes)]).astype(dtype)


def points(name, dtype, count, largest=np.inf):
    with np.errstate(all="ignore"):
        numbers = special_numbers(dtype)
    sizes = np.abs(numbers.astype(float))
    least = 1e-12 if name.split()[0] in SLOW else 0.0
    numbers = numbers[(sizes <= largest) & ((sizes >= least) | (sizes == 0))]
    return generator(f"{name} {dtype}").choice(numbers, count)


def precision(dtype, name=""):
    if name in SLOW:
        return limits.QUICK
    return limits.WIDE if dtype.itemsize == 8 else limits.NARROW


def is_accepted(got, sides, dtype, absolute=0.0):
    """Whether a number lies between two limits, as exactly as the dtype allows."""
    known = [side for side in sides if side is not None]
    if not known:
        return True
    if np.isnan(got):
        return False
    info = ml_dtypes.finfo(dtype)
    relative = TOLERANCES[dtype.name]
    largest, least = float(info.max) * (1 - relative), 4 * float(info.smallest_normal)
    low, high = min(known), max(known)
    if np.isinf(got):  # steps of a formula may overflow before its result
        return any(abs(side) > float(info.max) / 64 and (side > 0) == (got > 0) for side in known)
    if low > largest or high < -largest:
        return abs(got) >= largest / 2 and (got > 0) == (low > 0)

    def slack(side):
        return abs(side) * relative + least + absolute

    above = low < -largest or got >= low - slack(low)
    return bool(above and (high > largest or got <= high + slack(high)))


def text_of(sides, near):
    at_point = [None if s is None else mpmath.nstr(s, 8) for s in sides]
    known = [s for s in near if s is not None]
    between = [mpmath.nstr(s, 8) for s in (min(known), max(known))]
    return f"limits {at_point}, between {between} for operands a rounding away"


def elementwise_ways(part, x, order):
    """Derivatives of an elementwise function, forward and in reverse."""
    ones = jnp.ones_like(x)

    def forward(function):
        return lambda x: gf.jvp(function, (x,), (ones,))[1]

    def reverse(function):
        def run(x):
            out, pull = gf.vjp(function, x)
            return pull(jnp.ones_like(out))[0]

        return run

    if order == 1:
        return {"forward": forward(part), "reverse": reverse(part)}
    return {
        "forward over forward": forward(forward(part)),
        "reverse over forward": reverse(forward(part)),
        "reverse over reverse": reverse(reverse(part)),
    }


def check_elementwise(name, meaning, operands, place, dtype, jitted, order=1):
    function = function_of(name)
    given = [jnp.asarray(v) for v in operands]

    def part(x):
        return function(*given[:place], x, *given[place + 1 :])

    wrap = gf.jit if jitted else lambda f: f
    value = np.asarray(wrap(part)(given[place])).astype(float)
    # Second derivatives are differences of first ones: what these lose counts there.
    info = ml_dtypes.finfo(dtype)
    scale = float(info.eps) * (8 if order == 1 else 200)
    absolute = scale if name in OF_VALUES or order == 2 else 0.0
    results = {
        way: np.asarray(wrap(run)(given[place])).astype(float)
        for way, run in elementwise_ways(part, given[place], order).items()
    }
    excuse = EXCUSES.get(name, (lambda *v: False, ""))[0]
    for k in range(value.size):
        at = [float(v[k]) for v in operands]
        if np.isnan(value[k]) or excuse(*at):
            continue
        if name in STEPS or (order == 2 and np.isinf(at[0])):  # ends are straight
            sides = [mpf(0)]
        else:
            sides = limits.slopes(meaning, at, place, order, precision(dtype, name))
        for way, result in results.items():
            if not is_accepted(result[k], sides, dtype, absolute):
                near = limits.nearby_slopes(
                    meaning, at, place, order, precision(dtype, name), float(info.eps)
                )
                assert is_accepted(result[k], near, dtype, absolute), (
                    f"{name} {dtype} {'jit' if jitted else 'eager'}, {way} of order {order} by "
                    f"operand {place} at {at}: got {result[k]}, {text_of(sides, near)}"
                )


@pytest.fixture(autouse=True)
def awkward_numbers():
    with gf.enable_x64(True), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", functions.UNARY)
def test_of_one_operand(name):
    for dtype, jitted in dtypes_of(name):
        x = points(name, dtype, FEW, functions.LIMITED.get(name, np.inf))
        check_elementwise(name, functions.UNARY[name], [x], 0, dtype, jitted)


@pytest.mark.parametrize("name", functions.TWICE)
def test_twice(name):
    for dtype, jitted in dtypes_of(name + " twice"):
        bound = min(functions.LIMITED.get(name, np.inf), float(ml_dtypes.finfo(dtype).max) ** 0.3)
        x = points(name + " twice", dtype, FEW)
        x = x[
            (np.abs(x.astype(float)) <= bound) & (np.abs(x.astype(float)) >= 1e-4)
            | (x == 0)
            | np.isinf(x.astype(float)) & name.startswith("nn.")
        ]
        check_elementwise(name, functions.UNARY[name], [x], 0, dtype, jitted, 2)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("name", functions.BINARY)
def test_of_two_operands(name, place):
    for dtype, jitted in dtypes_of(f"{name} {place}"):
        first = points(f"{name} {place}", dtype, PAIRS)
        second = points(f"{name} {place} second", dtype, PAIRS)
        # Some pairs are equal.
        second = np.where(generator(name).random(PAIRS) < 0.2, first, second)
        check_elementwise(name, functions.BINARY[name], [first, second], place, dtype, jitted)


def awkward_vector(rng, values, most=4):
    """Four numbers of few values, so that there are ties of at most so many."""
    while True:
        x = rng.choice(values, 4)
        if np.unique(x, return_counts=True)[1].max() <= most:
            return x


def vector_ways(function, jitted):
    """Values with derivatives along a direction, and the rows of the derivative in reverse."""

    def forward(x, direction):
        return gf.jvp(function, (x,), (direction,))

    def reverse(x):
        out, pull = gf.vjp(function, x)
        eye = jnp.eye(max(out.size, 1), dtype=out.dtype).reshape(-1, *out.shape)
        return gf.vmap(lambda row: pull(row)[0])(eye)

    return (gf.jit(forward), gf.jit(reverse)) if jitted else (forward, reverse)


def check_vector(name, ways, meaning, x, dtype, rng, digits):
    """Along a direction, forward and in reverse."""
    direction = rng.integers(-3, 4, 4).astype(float)
    given = jnp.asarray(x)
    pair = ways[0](given, jnp.asarray(direction.astype(dtype)))
    value, forward = (np.atleast_1d(np.asarray(v).astype(float)) for v in pair)
    reverse = np.asarray(ways[1](given)).astype(float) @ direction
    size = float(np.abs(x.astype(float)).max(initial=1))
    eps = float(ml_dtypes.finfo(dtype).eps)
    absolute = 64 * eps * max(size, 1.0) ** 2
    line = (meaning, [float(v) for v in x], direction)
    for k in range(value.size):
        if np.isnan(value[k]):
            continue
        sides = limits.slopes_along(*line, k, digits)
        for way, result in (("forward", forward), ("reverse", reverse)):
            if not is_accepted(result[k], sides, dtype, absolute):
                near = limits.nearby_slopes_along(*line, k, digits, eps * size)
                assert is_accepted(result[k], near, dtype, absolute), (
                    f"{name} {dtype}, {way} at {x} along {direction}, result {k}: "
                    f"got {result[k]}, {text_of(sides, near)}"
                )


@pytest.mark.parametrize("name", arrays.VECTORS)
def test_of_vectors(name):
    function, meaning = arrays.VECTORS[name]
    for dtype, jitted in dtypes_of(name):
        rng, ways = generator(name), vector_ways(function, jitted)
        for _ in range(VECTORS):
            values = [0.0, -0.0, 1.0, 1.0, 2.0, -3.0, 0.5, 10.0]
            x = awkward_vector(rng, values, 2 if name in ORDER else 4).astype(dtype)
            check_vector(name, ways, meaning, x, dtype, rng, precision(dtype))


@pytest.mark.parametrize("name", arrays.MATRICES)
def test_of_matrices(name):
    function, meaning = arrays.MATRICES[name]
    for dtype, jitted in dtypes_of(name):
        rng, ways = generator(name), vector_ways(function, jitted)
        dtype = np.dtype(np.float32) if dtype.itemsize < 4 else dtype
        for _ in range(VECTORS):
            x = awkward_vector(rng, [0.0, 1.0, 1.0, 2.0, -1.0]).astype(dtype)
            check_vector(name, ways, meaning, x, dtype, rng, limits.QUICK)


@pytest.mark.parametrize("name", arrays.VECTORS)
def test_of_nothing(name):
    """Empty input has an empty derivative, or is refused."""
    function = arrays.VECTORS[name][0]
    try:
        out = function(jnp.zeros(0))
    except (ValueError, TypeError, IndexError, ZeroDivisionError):
        return
    gradient = gf.grad(lambda x: sum(jnp.sum(v) for v in jnp.atleast_1d(function(x))))
    if out.size:
        assert gradient(jnp.zeros(0)).shape == (0,)


@pytest.mark.parametrize("name", functions.HOLOMORPHIC)
def test_of_complex_numbers(name):
    """Off the cuts: one quotient along the real axis is the derivative."""
    meaning, function = functions.UNARY[name], function_of(name)
    parts = [-2.0, -0.7, 0.3, 1.5, 3.0]
    for dtype in (np.complex64, np.complex128):
        z = np.array([complex(a, b) for a in parts for b in parts if a != b], dtype)
        got = np.asarray(gf.jvp(function, (jnp.asarray(z),), (jnp.ones_like(z),))[1])
        slope = gf.vmap(gf.grad(function, holomorphic=True))(jnp.asarray(z))
        with mp.workdps(60):
            step = mpf("1e-30")
            want = [
                complex((meaning(v + step) - meaning(v)) / step)
                for v in (mpmath.mpc(complex(v)) for v in z)
            ]
        tolerance = 1e-4 if dtype is np.complex64 else 1e-11
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=name)
        np.testing.assert_allclose(slope, want, rtol=tolerance, atol=tolerance, err_msg=name)
