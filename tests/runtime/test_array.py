"""Array: conversions, immutability, hashing, printing, copies and pickles."""

import copy
import pickle
import weakref

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.runtime.array import as_numpy, from_numpy


def test_attributes():
    x = jnp.ones((2, 3), "float16")
    assert (x.shape, x.ndim, x.size, x.nbytes, x.itemsize) == ((2, 3), 2, 6, 12, 2)
    assert x.dtype == np.float16 and not x.weak_type
    assert x.devices() == {gf.devices()[0]} and x.device == gf.devices()[0]
    assert len(x) == 2 and x.block_until_ready() is x
    assert isinstance(x, gf.Array)


def test_numpy_sees_the_values_but_cannot_write():
    x = jnp.arange(3.0)
    view = np.asarray(x)
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 5
    copy = np.array(x)
    copy[0] = 5
    assert x[0].item() == 0.0
    assert np.asarray(x, dtype="f8").dtype == np.float64
    np.testing.assert_array_equal(np.sin(x), np.sin(view))


def test_a_source_array_may_change():
    source = np.zeros(3, "f")
    arrays = [jnp.asarray(source), jnp.array(source), gf.device_put(source), jnp.add(source, 0)]
    source[:] = 9
    for x in arrays:
        np.testing.assert_array_equal(x, [0, 0, 0])


@pytest.mark.parametrize("index", [0, slice(None), (0, 1)])
def test_items_cannot_be_assigned(index):
    x = jnp.ones((2, 2))
    with pytest.raises(TypeError, match=r"\[setitem\] arrays are immutable.*x\.at\[.*\]\.set"):
        x[index] = 1
    with pytest.raises(TypeError, match=r"\[setitem\] arrays are immutable"):
        gf.jit(lambda v: v.__setitem__(index, 1))(x)
    with pytest.raises(AttributeError):
        x.shape = (4,)


def test_updates_make_new_arrays():
    x = jnp.zeros(3)
    y = x.at[1].set(5.0)
    np.testing.assert_array_equal(x, [0, 0, 0])
    np.testing.assert_array_equal(y, [0, 5, 0])
    z = x
    z += 1
    np.testing.assert_array_equal(x, [0, 0, 0])
    np.testing.assert_array_equal(z, [1, 1, 1])


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", ml_dtypes.bfloat16, "int8", "uint32", "bool"]
)
def test_scalars_convert(dtype):
    x = jnp.asarray(1, dtype)
    assert (bool(x), int(x), float(x), complex(x), x.item()) == (True, 1, 1.0, 1 + 0j, 1)
    assert bool(jnp.ones((1, 1), dtype))
    if np.dtype(dtype).kind in "iu":
        assert [10, 20][x] == 20 and list(range(x)) == [0]


def test_conversions_of_the_wrong_kind():
    many, one = jnp.ones(2), jnp.ones((1,))
    for convert in (float, int, complex):
        for x in (many, one):
            with pytest.raises(TypeError, match=r"only arrays of one element convert.*Fix:"):
                convert(x)
    with pytest.raises(ValueError, match=r"truth value.*x\.any\(\) or x\.all\(\)"):
        bool(many)
    with pytest.raises(TypeError, match=r"\[index\] only integer scalars.*Fix: int\(x\)"):
        range(jnp.asarray(1.0))
    for convert in (int, float):
        with pytest.raises(TypeError, match=r"complex numbers do not convert.*x\.real"):
            convert(jnp.asarray(1j))
    with pytest.raises(TypeError, match=r"\[len\]"):
        len(jnp.asarray(1.0))
    with pytest.raises(TypeError, match=r"\[iter\].*shape \(\)"):
        iter(jnp.asarray(1.0))


def test_arrays_do_not_hash():
    with pytest.raises(TypeError, match=r"\[hash\] arrays are not hashable; got f32\[2\]"):
        hash(jnp.ones(2))


def test_iteration_membership_and_lists():
    x = jnp.arange(3)
    assert [int(v) for v in x] == [0, 1, 2]
    assert 2 in x and 7 not in x
    assert x.tolist() == [0, 1, 2] and x.tobytes() == np.arange(3, dtype="i4").tobytes()
    assert x != "a" and x is not None


def test_text():
    assert repr(jnp.asarray([1.0, 2.0])) == "Array([1., 2.], dtype=float32)"
    assert repr(jnp.asarray(1.0) * 1) == "Array(1., dtype=float32, weak_type=True)"
    assert "shape=(0, 3)" in repr(jnp.zeros((0, 3)))
    assert str(jnp.arange(3)) == "[0 1 2]"
    assert f"{jnp.asarray(1.5):.2f}" == "1.50" and f"{jnp.arange(2)}" == "[0 1]"


def test_copies_and_pickles():
    x = jnp.arange(3.0)
    assert copy.copy(x) is x
    deep = copy.deepcopy(x)
    deep.delete()
    back = pickle.loads(pickle.dumps(jnp.asarray(2.0) * 1))
    assert back.weak_type and back.item() == 2.0
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)), x)
    half = pickle.loads(pickle.dumps(jnp.ones(2, ml_dtypes.bfloat16)))
    assert half.dtype == ml_dtypes.bfloat16


def test_delete():
    x = jnp.ones(3)
    x.delete()
    assert x.is_deleted()
    for use in (
        lambda: repr(x),
        lambda: x.data,
        lambda: x + 1,
        x.block_until_ready,
        x.tolist,
        lambda: x[0],
    ):
        with pytest.raises(RuntimeError, match=r"\[array\].*deleted f32\[3\]"):
            use()
    with pytest.raises(ValueError):  # JAX's class where a compiled program gets such an array
        x + 1
    assert x.shape == (3,)


def test_from_and_to_numpy():
    aval = jnp.ones((2, 2), "int32").aval
    array = from_numpy(np.arange(8).reshape(2, 4)[:, ::2], aval)
    np.testing.assert_array_equal(array, [[0, 2], [4, 6]])
    assert array.data.flags.c_contiguous and array.data.dtype == np.int32
    assert as_numpy(array, aval) is array.data
    with pytest.raises(OverflowError, match=r"Python ints must fit int32; got 1099511627776.*Fix:"):
        gf.jit(lambda x: x)(2**40)
    with pytest.raises(TypeError, match=r"\[array\] operands must hold values.*ShapeDtypeStruct"):
        gf.jit(lambda x: x)(gf.ShapeDtypeStruct((2,), np.float32))


def test_device_put_and_get():
    put = gf.device_put({"a": np.ones(2), "b": 3})
    assert isinstance(put["a"], gf.Array) and put["b"].item() == 3
    got = gf.device_get(put)
    assert type(got["a"]) is np.ndarray and got["a"].dtype == np.float32
    assert gf.block_until_ready(put) is put


def test_keys_show_the_words_inside():
    key = gf.random.key(7)
    assert repr(key) == "Array((), dtype=key<fry>) overlaying:\n[0 7]"
    text = repr(gf.random.split(key, 2))
    assert text.startswith("Array((2,), dtype=key<fry>) overlaying:\n[[") and str(key)
    assert repr(gf.random.split(key, 2)[:0]) == "Array((0,), dtype=key<fry>) overlaying:\n[]"


def test_no_copy_on_the_host_keeps_memory_of_a_gpu():
    """From Python 3.12 on NumPy asked for a buffer, and that held the array."""
    x = gf.device_put(jnp.arange(3), gf.devices("cuda_sim")[0])
    is_alive = weakref.ref(x)
    copied = np.asarray(x)
    del x
    assert is_alive() is None
    np.testing.assert_array_equal(copied, [0, 1, 2])


def test_the_elements_as_bytes():
    """bytes(x) iterated over the array: 4-byte numbers became single bytes."""
    x = jnp.array([3, 1, 2])
    assert bytes(x) == np.array([3, 1, 2], np.int32).tobytes()
    view = x.__buffer__(0)
    assert view.readonly and view.tolist() == [3, 1, 2]
    with pytest.raises(BufferError, match=r"bf16\[2\].*Fix:"):
        jnp.ones(2, "bfloat16").__buffer__(0)
    elsewhere = gf.device_put(x, gf.devices("cuda_sim")[0])
    with pytest.raises(BufferError, match=r"in the host's memory.*Fix:"):
        elsewhere.__buffer__(0)
    assert x.unsafe_buffer_pointer() == x.host().ctypes.data
