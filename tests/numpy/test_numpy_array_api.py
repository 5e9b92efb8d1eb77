"""The Python array API standard, version 2024.12: names, namespace, exchange, special cases."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from fractions import Fraction
from importlib import metadata

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp


def words(text):
    return text.split()


# All functions, constants and dtypes of the standard, by its chapters.
NAMES = words("""
arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like
tril triu zeros zeros_like astype broadcast_arrays broadcast_to can_cast finfo iinfo isdtype
result_type bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64
complex128 abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift
bitwise_invert bitwise_or bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide
equal exp expm1 floor floor_divide greater greater_equal hypot imag isfinite isinf isnan less
less_equal log log1p log2 log10 logaddexp logical_and logical_not logical_or logical_xor maximum
minimum multiply negative nextafter not_equal positive pow real reciprocal remainder round sign
signbit sin sinh square sqrt subtract tan tanh trunc take take_along_axis matmul matrix_transpose
tensordot vecdot broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll
squeeze stack tile unstack argmax argmin count_nonzero nonzero searchsorted where unique_all
unique_counts unique_inverse unique_values argsort sort cumulative_prod cumulative_sum max mean
min prod std sum var all any diff e inf nan newaxis pi __array_namespace_info__
__array_api_version__
""")
LINALG = words("""
cholesky cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank
matrix_transpose outer pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm
""")
FFT = words("""
fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft fftfreq rfftfreq fftshift ifftshift
""")
METHODS = words("""
T mT device dtype ndim shape size to_device __abs__ __add__ __and__ __array_namespace__ __bool__
__complex__ __dlpack__ __dlpack_device__ __eq__ __float__ __floordiv__ __ge__ __getitem__ __gt__
__index__ __int__ __invert__ __le__ __lshift__ __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__
__or__ __pos__ __pow__ __rshift__ __sub__ __truediv__ __xor__
""")


def test_names():
    x = jnp.ones((2, 2))
    missing = [name for name in NAMES if not hasattr(jnp, name)]
    missing += [name for name in LINALG if not hasattr(jnp.linalg, name)]
    missing += [name for name in FFT if not hasattr(jnp.fft, name)]
    assert missing + [name for name in METHODS if not hasattr(x, name)] == []


def test_namespace():
    assert jnp.ones(3).__array_namespace__() is jnp
    assert jnp.ones(3).__array_namespace__(api_version="2024.12") is jnp
    assert gpuflow.jit(lambda x: x.__array_namespace__().sin(x))(jnp.zeros(2)).shape == (2,)


def test_info():
    info = jnp.__array_namespace_info__()
    assert info.default_device() is None and info.devices() == [None, *gpuflow.devices()]
    assert info.default_dtypes()["real floating"] == np.float32
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32"}
    with gpuflow.enable_x64(True):
        assert "complex128" in info.dtypes() and info.default_dtypes()["integral"] == np.int64


def test_devices():
    device = gpuflow.devices()[0]
    assert jnp.ones(3, device=device).device == device
    assert jnp.arange(3, device=device).to_device(device).device == device
    with pytest.raises(ValueError, match="stream must be None"):
        jnp.ones(3).to_device(device, stream=1)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", "uint32"])
def test_dlpack(dtype):
    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    there = np.from_dlpack(x)
    assert there.dtype == dtype and np.shares_memory(there, np.asarray(x))
    back = jnp.from_dlpack(there)
    assert back.dtype == dtype and bool((back == x).all())
    assert x.__dlpack_device__() == (1, 0)


# --- special cases -------------------------------------------------------------------------

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 1e-30, -1e30], np.float32
)
UNARY = words("""
abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan log log1p
log2 log10 negative positive reciprocal round signbit sin sinh square sqrt tan tanh trunc
""")
# What the standard leaves open, or NumPy has otherwise: the signs of zeros in maximum, minimum,
# sign. Quotients and remainders have a table of their own.
BINARY = words("""
add atan2 copysign divide equal greater hypot less logaddexp multiply nextafter not_equal pow
subtract
""")
COMPLEX = words("""
exp log sqrt sinh cosh tanh asinh acosh atanh expm1 log1p
""")


def check_special(got, want):
    got = np.asarray(got)
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    np.testing.assert_allclose(got, want, rtol=2e-6)  # two units in the last place
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize("name", UNARY)
def test_special_values(name):
    with np.errstate(all="ignore"):
        want = getattr(np, name)(SPECIAL)
    function = getattr(jnp, name)
    check_special(function(jnp.asarray(SPECIAL)), want)
    check_special(gpuflow.jit(function)(SPECIAL), want)


@pytest.mark.parametrize("name", BINARY)
def test_special_pairs(name):
    x, y = (part.ravel() for part in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x, y)
    function = getattr(jnp, name)
    check_special(function(jnp.asarray(x), jnp.asarray(y)), want)
    check_special(gpuflow.jit(function)(x, y), want)


def floored(x, y):
    """The standard's floor_divide and remainder of two floats, exactly before they are rounded."""
    zero = np.copysign(0.0, x) * np.copysign(1.0, y)
    if np.isnan(x) or np.isnan(y) or (np.isinf(x) and np.isinf(y)) or x == y == 0:
        return np.nan, np.nan
    if y == 0 or np.isinf(x):
        return np.copysign(np.inf, np.copysign(1.0, x) * np.copysign(1.0, y)), np.nan
    if np.isinf(y):
        if x == 0 or (x > 0) == (y > 0):
            return zero, x if x else np.copysign(0.0, y)
        return -1.0, y
    whole = math.floor(Fraction(x) / Fraction(y))
    rest = float(Fraction(x) - whole * Fraction(y))
    return float(whole) if whole else zero, rest if rest else np.copysign(0.0, y)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("mode", [lambda f: f, gpuflow.jit], ids=["eager", "jit"])
def test_quotients_and_remainders(dtype, mode):
    """Signs of zeros and infinities were what a subtraction left of them."""
    values = np.array([*SPECIAL[:-2], 7, -7, 0.25, 1e-4, -3e4, 12.5])
    with gpuflow.enable_x64(dtype == "float64"):
        x, y = (jnp.asarray(part.ravel()).astype(dtype) for part in np.meshgrid(values, values))
        pairs = zip(np.asarray(x).astype(float), np.asarray(y).astype(float), strict=True)
        want = np.array([floored(*pair) for pair in pairs]).T
        got = mode(lambda x, y: (x // y, x % y, jnp.divmod(x, y)))(x, y)
        limit = jnp.finfo(dtype)
    for result, wanted in ((got[0], want[0]), (got[1], want[1]), *zip(got[2], want, strict=True)):
        assert result.dtype == dtype
        result = np.asarray(result).astype(float)
        finite = np.abs(wanted) <= float(limit.max)
        # A quotient is rounded twice, and once more where the remainder was added.
        rtol = 3 * float(limit.eps)
        np.testing.assert_allclose(result[finite], wanted[finite], rtol=rtol)
        np.testing.assert_array_equal(result[np.isinf(wanted)], wanted[np.isinf(wanted)])
        np.testing.assert_array_equal(np.isnan(result), np.isnan(wanted))
        number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(result)[number], np.signbit(wanted)[number])


def test_derivatives_of_a_zero_remainder():
    """Its sign is set without losing the derivative."""
    for x, y in ((4.0, 2.0), (4.0, -2.0), (-4.0, 2.0), (5.0, 3.0), (-5.0, 3.0)):
        by_x, by_y = gpuflow.grad(jnp.remainder, (0, 1))(x, y)
        assert float(by_x) == 1 and float(by_y) == -math.floor(x / y)


@pytest.mark.parametrize("name", COMPLEX)
def test_special_complex_values(name):
    parts = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan)
    x = np.array([complex(p, q) for p in parts for q in (*parts, 2.0)], np.complex64)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x)
    if name == "expm1":  # of what is real NumPy has an imaginary part of nan beside inf and nan
        want.imag[x.imag == 0] = x.imag[x.imag == 0]
    got = np.asarray(getattr(jnp, name)(jnp.asarray(x)))
    check_special(got.real, want.real)
    check_special(got.imag, want.imag)


# --- libraries that ask for the namespace --------------------------------------------------


PROGRAM = """
import numpy as np, scipy.stats, sklearn, sklearn.decomposition, sklearn.metrics
import gpuflow, gpuflow.numpy as jnp

host = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
x = jnp.asarray(host)
skew = scipy.stats.skew(x)
assert isinstance(skew, gpuflow.Array)
np.testing.assert_allclose(skew, scipy.stats.skew(host), rtol=1e-4)
pca = sklearn.decomposition.PCA(2, svd_solver="full")
with sklearn.config_context(array_api_dispatch=True):
    assert abs(sklearn.metrics.mean_squared_error(x, x + 2) - 4) < 1e-5
    parts = pca.fit_transform(x)
assert isinstance(parts, gpuflow.Array)
np.testing.assert_allclose(np.abs(parts), np.abs(pca.fit_transform(host)), rtol=1e-3, atol=1e-4)
"""


def test_scipy_and_scikit_learn_compute_with_our_arrays():
    """Those of their functions that do not write into arrays; in a process of its own, since the
    switch is read when SciPy is imported."""
    if metadata.version("scikit-learn").startswith("1.5."):  # later ones bring it
        pytest.importorskip("array_api_compat")
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
