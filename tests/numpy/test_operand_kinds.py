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
