"""Complex numbers in kernels: pairs of real values, interleaved in memory."""

from __future__ import annotations

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

TOLERANCE = {"complex64": 3e-6, "complex128": 1e-13}  # some roundings of each part, of the modulus


def numbers(shape, seed=0, dtype="complex64"):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


PROGRAMS = {
    "map": lambda x, y: x * y + 2j * x - y / (x + 3),
    "mixed": lambda x, y: jnp.where(x.real > 0, x, y) * jnp.abs(y) + x.imag,
    "row": lambda x, y: (x - x.mean(1, keepdims=True)) * jnp.conj(y),
    "column": lambda x, y: (x * y).sum(0),
    "full": lambda x, y: (jnp.exp(x) * y).sum(),
    "transposed": lambda x, y: x.T * 2 + jnp.conj(y).T,
    "moved": lambda x, y: jnp.concatenate([x * 1j, jnp.pad(y, ((1, 0), (0, 0)))])[1:, ::-1],
    "gathered": lambda x, y: (x + y)[np.array([2, 0, 2])] * 1j,
    "updated": lambda x, y: (x * y).at[np.array([1, 1, 0])].add(x[:3]),
    "converted": lambda x, y: (x.real.astype("complex64") + jnp.int32(3)) * y,
}


@pytest.mark.parametrize("shape", [(37, 19), (1, 5), (64, 1), (3, 2048), (130, 33)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, shape):
    if name in ("gathered", "updated"):
        shape = (max(shape[0], 3), shape[1])
    x, y = numbers(shape), numbers(shape, 1)
    function = PROGRAMS[name]
    with gf.enable_x64():
        want = np.asarray(function(jnp.asarray(x, "complex128"), jnp.asarray(y, "complex128")))
    got = np.asarray(gf.jit(function)(x, y))
    assert got.dtype == (np.complex64 if want.dtype.kind == "c" else np.float32)
    scale = np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=3e-6 * scale)


def test_one_kernel():
    """Complex ops fuse with real ones."""

    def function(x, y, r):
        return jnp.abs(jnp.exp(x * y) * r + 1j).sum()

    x, y, r = numbers(99), numbers(99, 1), np.ones(99, np.float32)
    kernels = gf.jit(function).lower(x, y, r).compile().memory_analysis()
    assert kernels.temp_size_in_bytes == 0


@pytest.mark.parametrize(
    "array",
    [
        numbers((9, 8))[::2, ::-1],
        numbers((8, 9)).T,
        np.broadcast_to(numbers(1), (4, 3)),
        numbers(()),
        numbers((0, 3)),
        numbers((2, 0)),
        np.frombuffer(b"\0" * 4 + numbers(5).tobytes(), np.complex64, offset=4),
    ],
)
def test_awkward_arrays(array):
    got = gf.jit(lambda x: x * 2j + 1)(array)
    np.testing.assert_array_equal(np.asarray(got), array * np.complex64(2j) + np.complex64(1))


def test_signed_zeros_of_literals():
    """Equal numbers, other bits: one compiled program, and two literals."""
    x = np.array([1.0, -1.0], np.complex64)
    for zero in (complex(0.0, 0.0), complex(-0.0, -0.0), complex(0.0, -0.0)):
        got = np.asarray(gf.jit(lambda x, zero=zero: jnp.where(x.real > 2, x, zero))(x))
        assert np.signbit(got.real).all() == np.signbit(zero.real)
        assert np.signbit(got.imag).all() == np.signbit(zero.imag)


def test_sums_as_accurate_as_numpy():
    x = numbers(1 << 20) + np.complex64(1000 - 1000j)
    want = x.astype(np.complex128).sum()
    assert abs(complex(gf.jit(jnp.sum)(x)) - want) <= 2e-7 * abs(want)


def test_donated_in_place():
    x, y = jnp.asarray(numbers(1000)), jnp.asarray(numbers(1000, 1))
    want = np.asarray(x) * np.asarray(y)
    step = gf.jit(lambda x, y: x * y, donate_argnums=0)
    np.testing.assert_allclose(np.asarray(step(x, y)), want, rtol=1e-6, atol=1e-6)
    assert x.is_deleted()


def test_gradient():
    x = numbers(50)
    loss = gf.jit(lambda x: (jnp.abs(jnp.tanh(x) * x) ** 2).sum())
    slope = np.asarray(gf.grad(loss)(x))
    step = 1e-3
    for direction in (1, 1j):
        ends = [float(loss(x + np.complex64(sign * step * direction))) for sign in (1, -1)]
        # JAX's convention: the derivative along dz is real(sum(slope * dz)).
        want = np.real(slope * direction).sum()
        assert abs((ends[0] - ends[1]) / (2 * step) - want) <= 5e-3 * np.abs(slope).sum()


# --- special values ------------------------------------------------------------------------


def grid(dtype):
    """Pairs of special numbers."""
    part = np.dtype(dtype).type(0).real.dtype
    info = np.finfo(part)
    values = np.array(
        [0.0, -0.0, 1, -1, 0.3, -2.5, 30, -30, 100, -100, info.max, -info.max, info.tiny,
         -info.tiny, np.inf, -np.inf, np.nan, np.pi / 2], part
    )  # fmt: skip
    z = np.empty((values.size, values.size), dtype)
    z.real, z.imag = values[:, None], values
    return z.ravel()


def _square(z):
    """With room for squares: differences of those that overflow have the wrong sign."""
    wide = z.astype(np.clongdouble)
    return (wide * wide).astype(z.dtype)


FUNCTIONS = {
    "exp": (jnp.exp, np.exp),
    "log": (jnp.log, np.log),
    "sqrt": (jnp.sqrt, np.sqrt),
    "tanh": (jnp.tanh, np.tanh),
    "sinh": (jnp.sinh, np.sinh),
    "cosh": (jnp.cosh, np.cosh),
    "sin": (jnp.sin, np.sin),
    "cos": (jnp.cos, np.cos),
    "tan": (jnp.tan, np.tan),
    "abs": (jnp.abs, np.abs),
    "square": (jnp.square, _square),
    "reciprocal": (lambda z: 1 / z, lambda z: 1 / z),
    "conj": (jnp.conj, np.conj),
    "rsqrt": (lax.rsqrt, lambda z: 1 / np.sqrt(z)),
    "cube": (lambda z: z**3, lambda z: z * (z * z)),
    "inverse square": (lambda z: lax.integer_pow(z, -2), lambda z: 1 / (z * z)),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name, dtype):
    """As C99 and NumPy have them: the same nan, infinities and zeros in each part."""
    ours, theirs = FUNCTIONS[name]
    z = grid(dtype)
    with gf.enable_x64(), np.errstate(all="ignore"):
        got, want = np.asarray(gf.jit(ours)(z)), theirs(z)
    tolerance = TOLERANCE[dtype]
    size = np.hypot(*[np.where(np.isfinite(x), x, 0) for x in (want.real, want.imag)])
    for part in ("real", "imag"):
        a, b = getattr(got, part), getattr(want, part)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b), err_msg=part)
        infinite = np.isinf(b)
        np.testing.assert_array_equal(a[infinite], b[infinite], err_msg=part)
        finite = np.isfinite(b)
        allowed = tolerance * size[finite] + 2 * np.finfo(b.dtype).smallest_subnormal
        assert (np.abs(a[finite] - b[finite]) <= allowed).all(), part


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ["maximum", "minimum", "equal", "not_equal"])
def test_comparisons_of_special_values(name, dtype):
    z = grid(dtype)
    rng = np.random.default_rng(0)
    x, y = rng.choice(z, 3000), rng.choice(z, 3000)
    with gf.enable_x64():
        got = np.asarray(gf.jit(getattr(jnp, name))(x, y))
    want = getattr(np, name)(x, y)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_quotients(dtype):
    """Squares of the parts may overflow or vanish; only a sum of two parts must not."""
    z = grid(dtype)
    largest = np.finfo(np.dtype(dtype).type(0).real.dtype).max
    z = np.append(z[(np.abs(z) < largest) & (z != 0)], (z[np.isfinite(z) & (z != 0)] / 4))
    rng = np.random.default_rng(1)
    x, y = rng.choice(z, 3000), rng.choice(z, 3000)
    wide = np.clongdouble
    with gf.enable_x64(), np.errstate(all="ignore"):
        got = np.asarray(gf.jit(lax.div)(x, y))
        want = x.astype(wide) / y.astype(wide)
    info = np.finfo(np.dtype(dtype).type(0).real.dtype)
    regular = (np.abs(want) < info.max / 4) & (np.abs(want) > info.tiny / info.eps)
    assert regular.sum() > 1000
    error = np.abs(got.astype(wide) - want)[regular] / np.abs(want)[regular]
    assert error.max() <= TOLERANCE[dtype]


def test_logarithm_near_one():
    """Where the modulus is about 1, its logarithm is small and has its digits all the same."""
    angle = np.linspace(0.1, 3, 200)
    z = ((1 + np.linspace(-1e-2, 1e-2, 200)) * np.exp(1j * angle)).astype(np.complex64)
    got = np.asarray(gf.jit(jnp.log)(z)).real
    want = np.log(np.abs(z.astype(np.clongdouble)))
    # (|z| - 1)(|z| + 1) is exact up to some roundings of numbers of size 1.
    assert np.abs(got - want).max() <= 2e-7
