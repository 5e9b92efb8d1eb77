"""Every scalar function and cast of KernelIR on CUDA, against its definition in NumPy."""

import itertools
import re

import numpy as np
import pytest
from cpu_harness import ulp_distance
from cuda_harness import (
    IN,
    OUT,
    PARALLEL,
    UNIT,
    build,
    make,
    requires_cuda_tools,
    run_cuda,
)

from gpuflow.kir.interpret import run, storage_dtype
from gpuflow.kir.nodes import Operand
from gpuflow.kir.scalar import COMPUTE_DTYPES, FUNCTIONS, NARROW_DTYPES
from gpuflow.targets.cuda.codegen.printing.scalar_text import spell_function

pytestmark = requires_cuda_tools
COUNT = 256
CHUNK = 8  # functions per kernel: a build costs 0.1 s, whatever it holds

# Near its zeros the relative error of these is large; they are compared absolutely.
ABSOLUTE = {"lgamma": 1e-5, "digamma": 1e-5}
# Errors in units of the last place: libdevice states 2 to 6 for float32. The interpreter computes
# approximate instructions exactly and rounds a fused product twice.
ULPS = 6
# libdevice calls internal functions for these in float64, which the interpreter does not follow.
COMPILED_ONLY = {("pow", "float64"), ("lgamma", "float64")}
# The range reduction of large arguments is done in float64 by libdevice itself.
USES_FLOAT64 = {"sin", "cos", "tan"}
# SciPy's erfc in float64, the definition, loses x * x ulps far in the tail; libdevice does not.
WIDE_ULPS = {"erfc": 200}


def sample(dtype, seed):
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, COUNT).astype(bool)
    if dtype.startswith("float"):
        x = random.standard_normal(COUNT) * np.exp(random.uniform(-6, 6, COUNT))
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.5, -3.5]
    else:
        bounds = np.iinfo(dtype)
        x = random.integers(bounds.min, bounds.max, COUNT, dtype=dtype, endpoint=True)
        x[COUNT // 2 :] = random.integers(0, 70, COUNT - COUNT // 2)
        special = [0, 1, 2, bounds.min, bounds.max, bounds.max - 1, 7, 8, 31, 63]
        special += [-1] if bounds.min else []
    x = x.astype(dtype)
    x[: 2 * len(special) : 2] = random.permutation(np.array(special, dtype))
    return x


def applicable(dtype, arity):
    found = []
    for name, function in FUNCTIONS.items():
        if function.arity != arity:
            continue
        try:
            function.results((dtype,) * arity)
        except TypeError:
            continue
        found.append(name)
    return found


def cases():
    for dtype, arity in itertools.product(
        ["float32", "float64", "int32", "uint32", "int8", "uint64", "int64", "bool"], (1, 2, 3, 4)
    ):
        names = applicable(dtype, arity)
        for first in range(0, len(names), CHUNK):
            chunk = names[first : first + CHUNK]
            yield pytest.param(dtype, arity, chunk, id=f"{dtype}-{arity}-{chunk[0]}")


def function_kernel(dtype, arity, names):
    """One output for each result of each function."""
    operands = [Operand(f"x{place}", dtype, IN, (UNIT,)) for place in range(arity)]
    for name in names:
        for place, result in enumerate(FUNCTIONS[name].results((dtype,) * arity)):
            operands.append(Operand(f"{name}{place}", result, OUT, (UNIT,)))

    def body(b):
        with b.for_axis("i0"):
            arguments = [b.load(f"x{place}") for place in range(arity)]
            for name in names:
                found = b.apply(name, *arguments)
                for place, value in enumerate(found if isinstance(found, tuple) else (found,)):
                    b.store(f"{name}{place}", value)

    return make("functions", {"i0": PARALLEL}, operands, body)


@pytest.mark.parametrize(("dtype", "arity", "names"), list(cases()))
def test_functions_match_their_definitions(dtype, arity, names):
    runnable = [name for name in names if (name, dtype) not in COMPILED_ONLY]
    kernel = function_kernel(dtype, arity, runnable)
    inputs = {f"x{place}": sample(dtype, place) for place in range(arity)}
    arrays = dict(inputs)
    for operand in kernel.operands[arity:]:
        arrays[operand.name] = np.zeros(COUNT, operand.dtype)
    run_cuda(kernel, arrays, {"i0": COUNT}, vectorize=False)
    for name in runnable:
        for place, want in enumerate(FUNCTIONS[name](*inputs.values())):
            compare(name, arrays[f"{name}{place}"], want)


def compare(name, found, want):
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(found, want, err_msg=name)
    elif name in ABSOLUTE:
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=ABSOLUTE[name], err_msg=name)
    else:
        # Where SciPy's definition gives 0 for a subnormal, or the reverse, there are no ulps.
        tiny = np.finfo(want.dtype).tiny
        distance = np.where((abs(found) < tiny) & (abs(want) < tiny), 0, ulp_distance(found, want))
        worst = int(np.argmax(distance))
        assert distance[worst] <= WIDE_ULPS.get(name, ULPS), (name, found[worst], want[worst])
        # SciPy's erfinv loses the sign of zero; libdevice keeps it.
        zeros = (want == 0) & (found == 0) & (name != "erf_inv")
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(want[zeros]), name)


@pytest.mark.parametrize("name", sorted(name for name, _ in COMPILED_ONLY))
def test_functions_that_the_interpreter_does_not_follow_link(name):
    kernel = function_kernel("float64", FUNCTIONS[name].arity, [name])
    _, built = build(kernel, False, (9, 0))
    assert ".extern" not in built.ptx


def test_float32_functions_have_no_float64_instructions():
    names = [name for name in applicable("float32", 1) if name not in USES_FLOAT64]
    for arity, listed in ((1, names), (2, applicable("float32", 2)), (3, ["fma"])):
        for first in range(0, len(listed), CHUNK):
            kernel = function_kernel("float32", arity, listed[first : first + CHUNK])
            _, built = build(kernel, False, (9, 0))
            assert not re.search(r"\.f64\b", built.ptx), listed[first : first + CHUNK]


@pytest.mark.parametrize("source", COMPUTE_DTYPES)
def test_casts_match_their_definition(source):
    operands = [Operand("x", source, IN, (UNIT,))]
    operands += [Operand(f"to{dtype}", dtype, OUT, (UNIT,)) for dtype in COMPUTE_DTYPES]

    def body(b):
        with b.for_axis("i0"):
            x = b.load("x")
            for dtype in COMPUTE_DTYPES:
                b.store(f"to{dtype}", b.cast(x, dtype))

    kernel = make("casts", {"i0": PARALLEL}, operands, body)
    x = sample(source, 0)
    if source.startswith("float"):
        x[50:150] *= 1e18 if source == "float64" else 1e8
    results = []
    for execute in (run, run_cuda):
        arrays = {"x": x} | {f"to{d}": np.zeros(COUNT, d) for d in COMPUTE_DTYPES}
        execute(kernel, arrays, {"i0": COUNT})
        results.append(arrays)
    for dtype in COMPUTE_DTYPES:
        np.testing.assert_array_equal(results[1][f"to{dtype}"], results[0][f"to{dtype}"], dtype)


@pytest.mark.parametrize("storage", NARROW_DTYPES)
def test_narrow_floats_are_loaded_and_rounded_exactly(storage):
    """All codes of 8 bits, many of 16; results that lie between two codes, and beyond the last."""
    operands = [
        Operand("x", storage, IN, (UNIT,)),
        Operand("y", "float32", IN, (UNIT,)),
        Operand("wide", "float32", OUT, (UNIT,)),
        Operand("o", storage, OUT, (UNIT,)),
    ]

    def body(b):
        with b.for_axis("i0"):
            b.store("wide", b.load("x"))
            b.store("o", b.load("y"))

    kernel = make("narrow", {"i0": PARALLEL}, operands, body)
    dtype = storage_dtype(storage)
    codes = np.arange(COUNT) * (257 if dtype.itemsize == 2 else 1)
    x = codes.astype(f"u{dtype.itemsize}").view(dtype)
    y = sample("float32", 3)
    results = []
    for execute in (run, run_cuda):
        arrays = {"x": x, "y": y, "wide": np.zeros(COUNT, "f4"), "o": np.zeros(COUNT, dtype)}
        execute(kernel, arrays, {"i0": COUNT})
        results.append(arrays)
    for name in ("wide", "o"):
        found, want = (r[name].astype(np.float32) for r in results[::-1])
        np.testing.assert_array_equal(found, want)


def test_an_unknown_function_says_where_it_belongs():
    with pytest.raises(KeyError, match=r"\[cuda\] fn must be a function of the CUDA target; got "):
        spell_function("gamma_of_nothing", ["x"], "float32")
