"""Functions of several ops, called eagerly: one program, and the same values as op by op."""

from __future__ import annotations

import inspect
import pickle
from enum import Enum
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, nn, random
from gpuflow.control.composite import composite
from gpuflow.errors import ConcretizationTypeError, DeletedArrayError

X = np.linspace(-2, 2, 12, dtype=np.float32)


class Mode(Enum):
    TWICE = 2
    THRICE = 3


class Counted:
    """A function that notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

        def function(x: Any, y: Any = 1.0, mode: Mode = Mode.TWICE, axis: int | None = None) -> Any:
            """Of arrays."""
            self.calls.append((x, y, mode, axis))
            return jnp.sum(x, axis) * mode.value + y

        self.plain = function
        self.composite = composite(function)


@pytest.fixture
def counted():
    return Counted()


def test_it_is_traced_once_for_each_type(counted):
    x = jnp.asarray(X)
    for k in range(5):
        out = counted.composite(x, float(k))
        np.testing.assert_allclose(out, 2 * X.sum() + k, rtol=1e-6, atol=1e-6)
    assert len(counted.calls) == 1
    counted.composite(x[:5], 0.0)
    counted.composite(x.astype(jnp.int32), 0.0)
    assert len(counted.calls) == 3
    counted.composite(x, 0)  # an int beside floats has another common type than a float
    assert len(counted.calls) == 4


def test_options_are_parts_of_the_program(counted):
    x = jnp.asarray(X.reshape(3, 4))
    shapes = [counted.composite(x, axis=axis).shape for axis in (None, 0, 1, 0, 1)]
    assert shapes == [(), (4,), (3,), (4,), (3,)]
    assert len(counted.calls) == 3
    three = counted.composite(x, 0.0, Mode.THRICE)
    np.testing.assert_allclose(three, 3 * X.sum(), atol=1e-5)
    assert len(counted.calls) == 4


def test_equal_options_of_other_types_are_apart():
    seen = []

    @composite
    def function(x: Any, option: int = 0) -> Any:
        seen.append(repr(option))
        return lax.neg(x)

    for option in (1, True, 1.0, 0.0, -0.0, float("nan"), 1j, -0.0, True, 1.0):
        function(jnp.ones(2), option)
    assert seen == ["1", "True", "1.0", "0.0", "-0.0", "nan", "1j"]


def test_numbers_keep_their_sign_and_their_type():
    @composite
    def function(x: Any) -> Any:
        return lax.mul(x, np.float32(1))

    signs = [bool(np.signbit(function(x))) for x in (0.0, -0.0, 0.0, -0.0)]
    assert signs == [False, True, False, True]
    assert jnp.clip(jnp.ones(2, jnp.bfloat16), 0.0, 2.0).dtype == jnp.bfloat16
    assert jnp.clip(jnp.ones(2, jnp.int8), 0, 2).dtype == jnp.int8
    assert nn.leaky_relu(1.0).weak_type and not nn.leaky_relu(np.float32(1)).weak_type


@pytest.mark.parametrize(
    "function, args",
    [
        (jnp.median, (X,)),
        (jnp.std, (X,)),
        (jnp.interp, (X, np.sort(X), X)),
        (jnp.clip, (X, -1.0, 1.5)),
        (jnp.linspace, (0.5, 2.0, 7)),
        (nn.gelu, (X,)),
        (jnp.gcd, (np.arange(12), np.arange(12)[::-1])),
        (jnp.median, (np.full(3, np.nan, np.float32),)),
        (jnp.sinc, (np.array([0.0, -0.0, np.inf, np.nan, 1e-40], np.float32),)),
        (jnp.mean, (np.zeros((0, 3), np.float32), 1)),
        (nn.softmax, (X.astype(ml_dtypes.bfloat16),)),
        (jnp.var, (np.float32(3),)),
    ],
)
def test_values_are_those_op_by_op(function, args):
    wanted = np.asarray(function.__wrapped__(*args))
    for given in (args, [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in args]):
        got = function(*given)
        assert got.dtype == wanted.dtype
        eps = 4e-3 if wanted.dtype == ml_dtypes.bfloat16 else 1e-6
        np.testing.assert_allclose(
            np.asarray(got).astype(np.float64), wanted.astype(np.float64), rtol=eps, atol=eps
        )


def test_one_program_runs(monkeypatch):
    """And none of its ops by itself."""
    x = jnp.asarray(X)
    jnp.median(x)
    gf.core.trace.eval_trace  # noqa: B018  it is where eager ops go
    monkeypatch.setattr(gf.core.trace.eval_trace, "process", None)
    assert np.asarray(jnp.median(x)) == np.median(X)


def test_under_a_trace_it_is_its_ops(counted):
    jaxpr = gf.make_jaxpr(counted.composite)(X)
    assert [eqn.primitive.name for eqn in jaxpr.jaxpr.eqns] == [
        eqn.primitive.name for eqn in gf.make_jaxpr(counted.plain)(X).jaxpr.eqns
    ]
    assert float(gf.grad(lambda x: jnp.std(x))(jnp.asarray(X))[0]) == pytest.approx(
        float(gf.grad(lambda x: jnp.std.__wrapped__(x))(jnp.asarray(X))[0])
    )
    out = gf.vmap(lambda x: jnp.median(x))(jnp.asarray(X.reshape(3, 4)))
    np.testing.assert_array_equal(out, np.median(X.reshape(3, 4), 1))


def test_calls_that_differ_have_programs_of_their_own():
    """A type and a number of it, and a string and the parameter of that name."""
    seen = []

    @composite
    def function(x: Any, first: Any = None, second: Any = None) -> Any:
        seen.append((first, second))
        return lax.neg(x)

    x = jnp.ones(2)
    function(x, float)
    function(x, 2.0)
    function(x, "first", "second")
    function(x, first="second")
    assert len(seen) == 4


def test_who_needs_values_gets_them():
    traced = []

    @composite
    def function(x: Any, n: Any = 1) -> Any:
        traced.append(not isinstance(x, gf.Array) or isinstance(x, gf.core.trace.Tracer))
        return x + 1 if bool(jnp.any(x > n)) else x

    for _ in range(3):
        np.testing.assert_array_equal(function(jnp.asarray(X)), X + 1)
    assert traced.count(False) == 3 and traced.count(True) <= 2  # with and without a number


def test_a_number_that_must_be_known_is_a_part_of_the_program():
    calls = []

    @composite
    def function(x: Any, n: Any) -> Any:
        calls.append(n)
        return jnp.concatenate([x] * n)

    x = jnp.ones(2)
    assert [function(x, n).shape for n in (1, 2, 3, 2, 3)] == [(2,), (4,), (6,), (4,), (6,)]
    assert [n for n in calls if isinstance(n, int)] == [1, 2, 3]


def test_errors_are_those_of_the_function():
    with pytest.raises(ValueError, match="method"):
        jnp.quantile(jnp.ones(3), 0.5, method="none")
    with pytest.raises(TypeError, match="got str"):
        jnp.std("x")
    with pytest.raises(ConcretizationTypeError):
        gf.jit(lambda x: jnp.linspace(0, 1, x))(3)
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        jnp.std(gone)
    jnp.std(jnp.ones(3))
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        jnp.std(gone)


def test_unknown_kinds_of_arguments_are_left_to_the_function():
    class Duck:
        def __jax_array__(self) -> Any:
            return jnp.asarray(X)

    assert float(jnp.std(Duck())) == pytest.approx(X.std())
    assert jnp.pad(jnp.ones(2), 1, mode=lambda vector, width, axis, kwargs: vector).shape == (4,)


def test_long_lists_are_left_to_the_function():
    x = [jnp.ones(2)] * 65
    assert jnp.stack(x).shape == (65, 2) and jnp.stack(x[1:]).shape == (64, 2)
    runs = []
    function = composite(lambda pieces: runs.append(len(pieces)) or jnp.concatenate(pieces))
    for _ in range(3):
        function(x)
        function(x[1:])
    assert runs.count(65) == 3 and runs.count(64) == 1


def test_what_may_not_be_traced_runs_op_by_op():
    function = composite(lambda x: jnp.sum(x) * 2)
    jnp.sum(jnp.ones(3))
    gf.clear_caches()  # also of what composites know
    with gf.no_tracing():
        assert float(function(jnp.ones(3))) == 6
    assert float(function(jnp.ones(3))) == 6


def test_trees_of_operands():
    x = jnp.asarray(X)
    parts = jnp.select([x > 1, x < -1], [x, -x], 0.5)
    np.testing.assert_array_equal(parts, np.select([X > 1, X < -1], [X, -X], np.float32(0.5)))
    fraction, whole = jnp.modf(x)
    np.testing.assert_array_equal(whole, np.modf(X)[1])
    np.testing.assert_array_equal(fraction, np.modf(X)[0])
    assert type(jnp.linalg.eigh(jnp.eye(2))) is type(jnp.linalg.eigh.__wrapped__(jnp.eye(2)))


def test_named_tuples_are_options_or_hold_operands():
    class Pair(NamedTuple):
        first: Any
        second: Any

    calls = []

    @composite
    def total(pair: Any, numbers: Any) -> Any:
        calls.append(pair)
        assert type(pair) is Pair and type(numbers) is Pair
        return pair.first * pair.second + sum(numbers.first)

    x = jnp.asarray(X)
    for _ in range(2):
        np.testing.assert_allclose(total(Pair(x, x), Pair((1, 2), 3)), X * X + 3, rtol=1e-6)
    assert len(calls) == 1


def test_numpys_arrays_and_deleted_ones_after_a_known_call():
    @composite
    def twice(x: Any) -> Any:
        return x + x

    x = jnp.asarray(X)
    for operand in (x, X, x, X):
        np.testing.assert_array_equal(twice(operand), 2 * X)
    x.delete()
    with pytest.raises(DeletedArrayError):
        twice(x)


def test_ints_without_a_dtype_are_left_to_the_function():
    with pytest.raises(OverflowError):
        composite(lambda x, n: jnp.add(x, n))(jnp.asarray([1, 2]), 1 << 70)


def test_settings():
    x = jnp.asarray(X)
    with gf.disable_jit():
        assert float(jnp.median(x)) == np.median(X)
    with gf.enable_x64(True):
        assert jnp.linspace(0.0, 1.0, 3).dtype == np.float64
        assert jnp.var(np.arange(3)).dtype == np.float64
    assert jnp.linspace(0.0, 1.0, 3).dtype == np.float32
    with gf.debug_nans(True), pytest.raises(FloatingPointError, match="div"):
        jnp.mean(jnp.zeros((0,)))
    with gf.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank"):
        jnp.heaviside(jnp.ones((2, 3)), jnp.ones(3))


def test_keys():
    key = random.key(3)
    np.testing.assert_array_equal(random.normal(key, (5,)), random.normal.__wrapped__(key, (5,)))
    halves = random.uniform(key, (4,), minval=0.5, maxval=1)
    assert ((np.asarray(halves) >= 0.5) & (np.asarray(halves) < 1)).all()


def test_it_keeps_what_describes_the_function(counted):
    assert counted.composite.__doc__ == "Of arrays." and counted.composite.__name__ == "function"
    assert inspect.signature(counted.composite) == inspect.signature(counted.plain)
    assert pickle.loads(pickle.dumps(jnp.median)) is jnp.median


def test_results_own_their_memory():
    """A program may give back what it was given; who writes to a NumPy array changes nothing."""
    host = X.copy()
    out = jnp.nan_to_num(host)
    host[:] = 7
    np.testing.assert_array_equal(out, X)


# --- numbers as arrays ---------------------------------------------------------------------


def test_jit_with_numbers():
    @gf.jit
    def function(x: Any, n: Any) -> Any:
        return x * n

    x = jnp.ones(2)
    for n in (2.0, -0.0, 0.0, 3, 0, float("inf"), 2.0, -0.0, 1j, True):
        for _ in range(2):
            out = np.asarray(function(x, n))
            np.testing.assert_array_equal(out, np.ones(2, np.float32) * n)
            np.testing.assert_array_equal(np.signbit(out.real), np.signbit(np.float32(n.real)))
            assert function(x.astype(jnp.bfloat16), 2.0).dtype == jnp.bfloat16
    assert np.isnan(function(x, float("nan"))).all()
    function(x, 1)
    with pytest.raises(OverflowError, match="fit"):
        function(x, 2**40)


def test_a_number_is_not_donated():
    function = gf.jit(lambda n, x: (n + 1, x + n), donate_argnums=0)
    for _ in range(3):
        n, x = function(2.0, jnp.ones(()))
        assert float(n) == 3 and float(x) == 3
    same = gf.jit(lambda n: n)
    gf.jit(lambda n: n + 1, donate_argnums=0)(same(2.0))
    assert float(same(2.0)) == 2


def test_numbers_beside_arrays():
    x = jnp.asarray(X)
    for number in (0.0, -0.0, 2, 2.0, True, -1.5):
        for function, reference in ((jnp.add, np.add), (jnp.multiply, np.multiply)):
            wanted = reference(X, np.float32(number))
            for got in (function(x, number), function(number, x)):
                assert got.dtype == np.float32 and not got.weak_type
                np.testing.assert_array_equal(got, wanted)
                np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))
    small = jnp.arange(3, dtype=jnp.uint8)
    assert (small + 255).dtype == jnp.uint8 and (small + 1.0).dtype == jnp.float32
    assert (x + 1j).dtype == jnp.complex64 and ((x + 0j) * -1j).dtype == jnp.complex64
    for _ in range(2):
        with pytest.raises(OverflowError, match="fit"):
            small + 2**40
    weak = jnp.asarray(1.0) * 1
    assert (jnp.asarray(2) + 1).weak_type == (jnp.asarray(2) + 1).weak_type
    assert weak.dtype == np.float32
    with gf.enable_x64(True):
        assert (x + 1).dtype == np.float32 and (jnp.arange(2) + 1).dtype == np.int64
    with gf.numpy_dtype_promotion("strict"):
        assert (x + 1).dtype == np.float32
