"""What ``simplify`` rules may do: fewer equations, and the same values bit for bit."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler import pipeline
from gpuflow.compiler.passes import program
from gpuflow.compiler.planning.key import erase_sizes
from gpuflow.ops.elementwise.nary import add_any_p

RANDOM = np.random.default_rng(0)
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 1e-45, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan],
    np.float32,
)


def simplified(f, *args):
    """The names of the equations that are left of a function."""
    jaxpr = program.inline(gf.jit(f).lower(*args).jaxpr.jaxpr)
    jaxpr = program.dce(program.cse(program.simplify(jaxpr)))
    return [eqn.primitive.name for eqn in jaxpr.eqns]


def check_same(f, *args):
    """The compiled function gives what its operations give one by one, signs of zeros included."""
    args = [jnp.asarray(x) for x in args]
    for got, want in zip(
        gf.tree_util.tree_leaves(gf.jit(f)(*args)), gf.tree_util.tree_leaves(f(*args)), strict=True
    ):
        got, want = np.asarray(got), np.asarray(want)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        if got.dtype.kind == "f":
            numbers = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


# --- arithmetic ----------------------------------------------------------------------------

FLOAT_IDENTITIES = {
    "x * 1": (lambda x: x * 1.0, []),
    "1 * x": (lambda x: 1.0 * x, []),
    "x + -0": (lambda x: lax.add(x, np.float32(-0.0)), []),
    "-0 + x": (lambda x: lax.add(np.float32(-0.0), x), []),
    "x - 0": (lambda x: x - 0.0, []),
    "x + 0": (lambda x: x + 0.0, ["add"]),
    "0 + x": (lambda x: 0.0 + x, ["add"]),
    "x - -0": (lambda x: lax.sub(x, np.float32(-0.0)), ["sub"]),
    "0 - x": (lambda x: 0.0 - x, ["sub"]),
    "-0 - x": (lambda x: lax.sub(np.float32(-0.0), x), ["neg"]),
    "x * 0": (lambda x: x * 0.0, ["mul"]),
    "x - x": (lambda x: x - x, ["sub"]),
    "x / x": (lambda x: x / x, ["div"]),
    "x * -1": (lambda x: x * -1.0, ["mul"]),
    "-(-x)": (lambda x: lax.neg(lax.neg(x)), []),
    "x + (-y)": (lambda x: x + -x[::-1], ["rev", "sub"]),
    "(-y) + x": (lambda x: -x[::-1] + x, ["rev", "sub"]),
    "x - (-y)": (lambda x: x - -x[::-1], ["rev", "add"]),
    "(-x) * (-y)": (lambda x: -x * -x[::-1], ["rev", "mul"]),
    "max(x, x)": (lambda x: lax.max(x, x), []),
    "max(x, -inf)": (lambda x: lax.max(x, np.float32(-np.inf)), []),
    "max(inf, x)": (lambda x: lax.max(np.float32(np.inf), x), ["max"]),
    "min(x, inf)": (lambda x: lax.min(x, np.float32(np.inf)), []),
    "x == x": (lambda x: x == x, ["eq"]),  # nan differs from itself
    "x ** 1": (lambda x: lax.integer_pow(x, 1), []),
    "x ** 0": (lambda x: lax.integer_pow(x, 0), ["broadcast_in_dim"]),
    "select(p, x, x)": (lambda x: lax.select(x > 0, x, x), []),
    "select(True, x, y)": (lambda x: lax.select(np.bool_(True), x, x * 2), []),
    "select(not p, x, y)": (
        lambda x: lax.select(~(x > 0), x, x * 2),
        ["gt", "mul", "select_n"],
    ),
    "select(p, True, False)": (
        lambda x: lax.select(x > 0, jnp.full(x.shape, True), jnp.full(x.shape, False)),
        ["gt"],
    ),
    "stop_gradient": (lambda x: lax.stop_gradient(x), []),
    "of numbers": (lambda x: x * lax.sqrt(lax.mul(np.float32(2), np.float32(3.5))), ["mul"]),
}


@pytest.mark.parametrize("name", FLOAT_IDENTITIES)
def test_floats(name):
    f, left = FLOAT_IDENTITIES[name]
    assert simplified(f, SPECIAL) == left
    check_same(f, SPECIAL)


INTEGER_IDENTITIES = {
    "x + 0": lambda x: x + 0,
    "x - 0": lambda x: x - 0,
    "x * 1": lambda x: x * 1,
    "x | 0": lambda x: x | 0,
    "x & ones": lambda x: lax.bitwise_and(x, np.invert(np.zeros((), x.dtype)[()])),
    "x ^ 0": lambda x: x ^ 0,
    "x & x": lambda x: x & x,
    "~~x": lambda x: ~~x,
    "x << 0": lambda x: x << 0,
    "-(-x)": lambda x: lax.neg(lax.neg(x)),
    "(x * 0) + x": lambda x: x * 0 + x,
    "(x - x) + x": lambda x: (x - x) + x,
    "x rem 1 + x": lambda x: lax.rem(x, np.ones((), x.dtype)[()]) + x,
    "(x ^ x) + x": lambda x: (x ^ x) + x,
    "x == x": lambda x: lax.select(x == x, x, x + 3),
}


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int16", "uint32"])
@pytest.mark.parametrize("name", INTEGER_IDENTITIES)
def test_integers(name, dtype):
    bounds = np.iinfo(dtype)
    x = np.array([0, 1, 2, bounds.max, bounds.min, bounds.max - 1], dtype)
    assert simplified(INTEGER_IDENTITIES[name], x) == []
    check_same(INTEGER_IDENTITIES[name], x)


def test_complex_numbers_keep_their_arithmetic():
    """(inf + 0i) * 1 is inf + nan i."""
    x = np.array([complex(np.inf, 0), complex(0.0, -0.0), complex(np.nan, 1), 2 - 3j], np.complex64)
    check_same(lambda x: (x * 1, x + 0, x - x, lax.neg(lax.neg(x)), x * np.complex64(1)), x)


def test_a_divisor_of_one_is_not_dropped():
    """It may be a batch of one, which is to run the kernels of other batches."""
    assert simplified(lambda x: x / 1.0, SPECIAL) == ["div"]


# --- conversions ---------------------------------------------------------------------------

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "int32",
    "uint32",
    "float16",
    "float32",
    ml_dtypes.bfloat16,
]
NUMBERS = np.array(
    [0, -0.0, 1, -1, 0.1, 2.5, -3.7, 127, 128, 255, 256, 300, -129, 32768, 65504, 65536, 16777217,
     2147483648, -2147483648, 4294967295, 1e10, -1e10, 1e38, np.inf, -np.inf, np.nan, 1e-8, 1e-40]
)  # fmt: skip


def test_chains_of_conversions():
    """Of every three dtypes; what is left out on the way must have lost nothing."""
    shorter = 0
    for first, middle, last in itertools.product(map(np.dtype, DTYPES), repeat=3):
        x = np.asarray(lax.convert_element_type(jnp.asarray(NUMBERS.astype(np.float32)), first))

        def f(x, middle=middle, last=last):
            return lax.convert_element_type(lax.convert_element_type(x, middle), last)

        jaxpr = gf.jit(f).lower(x).jaxpr.jaxpr
        short = program.dce(program.simplify(program.inline(jaxpr)))
        if len(short.eqns) < len(jaxpr.eqns):
            shorter += 1
            values = [jnp.asarray(x)]
            (got,) = (
                values
                if not short.eqns
                else [short.eqns[0].primitive.bind(*values, **short.eqns[0].params)]
            )
            want = np.asarray(f(jnp.asarray(x)))
            # Exact, and NumPy knows no nan of bfloat16.
            got, want = np.asarray(got).astype(np.float64), want.astype(np.float64)
            np.testing.assert_array_equal(got, want, str((first, middle, last)))
    assert shorter > 150


def test_rounding_to_bfloat16_and_back_stays():
    f = lambda x: x.astype(jnp.bfloat16).astype(np.float32)  # noqa: E731
    assert simplified(f, SPECIAL) == ["convert_element_type"] * 2
    assert simplified(lambda x: x.astype(np.float32).astype(np.float16), np.float16([1])) == []


# --- layout --------------------------------------------------------------------------------


def pieces(x):
    return jnp.concatenate([x, x * 2, x + 1])


X = RANDOM.standard_normal((6, 4)).astype(np.float32)
LAYOUTS = {
    "three transposes": (lambda x: x.T.T.T, ["transpose"]),
    "two transposes": (lambda x: x.T.T, []),
    "whole slice": (lambda x: lax.slice(x, (0, 0), (6, 4)), []),
    "slice of a slice": (lambda x: x[1:][::2][1:, 1:3], ["slice"]),
    "slice in one piece": (lambda x: pieces(x)[7:11], ["mul", "slice"]),
    "strided slice in one piece": (lambda x: pieces(x)[1:6:2, ::3], ["slice"]),
    "slice of two pieces": (
        lambda x: pieces(x)[4:9], ["mul", "slice", "slice", "concatenate"],
    ),
    "known window": (lambda x: lax.dynamic_slice(pieces(x), (100, 1), (3, 2)), ["add", "slice"]),
    "split": (lambda x: jnp.split(pieces(x), 3)[1], ["mul"]),
    "element of a stack": (lambda x: jnp.stack([x, x + 2])[1], ["add"]),
    "joined again": (lambda x: jnp.concatenate([x[:2], x[2:3], x[3:]]), []),
    "joined in part": (
        lambda x: jnp.concatenate([x[1:2], x[2:5], x[:1]]), ["slice", "slice", "concatenate"],
    ),
    "pieces of pieces": (
        lambda x: jnp.concatenate([jnp.concatenate([x, x[:1]]), x]), ["slice", "concatenate"],
    ),
    "inside of padding": (lambda x: lax.slice(lax.pad(
        x, np.float32(0), ((2, 1, 0), (0, 3, 0))), (3, 0), (7, 4)), ["slice"]),
    "the padding": (lambda x: lax.slice(lax.pad(
        x, np.float32(5), ((2, 1, 0), (0, 3, 0))), (0, 0), (2, 4)), ["broadcast_in_dim"]),
    "across padding": (lambda x: lax.slice(lax.pad(
        x, np.float32(5), ((2, 1, 0), (0, 3, 0))), (1, 2), (4, 6)), ["slice", "pad"]),
    "what padding stands between": (lambda x: lax.slice(lax.pad(
        x, np.float32(5), ((2, 1, 2), (1, 0, 1))), (2, 1), (18, 8), (3, 2)), []),
    "some of what it stands between": (lambda x: lax.slice(lax.pad(
        x, np.float32(5), ((2, 1, 2), (1, 0, 1))), (5, 1), (18, 8), (6, 4)), ["slice"]),
    "every second of padding": (lambda x: lax.slice(lax.pad(
        x, np.float32(5), ((2, 1, 0), (0, 3, 0))), (1, 2), (9, 7), (2, 2)), ["slice", "pad"]),
    "padding between": (lambda x: lax.slice(lax.pad(
        x, np.float32(5), ((0, 0, 1), (0, 0, 0))), (1, 0), (10, 4), (2, 1)), ["pad", "slice"]),
    "padding that cuts": (
        lambda x: lax.pad(x, np.float32(5), ((-2, -1, 0), (0, 0, 0))), ["slice"],
    ),
    "reversed twice": (lambda x: x[::-1, ::-1][::-1], ["rev"]),
    "slice of a broadcast": (
        lambda x: jnp.broadcast_to(x[:, :, None], (6, 4, 5))[1:3, :, 2:4],
        ["slice", "broadcast_in_dim"],
    ),
    "broadcast of a broadcast": (
        lambda x: jnp.broadcast_to(jnp.broadcast_to(x[0], (3, 4)), (2, 3, 4)),
        ["slice", "squeeze", "broadcast_in_dim"],
    ),
    "reshaped twice": (lambda x: x.reshape(24).reshape(2, 12), ["reshape"]),
    "reshaped back": (lambda x: x.reshape(24).reshape(6, 4), []),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    f, left = LAYOUTS[name]
    assert simplified(f, X) == left
    check_same(f, X)


def test_random_slices_of_concatenations_and_pads():
    for _ in range(150):
        sizes = RANDOM.integers(0, 5, RANDOM.integers(1, 5))
        total = int(sizes.sum()) or 1
        sizes = sizes if sizes.sum() else np.array([1])
        start = int(RANDOM.integers(0, total + 1))
        limit, step = int(RANDOM.integers(start, total + 1)), int(RANDOM.integers(1, 4))
        low, high = (int(n) for n in RANDOM.integers(-1, 4, 2))
        gap = int(RANDOM.integers(0, 3))

        def f(*xs, bounds=(start, limit, step), edges=(low, high), gap=gap):
            joined = jnp.concatenate(xs)
            padded = lax.pad(joined, np.float32(9), ((max(edges[0], 0), max(edges[1], 0), 0),))
            apart = lax.pad(joined, np.float32(9), ((max(edges[0], 0), edges[1], gap),))
            first, last, by = bounds
            return (
                joined[first:last:by],
                padded[first:last:by],
                joined[first:last][::by],
                apart[first:last:by],
                apart[first : last : gap + 1],
            )

        check_same(f, *[RANDOM.standard_normal(n).astype(np.float32) for n in sizes])


def test_the_gradient_of_a_concatenation_reads_no_padding():
    def f(x):
        return jnp.concatenate([x, x * 2])[3:8].sum()

    assert simplified(gf.grad(f), X).count("pad") <= 2
    check_same(gf.grad(f), X)


# --- broadcasts ----------------------------------------------------------------------------


def output_sizes(f, *args):
    jaxpr = program.inline(gf.jit(f).lower(*args).jaxpr.jaxpr)
    jaxpr = program.dce(program.simplify(jaxpr))
    return {eqn.primitive.name: eqn.outputs[0].aval.shape for eqn in jaxpr.eqns}


def test_broadcasts_sink_below_elementwise_ops():
    def f(row, column):
        wide = jnp.broadcast_to(row, (6, 5, 4))
        other = jnp.broadcast_to(column[None, :, None], (6, 5, 4))
        return jnp.exp(wide), jnp.sin(wide * other), wide + 2.0

    row, column = X[0], np.arange(5, dtype=np.float32)
    sizes = output_sizes(f, row, column)
    assert sizes["exp"] == sizes["add"] == (4,)
    assert sizes["sin"] == sizes["mul"] == (5, 4)
    for got, want in zip(gf.jit(f)(row, column), f(row, column), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_broadcasts_of_one_row_sink_as_those_of_many():
    f = lambda x: jnp.tanh(jnp.broadcast_to(x[:, None], (x.shape[0], 3)))  # noqa: E731
    assert output_sizes(f, np.ones(1, "f"))["tanh"] == (1,)
    assert output_sizes(f, np.ones(7, "f"))["tanh"] == (7,)


def test_numbers_meet_at_the_end_of_broadcasts():
    def f(x):
        return x + (jnp.full((6, 4), 2.0) * jnp.full((6, 4), 3.0) + 1)

    assert simplified(f, X) == ["broadcast_in_dim", "add"]
    check_same(f, X)


def test_sums_of_tangents_that_are_numbers_and_rows():
    """The sum of a broadcast row and a broadcast number was one of unlike operands."""

    def f(x, factor):
        row, number = (
            gf.vjp(lambda v: (jnp.broadcast_to(v, (3, 4)), 2 * v.sum()), x)[1](
                (jnp.full((3, 4), 3.0) * factor, jnp.float32(1))
            )[0],
            lax.full((3, 4), 2.0),
        )
        return row, add_any_p.bind(jnp.broadcast_to(x, (3, 4)), number)

    check_same(f, np.arange(4, dtype=np.float32), np.float32(2))


# --- sums of what counts -------------------------------------------------------------------

COUNTING = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("dtype", COUNTING)
def test_sums_of_iota_wrap_as_the_sums_do(dtype):
    with gf.enable_x64():
        for _ in range(8):
            shape = tuple(int(n) for n in RANDOM.integers(1, 40, 3))
            shape = (int(RANDOM.integers(0, 3000)), *shape) if RANDOM.integers(2) else shape
            dim = int(RANDOM.integers(len(shape)))
            axes = tuple(d for d in range(len(shape)) if RANDOM.integers(2)) or (0,)
            factor, offset = (RANDOM.integers(-1000, 1000, 2).astype(dtype) for _ in range(2))

            def f(c, d, shape=shape, dim=dim, axes=axes, factor=factor, offset=offset):
                line = lax.broadcasted_iota(dtype, shape, dim)
                known = -(line * factor[0] + offset[0]) - line
                given = (line * c + d) * factor[1] - offset[1]
                return (
                    lax.reduce_sum(known, axes),
                    lax.reduce_sum(given, axes),
                    (lax.reduce_sum(line, axes)),
                )

            assert "reduce_sum" not in simplified(f, factor[1], offset[1])
            check_same(f, factor[1], offset[1])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", COUNTING)
def test_running_sums_of_iota(dtype, reverse):
    with gf.enable_x64():
        for size in (1, 2, 17, 256, 300, 70001):
            factor, offset = RANDOM.integers(-1000, 1000, 2).astype(dtype)

            def f(c, size=size, factor=factor, offset=offset):
                line = lax.iota(dtype, size)
                both = lax.broadcasted_iota(dtype, (3, 5), 0)
                return (
                    lax.cumsum(line, 0, reverse),
                    lax.cumsum(line * factor + offset, 0, reverse),
                    lax.cumsum(c - line, 0, reverse),
                    lax.cumsum(both, 1, reverse),
                    lax.cumsum(jnp.full((size,), factor), 0, reverse),
                )

            assert "cumsum" not in simplified(f, offset)
            check_same(f, offset)


def test_sums_by_way_of_other_integers():
    with gf.enable_x64():

        def f():
            line = jnp.arange(1000, dtype=np.int64) * 3_000_000_001
            return line.astype(np.int16).sum(dtype=np.int16), line.astype(np.int32).cumsum()

        assert not {"reduce_sum", "cumsum"} & set(simplified(f))
        check_same(f)
        # int8 wraps before it is widened: no closed form.
        wrapping = lambda: lax.iota(np.int8, 300).astype(np.int32).sum()  # noqa: E731
        assert "reduce_sum" in simplified(wrapping)
        check_same(wrapping)


def test_floats_are_summed_in_closed_form_where_every_step_is_exact():
    assert "reduce_sum" not in simplified(lambda: lax.iota("f", 5000).sum())
    assert "reduce_sum" in simplified(lambda: lax.iota("f", 6000).sum())
    assert "reduce_sum" in simplified(lambda: (lax.iota("f", 50) * 0.1).sum())
    check_same(lambda: (lax.iota("f", 5000).sum(), lax.broadcasted_iota("f", (9, 7), 0).sum(1)))


def test_parts_of_iota_are_iota():
    def f():
        line = lax.iota("int32", 100)
        return line[7:90:3], lax.iota("f", 9)[:4], line[:5, None] + 0, line.astype(np.float32)

    assert not {"slice", "broadcast_in_dim", "convert_element_type"} & set(simplified(f))
    check_same(f)


# --- whole programs ------------------------------------------------------------------------


def test_equal_expressions_of_nested_functions_are_computed_once():
    inner = gf.jit(lambda x: jnp.exp(x) * 2)
    outer = gf.jit(lambda x: inner(x) + gf.jit(lambda y: inner(y))(x))
    left = simplified(lambda x: outer(x) + inner(x), X)
    assert left.count("exp") == 1 and left.count("mul") == 1


def test_the_headline_chain_is_ten_products():
    """f(x) is ten products and written five times."""
    w = X[:4]

    def f(x):
        for _ in range(10):
            x = x @ w
        return x

    g = lambda x: (f(x) * f(x) + f(x) * f(x)) / f(x)  # noqa: E731
    assert simplified(g, X).count("dot_general") == 10


def test_products_of_constants_leave_a_scan():
    w = RANDOM.standard_normal((4, 4)).astype(np.float32)

    def f(w, xs):
        def body(carry, x):
            return carry @ jnp.tanh(w @ w) + x, carry.sum()

        return lax.scan(body, xs[0], xs)

    jaxpr = program.inline(gf.jit(f).lower(w, X).jaxpr.jaxpr)
    jaxpr = program.dce(program.simplify(jaxpr))
    (loop,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    inside = [eqn.primitive.name for eqn in loop.params["jaxpr"].eqns]
    # The product with a vector is a sum of products.
    assert inside.count("mul") == 1 and not {"dot_general", "tanh"} & set(inside)
    for got, want in zip(gf.jit(f)(w, X), f(w, X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_simplified_programs_of_other_sizes_have_one_template():
    """No rule may look at a size: then every batch would be a program of its own."""

    def f(x, y):
        n = x.shape[0]
        both = jnp.concatenate([x, y * 2])
        weights = (jnp.arange(n) * 3 + 1).sum() + jnp.cumsum(jnp.arange(n))
        scaled = both[:n] * (2.0 / n) + jnp.broadcast_to(jnp.exp(x[0]), x.shape)
        return scaled.sum(0), weights, both[n:], jnp.arange(2 * n)[n:], x.mean(), (n - 1) * x

    keys = set()
    for n in (17, 31, 64, 257, 1000):
        arrays = np.ones((n, 5), np.float32), np.ones((n, 5), np.float32)
        jaxpr = program.inline(gf.jit(f).lower(*arrays).jaxpr.jaxpr)
        jaxpr, _ = program.hoist_array_literals(jaxpr)
        for _, rewrite in pipeline.PASSES:
            jaxpr = rewrite(jaxpr)
        keys.add(erase_sizes(jaxpr, {})[0])
    assert len(keys) == 1
