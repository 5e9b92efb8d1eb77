"""jit: one trace for each signature, static and donated arguments, closures, operands, stages."""

import functools
import inspect
import threading
import warnings
import weakref

import ml_dtypes
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.garbage import collect_garbage
from gpuflow.errors import DeletedArrayError

pytestmark = pytest.mark.simulated_gpu


class Counted:
    """A jitted function that counts how often Python runs it."""

    def __init__(self, function, **options):
        self.traces = 0

        @functools.wraps(function)
        def counted(*args, **kwargs):
            self.traces += 1
            return function(*args, **kwargs)

        self.jitted = gf.jit(counted, **options)

    def __call__(self, *args, **kwargs):
        return self.jitted(*args, **kwargs)


def double(x):
    return x * 2


# --- signatures ----------------------------------------------------------------------------


def test_one_trace_for_each_signature():
    f = Counted(double)
    for _ in range(3):
        f(jnp.ones(3))
    assert f.traces == 1
    f(np.ones(3, "f"))  # the same type from NumPy
    f(np.ones(3))  # and after narrowing
    assert f.traces == 1
    f(jnp.ones(4))
    f(jnp.ones(3, "int32"))
    assert f.traces == 3
    f(1.0)
    f(2.0)
    assert f.traces == 4  # weak
    f(np.float32(1))
    assert f.traces == 5  # strong
    assert f.jitted._cache_size() == 5
    f.jitted.clear_cache()
    f(jnp.ones(3))
    assert f.traces == 6


def test_parameters_are_those_of_the_function():
    jitted = gf.jit(lambda x, y=2: x)
    for follow_wrapped in (True, False):
        signature = inspect.signature(jitted, follow_wrapped=follow_wrapped)
        assert str(signature) == "(x, y=2)"
    assert "function" in inspect.signature(type(jitted)).parameters


def test_jit_of_jit_takes_time_in_proportion_to_its_depth():
    """Each level read the signature of the one below twice: 40 levels would take days."""
    f = Counted(lambda x: x * 2 + 1)
    nested = f
    for _ in range(40):
        nested = gf.jit(nested)
    assert nested(3.0).item() == 7.0
    assert gf.grad(nested)(3.0).item() == 2.0
    assert f.traces == 1
    assert str(inspect.signature(nested)) == str(inspect.signature(f))


@pytest.mark.parametrize("depth", [120, 900])
def test_arguments_may_be_nested_deep(depth):
    """The printed readers of trees called themselves for each level."""
    as_list, as_dict = 3.0, 3.0
    for _ in range(depth):
        as_list, as_dict = [as_list], {"a": as_dict}
    double = gf.jit(lambda tree: gf.tree.map(lambda x: 2 * x, tree))
    for tree in (as_list, as_dict):
        for _ in range(2):
            (out,) = gf.tree.leaves(double(tree))
            assert out.item() == 6.0


def test_trees_are_part_of_the_signature():
    f = Counted(lambda p: p["a"] * 2)
    assert f({"a": 1.0, "b": None}).item() == 2.0
    f({"b": None, "a": 3.0})
    assert f.traces == 1
    f({"a": 1.0, "b": 2.0})
    assert f.traces == 2


def test_settings_are_part_of_the_signature():
    f = Counted(lambda x: x * 2 + jnp.zeros(()))
    x = np.ones(3)
    assert f(x).dtype == np.float32
    with gf.enable_x64():
        assert f(x).dtype == np.float64
        assert f(x).dtype == np.float64
    assert f(x).dtype == np.float32
    assert f.traces == 2


def test_defaults_and_keywords():
    f = Counted(lambda x, n=2: x * n)
    assert f(3.0).item() == 6.0
    assert f(3.0, 4).item() == 12.0
    assert f(3.0, n=5).item() == 15.0
    assert f(x=3.0, n=5).item() == 15.0
    assert f(3.0, n=6).item() == 18.0
    assert f.traces == 4


# --- static arguments ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1},
        {"static_argnums": -1},
        {"static_argnames": "n"},
        {"static_argnames": ("n",)},
    ],
)
def test_static_arguments(options):
    f = Counted(lambda x, n: x * [1, 10, 100][n], **options)
    assert f(2.0, 1).item() == 20.0
    assert f(3.0, 1).item() == 30.0
    assert f.traces == 1
    assert f(2.0, n=2).item() == 200.0
    assert f(2.0, 2).item() == 200.0
    assert f.traces == 3


def test_static_values_of_other_types_differ():
    """1, 1.0 and True are equal and hash alike, but are not one program."""
    f = gf.jit(lambda x, n: x * (2 if isinstance(n, float) else 3), static_argnums=1)
    assert [f(1.0, n).item() for n in (1, 1.0, True)] == [3.0, 2.0, 3.0]


def test_static_names_with_variadic_arguments():
    """A keyword-only name is no position: a[1] stays dynamic."""
    f = Counted(lambda *a, n: a[0] * a[1] * n, static_argnames="n")
    assert f(1.0, 2.0, n=3).item() == 6.0
    assert f(1.0, 4.0, n=3).item() == 12.0
    assert f.traces == 1
    last = gf.jit(lambda *a: a[0] * [1, 2][a[-1]], static_argnums=-1)
    assert last(3.0, 5.0, 1).item() == 6.0


def test_static_objects_and_functions():
    f = gf.jit(lambda x, op: op(x), static_argnums=1)
    np.testing.assert_allclose(f(0.5, jnp.sin), np.sin(0.5), rtol=1e-6)
    np.testing.assert_allclose(f(0.5, jnp.cos), np.cos(0.5), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static_argnums": 3}, r"\[jit\] argnums must name a parameter of .*got 3 for 2"),
        ({"donate_argnums": -3}, r"\[jit\] argnums must name a parameter"),
        ({"static_argnames": "q"}, r"\[jit\] argnames must name a parameter of .*got 'q'"),
    ],
)
def test_options_must_name_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        gf.jit(lambda x, n: x, **options)


# --- donation ------------------------------------------------------------------------------


def test_donated_arrays_are_deleted():
    x = jnp.ones(3) + 0
    y = gf.jit(double, donate_argnums=0)(x)
    assert x.is_deleted() and not y.is_deleted()
    for use in (
        lambda: x + 1,
        lambda: np.asarray(x),
        lambda: gf.jit(double)(x),
        x.item,
        lambda: gf.grad(lambda v: jnp.sum(v))(x),
    ):
        with pytest.raises(DeletedArrayError, match=r"deleted f32\[3\].*Fix: use the result"):
            use()
    with pytest.raises(DeletedArrayError, match="deleted"):
        repr(x)
    np.testing.assert_array_equal(y, [2, 2, 2])


def test_donating_twice_and_aliased():
    f = gf.jit(lambda x, y: x + y, donate_argnames="x")
    x = jnp.ones(3) + 0
    with pytest.raises(ValueError, match=r"donated array must be passed once.*Fix: pass a copy"):
        f(x, x)
    assert not x.is_deleted()
    f(x=x, y=jnp.ones(3))
    with pytest.raises(RuntimeError):
        f(x, jnp.ones(3))


def test_donating_the_last_of_any_number():
    x, y = jnp.ones(3) + 0, jnp.ones(3) + 0
    gf.jit(lambda *a: a[0] + a[1], donate_argnums=-1)(x, y)
    assert not x.is_deleted() and y.is_deleted()


def test_donated_trees_leave_the_others():
    f = gf.jit(lambda state, x: ({"a": state["a"] + x}, x * 2), donate_argnums=(0,))
    state, x = {"a": jnp.zeros(3) + 0}, jnp.ones(3)
    old = state["a"]
    for _ in range(3):
        state, _ = f(state, x)
    assert old.is_deleted() and not x.is_deleted()
    np.testing.assert_array_equal(state["a"], [3, 3, 3])


def test_an_operand_returned_may_be_donated_later():
    """The output of an identity was once the operand object itself, and was deleted with it."""
    x = jnp.ones(3) + 0
    y = gf.jit(lambda v: v)(x)
    gf.jit(double, donate_argnums=0)(y)
    assert y.is_deleted()
    np.testing.assert_array_equal(x, [1, 1, 1])


def test_a_donated_operand_returned_lives_on():
    x = jnp.arange(3.0) + 0
    a, b = gf.jit(lambda v: (v, v), donate_argnums=0)(x)
    assert x.is_deleted()
    a.delete()
    np.testing.assert_array_equal(b, [0, 1, 2])


def test_numpy_and_scalar_operands_may_be_donated():
    x = np.ones(3, "f")
    np.testing.assert_array_equal(gf.jit(double, donate_argnums=0)(x), [2, 2, 2])
    np.testing.assert_array_equal(x, [1, 1, 1])
    assert gf.jit(double, donate_argnums=0)(2.0).item() == 4.0


# --- closures ------------------------------------------------------------------------------


def test_closed_over_values_are_those_of_the_first_call():
    box = [jnp.ones(3)]
    f = Counted(lambda x: x * box[0])
    np.testing.assert_array_equal(f(2.0), [2, 2, 2])
    box[0] = jnp.zeros(3)
    np.testing.assert_array_equal(f(2.0), [2, 2, 2])
    assert f.traces == 1


def test_a_closed_over_numpy_array_may_be_written_to():
    """It was once passed by reference, so that later writes changed a traced program."""
    c = np.ones(3, "f")
    f = gf.jit(lambda x: x * c)
    f(2.0)
    c[:] = 100
    np.testing.assert_array_equal(f(2.0), [2, 2, 2])


def test_a_deleted_closure_is_named():
    c = jnp.ones(3) + 0
    f = gf.jit(lambda x: x * c)
    f(2.0)
    c.delete()
    with pytest.raises(DeletedArrayError):
        f(2.0)


def test_an_entry_that_closes_over_tracers_is_not_kept():
    def outer(y):
        inner = gf.jit(lambda x: x * y)
        return inner(2.0) + inner(3.0)

    assert gf.grad(outer)(1.0).item() == 5.0
    np.testing.assert_array_equal(gf.vmap(outer)(jnp.arange(3.0)), [0, 5, 10])
    assert gf.jit(outer)(2.0).item() == 10.0
    shared = gf.jit(lambda x, box: x * box[0], static_argnums=1)

    class Box(list):
        __hash__ = object.__hash__
        __eq__ = object.__eq__

    box = Box([2.0])
    assert gf.grad(lambda y: (box.__setitem__(0, y), shared(3.0, box))[1])(5.0).item() == 3.0
    assert gf.grad(lambda y: (box.__setitem__(0, y), shared(3.0, box))[1])(6.0).item() == 3.0


def test_arrays_die_with_their_function():
    def make():
        big = jnp.ones(5) + 0
        f = gf.jit(lambda x: x * big)
        f(2.0)
        return f, weakref.ref(big)

    f, alive = make()
    assert alive() is not None
    del f
    collect_garbage()
    assert alive() is None


# --- methods, nesting, switches -------------------------------------------------------------


def test_methods():
    class Model:
        scale = 2.0

        @functools.partial(gf.jit, static_argnums=0)
        def apply(self, x):
            return x * self.scale

        @staticmethod
        @gf.jit
        def plain(x):
            return x * 2.0

    assert Model().apply(3.0).item() == 6.0
    assert Model.plain(3.0).item() == 6.0
    assert gf.grad(Model().apply)(3.0).item() == 2.0


def test_decorator_with_options_and_wraps():
    @gf.jit(static_argnames=("n",))
    def power(x, n):
        """A doc."""
        return x**n

    assert power(3.0, n=2).item() == 9.0
    assert (power.__name__, power.__doc__) == ("power", "A doc.")
    assert repr(power) == "<jit of power>"


def test_nested_jit_is_traced_once_and_inlined():
    inner = Counted(double)
    outer = gf.jit(lambda x: inner(inner(x)))
    assert outer(3.0).item() == 12.0
    assert inner.traces == 1
    assert len(outer.lower(3.0).compile().steps) == 1


def test_jit_of_vmap_of_grad():
    f = Counted(gf.vmap(gf.grad(lambda x, w: jnp.sum(jnp.tanh(x * w))), in_axes=(0, None)))
    x, w = np.linspace(-1, 1, 6, dtype="f").reshape(3, 2), np.array([0.5, 2], "f")
    want = w * (1 - np.tanh(x * w) ** 2)
    for _ in range(2):
        np.testing.assert_allclose(f(x, w), want, rtol=1e-5, atol=1e-6)
    assert f.traces == 1


def test_inline_leaves_no_equation():
    f = gf.jit(double, inline=True)
    names = [eqn.primitive.name for eqn in gf.make_jaxpr(f)(1.0).eqns]
    assert names == ["mul"]


def test_disable_jit():
    f = gf.jit(lambda x: x if x > 0 else -x)
    with gf.disable_jit():
        assert f(-3.0) == 3.0
        with gf.disable_jit(False), pytest.raises(gf.errors.TracerBoolConversionError):
            f(-3.0)


def test_an_error_while_tracing_leaves_no_entry():
    fail = [True]

    def f(x):
        if fail[0]:
            raise KeyError("once")
        return x * 2

    jitted = gf.jit(f)
    with pytest.raises(KeyError):
        jitted(1.0)
    fail[0] = False
    assert jitted(1.0).item() == 2.0


def test_threads_share_a_function():
    f = gf.jit(lambda x, n: jnp.tanh(x) * 2 + n)
    x = np.linspace(-2, 2, 5000, dtype="f")
    failures = []

    def work(number):
        for k in range(20):
            size = 4000 + (number + k) % 3
            got = np.asarray(f(x[:size], float(number)))
            want = np.tanh(x[:size]) * 2 + number
            if not np.allclose(got, want, atol=1e-5):
                failures.append((number, k))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- outputs and operands -------------------------------------------------------------------


def test_outputs_that_are_operands_literals_duplicates_and_views():
    x = np.arange(6, dtype="f").reshape(2, 3)

    def f(x):
        y = x + 1
        plain = {"in": x, "twice": [y, y], "literal": 3.0, "const": np.float32(4), "n": 2}
        views = {"T": y.T, "row": y[1], "repeat": jnp.broadcast_to(y[:1], (2, 3))}
        return {**plain, **views, "none": None}

    out = gf.jit(f)(x)
    x[:] = -1  # outputs must not see the caller's array
    want = np.arange(6, dtype="f").reshape(2, 3)
    np.testing.assert_array_equal(out["in"], want)
    np.testing.assert_array_equal(out["twice"][0], want + 1)
    np.testing.assert_array_equal(out["T"], (want + 1).T)
    np.testing.assert_array_equal(out["row"], want[1] + 1)
    np.testing.assert_array_equal(out["repeat"], [want[0] + 1] * 2)
    assert out["literal"].weak_type and out["literal"].item() == 3.0
    assert not out["const"].weak_type and out["const"].dtype == np.float32
    assert out["n"].dtype == np.int32 and out["none"] is None
    assert all(isinstance(out[k], gf.Array) for k in ("in", "literal", "const", "n"))
    out["twice"][0].delete()
    np.testing.assert_array_equal(out["twice"][1], want + 1)


def test_scalars_and_empty_arrays():
    f = gf.jit(lambda x: (x * 2, jnp.sum(x), jnp.sum(x, axis=-1) if x.ndim else x))
    for x in (np.float32(3), np.zeros((0,), "f"), np.zeros((3, 0), "f"), np.zeros((0, 3), "f")):
        doubled, total, rows = f(x)
        np.testing.assert_array_equal(doubled, x * 2)
        np.testing.assert_array_equal(total, np.sum(x))
        np.testing.assert_array_equal(rows, np.sum(x, axis=-1) if np.ndim(x) else x)
        assert doubled.shape == np.shape(x)


def test_functions_without_arguments_or_results():
    assert gf.jit(lambda: 3.0)().item() == 3.0
    assert gf.jit(lambda x: None)(1.0) is None
    assert gf.jit(lambda x: ())(1.0) == ()


def _unaligned(values):
    raw = np.zeros(values.nbytes + 1, np.uint8)
    view = raw[1:].view(values.dtype).reshape(values.shape)
    view[:] = values
    assert not view.flags.aligned
    return view


VALUES = np.arange(12, dtype="f").reshape(3, 4)
ODD_OPERANDS = {
    "transposed": np.arange(12, dtype="f").reshape(4, 3).T,
    "strided": np.arange(48, dtype="f").reshape(6, 8)[::2, ::2],
    "reversed": VALUES[::-1, ::-1],
    "broadcast": np.broadcast_to(np.float32(7), (3, 4)),
    "fortran": np.asfortranarray(VALUES),
    "unaligned": _unaligned(VALUES),
    "read-only": np.frombuffer(VALUES.tobytes(), "f").reshape(3, 4),
    "big-endian": VALUES.astype(">f4"),
    "big-endian 64": VALUES.astype(">f8"),
    "64-bit": VALUES.astype("f8"),
}


@pytest.mark.parametrize("kind", ODD_OPERANDS)
def test_operands_of_any_layout(kind):
    x = ODD_OPERANDS[kind]
    f = gf.jit(lambda x: (jnp.sin(x) * 2, x))
    doubled, same = f(x)
    assert doubled.dtype == same.dtype == np.float32
    np.testing.assert_allclose(doubled, np.sin(x.astype("f")) * 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(same, x.astype("f"))
    np.testing.assert_allclose(jnp.sin(x), np.sin(x.astype("f")), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["i8", ">i8", "u8", ">i4", "i2", "?", "c16"])
def test_operands_of_other_dtypes(dtype):
    x = np.arange(5).astype(dtype)
    out = gf.jit(lambda x: x)(x)
    assert out.dtype.isnative and out.dtype == jnp.asarray(x).dtype
    np.testing.assert_array_equal(out, x.astype(out.dtype))


def test_wide_values_narrow_silently():
    """A float64 too large for float32 is inf; an int64 too large wraps, as in JAX; no warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(np.asarray(gf.jit(double)(np.array([1e300])))[0])
        assert np.isinf(gf.jit(lambda x: x * 1e300)(1.0).item())
        assert np.asarray(gf.jit(lambda x: x)(np.array([2**40 + 5])))[0] == 5


def test_weak_types_pass_through():
    f = gf.jit(double)
    assert f(1.0).weak_type and f(1).weak_type
    assert not f(np.float32(1)).weak_type
    half = jnp.ones(2, ml_dtypes.bfloat16)
    assert (half * f(1.0)).dtype == ml_dtypes.bfloat16
    assert gf.jit(lambda h: h * f(1.0))(half).dtype == ml_dtypes.bfloat16


# --- stages --------------------------------------------------------------------------------


def test_lower_and_compile():
    f = gf.jit(lambda x, n: {"y": x * n}, static_argnums=1)
    lowered = f.lower(gf.ShapeDtypeStruct((3,), np.float32), 2)
    assert "mul" in lowered.as_text()
    compiled = lowered.compile()
    np.testing.assert_array_equal(compiled(jnp.ones(3))["y"], [2, 2, 2])
    assert [step.kind for step in compiled.steps] == ["kernel"]
    assert compiled.cost_analysis()["bytes accessed"] >= 24
    assert compiled.memory_analysis().output_size_in_bytes == 12
    assert compiled.as_text()
    with pytest.raises(TypeError, match=r"\[compiled\].*got f32\[4\].*Fix: lower again"):
        compiled(jnp.ones(4))
    with pytest.raises(TypeError, match=r"\[compiled\].*tree that was lowered"):
        compiled(jnp.ones(3), jnp.ones(3))


def test_eval_shape_of_a_jitted_function():
    out = gf.jit(lambda x: {"y": x.T}).eval_shape(gf.ShapeDtypeStruct((2, 3), np.float32))
    assert out["y"].shape == (3, 2)
