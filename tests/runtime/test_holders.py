"""Who holds an array's memory: the same answers on every version of Python."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.runtime.array import Array

SIZES = [5, 1 << 20]  # memory of its own, and a block of the pool


def asked(x):
    """Whether others see the memory of an Array, asked as a program's caller asks."""
    arrays = [x._data]
    return x.device.driver.is_shared(arrays, 0)


@pytest.mark.parametrize("size", SIZES)
def test_an_array_alone_holds_its_memory(size):
    x = jnp.arange(size) * 1.0
    same = x  # one Array by two names is still one
    assert not asked(x) and not asked(same)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x._data,
        lambda x: np.asarray(x),
        lambda x: np.asarray(x)[1:3],
        lambda x: np.asarray(x)[1:3].view(np.int32),
        lambda x: memoryview(np.asarray(x)),
        lambda x: np.from_dlpack(x),
        lambda x: Array(x._data, x.aval, x.device),
    ],
    ids=["data", "numpy", "slice", "view", "memoryview", "dlpack", "array"],
)
def test_whoever_else_holds_memory_is_seen(size, hold):
    x = jnp.arange(size) * 1.0
    if x.device.platform != "cpu":
        pytest.skip("np.asarray copies what a GPU holds")
    other = hold(x)
    assert asked(x)
    del other
    assert not asked(x)


@pytest.mark.parametrize("size", SIZES)
def test_no_holder_is_imagined_along_the_way_of_a_call(size):
    """Where a version of Python counts otherwise, each donated array would be copied unseen."""
    step = gf.jit(lambda x: x * 2 + 1, donate_argnums=0)
    x = step(jnp.arange(size) * 1.0)
    place = x.unsafe_buffer_pointer()
    for _ in range(3):
        x = step(x)
    assert x.unsafe_buffer_pointer() == place


def test_nor_where_several_devices_are_in_use():
    """A list of what each device has is made there: the one before it still held the array."""
    elsewhere = gf.device_put(jnp.ones(3), gf.devices("cuda_sim")[0])
    step = gf.jit(lambda x: x * 2 + 1, donate_argnums=0)
    x = step(jnp.arange(5) * 1.0)
    place = x.unsafe_buffer_pointer()
    for _ in range(3):
        x = step(x)
    assert x.unsafe_buffer_pointer() == place
    np.testing.assert_array_equal(elsewhere, np.ones(3))
