"""What the sweep cannot see: JAX's choices at ties, zeros and bounds, dtypes, weak types, errors.

The numbers are those of JAX 0.10.
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from op_kernels import run_kernel
from op_sweep import DTYPES_32, DTYPES_64, all_primitives, as_numpy, jvp, traced, vjp, vmap, x64
from together import together

import gpuflow as gf  # noqa: F401  plugs in the evaluator
from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.staging import trace_closed
from gpuflow.ops.elementwise import (
    arithmetic,
    bitcast,
    comparison,
    complex_numbers,
    convert,
    general_powers,
    powers,
    select,
)
from gpuflow.ops.reductions import argmax, reduce

DATA = json.loads((Path(__file__).parents[1] / "data" / "accepted_dtypes.json").read_text())
ALL_DTYPES = (*DTYPES_32, *DTYPES_64)
INF, NAN = np.inf, np.nan


def f32(*values):
    return np.array(values, np.float32)


def i32(*values):
    return np.array(values, np.int32)


def same(got, want):
    got = as_numpy(got)
    np.testing.assert_array_equal(got, np.asarray(want, got.dtype))
    if dtypes.is_floating(got.dtype):
        number = ~np.isnan(got)
        signs = np.signbit(np.asarray(want, got.dtype))
        np.testing.assert_array_equal(np.signbit(got)[number], signs[number])


def grad(function, *values):
    """The gradient of the sum of a function's result, for each operand."""

    def listed(*given):
        return [function(*given)]

    out = aval_of(function(*values))
    return [as_numpy(ct) for ct in vjp(listed, values, [np.ones(out.shape, out.dtype)])]


# --- dtypes --------------------------------------------------------------------------------


@together()
@pytest.mark.parametrize("name", DATA)
def test_accepted_and_result_dtypes_are_those_of_jax(name):
    primitive = all_primitives()[name]
    is_axes = name.startswith(("reduce", "arg"))
    params = {"axes": (0,)} if is_axes else {}
    arity = 1 if is_axes or primitive.sweep.domain is None else len(primitive.sweep.domain)
    results = {}
    for dtype in ALL_DTYPES:
        if name == "conj":
            params = {"input_dtype": dtype}
        elif name == "integer_pow":
            params = {"y": 3}
        elif name == "round":
            params = {"rounding_method": arithmetic.RoundingMethod.AWAY_FROM_ZERO}
        elif name.startswith("arg"):
            params = {"axes": (0,), "index_dtype": np.dtype(np.int32)}
        shape = (3,) if is_axes else ()
        try:
            out = primitive.shape(*[ShapedArray(shape, dtype)] * arity, **params)
        except TypeError:
            continue
        results[dtype.name] = str(out.dtype)
    expected = dict(DATA[name])
    if name in ("reduce_max", "reduce_min"):
        # The public functions hand bools to reduce_or and reduce_and.
        expected.pop("bool")
    assert results == expected


def test_weak_types():
    def results(x):
        z = complex_numbers.complex(x, x)
        pair = [
            arithmetic.max(x, 2.0),
            powers.integer_pow(x, 3),
            general_powers.pow(x, 2),
            select.clamp(0.0, x, 1.0),
        ]
        return [*pair, complex_numbers.abs(z), complex_numbers.real(z), complex_numbers.abs(x)]

    closed = trace_closed(results, [ShapedArray((), np.float32, weak_type=True)])
    assert all(aval.weak_type for aval in closed.out_avals)
    closed = trace_closed(results, [ShapedArray((), np.float32)])
    assert not any(aval.weak_type for aval in closed.out_avals)


# --- derivatives at special points ---------------------------------------------------------


def test_extrema_share_the_gradient_of_ties():
    assert grad(arithmetic.max, f32(1, 1, 2), f32(1, 3, 0))[0].tolist() == [0.5, 0, 1]
    assert grad(arithmetic.min, f32(1, 1, 2), f32(1, 3, 0))[1].tolist() == [0.5, 0, 1]
    assert grad(arithmetic.max, f32(NAN), f32(1))[0].tolist() == [0.0]


def test_reduce_max_shares_the_gradient_of_ties():
    (gradient,) = grad(lambda x: reduce.reduce_max(x, (0,)), f32(1, 2, 2))
    assert gradient.tolist() == [0, 0.5, 0.5]
    (gradient,) = grad(lambda x: reduce.reduce_min(x, (0, 1)), f32(1, 2, 1, 1).reshape(2, 2))
    np.testing.assert_allclose(gradient, [[1 / 3, 0], [1 / 3, 1 / 3]], rtol=1e-6)


def test_reduce_prod_is_exact_where_factors_are_zero():
    def product(x):
        return reduce.reduce_prod(x, (0,))

    assert grad(product, f32(0, 2, 3))[0].tolist() == [6, 0, 0]
    assert grad(product, f32(0, 2, 0, 5))[0].tolist() == [0, 0, 0, 0]
    assert grad(product, f32(4))[0].tolist() == [1]
    assert grad(product, np.zeros((0,), np.float32))[0].shape == (0,)

    def slope(x):
        return jvp(lambda x: [product(x)], [x], [f32(1, 0, 0)])[0]

    # d/dx0 of x0 x1 x2 is x1 x2, whose gradient at x1 = 0 must not vanish.
    assert grad(slope, f32(7, 0, 3))[0].tolist() == [0, 3, 0]


def test_abs_and_sign():
    assert grad(complex_numbers.abs, f32(0.0, -0.0, -2, NAN))[0].tolist() == [1, 1, -1, -1]
    z = np.array([3 + 4j, 0], np.complex64)
    np.testing.assert_allclose(grad(complex_numbers.abs, z)[0], [0.6 - 0.8j, 0], rtol=1e-6)
    same(complex_numbers.sign(f32(NAN, -0.0, 0.0, INF, -3)), [NAN, -0.0, 0.0, 1, -1])
    np.testing.assert_allclose(as_numpy(complex_numbers.sign(z)), [0.6 + 0.8j, 0], rtol=1e-6)


def test_pow_at_zero():
    base = [grad(general_powers.pow, f32(0), f32(y))[0].item() for y in (2.0, 1.0, 0.0)]
    exponent = [grad(general_powers.pow, f32(0), f32(y))[1].item() for y in (2.0, 0.0)]
    assert base == [0, 1, 0] and exponent == [0, 0]
    assert np.isnan(grad(general_powers.pow, f32(0), f32(-1))[1].item())
    # With an integer exponent of 0 the derivative is 0 even at 0.
    assert grad(lambda x: general_powers.pow(x, 0), f32(0))[0].item() == 0


def test_clamp_passes_tangents_strictly_inside():
    def slopes(low, x, high):
        return [g.item() for g in grad(select.clamp, *f32(low, x, high))]

    assert slopes(1, 1, 2) == [0, 0, 0]
    assert slopes(1, 0, 2) == [1, 0, 0]
    assert slopes(3, 0, 2) == [0, 0, 0]
    assert slopes(1, 3, 2) == [0, 0, 1]


def test_stop_gradient_is_a_constant_to_every_derivative():
    assert grad(lambda x: arithmetic.mul(convert.stop_gradient(x), x), f32(3))[0].item() == 3
    tree = convert.stop_gradient({"a": f32(1), "b": (i32(2),)})
    assert as_numpy(tree["b"][0]).item() == 2 and set(tree) == {"a", "b"}


# --- values --------------------------------------------------------------------------------


def test_extrema_order_signed_zeros_and_keep_nan():
    same(arithmetic.max(f32(-0.0, 0.0, NAN, 1), f32(0.0, -0.0, 1, NAN)), [0.0, 0.0, NAN, NAN])
    same(arithmetic.min(f32(-0.0, 0.0), f32(0.0, -0.0)), [-0.0, -0.0])
    same(reduce.reduce_max(f32(-0.0, 0.0, -1), (0,)), 0.0)
    same(reduce.reduce_max(f32(-0.0, -0.0), (0,)), -0.0)
    same(reduce.reduce_min(f32(0.0, -0.0, 1), (0,)), -0.0)
    same(reduce.reduce_min(f32(0.0, 0.0), (0,)), 0.0)
    assert np.isnan(as_numpy(reduce.reduce_max(f32(1, NAN), (0,))))


def test_reductions_of_nothing_and_of_bools():
    nothing = np.zeros((0,), np.int8)
    assert as_numpy(reduce.reduce_max(nothing, (0,))) == -128
    assert as_numpy(reduce.reduce_min(nothing, (0,))) == 127
    assert as_numpy(reduce.reduce_prod(nothing, (0,))) == 1
    assert as_numpy(reduce.reduce_and(nothing, (0,))) == -1
    assert as_numpy(reduce.reduce_xor(i32(5, 3), (0,))) == 6
    flags = np.array([True, False])
    assert as_numpy(reduce.reduce_max(flags, (0,))).item() is True
    assert as_numpy(reduce.reduce_min(flags, (0,))).item() is False
    assert as_numpy(reduce.reduce_max(flags, ())).tolist() == [True, False]


def test_argmax_takes_the_first_and_prefers_nan():
    assert as_numpy(argmax.argmax(f32(1, NAN, 5, NAN), 0, np.int32)) == 1
    assert as_numpy(argmax.argmin(f32(3, 1, 1), 0, np.uint8)).dtype == np.uint8
    assert as_numpy(argmax.argmin(f32(0.0, -0.0), 0, np.int32)) == 0
    bf16 = np.array([1, NAN], ml_dtypes.bfloat16)
    assert as_numpy(argmax.argmax(bf16, 0, np.int64)).dtype == np.int32


def test_integer_division_and_remainder():
    low = np.iinfo(np.int32).min
    same(arithmetic.div(i32(5, -5, 7, -7, low), i32(0, 0, -2, 2, -1)), [-1, -1, -3, -3, low])
    same(arithmetic.rem(i32(5, -5, 7, -7, low), i32(0, 0, -2, 2, -1)), [5, -5, 1, -1, 0])
    same(arithmetic.div(np.uint8(5), np.uint8(0)), 255)
    same(arithmetic.rem(f32(5, -5, 5.5, -4), f32(0, INF, -2, 2)), [NAN, -5, 1.5, -0.0])


def test_shifts_beyond_the_width():
    counts = i32(31, 32, 33, -1)
    same(comparison.shift_left(np.int32(1), counts), [-(2**31), 0, 0, 0])
    same(comparison.shift_right_logical(np.int32(-1), counts), [1, 0, 0, 0])
    same(comparison.shift_right_arithmetic(np.int32(-8), counts), [-1, -1, -1, -1])
    counts = np.array([1, 3, 9], np.uint8)
    same(comparison.shift_right_arithmetic(np.uint8(200), counts), [228, 249, 255])


def test_rounding_methods():
    values = f32(0.5, 1.5, -0.5, 2.5, -2.5, 0.49999997, NAN, INF)
    even = arithmetic.RoundingMethod.TO_NEAREST_EVEN
    same(arithmetic.round(values), [1, 2, -1, 3, -3, 0, NAN, INF])
    same(arithmetic.round(values, even), [0, 2, -0.0, 2, -2, 0, NAN, INF])


def test_conversions_saturate_wrap_and_drop():
    values = f32(NAN, INF, -INF, 3e9, -3e9, 1.9, -1.9)
    high, low = 2**31 - 1, -(2**31)
    same(convert.convert(values, np.int32), [0, high, low, high, low, 1, -1])
    same(convert.convert(values, np.uint8), [0, 255, 0, 255, 0, 1, 0])
    same(convert.convert(i32(300, -200), np.int8), [44, 56])
    same(convert.convert(f32(NAN, 0.5, -0.0), bool), [True, True, False])
    same(convert.convert(np.array([1j, 1.7 + 2j]), np.int32), [0, 1])
    same(convert.convert(np.array([1j, 1.7 + 2j]), bool), [True, True])
    with x64():
        bounds = np.array([1e19, -1e19, 2.0**63, NAN])
        info = np.iinfo(np.int64)
        same(convert.convert(bounds, np.int64), [info.max, info.min, info.max, 0])
        same(convert.convert(bounds[:2], np.uint64), [10**19, 0])


def test_conversion_to_the_same_type_is_no_op():
    def function(x):
        return [convert.convert(x, np.float32)]

    assert not traced(function, [f32(1)]).eqns
    weak = trace_closed(function, [ShapedArray((), np.float32, weak_type=True)])
    assert len(weak.eqns) == 1


def test_select_n_clamps_integer_predicates():
    cases = f32(1, 2, 3, 4), f32(10, 20, 30, 40), f32(100, 200, 300, 400)
    same(select.select_n(i32(0, 1, 5, -3), *cases), [1, 20, 300, 4])
    result = grad(lambda *c: select.select_n(i32(0, 1, 5, -3), *c), *cases)
    assert np.stack(result).tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]]
    same(select.select(True, f32(1), f32(2)), [1])
    same(select.select_n(np.array(False), f32(1)), [1])


def test_clamp_lets_the_upper_bound_win():
    same(select.clamp(1.0, f32(0, 2, NAN, 9), 5.0), [1, 2, NAN, 5])
    same(select.clamp(5.0, f32(0, 2, 9), 1.0), [1, 1, 1])
    same(select.clamp(i32(2, 0), i32(1, 1), 5), [2, 1])


def test_integer_powers():
    same(powers.integer_pow(np.int8(5), 5), 53)
    same(powers.integer_pow(f32(NAN, 0), 0), [1, 1])
    same(powers.integer_pow(f32(2, -2), -3), [0.125, -0.125])
    same(powers.square(np.int8(20)), -112)
    same(general_powers.pow(f32(2, 3), i32(2, -1)), f32(4, 1 / 3))


def test_bitcast_splits_and_joins_elements():
    same(bitcast.bitcast_convert_type(f32(1), np.int32), [1065353216])
    halves = bitcast.bitcast_convert_type(f32(1, -2), np.int16)
    same(halves, [[0, 16256], [0, -16384]])
    same(bitcast.bitcast_convert_type(halves, np.float32), [1, -2])
    mapped = vmap(lambda x: [bitcast.bitcast_convert_type(x, np.uint8)], [f32(1, 2)], [0])[0]
    assert as_numpy(mapped).tolist() == [[0, 0, 128, 63], [0, 0, 0, 64]]
    with x64():
        pairs = np.arange(4, dtype=np.uint32).reshape(2, 2)
        same(bitcast.bitcast_convert_type(pairs, np.uint64), pairs.view(np.uint64)[:, 0])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_bitcast_kernels_of_all_sixteen_bit_patterns(name):
    """Kernels hold these floats as float32, so that their bits have to be taken apart."""
    narrow = np.dtype(getattr(ml_dtypes, name, name))
    bits = np.arange(2**16).astype(np.uint16)
    floats = bits.view(narrow)
    number = ~np.isnan(floats.astype(np.float32))
    primitive = bitcast.bitcast_convert_type_p
    avals = [aval_of(floats)], [aval_of(bits)]
    (result,) = run_kernel(primitive, [floats], *avals, {"new_dtype": bits.dtype})
    np.testing.assert_array_equal(result[number], bits[number])
    assert np.isnan(result.view(narrow)[~number]).all()
    (result,) = run_kernel(primitive, [bits], *avals[::-1], {"new_dtype": narrow})
    np.testing.assert_array_equal(result.view(np.uint16)[number], bits[number])
    assert np.isnan(result[~number]).all()


def test_copy_owns_its_memory():
    x = np.ones(3, np.float32)
    assert not np.shares_memory(as_numpy(convert.copy(x)), x)


# --- errors --------------------------------------------------------------------------------

KEYS = ShapedArray(
    (2,),
    all_primitives()["random_seed"].shape(ShapedArray((2,), np.int32), impl="threefry2x32").dtype,
)

ERRORS = {
    "integer_pow": (lambda: powers.integer_pow(i32(2), -1), TypeError, "negative powers"),
    "pow": (
        lambda: general_powers.pow(f32(2), np.float16(1)),
        TypeError,
        "integer or have the dtype",
    ),
    "select_n-shapes": (
        lambda: select.select_n(True, f32(1), f32(1, 2)),
        TypeError,
        "one shape",
    ),
    "select_n-which": (
        lambda: select.select(np.array([True, False]), f32(1, 2, 3), f32(1, 2, 3)),
        TypeError,
        "scalar or have the cases",
    ),
    "select_n-float": (lambda: select.select_n(1.0, f32(1), f32(2)), TypeError, "bool or an"),
    "select_n-many": (
        lambda: select.select_n(True, f32(1), f32(2), f32(3)),
        TypeError,
        "at most 2",
    ),
    "select_n-none": (lambda: select.select_n(True), ValueError, "at least one case"),
    "select_n-dtypes": (
        lambda: select.select_n(True, f32(1), i32(2)),
        TypeError,
        "one dtype",
    ),
    "clamp-min": (lambda: select.clamp(f32(1), f32(1, 2), 3.0), TypeError, "min must be"),
    "clamp-max": (lambda: select.clamp(1.0, f32(1, 2), f32(1)), TypeError, "max must be"),
    "clamp-complex": (lambda: select.clamp(0j, np.complex64(1), 1j), TypeError, "real float"),
    "conj": (lambda: complex_numbers.conj(i32(1)), TypeError, "complex, float32 or float64"),
    "bitcast_convert_type-bool": (
        lambda: bitcast.bitcast_convert_type(np.array([True]), np.uint8),
        TypeError,
        "unless equal",
    ),
    "bitcast_convert_type-complex": (
        lambda: bitcast.bitcast_convert_type(np.complex64(1), np.float32),
        TypeError,
        "unless equal",
    ),
    "bitcast_convert_type-join": (
        lambda: bitcast.bitcast_convert_type(np.zeros((3, 3), np.int16), np.float32),
        ValueError,
        "must have size 2",
    ),
    "bitcast_convert_type-width": (
        lambda: bitcast.bitcast_convert_type_p.bind(f32(1), new_dtype=np.dtype(np.int16)),
        ValueError,
        "one width",
    ),
    "argmax-axis": (lambda: argmax.argmax(f32(1), 3, np.int32), ValueError, "distinct dim"),
    "argmax-empty": (
        lambda: argmax.argmax(np.zeros((0,), np.float32), 0, np.int32),
        ValueError,
        "empty",
    ),
    "argmin-dtype": (lambda: argmax.argmin(f32(1), 0, np.float32), TypeError, "index_dtype"),
    "argmax-axes": (
        lambda: argmax.argmax_p.bind(f32(1), axes=(), index_dtype=np.dtype("int32")),
        ValueError,
        "exactly one axis",
    ),
    "reduce_max": (lambda: reduce.reduce_max(f32(1), (1,)), ValueError, "distinct dim"),
    "reduce_prod": (lambda: reduce.reduce_prod(np.array([True]), (0,)), TypeError, "number"),
    "reduce_and": (lambda: reduce.reduce_and(f32(1), (0,)), TypeError, "integer or bool"),
    # Without axes nothing is reduced, and nothing was checked.
    "reduce_and-no axes": (lambda: reduce.reduce_and(f32(1), ()), TypeError, "integer or bool"),
    "reduce_sum-no axes": (lambda: reduce.reduce_sum(np.True_, ()), TypeError, "number"),
    "convert_element_type": (
        lambda: convert.convert_element_type_p.shape(
            KEYS, new_dtype=np.dtype("float32"), weak_type=False
        ),
        TypeError,
        "random keys do not convert",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    call, error, words = ERRORS[case]
    with pytest.raises(error, match=words) as caught:
        call()
    assert str(caught.value).startswith(f"[{case.split('-')[0]}] ")
    assert "Fix:" in str(caught.value)
