"""What the tests of matrix ops on a device share: operands, calls and comparisons."""

import numpy as np
from stand_in_cupy import device

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
LETTERS = dict(zip(DTYPES, "sdcz", strict=True))
BATCHES = [(), (3,), (2, 2)]
RNG = np.random.default_rng(0)


def numbers(shape, dtype):
    x = RNG.normal(size=shape)
    x = x + 1j * RNG.normal(size=shape) if np.dtype(dtype).kind == "c" else x
    return x.astype(dtype)


def positive(shape, dtype):
    x = numbers(shape, dtype)
    return x @ x.conj().swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1], dtype=dtype)


def scattered(a):
    """The same matrices, which lie with their dimensions exchanged and gaps between them."""
    wide = np.zeros((*a.shape[:-2], 2 * a.shape[-1], a.shape[-2]), a.dtype)
    wide[..., ::2, :] = a.swapaxes(-1, -2)
    return wide[..., ::2, :].swapaxes(-1, -2)


def close(got, want, dtype, scale=1.0):
    """Within a few roundings of the sums of a matrix of this size."""
    assert got.dtype == np.dtype(dtype)
    bound = 200 * np.finfo(dtype).eps * scale
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound)


def wide(a):
    return np.asarray(a, np.complex128 if np.asarray(a).dtype.kind == "c" else np.float64)


def call(primitive, cupy, *operands, **params):
    result = primitive.impl(cupy.xp, *map(device, operands), **params)
    return [out.get() for out in result] if isinstance(result, list) else result.get()
