"""The functions of the CPU target that are written as polynomials: accuracy, edges, vectors."""

import ctypes
import platform

import llvmlite.binding as llvm
import numpy as np
import pytest
from cpu_harness import IN, OUT, UNIT, argument_words, make_kernel

from gpuflow.kir.nodes import Operand, Role
from gpuflow.kir.scalar import FUNCTIONS
from gpuflow.targets.cpu.codegen import build, libm, polynomials, vector_loops
from gpuflow.targets.cpu.codegen.processor import target_named
from gpuflow.targets.cpu.runtime.kernels import print_cpu

SINGLE = [fn for fn, dtype in polynomials.INLINE_FUNCTIONS if dtype == "float32" and fn != "pow"]
DOUBLE = [fn for fn, dtype in polynomials.INLINE_FUNCTIONS if dtype == "float64"]
# What the module promises, and a little for a reference that is itself rounded.
ULPS = 2.01
# Prime, so that all exponents and all low bits occur.
STRIDE = 4099
IS_X86 = platform.machine() in ("x86_64", "AMD64")
# Without AVX-512; without that and fused multiply-add.
PROCESSORS = ("host", "haswell", "x86-64") if IS_X86 else ("host",)


def map_kernel(fn, dtype):
    names = "xy"[: FUNCTIONS[fn].arity]
    operands = [Operand(name, dtype, IN, (UNIT,)) for name in names]
    operands.append(Operand("out", dtype, OUT, (UNIT,)))

    def body(b):
        with b.for_axis("i0"):
            b.store("out", b.apply(fn, *(b.load(name) for name in names)))

    return make_kernel(f"map_{fn}", {"i0": Role.PARALLEL}, operands, body)


@pytest.fixture
def processor(monkeypatch):
    """``set_(name)`` builds for another processor of this architecture from then on."""

    def set_(name):
        if name == "host":
            return
        machine = llvm.Target.from_default_triple().create_target_machine(cpu=name, jit=True)
        monkeypatch.setattr(build, "host_machine", lambda: machine)
        fused = name != "x86-64"
        monkeypatch.setattr(polynomials, "has_fused_multiply_add", lambda: fused)
        level = target_named("x86-64-v3" if fused else "x86-64")
        monkeypatch.setattr(vector_loops, "cpu_target", lambda: level)

    build.host_machine()
    return set_


def evaluate(fn, x, y=None):
    kernel = map_kernel(fn, x.dtype.name)
    loaded = build.load_cpu(build.build_cpu(print_cpu(kernel)))
    out = np.zeros_like(x)
    words = argument_words(kernel, {"x": x, "y": y, "out": out}, {"i0": x.size}, {})
    loaded.call(words.ctypes.data_as(ctypes.c_void_p), 0, x.size)
    return out


def errors(found, want):
    """In units of the last place of the exact results; inf where one is special and one is not."""
    with np.errstate(all="ignore"):
        rounded = want.astype(found.dtype)
    finite = np.isfinite(found) & np.isfinite(rounded)
    info = np.finfo(found.dtype)
    with np.errstate(all="ignore"):
        _, exponents = np.frexp(np.where(finite, want, 1))
        lowest = info.minexp + 1
        unit = np.ldexp(np.ones_like(want), np.maximum(exponents, lowest) - info.nmant - 1)
        distance = np.abs(found - want) / unit
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    return np.where(finite, distance, np.where(same, 0, np.inf))


def check(fn, x, want, y=None):
    found = evaluate(fn, x, y)
    wrong = errors(found, want)
    worst = int(np.argmax(wrong))
    assert wrong[worst] <= ULPS, (x[worst], found[worst], want[worst], wrong[worst])
    zero = (found == 0) & (want == 0)
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(want[zero]))


def single_arguments():
    """A part of all float32, and all of them around the edges of the formulas."""
    bits = np.arange(0, 1 << 32, STRIDE, dtype=np.uint64).astype(np.uint32)
    edges = [
        0.0, -0.0, 1.0, -1.0, 0.5, 0.55, 1.03, 4.0, 10.0, np.inf, -np.inf, 1e5, -1e5,
        88.72283, 89.0, -87.33654, -103.97208, -104.0, -18.0, -17.32868, 128.0, -126.0, -149.0,
        -150.0, 2.0**-126, 2.0**-149, 2.0**0.5, 2.0**-0.5, np.pi, np.pi / 2, 3.4028235e38,
        16.635532, 9.010913, 3.8325067,
    ]  # fmt: skip
    around = np.array(edges, np.float32).view(np.uint32)[:, None] + np.arange(-50, 51)
    all_bits = np.concatenate([bits, around.ravel().astype(np.uint32)])
    return all_bits.view(np.float32)


def widened(x):
    with np.errstate(invalid="ignore"):  # signalling nan
        return x.astype(np.float64)


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("fn", SINGLE)
def test_single_precision_is_good_to_two_ulp(fn, name, processor):
    processor(name)
    x = single_arguments()
    (want,) = FUNCTIONS[fn](widened(x))
    check(fn, x, want)


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("fn", DOUBLE)
def test_double_precision_is_good_to_two_ulp(fn, name, processor):
    mpmath = pytest.importorskip("mpmath")
    processor(name)
    generator = np.random.default_rng(11)
    if fn == "log":
        x = np.exp(np.concatenate([generator.uniform(-744, 709, 500), generator.normal(0, 1, 500)]))
        x = np.append(x, [5e-324, 2.0**-1022, 1.7976931348623157e308, 2.0**0.5, 2.0**-0.5, 1.0])
    else:
        x = np.concatenate([generator.uniform(-746, 710, 500), generator.normal(0, 1, 500)])
        x = np.append(x, [-708.3964185322641, -745.13, -745.2, 709.782712893384, 709.782712893385])
    functions = {
        "exp": mpmath.exp,
        "log": mpmath.log,
        "logistic": lambda v: 1 / (1 + mpmath.exp(-v)),
    }
    found = evaluate(fn, x)
    with mpmath.workdps(40):
        for given, result in zip(x.tolist(), found.tolist(), strict=True):
            exact = functions[fn](mpmath.mpf(given))
            rounded = float(exact)
            if np.isinf(rounded):
                assert result == rounded
                continue
            assert abs(mpmath.mpf(result) - exact) <= ULPS * np.spacing(abs(rounded)), given


@pytest.mark.parametrize("name", PROCESSORS)
def test_powers_are_good_to_two_ulp(name, processor):
    processor(name)
    generator = np.random.default_rng(13)
    n = 20000
    x, y = generator.lognormal(0, 3, n), generator.normal(0, 3, n)
    near_one, large = 1 + generator.normal(0, 1e-3, n), generator.normal(0, 3e4, n)
    signed, whole = generator.uniform(-5, 5, n), generator.integers(-30, 30, n)
    edges = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, np.inf, -np.inf, np.nan]
    edges += [2.0**-149, -(2.0**-149), 3e38, -3e38, 2.5, -2.5, 8388609, -8388609, 16777215]
    edges += [16777216, 4194304.5, 1e-10, 0.9999999, 1.0000001, 1e10, -1e10]
    pairs = [values.ravel() for values in np.meshgrid(edges, edges)]
    bases = np.concatenate([x, near_one, signed, pairs[0]]).astype(np.float32)
    exponents = np.concatenate([y, large, whole, pairs[1]]).astype(np.float32)
    (want,) = FUNCTIONS["pow"](bases.astype(np.float64), exponents.astype(np.float64))
    check("pow", bases, want, exponents)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", DOUBLE)
def test_special_values(fn, dtype):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1e9, 1e9, -1.0, -5e-324], dtype)
    # nan with a payload: the exponent is put together by integer arithmetic.
    payload = np.array([0x7FC00155, 0xFFFFFFFF], np.uint32).view(np.float32)
    x = np.concatenate([x, payload.astype(dtype)])
    (want,) = FUNCTIONS[fn](x)
    found = evaluate(fn, x)
    special = ~np.isfinite(want) | (want == 0)
    np.testing.assert_array_equal(found[special], want[special])


def test_exact_results():
    whole = np.arange(-148, 128).astype(np.float32)
    powers = 2.0 ** whole.astype(np.float64)
    np.testing.assert_array_equal(evaluate("exp2", whole), powers)
    np.testing.assert_array_equal(evaluate("log2", powers.astype(np.float32)), whole)
    np.testing.assert_array_equal(evaluate("exp", np.zeros(3, np.float32)), 1)
    np.testing.assert_array_equal(evaluate("cos", np.zeros(3, np.float32)), 1)
    np.testing.assert_array_equal(evaluate("log", np.ones(3)), 0)
    numbers = np.arange(-255, 256).astype(np.float32)
    for exponent in (1, 2, 3):
        raised = evaluate("pow", numbers, np.full_like(numbers, exponent))
        np.testing.assert_array_equal(raised, numbers**exponent)


@pytest.mark.parametrize("fn", ["sin", "cos"])
def test_sin_and_cos_stay_within_one(fn):
    near_extrema = (np.arange(-30000, 30000) * (np.pi / 2)).astype(np.float32)
    assert np.abs(evaluate(fn, near_extrema)).max() <= 1


@pytest.mark.parametrize("fn", ["sin", "cos"])
@pytest.mark.parametrize("with_library", [True, False])
def test_huge_arguments_beside_others(fn, with_library, monkeypatch):
    """Only the lanes beyond the bound take libm's result; also where there is no libmvec."""
    if not with_library:
        monkeypatch.setattr(libm, "vector_variants", lambda *_: ())
    generator = np.random.default_rng(5)
    x = generator.uniform(-9, 9, 1003).astype(np.float32)
    x[::37] = generator.uniform(1e5, 3e38, x[::37].size)
    x[[5, 900]] = [np.inf, np.nan]
    (want,) = FUNCTIONS[fn](widened(x))
    check(fn, x, want)


def function_text(fn):
    """The assembly of the kernel, without the variants that stay behind it."""
    text = build.assembly(print_cpu(map_kernel(fn, "float32")))
    start = text.index(f"kernel_map_{fn}:")
    return text[start : text.index(".Lfunc_end", start)]


@pytest.mark.skipif(not IS_X86, reason="register names of x86")
@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("fn", SINGLE)
def test_they_become_vector_instructions(fn, name, processor):
    processor(name)
    text = function_text(fn)
    register = {"haswell": "ymm", "x86-64": "xmm"}.get(name, "ymm")
    if name == "host" and llvm.get_host_cpu_features().get("avx512f"):
        register = "zmm"
    products = [line for line in text.splitlines() if "mulps" in line or "fmadd" in line]
    assert any(register in line for line in products)
    if fn in ("sin", "cos"):
        assert "vv_gpuflow" not in text  # the branch is inlined
    else:
        assert "call" not in text
