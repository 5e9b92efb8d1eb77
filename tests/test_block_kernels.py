"""gf.kernel.block: kernels by tiles, against NumPy in float64, under all transformations."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

RNG = np.random.default_rng(0)
X = RNG.standard_normal((37, 29)).astype(np.float32)


def whole_softmax(x):
    e = np.exp(np.float64(x) - np.max(x, -1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


@gf.kernel.block(out=lambda x, rows=8: x, tile=lambda x, rows=8: (rows, None))
def softmax(b, x, rows=8):
    values = b.load(x)
    e = jnp.exp(values - values.max(1, keepdims=True, initial=-jnp.inf))
    return e / e.sum(1, keepdims=True)


@gf.kernel.block(
    out=lambda x, rows, columns: x,
    tile=lambda x, rows, columns: (rows, None),
    autotune=[{"rows": 4, "columns": 8}, {"rows": 8, "columns": 16}],
)
def online(b, x, rows, columns):
    """Softmax of long rows: each piece is read once, and exponentials are made right at the end."""

    def step(carry, j):
        most, total = carry
        piece = b.load(x, (b.start[0], j * columns), (rows, columns), fill=-jnp.inf)
        new = jnp.maximum(most, piece.max(1))
        e = jnp.exp(piece - new[:, None])
        return (new, total * jnp.exp(most - new) + e.sum(1)), (e, new)

    start = (jnp.full(rows, -1e30), jnp.zeros(rows))
    (most, total), (e, then) = lax.scan(step, start, jnp.arange(-(-x.shape[1] // columns)))
    scaled = e * (jnp.exp(then - most) / total)[:, :, None]
    return scaled.transpose(1, 0, 2).reshape(rows, -1)[:, : x.shape[1]]


@gf.kernel.block(
    out=lambda q, k, v, rows=8, keys=16: (q, gf.ShapeDtypeStruct((q.shape[0],), jnp.float32)),
    tile=lambda q, k, v, rows=8, keys=16: ((rows, None), (rows,)),
)
def attention(b, q, k, v, rows=8, keys=16):
    """Attention, and the logarithm of the sum of exponentials of each row."""
    n, depth = k.shape
    scaled = b.load(q) * depth**-0.5

    def step(j, carry):
        most, total, acc = carry
        at = (j * keys, 0)
        logits = b.dot(scaled, b.load(k, at, (keys, None)).T)
        logits = jnp.where(j * keys + jnp.arange(keys) < n, logits, -jnp.inf)
        new = jnp.maximum(most, logits.max(1, keepdims=True))
        p, keep = jnp.exp(logits - new), jnp.exp(most - new)
        acc = b.dot(p.astype(v.dtype), b.load(v, at, (keys, None)), acc * keep)
        return new, total * keep + p.sum(1, keepdims=True), acc

    start = (jnp.full((rows, 1), -1e30), jnp.zeros((rows, 1)), jnp.zeros((rows, depth)))
    most, total, acc = lax.fori_loop(0, -(-n // keys), step, start)
    return (acc / total).astype(q.dtype), (most + jnp.log(total))[:, 0]


def whole_attention(q, k, v):
    logits = np.float64(q) @ np.float64(k).T / np.sqrt(k.shape[1])
    lse = np.log(np.exp(logits).sum(1))
    return np.exp(logits - lse[:, None]) @ np.float64(v), lse


@pytest.mark.parametrize("shape", [(37, 29), (8, 16), (1, 1), (7, 100), (64, 1)])
def test_a_softmax(shape):
    x = RNG.standard_normal(shape).astype(np.float32)
    np.testing.assert_allclose(softmax(x), whole_softmax(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(online(x), whole_softmax(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gf.jit(softmax)(x), softmax(x), rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_empty_results(shape):
    assert softmax(np.zeros(shape, np.float32)).shape == shape


def test_attention():
    q, k, v = (RNG.standard_normal((n, 16)).astype(np.float32) for n in (21, 40, 40))
    want = whole_attention(q, k, v)
    for rows, keys in [(8, 16), (21, 40), (5, 7), (32, 64)]:
        got = attention(q, k, v, rows=rows, keys=keys)
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-5)


def test_sixteen_bits_add_up_in_float32():
    q, k, v = (jnp.array(RNG.standard_normal((24, 16)), jnp.bfloat16) for _ in range(3))
    out, lse = attention(q, k, v)
    assert (out.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    want = whole_attention(*(np.asarray(x, np.float32) for x in (q, k, v)))[0]
    np.testing.assert_allclose(np.asarray(out, np.float32), want, atol=0.03)


# --- transformations ------------------------------------------------------------------------


def test_vmap():
    stack = RNG.standard_normal((3, 11, 6)).astype(np.float32)
    np.testing.assert_allclose(gf.vmap(softmax)(stack), whole_softmax(stack), rtol=1e-5)
    np.testing.assert_allclose(
        gf.vmap(online, in_axes=2, out_axes=1)(stack),
        whole_softmax(stack.transpose(2, 0, 1)).transpose(1, 0, 2),
        rtol=1e-5,
    )


@pytest.mark.parametrize("kernel", [softmax, online])
def test_derivatives(kernel):
    x, t = RNG.standard_normal((2, 13, 20)).astype(np.float32)
    plain = lambda x: gf.nn.softmax(x, axis=-1)  # noqa: E731
    loss = lambda run: lambda x: jnp.sum(run(x) ** 2)  # noqa: E731
    for mine, theirs in zip(gf.jvp(kernel, (x,), (t,)), gf.jvp(plain, (x,), (t,)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        gf.grad(loss(kernel))(x), gf.grad(loss(plain))(x), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        gf.jvp(gf.grad(loss(kernel)), (x,), (t,))[1],
        gf.jvp(gf.grad(loss(plain)), (x,), (t,))[1],
        rtol=1e-3,
        atol=1e-5,
    )


def test_derivatives_of_products_of_tiles_at_the_edge():
    """Products of what a branch of each block loads; the branch stays in the block."""

    @gf.kernel.block(
        out=lambda a, b: gf.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
        tile=lambda a, b: (3, 2),
    )
    def product(block, a, b):
        left = jnp.tanh(block.load(a, (block.start[0], 0), (3, None)))
        return block.dot(left, block.load(b, (0, block.start[1]), (None, 2)))

    a = RNG.standard_normal((7, 4)).astype(np.float32)
    b = RNG.standard_normal((4, 5)).astype(np.float32)
    weights = RNG.standard_normal((7, 5)).astype(np.float32)
    got = gf.grad(lambda a, b: (product(a, b) * weights).sum(), (0, 1))(a, b)
    t = np.tanh(a.astype(np.float64))
    np.testing.assert_allclose(got[0], weights @ b.T * (1 - t**2), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[1], t.T @ weights, rtol=1e-4, atol=1e-5)


def test_a_gradient_through_a_loop_with_known_bounds():
    q, k, v = (RNG.standard_normal((18, 8)).astype(np.float32) for _ in range(3))
    mine = gf.grad(lambda *a: jnp.sum(jnp.sin(attention(*a)[0])), (0, 1, 2))(q, k, v)
    plain = lambda q, k, v: gf.nn.softmax(q @ k.T * 8**-0.5) @ v  # noqa: E731
    want = gf.grad(lambda *a: jnp.sum(jnp.sin(plain(*a))), (0, 1, 2))(q, k, v)
    for a, b in zip(mine, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_inside_of_loops_and_on_several_devices():
    twice = lax.fori_loop(0, 2, lambda i, y: softmax(y), X)
    np.testing.assert_allclose(twice, whole_softmax(whole_softmax(X)), rtol=1e-5)
    stack = RNG.standard_normal((gf.local_device_count(), 9, 5)).astype(np.float32)
    np.testing.assert_allclose(gf.pmap(softmax)(stack), whole_softmax(stack), rtol=1e-5)


# --- tiles ----------------------------------------------------------------------------------


def _shifted(start, shape, fill):
    @gf.kernel.block(out=lambda x: gf.ShapeDtypeStruct(shape, x.dtype), tile=lambda x: shape)
    def read(b, x):
        return b.load(x, start, shape, fill=fill)

    return read


@pytest.mark.parametrize("start", [(0, 0), (-2, 1), (5, 6), (30, 2), (-50, -50), (2, 25)])
@pytest.mark.parametrize("computed", [False, True])
def test_tiles_over_the_edge(start, computed):
    at = tuple(jnp.int32(n) for n in start) if computed else start
    padded = np.pad(X, 64, constant_values=7.0)
    want = padded[64 + start[0] : 69 + start[0], 64 + start[1] : 70 + start[1]]
    np.testing.assert_array_equal(_shifted(at, (5, 6), 7.0)(X), want)


def test_a_tile_larger_than_the_array():
    got = _shifted((-1, 0), (40, 31), -jnp.inf)(X)
    want = np.full((40, 31), -np.inf, np.float32)
    want[1:38, :29] = X
    np.testing.assert_array_equal(got, want)


def test_without_a_question_a_start_is_brought_into_range():
    got = _shifted((jnp.int32(35), jnp.int32(-3)), (5, 6), None)(X)
    np.testing.assert_array_equal(got, X[32:37, :6])


def test_grids_of_two_dimensions():
    @gf.kernel.block(
        out=lambda a, b: gf.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
        tile=lambda a, b: (8, 5),
    )
    def product(block, a, b):
        left = block.load(a, (block.start[0], 0), (8, None))
        return block.dot(left, block.load(b, (0, block.start[1]), (None, 5)))

    a, b = RNG.standard_normal((19, 11)), RNG.standard_normal((11, 23))
    np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex64", "float16", "uint32"])
def test_dtypes_and_running_sums(dtype):
    @gf.kernel.block(out=lambda x: x, tile=lambda x: (3,))
    def same(b, x):
        return b.load(x)

    x = (np.arange(10) % 2).astype(dtype)
    np.testing.assert_array_equal(same(x), x)


def test_trees_and_scalars():
    @gf.kernel.block(
        out=lambda p: {"a": p["x"], "n": gf.ShapeDtypeStruct((), jnp.int32)},
        tile=lambda p: {"a": (None,), "n": ()},
    )
    def both(b, p):
        return {"a": b.load(p["x"]) * b.load(p["s"], (), ()), "n": b.index[0] + 3}

    got = both({"x": jnp.arange(4.0), "s": 2.0})
    np.testing.assert_array_equal(got["a"], [0, 2, 4, 6])
    assert got["n"] == 3


# --- parameters -----------------------------------------------------------------------------


def test_tuning_measures_once_and_keeps_the_choice(monkeypatch):
    calls = []

    def seconds(function, choice, args):
        calls.append(dict(choice))
        return float(len(calls))

    monkeypatch.setattr("gpuflow.api.block_tuning._seconds", seconds)

    def make():
        @gf.kernel.block(
            out=lambda x, rows: x, tile=lambda x, rows: (rows,), autotune=[{"rows": 3}, {"rows": 5}]
        )
        def doubled(b, x, rows):
            return b.load(x) * 2.125

        return doubled

    kernel = make()
    x = jnp.arange(97.0)
    assert kernel.tuned(x) == {"rows": 3}
    np.testing.assert_array_equal(gf.jit(kernel)(x), x * 2.125)
    kernel.tuned(x)
    measured = len(calls)
    assert make().tuned(x) == {"rows": 3}
    assert len(calls) == measured  # found among compiled kernels
    np.testing.assert_array_equal(kernel(x, rows=5), x * 2.125)
    assert len(calls) == measured  # a parameter that a call names is not tuned


# --- bad input ------------------------------------------------------------------------------


def _of(function=lambda b, x: b.load(x), **changes):
    given = {"out": lambda x: x, "tile": lambda x: (8, None)}
    return gf.kernel.block(function, **{**given, **changes})


@pytest.mark.parametrize(
    ("kernel", "error", "message"),
    [
        (_of(lambda b, x: b.load(x)[:4]), TypeError, r"a tile of f32\[8,29\]; got f32\[4,29"),
        (_of(lambda b, x: b.load(x) > 0), TypeError, r"a tile of f32\[8,29\]; got bool"),
        (_of(lambda b, x: (b.load(x), x)), TypeError, r"a tile for each result"),
        (_of(lambda b, x: b.load(x, (0,))), TypeError, r"start.*each dimension of.*got 1"),
        (_of(lambda b, x: b.load(x, shape=(2.5, 3))), TypeError, r"must be of ints.*2\.5"),
        (_of(lambda b, x: b.load(x.astype(int), fill=-np.inf)), ValueError, r"in int32; got -inf"),
        (_of(lambda b, x: b.dot(b.load(x), b.load(x))), TypeError, r"\(m, k\) and \(k, n\)"),
        (_of(tile=lambda x: (0, None)), ValueError, r"a size above 0.*got \(0, None\)"),
        (_of(tile=lambda x: (8,)), ValueError, r"for each dimension of.*got \(8,\)"),
        (_of(tile=lambda x: {"a": (8, 1)}), TypeError, r"in a tree like out"),
        (_of(out=lambda x: 3), TypeError, r"out of .* must be arrays or ShapeDtypeStructs"),
        (_of(out=lambda x: (x, x), tile=lambda x: ((8, None), (4, None))), ValueError, "as many"),
    ],
)
def test_what_cannot_be_is_refused(kernel, error, message):
    with pytest.raises(error, match=message):
        kernel(X)


def test_parameters_are_no_arrays():
    with pytest.raises(TypeError, match="parameters of softmax must be numbers"):
        softmax(X, rows=np.arange(3))
    with pytest.raises(TypeError, match="autotune must be a list of dictionaries"):
        _of(autotune=[3])


def test_what_blocks_are_made_of():
    assert "kernel row_" in str(softmax.explain(X))
