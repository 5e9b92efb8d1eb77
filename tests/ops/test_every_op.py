"""The sweep: every primitive of every family, against NumPy, its derivatives, vmap and its kernel.

An elementwise op needs no edit here. Any other op needs an entry in samples.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import simulated_gpu
from op_kernels import has_kernel, run_kernel
from op_sweep import (
    DTYPES_32,
    DTYPES_64,
    WHOLE,
    Sample,
    accepted_dtypes,
    all_primitives,
    as_numpy,
    assert_close,
    bound,
    default_samples,
    difference_quotient,
    in_order,
    is_variable,
    jvp,
    operand_avals,
    operands,
    pairing,
    random_array,
    traced,
    variables_only,
    vjp,
    vmap,
    widest,
    x64,
)
from samples import SAMPLES, TESTED_ELSEWHERE

import gpuflow as gf
from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.lowering import Elementwise, Reduction
from gpuflow.core.rules import UndefinedPrimal
from gpuflow.kir.scalar import FUNCTIONS

pytestmark = pytest.mark.simulated_gpu
ABOUT_RULES = pytest.mark.only_whole("rules and the meaning of KernelIR are the same everywhere")

PRIMITIVES = all_primitives()
CASES = [
    (primitive, sample)
    for name, primitive in PRIMITIVES.items()
    if name not in TESTED_ELSEWHERE
    for sample in SAMPLES.get(name) or default_samples(primitive)
]
ELEMENTWISE = [case for case in CASES if isinstance(case[0].lower, Elementwise)]


@dataclass(frozen=True)
class Mode:
    """How a function is called, and the dtypes that are worth it (each kernel takes a build)."""

    call: Callable[[Any], Any]
    dtypes: tuple[str, ...]
    special: tuple[str, ...]


# One dtype for each way in which kernels hold numbers.
IN_KERNELS = ("bool", "int32", "uint8", "bfloat16", "float32", "complex64")
MODES = {
    "eager": Mode(
        lambda function: function,
        tuple(dtype.name for dtype in DTYPES_32 + DTYPES_64),
        ("float16", "bfloat16", "float32"),
    ),
    "jit": Mode(gf.jit, IN_KERNELS, ("float32",)),
}
if not WHOLE:  # a GPU runs an op by itself as it runs a program of that op
    MODES = {"jit": Mode(gf.jit, ("int32", "bfloat16", "float32", "complex64"), ("float32",))}

# Results of one rounding, or of a library function within a few units in the last place.
TOLERANCE = 8.0


def case_name(case: tuple[Any, Sample]) -> str:
    primitive, sample = case
    params = sample.params if isinstance(sample.params, dict) else {}
    words = [
        f"{key}={value}" for key, value in params.items() if isinstance(value, (int, tuple, str))
    ]
    return "-".join([primitive.name, *words, "x".join(str(len(s)) for s in sample.shapes)])


def every_case(cases: list[Any]) -> Any:
    return pytest.mark.parametrize("primitive, sample", cases, ids=map(case_name, cases))


def tolerance_of(primitive: Any, sample: Sample) -> float:
    return sample.tolerance or primitive.sweep.tolerance or TOLERANCE


def has_sums(primitive: Any) -> bool:
    """Whether results are sums of many terms, whose errors relate to the largest one."""
    return not isinstance(primitive.lower, Elementwise)


def check_against_float64(
    primitive: Any, sample: Sample, dtype: Any, values: list[Any], mode: str
) -> None:
    params = sample.params_for(dtype)
    got = MODES[mode].call(bound(primitive, params))(*values)
    avals = primitive.shape(*[aval_of(value) for value in values], **params)
    avals = list(avals) if primitive.multiple_results else [avals]
    assert [(aval_of(out).shape, aval_of(out).dtype) for out in got] == [
        (aval.shape, aval.dtype) for aval in avals
    ]
    wide = [as_numpy(value) for value in values]
    if sample.widen:
        wide = [value.astype(widest(value.dtype)) for value in wide]
    with np.errstate(all="ignore"):
        if sample.reference or primitive.sweep.reference:
            want = (sample.reference or primitive.sweep.reference)(*wide, **params)
        else:
            want = primitive.impl(np, *wide, **params)
    wanted = list(want) if primitive.multiple_results else [want]
    for out, expected in zip(got, wanted, strict=True):
        what = f"{primitive.name} {dtype}"
        assert_close(out, expected, tolerance_of(primitive, sample), what, has_sums(primitive))


@pytest.mark.parametrize("name", PRIMITIVES)
def test_the_sweep_knows_how_to_call_it(name):
    known = name in SAMPLES or name in TESTED_ELSEWHERE or default_samples(PRIMITIVES[name])
    assert known, (
        f"[{name}] the sweep must know how to call it. Fix: add {name!r}: [Sample(shapes, params)] "
        "to tests/ops/samples.py, or give an elementwise op a domain."
    )


@pytest.mark.sampled
@pytest.mark.parametrize("mode", MODES)
@every_case(CASES)
def test_values(primitive, sample, mode):
    """Every accepted dtype, against float64."""
    if simulated_gpu.ON_SIMULATED_GPU and not sample.signs:
        pytest.skip("its signs are the library's choice; kernels/test_kernel_eig.py asks the rest")
    wanted = MODES[mode].dtypes
    accepted = accepted_dtypes(primitive, sample, DTYPES_32)
    for dtype in [dtype for dtype in accepted if dtype.name in wanted] or accepted[:1]:
        values = operands(primitive, sample, dtype)
        check_against_float64(primitive, sample, dtype, values, mode)
    with x64():
        wide = accepted_dtypes(primitive, sample, DTYPES_64)
        for dtype in wide:
            if dtype.name in wanted or not accepted:
                values = operands(primitive, sample, dtype)
                check_against_float64(primitive, sample, dtype, values, mode)
    assert accepted or wide, "no dtype is accepted"


# With subnormal numbers of float32 (1e-40) and float16 (6e-8), and the bounds of integers.
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1.2e-38, 6e-8, 1.0, -1.0, 0.5, 2.5]
SPECIAL += [128.0, -128.5, 2.0**31, -(2.0**31), 3e38]


@pytest.mark.sampled
@pytest.mark.parametrize("mode", MODES)
@every_case(ELEMENTWISE)
def test_special_values(primitive, sample, mode):
    """nan, infinities, signed zeros, subnormal and largest numbers, in all combinations."""
    variable = [k for k in range(len(sample.shapes)) if k not in sample.fixed]
    if len(variable) > 2:
        return
    columns = np.array(list(itertools.product(SPECIAL, repeat=len(variable))))
    floats = [dtype for dtype in DTYPES_32 if dtype.name in MODES[mode].special]
    for dtype in accepted_dtypes(primitive, sample, floats):
        with np.errstate(over="ignore"):
            narrowed = columns.astype(dtype)
        values = [
            narrowed[:, variable.index(k)] if k in variable else np.ravel(sample.fixed_value(k))[:1]
            for k in range(len(sample.shapes))
        ]
        check_against_float64(primitive, sample, dtype, values, mode)
        if mode == "eager":
            check_kernel(primitive, sample, dtype, values)


@pytest.mark.sampled
@pytest.mark.parametrize("mode", MODES)
@every_case(ELEMENTWISE)
def test_scalars_and_empty_arrays(primitive, sample, mode):
    for shape in ((), (0, 3)):
        if sample.fixed:
            continue
        resized = Sample((shape,) * len(sample.shapes), sample.params, domain=sample.domain)
        for dtype in accepted_dtypes(primitive, resized, DTYPES_32):
            named = sample.dtypes is None or dtype.name in sample.dtypes
            if named and (mode == "eager" or dtype.name in MODES[mode].special):
                values = operands(primitive, resized, dtype)
                outs = MODES[mode].call(bound(primitive, sample.params_for(dtype)))(*values)
                assert {aval_of(out).shape for out in outs} == {shape}


@ABOUT_RULES
@every_case(ELEMENTWISE)
def test_wrong_operands_name_the_op(primitive, sample):
    """Shapes that do not fit and mixed dtypes; refused dtypes are checked by accepted_dtypes."""
    dtype = accepted_dtypes(primitive, sample, DTYPES_32 + DTYPES_64)[0]
    avals = operand_avals(sample, dtype)
    if len(avals) < 2 or not avals[0].shape:
        return
    params = sample.params_for(dtype)
    bad_shape = [*avals[:-1], ShapedArray((5, 3), avals[-1].dtype)]
    with pytest.raises((TypeError, ValueError), match=rf"^\[{primitive.name}\] ") as caught:
        primitive.shape(*bad_shape, **params)
    assert "Fix:" in str(caught.value)
    taken = {aval.dtype for aval in avals}
    other = next(d for d in (dtypes.float16, dtypes.float32, dtypes.bool_) if d not in taken)
    with pytest.raises(TypeError, match=rf"^\[{primitive.name}\] "):
        primitive.shape(*avals[:-1], ShapedArray(avals[-1].shape, other), **params)


def differentiable(primitive: Any, sample: Sample) -> list[Any]:
    """The double-precision dtypes in which a case has something to differentiate."""
    cases = []
    for dtype in accepted_dtypes(primitive, sample, (dtypes.float64, dtypes.complex128)):
        values = operands(primitive, sample, dtype)
        function, inner = variables_only(bound(primitive, sample.params_for(dtype)), values)
        outs = function(*inner) if inner and sample.derivative else []
        # Differences of single-precision results say nothing.
        if outs and all(aval_of(out).dtype == widest(aval_of(out).dtype) for out in outs):
            cases.append(dtype)
    return cases


def directions(values: list[Any], seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random_array(random, np.shape(v), as_numpy(v).dtype, -1.0, 1.0) for v in values]


@pytest.mark.only_whole("test_gradients_on_gpu.py compares gradients with the CPU's")
@every_case(CASES)
def test_derivatives(primitive, sample):
    """jvp against central differences, vjp against jvp, and both again for the derivative."""
    with x64():
        for dtype in differentiable(primitive, sample):
            assert primitive.derivatives.jvp is not None, f"[{primitive.name}] needs a jvp rule"
            values = operands(primitive, sample, dtype)
            function, primals = variables_only(bound(primitive, sample.params_for(dtype)), values)
            check_first_order(function, primals, f"{primitive.name} {dtype}")
            along = directions(primals, 3)

            def derivative(*given, function=function, along=along):
                return jvp(function, given, along)

            check_first_order(derivative, primals, f"second order {primitive.name} {dtype}")


def check_first_order(function: Any, primals: list[Any], what: str) -> None:
    tangents = directions(primals, 1)
    out_tangents = jvp(function, primals, tangents)
    # Truncation and rounding of central differences balance near the cube root of eps.
    quotients = difference_quotient(function, primals, tangents, 6e-6)
    for got, want in zip(out_tangents, quotients, strict=True):
        scale = max(1.0, float(np.abs(want).max(initial=0.0)))
        np.testing.assert_allclose(
            as_numpy(got), want, rtol=1e-6, atol=1e-8 * scale, err_msg=f"jvp {what}"
        )
    cotangents = directions([as_numpy(out) for out in out_tangents], 2)
    result = vjp(function, primals, cotangents)
    left, right = pairing(cotangents, out_tangents), pairing(result, tangents)
    np.testing.assert_allclose(right, left, rtol=1e-9, atol=1e-9, err_msg=f"vjp {what}")


@pytest.mark.only_whole("a mapped op is an op on one more dimension")
@every_case(CASES)
def test_vmap(primitive, sample):
    """Mapping each operand alone, and all at once over different dimensions, against a loop."""
    preferred = [dtypes.float32, dtypes.int32, dtypes.bool_, *DTYPES_32, *DTYPES_64]
    with x64():
        dtype = accepted_dtypes(primitive, sample, preferred)[0]
        lanes = [operands(primitive, sample, dtype, seed) for seed in range(3)]
        function = bound(primitive, sample.params_for(dtype))
        movable = [
            k for k, value in enumerate(lanes[0]) if isinstance(value, (np.ndarray, np.generic))
        ]
        for chosen in [*[(k,) for k in movable], tuple(movable)]:
            for last in (False, True):
                check_vmap(function, lanes, chosen, last, sample.unordered)


def check_vmap(
    function: Any,
    lanes: list[list[Any]],
    chosen: tuple[int, ...],
    last: bool,
    unordered: bool = False,
) -> None:
    if not chosen:
        return
    dims: list[int | None] = [None] * len(lanes[0])
    values = list(lanes[0])
    for k in chosen:
        # Alternating, so that operands are mapped over different dimensions.
        dims[k] = np.ndim(lanes[0][k]) if (k % 2 == 0) == last else 0
        values[k] = np.stack([lane[k] for lane in lanes], axis=dims[k])
    got = vmap(function, values, dims)
    for number, lane in enumerate(lanes):
        single = [lane[k] if k in chosen else lanes[0][k] for k in range(len(values))]
        for out, want in zip(got, function(*single), strict=True):
            result, wanted = as_numpy(out)[number], as_numpy(want)
            if unordered:
                result, wanted = in_order(result), in_order(wanted)
            assert_close(result, wanted, TOLERANCE, f"lane {number}", True)


@ABOUT_RULES
@every_case(CASES)
def test_jaxpr(primitive, sample):
    """What is traced passes the checker and evaluates to the same; so do jvp and vmap of it."""
    with x64():
        dtype = accepted_dtypes(primitive, sample, DTYPES_64 + DTYPES_32)[-1]
        values = operands(primitive, sample, dtype)
        function = bound(primitive, sample.params_for(dtype))
        closed = traced(function, values)
        assert closed.eqns[-1].primitive is primitive
        for got, want in zip(closed(*values), function(*values), strict=True):
            np.testing.assert_array_equal(as_numpy(got), as_numpy(want))
        for wide in differentiable(primitive, sample):
            values = operands(primitive, sample, wide)
            inner, primals = variables_only(bound(primitive, sample.params_for(wide)), values)
            along = directions(primals, 1)
            closed = traced(lambda *given, f=inner, t=along: jvp(f, given, t), primals)
            for got, want in zip(closed(*primals), jvp(inner, primals, along), strict=True):
                assert_close(got, as_numpy(want), TOLERANCE, sums=True)


@ABOUT_RULES
@every_case(CASES)
def test_transpose(primitive, sample):
    """The transpose rule of one operand at a time: jvp rules do not use all of them."""
    if primitive.derivatives.transpose is None or primitive.multiple_results:
        return
    with x64():
        for dtype in accepted_dtypes(primitive, sample, (dtypes.float64, dtypes.complex128)):
            params = sample.params_for(dtype)
            values = operands(primitive, sample, dtype)
            for number in [k for k, value in enumerate(values) if is_variable(value)]:
                check_transpose(primitive, params, values, number)


def check_transpose(primitive: Any, params: dict[str, Any], values: list[Any], number: int) -> None:
    (out,) = bound(primitive, params)(*values)
    if not is_variable(out) or aval_of(out).dtype != widest(aval_of(out).dtype):
        return
    (cotangent,) = directions([as_numpy(out)], 5)
    aval = aval_of(values[number])
    known = [*values[:number], UndefinedPrimal(aval), *values[number + 1 :]]
    result = primitive.derivatives.transpose(cotangent, *known, **params)
    assert len(result) == len(values)
    if result[number] is None:  # not linear in this operand
        return
    result_aval = aval_of(result[number])
    assert (result_aval.shape, result_aval.dtype) == (aval.shape, aval.dtype)
    assert all(part is None for k, part in enumerate(result) if k != number)
    zero = [*values[:number], np.zeros_like(values[number]), *values[number + 1 :]]
    (offset,) = bound(primitive, params)(*zero)
    change = as_numpy(out) - as_numpy(offset)
    left, right = pairing([cotangent], [change]), pairing([result[number]], [values[number]])
    np.testing.assert_allclose(right, left, rtol=1e-6, atol=1e-6)


@ABOUT_RULES
@every_case(CASES)
def test_kernel(primitive, sample):
    """The KernelIR body, interpreted, against impl in every dtype that reaches a kernel."""
    with x64():
        for dtype in accepted_dtypes(primitive, sample, DTYPES_32 + DTYPES_64):
            check_kernel(primitive, sample, dtype, operands(primitive, sample, dtype))


def check_kernel(primitive: Any, sample: Sample, dtype: Any, values: list[Any]) -> None:
    params = sample.params_for(dtype)
    in_avals = [aval_of(value) for value in values]
    outs = bound(primitive, params)(*values)
    out_avals = [aval_of(out) for out in outs]
    if not has_kernel(primitive, [*in_avals, *out_avals]):
        return
    arrays = [as_numpy(value) for value in values]
    result = run_kernel(primitive, arrays, in_avals, out_avals, params)
    for got, out in zip(result, outs, strict=True):
        want, what = as_numpy(out), f"kernel of {primitive.name} {dtype}"
        assert got.dtype == storage_dtype(aval_of(out).dtype)
        assert_close(got, want, tolerance_of(primitive, sample), what, has_sums(primitive))
        if dtypes.is_floating(got.dtype):
            zeros = (got == 0) & (want == 0)
            np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]), what)


@ABOUT_RULES
@every_case([case for case in CASES if isinstance(case[0].lower, Reduction)])
def test_neutral_elements(primitive, sample):
    """Combining with the neutral element changes nothing, not even the sign of a zero."""
    lower = primitive.lower
    with x64():
        for dtype in accepted_dtypes(primitive, sample, DTYPES_32 + DTYPES_64):
            if dtypes.is_complex(dtype) or dtype.itemsize == 2:
                continue
            if dtypes.is_floating(dtype):
                values = np.array([-np.inf, -3e38, -1.0, 0.0, 1.0, 3e38, np.inf, np.nan], dtype)
            else:
                values = np.array([0, 1] if dtype.kind == "b" else [0, 1, 127], dtype)
            neutral = np.full(values.shape, lower.init(dtype), dtype)
            np.testing.assert_array_equal(FUNCTIONS[lower.combine](values, neutral)[0], values)


def test_samples_name_existing_primitives():
    assert set(SAMPLES) <= set(PRIMITIVES)
    assert set(TESTED_ELSEWHERE) <= set(PRIMITIVES)


def test_variables_are_the_inexact_operands():
    assert is_variable(np.float32(1)) and not is_variable(np.int32(1))
