"""gf.raw_kernel on the CPU, where a function of the user's runs in the place of the kernel.

tests/targets/cuda/test_user_kernels.py runs kernels themselves.
"""

import numpy as np
import pytest
from numba import njit

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

N = 37
X = np.linspace(-1, 2, N).astype(np.float32)
Y = np.linspace(3, 1, N).astype(np.float32)
COVER = lambda *args: (-(-args[0].size // 128), 128)  # noqa: E731


def multiply(x, y, out):
    """Never called: the CPU runs its twin."""
    raise AssertionError


@njit
def multiply_on_cpu(x, y, out):
    flat, left, right = out.reshape(-1), x.reshape(-1), y.reshape(-1)
    for i in range(flat.size):
        flat[i] = left[i] * right[i]


def product(**changes):
    """A kernel without rules."""
    given = {"out": lambda x, y: x, "grid": COVER, "cpu": multiply_on_cpu}
    return gf.raw_kernel(multiply, **{**given, **changes})


def with_rules():
    """A kernel with rules for both modes."""
    kernel = product()
    kernel.defvjp(
        lambda x, y: (kernel(x, y), (x, y)),
        lambda kept, g: (kernel(g, kept[1]), kernel(g, kept[0])),
    )
    kernel.defjvp(lambda x, t: (kernel(*x), kernel(x[0], t[1]) + kernel(t[0], x[1])))
    return kernel


# --- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (0,), (1,), (31,), (3, 5), (0, 4), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.complex64])
def test_values(shape, dtype):
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 9, shape).astype(dtype) for _ in range(2))
    got = product()(x, y)
    assert got.dtype == dtype and got.shape == shape
    np.testing.assert_array_equal(got, x * y)


def test_operands_that_do_not_lie_row_major_are_given_row_major():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    f = gf.jit(lambda x: product()(x.T[::-1], x.reshape(6, 4)))
    np.testing.assert_array_equal(f(x), x.T[::-1] * x.reshape(6, 4))


def test_it_stands_among_other_operations():
    kernel = product()
    f = gf.jit(lambda x, y: jnp.sum(kernel(x + 1, jnp.sin(y))) * 2)
    want = 2 * np.sum((X + 1) * np.sin(Y), dtype=np.float64)
    np.testing.assert_allclose(f(X, Y), want, rtol=1e-5)


def test_it_stands_in_loops_and_branches():
    kernel = product()

    def f(x, y):
        x = lax.fori_loop(0, 3, lambda i, x: kernel(x, y), x)
        return lax.cond(x[0] < 0, lambda: kernel(x, x), lambda: x)

    np.testing.assert_allclose(gf.jit(f)(X, Y), (X * Y**3) ** 2, rtol=1e-5)


def test_several_outputs_are_a_tree():
    @njit
    def both(x, total, square):
        total[()] = x.sum()
        square[:] = x * x

    kernel = gf.raw_kernel(
        multiply,
        grid=(1, 32),
        cpu=both,
        out=lambda x: {"total": gf.ShapeDtypeStruct((), x.dtype), "zsquare": x},
    )
    got = kernel(X)
    np.testing.assert_allclose(got["total"], X.sum(), rtol=1e-5)
    np.testing.assert_array_equal(got["zsquare"], X * X)


def test_an_operand_that_is_changed_is_a_copy():
    @njit
    def count(x, bins):
        for value in x:
            bins[value] += 1

    kernel = gf.raw_kernel(count, cpu=count, inout=(1,), grid=COVER)
    x, bins = jnp.array([0, 2, 2, 4]), jnp.ones(5, jnp.int32)
    np.testing.assert_array_equal(kernel(x, bins), [2, 1, 3, 1, 2])
    np.testing.assert_array_equal(bins, np.ones(5))
    twice = gf.jit(lambda x, bins: (kernel(x, kernel(x, bins)), bins))
    np.testing.assert_array_equal(twice(x, bins)[0], [3, 1, 5, 1, 3])
    np.testing.assert_array_equal(twice(x, bins)[1], np.ones(5))


def test_what_is_donated_or_dies_is_changed_in_place():
    @njit
    def increment(x):
        x += 1

    kernel = gf.raw_kernel(increment, cpu=increment, inout=(0,), grid=COVER)

    def copies(f, *args, donate=()):
        text = gf.jit(f, donate_argnums=donate).lower(*args).compile().as_text()
        return sum("copy" in line.split() for line in text.splitlines())

    x = jnp.zeros(5)
    assert copies(kernel, x) == 1
    assert copies(kernel, x, donate=(0,)) == 0
    assert copies(lambda x: kernel(jnp.sin(x)), x) == 0
    assert copies(lambda x: kernel(x + 1) + (x + 1), x) <= 1
    both = gf.jit(lambda x: (kernel(kernel(x + 1)), x + 1))
    np.testing.assert_array_equal(both(x)[0], np.full(5, 3))
    np.testing.assert_array_equal(both(x)[1], np.ones(5))
    loop = gf.jit(lambda x: lax.fori_loop(0, 4, lambda i, x: kernel(x), x))
    np.testing.assert_array_equal(loop(x), np.full(5, 4))
    branch = gf.jit(lambda p, x: (lax.cond(p, kernel, lambda x: x, x), x))
    np.testing.assert_array_equal(branch(True, x)[0], np.ones(5))
    np.testing.assert_array_equal(branch(True, x)[1], np.zeros(5))
    np.testing.assert_array_equal(x, np.zeros(5))


def test_outputs_and_changed_operands_are_returned_in_this_order():
    @njit
    def pop(stack, top):
        top[()] = stack[-1]
        stack[-1] = 0

    kernel = gf.raw_kernel(
        pop, cpu=pop, inout=(0,), grid=(1, 1), out=lambda s: gf.ShapeDtypeStruct((), s.dtype)
    )
    top, stack = kernel(jnp.arange(4))
    assert int(top) == 3
    np.testing.assert_array_equal(stack, [0, 1, 2, 0])


def test_arguments_in_another_order_and_numbers():
    @njit
    def axpy(out, n, a, x):
        for i in range(n):
            out[i] = a * x[i]

    seen = []

    def arguments(a, x, out):
        seen.append((a, x.shape, out.dtype))
        return out, np.int32(x.size), a, x

    kernel = gf.raw_kernel(axpy, cpu=axpy, out=lambda a, x: x, grid=(1, 64), arguments=arguments)
    np.testing.assert_array_equal(kernel(2.0, X), 2 * X)
    np.testing.assert_array_equal(kernel(2, X), 2 * X)  # another program: an int64
    np.testing.assert_array_equal(kernel(2.0, X), 2 * X)
    assert [type(a) for a, _, _ in seen] == [float, int]
    assert seen[0][1:] == ((N,), np.float32)


# --- transformations ------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 1), (1, 0)])
def test_vmap_runs_it_for_each_element(axes):
    x = np.arange(12, dtype=np.float32).reshape(3, 4) if axes[0] == 0 else X[:4]
    if axes[0] == 1:
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
    y = {0: np.ones((3, 4), np.float32), 1: np.ones((4, 3), np.float32), None: Y[:4]}[axes[1]]
    got = gf.vmap(product(), axes)(x, y)
    want = gf.vmap(jnp.multiply, axes)(x, y)
    np.testing.assert_array_equal(got, want)


def test_a_rule_for_vmap():
    kernel, calls = product(), []

    @kernel.defbatch
    def rule(size, in_batched, x, y):
        calls.append((size, list(in_batched)))
        x, y = (
            a if flag else jnp.broadcast_to(a, (size, *a.shape))
            for a, flag in zip((x, y), in_batched)
        )
        return kernel(x, y), True

    stack = np.stack([X, 2 * X])
    np.testing.assert_array_equal(gf.vmap(kernel, (0, None))(stack, Y), stack * Y)
    assert calls == [(2, [True, False])]


def test_derivatives_in_both_modes():
    kernel = with_rules()
    loss = lambda x: jnp.sum(kernel(x, Y) ** 2)  # noqa: E731
    np.testing.assert_allclose(gf.grad(loss)(X), 2 * X * Y**2, rtol=1e-6)
    _, slope = gf.jvp(loss, (X,), (np.ones_like(X),))
    np.testing.assert_allclose(slope, np.sum(2 * X * Y**2), rtol=1e-5)
    second = gf.jvp(gf.grad(loss), (X,), (np.ones_like(X),))[1]
    np.testing.assert_allclose(second, 2 * Y**2, rtol=1e-6)
    per_row = gf.vmap(gf.grad(loss))(np.stack([X, 2 * X]))
    np.testing.assert_allclose(per_row[1], 4 * X * Y**2, rtol=1e-6)


def test_reverse_rules_alone():
    kernel = product()
    kernel.defvjp(lambda x, y: (kernel(x, y), (x, y)), lambda kept, g: (g * kept[1], None))
    np.testing.assert_array_equal(gf.grad(lambda x: kernel(x, Y).sum())(X), Y)
    with pytest.raises(TypeError, match="forward-mode"):
        gf.jvp(lambda x: kernel(x, Y), (X,), (X,))


def test_derivatives_of_the_reference():
    kernel = product()
    kernel.defreference(lambda x, y: x * y)
    np.testing.assert_array_equal(gf.grad(lambda x: kernel(x, Y).sum())(X), Y)
    np.testing.assert_array_equal(gf.jvp(lambda x: kernel(x, Y), (X,), (X,))[1], X * Y)


def test_the_reference_runs_where_there_is_no_function_for_the_cpu():
    kernel = product(cpu=None)
    with pytest.raises(NotImplementedError, match=r"multiply must have a function for the CPU"):
        kernel(X, Y)
    kernel.defreference(lambda x, y: x * y)
    np.testing.assert_array_equal(kernel(X, Y), X * Y)


def test_integer_operands_have_no_derivative():
    @njit
    def take(x, index, out):
        for i in range(index.size):
            out[i] = x[index[i]]

    kernel = gf.raw_kernel(
        take, cpu=take, grid=COVER, out=lambda x, i: gf.ShapeDtypeStruct(i.shape, x.dtype)
    )
    kernel.defvjp(
        lambda x, i: (kernel(x, i), (x, i)),
        lambda kept, g: (jnp.zeros_like(kept[0]).at[kept[1]].add(g), None),
    )
    kernel.defjvp(lambda p, t: (kernel(*p), kernel(t[0], p[1])))
    index = np.array([3, 3, 0], np.int32)
    want = np.zeros(N)
    want[3], want[0] = 2, 1
    np.testing.assert_array_equal(gf.grad(lambda x: kernel(x, index).sum())(X), want)
    np.testing.assert_array_equal(gf.jvp(lambda x: kernel(x, index), (X,), (X,))[1], X[index])
    kernel.check(X, index)


def test_rules_may_be_set_after_a_call():
    kernel = product()
    with pytest.raises(TypeError, match=r"multiply must have a rule.*defjvp"):
        gf.grad(lambda x: kernel(x, Y).sum())(X)
    kernel.defjvp(lambda p, t: (kernel(*p), t[0] * p[1] + p[0] * t[1]))
    np.testing.assert_array_equal(gf.grad(lambda x: kernel(x, Y).sum())(X), Y)


# --- check ----------------------------------------------------------------------------------


def test_check_compares_everything():
    kernel = with_rules()
    kernel.defreference(lambda x, y: x * y)
    report = kernel.check(X, Y)
    whats = {row.what for row in report.rows}
    assert whats == {
        "values with the reference",
        "jvp with differences",
        "vjp with jvp",
        "vmap over all arguments with a loop",
        "vmap over argument 0 with a loop",
        "vmap over argument 1 with a loop",
    }
    sizes = [row.sizes for row in report.rows if row.what == "vjp with jvp"]
    assert sizes == [{}, {37: 0}, {37: 1}, {37: 31}, {37: 33}, {37: 1009}]
    assert "largest difference" in str(report)


def _wrong_value(kernel):
    kernel.defreference(lambda x, y: x * y + (x > 1.9))


def _wrong_at_one_size(kernel):
    kernel.defreference(lambda x, y: x * y if x.size != 33 else x * y + 1)


def _wrong_jvp(kernel):
    kernel.defjvp(lambda p, t: (kernel(*p), t[0] * p[1] - p[0] * t[1]))


def _wrong_vjp(kernel):
    kernel.defvjp(lambda x, y: (kernel(x, y), (x, y)), lambda kept, g: (g * kept[1], g * kept[1]))


def _wrong_batch(kernel):
    @kernel.defbatch
    def rule(size, in_batched, x, y):
        y = y if in_batched[1] else jnp.broadcast_to(y, x.shape)
        x = x if in_batched[0] else jnp.broadcast_to(x, y.shape)
        return kernel(x, y[::-1]), True


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (_wrong_value, "values with the reference"),
        (_wrong_at_one_size, r"values.*33 for 37"),
        (_wrong_jvp, "jvp with differences"),
        (_wrong_vjp, "vjp with jvp"),
        (_wrong_batch, "vmap over all arguments"),
    ],
)
def test_check_finds_planted_mistakes(plant, what):
    kernel = with_rules()
    kernel.defreference(lambda x, y: x * y)
    kernel.check(X, Y)
    plant(kernel)
    with pytest.raises(AssertionError, match=what):
        kernel.check(X, Y)


def test_check_of_reverse_rules_alone():
    kernel = product()
    kernel.defvjp(lambda x, y: (kernel(x, y), (x, y)), lambda kept, g: (g * kept[1], g * kept[0]))
    assert {row.what for row in kernel.check(X, Y).rows} >= {"vjp with differences"}
    _wrong_vjp(kernel)
    with pytest.raises(AssertionError, match="vjp with differences"):
        kernel.check(X, Y)


def test_check_says_where_a_kernel_does_not_run():
    @njit
    def pairs(x, out):
        if x.size % 2:
            raise ValueError("an even size")
        for i in range(out.size):
            out[i] = x[2 * i] + x[2 * i + 1]

    kernel = gf.raw_kernel(
        pairs, cpu=pairs, grid=COVER, out=lambda x: gf.ShapeDtypeStruct((x.size // 2,), x.dtype)
    )
    with pytest.raises(AssertionError, match=r"pairs must run at sizes \[1\] \(1 for 36\)"):
        kernel.check(X[:36])
    kernel.check(X[:36], sizes=(0, 2, 32))


# --- bad input ------------------------------------------------------------------------------


def test_operands_are_read_only():
    def write(x, y, out):
        x[0] = 0

    with pytest.raises(ValueError, match="read-only"):
        product(cpu=write)(X, Y)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"out": lambda x, y: (x, x)}, TypeError, r"the 3 parameters of .*multiply; got 4"),
        ({"out": lambda x, y: 3}, TypeError, r"out of multiply must be arrays.*got 3"),
        ({"out": None}, TypeError, r"multiply must have an output"),
        ({"out": None, "inout": (5,)}, TypeError, r"inout of multiply must be positions"),
        ({"inout": (0, 0)}, ValueError, r"each argument once; got \(0, 0\)"),
        ({"grid": 3}, TypeError, r"grid of multiply must be \(blocks, threads\).*got 3"),
        ({"grid": (3, 2.5)}, TypeError, r"threads of a block of multiply must be one to three"),
        ({"grid": (3, 0)}, ValueError, r"threads of a block of multiply must be 1 or more"),
        ({"grid": (-1, 32)}, ValueError, r"blocks of multiply must be 0 or more"),
        ({"grid": (3, (64, 32))}, ValueError, r"at most 1024 threads; got 2048"),
        ({"grid": (3, 32, -1)}, ValueError, r"shared memory of multiply must not be negative"),
        ({"arguments": lambda x, y, out: (x, "y", out)}, TypeError, r"got 'y'"),
        ({"arguments": lambda x, y, out: (x, out)}, TypeError, r"3 parameters of multiply; got 2"),
        ({"cpu": 3}, TypeError, r"raw_kernel"),
    ],
)
def test_what_cannot_be_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        product(**changes)(X, Y)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("int x;", None),
        ("__global__ void a() {}", "b"),
        ("__global__ void a() {} __global__ void b() {}", None),
    ],
)
def test_a_text_must_have_one_kernel(text, name):
    with pytest.raises(ValueError, match="one __global__ function"):
        gf.raw_kernel(text, grid=(1, 1), out=X, name=name)


def test_arguments_are_arrays_or_numbers():
    with pytest.raises(TypeError, match=r"arguments of multiply must be arrays.*got list"):
        product()([1.0], Y)
    with pytest.raises(TypeError, match=r"arrays or numbers; got str for argument 1"):
        product()(X, "y")
