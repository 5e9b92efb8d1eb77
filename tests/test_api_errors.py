"""Bad input: each mistake a newcomer makes gets the right class and says how to mend it.

Classes are those that JAX 0.10 raises for the same line.
"""

import re

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import errors, lax

X = np.arange(3, dtype="f")
N = np.arange(3)
BLOCKS = gf.nn.get_scaled_dot_general_config("mxfp8")


def raises(error, *parts):
    """``pytest.raises`` for an error whose text has all ``parts`` (regular expressions) in order
    and a mend."""
    return pytest.raises(error, match="(?s)" + ".*".join([*parts, "Fix:"]))


# --- shapes, dtypes, axes -------------------------------------------------------------------

OPERATIONS = [
    (lambda: jnp.ones(3) + jnp.ones(4), TypeError, r"\[add\]", r"\(3,\), \(4,\)"),
    (lambda: jnp.multiply(jnp.ones((2, 3)), X[:2]), TypeError, r"\[mul\w*\]", r"\(2, 3\), \(2,\)"),
    (lambda: lax.add(X, jnp.ones(4)), TypeError, r"\[add\]", r"f32\[3\], f32\[4\]"),
    (lambda: lax.add(X, N), TypeError, r"\[add\]", r"f32\[3\], i32\[3\]"),
    (lambda: jnp.ones((2, 3)) @ jnp.ones((2, 3)), TypeError, r"\[matmul\]", r"f32\[2,3\]"),
    (lambda: jnp.dot(X, jnp.ones(4)), TypeError, r"\[dot_general\]", r"f32\[3\]", r"f32\[4\]"),
    (lambda: jnp.sum(X, axis=1), ValueError, r"\[sum\]", r"axis", "1"),
    (lambda: jnp.max(X, axis=(0, 0)), ValueError, r"\[max\]", "axes"),
    (lambda: jnp.concatenate([jnp.ones((2, 3)), jnp.ones((2, 4))]), TypeError,
     r"\[concatenate\]", r"f32\[2,3\], f32\[2,4\]"),
    (lambda: jnp.ones(3).reshape(7), TypeError, r"\[reshape\]", r"\(7,\)", r"\(3,\)"),
    (lambda: jnp.transpose(X, (0, 1)), ValueError, r"\[transpose\]", "axis"),
    (lambda: jnp.add(X, [1, 2, 3]), TypeError, r"\[add\]", "list at position 1"),
    (lambda: jnp.sin("a"), TypeError, r"\[sin\]", "str"),
    (lambda: jnp.sin(None), TypeError, r"\[sin\]", "NoneType"),
    (lambda: jnp.bitwise_and(X, X), TypeError, r"\[and\]", r"f32\[3\]"),
    (lambda: jnp.asarray(N) + 2**40, OverflowError, "int32", "1099511627776"),
    (lambda: jnp.resize(3, 10**400), gf.errors.OutOfMemoryError, r"\[resize\]", "memory"),
    (lambda: gf.scipy.linalg.lu_solve((0, 0), X), ValueError, r"\[lu_solve\]"),
    (lambda: gf.image.scale_and_translate(X, (3,), -1, X[:1], X[:1], "linear"), TypeError,
     r"\[scale_and_translate\] spatial_dims", "-1"),
    (lambda: lax.reduce_window(X, (0, 0), lax.max, (2,), (2,)), ValueError,
     r"\[reduce_window\]", "2 initial values"),
    (lambda: lax.reduce_window(X, 0.0, lax.max, ("a",), (2,)), TypeError,
     r"\[reduce_window\] each of window_dimensions", "'a'"),
    (lambda: gf.nn.scaled_dot_general(
        jnp.ones((2, 32)), X, (((1,), (1,)), ((), ())), configs=[BLOCKS] * 3), TypeError,
     r"\[dot_general\]", r"f32\[3\]"),
    (lambda: jnp.broadcast_to(X, (4,)), ValueError, r"\[broadcast_to\]", r"\(3,\)|f32\[3\]"),
]  # fmt: skip


@pytest.mark.parametrize("case", OPERATIONS, ids=lambda case: case[2].strip("\\[]"))
@pytest.mark.parametrize("where", ["eager", "jit"])
def test_operations(case, where):
    function, error, *parts = case
    with raises(error, *parts):
        function() if where == "eager" else gf.jit(function)()


@pytest.mark.parametrize("operand", [[1, 2, 3], (1, 2, 3), {1}, {}], ids=str)
def test_containers_are_no_operands(operand):
    """Python repeated a list by an array of one number, and found an array unequal to a list."""
    one = jnp.array(2)
    for call in (
        lambda: one - operand,
        lambda: operand * one,
        lambda: one * operand,
        lambda: one == operand,
        lambda: one != operand,
    ):
        with raises(TypeError, "must be arrays or numbers", r"i32\[\]"):
            call()


# --- values that are not known ---------------------------------------------------------------


def _if_positive(x):
    if x > 0:
        return x
    return -x


@pytest.mark.parametrize(
    "call",
    [
        lambda: gf.jit(_if_positive)(1.0),
        lambda: gf.make_jaxpr(_if_positive)(1.0),
        lambda: gf.jit(gf.grad(_if_positive))(1.0),
        lambda: gf.grad(gf.jit(_if_positive))(1.0),
        lambda: gf.eval_shape(_if_positive, 1.0),
    ],
    ids=["jit", "make_jaxpr", "jit grad", "grad jit", "eval_shape"],
)
def test_conditions_name_the_argument_and_the_line(call):
    line = _if_positive.__code__.co_firstlineno + 1
    with raises(
        errors.TracerBoolConversionError,
        r"\[bool\]",
        r"traced bool\[\]",
        re.escape(f"{__file__}:{line} (_if_positive)"),
        "argument x of _if_positive",
    ):
        call()


def test_conditions_under_vmap():
    with raises(errors.TracerBoolConversionError, r"traced bool\[\]", "mapped by vmap"):
        gf.vmap(_if_positive)(X)


CONVERSIONS = {
    "float": (float, errors.ConcretizationTypeError, r"\[float\]"),
    "int": (int, errors.ConcretizationTypeError, r"\[int\]"),
    "complex": (complex, errors.ConcretizationTypeError, r"\[complex\]"),
    "item": (lambda x: x.item(), errors.ConcretizationTypeError, r"\[item\]"),
    "tolist": (lambda x: x.tolist(), errors.ConcretizationTypeError, r"\[tolist\]"),
    "asarray": (np.asarray, errors.TracerArrayConversionError, r"\[numpy\]"),
    "ufunc": (np.sin, errors.TracerArrayConversionError, r"\[numpy\]"),
    "range": (lambda n: list(range(n)), errors.TracerIntegerConversionError, r"\[index\]"),
    "list": (lambda n: [1, 2][n], errors.TracerIntegerConversionError, r"\[index\]"),
    "bool": (bool, errors.TracerBoolConversionError, r"\[bool\]"),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_of_traced_values(name):
    convert, error, label = CONVERSIONS[name]

    def f(x):
        convert(x)
        return x

    with raises(error, label, "known while tracing", r"traced i32\[\]", "argument x of f"):
        gf.jit(f)(1)
    with raises(error, label, "mapped by vmap"):
        gf.vmap(f)(N)


@pytest.mark.parametrize("name", ["float", "complex", "tolist", "asarray", "ufunc"])
def test_conversions_that_would_lose_a_derivative(name):
    """np.sin(x) once gave a constant under grad, and so a gradient of zero."""
    convert, error, label = CONVERSIONS[name]
    with raises(error, label):
        gf.grad(lambda x: x * jnp.real(convert(x)))(1.0)


def test_masks_under_jit():
    with raises(errors.NonConcreteBooleanIndexError, r"\[index\]", r"bool\[3\]"):
        gf.jit(lambda x: x[x > 0])(X)


def test_tracers_do_not_hash():
    with raises(TypeError, r"\[hash\] tracers are not hashable"):
        gf.jit(lambda x: {x: 1})(1.0)


# --- leaks -----------------------------------------------------------------------------------

KEPT = {}


class Holder:
    value = None


def _leak_through_global(x):
    KEPT["x"] = x * 2
    return x


def _leak_through_attribute(x):
    Holder.value = x * 2
    return x


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: gf.jit(f)(1.0),
        lambda f: gf.grad(f)(1.0),
        lambda f: gf.jvp(f, (1.0,), (1.0,)),
        lambda f: gf.vmap(f)(X),
        lambda f: gf.jit(gf.vmap(gf.grad(f)))(X),
        lambda f: gf.grad(lambda x: jnp.sum(gf.vmap(gf.jit(f))(x)))(X),
        lambda f: gf.make_jaxpr(f)(1.0),
    ],
    ids=["jit", "grad", "jvp", "vmap", "jit vmap grad", "grad vmap jit", "make_jaxpr"],
)
@pytest.mark.parametrize("leak", [_leak_through_global, _leak_through_attribute])
def test_leaked_tracers(transform, leak):
    transform(leak)
    kept = KEPT["x"] if leak is _leak_through_global else Holder.value
    uses = {
        "eager": lambda: kept + 1,
        "jit argument": lambda: gf.jit(lambda y: y)(kept),
        "jit closure": lambda: gf.jit(lambda y: y + kept)(1.0),
        "jit result": lambda: gf.jit(lambda y: kept)(1.0),
        "grad": lambda: gf.grad(lambda y: y * kept)(1.0),
        "grad result": lambda: gf.grad(lambda y: kept)(1.0),
        "jvp result": lambda: gf.jvp(lambda y: kept, (1.0,), (1.0,)),
        "vmap": lambda: gf.vmap(lambda y: y * kept)(X),
        "vmap result": lambda: gf.vmap(lambda y: kept)(X),
    }
    for name, use in uses.items():
        with raises(errors.UnexpectedTracerError, "leaked tracer"):
            use()
            pytest.fail(f"{name} took a leaked tracer")


def test_an_inner_tracer_leaked_into_the_outer_function():
    def outer(x):
        box = []
        gf.jit(lambda y: (box.append(y * 2), y)[1])(x)
        return x * box[0]

    for call in (lambda: gf.jit(outer)(1.0), lambda: gf.grad(outer)(1.0), lambda: outer(1.0)):
        with raises(errors.UnexpectedTracerError, "leaked tracer", "made at .*test_api_errors"):
            call()


# --- jit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "static", [[1], X, {"a": 1}, jnp.ones(2)], ids=["list", "numpy", "dict", "array"]
)
def test_unhashable_static_arguments(static):
    with raises(ValueError, r"\[jit\] static arguments of f must be hashable"):

        def f(x, n):
            return x

        gf.jit(f, static_argnums=1)(1.0, static)


def test_a_traced_static_argument():
    inner = gf.jit(lambda x, n: x * n, static_argnums=1)
    with raises(ValueError, r"\[jit\] static arguments", "StagedTracer"):
        gf.jit(lambda z: inner(1.0, z))(2.0)


@pytest.mark.parametrize("argument", ["a", object(), len, {"k": "v"}, np.float32])
def test_arguments_that_are_no_arrays(argument):
    with raises(TypeError, r"\[jit\] arguments of f must be arrays", "as y"):

        def f(x, y):
            return x

        gf.jit(f)(1.0, argument)


@pytest.mark.parametrize("result", ["a", object(), np.float32])
def test_results_that_are_no_arrays(result):
    with raises(TypeError, r"\[jit\] outputs of .* must be arrays"):
        gf.jit(lambda x: [x, result])(1.0)


@pytest.mark.parametrize(
    "transform", [gf.jit, gf.grad, gf.vmap, gf.jacfwd, gf.jacrev, gf.value_and_grad]
)
def test_functions_must_be_callable(transform):
    with raises(TypeError, "first argument must be a function; got 3"):
        transform(3)


def test_use_after_donation():
    f = gf.jit(lambda x: x + 1, donate_argnums=0)
    for use in (
        lambda x: x + 1,
        np.asarray,
        f,
        lambda x: x[0],
        gf.block_until_ready,
        lambda x: gf.vmap(lambda v: v + 1)(x),
        lambda x: gf.grad(jnp.sum)(x),
    ):
        x = jnp.ones(3) + 0
        f(x)
        with raises((RuntimeError, ValueError), r"\[array\].*donated or deleted", r"f32\[3\]"):
            use(x)


# --- derivatives -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [3, True, N, np.uint8(1)])
def test_gradients_of_integers(value):
    with raises(TypeError, r"\[grad of f\] inputs must be floats or complex; got (i32|bool|u8)"):

        def f(x):
            return jnp.sum(x * 2.0)

        gf.grad(f)(value)
    assert gf.grad(f, allow_int=True)(value).dtype == gf.float0


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda x: x * jnp.ones(2), r"must return one scalar; got f32\[2\]"),
        (lambda x: (x, x), r"must return one scalar; got f32\[\], f32\[\]"),
        (lambda x: None, "must return one scalar; got nothing"),
        (lambda x: 3, r"must be a real float; got i32\[\]"),
        (lambda x: x > 0, r"must be a real float; got bool\[\]"),
        (lambda x: x * 1j, r"must be a real float; got c64\[\]"),
        (lambda x: "text", "outputs must be arrays.*'text'"),
    ],
)
def test_outputs_that_have_no_gradient(f, message):
    with raises(TypeError, message):
        gf.grad(f)(1.0)


DERIVATIVES = [
    (lambda: gf.grad(lambda x: x, argnums=2)(1.0), TypeError, "argnums", "got 2 for a call with 1"),
    (lambda: gf.grad(lambda x: x, argnums=0.5)(1.0), TypeError, "argnums", "0.5"),
    (lambda: gf.grad(lambda x: x, holomorphic=True)(1.0), TypeError, "holomorphic", "f32"),
    (lambda: gf.grad(lambda x: x, has_aux=True)(1.0), TypeError, r"pair \(out, aux\)"),
    (lambda: gf.jacfwd(lambda x: x)(1), TypeError, r"\[jacfwd", "i32"),
    (lambda: gf.jacfwd(jnp.real)(1j), TypeError, r"\[jacfwd", "c64"),
    (lambda: gf.jacrev(lambda x: x * 1j)(1.0), TypeError, r"\[jacrev", "c64"),
    (lambda: gf.jvp(lambda x: x, 1.0, 1.0), TypeError, r"\[jvp\]", "two tuples or two", "float"),
    (lambda: gf.jvp(lambda x: x, ((1.0,),), (1.0,)), TypeError, r"\[jvp\]", "equal trees"),
    (lambda: gf.jvp(lambda x: x, (1.0,), (1.0, 2.0)), TypeError, r"\[jvp\]", "equal trees"),
    (lambda: gf.jvp(lambda x: x, (1.0,), (X,)), ValueError, r"\[jvp\]", r"f32\[\]", r"f32\[3\]"),
    (lambda: gf.jvp(lambda x: x, (X,), (N,)), TypeError, r"\[jvp\]", r"f32\[3\]", r"i32\[3\]"),
    (lambda: gf.jvp(lambda x: x, (N,), (N,)), TypeError, r"\[jvp\]", "float0", r"i32\[3\]"),
    (lambda: gf.jvp(lambda x: x, (1,), (1.0,)), TypeError, r"\[jvp\]", "float0"),
    (lambda: gf.vjp(lambda x: (x, x), 1.0)[1](1.0), ValueError, r"\[vjp\]", "tree of the output"),
    (lambda: gf.vjp(lambda x: x, 1.0)[1](X), ValueError, r"\[vjp\] cotangents", r"f32\[3\]"),
    (lambda: gf.vjp(lambda x: x, X)[1](N), ValueError, r"\[vjp\] cotangents", r"i32\[3\]"),
    (lambda: gf.vjp(lambda x: x, 1.0)[1](1), ValueError, r"\[vjp\] cotangents", "i32"),
    (lambda: gf.vjp(lambda x: x, X)[1](X.astype("e")), ValueError, r"\[vjp\]", r"f16\[3\]"),
    (lambda: gf.linearize(lambda x: x, 1.0)[1](1.0, 2.0), TypeError, r"\[linearize\]", "tree"),
    (lambda: gf.linearize(lambda x: x, 1.0)[1](X), ValueError, r"\[linearize\]", r"f32\[3\]"),
    (lambda: gf.linearize(lambda x: x, X)[1](N), ValueError, r"\[linearize\]", r"i32\[3\]"),
]


@pytest.mark.parametrize("number", range(len(DERIVATIVES)))
def test_derivatives(number):
    function, error, *parts = DERIVATIVES[number]
    with raises(error, *parts):
        function()


# --- vmap ------------------------------------------------------------------------------------


def _two(x, y):
    return x


MAPS = [
    (lambda: gf.vmap(_two)(1.0, 2.0), ValueError, "in_axes", r"0 for f32\[\]"),
    (lambda: gf.vmap(_two, in_axes=1)(X, X), ValueError, "in_axes", r"1 for f32\[3\]"),
    (lambda: gf.vmap(_two, in_axes=(0,))(X, X), ValueError, "one item for each argument of _two"),
    (
        lambda: gf.vmap(_two)(X, np.ones(4, "f")),
        ValueError,
        "one size",
        "3 along axis 0 of x, 4 along axis 0 of y",
    ),
    (lambda: gf.vmap(_two, axis_size=4)(X, X), ValueError, "one size", "axis_size=4"),
    (lambda: gf.vmap(_two, in_axes=None)(X, X), ValueError, "at least one argument of _two"),
    (lambda: gf.vmap(lambda: 1.0)(), ValueError, "at least one argument"),
    (lambda: gf.vmap(_two, in_axes="a")(X, X), TypeError, "ints and None; got 'a'"),
    (lambda: gf.vmap(_two, in_axes=0.5)(X, X), TypeError, "ints and None; got 0.5"),
    (lambda: gf.vmap(lambda p: p, in_axes=({"b": 0},))({"a": X}), ValueError, "tree prefix"),
    (lambda: gf.vmap(_two, out_axes=None)(X, X), ValueError, "out_axes of None", r"f32\[3\]"),
    (lambda: gf.vmap(_two, out_axes=3)(X, X), ValueError, "out_axes", "got 3"),
    (lambda: gf.vmap(_two, out_axes=(0, 0))(X, X), ValueError, "out_axes", "tree prefix"),
    (lambda: gf.vmap(lambda x: x)("abc"), TypeError, "arrays or numbers", "'abc'"),
]


@pytest.mark.parametrize("number", range(len(MAPS)))
def test_maps(number):
    function, error, *parts = MAPS[number]
    with raises(error, r"\[", *parts):
        function()


# --- immutability and settings ---------------------------------------------------------------


def test_immutability():
    x = jnp.ones(3)
    with raises(TypeError, r"\[setitem\] arrays are immutable", r"x\[0\]"):
        x[0] = 1.0
    with raises(TypeError, r"\[setitem\]"):
        gf.jit(lambda v: v.__setitem__(0, 1.0))(x)


def test_settings():
    with raises(AttributeError, r"\[config\]", "'jax_enable_x65'"):
        gf.config.update("jax_enable_x65", True)
    with raises(ValueError, r"\[config\] numpy_rank_promotion", "'maybe'"):
        gf.config.update("numpy_rank_promotion", "maybe")
    with gf.config.override("numpy_rank_promotion", "raise"), raises(ValueError, r"\[add\]"):
        jnp.ones(3) + jnp.ones((2, 3))
    with raises(RuntimeError, r"\[devices\]", "'tpu'"):
        gf.devices("tpu")
    with raises(ValueError, r"\[device_put\] the device must be a Device", "'gpu'"):
        gf.device_put(1.0, "gpu")
    with raises(ValueError, "default_device must be", "'gpu'"), gf.default_device("gpu"):
        pass
    with raises(TypeError, r"\[typeof\]", "'a'"):
        gf.typeof("a")
