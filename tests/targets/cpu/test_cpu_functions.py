"""Every scalar function of KernelIR, compiled for the CPU, against its definition."""

import numpy as np
import pytest
from cpu_harness import IN, OUT, UNIT, assert_close, make_kernel, run_cpu, ulp_distance

import gpuflow as gf
from gpuflow import lax
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Operand, Role
from gpuflow.kir.reference import cast
from gpuflow.kir.scalar import COMPUTE_DTYPES, FUNCTIONS, NARROW_DTYPES

FLOATS = ("float32", "float64")
INTEGERS = [d for d in COMPUTE_DTYPES if d not in FLOATS and d != "bool"]

# Rounded once by LLVM's own instructions: exact. Everything not listed has LIBM_ULPS.
EXACT = {
    "neg", "abs", "sign", "add", "sub", "mul", "max", "min", "div", "rem", "floor", "ceil",
    "trunc", "round", "round_away", "nextafter", "copysign", "sqrt",
}  # fmt: skip
# libmvec states 4 ulp; the same holds for the formulas in scalar_functions. fma is here because its
# definition rounds twice.
LIBM_ULPS = 4
# Near a root of lgamma or digamma only the absolute error is small.
NEAR_ROOTS = {"lgamma": 1e-6, "digamma": 1e-6}
NEAR_ROOTS_64 = {"lgamma": 2e-14, "digamma": 2e-14}
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1.5, 2.5, -2.5, 3.0, -3.0, 0.3, -0.7, 10.0, -10.0,
    88.0, -87.0, 1e5, -1e5, 1e-20, -1e-20, 1e30, -1e30, 0.99999, -0.99999,
    np.inf, -np.inf, np.nan,
]  # fmt: skip


def functions_of(dtype):
    """The functions that take arguments of one dtype, with their result dtypes."""
    found = {}
    for name, function in FUNCTIONS.items():
        try:
            found[name] = function.results((dtype,) * function.arity)
        except TypeError:
            continue
    return found


def all_functions_kernel(dtype):
    """A map kernel that stores every function of (x, y, z, w) into its own output."""
    functions = functions_of(dtype)
    operands = [Operand(name, dtype, IN, (UNIT,)) for name in "xyzw"]
    for fn, results in functions.items():
        operands += [
            Operand(f"out{place}{fn.replace('_', '')}", result, OUT, (UNIT,))
            for place, result in enumerate(results)
        ]

    def body(b):
        with b.for_axis("i0"):
            values = [b.load(name) for name in "xyzw"]
            for fn in functions:
                outs = b.apply(fn, *values[: FUNCTIONS[fn].arity])
                outs = outs if isinstance(outs, tuple) else (outs,)
                for place, out in enumerate(outs):
                    b.store(f"out{place}{fn.replace('_', '')}", out)

    return make_kernel(f"all_{dtype}", {"i0": Role.PARALLEL}, operands, body), functions


def evaluate_all(dtype, arguments):
    """Results of every function on the arguments, by name."""
    kernel, functions = all_functions_kernel(dtype)
    n = len(arguments[0])
    arrays = dict(zip("xyzw", arguments, strict=True))
    outs = {}
    for fn, results in functions.items():
        for place, result in enumerate(results):
            arrays[f"out{place}{fn.replace('_', '')}"] = np.zeros(n, storage_dtype(result))
            outs[fn, place] = arrays[f"out{place}{fn.replace('_', '')}"]
    run_cpu(kernel, arrays, {"i0": n})
    return functions, outs


def float_arguments(dtype):
    generator = np.random.default_rng(7)
    info = np.finfo(dtype)
    special = np.array([*SPECIAL, info.max, info.tiny, info.smallest_subnormal], dtype)
    x, y = (a.reshape(-1) for a in np.meshgrid(special, special))
    dense = [
        generator.uniform(-1, 1, 2000),
        generator.uniform(-80, 80, 2000),
        generator.lognormal(0, 6, 2000),
    ]
    x = np.concatenate([x, *dense]).astype(dtype)
    y = np.concatenate([y, generator.standard_normal(6000) * 3]).astype(dtype)
    z, w = generator.permutation(x), generator.permutation(y)
    # A fused product may be rounded twice: keep infinities out of the sum that checks it.
    return x, y, np.where(np.isfinite(z), z, 1).astype(dtype), w


def reference(fn, dtype, arguments):
    """The definition, evaluated in float64 where that makes it more exact than float32."""
    function = FUNCTIONS[fn]
    used = arguments[: function.arity]
    same_dtype = fn in EXACT or function.results((dtype,) * function.arity) != (dtype,)
    if dtype == "float64" or same_dtype or fn.startswith(("round_", "bitcast")):
        return function(*used)
    wide = function(*(a.astype(np.float64) for a in used))
    with np.errstate(all="ignore"):
        return tuple(w.astype(dtype) for w in wide)


def is_allowed(fn, found, want, x, absolute):
    """Where the definition itself, which is SciPy's, is not good to a few ulp."""
    with np.errstate(all="ignore"):
        allowed = np.abs(found - want) <= absolute
        if fn == "erfc":
            allowed |= (x > 0.5) & (np.abs(found - want) <= 1e-12 * want + np.finfo(x.dtype).tiny)
        if fn == "lgamma":
            allowed |= np.abs(x) < np.finfo(x.dtype).tiny
        if fn == "digamma":
            # Near a pole; the exact value is tested with mpmath.
            allowed |= (x < 0) & (np.abs(found - want) <= 1e-9 * np.abs(want))
    return allowed


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_functions_meet_their_definitions(dtype):
    arguments = float_arguments(dtype)
    functions, outs = evaluate_all(dtype, arguments)
    roots = NEAR_ROOTS if dtype == "float32" else NEAR_ROOTS_64
    failures = []
    for fn in functions:
        expected = reference(fn, dtype, arguments)
        for place, want in enumerate(expected):
            found = outs[fn, place]
            if want.dtype.kind != "f":
                assert_close(found, want)
                continue
            distance = ulp_distance(found, want)
            allowed = is_allowed(fn, found, want, arguments[0], roots.get(fn, 0))
            distance = np.where(allowed, 0, distance)
            limit = 0 if fn in EXACT or fn.startswith(("round_", "bitcast")) else LIBM_ULPS
            worst = int(np.argmax(distance))
            if distance[worst] > limit:
                given = [a[worst] for a in arguments[: FUNCTIONS[fn].arity]]
                failures.append((fn, distance[worst], given, found[worst], want[worst]))
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS])
def test_integer_functions_meet_their_definitions(dtype):
    if dtype == "bool":
        values = np.array([False, True])
    else:
        info = np.iinfo(dtype)
        edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 31, 33, 63, 64, 100]
        signed = [] if info.min == 0 else [-1, -2, -7, -100]
        values = np.array([*edges, *signed], dtype)
    x, y = (a.reshape(-1).copy() for a in np.meshgrid(values, values))
    arguments = x, y, x[::-1].copy(), y[::-1].copy()
    functions, outs = evaluate_all(dtype, arguments)
    for fn in functions:
        expected = FUNCTIONS[fn](*arguments[: FUNCTIONS[fn].arity])
        for place, want in enumerate(expected):
            found = outs[fn, place]
            if want.dtype.kind == "f":
                found, want = (a.view(f"u{a.itemsize}") for a in (found, want))
            np.testing.assert_array_equal(found, want, err_msg=fn)


def test_casts_meet_their_definition():
    sources = [Operand(f"x{d}", d, IN, (UNIT,)) for d in COMPUTE_DTYPES]
    targets = [Operand(f"o{s}{d}", d, OUT, (UNIT,)) for s in COMPUTE_DTYPES for d in COMPUTE_DTYPES]

    def body(b):
        with b.for_axis("i0"):
            for source in COMPUTE_DTYPES:
                value = b.load(f"x{source}")
                for target in COMPUTE_DTYPES:
                    b.store(f"o{source}{target}", b.cast(value, target))

    kernel = make_kernel("casts", {"i0": Role.PARALLEL}, [*sources, *targets], body)
    floats = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 127.5, 300.0, -300.0, 3e9, -3e9, 1e19, -1e19, 2e38]
    floats += [np.inf, -np.inf, np.nan, 2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 65535.5]
    n = len(floats)
    arrays = {}
    for dtype in COMPUTE_DTYPES:
        if dtype in FLOATS:
            values = np.array(floats, dtype)
        elif dtype == "bool":
            values = np.arange(n) % 2 == 0
        else:
            info = np.iinfo(dtype)
            low, high = int(info.min), int(info.max)
            values = np.array([low + (high - low) * k // (n - 1) for k in range(n)], dtype)
        arrays[f"x{dtype}"] = values
    for target in targets:
        arrays[target.name] = np.zeros(n, target.dtype)
    run_cpu(kernel, arrays, {"i0": n})
    for source in COMPUTE_DTYPES:
        for target in COMPUTE_DTYPES:
            want = cast(arrays[f"x{source}"], target)
            found = arrays[f"o{source}{target}"]
            assert_close(found, want)


def test_narrow_floats_round_and_widen_exactly():
    """All codes of every narrow storage, and float32 around all their midpoints."""
    operands = [Operand("x", "float32", IN, (UNIT,))]
    for place, storage in enumerate(NARROW_DTYPES):
        operands += [
            Operand(f"c{place}", storage, IN, (UNIT,)),
            Operand(f"w{place}", "float32", OUT, (UNIT,)),
            Operand(f"n{place}", storage, OUT, (UNIT,)),
        ]

    def body(b):
        with b.for_axis("i0"):
            x = b.load("x")
            for place in range(len(NARROW_DTYPES)):
                b.store(f"w{place}", b.load(f"c{place}"))
                b.store(f"n{place}", x)

    kernel = make_kernel("narrow", {"i0": Role.PARALLEL}, operands, body)
    n = 1 << 16
    generator = np.random.default_rng(3)
    x = (generator.standard_normal(n) * 10.0 ** generator.uniform(-9, 9, n)).astype(np.float32)
    x[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 65520, 448, 464]
    codes = np.arange(n)
    # Midpoints of neighbours decide ties.
    half = np.array(codes[:30000], np.uint16).view(np.float16).astype(np.float32)
    x[1000:31000] = (half + np.roll(half, 1)) / 2
    arrays = {"x": x}
    for place, storage in enumerate(NARROW_DTYPES):
        dtype = storage_dtype(storage)
        code = codes.astype(f"u{dtype.itemsize}")
        arrays |= {f"c{place}": code.view(dtype), f"w{place}": np.zeros(n, np.float32)}
        arrays[f"n{place}"] = np.zeros(n, dtype)
    run_cpu(kernel, arrays, {"i0": n})
    for place, storage in enumerate(NARROW_DTYPES):
        dtype = storage_dtype(storage)
        assert_close(arrays[f"w{place}"], arrays[f"c{place}"].astype(np.float32))
        with np.errstate(all="ignore"):
            want = x.astype(dtype)
        found, want = (a.astype(np.float32) for a in (arrays[f"n{place}"], want))
        assert_close(found, want)


def test_formulas_agree_with_mpmath():
    """digamma near its poles and erf_inv near 1, where SciPy is no reference."""
    mpmath = pytest.importorskip("mpmath")
    functions = {"digamma": mpmath.digamma, "erf_inv": mpmath.erfinv, "lgamma": mpmath.loggamma}
    functions["erfc"] = mpmath.erfc
    points = {
        "digamma": [-0.99999, -2.5, -87.3, 1e-8, 0.3, 1.0, 9.99, 10.0, 1e6, 1e300],
        "erf_inv": [1e-300, 1e-9, 0.1, -0.5, 0.9, 0.999, -0.9999999, 1 - 2.0**-50, 0.96, 0.3],
        "erfc": [24.323847904787243, 3.5, 10.0, 20.1, 26.5, -3.0, 1e-20, 0.5, 1.0, 5.0],
        "lgamma": [1e-8, 0.5, 1.5, 2.5, 10.0, 171.0, 1e5, 3.7, 30.0, 0.1],
    }
    arguments = [np.array(points[fn]) for fn in points]
    for fn, x in zip(points, arguments, strict=True):
        _, outs = evaluate_all("float64", (x, x, x, x))
        with mpmath.workdps(40):
            want = np.array([float(functions[fn](mpmath.mpf(float(v)))) for v in x])
        # 1e-14 is 45 ulp; the series and the polynomials are good to about 10.
        np.testing.assert_allclose(outs[fn, 0], want, rtol=1e-14, err_msg=fn)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_integer_quotients_are_exact(dtype):
    """They are made by floats: what matters lies beside multiples of the divisor."""
    info, random = np.iinfo(dtype), np.random.default_rng(0)
    if info.bits == 8:
        every = np.arange(info.min, info.max + 1)
        x, y = (grid.ravel() for grid in np.meshgrid(every, every))
    else:
        y = random.integers(1, info.max, 100_000) >> random.integers(0, info.bits, 100_000)
        y = np.maximum(y, 1)
        below = info.max // y - random.integers(0, 3, y.size)
        multiples = np.maximum(below, 0) * y
        x = np.concatenate([multiples + k for k in (-1, 0, 1)])
        y = np.tile(y, 3)
        x, y = x[x >= 0], y[x >= 0]
        if info.min:
            x = np.concatenate([x, -x, x, -x, [info.min] * 2])
            y = np.concatenate([y, y, -y, -y, [1, 3]])
    keep = (y != 0) & (x <= info.max) & ((x != info.min) | (y != -1))
    x, y = x[keep].astype(np.int64), y[keep].astype(np.int64)
    want = np.abs(x) // np.abs(y) * np.where((x < 0) != (y < 0), -1, 1)
    quotient, rest = gf.jit(lambda x, y: (lax.div(x, y), lax.rem(x, y)))(
        x.astype(dtype), y.astype(dtype)
    )
    np.testing.assert_array_equal(np.asarray(quotient).astype(np.int64), want)
    np.testing.assert_array_equal(np.asarray(rest).astype(np.int64), x - want * y)


@pytest.mark.parametrize("dtype", [f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32)])
def test_quotients_by_one_number(dtype):
    """They are products with its reciprocal: what matters lies beside multiples of the number."""
    info, random = np.iinfo(dtype), np.random.default_rng(0)
    ends = [info.min, info.min + 1, 0, info.max - 1, info.max]
    divide = gf.jit(lambda x, y: (lax.div(x, y), lax.rem(x, y), x // y, x % y))
    for y in (1, 2, 3, 7, 100, 12345, info.max - 1, info.max, -1, -2, -7, info.min + 1, info.min):
        if not info.min <= y <= info.max or y == 0:
            continue
        multiples = np.arange(-300, 301) * y
        last = info.max // y * y - np.arange(3) * y
        x = np.concatenate([m + k for m in (multiples, last) for k in (-1, 0, 1)])
        x = np.concatenate([x, ends, random.integers(info.min, info.max, 2000, endpoint=True)])
        x = x[(x >= info.min) & (x <= info.max) & ((x != info.min) | (y != -1))].astype(np.int64)
        size = np.abs(x) // abs(y)
        whole = np.where((x < 0) != (y < 0), -size, size)
        got = divide(x.astype(dtype), np.array(y, dtype))
        for own, want in zip(got, (whole, x - whole * y, x // y, x % y), strict=True):
            np.testing.assert_array_equal(np.asarray(own).astype(np.int64), want, f"by {y}")


@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("dtype", [f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)])
def test_floats_become_integers(source, dtype):
    """Without their fraction; what is out of bounds becomes the nearest there is, nan 0."""
    generator = np.random.default_rng(1)
    spread = generator.standard_normal(2000) * 10.0 ** generator.uniform(-3, 25, 2000)
    ends = [s * 2.0**k + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1) for d in (0, 1)]
    with np.errstate(all="ignore"):
        x = np.array([*spread, *ends, 0.99, -0.99, -0.0, np.inf, -np.inf, np.nan]).astype(source)
        x = np.concatenate([x, np.nextafter(x, source(0)), np.nextafter(x, source(np.inf))])
    bounds = np.iinfo(dtype)
    want = [
        0
        if np.isnan(v)
        else int(max(min(v, bounds.max), bounds.min))
        if np.isinf(v)
        else max(min(int(v), bounds.max), bounds.min)
        for v in x.astype(np.float64).tolist()
    ]
    with gf.enable_x64(True):
        for count in (1, len(x)):
            got = gf.jit(lambda x: x.astype(dtype))(x[:count])
            np.testing.assert_array_equal(got, np.array(want[:count], dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_floats_are_exact(dtype):
    """They come from a quotient: what matters lies beside multiples of the divisor."""
    random, words = np.random.default_rng(0), f"uint{np.finfo(dtype).bits}"
    any_bits = random.integers(0, np.iinfo(words).max, 20_000, words, endpoint=True).view(dtype)
    divisors = np.exp(random.uniform(-50, 20, 20_000)).astype(dtype)
    wholes = random.integers(-(2**28), 2**28, 20_000) >> random.integers(0, 28, 20_000)
    multiples = (wholes * divisors).astype(dtype)
    tiny = random.integers(0, 1000, 20_000) * np.finfo(dtype).smallest_subnormal
    special = [0.0, -0.0, 1, -1, 7.5, 2.0**28, 2.0**28 + 32, 1e-45, 3e-39, 1e38, np.inf, np.nan]
    grid = np.meshgrid(np.array([*special, -np.inf], dtype), np.array(special, dtype))
    pairs = [
        (any_bits, any_bits[::-1]),
        (divisors, divisors[::-1]),
        (multiples, divisors),
        (np.nextafter(multiples, np.zeros(1, dtype)), divisors),
        (divisors, tiny.astype(dtype)),
        (np.nextafter(multiples, np.array(np.inf, dtype)), divisors),
        [g.ravel() for g in grid],
    ]
    for x, y in pairs:
        with np.errstate(all="ignore"), gf.enable_x64(True):
            want, got = np.fmod(x, y), np.asarray(gf.jit(lax.rem)(x, y))
        np.testing.assert_array_equal(got, want)
        known = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])
