"""Avals: interning, weak types, tangents, and which values have one."""

import pickle

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.core.aval import KEY_DTYPES, ShapedArray, aval_of, is_value, storage_dtype


def test_equal_avals_are_one_object():
    first = ShapedArray((2, 3), np.float32)
    assert first is ShapedArray([2, np.int64(3)], "float32")
    assert first is ShapedArray((2, 3), np.dtype("f4"), False)
    assert first is not ShapedArray((2, 3), np.float32, True)
    assert pickle.loads(pickle.dumps(first)) is first
    assert first.update(shape=(6,)) is ShapedArray((6,), np.float32)


def test_avals_are_immutable():
    with pytest.raises(AttributeError, match=r"\[aval\] avals are immutable"):
        ShapedArray((), np.float32).shape = (1,)


def test_types_are_unsplit_in_the_memory_of_a_device():
    aval = gf.typeof(jnp.ones((2, 3)))
    assert aval.sharding.mesh.empty and aval.sharding.spec == gf.P(None, None)
    # As programs for JAX shape the types of results.
    assert aval.sharding.update(spec=gf.P(*aval.sharding.spec[1:])).spec == gf.P(None)
    assert repr(aval.memory_space) == "MemorySpace.Device"


def test_shardings_of_types_request_no_devices():
    """optax passes them on as out_sharding."""
    x = jnp.ones((4, 2))
    nothing = gf.typeof(x).sharding
    made = [
        jnp.zeros((4, 2), device=nothing),
        jnp.reshape(x, (2, 4), out_sharding=nothing),
        gf.random.normal(gf.random.key(0), (4, 2), out_sharding=nothing),
        gf.lax.full((4, 2), 1.0, sharding=nothing),
        gf.device_put(x, nothing),
        gf.jit(lambda x: gf.device_put(2 * x, nothing))(x),
    ]
    assert {array.sharding for array in made} == {x.sharding}
    # As on JAX, a constraint must constrain.
    with pytest.raises(ValueError, match="only a Mesh has devices"):
        gf.lax.with_sharding_constraint(x, nothing)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("float32", "f32[2]"),
        ("bfloat16", "bf16[2]"),
        ("float16", "f16[2]"),
        ("int8", "i8[2]"),
        ("uint64", "u64[2]"),
        ("bool", "bool[2]"),
        ("complex64", "c64[2]"),
    ],
)
def test_text(dtype, text):
    assert str(ShapedArray((2,), getattr(ml_dtypes, dtype, dtype))) == text


def test_key_dtype_is_extended():
    key = KEY_DTYPES["threefry2x32"]
    aval = ShapedArray((3,), key)
    assert str(aval) == "key<fry>[3]"
    assert storage_dtype(key) == np.uint64
    assert aval.tangent().dtype == dtypes.float0


@pytest.mark.parametrize(
    ("value", "dtype", "weak"),
    [
        (True, "bool", False),
        (3, "int32", True),
        (3.0, "float32", True),
        (3j, "complex64", True),
        (np.float64(3), "float32", False),
        (np.int64(3), "int32", False),
        (np.bool_(True), "bool", False),
        (np.zeros(2, "uint64"), "uint32", False),
        (np.zeros(2, ">f8"), "float32", False),
        (np.zeros(2, ml_dtypes.bfloat16), ml_dtypes.bfloat16, False),
    ],
)
def test_aval_of_host_values(value, dtype, weak):
    aval = aval_of(value)
    assert (aval.dtype, aval.weak_type) == (np.dtype(dtype), weak)
    assert aval.dtype.isnative


def test_x64_keeps_64_bits():
    with gf.enable_x64():
        assert aval_of(3.0).dtype == np.float64
        assert aval_of(np.zeros(2, ">i8")).dtype == np.int64
    assert aval_of(3.0).dtype == np.float32


def test_tangents_keep_weakness_and_integers_have_none():
    assert aval_of(2.0).tangent() is ShapedArray((), np.float32, True)
    assert jnp.ones(2).aval.tangent() is ShapedArray((2,), np.float32)
    assert aval_of(2).tangent() is ShapedArray((), dtypes.float0)
    assert aval_of(True).tangent().dtype == dtypes.float0


@pytest.mark.parametrize("value", [None, "a", [1.0], (1.0,), {"a": 1}, object(), np.float64])
def test_other_values_have_no_aval(value):
    assert not is_value(value)
    with pytest.raises(TypeError, match=r"\[aval\] operands must be arrays or numbers.*Fix:"):
        aval_of(value)


@pytest.mark.parametrize(
    "value",
    [np.array(["a"]), np.array([None]), np.zeros(1, [("a", "f4")]), np.array(["2020"], "M8[Y]")],
)
def test_arrays_of_other_kinds_are_refused(value):
    with pytest.raises(TypeError, match=r"\[aval\] arrays must hold numbers or booleans"):
        gf.jit(lambda x: x)(value)


def test_masked_arrays_are_refused():
    with pytest.raises(ValueError, match=r"masked arrays are not supported.*filled"):
        jnp.sin(np.ma.masked_array([1.0, 2.0], [True, False]))
