"""What kinds of numbers functions take, and what they make of them: values and refusals.

The dtypes of results are those of tests/surface_settings; the values here are NumPy's, and where
NumPy has others, those that JAX 0.10.2 printed.
"""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.errors import TypePromotionError

BOOLS = np.array([True, False, True])
FLIPPED = np.array([True, True, False])


def refused(error, pattern, call):
    with pytest.raises(error, match=pattern) as caught:
        call()
    assert "Fix:" in str(caught.value)


# --- bools and powers ----------------------------------------------------------------------


def test_bools_are_shifted_as_integers():
    x, y = jnp.asarray(BOOLS), jnp.asarray(FLIPPED)
    np.testing.assert_array_equal(x << y, [2, 0, 1])
    np.testing.assert_array_equal(x >> y, [0, 0, 1])
    np.testing.assert_array_equal(gf.jit(jnp.left_shift)(x, y), [2, 0, 1])
    assert (x << y).dtype == np.int32


def test_a_known_power_keeps_the_dtype_of_the_base():
    small = jnp.array([2, 3], "int8")
    assert (small ** jnp.asarray(2, "int32")).dtype == np.int8
    np.testing.assert_array_equal(small ** jnp.asarray(2, "int32"), [4, 9])
    np.testing.assert_array_equal(jnp.asarray(BOOLS) ** jnp.asarray(2), [1, 0, 1])
    np.testing.assert_array_equal(2 ** jnp.asarray(BOOLS), [2, 1, 2])
    assert not (2 ** jnp.asarray(BOOLS)).weak_type
    # Only what is traced takes part in promotion.
    assert gf.jit(lambda x, y: x**y)(small, jnp.asarray(2, "int32")).dtype == np.int32
    refused(TypeError, "negative powers", lambda: small ** jnp.asarray(-1))


# --- complex numbers of Python's -----------------------------------------------------------

REAL_OF_COMPLEX = {
    "array": lambda: jnp.array(1j, "int8"),
    "list": lambda: jnp.array([[1, 2j]], "float32"),
    "asarray": lambda: jnp.asarray(1j, float),
    "scalar type": lambda: jnp.float32(1j),
    "full": lambda: jnp.full(2, 1j, "int32"),
    "lax.full": lambda: lax.full((2,), 1j, "float16"),
    "full_like": lambda: jnp.full_like(np.ones(2, "float32"), 1j),
    "convert_element_type": lambda: lax.convert_element_type(1j, float),
    "fold_in": lambda: gf.random.fold_in(gf.random.key(0), 1j),
}


@pytest.mark.parametrize("name", REAL_OF_COMPLEX)
def test_complex_numbers_become_no_real_ones(name):
    """They lost their imaginary part silently."""
    refused(TypeError, "complex", REAL_OF_COMPLEX[name])


def test_complex_arrays_do():
    assert jnp.asarray(jnp.array(2 + 1j), "int8") == 2
    assert jnp.array(np.complex64(2 + 1j), "int8") == 2
    assert jnp.array(1j, bool)
    assert jnp.astype(2 + 1j, float) == 2


@pytest.mark.parametrize("wrap", [lambda f: f, gf.jit, gf.vmap], ids=["eager", "jit", "vmap"])
def test_a_bool_of_a_complex_number_looks_at_both_parts(wrap):
    """Imaginary numbers were False; nan is True in either part."""
    x = jnp.array([1j, 0, 1, complex(np.nan, 0), complex(0, np.nan), -0.0, 1 + 1j], "complex64")
    np.testing.assert_array_equal(wrap(lambda v: v.astype(bool))(x), np.asarray(x) != 0)
    np.testing.assert_array_equal(wrap(lambda v: (v * 2).astype(bool))(x), np.asarray(x) != 0)


# --- dtypes that are asked for -------------------------------------------------------------


def test_full_with_a_dtype_is_strong():
    assert not jnp.full(2, jnp.asarray(1), "int32").weak_type
    assert jnp.full(2, jnp.asarray(1)).weak_type


def test_tri_has_float32_with_x64():
    with gf.enable_x64(True):
        assert jnp.tri(3).dtype == np.float32
        assert jnp.tri(3, dtype=float).dtype == np.float64


# --- updates -------------------------------------------------------------------------------

# Values of JAX 0.10.2: what combines computes in the common dtype, and converts what comes out.
UPDATES = [
    (lambda: jnp.array([3]).at[0].add(-0.5), [2]),
    (lambda: jnp.array([3]).at[0].multiply(0.5), [1]),
    (lambda: jnp.array([3]).at[jnp.array([0, 0])].add(0.5), [4]),
    (lambda: jnp.array([3]).at[0].subtract(0.5), [2]),
    (lambda: jnp.array([3]).at[0].divide(0.5), [np.inf]),
    (lambda: jnp.array([4]).at[0].power(0.5), [1]),
    (lambda: jnp.array([3], "int8").at[0].add(jnp.float32(300)), [127]),
    (lambda: jnp.array([3], "int8").at[0].add(jnp.int32(300)), [47]),
    (lambda: jnp.array([200], "uint8").at[0].min(jnp.int8(-1)), [255]),
    (lambda: jnp.array([2, 3]).at[:1].add(0.75), [2, 3]),
    (lambda: jnp.array([3, 5]).at[jnp.array([True, False])].add(-0.5), [2, 5]),
    (lambda: jnp.array([True, False]).at[jnp.array([0, 1])].subtract(1), [False, True]),
    (lambda: jnp.array([True, False]).at[jnp.array([0, 1])].add(-1), [False, True]),
    (lambda: jnp.array([True, False]).at[jnp.array([0, 1])].multiply(0.25), [True, False]),
    (lambda: jnp.array([True, False]).at[jnp.array([0, 1])].divide(0.25), [1, 0]),
    (lambda: jnp.array([True, False]).at[jnp.array([0, 1])].power(0), [1, 1]),
    (lambda: jnp.array([3.0]).at[0].multiply(jnp.array(1j + 2)), [6]),
]


@pytest.mark.filterwarnings("ignore:.at.:FutureWarning")
@pytest.mark.parametrize("number", range(len(UPDATES)))
def test_updates_are_computed_in_the_common_dtype(number):
    """Values were converted first: 3 plus -0.5 was 3."""
    call, want = UPDATES[number]
    np.testing.assert_array_equal(call(), want)
    np.testing.assert_array_equal(gf.jit(call)(), want)


@pytest.mark.parametrize("name", ["add", "multiply", "subtract", "divide", "power"])
def test_bools_are_not_added_to_bools(name):
    method = getattr(jnp.asarray(BOOLS).at[0], name)
    refused(TypeError, "must be a number", lambda: method(True))


# --- known numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [1.7, np.float32(1.5), True, 1 + 1j, jnp.asarray(1.7)])
def test_shifts_are_cut_to_integers(shift):
    np.testing.assert_array_equal(jnp.roll(jnp.arange(4), shift), [3, 0, 1, 2])
    np.testing.assert_array_equal(gf.jit(jnp.roll)(jnp.arange(4), shift), [3, 0, 1, 2])
    np.testing.assert_array_equal(gf.jit(lambda x: jnp.roll(x, shift))(jnp.arange(4)), [3, 0, 1, 2])


def test_counts_are_not():
    """``histogram(x, 1.5)`` had one bin."""
    x = jnp.arange(3)
    refused(TypeError, "must be an int", lambda: jnp.histogram(x, 1.5))
    refused(TypeError, "must be an int", lambda: jnp.partition(x, np.float32(1)))
    np.testing.assert_array_equal(jnp.repeat(x, jnp.asarray(BOOLS)), [0, 2])
    np.testing.assert_array_equal(jnp.repeat(x, np.array([2, 0, 1], "uint64")), [0, 0, 2])


def test_starts_have_one_dtype():
    x = jnp.arange(12).reshape(3, 4)
    for call in (
        lambda: lax.dynamic_slice(x, (jnp.int8(0), 1), (2, 2)),
        lambda: lax.dynamic_update_slice(x, x[:1], (jnp.int8(0), 1)),
    ):
        refused(TypeError, "starts must have one dtype", call)
    np.testing.assert_array_equal(
        lax.dynamic_slice(x, (jnp.int8(1), jnp.int8(1)), (1, 2)), [[5, 6]]
    )
    assert lax.dynamic_slice_in_dim(x, jnp.int8(1), 2).shape == (2, 4)


def test_shapes_of_lists():
    assert jnp.shape([[1, 2], (3, 4)]) == (2, 2)
    assert jnp.ndim((1, 2)) == 1
    assert jnp.size([[1, 2, 3]]) == 3


# --- what is refused -----------------------------------------------------------------------

ONE = jnp.ones(3)
REFUSED = {
    "arange": (TypeError, "arange", lambda: jnp.arange(True)),
    "arange dtype": (TypeError, "arange", lambda: jnp.arange(3, dtype=bool)),
    "argpartition": (TypeError, "argpartition", lambda: jnp.argpartition(BOOLS, 1)),
    "ediff1d": (TypeError, "ediff1d", lambda: jnp.ediff1d(BOOLS)),
    "fabs": (TypeError, "fabs.*real", lambda: jnp.fabs(1j)),
    "kron": (TypeError, "kron", lambda: jnp.kron(BOOLS, FLIPPED)),
    "partition": (TypeError, "partition", lambda: jnp.partition(BOOLS, 1)),
    "polyfit": (ValueError, "must hold floats", lambda: jnp.polyfit(np.arange(3), ONE, 1)),
    "round": (TypeError, "round", lambda: jnp.round(BOOLS)),
    "round()": (TypeError, "round", lambda: round(jnp.asarray(True))),
    "vander": (TypeError, "vander", lambda: jnp.vander(BOOLS)),
    "quantile": (TypeError, "quantile.*a float", lambda: jnp.quantile(ONE, 1)),
    "nanquantile": (TypeError, "nanquantile.*a float", lambda: jnp.nanquantile(ONE, True)),
    "clip": (ValueError, "clip.*real", lambda: jnp.clip(ONE, 1j)),
    "shape_as_value": (TypeError, "vector of integers", lambda: lax.shape_as_value(ONE)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    refused(*REFUSED[name])


MIXED = {
    "logical_and": lambda: jnp.logical_and(ONE, np.ones(3, "int8")),
    "place": lambda: jnp.place(ONE, BOOLS, np.ones(3, "int8"), inplace=False),
    "fill_diagonal": lambda: jnp.fill_diagonal(jnp.eye(2), np.ones(2, "int8"), inplace=False),
    "select": lambda: jnp.select([ONE], [ONE]),
}


@pytest.mark.parametrize("name", MIXED)
def test_strict_promotion_refuses_what_is_not_promoted_either(name):
    MIXED[name]()
    with gf.numpy_dtype_promotion("strict"):
        refused(TypePromotionError, "strict promotion", MIXED[name])


RANKS = {
    "matvec": lambda: jnp.matvec(np.ones((2, 2)), np.ones((3, 2))),
    "vecmat": lambda: jnp.vecmat(np.ones((3, 2)), np.ones((2, 2))),
    "bernoulli": lambda: gf.random.bernoulli(gf.random.key(0), np.full(2, 0.5, "float32"), (3, 2)),
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_are_not_promoted_where_that_is_forbidden(name):
    RANKS[name]()
    with gf.numpy_rank_promotion("raise"):
        refused(ValueError, "one rank", RANKS[name])


# --- mixtures in products ------------------------------------------------------------------


def test_products_take_mixtures_where_their_dtype_is_asked_for():
    x, y = np.array([1, -2, 3], "int32"), np.array([1, 2, 3], "uint32")
    for function in (jnp.dot, jnp.inner, jnp.vdot, jnp.matmul):
        with gf.numpy_dtype_promotion("strict"):
            out = function(x, y, preferred_element_type="float32")
        assert (out, out.dtype) == (6, np.float32)
    assert jnp.dot(2, x, preferred_element_type="float32").dtype == np.float32


def test_products_of_bools_say_whether_both_hold_anywhere():
    assert jnp.vecdot(BOOLS, FLIPPED) and not jnp.vecdot(BOOLS, ~BOOLS)
    np.testing.assert_array_equal(jnp.outer(BOOLS, FLIPPED), np.outer(BOOLS, FLIPPED))


def test_lists_of_arrays_are_converted_one_by_one():
    """They were promoted first, which strict promotion refuses."""
    with gf.numpy_dtype_promotion("strict"):
        out = jnp.array([jnp.ones(2), jnp.ones(2, "int8")], "float16")
    assert out.dtype == np.float16


def test_buffers_of_arrays():
    np.testing.assert_array_equal(jnp.frombuffer(jnp.arange(4), "int8", 3, 2), [0, 0, 1])


def test_scalars_of_numpy_are_their_values():
    """Eager ops remember them: by their bits, and never for longer than these stay."""
    x = jnp.ones(2)
    for zero, sign in ((np.float32(0.0), 1), (np.float32(-0.0), -1), (0.0, 1), (-0.0, -1)):
        np.testing.assert_array_equal(jnp.divide(x, zero), [sign * np.inf] * 2)
        np.testing.assert_array_equal(lax.div(x, jnp.asarray(zero)), [sign * np.inf] * 2)
    assert np.isnan(lax.mul(x, np.float32("nan"))).all()
    number = np.array(2.0, np.float32)
    for value in (2.0, 3.0, 2.0):
        number[...] = value
        np.testing.assert_array_equal(lax.mul(x, number), [value, value])
    assert (x * np.float16(2)).dtype == np.float32 and (x * np.int32(2)).dtype == np.float32
    assert (jnp.arange(2) * np.uint8(200)).tolist() == [0, 200]
    with pytest.raises(TypeError, match="object"):
        x * np.array(None)


def test_remembered_scalars_do_not_change_with_the_array_that_they_came_from():
    x, number = jnp.ones(2), np.array(0.0, np.float32)
    for value in (11.0, 12.0, 13.0):
        number[...] = value
        np.testing.assert_array_equal(lax.mul(x, number), [value, value])
    number[...] = 0
    for value in (11.0, 12.0, 13.0):
        np.testing.assert_array_equal(lax.mul(x, np.float32(value)), [value, value])
        np.testing.assert_array_equal(lax.mul(x, np.array(value, np.float32)), [value, value])


def test_what_ops_remember_is_not_donated():
    """A result that is made of a remembered number has memory of its own."""
    twice = gf.jit(lambda x: x * 2, donate_argnums=0)
    for _ in range(2):
        x = jnp.asarray(3.0)
        twice(jnp.reciprocal(x) * 0 + 1)
        np.testing.assert_array_equal(jnp.reciprocal(jnp.array([4.0])), [0.25])
        np.testing.assert_array_equal(jnp.degrees(jnp.array([np.pi])), [np.float32(180)])
        for made in (jnp.maximum(x, 3.0), lax.max(x, np.float32(3.0)), jnp.where(True, 3.0, x)):
            assert float(twice(made)) == 6.0
        assert float(jnp.asarray(1.0) + 3.0) == 4.0
