"""Sharing memory by DLPack: dtypes that NumPy has not, read-only memory, and torch."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import dlpack

FLOATS = [
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
OTHERS = ["bool", "int8", "uint16", "float16", "float32", "complex64"]
VALUES = [[1.0, 2.0, 4.0], [0.5, 0.25, 8.0]]  # numbers of each dtype but of integers and bools


class Other:
    """An array of another library, as far as DLPack sees it; an old one knows no versions."""

    def __init__(self, array, is_old=False):
        self.array, self.is_old = array, is_old

    def __dlpack__(self, **options):
        if self.is_old and options:
            raise TypeError("no options")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)


def address(x):
    return np.asarray(x).__array_interface__["data"][0]


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
def test_there_and_back(dtype, is_old):
    """Weights in bfloat16 could neither leave nor come in."""
    x = jnp.array(VALUES).astype(dtype)
    back = jnp.from_dlpack(Other(x, is_old))
    assert back.dtype == x.dtype and address(back) == address(x)
    np.testing.assert_array_equal(np.asarray(back), np.asarray(x))
    copied = jnp.from_dlpack(Other(x, is_old), copy=True)
    assert copied.dtype == x.dtype and address(copied) != address(x)
    assert dlpack.is_supported_dtype(dtype)


def test_capsules():
    x = jnp.array([1.0, 2.0], jnp.bfloat16)
    capsule = dlpack.to_dlpack(x)
    assert dlpack.from_dlpack(capsule).dtype == jnp.bfloat16
    with pytest.raises(BufferError, match=r"\[from_dlpack\] the capsule must be new"):
        dlpack.from_dlpack(capsule)


def test_arrays_of_ml_dtypes():
    """NumPy cannot export them itself; the array may be changed in shape by its owner later."""
    host = np.array([1.0, 2.0], ml_dtypes.bfloat16)
    x = jnp.from_dlpack(host)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2.5 discourages it
        host.shape = (2, 1)
    assert x.dtype == jnp.bfloat16 and x.shape == (2,) and x.tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_read_only_memory(dtype):
    """It was refused; nobody writes to it, donated or not."""
    host = np.arange(4).astype(dtype)
    host.flags.writeable = False
    x = jnp.from_dlpack(host)
    assert address(x) == address(host)
    y = gpuflow.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert y.tolist() == [1, 2, 3, 4] and host.tolist() == [0, 1, 2, 3]


def test_strides_and_sizes():
    host = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    np.testing.assert_array_equal(np.asarray(jnp.from_dlpack(host.T)), host.T)
    with pytest.raises(ValueError, match="row-major order without gaps"):
        jnp.from_dlpack(host.T, copy=False)
    assert jnp.from_dlpack(np.zeros((0, 3), ml_dtypes.bfloat16)).shape == (0, 3)
    assert jnp.from_dlpack(np.array(3, ml_dtypes.bfloat16)).shape == ()


def test_refusals():
    with pytest.raises(BufferError, match=r"\[dlpack\] the dtype must be .*got i4\[1\]"):
        jnp.array([1], jnp.int4).__dlpack__()
    with pytest.raises(BufferError, match=r"\[dlpack\] dl_device must be \(1, 0\)"):
        jnp.ones(1).__dlpack__(dl_device=(2, 0))
    with pytest.raises(TypeError, match=r"\[from_dlpack\] the array must have __dlpack__"):
        jnp.from_dlpack([1, 2])
    # From Python 3.12 on NumPy asks for the buffer first, and refuses in its own words.
    with pytest.raises(ValueError, match="copy"):
        np.asarray(jnp.ones(2), dtype=np.float64, copy=False)
    with pytest.raises(ValueError, match=r"\[numpy\] another dtype needs a copy"):
        jnp.ones(2).__array__(np.float64, copy=False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "int8"])
def test_torch(dtype):
    torch = pytest.importorskip("torch")
    theirs = torch.tensor(VALUES).to(getattr(torch, dtype))
    x = jnp.from_dlpack(theirs)
    assert x.dtype.name == dtype and address(x) == theirs.data_ptr()
    np.testing.assert_array_equal(np.asarray(x).astype(float), theirs.double().numpy())
    back = torch.from_dlpack(x)
    assert back.dtype == theirs.dtype and back.data_ptr() == address(x)
    np.testing.assert_array_equal(back.double().numpy(), theirs.double().numpy())
