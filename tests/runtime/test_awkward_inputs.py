"""Arrays from NumPy as they come, and sizes that 32 bits do not hold."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp

RANDOM = np.random.default_rng(0)


def unaligned(shape, dtype):
    """Elements that begin one byte behind an aligned address."""
    values = RANDOM.standard_normal(shape).astype(dtype)
    memory = np.empty(values.nbytes + 1, np.uint8)
    view = memory[1:].view(dtype).reshape(shape)
    view[...] = values
    assert not view.flags.aligned
    return view


def read_only(x):
    x.flags.writeable = False
    return x


BASE = RANDOM.standard_normal((37, 41)).astype(np.float32)
FORMS = {
    "unaligned": unaligned((9, 31), np.float32),
    "unaligned and strided": unaligned((20, 31), np.float32)[::2, ::3],
    "strided": BASE[::3, 1::2],
    "negative strides": BASE[::-1, ::-2],
    "Fortran order": np.asfortranarray(BASE),
    "broadcast": np.broadcast_to(BASE[0], (5, 41)),
    "transposed": BASE.T,
    "read-only": read_only(BASE.copy()),
    "big-endian": BASE.astype(">f4"),
    "of a record": np.rec.fromarrays([BASE[0], BASE[1].astype("i1")], names="x,y")["x"],
    "memory of bytes": np.frombuffer(BASE.tobytes(), np.float32),
    "0-d": np.array(2.5, np.float32),
    "empty": BASE[:0],
    "masked by a subclass": BASE.view(type("Own", (np.ndarray,), {})),
}


@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_every_form(form):
    x = FORMS[form]
    wide = np.asarray(x).astype(np.float64)

    def f(x):
        return jnp.sin(x) + x, (x * 2).sum(), jnp.cumsum(x.reshape(-1))

    for call in (f, gf.jit(f)):
        elementwise, total, running = call(x)
        np.testing.assert_allclose(elementwise, np.sin(wide) + wide, rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(total, 2 * wide.sum(), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(running, np.cumsum(wide.reshape(-1)), rtol=1e-4, atol=1e-4)
    copied = jnp.asarray(x)
    np.testing.assert_array_equal(np.asarray(copied), np.asarray(x))
    if x.flags.writeable and x.size:
        before = np.asarray(copied).copy()
        x += 1
        np.testing.assert_array_equal(copied, before)  # nobody shares the user's memory
        x -= 1


def test_arguments_that_overlap():
    memory = np.arange(10, dtype=np.float32)
    f = gf.jit(lambda a, b, c: (a + b, b * c))
    for call in (f, gf.jit(lambda a, b, c: (a + b, b * c), donate_argnums=0)):
        total, product = call(memory[:8], memory[2:], memory[1:9])
        np.testing.assert_array_equal(total, memory[:8] + memory[2:])
        np.testing.assert_array_equal(product, memory[2:] * memory[1:9])
    np.testing.assert_array_equal(memory, np.arange(10))
    x = jnp.arange(5.0)
    np.testing.assert_array_equal(f(x, x, x)[0], 2 * np.arange(5))


def test_donating_what_somebody_else_sees():
    """A donated array is gone, but never changes under another name."""
    f = gf.jit(lambda x: x * 2, donate_argnums=0)
    x = jnp.arange(50_000.0)
    seen = np.asarray(x)
    same = gf.jit(lambda x: x)(x)
    f(x)
    np.testing.assert_array_equal(seen, np.arange(50_000))
    np.testing.assert_array_equal(same, np.arange(50_000))
    with pytest.raises(gf.errors.DeletedArrayError):
        x + 1
    with pytest.raises(gf.errors.DeletedArrayError):
        f(x)


# --- more than 2^31 elements -----------------------------------------------------------------

HUGE = 2**31 + 11


def test_reductions_over_more_elements_than_32_bits_count():
    with gf.enable_x64():
        odd = gf.jit(lambda n: (jnp.arange(HUGE) % 2 + n).sum())
        assert odd(0) == HUGE // 2


def test_offsets_beyond_32_bits():
    """Rows beyond 2^31 elements. The system keeps no memory for zeros that nobody reads."""
    rows = (HUGE >> 16) + 2
    x = np.zeros((rows, 1 << 16), np.int8)
    x[-2:] = np.arange(1 << 16) % 7
    f = gf.jit(lambda x, k: (x[-2:] * 2, x[k, 5:9], x[::-1, ::-9][0, :3], x[-1].sum()))
    tail, chosen, backwards, total = f(x, rows - 1)
    np.testing.assert_array_equal(tail, x[-2:] * 2)
    np.testing.assert_array_equal(chosen, x[-1, 5:9])
    np.testing.assert_array_equal(backwards, x[-1, ::-9][:3])
    assert total == x[-1].sum()


def test_index_arrays_beyond_32_bits():
    """Two index arrays are joined to one number; it once wrapped, and other elements were read."""
    x = np.zeros(((HUGE >> 15) + 2, (1 << 15) + 3), np.int8)
    rows, columns = np.array([-1, len(x) - 2, 0]), np.array([-1, 5, 7])
    x[rows, columns] = 7, 6, 5
    f = gf.jit(lambda x, i, j: x[i, j])
    np.testing.assert_array_equal(f(x, rows, columns), [7, 6, 5])
    assert f(x, -1, -1) == 7 and f(x, len(x) - 2, 5) == 6


def test_positions_beyond_32_bits():
    """int32 counts from the end of any size; numbers of Python and uint32 reach 2^32."""
    x = np.zeros(HUGE, np.int8)
    x[[3, -2, -1]] = 4, 5, 6
    f = gf.jit(lambda x, i: (x[i], jnp.take(x, i), gf.lax.dynamic_slice(x, (i,), (2,))))
    for place, want in [(-2, 5), (3, 4), (np.uint32(HUGE - 2), 5)]:
        one, taken, window = f(x, place)
        assert one == taken == window[0] == want
    known = gf.jit(lambda x: (jnp.take(x, HUGE - 2), gf.lax.dynamic_slice(x, (HUGE - 2,), (2,))))
    assert known(x)[0] == 5 and known(x)[1].tolist() == [5, 6]
    np.testing.assert_array_equal(gf.jit(lambda x, i: x[i])(x, jnp.array([3, -1])), [4, 6])


def test_updates_beyond_32_bits():
    """Traced only: the result would be 2 GB."""
    huge = gf.ShapeDtypeStruct((HUGE,), np.int8)
    text = str(gf.make_jaxpr(lambda x: x.at[-2].set(1))(huge))
    assert f"{HUGE - 2}:u32[]" in text
    three = gf.ShapeDtypeStruct((3,), np.int32)
    text = str(gf.make_jaxpr(lambda x, i: x.at[i].add(1))(huge, three))
    assert f"{HUGE}:u32[]" in text


def test_positions_that_nothing_holds():
    far = gf.ShapeDtypeStruct((2**32 + 7,), np.int8)
    with pytest.raises(OverflowError, match=r"\[index\] without 64-bit dtypes .* got 4294967303"):
        gf.eval_shape(lambda x, i: x[i], far, gf.ShapeDtypeStruct((3,), np.int32))
    with pytest.raises(OverflowError, match=r"index_dtype must hold .* got i32 for axis"):
        gf.eval_shape(jnp.argmax, far)
    with gf.enable_x64():
        assert gf.eval_shape(jnp.argmax, far).dtype == np.int64


def test_sizes_that_no_memory_holds():
    with pytest.raises(MemoryError):
        jnp.zeros((1 << 40, 1 << 10))
    with pytest.raises(MemoryError):
        gf.jit(jnp.zeros, static_argnums=0)(1 << 45)
    # As a type it is no problem.
    assert gf.eval_shape(lambda: jnp.zeros((1 << 40, 1 << 10)) + 1).shape == (1 << 40, 1 << 10)
